// Turns bytes of a random stream into residues. Compiled once per instruction set, like ntt.hpp.
#pragma once
#include <cstring>

#include "lanes_scalar.hpp"

namespace pg {
namespace {

// Returns (high * 2^64 + low) mod q, for q >= 2^62 (docs/math.md, "Small random elements"). `high` is below 4q,
// and is first reduced below q. The division is that of divide(), but has no branches and computes no quotient.
template <class T> PG_INLINE T divide_pair(u64 low, u64 high, const Modulus &m) {
    for (int times = 0; times < 3; ++times) high -= m.q & (0 - (u64)(high >= m.q));
    if (m.shift) high = high << m.shift | low >> (64 - m.shift), low <<= m.shift;
    const u128 estimate = (u128)m.recip.v * high + (((u128)high << 64) | low);
    u64 r = low - ((u64)(estimate >> 64) + 1) * m.recip.d;
    r += m.recip.d & (0 - (u64)(r > (u64)estimate));
    r -= m.recip.d & (0 - (u64)(r >= m.recip.d));
    return (T)(r >> m.shift);
}
template <class T, class R> void reduce_pairs_strict(const u64 *x, T *y, size_t n, const Modulus &m) {
    size_t i = 0;
    if (m.q == 0) {
        for (; i < n; ++i) y[i] = (T)x[2 * i];
        return;
    }
    if constexpr (R::WIDTH > 1) {
        using W = typename R::Words;
        const auto q = W::splat(m.q), d = W::splat(m.recip.d), v = W::splat(m.recip.v), one = W::splat(1);
        const auto twice = W::splat(m.bits == 63 ? 2 * m.q : m.q);
        for (; i + R::WIDTH <= n; i += R::WIDTH) {
            typename R::V first, second;  // doubles that hold the bits of integers
            R::template expand<R::WIDTH>((const double *)(x + 2 * i), first, second);
            auto low = R::bits(first), high = W::reduce_once(W::reduce_once(R::bits(second), twice), q);
            if (m.bits == 63) high = W::add(W::add(high, high), R::right(low, 63)), low = W::add(low, low);
            const auto estimate = W::add(R::mul_low(v, high), low);
            auto quotient = W::add(W::add(R::mul_high(v, high), high), one);
            quotient = R::add_where_above(low, estimate, quotient, one);  // adds the carry
            auto r = W::sub(low, R::mul_low(quotient, d));
            r = W::reduce_once(R::add_where_above(r, estimate, r, d), d);
            R::store_words(y + i, R::right(r, m.shift));
        }
    }
    for (; i < n; ++i) y[i] = divide_pair<T>(x[2 * i], x[2 * i + 1], m);
}
// Returns (high * 2^64 + low) mod q, for q < 2^62. c: 2^64 mod q. Shoup's products high * c and low * 1 are below 2q.
template <class T> PG_INLINE T reduce_pair(u64 low, u64 high, const ScalarLanes<u64> &l, u64 c, u64 c_shoup, u64 one) {
    const u64 r = l.mul_lazy(high, {c, c_shoup}) + l.mul_lazy(low, {1, one});
    return (T)l.reduce_once(l.relax(r), l.q);
}
template <class T, class R> void reduce_pairs(const u64 *x, T *y, size_t n, const Modulus &m) {
    if (m.bits > 62) return reduce_pairs_strict<T, R>(x, y, n, m);
    const u64 c = reduce(m, 1, 0), c_shoup = shoup_quotient(m, c), one = shoup_quotient(m, 1);
    size_t i = 0;
    if constexpr (R::WIDTH > 1) {
        const typename R::Words l(m);
        const auto power = l.broadcast(c, c_shoup), unit = l.broadcast(1, one);
        for (; i + R::WIDTH <= n; i += R::WIDTH) {
            typename R::V low, high;  // doubles that hold the bits of integers
            R::template expand<R::WIDTH>((const double *)(x + 2 * i), low, high);
            const auto r = l.add(l.mul_lazy(R::bits(high), power), l.mul_lazy(R::bits(low), unit));
            R::store_words(y + i, l.reduce_once(l.relax(r), l.q));
        }
    }
    for (const ScalarLanes<u64> l(m); i < n; ++i) y[i] = reduce_pair<T>(x[2 * i], x[2 * i + 1], l, c, c_shoup, one);
}

// Writes the residues of integers v in [-bound, bound].
template <class T, class R> void reduce_small(const i64 *v, T *y, size_t n, const Modulus &m, u64 bound) {
    const u64 q = m.q;
    if (q == 0 || bound < q) {
        for (size_t i = 0; i < n; ++i) y[i] = (T)((u64)v[i] + ((u64)(v[i] >> 63) & q));
        return;
    }
    const u64 offset = (bound / q + (bound % q != 0)) * q;  // v + offset is in [0, 2^64), as bound <= 2^62
    size_t i = 0;
    if (m.bits <= 62) {
        const u64 one = shoup_quotient(m, 1);
        if constexpr (R::WIDTH > 1) {
            const typename R::Words l(m);
            const auto unit = l.broadcast(1, one);
            for (; i + R::WIDTH <= n; i += R::WIDTH) {
                const auto x = l.add(R::load_words((const u64 *)v + i), l.splat(offset));
                R::store_words(y + i, l.reduce_once(l.mul_lazy(x, unit), l.q));
            }
        }
        for (const ScalarLanes<u64> l(m); i < n; ++i)
            y[i] = (T)l.reduce_once(l.mul_lazy((u64)v[i] + offset, {1, one}), q);
    }
    for (; i < n; ++i) y[i] = (T)reduce(m, (u64)v[i] + offset);
}

// ---- bytes to integers; every loop does the same work for every value ----

template <class W> PG_INLINE W word_at(const unsigned char *x, size_t i) {
    W w;
    std::memcpy(&w, x + i * sizeof(W), sizeof(W));
    return w;
}
template <class W> void draw_binomial(const unsigned char *x, i64 *v, size_t n, unsigned eta) {
    constexpr u64 all = ~(u64)0;
    const u64 mask = ((u64)1 << eta) - 1;
    for (size_t i = 0; i < n; ++i) {  // counts the 1 bits in each 32-bit half of the word; eta <= 32
        const u64 w = word_at<W>(x, i);
        u64 ones = (w & mask) | (w >> eta & mask) << 32;
        ones -= ones >> 1 & all / 3;
        ones = (ones & all / 5) + (ones >> 2 & all / 5);
        ones = (ones + (ones >> 4)) & all / 17;
        ones += ones >> 8, ones += ones >> 16;
        v[i] = (i64)(ones & 0x3f) - (i64)(ones >> 32 & 0x3f);
    }
}
template <class W> void draw_tuniform(const unsigned char *x, i64 *v, size_t n, unsigned b) {
    const u64 mask = ~(u64)0 >> (62 - b), half = (u64)1 << b;
    for (size_t i = 0; i < n; ++i) {
        const u64 u = word_at<W>(x, i) & mask;
        v[i] = (i64)((u >> 1) + (u & 1) - half);
    }
}
inline void draw_ternary(const unsigned char *x, i64 *v, size_t n) {
    constexpr u64 third = ~(u64)0 / 3 + 1, two_thirds = 2 * (~(u64)0 / 3) + 1;  // 2^64 / 3 and 2^65 / 3, rounded up
    for (size_t i = 0; i < n; ++i) {
        const u64 w = word_at<u64>(x, i);
        v[i] = (i64)(w >= third) + (i64)(w >= two_thirds) - 1;
    }
}

// For each of DRAW_BLOCK numbers u below 2^63, counts the thresholds that are at most u. Every threshold is read for
// every number.
struct CountAll {
    typedef i64 V __attribute__((vector_size(32)));
    static PG_INLINE void count(const i64 *u, i64 *counts, const Draw &draw) {
        constexpr size_t VECTORS = 4;
        V x[VECTORS], sum[VECTORS];
        for (size_t at = 0; at < DRAW_BLOCK; at += 4 * VECTORS) {
            for (size_t k = 0; k < VECTORS; ++k) std::memcpy(&x[k], u + at + 4 * k, sizeof(V)), sum[k] = V{};
            for (size_t j = 0; j < draw.thresholds; ++j) {
                const V threshold = (i64)draw.sorted[j] - V{};
                for (size_t k = 0; k < VECTORS; ++k) sum[k] -= x[k] >= threshold;
            }
            for (size_t k = 0; k < VECTORS; ++k) std::memcpy(counts + at + 4 * k, &sum[k], sizeof(V));
        }
    }
};

template <class Count> void draw_gaussian(const unsigned char *x, i64 *v, size_t n, const Draw &draw) {
    i64 u[DRAW_BLOCK], sign[DRAW_BLOCK], sum[DRAW_BLOCK], counts[DRAW_BLOCK];
    for (size_t first = 0; first < n; first += DRAW_BLOCK) {
        const size_t count = std::min(n - first, DRAW_BLOCK);
        std::memset(sum, 0, sizeof sum);
        for (size_t term = 0; term < draw.terms; ++term) {
            if (count < DRAW_BLOCK) std::memset(u, 0, sizeof u), std::memset(sign, 0, sizeof sign);
            for (size_t i = 0; i < count; ++i) {
                const u64 w = word_at<u64>(x, (first + i) * draw.terms + term);
                u[i] = (i64)(w >> 1), sign[i] = -(i64)(w & 1);
            }
            Count::count(u, counts, draw);
            const i64 weight = draw.weights[term];
            for (size_t i = 0; i < DRAW_BLOCK; ++i) sum[i] += weight * ((counts[i] ^ sign[i]) - sign[i]);
        }
        std::memcpy(v + first, sum, count * sizeof(i64));
    }
}

template <class Count> void draw_small(const unsigned char *x, i64 *v, size_t n, const Draw &draw) {
    const unsigned parameter = draw.parameter;
    const auto by_size = [&](auto function) {
        if (draw.bytes == 1) function((unsigned char)0);
        else if (draw.bytes == 2) function((unsigned short)0);
        else if (draw.bytes == 4) function((u32)0);
        else function((u64)0);
    };
    if (draw.shape == DrawShape::ternary) draw_ternary(x, v, n);
    else if (draw.shape == DrawShape::binomial)
        by_size([&](auto word) { draw_binomial<decltype(word)>(x, v, n, parameter); });
    else if (draw.shape == DrawShape::tuniform)
        by_size([&](auto word) { draw_tuniform<decltype(word)>(x, v, n, parameter); });
    else draw_gaussian<Count>(x, v, n, draw);
}

}  // namespace
}  // namespace pg
