// Words: how a residue is held and multiplied inside a transform. Each word states its bound on q and the ranges of
// its lazy values (docs/math.md, "Lazy ranges"). Values that enter or leave a whole transform are canonical.
//
//   Storage, Value       types of a residue in memory, and of a value in registers
//   Twiddle              an entry of the tables: w and what a product by w needs
//   load                 reads a residue or, between the passes of one transform, a lazy value
//   store_lazy           writes a lazy value
//   GROUPED              whether rows of other limbs lie between the rows of this word's limbs (see Grouped)
//   Bounds               upper bounds of values, in a unit that each word chooses. CANONICAL: of a residue; RELAXED: of
//                        a value that was partly reduced; PRODUCT: of a result of `multiply`; multiplied(bound): of the
//                        product of a twiddle and a value up to `bound`. Forward values stay within LIMIT, inverse
//                        values within LAZY_INVERSE, between passes too
//   BLOCKS               how many blocks of 256 threads with 16 values each a multiprocessor should hold; this limits
//                        the registers of a thread
//   PRODUCT_BLOCKS       the same for blocks of up to 256 threads that hold both operands of a product; 0: no limit
//   forward, inverse     Cooley-Tukey and Gentleman-Sande butterflies; reduce: whether the first value (forward) or
//                        the sum (inverse) must be relaxed
//   canonical            from a forward value to a residue in [0, q)
//   inverse_root         the last inverse butterfly, with the factor 1/points
//   finish               from a value of inverse_root to a residue in [0, q)
//   twiddle              from a residue to an entry of the tables
//   multiply             product of two forward values; the result is an inverse value within PRODUCT
//   add_products         sum of two inverse values within PRODUCT; reduced, so that it is within PRODUCT again
//   forward_root         the first forward butterfly, of canonical values; only in words where it is not `forward`
//                        (HAS_ROOT)
#pragma once
#include "ptx.cuh"

template <class T> PG_DEVICE T reduce_once(T x, T bound) { return min(x, x - bound); }
// reduce_once(x, bound), given -bound. It is one instruction if the compute capability is at least 9.0.
PG_DEVICE u32 reduce_once_by(u32 x, u32 minus_bound) { return __viaddmin_u32(x, minus_bound, x); }

// Bounds of words whose values are always canonical.
struct Canonical {
    static constexpr int CANONICAL = 0, PRODUCT = 0, RELAXED = 0, LIMIT = 0, LAZY_INVERSE = 0;
    static constexpr __device__ int multiplied(int /*bound*/) { return 0; }
};
// Forward values in [0, 4q), inverse values in [0, 2q). The unit of the bounds is q.
struct FourTimes {
    static constexpr int CANONICAL = 1, PRODUCT = 2, RELAXED = 2, LIMIT = 4, LAZY_INVERSE = 2;
    static constexpr __device__ int multiplied(int /*bound*/) { return 2; }
};
// Forward values in [0, 2q), inverse values in [0, q). The unit of the bounds is q.
struct Twice {
    static constexpr int CANONICAL = 1, PRODUCT = 1, RELAXED = 1, LIMIT = 2, LAZY_INVERSE = 1;
    static constexpr __device__ int multiplied(int /*bound*/) { return 1; }
};

// q < 2^30: forward values in [0, 4q), inverse values in [0, 2q). Source: Harvey 2014.
struct Lazy32 {
    using Storage = u32;
    using Value = u32;
    static constexpr bool GROUPED = false;
    using Bounds = FourTimes;
    static constexpr int BLOCKS = 4, PRODUCT_BLOCKS = 4;
    struct alignas(8) Twiddle {
        u32 w, shoup;
    };
    u32 q, minus_q, q2, minus_q2;
    u64 inverse64;      // floor(2^64 / q)
    u32 bits, barrett;  // barrett: floor(2^(bits + 31) / q)
    PG_DEVICE explicit Lazy32(const Modulus &m)
        : q(m.q32),
          minus_q(m.minus_q32),
          q2(m.q2_32),
          minus_q2(m.minus_q2_32),
          inverse64(m.inverse64),
          bits(m.bits),
          barrett((u32)(m.barrett64 >> 31)) {}

