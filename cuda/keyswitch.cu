// Key switching: the sum over digits of an evaluated digit, after X -> X^g, times a key (polygpu/plans/lattice.py,
// DigitProduct). One thread a point of a limb, with both components. grid: entries / 256 in x. block: 256 threads.
#include "ptx.cuh"
#include "rows.cuh"
#include "sum.cuh"

// Of digits (items, count, limbs, n) and a key (count or more, 2, key_total, n), whose row for limb r is key_rows[r]:
// y (items, 2, limbs, n). multiplier: of the exponents of points, modulo the order.
template <class T> struct DigitParameters {
    const T *digits, *key;
    T *y;
    const Modulus *moduli;  // by limb
    const u64 *key_rows;
    u64 n, order, multiplier, entries;
    u32 limbs, count, key_total;
};
template <class S> __global__ void __launch_bounds__(256) digit_product(const DigitParameters<typename S::Storage> p) {
    using T = typename S::Storage;
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x, n = p.n;
    if (e >= p.entries) return;
    const u64 row = quotient(e, n), i = e - row * n, item = row / p.limbs, limb = row - item * p.limbs;
    const Modulus &m = p.moduli[limb];
    const T *x = p.digits + (item * p.count * p.limbs + limb) * n + permuted_point(i, n, p.order, p.multiplier);
    const T *w = p.key + p.key_rows[limb] * n + i;
    S sums[2];
    for (u32 j = 0; j < p.count; ++j, x += p.limbs * n) {
        if (j && j % S::STEPS == 0) sums[0].settle(m), sums[1].settle(m);
        const T digit = *x;
#pragma unroll
        for (int c = 0; c < 2; ++c, w += p.key_total * n) sums[c].add(digit, *w);
    }
    T *const y = p.y + (2 * item * p.limbs + limb) * n + i;
    y[0] = sums[0].value(m), y[p.limbs * n] = sums[1].value(m);
}
