// Products of matrices modulo one q, one source for all instruction sets: sums in 64-bit lanes that are reduced
// as rarely as their bounds allow (docs/math.md, "Sums of products").
//
// R, the vector type, has the integer operations of Reals (fft_product.hpp), and
//   REGISTERS            number of vector registers
//   mul_halves(x, y)     product of the low halves of 64-bit lanes
//   mul_low(x, y)        product of 64-bit lanes modulo 2^64
//   MULTIPLIER52         whether there is a multiplier for x and y below 2^52. If so, R also has:
//   rest()               the instruction set whose kernels serve the moduli that do not suit this multiplier
//   mul_add_low, mul_add_high(z, x, y)    z plus the low or the high 52 bits of x * y
//   Lanes52                               lanes with residue(low, high): low + 2^52 * high mod q, where high
//                                         plus the carry from low is below 2^52
#pragma once
#include <algorithm>
#include <type_traits>

#include "lanes_scalar.hpp"

namespace pg {
namespace {

// Sums of products in COUNT parts; part i has the weight 2^(spacing * i). Parts stay below 2^64: fold() subtracts M =
// multiple_of_q from parts >= M, which leaves parts below 2^64 - M. The products until the next fold() add at most M.
template <class Lanes, size_t COUNT> struct FoldedSums {
    using R = Lanes;
    using V = typename R::I;
    using Words = typename R::Words;
    static constexpr size_t SUMS = COUNT, WIDTH = R::WIDTH;
    struct Sum {
        V part[SUMS];
    };
    const Words lanes;
    const u64 last;           // q - 1
    const u64 multiple_of_q;  // the largest multiple of q up to 2^63
    const V multiple;
    size_t period = 0;  // how many products are added between two calls of fold()
    typename Words::Twiddle weight[SUMS];

    FoldedSums(const Modulus &m, unsigned spacing)
        : lanes(m),
          last(m.last),
          multiple_of_q((1ull << 63) - (1ull << 63) % m.q),
          multiple(Words::splat(multiple_of_q)) {
        for (size_t i = 0; i < SUMS; ++i) {
            const u64 w = pow_mod(m, reduce(m, 2), i * spacing);
            weight[i] = Words::broadcast(w, shoup_quotient(m, w));
        }
    }
    static PG_INLINE Sum zero() {
        Sum s;
        for (size_t i = 0; i < SUMS; ++i) s.part[i] = Words::zero();
        return s;
    }
    PG_INLINE void fold(Sum &s) const {
        for (size_t i = 0; i < SUMS; ++i) s.part[i] = lanes.reduce_once(s.part[i], multiple);
    }
    PG_INLINE V residue(const Sum &s) const {
        V r = lanes.mul_lazy(s.part[0], weight[0]);  // r is in [0, 2q), and 4q <= 2^64
        for (size_t i = 1; i < SUMS; ++i)
            r = lanes.reduce_once(Words::add(r, lanes.mul_lazy(s.part[i], weight[i])), lanes.q2);
        return lanes.reduce_once(r, lanes.q);
    }
    PG_INLINE V canonical(V x) const { return lanes.reduce_once(lanes.mul_lazy(x, weight[0]), lanes.q); }
    PG_INLINE V add_mod(V x, V y) const { return lanes.add_mod(x, y); }
};

// Sums of products of residues that are one digit (q <= 2^31) or two digits (q <= 2^62).
template <class R, size_t COUNT> struct DigitSums : FoldedSums<R, 2 * COUNT - 1> {
    using Base = FoldedSums<R, 2 * COUNT - 1>;
    using typename Base::Sum, typename Base::V, typename Base::Words;
    static constexpr size_t DIGITS = COUNT, ROWS = 4, VECTORS = R::REGISTERS / (COUNT == 1 ? 8 : 16);
    struct Residue {
        V digit[DIGITS];
    };
    const unsigned width;
    const V low_digit;

    static unsigned width_of(const Modulus &m) { return (64 - (unsigned)__builtin_clzll(m.last) + 1) / 2; }
    explicit DigitSums(const Modulus &m)
        : Base(m, width_of(m)), width(width_of(m)), low_digit(Words::splat((1ull << width) - 1)) {
        const u64 low = (1ull << width) - 1, high = m.last >> width;
        this->period = this->multiple_of_q / (COUNT == 1 ? m.last * m.last : std::max(low * low, 2 * low * high));
    }
    PG_INLINE Residue split(V x) const {
        if constexpr (DIGITS == 1) return {{x}};
        else return {{R::both(x, low_digit), R::right(x, width)}};
    }
    static PG_INLINE void mul_add(Sum &s, const Residue &x, const Residue &y) {
        for (size_t i = 0; i < DIGITS; ++i)
            for (size_t j = 0; j < DIGITS; ++j)
                s.part[i + j] = Words::add(s.part[i + j], R::mul_halves(x.digit[i], y.digit[j]));
    }
};

// Sums of products of residues that fit the 52-bit multiplier, q <= 2^52.
template <class R> struct Sums52 : FoldedSums<R, 2> {
    using Base = FoldedSums<R, 2>;
    using typename Base::Sum, typename Base::V;
    static constexpr size_t DIGITS = 1, ROWS = 4, VECTORS = R::REGISTERS / 16;
    struct Residue {
        V digit[DIGITS];
    };
    explicit Sums52(const Modulus &m) : Base(m, 52) { this->period = this->multiple_of_q >> 52; }
    static PG_INLINE Residue split(V x) { return {{x}}; }
    static PG_INLINE void mul_add(Sum &s, const Residue &x, const Residue &y) {
        s.part[0] = R::mul_add_low(s.part[0], x.digit[0], y.digit[0]);
        s.part[1] = R::mul_add_high(s.part[1], x.digit[0], y.digit[0]);
    }
};

// Sums of up to TERMS products of canonical residues, q < 2^50. The high halves of products are below 2^48, so that
// their sum plus the carry from the low halves stays below 2^52.
template <class R> struct ShortSums52 : Sums52<R> {
    using Base = Sums52<R>;
    using typename Base::Sum, typename Base::V;
    static constexpr size_t TERMS = 15;
    const typename R::Lanes52 lanes52;
    explicit ShortSums52(const Modulus &m) : Base(m), lanes52(m) {}
    PG_INLINE V residue(const Sum &s) const { return lanes52.residue(s.part[0], s.part[1]); }
};

// Sums modulo a power of two q. All sums are taken modulo 2^64, because q divides 2^64. If WIDE is false, q <= 2^32.
template <class R_, bool WIDE> struct PowerSums {
    using R = R_;
    using V = typename R::I;
    using Words = typename R::Words;
    static constexpr size_t DIGITS = 1, ROWS = 4, VECTORS = R::REGISTERS / 8, WIDTH = R::WIDTH;
    static constexpr size_t period = ~(size_t)0;
    struct Residue {
        V digit[DIGITS];
    };
    using Sum = V;
    const u64 last;
    const V mask;

    explicit PowerSums(const Modulus &m) : last(m.last), mask(Words::splat(m.last)) {}
    static PG_INLINE Sum zero() { return Words::zero(); }
    static PG_INLINE Residue split(V x) { return {{x}}; }
    static PG_INLINE void mul_add(Sum &s, const Residue &x, const Residue &y) {
        if constexpr (WIDE) s = Words::add(s, R::mul_low(x.digit[0], y.digit[0]));
        else s = Words::add(s, R::mul_halves(x.digit[0], y.digit[0]));
    }
    static PG_INLINE void fold(Sum &) {}
    PG_INLINE V residue(const Sum &s) const { return canonical(s); }
    PG_INLINE V canonical(V x) const { return R::both(x, mask); }
    PG_INLINE V add_mod(V x, V y) const { return canonical(Words::add(x, y)); }
};

// Sums of three words, for any q up to 2^64.
struct WordSums {
    using R = ScalarReals;
    using V = u64;
    using Words = R::Words;
    static constexpr size_t DIGITS = 1, ROWS = 2, VECTORS = 2, WIDTH = 1;
    struct Residue {
        V digit[DIGITS];
    };
    struct Sum {
        u128 low;
        u64 high;
    };
    const Modulus &m;
    const u64 last;
    static constexpr size_t period = ~(size_t)0;