    static PG_DEVICE Twiddle twiddle(const Modulus &m, u64 w) { return {(u32)w, (u32)(shoup_quotient(m, w) >> 32)}; }
    static PG_DEVICE Value load(Storage x, bool /*lazy*/) { return x; }
    static PG_DEVICE Storage store_lazy(Value x) { return x; }
    PG_DEVICE Value mul(Value x, Twiddle t) const { return x * t.w + __umulhi(x, t.shoup) * minus_q; }  // [0, 2q)
    PG_DEVICE void forward(Value &x, Value &y, Twiddle t, bool reduce) const {
        u32 u = reduce ? reduce_once_by(x, minus_q2) : x, p = mul(y, t);
        x = u + p, y = u - p + q2;
    }
    PG_DEVICE Storage canonical(Value x) const {
        x = reduce_once_by(x, minus_q2);
        return reduce_once_by(x, minus_q);
    }
    PG_DEVICE void inverse(Value &x, Value &y, Twiddle t, bool reduce) const {
        u32 s = x + y, d = x - y + q2;
        x = reduce ? reduce_once_by(s, minus_q2) : s, y = mul(d, t);
    }
    PG_DEVICE void inverse_root(Value &x, Value &y, Twiddle scale, Twiddle t) const {
        u32 s = mul(x + y, scale), d = mul(x - y + q2, t);
        x = reduce_once_by(s, minus_q), y = reduce_once_by(d, minus_q);
    }
    PG_DEVICE Storage finish(Value x) const { return x; }
    // The result is in [0, 2q). z < 2 * q^2 and q < 2^bits, so z / 2^(bits - 1) < 4q < 2^32. The estimated quotient is
    // exact or up to 2 too small, so the remainder is below 3q before the last reduction.
    PG_DEVICE Value multiply(Value x, Value y) const {
        const u64 z = (u64)canonical(x) * reduce_once_by(y, minus_q2);
        const u32 quotient = __umulhi((u32)(z >> (bits - 1)), barrett);
        return reduce_once_by((u32)z + quotient * minus_q, minus_q2);
    }
};

// 2^30 <= q < 2^31: forward values in [0, 2q), inverse values in [0, q).
struct Tight32 : Lazy32 {
    using Bounds = Twice;
    using Lazy32::Lazy32;
    PG_DEVICE Value mul_once(Value x, Twiddle t) const {
        u32 p = mul(x, t);
        return reduce_once_by(p, minus_q);
    }
    PG_DEVICE void forward(Value &x, Value &y, Twiddle t, bool reduce) const {
        u32 u = reduce ? reduce_once_by(x, minus_q) : x, p = mul_once(y, t);
        x = u + p, y = u - p + q;
    }
    PG_DEVICE Storage canonical(Value x) const { return reduce_once_by(x, minus_q); }
    PG_DEVICE void inverse(Value &x, Value &y, Twiddle t, bool /*reduce*/) const {
        u32 s = x + y, d = x - y + q;
        x = reduce_once_by(s, minus_q), y = mul_once(d, t);
    }
    PG_DEVICE void inverse_root(Value &x, Value &y, Twiddle scale, Twiddle t) const {
        u32 s = x + y, d = x - y + q;
        x = mul_once(s, scale), y = mul_once(d, t);
    }
    PG_DEVICE Value multiply(Value x, Value y) const {
        u64 z = (u64)canonical(x) * canonical(y);
        u32 r = (u32)z - (u32)__umul64hi(z, inverse64) * q;
        return reduce_once_by(r, minus_q);
    }
};

// q < 2^62: forward values in [0, 4q), inverse values in [0, 2q), as in Lazy32.
struct Lazy64 {
    using Storage = u64;
    using Value = u64;
    static constexpr bool GROUPED = false;
    using Bounds = FourTimes;
    static constexpr int BLOCKS = 3, PRODUCT_BLOCKS = 2;
    struct alignas(16) Twiddle {
        u64 w, shoup;
    };
    u64 q, minus_q, q2;
    const Modulus &m;
    PG_DEVICE explicit Lazy64(const Modulus &modulus)
        : q(modulus.q), minus_q(modulus.minus_q), q2(modulus.q2), m(modulus) {}

