// Random residues from the bytes of ChaCha20 streams (docs/math.md, "Random elements", "Small random elements"). A
// stream is cut into blocks of 64 bytes; a thread computes one such block. The first `skip` coefficients of the first
// block are not written. Source of the cipher: Bernstein 2008, "ChaCha, a variant of Salsa20".
#include "memory.cuh"
#include "rows.cuh"

struct Stream {
    u32 key[8];
    u64 block;  // index of the first block
};

PG_DEVICE u32 rotated(u32 x, int bits) { return x << bits | x >> (32 - bits); }
PG_DEVICE void quarter_round(u32 &a, u32 &b, u32 &c, u32 &d) {
    a += b, d = rotated(d ^ a, 16);
    c += d, b = rotated(b ^ c, 12);
    a += b, d = rotated(d ^ a, 8);
    c += d, b = rotated(b ^ c, 7);
}
// Computes block stream.block + index of the stream of a limb. x: the 16 words of the block.
PG_DEVICE void chacha20(const Stream &stream, u32 limb, u64 index, u32 *x) {
    const u64 counter = stream.block + index;
    x[0] = 0x61707865u, x[1] = 0x3320646eu, x[2] = 0x79622d32u, x[3] = 0x6b206574u;
#pragma unroll
    for (int i = 0; i < 8; ++i) x[4 + i] = stream.key[i];
    x[12] = (u32)counter, x[13] = (u32)(counter >> 32), x[14] = limb, x[15] = 0;
#pragma unroll 2
    for (int i = 0; i < 10; ++i) {
        quarter_round(x[0], x[4], x[8], x[12]), quarter_round(x[1], x[5], x[9], x[13]);
        quarter_round(x[2], x[6], x[10], x[14]), quarter_round(x[3], x[7], x[11], x[15]);
        quarter_round(x[0], x[5], x[10], x[15]), quarter_round(x[1], x[6], x[11], x[12]);
        quarter_round(x[2], x[7], x[8], x[13]), quarter_round(x[3], x[4], x[9], x[14]);
    }
    x[0] += 0x61707865u, x[1] += 0x3320646eu, x[2] += 0x79622d32u, x[3] += 0x6b206574u;
#pragma unroll
    for (int i = 0; i < 8; ++i) x[4 + i] += stream.key[i];
    x[12] += (u32)counter, x[13] += (u32)(counter >> 32), x[14] += limb;
}
PG_DEVICE u64 word_of(const u32 *x) { return (u64)x[1] << 32 | x[0]; }

// Returns (high * 2^64 + low) mod q for any two words. If q < 2^62, the function adds two of Shoup's products, high
// times (2^64 mod q) and low times 1, and reduces the sum. Each product is below 2q.
PG_DEVICE u64 reduce_any(const Modulus &m, u64 high, u64 low) {
    if (m.bits > 62) return reduce(m, reduce(m, high), low);
    const u64 quotients = __umul64hi(high, m.power64_quotient) + __umul64hi(low, m.inverse64);
    u64 r = high * m.power64 + low - quotients * m.q;
    r = min(r, r - m.q2);
    return min(r, r - m.q);
}

// Uniform residues. For each limb, a thread computes four residues, each from 16 bytes. WHOLE: whether the four
// residues lie in one row, and are written together. gridDim.x: (blocks of the stream) / 256. gridDim.y: limbs, at most
// 65535. If there are more limbs, a thread computes several limbs. block: 256 threads.
template <class T> struct UniformParameters {
    T *y;
    const Modulus *moduli;
    Stream stream;
    u64 n, skip, entries, blocks;  // entries: number of coefficients of all polynomials
    u32 limbs;
};
template <class T, bool WHOLE> __global__ void __launch_bounds__(256) uniform(const UniformParameters<T> p) {
    constexpr int WIDTH = 16 / sizeof(T);
    const u64 block = (u64)blockIdx.x * 256 + threadIdx.x;
    if (block >= p.blocks) return;
    for (u32 limb = blockIdx.y; limb < p.limbs; limb += gridDim.y) {
        u32 x[16];
        chacha20(p.stream, limb, block, x);
        const Modulus &m = p.moduli[limb];
        T values[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = (T)reduce_any(m, word_of(x + 4 * i + 2), word_of(x + 4 * i));
        if (WHOLE) {
            const u64 item = quotient(4 * block, p.n), j = 4 * block - item * p.n;
            T *const y = p.y + (item * p.limbs + limb) * p.n + j;
#pragma unroll
            for (int i = 0; i < 4; i += WIDTH) write<DEFAULT>((Neighbours<T, WIDTH> *)(y + i), pack<WIDTH>(values + i));
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u64 e = 4 * block + i - p.skip;  // wraps to a large number if the coefficient is skipped
                if (e >= p.entries) continue;
                const u64 item = quotient(e, p.n);
                p.y[(item * p.limbs + limb) * p.n + (e - item * p.n)] = values[i];
            }
        }
    }
}

