// Integers to residues and back, one source for all instruction sets. R and Rest are vector types like R of
// gemm.hpp, with lanes of 64 bits. Residues are stored in 32 or 64 bits. R::Words are Lanes of ntt.hpp.
#pragma once
#include <cstring>

#include "kernels.hpp"

namespace pg {
namespace {

// ---- integers to residues ----

// Returns the extent of machine integers: every x is in [-extent - 1, extent]. Integers of less than 64 bits are
// written to y as words in two's complement. Integers of 64 bits are not written, and y may be null.
template <class Source> u64 widen_row(const Source *x, u64 *y, size_t n) {
    u64 extent = 0;
    for (size_t j = 0; j < n; ++j) {
        const u64 word = (u64)x[j], size = (Source)-1 < 0 ? word ^ (u64)((int64_t)word >> 63) : word;
        if (sizeof(Source) < 8) y[j] = word;
        extent = size > extent ? size : extent;
    }
    return extent;
}
inline u64 widen(const void *x, size_t bytes, bool is_signed, u64 *y, size_t n) {
    switch (2 * bytes + is_signed) {
        case 2:
            return widen_row((const uint8_t *)x, y, n);
        case 3:
            return widen_row((const int8_t *)x, y, n);
        case 4:
            return widen_row((const uint16_t *)x, y, n);
        case 5:
            return widen_row((const int16_t *)x, y, n);
        case 8:
            return widen_row((const u32 *)x, y, n);
        case 9:
            return widen_row((const int32_t *)x, y, n);
        case 16:
            return widen_row((const u64 *)x, y, n);
        default:
            return widen_row((const int64_t *)x, y, n);
    }
}

// Residues of words x. If x < 0, a multiple of q is added first. Then x is reduced by Barrett's method with the
// constant floor((2^64 - 1) / q). For any word x, the estimated quotient is exact or 1 too small (docs/math.md,
// "Integers"). If SMALL, -q <= x < q, so that only the addition is needed.
template <class R, class T, bool SIGNED, bool SMALL> struct Reduction {
    using I = typename R::I;
    using W = typename R::Words;
    const I q, shift, inverse, inverse_high, q_high;
    explicit Reduction(u64 modulus, u64 multiple)
        : q(W::splat(modulus)),
          shift(W::splat(SMALL ? modulus : multiple)),
          inverse(W::splat(~(u64)0 / modulus)),
          inverse_high(R::right(inverse, 32)),
          q_high(R::right(q, 32)) {}
    PG_INLINE I residue(I x) const {
        if constexpr (SIGNED) x = W::add(x, R::where_negative(x, shift));
        if constexpr (SMALL) return x;
        const I quotient = R::mul_high(x, inverse, inverse_high);
        return W::reduce_once(W::sub(x, R::mul_low(quotient, q, q_high)), q);
    }
    PG_INLINE void run(const u64 *x, T *y, size_t begin, size_t end) const {
        for (size_t j = begin; j < end; j += R::WIDTH) R::store_words(y + j, residue(R::load_words(x + j)));
    }
};
template <class R, class Rest, class T, bool SIGNED, bool SMALL>
void reduce_loop(const u64 *x, T *y, size_t n, u64 q, u64 multiple) {
    const size_t whole = n - n % R::WIDTH;
    Reduction<R, T, SIGNED, SMALL>(q, multiple).run(x, y, 0, whole);
    if (whole < n) Reduction<Rest, T, SIGNED, SMALL>(q, multiple).run(x, y, whole, n);
}
template <class R, class Rest, class T>
void reduce_row(const u64 *x, bool is_signed, u64 extent, T *y, size_t n, const Modulus &m) {
    if (extent <= m.last) {  // then -x <= q, because x >= -extent - 1
        // Modulo 2^64 the words are the residues.
        if (is_signed && m.q) reduce_loop<R, Rest, T, true, true>(x, y, n, m.q, m.q);
        else reduce_loop<R, Rest, T, false, true>(x, y, n, m.q ? m.q : 1, 0);
    } else if (m.bits > 63) {  // q >= 2^63, so x is unsigned and below 2q
        for (size_t j = 0; j < n; ++j) y[j] = (T)(x[j] > m.last ? x[j] - m.q : x[j]);
    } else if (is_signed) {
        const u64 half = (u64)1 << 63;  // the multiple of q in [2^63, 2^63 + q)
        reduce_loop<R, Rest, T, true, false>(x, y, n, m.q, half + (m.q - half % m.q) % m.q);
    } else {
        reduce_loop<R, Rest, T, false, false>(x, y, n, m.q, 0);
    }
}

// ---- residues to integers ----

// Computes the words y of numbers from their mixed-radix digits; digit i of number j is digits[i * n + j]. P: the
// product of all radices. A number x <= `most` stands for x. If m.negative, a number x >= `least` stands for x - P.
// Other numbers do not fit a word. wrong[j] is 1 if number j does not fit a word, else 0.
inline void join_digits(const u64 *digits, const MixedWords &m, u64 *y, u64 *wrong, size_t n) {
    for (size_t j = 0; j < n; ++j) y[j] = 0, wrong[j] = 3;
    for (size_t i = m.count; i-- > 0;)
        for (size_t j = 0; j < n; ++j) y[j] = y[j] * m.radix[i] + digits[i * n + j];
    // Compares from the least significant digit up. Let x be the number formed by digits 0 ... i of number j. After
    // step i, bit 0 of wrong[j] tells whether x is at most the number formed by digits 0 ... i of `most`. Bit 1 tells
    // whether x is at least the number formed by digits 0 ... i of `least`.
    for (size_t i = 0; i < m.count; ++i) {
        const u64 most = m.most[i], least = m.least[i];
        for (size_t j = 0; j < n; ++j) {
            const u64 d = digits[i * n + j], seen = wrong[j];
            const u64 up_to = (u64)(d < most) | ((u64)(d == most) & seen);
            const u64 from = (u64)(d > least) | ((u64)(d == least) & seen >> 1);
            wrong[j] = up_to | from << 1;
        }
    }
    for (size_t j = 0; j < n; ++j) {
        const u64 below = m.negative & wrong[j] >> 1;
        y[j] -= below * m.product;
        wrong[j] = (wrong[j] & 1) ^ 1;
        wrong[j] &= below ^ 1;
    }
}
// Sets wrong[j], which is 0 or 1, to 1 if x[j] differs from y[j]. Returns 1 if any wrong[j] is then 1, else 0.
template <class T> u64 compare(const T *x, const T *y, u64 *wrong, size_t n) {
    u64 any = 0;
    for (size_t j = 0; j < n; ++j) wrong[j] |= (u64)(x[j] != y[j]), any |= wrong[j];
    return any;
}

// Returns whether x + sign * y < 0. x and y are digits of SumWords, in two's complement.
inline bool is_negative(const u64 *x, const u64 *y, int sign, const SumWords &m) {
    int64_t sum = 0;
    for (size_t d = 0; d < m.digits; ++d) sum = (sum >> m.BITS) + (int64_t)x[d] + sign * (int64_t)y[d];
    return ((u64)sum & m.MASK) >> (m.BITS - 1);
}
inline void add_digits(u64 *x, const u64 *y, int sign, const SumWords &m) {
    int64_t sum = 0;
    for (size_t d = 0; d < m.digits; ++d) {
        sum = (sum >> m.BITS) + (int64_t)x[d] + sign * (int64_t)y[d];
        x[d] = (u64)sum & m.MASK;
    }
}

// Computes one number: the sum of y_i * (term i), plus `multiple` times the last term. y_i is y[i * n]. Writes digit d
// of the number to x[d * n]. Sums have 128 bits. column: scratch memory for count + 1 words.
template <class T> void sum_column(const T *y, const SumWords &m, u64 multiple, u64 *x, size_t n, u64 *column) {
    const size_t count = m.count;
    for (size_t i = 0; i < count; ++i) column[i] = y[i * n];
    column[count] = multiple;
    const u64 *term = m.terms;
    u128 sum = 0;
    for (size_t d = 0; d < m.digits; ++d, term += count + 1) {
        u128 odd = 0;  // a second sum, so that two chains of carries run side by side
        size_t i = 0;
        for (; i < count; i += 2) sum += (u128)column[i] * term[i], odd += (u128)column[i + 1] * term[i + 1];
        if (i == count) sum += (u128)column[i] * term[i];
        sum += odd;
        x[d * n] = (u64)sum & SumWords::MASK;
        sum >>= SumWords::BITS;
    }
}
// Like sum_column, for two vectors of numbers, by the 52-bit multiplier. Needs y_i < 2^52.
template <class R, class T>
PG_INLINE void sum_vectors(const T *y, const SumWords &m, const u64 *multiple, u64 *x, size_t n) {
    using I = typename R::I;
    using W = typename R::Words;
    const u64 *term = m.terms;
    const I mask = W::splat(SumWords::MASK);
    I carry[2] = {W::zero(), W::zero()};
    for (size_t d = 0; d < m.digits; ++d) {
        I low[2] = {carry[0], carry[1]}, high[2] = {W::zero(), W::zero()};
        for (size_t i = 0; i <= m.count; ++i, ++term) {
            const I t = W::splat(*term);
            for (size_t k = 0; k < 2; ++k) {
                const I v =
                    i < m.count ? R::load_words(y + i * n + k * R::WIDTH) : R::load_words(multiple + k * R::WIDTH);
                low[k] = R::mul_add_low(low[k], v, t), high[k] = R::mul_add_high(high[k], v, t);
            }
        }
        for (size_t k = 0; k < 2; ++k) {
            R::store_words(x + d * n + k * R::WIDTH, R::both(low[k], mask));
            carry[k] = W::add(high[k], R::right(low[k], SumWords::BITS));
        }
    }
}

// x = sum of y_i * Q / q_i modulo Q, in [0, Q) or centred, for residues y_i at y[i * n + j]. x is in two's complement;
// digit d of number j is x[d * n + j]. The quotient of the sum by Q is estimated in doubles, and quotient * Q is
// subtracted. If the estimate is near an integer, x may be off by one Q and is corrected (docs/math.md, "Integers").
template <class R, class T> void compose_row(const T *y, const SumWords &m, u64 *x, size_t n, u64 *scratch) {
    double *const quotient = (double *)scratch;
    u64 *const multiple = scratch + n, *const column = multiple + n, *const one = column + m.count + 2;
    for (size_t j = 0; j < n; ++j) quotient[j] = m.centered ? 0.5 : 0;
    for (size_t i = 0; i < m.count; ++i)
        for (size_t j = 0; j < n; ++j) quotient[j] += (double)y[i * n + j] * m.inverse[i];
    for (size_t j = 0; j < n; ++j) multiple[j] = (u64)quotient[j], quotient[j] -= (double)multiple[j];
    size_t j = 0;
    if constexpr (R::MULTIPLIER52) {
        if (m.narrow)
            for (; j + 2 * R::WIDTH <= n; j += 2 * R::WIDTH) sum_vectors<R>(y + j, m, multiple + j, x + j, n);
    }
    column[m.count + 1] = 0;
    for (; j < n; ++j) sum_column(y + j, m, multiple[j], x + j, n, column);
    for (j = 0; j < n; ++j) {
        if (quotient[j] >= m.unsure && quotient[j] <= 1 - m.unsure) continue;
        for (size_t d = 0; d < m.digits; ++d) one[d] = x[d * n + j];
        if (is_negative(one, m.low, 1, m)) add_digits(one, m.modulus, 1, m);
        else if (!is_negative(one, m.high, -1, m)) add_digits(one, m.modulus, -1, m);
        for (size_t d = 0; d < m.digits; ++d) x[d * n + j] = one[d];
    }
}

// Replaces n numbers by their absolute values. Digit d of number j is x[d * n + j].
inline void make_sizes(u64 *x, size_t digits, size_t n, u64 *carry) {
    const u64 *top = x + (digits - 1) * n;
    // Bit 63 of carry[j]: the sign of number j. The other bits: the carry into the next digit when the number is
    // negated.
    for (size_t j = 0; j < n; ++j) carry[j] = top[j] >> (SumWords::BITS - 1) ? (u64)1 << 63 | 1 : 0;
    for (size_t d = 0; d < digits; ++d)
        for (size_t j = 0; j < n; ++j) {
            const u64 sign = (u64)((int64_t)carry[j] >> 63);
            const u64 sum = ((x[d * n + j] ^ sign) & SumWords::MASK) + (carry[j] & 1);
            x[d * n + j] = sum & SumWords::MASK;
            carry[j] = (sign & (u64)1 << 63) | sum >> SumWords::BITS;
        }
}

// Adds the squares of n nonnegative numbers to `sums`. Digit d of number j is x[d * n + j]. sums[c], c <= 2 * digits,
// counts units of 2^(BITS * c). For n <= 256 each sums[c] grows by less than 2^56.
template <class R> void add_squares(const u64 *x, size_t digits, size_t n, u64 *sums) {
    for (size_t c = 0; c + 1 < 2 * digits; ++c) {
        const size_t first = c < digits ? 0 : c - digits + 1;  // the smallest index i of a digit with a partner c - i
        u128 sum = 0;
        size_t j = 0;
        if constexpr (R::MULTIPLIER52) {
            using I = typename R::I;
            using W = typename R::Words;
            I low = W::zero(), high = low, low_twice = low, high_twice = low;
            for (; digits <= 200 && j + R::WIDTH <= n; j += R::WIDTH)  // a lane has room for the sum of 2^12 products
                for (size_t i = first; 2 * i <= c; ++i) {
                    const I u = R::load_words(x + i * n + j), v = R::load_words(x + (c - i) * n + j);
                    if (2 * i == c) low = R::mul_add_low(low, u, v), high = R::mul_add_high(high, u, v);
                    else low_twice = R::mul_add_low(low_twice, u, v), high_twice = R::mul_add_high(high_twice, u, v);
                }
            u64 lanes[4][R::WIDTH];
            R::store_words(lanes[0], low), R::store_words(lanes[1], high);
            R::store_words(lanes[2], low_twice), R::store_words(lanes[3], high_twice);
            for (size_t k = 0; k < R::WIDTH; ++k) {
                sum += (u128)lanes[0][k] + ((u128)lanes[2][k] << 1);
                sum += ((u128)lanes[1][k] << SumWords::BITS) + ((u128)lanes[3][k] << (SumWords::BITS + 1));
            }
        }
        for (size_t i = first; 2 * i <= c; ++i) {
            u128 products = 0;
            for (size_t k = j; k < n; ++k) products += (u128)x[i * n + k] * x[(c - i) * n + k];
            sum += 2 * i == c ? products : products << 1;
        }
        sums[c] += (u64)sum & SumWords::MASK;
        sums[c + 1] += (u64)(sum >> SumWords::BITS) & SumWords::MASK;
        sums[c + 2] += (u64)(sum >> 2 * SumWords::BITS);
    }
}

// ---- digits ----

// Computes y of Gadget (kernels.hpp), and the digits of y, for q < 2^63 or q = 2^64. If q < 2^63, y is first estimated
// as floor(x * scale / 2^w), for words of w bits. The estimate is exact or 1 too small, so the remainder is below 2q
// (docs/math.md, "Gadget decomposition"). If q = 2^64 (g.q is 0), y is the leading bits of x, rounded.
template <class R, class T> struct Decomposition {
    using I = typename R::I;
    using W = typename R::Words;
    const Gadget &g;
    const I q, q_high, power, power_high, scale, scale_high, half, one;
    explicit Decomposition(const Gadget &gadget)
        : g(gadget),
          q(W::splat(g.q)),
          q_high(R::right(q, 32)),
          power(W::splat(g.power)),
          power_high(R::right(power, 32)),
          scale(W::splat(g.scale)),
          scale_high(R::right(scale, 32)),
          half(W::splat(g.q / 2 + g.q % 2)),
          one(W::splat(1)) {}
    PG_INLINE I nearest(I x) const {
        if (g.q == 0) {
            const unsigned shift = 64 - g.bits * g.levels;
            return W::add(R::right(x, shift), R::both(R::right(x, shift - 1), one));
        }
        I y, rest;
        if constexpr (sizeof(T) == 4) {
            y = R::right(R::mul_halves(x, scale), 32);
            rest = W::sub(R::mul_halves(x, power), R::mul_low(y, q, q_high));  // q may be 2^32
        } else {
            y = R::mul_high(x, scale, scale_high);
            rest = W::sub(R::mul_low(x, power, power_high), R::mul_low(y, q, q_high));
        }
        const I less = W::sub(rest, q);
        y = R::where_negative(less, y, W::add(y, one)), rest = R::where_negative(less, rest, less);
        return R::where_negative(W::sub(rest, half), y, W::add(y, one));
    }
    PG_INLINE void run(const T *x, T *y, size_t begin, size_t end, size_t n) const {
        const I mask = W::splat(((u64)2 << (g.bits - 1)) - 1), middle = W::splat((u64)1 << (g.bits - 1));
        const I offset = W::splat(g.offset);
        for (size_t j = begin; j < end; j += R::WIDTH) {
            I v = R::load_words(x + j);
            if (g.power) v = nearest(v);
            v = W::add(v, offset);
            for (unsigned i = 0; i < g.levels; ++i) {
                const I digit = W::sub(R::both(R::right(v, g.bits * (g.levels - 1 - i)), mask), middle);
                R::store_words(y + i * n + j, R::where_negative(digit, W::add(digit, q), digit));
            }
        }
    }
};
// Decomposes residues modulo q >= 2^63 like Decomposition, one residue after the other.
inline void decompose_large(const u64 *x, u64 *y, size_t n, const Gadget &g) {
    for (size_t j = 0; j < n; ++j) {
        u64 v = x[j];
        if (g.power) {
            v = mul_hi(x[j], g.scale);
            u128 rest = (u128)x[j] * g.power - (u128)v * g.q;
            if (rest >= g.q) ++v, rest -= g.q;
            v += 2 * rest >= g.q;
        }
        v += g.offset;
        for (unsigned i = 0; i < g.levels; ++i) {
            const u64 digit = v >> (g.bits * (g.levels - 1 - i)) & (((u64)2 << (g.bits - 1)) - 1);
            const u64 middle = (u64)1 << (g.bits - 1);
            y[i * n + j] = digit - middle + (digit < middle ? g.q : 0);
        }
    }
}
template <class R, class Rest, class T> void decompose_row(const T *x, T *y, size_t n, const Gadget &g) {
    if constexpr (sizeof(T) == 8)
        if (g.q >> 63) return decompose_large(x, y, n, g);
    const size_t whole = n - n % R::WIDTH;
    Decomposition<R, T>(g).run(x, y, 0, whole, n);
    if (whole < n) Decomposition<Rest, T>(g).run(x, y, whole, n, n);
}

}  // namespace
}  // namespace pg
