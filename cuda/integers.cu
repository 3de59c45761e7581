// Integers to residues, and residues to integers by the Chinese remainder theorem (docs/math.md, "Integers"), for
// moduli of one word. reduce_integers, compose_integers: a thread converts one entry; grid: entries / 256. norm_parts:
// a block of threads reads one part of the coefficients of an item; grid: items * parts.
#include "ptx.cuh"
#include "rows.cuh"

// ---- integers to residues ----

// Residues of integers of any machine type S. x: (items, count). y: (items, limbs, n). In a row of y, entries `count`
// to n - 1 are zeros.
template <class T> struct IntegersParameters {
    const void *x;
    T *y;
    const Modulus *moduli;
    u64 count, n, entries;
    u32 limbs;
};
template <class T, class S> __global__ void __launch_bounds__(256) reduce_integers(const IntegersParameters<T> p) {
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= p.entries) return;
    const u64 row = quotient(e, p.n), j = e - row * p.n;
    u64 residue = 0;
    if (j < p.count) {
        const Modulus &m = p.moduli[rest(row, p.limbs)];
        const S x = ((const S *)p.x)[quotient(row, p.limbs) * p.count + j];
        const bool negative = x < 0;
        const u64 size = negative ? 0 - (u64)x : (u64)x;
        residue = size > m.last ? reduce(m, size) : size;
        if (negative) residue = neg_mod(m, residue);
    }
    p.y[e] = (T)residue;
}

// ---- residues to integers ----

// Both functions take numbers of WORDS words in two's complement. add_words computes x += y, or x -= y if `negated` is
// true, and returns the highest word of x. is_negative returns whether x + y, or x - y if `negated` is true, is
// negative.
template <int WORDS> PG_DEVICE u64 add_words(u64 *x, const u64 *y, bool negated) {
    u64 carry = negated;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
        const u64 z = negated ? ~y[w] : y[w], sum = x[w] + z, all = sum + carry;
        carry = (sum < z) | (all < sum);
        x[w] = all;
    }
    return x[WORDS - 1];
}
template <int WORDS> PG_DEVICE bool is_negative(const u64 *x, const u64 *y, bool negated) {
    u64 carry = negated, all = 0;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
        const u64 z = negated ? ~y[w] : y[w], sum = x[w] + z;
        all = sum + carry;
        carry = (sum < z) | (all < sum);
    }
    return all >> 63;
}

// The tables of a basis (_core/plans/crt.py), and the shape of arrays of residues. Q is the product of the moduli q_i.
struct Tables {
    const Modulus *moduli;
    const u64 *inverse;  // (Q / q_i)^-1 mod q_i
    const u64 *terms;    // (limbs + 1, WORDS): Q / q_i, then -Q
    const u64 *bounds;   // (3, WORDS): the numbers Q, low and high; results lie in [-low, high)
    u64 n;
    u32 limbs, centered;
    double unsure;  // bound on the error of the computed quotient of a sum
};

// Computes the integer x of coefficient j of an item. WORDS words must hold at least 3 bits more than Q has.
template <class T, int WORDS> PG_DEVICE void compose(const T *residues, const Tables &r, u64 item, u64 j, u64 *x) {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) x[w] = 0;
    const T *column = residues + item * r.limbs * r.n + j;
    double quotient = r.centered ? 0.5 : 0;
    for (u32 i = 0; i <= r.limbs; ++i) {
        u64 y;
        if (i < r.limbs) {
            const Modulus &m = r.moduli[i];
            y = mul_mod(m, column[i * r.n], r.inverse[i]);
            quotient += (double)y * m.inverse;
        } else {
            y = (u64)quotient;
            quotient -= (double)y;
        }
        const u64 *term = r.terms + (u64)i * WORDS;
        u64 carry = 0;
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            const u64 low = y * term[w], sum = x[w] + low, all = sum + carry;
            carry = __umul64hi(y, term[w]) + (sum < low) + (all < sum);
            x[w] = all;
        }
    }
    if (quotient >= r.unsure && quotient <= 1 - r.unsure) return;
    if (is_negative<WORDS>(x, r.bounds + WORDS, false)) add_words<WORDS>(x, r.bounds, false);
    else if (!is_negative<WORDS>(x, r.bounds + 2 * WORDS, true)) add_words<WORDS>(x, r.bounds, true);
}

