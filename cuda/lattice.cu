// Digits to a base. One thread a coefficient. grid: coefficients / 256 in x. block: 256 threads.
#include "memory.cuh"
#include "ptx.cuh"
#include "rows.cuh"

// The digits of plans/lattice.py, Gadget: of rows (items, n) rows (items, levels, n). q = 0 stands for 2^64; power is
// B^levels, scale floor(2^w power / q) for words of w bits, both 0 where power is q.
template <class T> struct DecomposeParameters {
    const T *x;
    T *y;
    u64 q, power, scale, offset, n, entries;
    u32 bits, levels;
};
// y = floor((2 x power + q) / (2 q)), from a quotient that is at most 1 too small (docs/math.md, "Gadget
// decomposition").
template <class T> PG_DEVICE u64 nearest_multiple(const DecomposeParameters<T> &p, u64 x) {
    if (sizeof(T) == 4) {
        u64 y = x * p.scale >> 32, rest = x * p.power - y * p.q;
        if (rest >= p.q) ++y, rest -= p.q;
        return y + (2 * rest >= p.q);
    }
    u64 y = __umul64hi(x, p.scale);
    const u64 product = x * p.power, multiple = y * p.q;
    u64 rest = product - multiple;
    if (p.q == 0) return y + (rest >> 63);
    const u64 high = __umul64hi(x, p.power) - __umul64hi(y, p.q) - (product < multiple);
    if (high || rest >= p.q) ++y, rest -= p.q;
    return y + (rest >= p.q - rest);
}
template <class T> __global__ void __launch_bounds__(256) decompose(const DecomposeParameters<T> p) {
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= p.entries) return;
    const u64 item = quotient(e, p.n), j = e - item * p.n, middle = (u64)1 << (p.bits - 1), mask = 2 * middle - 1;
    u64 v = p.x[e];
    if (p.power) v = nearest_multiple(p, v);
    v += p.offset;
    T *const y = p.y + item * p.levels * p.n + j;
    for (u32 i = 0; i < p.levels; ++i) {
        const u64 digit = v >> (p.bits * (p.levels - 1 - i)) & mask;
        y[i * p.n] = (T)(digit - middle + (digit < middle ? p.q : 0));
    }
}
