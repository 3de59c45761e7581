// The word of the Goldilocks prime, p = 2^64 - 2^32 + 1, and the rounds of its transforms (tile.cuh).
//
// 2^64 = 2^32 - 1 and 2^96 = -1 modulo p. So 2 has the order 192, and roots of unity of the orders 2, 4, ... 64 are
// powers of 2. A round has RADIX stages, and SIZE = 2^RADIX. It starts at a node with the polynomial X^(SIZE * t) - c,
// and works on SIZE values, t apart. A forward round first multiplies value j by rho^j, where rho^SIZE = c. Then it
// computes a cyclic transform of the SIZE values, which takes only sums and shifts. An inverse round undoes both steps.
// The tables hold the powers of rho (tables.cu).
//
// Between rounds and passes a value is any word of 64 bits. Inside a round a value is a Wide: a signed integer of 96
// bits that is not reduced. Bounds: docs/math.md, "Goldilocks".
#pragma once
#include "quotient.cuh"
#include "tile.cuh"

struct Wide {  // a + b * 2^32 + c * 2^64, where c is signed
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

// All twiddles of the tree are powers of one root of unity, `root`, of order N. K: the odd number for which root^(N /
// m) = 2^(192 * K / m), where m = min(64, N). QUOTIENT: the ring's polynomial.
template <int K, Quotient QUOTIENT> struct Goldilocks {
    using Storage = u64;
    using Value = u64;
    static constexpr bool GROUPED = false;
    static constexpr bool SHIFTS = QUOTIENT == NEGACYCLIC;  // whether rho at node 1 is a power of 2; if not, it is 1
// With four blocks per multiprocessor, threads spill up to 88 bytes on compute capability 9.0 if SHIFTS is true, and up
// to 244 bytes on other cards.
#if __CUDA_ARCH__ == 900
    static constexpr int BLOCKS = SHIFTS ? 3 : 4;
#else
    static constexpr int BLOCKS = 3;
#endif
    static constexpr int PRODUCT_BLOCKS = 0;
    // A round that starts with the bound CANONICAL is at node 1. All other rounds start with other bounds.
    struct Bounds {
        static constexpr int CANONICAL = 0, PRODUCT = 1, RELAXED = 1, LIMIT = 1, LAZY_INVERSE = 1;
        static constexpr __device__ int multiplied(int /*bound*/) { return 0; }
    };
    struct alignas(8) Twiddle {
        u64 w;
    };
    const u32 epsilon;  // 2^32 - 1, in a register: compilers would turn products by the constant into two additions
    PG_DEVICE explicit Goldilocks(const Modulus &m) : epsilon((u32)(m.q >> 32)) {}

    static PG_DEVICE Twiddle twiddle(const Modulus &, u64 w) { return {w}; }
    static PG_DEVICE Value load(Storage x, bool /*lazy*/) { return x; }
    static PG_DEVICE Storage store_lazy(Value x) { return x; }
    // A word is at least p if and only if its high half is all ones and its low half is not 0.
    PG_DEVICE Storage canonical(Value x) const {
        const u32 low = (u32)x, high = (u32)(x >> 32);
        return high == epsilon && low ? low - 1 : x;
    }
    PG_DEVICE Storage finish(Value x) const { return canonical(x); }

    // Returns x + y * (2^32 - 1), which is congruent to x + y * 2^64.
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
    // Returns a number congruent to x * y. Let x * y = low + middle * 2^64 + high * 2^96, where low has 64 bits, and
    // middle and high have 32 bits each. The result is low + middle * (2^32 - 1) - high. The result is above -2^32 and
    // at most 2^65 - 2^33.
    PG_DEVICE Wide product(u64 x, u64 y) const {
#ifdef PG_SIMULATOR
        const u64 high = __umul64hi(x, y);
        return add_high(sub(wide(x * y), {(u32)(high >> 32), 0, 0}), (u32)high);
#else
        Wide z;
        u32 middle, high;
        asm("{\n"
            ".reg .u32 x0, x1, y0, y1, c0, c1, carry;\n"
            ".reg .u64 low, cross, top;\n"
            "mov.b64 {x0, x1}, %4;\n"
            "mov.b64 {y0, y1}, %5;\n"
            "mul.wide.u32 low, x0, y0;\n"
            "mov.b64 {%0, %1}, low;\n"
            "mul.wide.u32 top, x1, y1;\n"
            "mov.b64 {%2, %3}, top;\n"
            "mul.wide.u32 cross, x0, y1;\n"
            "mov.b64 {c0, c1}, cross;\n"
            "mad.lo.cc.u32 c0, x1, y0, c0;\n"
            "madc.hi.cc.u32 c1, x1, y0, c1;\n"
            "addc.u32 carry, 0, 0;\n"
            "add.cc.u32 %1, %1, c0;\n"
            "addc.cc.u32 %2, %2, c1;\n"
            "addc.u32 %3, %3, carry;\n"
            "}"
            : "=&r"(z.a), "=&r"(z.b), "=&r"(middle), "=&r"(high)
            : "l"(x), "l"(y));
        z.c = 0;
        return add_high(sub(z, {high, 0, 0}), middle);
#endif
    }
    // Reads x as a signed 32-bit number, and returns -x in 64 bits. This is the signed product of x and epsilon,
    // because the 32 bits of epsilon, read as a signed number, are -1.
    PG_DEVICE u64 negative(u32 x) const {
#ifdef PG_SIMULATOR
        return (u64)((i64)(i32)x * (i32)epsilon);
#else
        u64 y;
        asm("mul.wide.s32 %0, %1, %2;" : "=l"(y) : "r"(x), "r"(epsilon));
        return y;
#endif
    }
    // Returns a word congruent to x, for 0 <= x < 2^95. The first step replaces x.c * 2^64 by x.c * (2^32 - 1). If the
    // addition carries, the low 64 bits of the sum are below 2^63. The second step adds 2^32 - 1 for the carry, and
    // does not carry again.
    PG_DEVICE u64 word(Wide x) const {
        const Wide z = add_high({x.a, x.b, 0}, x.c), w = add_high({z.a, z.b, 0}, z.c);
        return ((u64)w.b << 32) | w.a;
    }
    // Returns a number congruent to x, or to -x if `minus` is true, for |x| < 2^91. Adding p * 2^28 makes the result
    // positive, and below 2^93.
    static PG_DEVICE Wide lifted(Wide x, bool minus) { return sum({0x10000000u, 0xf0000000u, 0x0fffffffu}, x, minus); }

    // Returns a number congruent to x * 2^s, or to -x * 2^s if negates(s). s is known at compile time. If 96 divides s,
    // the result is x, for any x. Otherwise |x| must be below 2^69. Then |result| < 2^65 if s mod 96 < 92, and
    // |result| < 2^69 for other s.
    PG_DEVICE Wide shifted(Wide x, int s) const {
        s = (s % 96 + 96) % 96;
        if (s == 0) return x;
        const u32 r = s % 32, sign = (u32)((i32)x.c >> 31);
        const u32 y0 = x.a << r, y1 = r ? __funnelshift_l(x.a, x.b, r) : x.b;
        const u32 y2 = r ? __funnelshift_l(x.b, x.c, r) : x.c, y3 = r ? (u32)((i32)x.c >> (32 - r)) : sign;
        const bool fits = r < 26;  // then x * 2^r = y0 + y1 * 2^32 + y2 * 2^64, y2 is signed, and y3 is the sign of y2
        Wide z;                    // modulo p: y1 * 2^64 = y1 * 2^32 - y1, y2 * 2^96 = -y2
        if (s < 32) {
            z = sub({y0, y1, 0}, {fits ? sign : y3, sign, sign});  // if it fits, y3 is `sign`
        } else if (s < 64 && fits) {
            const u64 less = negative(y2);
            const Wide high = add({y0, 0, 0}, {(u32)(less >> 32), (u32)(less >> 32), 0});
            z = {(u32)less, high.a, high.b};
        } else if (s < 64) {
            z = sub({0, y0, 0}, {y2, y3, sign});
        } else if (fits) {
            const u64 less = 0 - (((u64)y2 << 32) | y1);
            z = {(u32)less, (u32)(less >> 32), (u32)((i64)less >> 63)};
        } else {
            z = sub({0, 0, 0}, {y1, y2, y3});
        }
        return add_high(z, s < 32 ? y2 : s < 64 ? y1 : y0);
    }
    static PG_DEVICE bool negates(int s) { return (s % 192 + 192) % 192 >= 96; }
    // Returns s with rho^j = 2^s, for a round at node 1. There rho is 1 or a root of unity of order 2 * SIZE.
    template <int SIZE> static PG_DEVICE int root_exponent(int j) {
        static_assert(SIZE <= 32 && K % 2 == 1, "a power of 2");
        return SHIFTS ? 96 / SIZE * K * j : 0;
    }

    // Returns a word congruent to x * y, for any words x and y. z is the product as a Wide. z.c is -1, 0 or 1, and z.c
    // * 2^64 becomes z.c * (2^32 - 1). Since -2^32 < z <= 2^65 - 2^33, the result is in [0, 2^64).
    PG_DEVICE Value multiply(Value x, Value y) const {
        const Wide z = product(x, y);
        return (((u64)(z.b + z.c) << 32) | z.a) + negative(z.c);
    }
    PG_DEVICE Value add_products(Value x, Value y) const { return word(add(wide(x), wide(y))); }

    // Cyclic transforms of SIZE values. forward_values goes from natural order to the order of the tree. inverse_values
    // goes back, without the factor 1/SIZE. A forward transform has three steps: transforms of 4 values that are
    // SIZE / 4 apart; a product of value j of quarter i by 2^exponent(i, j); transforms of the quarters. An inverse
    // transform undoes these steps, the last one first. If minus[j] is true, x[j] holds the negative of value j.
    // Value 0 is never shifted or negated. Results are never negated.
    template <int SIZE> PG_DEVICE void forward_values(Wide *x, const bool *minus) const {
        constexpr int QUARTER = SIZE / 4;
        if constexpr (SIZE == 2) {
            const Wide u = x[0];
            x[0] = sum(u, x[1], minus[1]), x[1] = sum(u, x[1], !minus[1]);
        } else if constexpr (SIZE > 2) {
#pragma unroll
            for (int j = 0; j < QUARTER; ++j) forward4<QUARTER>(x + j, minus + j);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                bool quarter_minus[QUARTER];
#pragma unroll
                for (int j = 0; j < QUARTER; ++j) {
                    const int s = exponent<SIZE>(i, j);
                    x[i * QUARTER + j] = shifted(x[i * QUARTER + j], s);
                    quarter_minus[j] = minus[j] != negates(s);
                }
                forward_values<QUARTER>(x + i * QUARTER, quarter_minus);
            }
        }
    }
    template <int SIZE> PG_DEVICE void inverse_values(Wide *x) const {
        constexpr int QUARTER = SIZE / 4;
        if constexpr (SIZE == 2) {
            const Wide u = x[0];
            x[0] = add(u, x[1]), x[1] = sub(u, x[1]);
        } else if constexpr (SIZE > 2) {
            bool minus[SIZE];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                inverse_values<QUARTER>(x + i * QUARTER);
#pragma unroll
                for (int j = 0; j < QUARTER; ++j) {
                    const int s = -exponent<SIZE>(i, j);
                    x[i * QUARTER + j] = shifted(x[i * QUARTER + j], s);
                    minus[i * QUARTER + j] = negates(s);
                }
            }
#pragma unroll
            for (int j = 0; j < QUARTER; ++j) inverse4<QUARTER>(x + j, minus + j);
        }
    }

  private:
    template <int SIZE> static PG_DEVICE int exponent(int i, int j) {
        constexpr int FREQUENCIES[] = {0, 2, 1, 3};  // in the order of the tree
        return 192 / SIZE * K * FREQUENCIES[i] * j;
    }
    static PG_DEVICE Wide sum(Wide x, Wide y, bool minus) { return minus ? sub(x, y) : add(x, y); }
    // Transforms 4 values, STEP apart. If minus[0] is true, x gets the negatives of the results. 2^(48 * K) is a root
    // of unity of order 4.
    template <int STEP> PG_DEVICE void forward4(Wide *x, const bool *minus) const {
        Wide &x0 = x[0], &x1 = x[STEP], &x2 = x[2 * STEP], &x3 = x[3 * STEP];
        const bool minus2 = minus[0] != minus[2 * STEP], minus3 = minus[STEP] != minus[3 * STEP];
        const bool minus_t = minus[0] != minus[STEP], minus_v = minus_t != negates(48 * K);
        const Wide s = sum(x0, x2, minus2), f = sum(x0, x2, !minus2);
        const Wide t = sum(x1, x3, minus3), v = shifted(sum(x1, x3, !minus3), 48 * K);
        x0 = sum(s, t, minus_t), x1 = sum(s, t, !minus_t), x2 = sum(f, v, minus_v), x3 = sum(f, v, !minus_v);
    }
    // Inverse of forward4. Call this only if minus[0] is false.
    template <int STEP> PG_DEVICE void inverse4(Wide *x, const bool *minus) const {
        Wide &x0 = x[0], &x1 = x[STEP], &x2 = x[2 * STEP], &x3 = x[3 * STEP];
        const bool minus1 = minus[STEP], minus3 = minus[2 * STEP] != minus[3 * STEP];
        const bool minus_t = minus[2 * STEP], minus_v = minus_t != negates(-48 * K);
        const Wide s = sum(x0, x1, minus1), f = sum(x0, x1, !minus1);
        const Wide t = sum(x2, x3, minus3), v = shifted(sum(x2, x3, !minus3), -48 * K);
        x0 = sum(s, t, minus_t), x1 = sum(f, v, minus_v), x2 = sum(s, t, !minus_t), x3 = sum(f, v, !minus_v);
    }
};