    static PG_DEVICE Twiddle twiddle(const Modulus &m, u64 w) { return {w, shoup_quotient(m, w)}; }
    static PG_DEVICE Value load(Storage x, bool /*lazy*/) { return x; }
    static PG_DEVICE Storage store_lazy(Value x) { return x; }
    PG_DEVICE Value mul(Value x, Twiddle t) const {  // [0, 2q)
        return sum_of_products(x, t.w, __umul64hi(x, t.shoup), minus_q);
    }
    PG_DEVICE void forward(Value &x, Value &y, Twiddle t, bool reduce) const {
        u64 u = reduce ? reduce_once(x, q2) : x, p = mul(y, t);
        x = u + p, y = u - p + q2;
    }
    PG_DEVICE Storage canonical(Value x) const { return reduce_once(reduce_once(x, q2), q); }
    PG_DEVICE void inverse(Value &x, Value &y, Twiddle t, bool reduce) const {
        u64 s = x + y, d = x - y + q2;
        x = reduce ? reduce_once(s, q2) : s, y = mul(d, t);
    }
    PG_DEVICE void inverse_root(Value &x, Value &y, Twiddle scale, Twiddle t) const {
        u64 s = mul(x + y, scale), d = mul(x - y + q2, t);
        x = reduce_once(s, q), y = reduce_once(d, q);
    }
    PG_DEVICE Storage finish(Value x) const { return x; }
    PG_DEVICE Value multiply(Value x, Value y) const { return barrett_product(m, canonical(x), canonical(y)); }
    PG_DEVICE Value add_products(Value x, Value y) const { return reduce_once(x + y, q); }  // x and y are canonical
};

// 2^40 <= q < 2^60. Values below 16q fit 64 bits, so reductions are deferred over several stages. Products are in [0,
// 3q), because high_product_or_less may make the quotient 1 too small. The unit of the bounds is q.
struct Lazy60 : Lazy64 {
    struct Bounds {
        static constexpr int CANONICAL = 1, PRODUCT = 1, RELAXED = 2, LIMIT = 15, LAZY_INVERSE = 6;
        static constexpr __device__ int multiplied(int /*bound*/) { return 3; }
    };
    u64 q3, q6;
    u32 quotient;  // floor(2^64 / q), at least 16
    PG_DEVICE explicit Lazy60(const Modulus &modulus)
        : Lazy64(modulus), q3(modulus.q3), q6(modulus.q6), quotient((u32)modulus.inverse64) {}

    PG_DEVICE Value mul(Value x, Twiddle t) const {
        return sum_of_products(x, t.w, high_product_or_less(x, t.shoup), minus_q);
    }
    // Reduces x < 15q to a value below 2q. The quotient is estimated from the high half of x. Three errors make the
    // estimate less than x / q. 2^64 / q is rounded: an error below 15/16. The low half of x is left out: an error
    // below 2^32 / q. The estimate is rounded: an error below 1. Together the errors are below 2.
    PG_DEVICE Value relax(Value x) const { return x + __umulhi((u32)(x >> 32), quotient) * minus_q; }
    PG_DEVICE void forward(Value &x, Value &y, Twiddle t, bool reduce) const {
        u64 u = reduce ? relax(x) : x, p = mul(y, t);
        x = u + p, y = u - p + q3;
    }
    PG_DEVICE Storage canonical(Value x) const { return reduce_once(relax(x), q); }
    PG_DEVICE void inverse(Value &x, Value &y, Twiddle t, bool reduce) const {
        u64 s = x + y, d = x - y + q6;  // y < 6q, so d is not negative
        x = reduce ? relax(s) : s, y = mul(d, t);
    }
    PG_DEVICE void inverse_root(Value &x, Value &y, Twiddle scale, Twiddle t) const {
        u64 s = mul(x + y, scale), d = mul(x - y + q6, t);
        x = reduce_once(reduce_once(s, q2), q), y = reduce_once(reduce_once(d, q2), q);
    }
    PG_DEVICE Value multiply(Value x, Value y) const { return barrett_product(m, canonical(x), canonical(y)); }
};

// q < 2^50: centred integers in doubles, for cards whose FP64 runs at half the rate of FP32. An FMA splits a product x
// * w exactly into a sum h + l of two doubles. `mul` returns h + l - b * q for an integer b near h / q. The unit of the
// bounds is 2^44. RELAXED values are at most 2^49 in size. A product needs |x| <= 2^52 and |w| < q/2. Then |x * w / q|
// < 2^51 - 1, and adding ROUND leaves an integer.
struct Float64 {
    using Storage = u64;
    using Value = double;
    static constexpr bool GROUPED = false;
    static constexpr int BLOCKS = 3, PRODUCT_BLOCKS = 2;
    struct Bounds {
        static constexpr int CANONICAL = 64, PRODUCT = 36, RELAXED = 32, LIMIT = 256, LAZY_INVERSE = 128;
        // The absolute value of a product is at most q/2 + part + |l|. q/2 is below 32 units. `part` allows for the
        // rounding of 1 / q. The low part l of x * w is at most `part`, and at most 8 units, in absolute value.
        static constexpr __device__ int multiplied(int bound) {
            const int part = (bound + 15) / 16;  // a bound of |x * w| / 2^53
            return 32 + part + (part < 8 ? part : 8);
        }
    };
    struct alignas(8) Twiddle {
        double w;
    };
    static constexpr double ROUND = 6755399441055744.0;     // 1.5 * 2^52: adding it leaves an integer
    static constexpr double EXPONENT = 4503599627370496.0;  // 2^52
    double q, inverse_q;
    u64 integer_q;
    PG_DEVICE explicit Float64(const Modulus &m) : q(integer(m.q)), inverse_q(m.inverse), integer_q(m.q) {}

