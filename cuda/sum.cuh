// Exact sums of products modulo q. A thread computes one result, which is canonical. Each type of sum states a bound on
// q. Factors are below that bound; they need not be residues modulo q.
//
//   Storage     type of the factors and of the value
//   STEPS       number of products that may be added between two calls of settle(). Products of matrices unroll their
//               loops by STEPS
//   settle      reduces the sum to leave room for more products
//   pack        from a factor to the form that `add` takes
//   STARTS      whether a sum starts from a word that depends on the table's factors (_backends/cuda/rns.py)
//   add         adds one product
//   value       the residue of the sum
//   product     product modulo m of two residues, the second one a factor from a table; m is within the bound on q
//   number      a residue as a double
#pragma once
#include "word.cuh"

// Returns the residue of any word x. The estimated quotient is exact or 1 too small.
template <class T> PG_DEVICE T residue(const Modulus &m, T x) {
    const T q = (T)m.q, inverse = (T)(m.inverse64 >> (64 - 8 * sizeof(T)));  // inverse: floor(2^(bits of T) / q)
    return reduce_once(x - high_product(x, inverse) * q, q);
}

// What sums of integers have in common.
template <class T> struct SumOfIntegers {
    using Storage = T;
    static constexpr bool STARTS = false;
    static PG_DEVICE T pack(T x) { return x; }
    static PG_DEVICE u64 product(const Modulus &m, u64 x, u64 y) {
        return sizeof(T) == 4 || m.bits <= 62 ? barrett_product(m, x, y) : mul_mod(m, x, y);
    }
    static PG_DEVICE double number(T x) { return sizeof(T) == 4 ? Float64::integer(x) : (double)x; }
    PG_DEVICE void start(u64) {}
};

// q < 2^31: a sum in 64 bits. settle() subtracts q from the high word if the high word is at least q. A settled sum is
// below (2^32 - q) * 2^32. There is then room for two products below q^2, since 2q < 2^32.
struct Sum31 : SumOfIntegers<u32> {
    static constexpr int STEPS = 2;
    u64 sum = 0;
    // Shoup's product. The low word of y is the factor w, its high word the quotient floor(2^32 * w / q).
    static PG_DEVICE u32 product(const Modulus &m, u32 x, u64 y) {
        const u32 r = x * (u32)y + __umulhi(x, (u32)(y >> 32)) * m.minus_q32;
        return reduce_once_by(r, m.minus_q32);
    }
    PG_DEVICE void add(u32 x, u32 y) { sum += (u64)x * y; }
    // Subtracts q from the high word h if h >= q. If h < q, h - q wraps to at least 2^32 - q, so the smaller of h and h
    // - q is h.
    PG_DEVICE void settle(const Modulus &m) {
        const u32 high = (u32)(sum >> 32);
        sum = (u64)reduce_once_by(high, m.minus_q32) << 32 | (u32)sum;
    }
    // The estimated quotient is exact or 1 too small.
    PG_DEVICE u32 value(const Modulus &m) const {
        const u32 r = (u32)sum - (u32)__umul64hi(sum, m.inverse64) * m.q32;
        return reduce_once_by(r, m.minus_q32);
    }
};

// Sum31 for q < 2^30: 64 bits have room for a residue and 15 products.
struct Sum30 : Sum31 {
    static constexpr int STEPS = 15;
    PG_DEVICE void add(u32 x, u32 y) { add_product(sum, x, y); }
    PG_DEVICE void settle(const Modulus &m) { sum = value(m); }
};

// q <= 2^32: a sum in 96 bits, with room for 2^32 products.
struct Sum32 : SumOfIntegers<u32> {
    static constexpr int STEPS = 2;
    u64 low = 0;
    u32 high = 0;
    PG_DEVICE void add(u32 x, u32 y) { add_product(low, high, x, y); }
    PG_DEVICE void settle(const Modulus &) {}
    PG_DEVICE u32 value(const Modulus &m) const {
        const u64 x = low + (u64)high * (u32)m.power64;
        return (u32)residue(m, x < low ? x + m.power64 : x);
    }
};