// The rounds of tile.cuh, for the word Goldilocks.
template <int K, Quotient QUOTIENT> struct Rounds<Goldilocks<K, QUOTIENT>> {
    using Word = Goldilocks<K, QUOTIENT>;
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
                bool minus[SIZE] = {};
                x[0] = Word::lifted(wide(at[0]), false);
#pragma unroll
                for (int j = 1; j < SIZE; ++j) {
                    const u64 value = at[j * S::WIDTH];
                    if constexpr (ROOT) {
                        const int s = Word::template root_exponent<SIZE>(j);
                        x[j] = word.shifted(wide(value), s), minus[j] = Word::negates(s);
                    } else {
                        x[j] = word.product(value, powers[j].w);
                    }
                }
                word.template forward_values<SIZE>(x, minus);
#pragma unroll
                for (int j = 0; j < SIZE; ++j) at[j * S::WIDTH] = word.word(x[j]);
            }
        }
    }

    // Inverse round ROUND + 1 does not multiply its results by the powers rho^j of that round. Instead, round ROUND
    // multiplies the values that it reads by these powers. Only round 0, the last round of a pass, also multiplies its
    // own results by powers. At node 1 these are powers of 2 for X^n + 1, and 1 for X^n - 1. The tables hold no power
    // for j = 0. In the last pass, the powers of round 1 contain the factor 1/points, and entry 0 of the table is this
    // factor: values with j = 0 are multiplied by entry 0. If the last pass has only one round, its results are
    // multiplied by entry 0.
    template <class S, int ROUND, bool ROOT, int BOUND>
    static PG_DEVICE void inverse(const Word &word, u64 *values, const Place<S> &place, const Twiddle *twiddles) {
        constexpr int RADIX = S::radix(ROUND), SIZE = 1 << RADIX;
        constexpr bool LAST = ROUND == 0 && ROOT, SHIFTS = LAST && Word::SHIFTS;
        const u64 scale = LAST ? twiddles[0].w : 1;
#pragma unroll
        for (int group = 0; group < S::VALUES; group += SIZE) {
            const PreviousPowers<S, ROUND> previous(place, twiddles, group, scale);
#pragma unroll
            for (int column = 0; column < S::WIDTH; ++column) {
                u64 *const at = values + group * S::WIDTH + column;
                Wide x[SIZE];
#pragma unroll
                for (int j = 0; j < SIZE; ++j) {
                    const u64 value = at[j * S::WIDTH];
                    if constexpr (ROUND + 1 < S::ROUNDS) x[j] = word.product(value, previous[j]);
                    else x[j] = wide(value);
                }
                if (!SHIFTS) x[0] = Word::lifted(x[0], false);
                word.template inverse_values<SIZE>(x);
#pragma unroll
                for (int j = 0; j < SIZE; ++j) {
                    if constexpr (SHIFTS) {
                        const int s = -Word::template root_exponent<SIZE>(j);
                        x[j] = Word::lifted(word.shifted(x[j], s), Word::negates(s));
                    }
                    u64 value = word.word(x[j]);
                    if constexpr (LAST && S::ROUNDS == 1) value = word.multiply(value, scale);
                    if constexpr (!LAST && ROUND == 0) value = j ? word.multiply(value, twiddles[j].w) : value;
                    at[j * S::WIDTH] = value;
                }
            }
        }
    }

  private:
    // The powers of rho for one group of values. Inverse round ROUND + 1 does not multiply by its powers. Round ROUND
    // multiplies by them later. In round ROUND + 1, value k of the group had the index j below node b + k. The whole
    // group has one j, and b is even. operator[](k) returns power j of node b + k, or factor_of_0 if j = 0. The powers
    // of nodes b and b + 1 are a pair. The pair of nodes b + 2 and b + 3 lies STEP pairs further on (tables.cu). The
    // tables hold no powers for j = 0; operator[] then reads another entry and ignores it.
    template <class S, int ROUND> struct PreviousPowers {
        using Pair = Neighbours<u64, 2>;
        static constexpr u32 STEP = (1 << S::radix(ROUND + 1)) - 1;
        const Pair *pairs;
        u64 factor_of_0;
        bool is_0;
        PG_DEVICE PreviousPowers(const Place<S> &place, const Twiddle *twiddles, int group, u64 scale) {
            if constexpr (ROUND + 1 < S::ROUNDS) {
                constexpr int START = S::start(ROUND + 1), LOG_H = S::log_stride(ROUND + 1);
                const u32 index = place.template group_index<ROUND>(group);
                const u32 b = index >> S::log_stride(ROUND), j = index >> LOG_H & ((1 << S::radix(ROUND + 1)) - 1);
                pairs = (const Pair *)(twiddles + (1 << START)) + (i32)((b >> 1) * STEP + j - 1);
                is_0 = j == 0, factor_of_0 = scale;
            }
        }
        PG_DEVICE u64 operator[](int k) const {
            const u64 power = read<READ_ONLY>(pairs + k / 2 * STEP).values[k % 2];
            return is_0 ? factor_of_0 : power;
        }
    };
};
template <int K, Quotient QUOTIENT, class T>
struct Rounds<Grouped<Goldilocks<K, QUOTIENT>, T>> : Rounds<Goldilocks<K, QUOTIENT>> {};
