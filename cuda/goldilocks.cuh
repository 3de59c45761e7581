// The word of the Goldilocks prime, p = 2^64 - 2^32 + 1, and the rounds of its transforms (tile.cuh).
//
// 2^64 = 2^32 - 1 and 2^96 = -1 modulo p, so that 2 has the order 192, and every root of unity of an order up to 64 is
// a power of 2: inside a round nothing is multiplied. A round of RADIX stages below a node, which splits X^t - r, takes
// value j times rho^j, rho^(2^RADIX) = r: what is left is a cyclic transform of 2^RADIX values, by sums and shifts. The
// tables hold the powers of rho (tables.cu).
//
// Between rounds and passes a value is any word of 64 bits. Inside a round it is a Wide: a signed integer of 96 bits,
// which is not reduced. Bounds: docs/math.md, "Goldilocks".
#pragma once
#include "tile.cuh"

struct Wide {  // a + b 2^32 + c 2^64, c with its sign
    u32 a, b, c;
};
PG_DEVICE Wide wide(u64 x) { return {(u32)x, (u32)(x >> 32), 0}; }
PG_DEVICE Wide add(Wide x, Wide y) {
#ifdef PG_SIMULATOR
    const u64 a = (u64)x.a + y.a, b = (u64)x.b + y.b + (a >> 32);
    return {(u32)a, (u32)b, x.c + y.c + (u32)(b >> 32)};
#else
    Wide z;
    asm("add.cc.u32 %0, %3, %6;\n"
        "addc.cc.u32 %1, %4, %7;\n"
        "addc.u32 %2, %5, %8;"
        : "=r"(z.a), "=r"(z.b), "=r"(z.c)
        : "r"(x.a), "r"(x.b), "r"(x.c), "r"(y.a), "r"(y.b), "r"(y.c));
    return z;
#endif
}
PG_DEVICE Wide sub(Wide x, Wide y) {
#ifdef PG_SIMULATOR
    const u64 a = (u64)x.a - y.a, b = (u64)x.b - y.b - (a >> 63);
    return {(u32)a, (u32)b, x.c - y.c - (u32)(b >> 63)};
#else
    Wide z;
    asm("sub.cc.u32 %0, %3, %6;\n"
        "subc.cc.u32 %1, %4, %7;\n"
        "subc.u32 %2, %5, %8;"
        : "=r"(z.a), "=r"(z.b), "=r"(z.c)
        : "r"(x.a), "r"(x.b), "r"(x.c), "r"(y.a), "r"(y.b), "r"(y.c));
    return z;
#endif
}