// q <= 2^64: a sum in 160 bits, with room for 2^31 products. A factor x is split into halves, x = x0 + x1 * 2^32. The
// number (high, middle, low) is the sum of all x0 * y0 + x1 * y1 * 2^64. The number (mixed_high, mixed), of 96 bits, is
// the sum of all x0 * y1 + x1 * y0. It has the weight 2^32.
struct Sum64 : SumOfIntegers<u64> {
    static constexpr int STEPS = 1;
    u64 low = 0, middle = 0, mixed = 0;
    u32 high = 0, mixed_high = 0;
    PG_DEVICE void add(u64 x, u64 y) {
        const u32 x0 = (u32)x, x1 = (u32)(x >> 32), y0 = (u32)y, y1 = (u32)(y >> 32);
        add_products(low, middle, high, x0, y0, x1, y1);
        add_product(mixed, mixed_high, x0, y1);
        add_product(mixed, mixed_high, x1, y0);
    }
    PG_DEVICE void settle(const Modulus &) {}
    PG_DEVICE u64 value(const Modulus &m) const {
        const Words s = words();
        return reduce(m, reduce(m, reduce(m, s.high), s.middle), s.low);
    }

  protected:
    struct Words {
        u64 low, middle;
        u32 high;
    };
    // Returns the whole sum, (high, middle, low) + (mixed_high, mixed) * 2^32.
    PG_DEVICE Words words() const {
        const u64 l = low + (mixed << 32), partial = middle + ((u64)mixed_high << 32 | mixed >> 32);
        const u64 w = partial + (l < low);
        return {l, w, high + (partial < middle) + (w < partial)};
    }
};

// Sum64 for q <= 2^62, with a cheaper reduction.
struct Sum62 : Sum64 {
    PG_DEVICE u64 value(const Modulus &m) const {
        const Words s = words();
        return residue(m, fold(m, fold(m, s.high, s.middle), s.low));
    }

  protected:
    // Returns a word congruent to x * 2^64 + y. The product x * 2^64 is reduced to a number r below 3q. If r + y wraps,
    // the low word is below 3q too, so adding 2^64 mod q does not wrap again.
    static PG_DEVICE u64 fold(const Modulus &m, u64 x, u64 y) {
        const u64 quotient = high_product_or_less(x, m.power64_quotient);
        const u64 sum = y + sum_of_products(x, m.power64, quotient, m.minus_q);
        return sum < y ? sum + m.power64 : sum;
    }
};

// Factors are below 2^(2 * BITS), and moduli are at most 2^(2 * BITS). Each factor is split into halves of BITS bits.
// parts[i] is the sum of all products of halves that have the weight 2^(BITS * i), without carries. If BITS is 25, the
// parts have room for 2^13 products. If BITS is 30, they have room for 7 products between two calls of settle().
template <int BITS> struct SumHalves : Sum62 {
    static_assert(BITS == 25 || BITS == 30);
    static constexpr int STEPS = BITS == 25 ? 1 << 13 : 7;
    static constexpr u64 MASK = (1ull << BITS) - 1;
    u64 parts[4] = {};

    // Moves the high half of x to bits 32 and up. The low half stays. Factors from tables are in this form already.
    static PG_DEVICE u64 pack(u64 x) { return x >> BITS << 32 | (x & MASK); }
    PG_DEVICE void add(u64 x, u64 y) {
        const u32 x0 = (u32)x, x1 = (u32)(x >> 32), y0 = (u32)y, y1 = (u32)(y >> 32);
        add_product(parts[0], x0, y0);
        add_product(parts[1], x0, y1);
        add_product(parts[1], x1, y0);
        add_product(parts[2], x1, y1);
    }
    PG_DEVICE void settle(const Modulus &) {
        if (BITS == 25) return;
#pragma unroll
        for (int i = 0; i < 3; ++i) parts[i + 1] += parts[i] >> BITS, parts[i] &= MASK;
    }
    PG_DEVICE u64 value(const Modulus &m) const {
        const u64 first = parts[1] << BITS, second = parts[2] << 2 * BITS;
        const u64 sum = parts[0] + first, low = sum + second;
        u64 middle = (parts[1] >> (64 - BITS)) + (parts[2] >> (64 - 2 * BITS)) + (sum < first) + (low < second);
        if (BITS == 25) return residue(m, fold(m, middle, low));
        const u64 third = parts[3] << (3 * BITS - 64);
        middle += third;
        return residue(m, fold(m, fold(m, (parts[3] >> (128 - 3 * BITS)) + (middle < third), middle), low));
    }
};

// Sums of products in doubles, for cards where doubles are fast: words below 2^50 times residues modulo q, 16 <= q <
// 2^50. The residues come from a table and are centred. `pack` subtracts 2^49 from the words, so products are at most
// 2^98 in size. To make up for the subtraction, the sum starts from 2^49 times the sum of the residues, modulo q
// (docs/math.md, "Sums of products on the GPU").
struct SumFloat64 {
    using Storage = u64;
    static constexpr int STEPS = 7;
    static constexpr bool STARTS = true;
    static constexpr double ABOVE = 7605903601369376408980219232256.0;  // 1.5 * 2^102: sums are multiples of 2^50
    static constexpr double MIDDLE = 562949953421312.0;                 // 2^49
    double high = ABOVE, low = 0;

