// The polynomial by which a ring is reduced: X^n + 1 or X^n - 1, n the degree. Whatever depends on which one it is asks
// these functions, but for the first split of Goldilocks (goldilocks.cuh). On the CPU: cpu/quotient.hpp.
#pragma once
#include "modulus.cuh"

enum Quotient : u32 { CYCLIC, NEGACYCLIC };  // X^n - 1, X^n + 1; Quotient.number of polygpu/_core/quotient.py

// Coefficient j of a linear product, reduced. coefficient(k) is a coefficient of the linear product.
template <class Index, class Coefficient>
PG_DEVICE u64 folded(Quotient quotient, const Modulus &m, Index n, Index j, const Coefficient &coefficient) {
    const u64 value = coefficient(j);
    if (j + 1 >= n) return value;
    const u64 high = coefficient(j + n);
    return quotient == NEGACYCLIC ? sub_mod(m, value, high) : add_mod(m, value, high);
}

// The number p of node i > 0 of the tree of factors. The node's twiddle is the root of unity to the power of p with its
// bits reversed (docs/math.md, "The tree of factors").
PG_DEVICE u64 power_of_node(Quotient quotient, u64 i) {
    return quotient == NEGACYCLIC ? i : i ^ (1ull << (63 - __clzll((i64)i)));
}

PG_DEVICE u64 reversed_bits(u64 x, u32 bits) { return bits ? __brevll(x) >> (64 - bits) : 0; }
// The index of the point whose exponent is `multiplier` times that of point j, modulo the order of X. The n points are
// in bit-reversed order. The order is n if X^n = 1, and 2n, with odd exponents, if X^n = -1.
PG_DEVICE u64 permuted_point(u64 j, u64 n, u64 order, u64 multiplier) {
    const u32 bits = 63 - __clzll((i64)n), twice = order != n;
    const u64 exponent = ((reversed_bits(j, bits) << twice) + twice) * multiplier & (order - 1);
    return reversed_bits(exponent >> twice, bits);
}

// An exponent of X, below the order of X. It is given so, or is any number if the order is a power of two.
PG_DEVICE u64 reduced_exponent(i64 e, u64 order) { return order & (order - 1) ? e : e & (order - 1); }

// Coefficient j of X^e x, for e below the order of X, which is n if X^n = 1 and 2n if X^n = -1.
template <class T> PG_DEVICE u64 mul_monomial_at(const Modulus &m, const T *x, u64 n, u64 order, u64 e, u64 j) {
    u64 k = j + order - e;  // below 2 * order
    if (k >= order) k -= order;
    return k < n ? x[k] : neg_mod(m, x[k - n]);
}
// The same if n is a power of two, modulo q that T holds
template <class T> PG_DEVICE T mul_monomial_at_pow2(T q, const T *x, u32 n, u32 order, u32 e, u32 j) {
    const u32 k = (j - e) & (order - 1);
    const T value = x[k & (n - 1)];
    return k >= n && value ? q - value : value;
}
