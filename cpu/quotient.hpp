// The polynomial by which a ring is reduced: X^n + 1, X^n - 1 or X^n - X^(n/2) + 1, where n is the degree. All code
// that depends on the polynomial calls these functions. The counterparts are polygpu/_core/quotient.py in Python, and
// cuda/quotient.cuh on GPUs.
#pragma once
#include <cstring>

#include "kernels.hpp"

namespace pg {

enum class Quotient : u32 { cyclic, negacyclic, trinomial };  // X^n - 1, X^n + 1, X^n - X^(n/2) + 1

// All values of Quotient, with their names in Python.
constexpr struct {
    const char *name;
    Quotient quotient;
} QUOTIENTS[] = {
    {"cyclic", Quotient::cyclic}, {"negacyclic", Quotient::negacyclic}, {"trinomial", Quotient::trinomial}};

// Returns the number that X^n equals in the ring, -1 or 1, or 0 if X^n is not a number.
constexpr int wrap(Quotient quotient) {
    return quotient == Quotient::negacyclic ? -1 : quotient == Quotient::cyclic ? 1 : 0;
}

// Returns the order of X, the least e > 0 with X^e = 1.
constexpr u64 order_of_x(Quotient quotient, u64 n) {
    return quotient == Quotient::cyclic ? n : quotient == Quotient::negacyclic ? 2 * n : 3 * n;
}

// Calls f(exponent, negative) for each term of the polynomial. Its coefficients are 1 and -1.
template <class F> void for_each_term(Quotient quotient, size_t n, const F &f) {
    f(n, false);
    if (quotient == Quotient::trinomial) f(n / 2, true);
    f((size_t)0, wrap(quotient) == 1);
}

// Calls f(k, negative) for each coefficient k >= n of a linear product that reduction adds to coefficient j or, if
// negative, subtracts from coefficient j. A linear product has 2n - 1 coefficients.
template <class F> void for_each_folded(Quotient quotient, size_t n, size_t j, const F &f) {
    if (quotient == Quotient::trinomial) {  // X^(n + j) = X^(n/2 + j) - X^j, X^(3n/2) = -1
        const size_t h = n / 2;
        if (j >= h) return f(j + h, false);
        f(j + n, true);
        if (j + 1 < h) f(j + n + h, true);
    } else if (j + 1 < n) {
        f(j + n, wrap(quotient) == -1);
    }
}

// The tree of factors (docs/math.md). It has `points` leaves, and w[i] is the twiddle of node i. `level` is the number
// of nodes of one level of the tree. Level d has 2^d nodes, of which node 2^d is the first.

// Calls f(first, count, source, exponent) for each part of a level. A part is the nodes first to first + count - 1:
// w[first + i] = w[source + i] * root^exponent for i < count, where `root` is the root of unity of the tree. Each
// source + i is a node of an earlier part, or 0. w[0] is 1.
template <class F> void for_each_part(Quotient quotient, size_t points, size_t level, const F &f) {
    const size_t exponent = points / (2 * level), order = (size_t)order_of_x(quotient, points), half = level / 2;
    if (quotient == Quotient::negacyclic) return f(level, level, (size_t)0, exponent);
    if (quotient == Quotient::cyclic) {
        if (level == 1) return f((size_t)1, (size_t)1, (size_t)0, (size_t)0);
        f(level, half, half, (size_t)0);
        return f(level + half, half, half, exponent);
    }
    if (level == 1) return f((size_t)1, (size_t)1, (size_t)0, exponent);
    if (level == 2) {
        f((size_t)2, (size_t)1, (size_t)0, exponent);
        return f((size_t)3, (size_t)1, (size_t)2, order - 2 * exponent);
    }
    const size_t quarter = level / 4;
    f(level, quarter, half, order - exponent);
    f(level + quarter, quarter, level, 6 * exponent);
    f(level + half, half, level, order - 2 * exponent);
}

// Returns whether the inverses of the last `new_twiddles` twiddles of a level are the negatives of these twiddles, in
// reverse order. The other twiddles of the level occur in the level above.
constexpr bool mirrors(Quotient quotient) { return quotient != Quotient::trinomial; }
constexpr size_t new_twiddles(Quotient quotient, size_t level) { return wrap(quotient) == -1 ? level : level / 2; }

// Returns the twiddle of node 1 for the inverse transform, without the factor 1/points. w: the twiddle of node 1 for
// the forward transform. For X^n - X^(n/2) + 1 the result is 1 / (2w - 1), whose square is -1/3.
inline u64 inverse_root_twiddle(Quotient quotient, const Modulus &m, u64 w) {
    if (quotient != Quotient::trinomial) return wrap(quotient) == -1 ? neg_mod(m, w) : w;  // w^2 equals X^n
    return mul_mod(m, sub_mod(m, 1, add_mod(m, w, w)), pow_mod(m, 3, m.q - 2));            // q is a prime above 3
}

// Writes the constants c of `count` nodes, beginning with node `first`. The polynomial of a node is X^k - c.
template <class T>
void node_constants(Quotient quotient, const Modulus &m, const T *w, size_t first, size_t count, T *c) {
    if (first == 1) c[0] = (T)(wrap(quotient) == -1 ? m.last : reduce(m, 1));  // the constant of a binomial
    else
        // Below a node with the twiddle w the constants are w and -w; below a trinomial's root they are w and 1 - w.
        for (size_t i = 0; i < count; ++i) {
            const T x = w[(first + i) / 2];
            const bool root = quotient == Quotient::trinomial && first + i == 3;
            c[i] = (T)((first + i) % 2 ? sub_mod(m, root, x) : x);
        }
}

// The functions below take rows of n residues modulo m, and kernels for rows of any length.

// y = a linear product x of 2n - 1 coefficients, reduced by the polynomial.
template <class T>
void fold_row(Quotient quotient, const RowKernels<T> &kernels, const T *x, T *y, size_t n, const Modulus &m) {
    const auto combine = [&](Op op, const T *a, const T *b, T *to, size_t count) {
        kernels.pointwise(op, a, b, false, a, to, count, m);
    };
    if (quotient == Quotient::trinomial) {
        const size_t h = n / 2;
        combine(Op::add, x + h, x + n, y + h, h);
        combine(Op::sub, x, x + n, y, h);
        combine(Op::sub, y, x + n + h, y, h - 1);
        return;
    }
    combine(wrap(quotient) == -1 ? Op::sub : Op::add, x, x + n, y, n - 1);
    y[n - 1] = x[n - 1];
}

// y = X^e * x modulo X^n - 1 or X^n + 1, for e below the order of X. y must not be x.
template <class T>
void mul_monomial_row(Quotient quotient, const RowKernels<T> &kernels, const T *x, T *y, size_t n, u64 e,
                      const Modulus &m) {
    const bool negative = e >= n;  // only if X^n = -1; else e < n
    const size_t shift = negative ? e - n : e;
    const auto part = [&](const T *from, T *to, size_t count, bool negate) {
        if (!negate) std::memcpy(to, from, count * sizeof(T));
        else kernels.pointwise(Op::neg, from, nullptr, false, nullptr, to, count, m);
    };
    part(x, y + shift, n - shift, negative);
    part(x + n - shift, y, shift, negative != (wrap(quotient) == -1));
}

}  // namespace pg