// K, odd: the tree's root of unity of order 64 is 2^(3K). NEGACYCLIC: its node 1 splits X^n + 1, else X^n - 1.
template <int K, bool NEGACYCLIC> struct Goldilocks {
    using Storage = u64;
    using Value = u64;
    static constexpr bool GROUPED = false;
    static constexpr int BLOCKS = 3, PRODUCT_BLOCKS = 0;
    struct Bounds {  // CANONICAL: the first round is that of node 1
        static constexpr int CANONICAL = 0, PRODUCT = 1, RELAXED = 1, LIMIT = 1, LAZY_INVERSE = 1;
        static constexpr __device__ int multiplied(int /*bound*/) { return 0; }
    };
    struct alignas(8) Twiddle {
        u64 w;
    };
    const u32 epsilon;  // 2^32 - 1, which the compiler does not know: by it 2^64 is one product, not two sums
    PG_DEVICE explicit Goldilocks(const Modulus &m) : epsilon((u32)(m.q >> 32)) {}

    static PG_DEVICE Twiddle twiddle(const Modulus &, u64 w) { return {w}; }
    static PG_DEVICE Value load(Storage x, bool /*lazy*/) { return x; }
    static PG_DEVICE Storage store_lazy(Value x) { return x; }
    // Words from p on have a high half of ones, and a low half that is not 0.
    PG_DEVICE Storage canonical(Value x) const {
        const u32 low = (u32)x, high = (u32)(x >> 32);
        return high == epsilon && low ? low - 1 : x;
    }
    PG_DEVICE Storage finish(Value x) const { return canonical(x); }

    // x + y 2^64
    PG_DEVICE Wide add_high(Wide x, u32 y) const {
#ifdef PG_SIMULATOR
        return add(x, wide((u64)y * epsilon));
#else
        Wide z;
        asm("mad.lo.cc.u32 %0, %6, %7, %3;\n"
            "madc.hi.cc.u32 %1, %6, %7, %4;\n"
            "addc.u32 %2, %5, 0;"
            : "=&r"(z.a), "=&r"(z.b), "=&r"(z.c)
            : "r"(x.a), "r"(x.b), "r"(x.c), "r"(y), "r"(epsilon));
        return z;
#endif
    }
    // In (-2^32, 2^65): of the product of four words, low + middle 2^64 + high 2^96, it is low + middle (2^32 - 1) -
    // high.
    PG_DEVICE Wide product(u64 x, u64 y) const {
#ifdef PG_SIMULATOR
        const u64 high = __umul64hi(x, y);
        return add_high(sub(wide(x * y), {(u32)(high >> 32), 0, 0}), (u32)high);
#else
        Wide z;
        u32 middle, high;
        asm("{\n"
            ".reg .u32 x0, x1, y0, y1, a1, b0, b1, c1;\n"
            ".reg .u64 a, b, c, d;\n"
            "mov.b64 {x0, x1}, %4;\n"
            "mov.b64 {y0, y1}, %5;\n"
            "mul.wide.u32 a, x0, y0;\n"
            "mov.b64 {%0, a1}, a;\n"
            "cvt.u64.u32 b, a1;\n"
            "mad.wide.u32 b, x0, y1, b;\n"
            "mov.b64 {b0, b1}, b;\n"
            "cvt.u64.u32 c, b0;\n"
            "mad.wide.u32 c, x1, y0, c;\n"
            "mov.b64 {%1, c1}, c;\n"
            "cvt.u64.u32 d, b1;\n"
            "mad.wide.u32 d, x1, y1, d;\n"
            "mov.b64 {%2, %3}, d;\n"
            "add.cc.u32 %2, %2, c1;\n"
            "addc.u32 %3, %3, 0;\n"
            "}"
            : "=&r"(z.a), "=&r"(z.b), "=&r"(middle), "=&r"(high)
            : "l"(x), "l"(y));
        z.c = 0;
        return add_high(sub(z, {high, 0, 0}), middle);
#endif
    }
    // A word that is congruent to x, 0 <= x < 2^95.
    PG_DEVICE u64 word(Wide x) const {
        const Wide z = add_high({x.a, x.b, 0}, x.c);  // z.c is 0 or 1, and with 1 the rest is below 2^64 - 2^32
        return (((u64)z.b << 32) | z.a) + (0u - z.c);
    }
    // p, which makes products positive, and p 2^28, which makes what a round sums up positive.
    static PG_DEVICE Wide raised(Wide x) { return add(x, {1, 0xffffffffu, 0}); }
    static PG_DEVICE Wide lifted(Wide x) { return add(x, {0x10000000u, 0xf0000000u, 0x0fffffffu}); }

    // x 2^s, s modulo 192 and known to the compiler; |x| < 2^68, the result in (-2^65, 2^65).
    PG_DEVICE Wide shifted(Wide x, int s) const {
        s = (s % 192 + 192) % 192;
        const bool negative = s >= 96;
        s -= negative ? 96 : 0;
        if (s == 0) return negative ? sub({0, 0, 0}, x) : x;
        const u32 r = s % 32;
        u32 y0 = x.a, y1 = x.b, y2 = x.c, y3 = (u32)((i32)x.c >> 31);
        if (r) {
            y0 = x.a << r, y1 = __funnelshift_l(x.a, x.b, r), y2 = __funnelshift_l(x.b, x.c, r);
            y3 = r < 28 ? (u32)((i32)y2 >> 31) : (u32)((i32)x.c >> (32 - r));
        }
        const u32 sign = (u32)((i32)y3 >> 31);
        Wide z, less;
        if (s < 32) {  // y2 2^64 = y2 2^32 - y2, y3 2^96 = -y3
            z = add_high({y0, y1, 0}, y2), less = {y3, sign, sign};
        } else if (s < 64) {
            z = add_high({0, y0, 0}, y1), less = {y2, y3, sign};
        } else {
            z = wide((u64)y0 * epsilon), less = {y1, y2, y3};
        }
        return negative ? sub(less, z) : sub(z, less);
    }

    // Of any words.
    PG_DEVICE Value multiply(Value x, Value y) const { return word(raised(product(x, y))); }
    PG_DEVICE Value add_products(Value x, Value y) const { return word(add(wide(x), wide(y))); }

    // Cyclic transforms of 4 values, STEP apart, from their order to that of the tree, and back. 2^48 is a root of
    // unity of order 4, or its inverse.
    template <int STEP> PG_DEVICE void forward4(Wide *x) const {
        const Wide s = add(x[0], x[2 * STEP]), f = sub(x[0], x[2 * STEP]);
        const Wide t = add(x[STEP], x[3 * STEP]), v = shifted(sub(x[STEP], x[3 * STEP]), 48 * K);
        x[0] = add(s, t), x[STEP] = sub(s, t), x[2 * STEP] = add(f, v), x[3 * STEP] = sub(f, v);
    }
    template <int STEP> PG_DEVICE void inverse4(Wide *x) const {
        const Wide s = add(x[0], x[STEP]), f = sub(x[0], x[STEP]);
        const Wide t = add(x[2 * STEP], x[3 * STEP]), v = shifted(sub(x[2 * STEP], x[3 * STEP]), -48 * K);
        x[0] = add(s, t), x[STEP] = add(f, v), x[2 * STEP] = sub(s, t), x[3 * STEP] = sub(f, v);
    }
    // Of SIZE values: of each fourth of them, then of the fourths, each times powers of its own rho. Value 0 is never
    // shifted on its way to any result.
    template <int SIZE> PG_DEVICE void forward_values(Wide *x) const {
        if constexpr (SIZE == 2) {
            const Wide u = x[0];
            x[0] = add(u, x[1]), x[1] = sub(u, x[1]);
        } else if constexpr (SIZE > 2) {
            constexpr int QUARTER = SIZE / 4, TURNS[] = {0, 2, 1, 3};
#pragma unroll
            for (int j = 0; j < QUARTER; ++j) forward4<QUARTER>(x + j);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 1; j < QUARTER; ++j)
                    x[i * QUARTER + j] = shifted(x[i * QUARTER + j], 192 / SIZE * K * TURNS[i] * j);
                forward_values<QUARTER>(x + i * QUARTER);
            }
        }
    }
    // LIFTS: whether results are made positive.
    template <int SIZE, bool LIFTS = true> PG_DEVICE void inverse_values(Wide *x) const {
        if constexpr (SIZE == 2) {
            const Wide u = LIFTS ? lifted(x[0]) : x[0];
            x[0] = add(u, x[1]), x[1] = sub(u, x[1]);
        } else if constexpr (SIZE > 2) {
            constexpr int QUARTER = SIZE / 4, TURNS[] = {0, 2, 1, 3};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                inverse_values<QUARTER, false>(x + i * QUARTER);
#pragma unroll
                for (int j = 1; j < QUARTER; ++j)
                    x[i * QUARTER + j] = shifted(x[i * QUARTER + j], -192 / SIZE * K * TURNS[i] * j);
            }
#pragma unroll
            for (int j = 0; j < QUARTER; ++j) {
                if (LIFTS) x[j] = lifted(x[j]);
                inverse4<QUARTER>(x + j);
            }
        }
    }
};