template <int WORDS> PG_DEVICE bool make_size(u64 *x) {  // replaces x by |x|; returns whether x was negative
    const bool negative = x[WORDS - 1] >> 63;
    u64 carry = negative;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
        x[w] = (negative ? ~x[w] : x[w]) + carry;
        carry = carry && x[w] == 0;
    }
    return negative;
}

// Returns the bits of the double nearest to x, with ties to even, or of an infinity if x is too large. Replaces x by
// |x|.
template <int WORDS> PG_DEVICE u64 double_bits(u64 *x) {
    const u64 sign = (u64)make_size<WORDS>(x) << 63;
    // lead: the highest word that is not 0. next: the word below `lead`. below: nonzero if a bit below `next` is set.
    u64 lead = 0, next = 0, below = 0;
    int top = -1;
#pragma unroll
    for (int w = WORDS - 1; w >= 0; --w) {
        if (top < 0) lead = x[w], top = x[w] ? w : -1;
        else if (w == top - 1) next = x[w];
        else below |= x[w];
    }
    if (top < 0) return 0;
    const int shift = __clzll((i64)lead);
    if (shift) lead = lead << shift | next >> (64 - shift), next <<= shift;
    below |= next;
    const u64 half = (u64)1 << 10, dropped = lead & (2 * half - 1);
    u64 bits = lead >> 11;  // 2^52 <= bits < 2^53
    bits += dropped > half || (dropped == half && (below || (bits & 1)));
    // The leading bit of `bits` adds 1 to the exponent, and so does a carry from rounding.
    const u64 exponent = 1023 + 64 * (u64)top + (63 - shift);
    if (exponent > 2046) return sign | (u64)0x7ff << 52;
    return sign | (((exponent - 1) << 52) + bits);
}

enum Out { TO_WORDS, TO_INT64, TO_FLOAT64 };

template <class T> struct OutParameters {
    const T *x;  // (items, limbs, n)
    u64 *y;      // (items, n, words)
    u64 *wrong;  // TO_INT64: ~e for the first entry e of x that does not fit 64 bits; atomicMax keeps the largest ~e
    Tables tables;
    u64 entries;  // items * n
    u32 words;
};
template <class T, int WORDS, int OUT>
__global__ void __launch_bounds__(256) compose_integers(const OutParameters<T> p) {
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= p.entries) return;
    const u64 item = quotient(e, p.tables.n);
    u64 x[WORDS];
    compose<T, WORDS>(p.x, p.tables, item, e - item * p.tables.n, x);
    if (OUT == TO_WORDS) {
#pragma unroll
        for (int w = 0; w < WORDS; ++w)
            if ((u32)w < p.words) p.y[e * p.words + w] = x[w];
    } else if (OUT == TO_INT64) {
        const u64 sign = x[0] >> 63 ? ~(u64)0 : 0;
        bool fits = true;
#pragma unroll
        for (int w = 1; w < WORDS; ++w) fits &= x[w] == sign;
        p.y[e] = x[0];
        if (!fits) atomicMax((unsigned long long *)p.wrong, ~e);
    } else {
        p.y[e] = double_bits<WORDS>(x);
    }
}

enum Norm { LARGEST, SUM, SQUARES };

// If NORM is LARGEST, replaces `norm` by the larger of `norm` and x; else adds x to `norm`. x has COUNT words, `norm`
// has MORE words. Both are nonnegative.
template <int NORM, int MORE, int COUNT> PG_DEVICE void add_to_norm(u64 *norm, const u64 *x) {
    if (NORM == LARGEST) {
        bool above = false;
#pragma unroll
        for (int w = 0; w < COUNT; ++w) above = x[w] != norm[w] ? x[w] > norm[w] : above;
#pragma unroll
        for (int w = 0; w < COUNT; ++w) norm[w] = above ? x[w] : norm[w];
        return;
    }
    u64 carry = 0;
#pragma unroll
    for (int w = 0; w < MORE; ++w) {
        const u64 z = w < COUNT ? x[w] : 0, sum = norm[w] + z, all = sum + carry;
        carry = (sum < z) | (all < sum);
        norm[w] = all;
    }
}

