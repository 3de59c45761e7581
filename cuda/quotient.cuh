// The polynomial by which a ring is reduced: X^n + 1, X^n - 1 or X^n - X^(n/2) + 1, where n is the degree. All code
// that depends on the polynomial calls the functions of this file, except the first split of Goldilocks
// (goldilocks.cuh) and the root of a trinomial's tree (Trinomial in word.cuh). On the CPU: cpu/quotient.hpp.
#pragma once
#include "modulus.cuh"

// X^n - 1, X^n + 1, X^n - X^(n/2) + 1. The values are those of Quotient.number in polygpu/_core/quotient.py.
enum Quotient : u32 { CYCLIC, NEGACYCLIC, TRINOMIAL };

// Returns coefficient j of a linear product after its reduction by the polynomial. coefficient(k) returns coefficient k
// of the linear product.
template <class Index, class Coefficient>
PG_DEVICE u64 folded(Quotient quotient, const Modulus &m, Index n, Index j, const Coefficient &coefficient) {
    const u64 value = coefficient(j);
    if (quotient == TRINOMIAL) {  // X^(n + j) = X^(n/2 + j) - X^j, X^(3n/2) = -1
        const Index h = n / 2;
        if (j >= h) return add_mod(m, value, coefficient(j + h));
        const u64 rest = sub_mod(m, value, coefficient(j + n));
        return j + 1 < h ? sub_mod(m, rest, coefficient(j + n + h)) : rest;
    }
    if (j + 1 >= n) return value;
    const u64 high = coefficient(j + n);
    return quotient == NEGACYCLIC ? sub_mod(m, value, high) : add_mod(m, value, high);
}

PG_DEVICE u64 reversed_bits(u64 x, u32 bits) { return bits ? __brevll(x) >> (64 - bits) : 0; }
// Returns exponent number r of the points of a trinomial, modulo `order`: 1, -1, 7, 5, 13, 11, ... for r = 0, 1, ...
PG_DEVICE u64 trinomial_exponent(u64 r, u64 order) { return r == 1 ? order - 1 : 3 * r + 1 - 5 * (r & 1); }
// Returns the exponent of node i > 0 of the tree of factors with 2^bits leaves. The twiddle of the node is the root of
// unity to this power. The exponent is below the order of the root (docs/math.md, "The tree of factors").
PG_DEVICE u64 exponent_of_node(Quotient quotient, u32 bits, u64 i) {
    const u32 level = 63 - __clzll((i64)i);
    const u64 r = reversed_bits(i ^ (1ull << level), level), unit = 1ull << (bits - level - 1);
    if (quotient == CYCLIC) return unit * r;
    if (quotient == NEGACYCLIC) return unit * (2 * r + 1);
    return unit * trinomial_exponent(r, 6ull << level);
}

// Returns x * y modulo `order`, which must be a power of two or below 2^39. x and y must be below `order`.
PG_DEVICE u64 product_modulo(u64 x, u64 y, u64 order) {
    if ((order & (order - 1)) == 0) return x * y & (order - 1);
    if (order >> 32 == 0) return x * y % order;
    return (x * (y >> 16) % order * 65536 + x * (y & 65535)) % order;
}

// Returns the index of the point whose exponent is `multiplier` times that of point j, modulo `order`, the order of X.
// The n points are in the order of the leaves. If X^n = 1, the order is n. If X^n = -1, the order is 2n, and the
// exponents are odd. For a trinomial, the order is 3n, and the exponents are 1, -1, 7, 5, 13, 11, ..., all numbers that
// are prime to 6.
PG_DEVICE u64 permuted_point(u64 j, u64 n, u64 order, u64 multiplier) {
    const u32 bits = 63 - __clzll((i64)n);
    const u64 r = reversed_bits(j, bits);
    if (order == 3 * n) {
        const u64 exponent = product_modulo(trinomial_exponent(r, order), multiplier, order);
        return reversed_bits((exponent % 6 == 1 ? exponent - 1 : exponent + 4) / 3, bits);
    }
    const u32 twice = order != n;
    const u64 exponent = ((r << twice) + twice) * multiplier & (order - 1);
    return reversed_bits(exponent >> twice, bits);
}

// Reduces an exponent of X modulo the order of X. If the order is not a power of two, e must be reduced already.
PG_DEVICE u64 reduced_exponent(i64 e, u64 order) { return order & (order - 1) ? e : e & (order - 1); }

// Returns coefficient j of X^e * x. order: the order of X, which must be n (X^n = 1) or 2n (X^n = -1). Needs e < order.
template <class T> PG_DEVICE u64 mul_monomial_at(const Modulus &m, const T *x, u64 n, u64 order, u64 e, u64 j) {
    u64 k = j + order - e;  // below 2 * order
    if (k >= order) k -= order;
    return k < n ? x[k] : neg_mod(m, x[k - n]);
}
// Returns coefficient j of X^e * x. n must be a power of two, and q must fit T; e may be any number.
template <class T> PG_DEVICE T mul_monomial_at_pow2(T q, const T *x, u32 n, u32 order, u32 e, u32 j) {
    const u32 k = (j - e) & (order - 1);
    const T value = x[k & (n - 1)];
    return k >= n && value ? q - value : value;
}
