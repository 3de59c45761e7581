// Sums of multiples of rows, and the estimates of a basis conversion, one source for all instruction sets.
#pragma once
#include <cstring>

#include "ntt.hpp"
#include "pointwise.hpp"

namespace pg {
namespace {

// How a sum of products stays within the range of a lane. lazy: the sum is kept in [0, 2q). tight: the sum is kept
// canonical. strict: the sum is kept canonical, and products are computed by `mul`. halves: see combine_halves.
// doubles: see combine_doubles. none: the portable kernel computes the sums.
enum class Sums { lazy, tight, strict, halves, doubles, none };
template <class B> constexpr Sums SUMS = Sums::lazy;
template <class L> constexpr Sums SUMS<Tight<L>> = Sums::tight;
template <class L> constexpr Sums SUMS<Strict<L>> = Sums::strict;

// y = sum of x[i] * w[i] mod q. A factor is loaded once for COUNT vectors.
template <Sums SUM, class L, size_t COUNT>
PG_INLINE void combine_range(const L &lanes, const Modulus &m, const typename L::T *const *x, const typename L::T *w,
                             const typename L::T *shoup, size_t terms, typename L::T *y, size_t begin, size_t end) {
    using V = typename L::V;
    for (size_t j = begin; j < end; j += COUNT * L::WIDTH) {
        V sum[COUNT];
        for (size_t c = 0; c < COUNT; ++c) sum[c] = L::zero();
        for (size_t i = 0; i < terms; ++i) {
            if constexpr (SUM == Sums::strict) {
                for (size_t c = 0; c < COUNT; ++c)
                    sum[c] = lanes.add_mod(sum[c], lanes.mul((V)reduce(m, x[i][j + c]), w[i]));
            } else {
                const typename L::Twiddle factor = L::broadcast(w[i], shoup[i]);
                for (size_t c = 0; c < COUNT; ++c) {
                    const V product = lanes.mul_lazy(L::load(x[i] + j + c * L::WIDTH), factor);
                    if constexpr (SUM == Sums::tight)
                        sum[c] = lanes.add_mod(sum[c], lanes.reduce_once(product, lanes.q));
                    else sum[c] = lanes.reduce_once(lanes.masked(L::add(sum[c], product)), lanes.q2);
                }
            }
        }
        for (size_t c = 0; c < COUNT; ++c) {
            if constexpr (SUM == Sums::lazy) sum[c] = lanes.reduce_once(sum[c], lanes.q);
            L::store(y + j + c * L::WIDTH, sum[c]);
        }
    }
}

// y = sum of x[i] * w[i] mod q. Low and high halves of products are summed separately, and reduced after 8 terms. L
// needs
//   mul_add_low(z, x, y) mul_add_high(z, x, y)   z plus the low or the high 52 bits of x * y
//   above52(x)                                   the bits of x from 2^52 up
//   residue(low, high)                           low + 2^52 * high mod q, canonical; the sum of high and the carry
//                                                from low must be below 2^52
// Needs x, w < 2^50: then the high halves of 8 products sum to less than 2^51. The reduced high half of earlier terms
// is below 2^51, too.
template <class L, size_t COUNT>
PG_INLINE void combine_halves(const L &lanes, const typename L::T *const *x, const typename L::T *w, size_t terms,
                              typename L::T *y, size_t begin, size_t end) {
    using V = typename L::V;
    for (size_t j = begin; j < end; j += COUNT * L::WIDTH) {
        V low[COUNT], high[COUNT];
        for (size_t c = 0; c < COUNT; ++c) low[c] = high[c] = L::zero();
        for (size_t i = 0;;) {
            for (const size_t stop = i + 8 < terms ? i + 8 : terms; i < stop; ++i) {
                const V factor = L::splat(w[i]);
                for (size_t c = 0; c < COUNT; ++c) {
                    const V word = L::load(x[i] + j + c * L::WIDTH);
                    low[c] = L::mul_add_low(low[c], word, factor);
                    high[c] = L::mul_add_high(high[c], word, factor);
                }
            }
            if (i == terms) break;
            for (size_t c = 0; c < COUNT; ++c) {
                high[c] = lanes.masked(lanes.relax(L::add(high[c], L::above52(low[c]))));
                low[c] = lanes.masked(low[c]);
            }
        }
        for (size_t c = 0; c < COUNT; ++c) L::store(y + j + c * L::WIDTH, lanes.residue(low[c], high[c]));
    }
}

// y = sum of x[i] * w[i] mod q, in doubles. The sum is reduced after every 7 products (docs/math.md, "Sums of products
// on the GPU"). Words are below 2^50, and 16 <= q < 2^50. number: the factors w, in [-q/2, q/2]. start: 2^49 * (sum of
// all w) mod q, centred.
template <class L, size_t COUNT>
PG_INLINE void combine_doubles(const L &lanes, const typename L::T *const *x, const double *number, double start,
                               size_t terms, typename L::T *y, size_t begin, size_t end) {
    using R = typename L::Real;
    using D = typename L::Double;
    constexpr size_t STEPS = 7;
    for (size_t j = begin; j < end; j += COUNT * L::WIDTH) {
        D high[COUNT], low[COUNT];
        for (size_t c = 0; c < COUNT; ++c) high[c] = R::splat(L::ABOVE), low[c] = R::splat(start);
        for (size_t i = 0;;) {
            for (const size_t stop = i + STEPS < terms ? i + STEPS : terms; i < stop; ++i) {
                const D factor = R::splat(number[i]);
                for (size_t c = 0; c < COUNT; ++c)
                    L::add_product(high[c], low[c], L::centred_word(L::load(x[i] + j + c * L::WIDTH)), factor);
            }
            if (i == terms) break;
            for (size_t c = 0; c < COUNT; ++c)
                low[c] = R::value(lanes.settled(high[c], low[c])), high[c] = R::splat(L::ABOVE);
        }
        for (size_t c = 0; c < COUNT; ++c)
            L::store(y + j + c * L::WIDTH, lanes.residue(lanes.settled(high[c], low[c])));
    }
}

constexpr size_t MOST_FACTORS = 64;  // combine_row has room for this many factors on the stack

template <Sums SUM, class L, class Rest>
void combine_row(const typename L::T *const *x, const typename L::T *w, const typename L::T *shoup, size_t terms,
                 typename L::T *y, size_t n, const Modulus &m) {
    if constexpr (SUM == Sums::doubles)
        if (m.q < 16 || terms > MOST_FACTORS)
            return combine_row<Sums::lazy, typename L::Words, Rest>(x, w, shoup, terms, y, n, m);
    constexpr size_t COUNT = L::WIDTH > 1 ? 4 : 1;
    const size_t most = n - n % (COUNT * L::WIDTH), whole = n - n % L::WIDTH;
    const L lanes(m);
    if constexpr (SUM == Sums::halves) {
        combine_halves<L, COUNT>(lanes, x, w, terms, y, 0, most);
        combine_halves<L, 1>(lanes, x, w, terms, y, most, whole);
    } else if constexpr (SUM == Sums::doubles) {
        double number[MOST_FACTORS];
        u64 sum = 0;
        for (size_t i = 0; i < terms; ++i) {
            sum = add_mod(m, sum, w[i]);
            number[i] = (double)(w[i] > m.q / 2 ? (i64)(w[i] - m.q) : (i64)w[i]);
        }
        const u64 start = mul_mod(m, sum, (u64)L::MIDDLE % m.q);
        const double first = (double)(start > m.q / 2 ? (i64)(start - m.q) : (i64)start);
        combine_doubles<L, COUNT>(lanes, x, number, first, terms, y, 0, most);
        combine_doubles<L, 1>(lanes, x, number, first, terms, y, most, whole);
    } else {
        combine_range<SUM, L, COUNT>(lanes, m, x, w, shoup, terms, y, 0, most);
        if constexpr (COUNT > 1) combine_range<SUM, L, 1>(lanes, m, x, w, shoup, terms, y, most, whole);
    }
    constexpr Sums LAST = SUM == Sums::halves || SUM == Sums::doubles ? Sums::lazy : SUM;
    if (whole < n) combine_range<LAST, Rest, 1>(Rest(m), m, x, w, shoup, terms, y, whole, n);
}

// sum += z * ratio
template <class T> void add_ratios(const T *z, double ratio, double *sum, size_t n) {
    for (size_t j = 0; j < n; ++j) sum[j] += (double)z[j] * ratio;
}

// count += 1 where z >= least
template <class T> void count_from(const T *z, T least, T *count, size_t n) {
    for (size_t j = 0; j < n; ++j) count[j] += z[j] >= least;
}

// Needs q < 2^50. The quotient y * r / q < 2^50 is estimated in doubles. Two roundings make an error below 1/2, so the
// whole part is wrong by at most 1.
template <class T> void split_below_2_50(const T *y, u64 r, u64 q, T *z, T *low, T *high, size_t n) {
    const double ratio = (double)r / (double)q;
    for (size_t j = 0; j < n; ++j) {
        u64 quotient = (u64)((double)y[j] * ratio), rest = (u64)y[j] * r - quotient * q;
        const u64 less = rest >> 63;  // 1 if rest is negative, else 0
        quotient -= less, rest += less ? q : 0;
        const bool more = rest >= q;
        quotient += more, rest -= more ? q : 0;
        z[j] = (T)rest;
        low[j] += (T)(quotient & 0xffff);
        high[j] += (T)(quotient >> 16);
    }
}
template <class T> void split_products(const T *y, u64 r, const Modulus &m, T *z, T *low, T *high, size_t n) {
    if (m.q && m.bits <= 50) return split_below_2_50(y, r, m.q, z, low, high, n);
    const u64 shoup = m.q ? shoup_quotient(m, r) : r;
    for (size_t j = 0; j < n; ++j) {
        u64 quotient, rest;
        if (m.q == 0) {  // the modulus is 2^64
            const u128 product = (u128)y[j] * r;
            quotient = (u64)(product >> 64), rest = (u64)product;
        } else {
            quotient = mul_hi(y[j], shoup);  // exact or 1 too small
            const u128 difference = (u128)y[j] * r - (u128)quotient * m.q;
            const bool more = difference >= m.q;
            quotient += more, rest = (u64)difference - (more ? m.q : 0);
        }
        z[j] = (T)rest;
        low[j] += (T)(quotient & 0xffff);
        high[j] += (T)(quotient >> 16);
    }
}
// quotient = floor(sum + half), for sums below 2^31. Returns true if any sum + half is closer than `guard` to an
// integer.
template <class T> bool round_sums(const double *sum, double half, double guard, T *quotient, size_t n) {
    bool close = false;
    for (size_t j = 0; j < n; ++j) {
        const double value = sum[j] + half;
        const int32_t whole = (int32_t)value;
        const double rest = value - (double)whole;
        quotient[j] = (T)whole;
        close |= (rest < guard) | (rest > 1 - guard);
    }
    return close;
}

template <class T> void combine_words(const T *const *x, const T *w, size_t terms, T *y, size_t n) {
    constexpr size_t BLOCK = 32;  // sums that stay in registers
    size_t j = 0;
    for (; j + BLOCK <= n; j += BLOCK) {
        T sum[BLOCK] = {};
        for (size_t i = 0; i < terms; ++i)
            for (size_t k = 0; k < BLOCK; ++k) sum[k] += (T)(x[i][j + k] * w[i]);
        std::memcpy(y + j, sum, sizeof sum);
    }
    for (; j < n; ++j) {
        T sum = 0;
        for (size_t i = 0; i < terms; ++i) sum += (T)(x[i][j] * w[i]);
        y[j] = sum;
    }
}

// Returns the kernels for rows whose butterflies are B. Rest: lanes of one residue, for the last residues of a row,
// which do not fill a vector. SUM: how combine_row keeps sums. C: the lanes of combine_row.
template <class B, class Rest, Sums SUM = SUMS<B>, class C = typename B::Lanes>
constexpr RowKernels<typename B::Lanes::T> row_kernels() {
    using L = typename B::Lanes;
    RowKernels<typename L::T> made{forward_row<B>, inverse_row<B>, pointwise_row<L, Rest>,
                                   nullptr,        2 * L::WIDTH,   B::NUMBERS};
    if constexpr (SUM != Sums::none) made.combine = combine_row<SUM, C, Rest>;
    return made;
}

template <class T> constexpr EstimateKernels<T> estimate_kernels() {
    return {add_ratios<T>, count_from<T>, round_sums<T>, split_products<T>, combine_words<T>};
}

}  // namespace
}  // namespace pg