    static PG_DEVICE Twiddle twiddle(const Modulus &m, u64 w) { return {w > m.q / 2 ? -(double)(m.q - w) : (double)w}; }
    static PG_DEVICE double integer(u64 x) {  // needs x < 2^52; sets the bits of 2^52 + x and subtracts 2^52
        return __dadd_rn(__longlong_as_double((i64)(x | 0x4330000000000000ull)), -EXPONENT);
    }
    PG_DEVICE double nearest(double x) const { return __dadd_rn(__fma_rn(x, inverse_q, ROUND), -ROUND); }
    PG_DEVICE double reduced(double x) const { return __fma_rn(-nearest(x), q, x); }
    PG_DEVICE double mul(double x, Twiddle t) const {
        double h = __dmul_rn(x, t.w), l = __fma_rn(x, t.w, -h);
        return __dadd_rn(__fma_rn(-nearest(h), q, h), l);
    }
    static PG_DEVICE Value load(Storage x, bool lazy) { return lazy ? __longlong_as_double((i64)x) : integer(x); }
    static PG_DEVICE Storage store_lazy(Value x) { return (u64)__double_as_longlong(x); }
    PG_DEVICE Storage canonical(Value x) const {
        i64 v = __double_as_longlong(__dadd_rn(reduced(x), ROUND)) - 0x4338000000000000ll;
        return (u64)(v + ((v >> 63) & (i64)integer_q));
    }
    PG_DEVICE void forward(Value &x, Value &y, Twiddle t, bool reduce) const {
        double p = mul(y, t), u = reduce ? reduced(x) : x;
        x = __dadd_rn(u, p), y = __dadd_rn(u, -p);
    }
    PG_DEVICE void inverse(Value &x, Value &y, Twiddle t, bool reduce) const {
        double s = __dadd_rn(x, y), d = __dadd_rn(x, -y);
        x = reduce ? reduced(s) : s, y = mul(d, t);
    }
    PG_DEVICE void inverse_root(Value &x, Value &y, Twiddle scale, Twiddle t) const {
        double s = __dadd_rn(x, y), d = __dadd_rn(x, -y);
        x = mul(s, scale), y = mul(d, t);
    }
    PG_DEVICE Storage finish(Value x) const { return canonical(x); }
    PG_DEVICE Value multiply(Value x, Value y) const { return mul(reduced(x), {reduced(y)}); }
    PG_DEVICE Value add_products(Value x, Value y) const { return reduced(__dadd_rn(x, y)); }
};
static_assert(Float64::Bounds::PRODUCT == Float64::Bounds::multiplied(Float64::Bounds::RELAXED), "of relaxed values");

PG_DEVICE u32 high_product(u32 x, u32 y) { return __umulhi(x, y); }
PG_DEVICE u64 high_product(u64 x, u64 y) { return __umul64hi(x, y); }

// Any q below B, where B is 2^32 or 2^64. Values are canonical after every operation. A twiddle w is held as v = w * B
// mod q, together with the `quotient` for which v = quotient * q mod B. So x * v and (x * quotient mod B) * q have the
// same low half. The difference of their high halves is x * w mod q, or x * w mod q minus q. Source: Montgomery 1985.
template <class T> struct Strict {
    using Storage = T;
    using Value = T;
    static constexpr bool GROUPED = false;
    using Bounds = Canonical;
    static constexpr int BLOCKS = 2, PRODUCT_BLOCKS = 2;
    struct alignas(2 * sizeof(T)) Twiddle {
        T v, quotient;
    };
    T q;
    const Modulus &m;
    PG_DEVICE explicit Strict(const Modulus &modulus) : q((T)modulus.q), m(modulus) {}

    static PG_DEVICE Twiddle twiddle(const Modulus &m, u64 w) {
        const T quotient = 0 - (T)(shoup_quotient(m, w) >> (64 - 8 * sizeof(T)));  // minus floor(w * B / q), modulo B
        return {quotient * (T)m.q, quotient};
    }
    static PG_DEVICE Value load(Storage x, bool /*lazy*/) { return x; }
    static PG_DEVICE Storage store_lazy(Value x) { return x; }
    PG_DEVICE Value mul(Value x, Twiddle t) const {
        return sub(high_product(x, t.v), high_product((T)(x * t.quotient), q));
    }
    PG_DEVICE Value sub(Value x, Value y) const { return x < y ? x - y + q : x - y; }
    PG_DEVICE Value add(Value x, Value y) const { return sub(x, q - y); }  // if y = 0, sub returns x - q + q
    PG_DEVICE void forward(Value &x, Value &y, Twiddle t, bool /*reduce*/) const {
        T u = x, p = mul(y, t);
        x = add(u, p), y = sub(u, p);
    }
    PG_DEVICE Storage canonical(Value x) const { return x; }
    PG_DEVICE void inverse(Value &x, Value &y, Twiddle t, bool /*reduce*/) const {
        T s = add(x, y), d = sub(x, y);
        x = s, y = mul(d, t);
    }
    PG_DEVICE void inverse_root(Value &x, Value &y, Twiddle scale, Twiddle t) const {
        inverse(x, y, t, true);
        x = mul(x, scale);
    }
    PG_DEVICE Storage finish(Value x) const { return x; }
    PG_DEVICE Value multiply(Value x, Value y) const { return (T)mul_mod(m, x, y); }
    PG_DEVICE Value add_products(Value x, Value y) const { return add(x, y); }
};
using Strict32 = Strict<u32>;
using Strict64 = Strict<u64>;