// Returns v mod q. Needs |v| <= bound.
PG_DEVICE u64 residue_of(const Modulus &m, i64 v, u64 bound) {
    if (m.q == 0 || bound < m.q) return (u64)v + ((u64)(v >> 63) & m.q);
    const u64 r = reduce(m, (u64)(v < 0 ? -v : v));
    return v < 0 ? neg_mod(m, r) : r;
}

enum Shape { TERNARY, SPARSE, BINOMIAL, GAUSSIAN, TUNIFORM };
constexpr int MAX_THRESHOLDS = 512;

template <int BYTES> PG_DEVICE u64 number_at(const unsigned char *x) {
    if constexpr (BYTES == 1) return *x;
    else if constexpr (BYTES == 2) return *(const unsigned short *)x;
    else if constexpr (BYTES == 4) return *(const u32 *)x;
    else return *(const u64 *)x;
}
// Returns the integer that is made from the BYTES bytes x of a stream (polygpu/_core/plans/sampling.py).
template <int SHAPE, int BYTES, class P>
PG_DEVICE i64 small_integer(const unsigned char *x, const P &p, const u64 *thresholds) {
    if constexpr (SHAPE == GAUSSIAN) {
        i64 sum = 0;
#pragma unroll
        for (int term = 0; term < BYTES / 8; ++term) {
            const u64 w = number_at<8>(x + 8 * term), u = w >> 1;
            i64 size = 0;
#pragma unroll 4
            for (u32 j = 0; j < p.count; ++j) size += u >= thresholds[j];
            sum += p.weights[term] * (w & 1 ? -size : size);
        }
        return sum;
    } else {
        const u64 w = number_at<BYTES>(x);
        if constexpr (SHAPE == TERNARY) return (i64)__umul64hi(w, 3) - 1;
        if constexpr (SHAPE == BINOMIAL) {
            const u64 mask = ((u64)1 << p.parameter) - 1;
            return (i64)__popcll(w & mask) - (i64)__popcll(w >> p.parameter & mask);
        }
        const u64 u = w & (~(u64)0 >> (62 - p.parameter));
        return (i64)((u >> 1) + (u & 1) - ((u64)1 << p.parameter));
    }
}

// Small integers, the same for all limbs. A block of threads first computes its part of the stream. Then thread t
// computes coefficients t, t + 256, ... of the part. So neighbouring threads write neighbouring coefficients. grid:
// (blocks of the stream) / 256. block: 256 threads.
template <class T> struct SmallParameters {
    T *y;
    const Modulus *moduli;
    const u64 *thresholds;  // the `count` thresholds of a Gaussian
    Stream stream;
    u64 n, skip, entries, blocks, bound;
    i64 weights[4];
    u32 limbs, parameter, count;
};
template <class T, int SHAPE, int BYTES> __global__ void __launch_bounds__(256, 5) small(const SmallParameters<T> p) {
    using Chunk = Neighbours<u32, 4>;
    constexpr u32 PER_BLOCK = 64 / BYTES;
    __shared__ alignas(16) u32 memory[256 * 16];
    __shared__ u64 thresholds[SHAPE == GAUSSIAN ? MAX_THRESHOLDS : 1];
    const u64 first = (u64)blockIdx.x * 256;
    if (first + threadIdx.x < p.blocks) {
        u32 x[16];
        chacha20(p.stream, 0, first + threadIdx.x, x);
#pragma unroll
        for (int i = 0; i < 16; i += 4) *(Chunk *)(memory + 16 * threadIdx.x + i) = pack<4>(x + i);
    }
    if constexpr (SHAPE == GAUSSIAN)
        for (u32 j = threadIdx.x; j < p.count; j += 256) thresholds[j] = p.thresholds[j];
    __syncthreads();
    for (u32 i = threadIdx.x; i < 256 * PER_BLOCK; i += 256) {
        const u64 e = first * PER_BLOCK + i - p.skip;
        if (e >= p.entries) continue;  // e wraps to a large number if the coefficient is skipped
        const i64 v = small_integer<SHAPE, BYTES>((const unsigned char *)memory + i * BYTES, p, thresholds);
        const u64 item = quotient(e, p.n);
        T *const y = p.y + item * p.limbs * p.n + (e - item * p.n);
        for (u32 limb = 0; limb < p.limbs; ++limb) y[limb * p.n] = (T)residue_of(p.moduli[limb], v, p.bound);
    }
}