// The rounds of tile.cuh.
template <int K, bool NEGACYCLIC> struct Rounds<Goldilocks<K, NEGACYCLIC>> {
    using Word = Goldilocks<K, NEGACYCLIC>;
    using Twiddle = typename Word::Twiddle;

    template <class S, int ROUND, int BOUND>
    static PG_DEVICE void forward(const Word &word, u64 *values, const Place<S> &place, const Twiddle *twiddles) {
        constexpr int RADIX = S::radix(ROUND), SIZE = 1 << RADIX;
        constexpr bool ROOT = ROUND == 0 && BOUND == Word::Bounds::CANONICAL;
#pragma unroll
        for (int group = 0; group < S::VALUES; group += SIZE) {
            const Twiddles<Twiddle, S::start(ROUND)> powers{twiddles, place.template block<ROUND>(group)};
#pragma unroll
            for (int column = 0; column < S::WIDTH; ++column) {
                u64 *const at = values + group * S::WIDTH + column;
                Wide x[SIZE];
                x[0] = Word::lifted(wide(at[0]));
#pragma unroll
                for (int j = 1; j < SIZE; ++j) {
                    const u64 value = at[j * S::WIDTH];
                    // Of node 1 rho is 1, or a root of unity of order 2^(RADIX + 1).
                    if constexpr (ROOT)
                        x[j] = NEGACYCLIC ? word.shifted(wide(value), (96 >> RADIX) * K * j) : wide(value);
                    else x[j] = word.product(value, powers[j].w);
                }
                word.template forward_values<SIZE>(x);
#pragma unroll
                for (int j = 0; j < SIZE; ++j) at[j * S::WIDTH] = word.word(x[j]);
            }
        }
    }

    // Values are multiplied by the powers of the round before where they enter this one; in the last round of a pass
    // by its own where they leave it, for node 1 with the factor 1/points, which entry 0 has alone.
    template <class S, int ROUND, bool ROOT, int BOUND>
    static PG_DEVICE void inverse(const Word &word, u64 *values, const Place<S> &place, const Twiddle *twiddles) {
        constexpr int RADIX = S::radix(ROUND), SIZE = 1 << RADIX;
#pragma unroll
        for (int group = 0; group < S::VALUES; group += SIZE) {
            const Twiddles<Twiddle, S::start(ROUND)> powers{twiddles, place.template block<ROUND>(group)};
            const Before<S, ROUND> before(place, twiddles, group);
#pragma unroll
            for (int column = 0; column < S::WIDTH; ++column) {
                u64 *const at = values + group * S::WIDTH + column;
                Wide x[SIZE];
#pragma unroll
                for (int j = 0; j < SIZE; ++j) {
                    const u64 value = at[j * S::WIDTH];
                    if constexpr (ROUND + 1 < S::ROUNDS) x[j] = word.product(value, before[j]);
                    else x[j] = wide(value);
                }
                word.template inverse_values<SIZE>(x);
#pragma unroll
                for (int j = 0; j < SIZE; ++j) {
                    u64 &value = at[j * S::WIDTH];
                    value = word.word(x[j]);
                    if constexpr (ROUND == 0)
                        if (j || ROOT) value = word.multiply(value, j ? powers[j].w : twiddles[0].w);
                }
            }
        }
    }

  private:
    // The powers by which round ROUND + 1 leaves the values of a group to be multiplied. They are of one exponent, and
    // of nodes that follow each other.
    template <class S, int ROUND> struct Before {
        const u64 *first;
        u32 step;
        bool multiplies;
        PG_DEVICE Before(const Place<S> &place, const Twiddle *twiddles, int group) {
            if constexpr (ROUND + 1 < S::ROUNDS) {
                constexpr int START = S::start(ROUND + 1), LOG_H = S::log_stride(ROUND + 1);
                const u32 index = place.template group_index<ROUND>(group);
                const u32 b = index >> S::log_stride(ROUND), j = index >> LOG_H & ((1 << S::radix(ROUND + 1)) - 1);
                // As Twiddles has them: the first powers side by side, others in units of two.
                step = j == 1 ? 1 : 2, multiplies = j;
                first = (const u64 *)twiddles + (j == 1 ? (1 << START) + b : 2 * ((j / 2 << START) + b) + j % 2);
            }
        }
        PG_DEVICE u64 operator[](int k) const {
            const u64 power = __ldg(first + k * step);
            return multiplies ? power : 1;
        }
    };
};
template <int K, bool NEGACYCLIC, class T>
struct Rounds<Grouped<Goldilocks<K, NEGACYCLIC>, T>> : Rounds<Goldilocks<K, NEGACYCLIC>> {};
