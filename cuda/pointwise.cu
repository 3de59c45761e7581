// Operations on residues one by one: arithmetic, permutations, products modulo the leaves of an incomplete transform,
// reduction of integers. One thread an entry, or WIDTH neighbours of a row that it moves at once; entry e of the result
// is entry e % n of row e / n, modulo limb row % limbs. grid: entries / (256 WIDTH) in x. block: 256 threads.
#include "memory.cuh"
#include "rows.cuh"

enum { ADD, SUB, NEG, MUL, MUL_ADD };

// For q <= 2^32 the quotient of a product, taken from its high half, is at most 1 too small.
template <class T> PG_DEVICE u64 product_mod(const Modulus &m, u64 a, u64 b) {
    if (sizeof(T) == 8) return m.bits <= 62 ? barrett_product(m, a, b) : mul_mod(m, a, b);
    const u64 z = a * b, r = z - __umul64hi(z, m.inverse64) * m.q;
    return min(r, r - m.q);
}

template <class T, int OP> PG_DEVICE u64 apply(const Modulus &m, u64 a, u64 b, u64 c) {
    if (OP == ADD) return add_mod(m, a, b);
    if (OP == SUB) return sub_mod(m, a, b);
    if (OP == NEG) return neg_mod(m, a);
    const u64 product = product_mod<T>(m, a, b);
    return OP == MUL ? product : add_mod(m, product, c);
}

// layout: of a, b and c (rows.cuh)
template <class T, int OP, int WIDTH>
__global__ void __launch_bounds__(256)
    pointwise(const T *a, const T *b, const T *c, T *y, const Modulus *moduli, const u64 *layout, u64 n, u64 b_length,
              u64 entries, u32 limbs, u32 dense) {
    using Item = Neighbours<T, WIDTH>;
    const u64 e = ((u64)blockIdx.x * 256 + threadIdx.x) * WIDTH;
    if (e >= entries) return;
    const u64 row = quotient(e, n), j = e - row * n;
    u64 row_a = row, row_b = row, row_c = row;
    if (!dense) {
        row_a = operand_row(layout, 0, row, limbs);
        row_b = operand_row(layout, 1, row, limbs);
        row_c = operand_row(layout, 2, row, limbs);
    }
    const Modulus &m = moduli[rest(row, limbs)];
    Item values = read<AGAIN>((const Item *)(a + row_a * n + j)), right = {}, added = {};
    if (OP == MUL_ADD) added = read<AGAIN>((const Item *)(c + row_c * n + j));
    if (OP != NEG) {
        if (b_length == 1)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) right.values[i] = b[row_b];
        else right = read<AGAIN>((const Item *)(b + row_b * n + j));
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
        values.values[i] = (T)apply<T, OP>(m, values.values[i], right.values[i], added.values[i]);
    write<AGAIN>((Item *)(y + e), values);
}

PG_DEVICE u64 reversed_bits(u64 x, u32 bits) { return bits ? __brevll(x) >> (64 - bits) : 0; }

// Another order of each row (plans/permutation.py): y[j] = x[k], k = (j * multiplier + offset) mod order, negated where
// k >= n counts from n; EVALUATED: of values at bit-reversed points, whose exponents take the multiplier.
template <class T, bool EVALUATED>
__global__ void __launch_bounds__(256) permute(const T *x, T *y, const Modulus *moduli, u64 n, u64 order,
                                               u64 multiplier, u64 offset, u64 entries, u32 limbs) {
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= entries) return;
    const u64 row = quotient(e, n), j = e - row * n;
    u64 k;
    if (EVALUATED) {
        const u32 bits = 63 - __clzll((i64)n), twice = order != n;  // negacyclic: odd exponents
        const u64 exponent = ((reversed_bits(j, bits) << twice) + twice) * multiplier & (order - 1);
        k = reversed_bits(exponent >> twice, bits);
    } else {
        k = rest(j * multiplier + offset, order);
    }
    y[e] = k < n ? x[row * n + k] : (T)neg_mod(moduli[rest(row, limbs)], x[row * n + k - n]);
}

// Products modulo the leaves X^base - constant; constants: (limbs, points). One thread a coefficient.
template <class T>
__global__ void __launch_bounds__(256)
    multiply_leaves(const T *a, const T *b, T *y, const u64 *constants, const Modulus *moduli, const u64 *layout, u64 n,
                    u64 entries, u32 limbs, u32 base, u32 dense) {
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= entries) return;
    const u64 row = quotient(e, n), j = e - row * n, leaf = j / base, k = j % base;
    const u64 row_a = dense ? row : operand_row(layout, 0, row, limbs);
    const u64 row_b = dense ? row : operand_row(layout, 1, row, limbs);
    const Modulus &m = moduli[rest(row, limbs)];
    const T *u = a + row_a * n + leaf * base, *v = b + row_b * n + leaf * base;
    u64 low = 0, high = 0;
    for (u64 i = 0; i < base; ++i) {
        const u64 product = mul_mod(m, u[i], v[(k + base - i) % base]);
        if (i <= k) low = add_mod(m, low, product);
        else high = add_mod(m, high, product);
    }
    y[e] = (T)add_mod(m, low, mul_mod(m, high, constants[rest(row, limbs) * (n / base) + leaf]));
}

// Residues of machine integers x, (items, count): y (items, limbs, n), the rest of each row 0.
template <class T>
__global__ void __launch_bounds__(256) reduce_integers(const u64 *x, T *y, const Modulus *moduli, u64 count, u64 n,
                                                       u64 entries, u32 limbs, u32 is_signed) {
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= entries) return;
    const u64 row = quotient(e, n), j = e - row * n;
    u64 residue = 0;
    if (j < count) {
        const Modulus &m = moduli[rest(row, limbs)];
        const u64 value = x[quotient(row, limbs) * count + j];
        const bool negative = is_signed && (i64)value < 0;
        residue = reduce(m, negative ? 0 - value : value);
        if (negative) residue = neg_mod(m, residue);
    }
    y[e] = (T)residue;
}
