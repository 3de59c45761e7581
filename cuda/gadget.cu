// Gadget decomposition (digits to a base B), and products of ciphertexts with gadget ciphertexts.
#include "goldilocks.cuh"
#include "quotient.cuh"
#include "rows.cuh"
#include "sum.cuh"
#include "tile.cuh"

// The digits of _core/plans/gadget.py, to the base B = 2^bits. q: 0 stands for 2^64. power: B^levels. scale: floor(2^w
// * power / q) for words of w bits. If B^levels = q, power and scale are 0. offset: a number whose digits to base B are
// all B/2.
struct Digits {
    u64 q, power, scale, offset;
    u32 bits, levels;

    // Returns y = x * power / q, rounded: floor((2 * x * power + q) / (2 * q)). The estimated quotient is exact or 1
    // too small (docs/math.md, "Gadget decomposition").
    PG_DEVICE u64 nearest_multiple(u32 x) const {
        u64 y = x * scale >> 32, rest = x * power - y * q;
        if (rest >= q) ++y, rest -= q;
        return y + (2 * rest >= q);
    }
    PG_DEVICE u64 nearest_multiple(u64 x) const {
        u64 y = __umul64hi(x, scale);
        const u64 product = x * power, multiple = y * q;
        u64 rest = product - multiple;
        if (q == 0) return y + (rest >> 63);
        const u64 high = __umul64hi(x, power) - __umul64hi(y, q) - (product < multiple);
        if (high || rest >= q) ++y, rest -= q;
        return y + (rest >= q - rest);
    }
    // Returns a number z: digit i of z to base B is digit i of x plus B/2. Only z mod B^levels matters. B^levels
    // divides 2^w, where T has w bits, so this function computes modulo 2^w.
    template <class T> PG_DEVICE T packed(T x) const { return (T)((power ? nearest_multiple(x) : x) + offset); }
    // Returns digit `level` modulo q. Level 0 is the most significant digit.
    template <class T> PG_DEVICE T digit(T packed, u32 level) const {
        const T middle = (T)1 << (bits - 1), value = packed >> bits * (levels - 1 - level) & (2 * middle - 1);
        return value - middle + (value < middle ? (T)q : 0);
    }
};

// Gadget decomposition. x: (items, n). y: (items, levels, n), the digits of x. A thread decomposes one coefficient.
// grid: entries / 256. block: 256 threads.
template <class T> struct DecomposeParameters {
    const T *x;
    T *y;
    u64 n, entries;
    Digits digits;
};
template <class T> __global__ void __launch_bounds__(256) decompose(const DecomposeParameters<T> p) {
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= p.entries) return;
    const u64 item = quotient(e, p.n), j = e - item * p.n;
    const T packed = p.digits.packed(p.x[e]);
    T *const y = p.y + item * p.digits.levels * p.n + j;
    for (u32 i = 0; i < p.digits.levels; ++i) y[i * p.n] = p.digits.digit(packed, i);
}

// Gadget decomposition to signed integers. x: rows of n residues, `stride` entries from one row to the next. y: (rows,
// n, levels), the digits, of type Y. A thread decomposes one entry. grid: entries / 256. block: 256 threads.
template <class T> struct SignedDigitsParameters {
    const T *x;
    void *y;
    u64 n, stride, entries;
    Digits digits;
};
template <class T, class Y> __global__ void __launch_bounds__(256) signed_digits(const SignedDigitsParameters<T> p) {
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= p.entries) return;
    const u64 row = quotient(e, p.n), j = e - row * p.n;
    const T packed = p.digits.packed(p.x[row * p.stride + j]);
    const T q = (T)p.digits.q;
    Y *const y = (Y *)p.y + e * p.digits.levels;
    for (u32 i = 0; i < p.digits.levels; ++i) {
        const T digit = p.digits.digit(packed, i);
        const T value = digit > (T)(q - 1) / 2 ? digit - q : digit;
        y[i] = sizeof(T) == 4 ? (Y)(i32)value : (Y)(i64)value;
    }
}