    static PG_DEVICE double number(u64 x) { return Float64::integer(x); }
    static PG_DEVICE u64 pack(u64 x) {
        return (u64)__double_as_longlong(
            __dadd_rn(__longlong_as_double((i64)(x | 0x4330000000000000ull)), -(Float64::EXPONENT + MIDDLE)));
    }
    static PG_DEVICE u64 product(const Modulus &m, u64 x, u64 y) {
        const Float64 word(m);
        return word.canonical(word.mul(number(x), {number(y)}));
    }
    PG_DEVICE void start(u64 word) { low = __longlong_as_double((i64)word); }
    PG_DEVICE void add(u64 x, u64 y) {
        const double u = __longlong_as_double((i64)x), v = __longlong_as_double((i64)y);
        const double sum = __fma_rn(u, v, high), part = __dadd_rn(sum, -high);
        low = __dadd_rn(low, __fma_rn(u, v, -part)), high = sum;
    }
    PG_DEVICE void settle(const Modulus &m) {
        const Float64 word(m);
        low = word.reduced(both(word)), high = ABOVE;
    }
    PG_DEVICE u64 value(const Modulus &m) const {
        const Float64 word(m);
        return word.canonical(both(word));
    }

  private:
    PG_DEVICE double both(const Float64 &word) const { return __dadd_rn(word.reduced(__dadd_rn(high, -ABOVE)), low); }
};

// The sum of products of forward values with residues, as an inverse value of the bound BOUND (forward and inverse
// values: word.cuh). 32-bit words add up products that are not reduced (KeySum32). Other words reduce each product,
// because unreduced sums would take too many registers.
template <class W> struct KeySum {
    static constexpr int BOUND = W::Bounds::PRODUCT, STEPS = 1 << 30;
    typename W::Value sum = 0;
    PG_DEVICE void add(const W &word, typename W::Value x, typename W::Storage y) {
        sum = word.add_products(sum, word.multiply(x, W::load(y, false)));
    }
    PG_DEVICE void settle(const W &, const Modulus &) {}
    PG_DEVICE typename W::Value value(const W &, const Modulus &) const { return sum; }
};
// A residue in [0, q) is not centred, so it may be twice as large as a twiddle. So the product of a residue and a
// relaxed value has the bound multiplied(2 * RELAXED).
template <> struct KeySum<Float64> {
    using Bounds = Float64::Bounds;
    static constexpr int BOUND = Bounds::PRODUCT, STEPS = 5;
    static_assert(Bounds::RELAXED + STEPS * Bounds::multiplied(2 * Bounds::RELAXED) <= Bounds::LIMIT, "sums fit");
    double sum = 0;
    PG_DEVICE void add(const Float64 &word, double x, u64 y) {
        sum = __dadd_rn(sum, word.mul(word.reduced(x), {Float64::load(y, false)}));
    }
    PG_DEVICE void settle(const Float64 &word, const Modulus &) { sum = word.reduced(sum); }
    PG_DEVICE double value(const Float64 &word, const Modulus &) const { return word.reduced(sum); }
};
template <class W, class SUM> struct KeySum32 {
    static constexpr int BOUND = W::Bounds::CANONICAL, STEPS = SUM::STEPS;
    SUM sum;
    PG_DEVICE void add(const W &word, u32 x, u32 y) { sum.add(word.canonical(x), y); }
    PG_DEVICE void settle(const W &, const Modulus &m) { sum.settle(m); }
    PG_DEVICE u32 value(const W &, const Modulus &m) const { return sum.value(m); }
};
template <> struct KeySum<Lazy32> : KeySum32<Lazy32, Sum30> {};
template <> struct KeySum<Tight32> : KeySum32<Tight32, Sum31> {};
template <> struct KeySum<Strict32> : KeySum32<Strict32, Sum32> {};
// Grouped<W> and Trinomial<W> add up products in the same way as W. Grouped changes only where residues lie and their
// type in memory. Trinomial changes only the butterfly at the root of the tree.
template <class W, class T> struct KeySum<Grouped<W, T>> : KeySum<W> {};
template <class W> struct KeySum<Trinomial<W>> : KeySum<W> {};