// Writes the words of a stream to y. grid: (blocks of the stream) / 256. block: 256 threads.
struct KeysParameters {
    u64 *y;
    Stream stream;
    u64 blocks;
};
__global__ void __launch_bounds__(256) keystream(const KeysParameters p) {
    const u64 block = (u64)blockIdx.x * 256 + threadIdx.x;
    if (block >= p.blocks) return;
    u32 x[16];
    chacha20(p.stream, 0, block, x);
#pragma unroll
    for (int i = 0; i < 16; i += 4) write<DEFAULT>((Neighbours<u32, 4> *)((u32 *)p.y + 16 * block + i), pack<4>(x + i));
}

// Sparse ternary polynomials. Each coefficient has a word of the stream. The key of a coefficient is floor(word / 2).
// The `weight` coefficients with the smallest (key, index) become 1 or -1, depending on the last bit of their words.
// All others become 0. The kernel finds the greatest chosen key in digits of 8 bits, beginning with the highest digit.
// grid: polynomials. block: 1024 threads.
template <class T> struct SparseParameters {
    const u64 *x;  // words of the stream; the first `skip` of them precede the first polynomial
    T *y;
    const Modulus *moduli;
    u64 n, skip, weight;
    u32 limbs;
};
template <class T> __global__ void __launch_bounds__(1024, 1) sparse(const SparseParameters<T> p) {
    __shared__ u64 counts[256];
    __shared__ u64 found, wanted, equal;
    const u64 *const x = p.x + p.skip + blockIdx.x * p.n;
    T *const y = p.y + blockIdx.x * p.n * p.limbs;
    if (threadIdx.x == 0) found = 0, wanted = p.weight, equal = 0;
    for (int shift = 56; shift >= 0 && p.weight; shift -= 8) {
        if (threadIdx.x < 256) counts[threadIdx.x] = 0;
        __syncthreads();
        const u64 prefix = found >> shift >> 8;
        for (u64 j = threadIdx.x; j < p.n; j += 1024) {
            const u64 key = x[j] >> 1;
            if (key >> shift >> 8 == prefix) atomicAdd(&counts[key >> shift & 255], (u64)1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u64 digit = 0, below = 0;
            while (below + counts[digit] < wanted) below += counts[digit++];
            found |= digit << shift, wanted -= below, equal = counts[digit];
        }
        __syncthreads();
    }
    // all: whether all coefficients with the greatest chosen key are chosen. If `all` is false, only those with the
    // lowest indices are chosen. `all` is false with a probability of at most n * 2^-63.
    const bool all = wanted == equal;
    for (u64 j = threadIdx.x; j < p.n; j += 1024) {
        const u64 w = x[j], key = w >> 1;
        const bool chosen = p.weight && (key < found || (all && key == found));
        for (u32 limb = 0; limb < p.limbs; ++limb)
            y[limb * p.n + j] = (T)(!chosen ? 0 : w & 1 ? p.moduli[limb].last : 1);
    }
    if (all || !p.weight) return;
    __syncthreads();
    if (threadIdx.x) return;
    u64 left = wanted;
    for (u64 j = 0; j < p.n && left; ++j) {
        if (x[j] >> 1 != found) continue;
        for (u32 limb = 0; limb < p.limbs; ++limb) y[limb * p.n + j] = (T)(x[j] & 1 ? p.moduli[limb].last : 1);
        --left;
    }
}