// Joins the norms of all threads of a block by add_to_norm, and writes the first `words` words of the result to y.
// shared: LENGTH words for each thread. The number of threads must be a power of two.
template <int NORM, int LENGTH> PG_DEVICE void join_norms(u64 *norm, u64 *shared, u64 *y, u32 words) {
    for (int w = 0; w < LENGTH; ++w) shared[w * blockDim.x + threadIdx.x] = norm[w];
    for (u32 half = blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x >= half) continue;
        u64 other[LENGTH];
        for (int w = 0; w < LENGTH; ++w) other[w] = shared[w * blockDim.x + threadIdx.x + half];
        add_to_norm<NORM, LENGTH, LENGTH>(norm, other);
        for (int w = 0; w < LENGTH; ++w) shared[w * blockDim.x + threadIdx.x] = norm[w];
    }
    if (threadIdx.x == 0)
        for (u32 w = 0; w < words; ++w) y[w] = norm[w];
}

template <class T> struct NormParameters {
    const T *x;  // (items, limbs, n)
    u64 *y;      // (items, parts, words of a norm)
    Tables tables;
    u32 parts;
};
template <class T, int WORDS, int NORM> __global__ void __launch_bounds__(128) norm_parts(const NormParameters<T> p) {
    constexpr int LENGTH = NORM == LARGEST ? WORDS : NORM == SUM ? WORDS + 1 : 2 * WORDS + 1;
    extern __shared__ __align__(16) unsigned char memory[];
    start_next(starts_early());
    await_previous();
    u64 norm[LENGTH];
#pragma unroll
    for (int w = 0; w < LENGTH; ++w) norm[w] = 0;
    const u32 item = blockIdx.x / p.parts, part = blockIdx.x % p.parts;
    for (u64 j = (u64)part * blockDim.x + threadIdx.x; j < p.tables.n; j += (u64)p.parts * blockDim.x) {
        u64 x[WORDS];
        compose<T, WORDS>(p.x, p.tables, item, j, x);
        make_size<WORDS>(x);
        if (NORM != SQUARES) {
            add_to_norm<NORM, LENGTH, WORDS>(norm, x);
            continue;
        }
        u64 square[2 * WORDS];
        for (int w = 0; w < 2 * WORDS; ++w) square[w] = 0;
        for (int i = 0; i < WORDS; ++i) {
            u64 carry = 0;
            for (int k = 0; k < WORDS; ++k) {
                const u64 low = x[i] * x[k], sum = square[i + k] + low, all = sum + carry;
                carry = __umul64hi(x[i], x[k]) + (sum < low) + (all < sum);
                square[i + k] = all;
            }
            square[i + WORDS] = carry;
        }
        add_to_norm<SUM, LENGTH, NORM == SQUARES ? 2 * WORDS : 1>(norm, square);
    }
    join_norms<NORM, LENGTH>(norm, (u64 *)memory, p.y + (u64)blockIdx.x * LENGTH, LENGTH);
}

// Computes the norms of rows from the norms of their parts. grid: rows.
struct JoinParameters {
    const u64 *x;  // (rows, parts, LENGTH)
    u64 *y;        // (rows, words)
    u32 parts, words;
};
template <int LENGTH, int NORM> __global__ void __launch_bounds__(32) norm_rows(const JoinParameters p) {
    extern __shared__ __align__(16) unsigned char memory[];
    start_next(starts_early());
    await_previous();
    u64 norm[LENGTH];
    for (int w = 0; w < LENGTH; ++w) norm[w] = 0;
    for (u32 part = threadIdx.x; part < p.parts; part += blockDim.x) {
        u64 x[LENGTH];
        for (int w = 0; w < LENGTH; ++w) x[w] = p.x[((u64)blockIdx.x * p.parts + part) * LENGTH + w];
        add_to_norm<NORM, LENGTH, LENGTH>(norm, x);
    }
    join_norms<NORM, LENGTH>(norm, (u64 *)memory, p.y + (u64)blockIdx.x * p.words, p.words);
}