    explicit WordSums(const Modulus &modulus) : m(modulus), last(modulus.last) {}
    static PG_INLINE Sum zero() { return {0, 0}; }
    static PG_INLINE Residue split(V x) { return {{x}}; }
    static PG_INLINE void mul_add(Sum &s, const Residue &x, const Residue &y) {
        s.high += __builtin_add_overflow(s.low, (u128)x.digit[0] * y.digit[0], &s.low);
    }
    static PG_INLINE void fold(Sum &) {}
    PG_INLINE V residue(const Sum &s) const {
        return reduce(m, reduce(m, reduce(m, s.high), (u64)(s.low >> 64)), (u64)s.low);
    }
    PG_INLINE V canonical(V x) const { return reduce(m, x); }
    PG_INLINE V add_mod(V x, V y) const { return pg::add_mod(m, x, y); }
};

// Whether Sums52 are the fastest sums for a modulus. If R has a 52-bit multiplier, all other moduli use the kernels of
// R::rest().
inline bool suits_sums52(const Modulus &m) { return m.last >> 31 && m.last < 1ull << 52 && m.last & (m.last + 1); }
// Calls f with an object of the class that computes sums of products modulo m fastest, such as Sums52. Residues are
// stored in words of type T.
template <class R, class T, class F> void with_sums(const Modulus &m, const F &f) {
    constexpr bool NARROW = sizeof(T) == 4;
    if constexpr (R::MULTIPLIER52) return f(Sums52<R>(m));
    else {
        if ((m.last & (m.last + 1)) == 0) return f(PowerSums<R, !NARROW>(m));
        if (m.last < 1ull << 31) return f(DigitSums<R, 1>(m));
        if constexpr (R::WIDTH == 1) return f(WordSums(m));
        else if constexpr (NARROW) return f(DigitSums<R, 2>(m));
        else return m.last < 1ull << 62 ? f(DigitSums<R, 2>(m)) : f(WordSums(m));
    }
}

// Calls f(begin, size) for consecutive pieces of [0, count). Sizes are MOST, MOST/2 ... or 1, as integral constants.
template <size_t MOST, class F> PG_INLINE void for_pieces(size_t count, const F &f, size_t begin = 0) {
    for (; begin + MOST <= count; begin += MOST) f(begin, std::integral_constant<size_t, MOST>());
    if constexpr (MOST > 1) for_pieces<MOST / 2>(count, f, begin);
}

// How far ahead kernels prefetch. The hardware itself prefetches along a row, but not into the next page. It does not
// prefetch if a kernel reads a short piece of each of many rows.
constexpr size_t LINE = 64, PAGE = 4096;  // bytes
constexpr size_t ROWS_AHEAD = 16;

template <class S> PG_INLINE typename S::Residue load_digits(const u64 *x, size_t stride) {
    typename S::Residue r;
    for (size_t d = 0; d < S::DIGITS; ++d) r.digit[d] = S::Words::load(x + d * stride);
    return r;
}

// r[i][v] = the sum over t < inner of left(t, i) * right(t, v), canonical.
template <size_t ROWS, size_t VECTORS, class S, class Left, class Right>
PG_INLINE void tile(const S &sums, size_t inner, const Left &left, const Right &right,
                    typename S::V (&r)[ROWS][VECTORS]) {
    typename S::Sum sum[ROWS][VECTORS];
    for (size_t i = 0; i < ROWS; ++i)
        for (size_t v = 0; v < VECTORS; ++v) sum[i][v] = S::zero();
    for (size_t t = 0; t < inner;) {
        const size_t end = inner - t < sums.period ? inner : t + sums.period;
        for (; t < end; ++t) {
            typename S::Residue y[VECTORS];
            for (size_t v = 0; v < VECTORS; ++v) y[v] = right(t, v);
            for (size_t i = 0; i < ROWS; ++i) {
                const typename S::Residue x = left(t, i);
                for (size_t v = 0; v < VECTORS; ++v) S::mul_add(sum[i][v], x, y[v]);
            }
        }
        if (t < inner)
            for (size_t i = 0; i < ROWS; ++i)
                for (size_t v = 0; v < VECTORS; ++v) sums.fold(sum[i][v]);
    }
    for (size_t i = 0; i < ROWS; ++i)
        for (size_t v = 0; v < VECTORS; ++v) r[i][v] = sums.residue(sum[i][v]);
}

// ---- one matrix by another: lanes run over columns ----

// Reduces x[0] ... x[count - 1] to [0, q) if needed. Writes their digits, then zeros up to entry `padded`. Digit d of
// x[j] is y[d * stride + j].
template <class S, class T>
PG_INLINE void pack(const S &sums, const T *x, size_t count, size_t padded, u64 *y, size_t stride) {
    using R = typename S::R;
    T largest = 0;
    for (size_t j = 0; j < count; ++j) largest = std::max(largest, x[j]);
    const bool canonical = largest <= sums.last;
    for (size_t j = 0; j < padded; j += S::WIDTH) {
        typename S::V words;
        if (j + S::WIDTH <= count) {
            words = R::load_words(x + j);
        } else {
            T edge[S::WIDTH] = {};
            for (size_t i = j; i < count; ++i) edge[i - j] = x[i];
            words = R::load_words(edge);
        }
        const typename S::Residue r = sums.split(canonical ? words : sums.canonical(words));
        for (size_t d = 0; d < S::DIGITS; ++d) S::Words::store(y + d * stride + j, r.digit[d]);
    }
}

// If `first`, c = r, else c = (c + r) mod q. Writes at most `count` lanes.
template <class S, class T> PG_INLINE void put(const S &sums, typename S::V r, T *c, size_t count, bool first) {
    using R = typename S::R;
    if (count >= S::WIDTH) {
        R::store_words(c, first ? r : sums.add_mod(R::load_words(c), r));
    } else {
        T edge[S::WIDTH] = {};
        for (size_t i = 0; i < count; ++i) edge[i] = c[i];
        R::store_words(edge, first ? r : sums.add_mod(R::load_words(edge), r));
        for (size_t i = 0; i < count; ++i) c[i] = edge[i];
    }
}

template <class S, class T> void gemm_with(const S &sums, const MatrixProduct<T> &p, u64 *scratch) {
    using Words = typename S::Words;
    constexpr size_t WIDTH = S::WIDTH, DIGITS = S::DIGITS;
    constexpr size_t STRIDE = GEMM_DEPTH + 8;  // such that rows of the left block lie in different sets of the cache
    u64 *const packed_a = scratch, *const packed_b = scratch + S::ROWS * DIGITS * STRIDE;
    const size_t vectors = (p.columns + WIDTH - 1) / WIDTH;
    for (size_t begin = 0; begin < p.inner; begin += GEMM_DEPTH) {
        const size_t depth = std::min(GEMM_DEPTH, p.inner - begin);
        const auto panel = [&](size_t vector) { return packed_b + vector * WIDTH * DIGITS * depth; };
        for_pieces<S::VECTORS>(vectors, [&](size_t vector, auto size) {
            constexpr size_t LENGTH = decltype(size)::value * WIDTH;
            const size_t column = vector * WIDTH;
            for (size_t t = 0; t < depth; ++t) {
                const T *const x = p.b.data + (ptrdiff_t)(begin + t) * p.b.row + column;
                for (size_t j = 0; j < LENGTH; j += LINE / sizeof(T)) __builtin_prefetch(x + ROWS_AHEAD * p.b.row + j);
                pack(sums, x, std::min(LENGTH, p.columns - column), LENGTH, panel(vector) + t * DIGITS * LENGTH,
                     LENGTH);
            }
        });
        for_pieces<S::ROWS>(p.rows, [&](size_t row, auto rows) {
            constexpr size_t ROWS = decltype(rows)::value;
            if (stopped(p.stop)) return;
            for (size_t i = 0; i < ROWS; ++i)
                pack(sums, p.a.data + (ptrdiff_t)(row + i) * p.a.row + begin, depth,
                     (depth + WIDTH - 1) / WIDTH * WIDTH, packed_a + i * DIGITS * STRIDE, STRIDE);
            for_pieces<S::VECTORS>(vectors, [&](size_t vector, auto size) {
                constexpr size_t VECTORS = decltype(size)::value, LENGTH = VECTORS * WIDTH;
                const u64 *const b = panel(vector);
                typename S::V r[ROWS][VECTORS];
                const auto left = [&](size_t t, size_t i) __attribute__((always_inline)) {
                    typename S::Residue x;
                    for (size_t d = 0; d < DIGITS; ++d)
                        x.digit[d] = Words::splat(packed_a[(i * DIGITS + d) * STRIDE + t]);
                    return x;
                };
                const auto right = [&](size_t t, size_t v) __attribute__((always_inline)) {
                    return load_digits<S>(b + t * DIGITS * LENGTH + v * WIDTH, LENGTH);
                };
                tile(sums, depth, left, right, r);
                for (size_t i = 0; i < ROWS; ++i)
                    for (size_t v = 0; v < VECTORS; ++v) {
                        const size_t column = (vector + v) * WIDTH;
                        put(sums, r[i][v], p.c.data + (ptrdiff_t)(row + i) * p.c.row + column, p.columns - column,
                            begin == 0);
                    }
            });
        });
    }
}

// The product by one dense column. Lanes run over the terms of the sum, and are added up at the end.
template <class S, class T> void gemm_column_with(const S &sums, const MatrixProduct<T> &p, u64 *scratch) {
    constexpr size_t WIDTH = S::WIDTH, DIGITS = S::DIGITS, STRIDE = GEMM_DEPTH + 8;
    u64 *const packed_a = scratch, *const packed_b = scratch + S::ROWS * DIGITS * STRIDE;
    for (size_t begin = 0; begin < p.inner; begin += GEMM_DEPTH) {
        const size_t depth = std::min(GEMM_DEPTH, p.inner - begin), vectors = (depth + WIDTH - 1) / WIDTH;
        pack(sums, p.b.data + begin, depth, vectors * WIDTH, packed_b, STRIDE);
        for_pieces<S::ROWS>(p.rows, [&](size_t row, auto rows) {
            constexpr size_t ROWS = decltype(rows)::value;
            if (stopped(p.stop)) return;
            for (size_t i = 0; i < ROWS; ++i)
                pack(sums, p.a.data + (ptrdiff_t)(row + i) * p.a.row + begin, depth, vectors * WIDTH,
                     packed_a + i * DIGITS * STRIDE, STRIDE);
            const auto left = [&](size_t t, size_t i) __attribute__((always_inline)) {
                return load_digits<S>(packed_a + i * DIGITS * STRIDE + t * WIDTH, STRIDE);
            };
            const auto right = [&](size_t t, size_t) __attribute__((always_inline)) {
                return load_digits<S>(packed_b + t * WIDTH, STRIDE);
            };
            typename S::V r[ROWS][1];
            tile(sums, vectors, left, right, r);
            for (size_t i = 0; i < ROWS; ++i) {
                T &c = p.c.data[(ptrdiff_t)(row + i) * p.c.row];
                u64 lane[WIDTH], sum = begin == 0 ? 0 : c;
                S::Words::store(lane, r[i][0]);
                for (size_t j = 0; j < WIDTH; ++j) sum = pg::add_mod(*p.modulus, sum, lane[j]);
                c = (T)sum;
            }
        });
    }
}
template <class R, class T> void gemm(const MatrixProduct<T> &p, u64 *scratch) {
    if constexpr (R::MULTIPLIER52)
        if (!suits_sums52(*p.modulus)) return R::rest().template words<T>().gemm.multiply(p, scratch);
    with_sums<R, T>(*p.modulus, [&](const auto &sums) {
        if (p.columns == 1 && p.b.row == 1) gemm_column_with(sums, p, scratch);
        else gemm_with(sums, p, scratch);
    });
}

// ---- matrices whose entries are rows of residues: lanes are neighbouring points, that is, indices in a row ----

// Splits residues of x into digits: for each entry (i, t), `count` vectors of points, beginning with point `point`.
// The digits of vector v of the entry go to y[v][i][t].
template <class S, class T>
void gather(const S &sums, const MatrixView<const T> &x, size_t height, size_t width, size_t point, size_t count,
            u64 *y) {
    constexpr size_t ENTRY = S::DIGITS * S::WIDTH;
    for (size_t i = 0; i < height; ++i)
        for (size_t t = 0; t < width; ++t) {
            const T *from = x.data + (ptrdiff_t)i * x.row + (ptrdiff_t)t * x.column + point;
            u64 *to = y + (i * width + t) * ENTRY;
            for (size_t v = 0; v < count; ++v, from += S::WIDTH, to += height * width * ENTRY) {
                const typename S::Residue r = sums.split(S::R::load_words(from));
                for (size_t d = 0; d < S::DIGITS; ++d) S::Words::store(to + d * S::WIDTH, r.digit[d]);
            }
        }
}

// Multiplies one row by COLUMNS columns, at VECTORS vectors of points.
template <size_t VECTORS, size_t COLUMNS, class S, class T>
PG_INLINE void dot(const S &sums, const MatrixProduct<T> &p, const T *a, const T *b, T *c) {
    using R = typename S::R;
    typename S::Sum sum[COLUMNS][VECTORS];
    for (size_t j = 0; j < COLUMNS; ++j)
        for (size_t v = 0; v < VECTORS; ++v) sum[j][v] = S::zero();
    for (size_t t = 0; t < p.inner;) {
        const size_t end = p.inner - t < sums.period ? p.inner : t + sums.period;
        for (; t < end; ++t, a += p.a.column, b += p.b.row)
            for (size_t v = 0; v < VECTORS; ++v) {
                const typename S::Residue x = sums.split(R::load_words(a + v * S::WIDTH));
                for (size_t j = 0; j < COLUMNS; ++j) {
                    const T *const y = b + (ptrdiff_t)j * p.b.column + v * S::WIDTH;
                    __builtin_prefetch(y + PAGE / sizeof(T));
                    S::mul_add(sum[j][v], x, sums.split(R::load_words(y)));
                }
            }
        if (t < p.inner)
            for (size_t j = 0; j < COLUMNS; ++j)
                for (size_t v = 0; v < VECTORS; ++v) sums.fold(sum[j][v]);
    }
    for (size_t j = 0; j < COLUMNS; ++j)
        for (size_t v = 0; v < VECTORS; ++v)
            R::store_words(c + (ptrdiff_t)j * p.c.column + v * S::WIDTH, sums.residue(sum[j][v]));
}

template <class S, class T>
void gemm_points_with(const S &sums, const MatrixProduct<T> &p, size_t point, size_t end, u64 *scratch) {
    constexpr size_t WIDTH = S::WIDTH, ENTRY = S::DIGITS * WIDTH;
    if (!gemm_gathers(p.rows, p.columns)) {
        // If the number of columns is even, takes two columns at a time. Then each row is read half as often.
        constexpr size_t MOST = S::ROWS * S::VECTORS, HALF = MOST > 1 ? MOST / 2 : 1;
        const auto each = [&](size_t point_of_piece, auto vectors, auto columns) {
            constexpr size_t COLUMNS = decltype(columns)::value;
            for (size_t i = 0; i < p.rows; ++i)
                for (size_t j = 0; j < p.columns; j += COLUMNS) {
                    if (stopped(p.stop)) return;
                    dot<decltype(vectors)::value, COLUMNS>(
                        sums, p, p.a.data + (ptrdiff_t)i * p.a.row + point_of_piece,
                        p.b.data + (ptrdiff_t)j * p.b.column + point_of_piece,
                        p.c.data + (ptrdiff_t)i * p.c.row + (ptrdiff_t)j * p.c.column + point_of_piece);
                }
        };
        const size_t vectors = (end - point) / WIDTH;
        if (p.columns % 2 == 0)
            for_pieces<HALF>(vectors, [&](size_t vector, auto size) {
                each(point + vector * WIDTH, size, std::integral_constant<size_t, 2>());
            });
        else
            for_pieces<MOST>(vectors, [&](size_t vector, auto size) {
                each(point + vector * WIDTH, size, std::integral_constant<size_t, 1>());
            });
        return;
    }
    const size_t size_a = p.rows * p.inner * ENTRY, size_b = p.inner * p.columns * ENTRY;
    const size_t most = gemm_gathered_points(p.inner * (p.rows + p.columns) * S::DIGITS) / WIDTH;
    while (point < end && !stopped(p.stop)) {
        const size_t count = std::min(most, (end - point) / WIDTH);
        u64 *const packed_a = scratch, *const packed_b = scratch + count * size_a;
        gather(sums, p.a, p.rows, p.inner, point, count, packed_a);
        gather(sums, p.b, p.inner, p.columns, point, count, packed_b);
        for_pieces<S::ROWS>(p.rows, [&](size_t row, auto rows) {
            if (stopped(p.stop)) return;
            for_pieces<S::VECTORS>(p.columns, [&](size_t column, auto columns) {
                constexpr size_t ROWS = decltype(rows)::value, COLUMNS = decltype(columns)::value;
                const u64 *a = packed_a + row * p.inner * ENTRY, *b = packed_b + column * ENTRY;
                T *const c = p.c.data + (ptrdiff_t)row * p.c.row + (ptrdiff_t)column * p.c.column + point;
                for (size_t v = 0; v < count; ++v, a += size_a, b += size_b) {
                    const auto left = [&](size_t t, size_t i) __attribute__((always_inline)) {
                        return load_digits<S>(a + (i * p.inner + t) * ENTRY, WIDTH);
                    };
                    const auto right = [&](size_t t, size_t j) __attribute__((always_inline)) {
                        return load_digits<S>(b + (t * p.columns + j) * ENTRY, WIDTH);
                    };
                    typename S::V r[ROWS][COLUMNS];
                    tile(sums, p.inner, left, right, r);
                    for (size_t i = 0; i < ROWS; ++i)
                        for (size_t j = 0; j < COLUMNS; ++j)
                            S::R::store_words(c + (ptrdiff_t)i * p.c.row + (ptrdiff_t)j * p.c.column + v * WIDTH,
                                              r[i][j]);
                }
            });
        });
        point += count * WIDTH;
    }
}
template <class R, class T> void gemm_points(const MatrixProduct<T> &p, size_t points, u64 *scratch) {
    const auto with = [&](const auto &sums) {
        const size_t whole = points - points % std::decay_t<decltype(sums)>::WIDTH;
        gemm_points_with(sums, p, 0, whole, scratch);
        if (whole < points) gemm_points_with(WordSums(*p.modulus), p, whole, points, scratch);
    };
    if constexpr (R::MULTIPLIER52 && sizeof(T) == 8)
        if (p.modulus->last < 1ull << 50 && p.inner <= ShortSums52<R>::TERMS) return with(ShortSums52<R>(*p.modulus));
    if constexpr (R::MULTIPLIER52)
        if (!suits_sums52(*p.modulus)) return R::rest().template words<T>().gemm.multiply_points(p, points, scratch);
    with_sums<R, T>(*p.modulus, with);
}

template <class T, class R> constexpr GemmKernels<T> gemm_kernels() { return {gemm<R, T>, gemm_points<R, T>}; }

}  // namespace
}  // namespace pg