// Products of ciphertexts with gadget ciphertexts. x, y: (items, K, n), ciphertexts in coefficients. matrices: (count,
// K, levels, K, n), evaluated gadget ciphertexts. The ring has one modulus. Its transform is complete and fits one
// tile. If ROTATES is false, count is 1 and y = matrix * x. If ROTATES is true, exponents (items, 1 + count) holds the
// integers e_0, e_1, ..., of any size, and
//     y = X^e_0 * x, then y += matrix_i * (X^e_i * y - y) for i = 1 ... count.
// A block of threads computes one item and keeps its ciphertext in shared memory. grid: items. block: Shape::THREADS
// threads. Dynamic shared memory: Shape::SHARED_VALUES values, then K * n residues.
template <class T> struct GadgetParameters {
    const T *x, *matrices;
    T *y;
    const i64 *exponents;
    const Modulus *modulus;
    const char *table;     // the table of the prime (tables.cu)
    u64 forward, inverse;  // bytes in the table before the forward twiddles, and before the inverse ones
    Digits digits;
    u32 count, order;  // order: the order of X in the ring
};
template <class W, class S, int K, bool ROTATES>
__global__ void __launch_bounds__(S::THREADS, S::THREADS < 512 ? 512 / S::THREADS : 1)
    gadget_product(const __grid_constant__ GadgetParameters<typename W::Storage> p) {
    using T = typename W::Storage;
    using Value = typename W::Value;
    using Twiddle = typename W::Twiddle;
    static_assert(S::COLUMNS == 1 && S::ROWS == 1 && S::ROUNDS > 1, "one transform, whose threads hold neighbours");
    constexpr u32 N = S::LENGTH;
    constexpr int V = S::VALUES, LAST = S::ROUNDS - 1;
    extern __shared__ __align__(16) unsigned char memory[];
    Value *const shared = (Value *)memory;
    T *const held = (T *)(shared + S::SHARED_VALUES);
    await_previous();
    const Place<S> place;
    const Modulus &m = *p.modulus;
    const W word(m);
    const T q = (T)m.q;
    const Twiddle *const forward = (const Twiddle *)(p.table + p.forward);
    const Twiddle *const inverse = (const Twiddle *)(p.table + p.inverse);
    const i64 *const exponents = p.exponents + (u64)blockIdx.x * (1 + p.count);
    // first: index of the first of the V neighbouring values that a thread holds after a transform.
    const u32 first = place.template group_index<LAST>(0);
    const auto index = [&](int k) { return place.template group_index<0>(k) + place.template offset<0>(k); };
    const T *const x = p.x + (u64)blockIdx.x * K * N;
#pragma unroll
    for (int i = 0; i < K; ++i)
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const u32 j = index(k), e = ROTATES ? (u32)exponents[0] : 0;
            held[i * N + j] = mul_monomial_at_pow2(q, x + i * N, N, p.order, e, j);
        }
    const T *row = p.matrices;
    for (u32 step = 1; step <= p.count; ++step) {
        const u32 e = ROTATES ? (u32)exponents[step] & (p.order - 1) : 0;
        if (ROTATES && e == 0) {
            row += K * p.digits.levels * K * N;
            continue;
        }
        KeySum<W> sums[K][V];
        __syncthreads();  // waits until all threads have written to `held`
        for (int i = 0; i < K; ++i) {
            T packed[V];
#pragma unroll
            for (int k = 0; k < V; ++k) {
                const u32 j = index(k);
                T value = held[i * N + j];
                if (ROTATES) {
                    const T moved = mul_monomial_at_pow2(q, held + i * N, N, p.order, e, j);
                    value = moved >= value ? moved - value : moved - value + q;
                }
                packed[k] = p.digits.packed(value);
            }
            for (u32 level = 0; level < p.digits.levels; ++level, row += K * N) {
                Value values[V];
#pragma unroll
                for (int k = 0; k < V; ++k) values[k] = W::load(p.digits.digit(packed[k], level), false);
                __syncthreads();  // all threads have read the values of the previous transform's last exchange
                forward_rounds<W, S, W::Bounds::CANONICAL>(word, values, shared, place, forward);
#pragma unroll
                for (int j = 0; j < K; ++j) {
                    constexpr int SIZE = 16 / sizeof(T);
                    using Unit = Neighbours<T, SIZE>;
#pragma unroll
                    for (int k = 0; k < V; k += SIZE) {
                        const Unit factors = read<READ_ONLY>((const Unit *)(row + j * N + first + k));
#pragma unroll
                        for (int l = 0; l < SIZE; ++l) {
                            sums[j][k + l].add(word, values[k + l], factors.values[l]);
                            sums[j][k + l].settle(word, m);
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int j = 0; j < K; ++j) {
            Value values[V];
#pragma unroll
            for (int k = 0; k < V; ++k) values[k] = sums[j][k].value(word, m);
            __syncthreads();
            inverse_rounds<W, S, true, KeySum<W>::BOUND>(word, values, shared, place, inverse);
#pragma unroll
            for (int k = 0; k < V; ++k) {
                T &target = held[j * N + index(k)];
                const T value = word.finish(values[k]), sum = target + value;
                target = !ROTATES ? value : sum < value || sum > (T)m.last ? sum - q : sum;
            }
        }
    }
    T *const y = p.y + (u64)blockIdx.x * K * N;
#pragma unroll
    for (int i = 0; i < K; ++i)
#pragma unroll
        for (int k = 0; k < V; ++k) y[i * N + index(k)] = held[i * N + index(k)];
}