// The word W for a ring in which only some of the limbs use W: rows of other limbs lie between the rows of these limbs.
// T: the type in which the ring stores residues. T may be wider than the storage of W.
template <class W, class T> struct Grouped : W {
    static constexpr bool GROUPED = true;
    using Storage = T;
    using typename W::Value;
    using W::W;
    static PG_DEVICE Value load(T x, bool lazy) { return W::load((typename W::Storage)x, lazy); }
    static PG_DEVICE T store_lazy(Value x) { return W::store_lazy(x); }
    PG_DEVICE T canonical(Value x) const { return W::canonical(x); }
    PG_DEVICE T finish(Value x) const { return W::finish(x); }
};

// The word W for the tree of X^n - X^(n/2) + 1 (docs/math.md, "The tree of factors"). At the root, the forward
// butterfly turns (x, y) into (x + w * y, x + (1 - w) * y). The last inverse butterfly first computes (s, t) by
// inverse_root of W, then returns (s - t, 2t).
template <class W> struct Trinomial : W {
    using typename W::Twiddle;
    using typename W::Value;
    using W::W;
    using Base = typename W::Bounds;
    static constexpr bool INTEGERS = (Value)1 / 2 == 0;
    static constexpr bool STRICT = Base::LIMIT == Base::CANONICAL;  // whether values are always canonical
    static constexpr bool FITS = 2 * Base::CANONICAL + Base::multiplied(Base::CANONICAL) <= Base::LIMIT;
    // The forward butterfly at the root can give results that are larger by `more` than those of other butterflies.
    // multiplied() adds `more` if `bound` is CANONICAL, because only the forward round at the root starts with this
    // bound. In Float64, some values of inverse stages also have the bound CANONICAL. multiplied() adds `more` for
    // them too, so sums are relaxed (reduced, but not fully) one stage earlier than needed.
    struct Bounds : Base {
        static constexpr int LIMIT = Base::LIMIT + STRICT, LAZY_INVERSE = Base::LAZY_INVERSE + STRICT;
        static constexpr __device__ int multiplied(int bound) {
            const int more = STRICT ? 1 : FITS ? Base::CANONICAL : 0;
            return Base::multiplied(bound) + (bound == Base::CANONICAL ? more : 0);
        }
    };
    PG_DEVICE void forward_root(Value &x, Value &y, Twiddle t) const {
        const Value upper = y;
        W::forward(x, y, t, false);
        if constexpr (STRICT) y = W::add(y, upper);
        else if constexpr (FITS) y += upper;
        else y = W::canonical(y) + upper;
    }
    PG_DEVICE void inverse_root(Value &x, Value &y, Twiddle scale, Twiddle t) const {
        W::inverse_root(x, y, scale, t);
        if constexpr (INTEGERS) x = difference(x, y), y = difference(y, W::q - y);  // all values are canonical
        else x = x - y, y = y + y;
    }

  private:
    PG_DEVICE Value difference(Value x, Value y) const { return x < y ? x - y + W::q : x - y; }
};
template <class W> constexpr bool HAS_ROOT = false;
template <class W> constexpr bool HAS_ROOT<Trinomial<W>> = true;
template <class W, class T> constexpr bool HAS_ROOT<Grouped<W, T>> = HAS_ROOT<W>;
