// The transform and the pointwise loops, written once for every instruction set and word.
//
// Lanes is a vector of residues of one modulus (lanes_scalar.hpp, isa_avx2.cpp, isa_avx512.cpp):
//   T, V, WIDTH                          storage word, vector, residues in a vector
//   q, q2                                the modulus and its double in every lane
//   load store splat zero add sub        plain vector operations
//   add_mod sub_mod                      of canonical residues
//   reduce_once(x, bound)                x >= bound ? x - bound : x
//   broadcast(w, shoup)                  a Twiddle, the same in every lane
//   expand<COUNT>(w, shoup)              a Twiddle from COUNT neighbours, each WIDTH / COUNT times
//   mul_lazy(x, twiddle)                 x * w mod q in [0, 2q), for any x of the lane's range
//   mul(x, y)                            product of two residues, canonical
//   exchange<G>(u, v)                    granules of G lanes: odd ones of u swap with even ones of v
//   PERMUTES                             there is permute<G, BACK>(u, v): all exchanges from WIDTH / 2 down to G at
//                                        once, or BACK from G up
// and, where a multiplier reads the low 52 bits of a lane and values may have others set above them:
//   mul_low(x, twiddle)                  as mul_lazy, in the low 52 bits
//   relax(x)                             x mod q in [0, 2q), in the low 52 bits, for any x
//   masked(x)                            the low 52 bits alone
#pragma once
#include "kernels.hpp"

namespace pg {
namespace {

// All exchanges of granules from WIDTH / 2 down to G; BACK: from G up, which undoes them.
template <class L, size_t G, bool BACK> PG_INLINE void exchange_all(typename L::V &u, typename L::V &v) {
    if constexpr (L::PERMUTES) L::template permute<G, BACK>(u, v);
    else {
        if constexpr (BACK) L::template exchange<G>(u, v);
        if constexpr (2 * G < L::WIDTH) exchange_all<L, 2 * G, BACK>(u, v);
        if constexpr (!BACK) L::template exchange<G>(u, v);
    }
}

// Butterflies. An inverse one that is not the LAST of its pass, or whose sum is one of products, may leave its sum
// unreduced (docs/math.md, "Lazy ranges").

// With 4q in the lane's range.
// Forward values stay in [0, 4q), inverse values in [0, 2q). Source: Harvey 2014, algorithms 4 and 5.
template <class L> struct Lazy {
    using Lanes = L;
    using V = typename L::V;
    using Twiddle = typename L::Twiddle;
    const L lanes;
    explicit Lazy(const Modulus &m) : lanes(m) {}

    PG_INLINE void forward(V &x, V &y, const Twiddle &w) const {
        V u = lanes.reduce_once(x, lanes.q2), t = lanes.mul_lazy(y, w);
        x = lanes.add(u, t);
        y = lanes.add(lanes.sub(u, t), lanes.q2);
    }
    PG_INLINE V canonical(V x) const { return lanes.reduce_once(lanes.reduce_once(x, lanes.q2), lanes.q); }

    template <bool LAST = true> PG_INLINE void inverse(V &x, V &y, const Twiddle &w) const {
        V d = lanes.add(lanes.sub(x, y), lanes.q2);
        x = lanes.reduce_once(lanes.add(x, y), lanes.q2);
        y = lanes.mul_lazy(d, w);
    }
    // The root of the tree, with the factor 1/points, to canonical residues.
    PG_INLINE void inverse_root(V &x, V &y, const Twiddle &scale, const Twiddle &w) const {
        V s = lanes.add(x, y), d = lanes.add(lanes.sub(x, y), lanes.q2);
        x = lanes.reduce_once(lanes.mul_lazy(s, scale), lanes.q);
        y = lanes.reduce_once(lanes.mul_lazy(d, w), lanes.q);
    }
};

// Butterflies with ROOM q below 2^52, whose values lie in the low 52 bits of a lane (docs/math.md, "Lazy ranges").
//   ROOM = 4   forward values in [0, 4q), inverse values in [0, 2q)
//   ROOM = 64  forward values grow by 2q a stage and are not reduced; inverse values in [0, 8q), of which the sums of a
//              pass are reduced at its end
template <class L, unsigned ROOM> struct Low52 {
    using Lanes = L;
    using V = typename L::V;
    using Twiddle = typename L::Twiddle;
    static constexpr bool ROOMY = ROOM >= 64;
    const L lanes;
    const V above;  // a multiple of q that no value exceeds from which another is taken, in the inverse
    explicit Low52(const Modulus &m) : lanes(m), above(L::splat((ROOMY ? 16 : 2) * m.q)) {}

    PG_INLINE void forward(V &x, V &y, const Twiddle &w) const {
        V u = ROOMY ? x : lanes.relax(x), t = lanes.mul_low(y, w);
        x = lanes.add(u, t);
        y = lanes.sub(lanes.add(u, lanes.q2), t);
    }
    PG_INLINE V canonical(V x) const { return lanes.reduce_once(lanes.masked(lanes.relax(x)), lanes.q); }

    template <bool LAST = true> PG_INLINE void inverse(V &x, V &y, const Twiddle &w) const {
        V s = lanes.add(x, y), d = lanes.sub(lanes.add(x, above), y);
        x = ROOMY && !LAST ? s : lanes.relax(s);
        y = lanes.mul_low(d, w);
    }
    PG_INLINE void inverse_root(V &x, V &y, const Twiddle &scale, const Twiddle &w) const {
        V s = lanes.add(x, y), d = lanes.sub(lanes.add(x, above), y);
        x = lanes.reduce_once(lanes.masked(lanes.mul_low(s, scale)), lanes.q);
        y = lanes.reduce_once(lanes.masked(lanes.mul_low(d, w)), lanes.q);
    }
};

// Butterflies with only 2q in the lane's range: forward values in [0, 2q), inverse values in [0, q).
template <class L> struct Tight {
    using Lanes = L;
    using V = typename L::V;
    using Twiddle = typename L::Twiddle;
    const L lanes;
    explicit Tight(const Modulus &m) : lanes(m) {}

    PG_INLINE V mul(V x, const Twiddle &w) const { return lanes.reduce_once(lanes.mul_lazy(x, w), lanes.q); }
    PG_INLINE void forward(V &x, V &y, const Twiddle &w) const {
        V u = lanes.reduce_once(x, lanes.q), t = mul(y, w);
        x = lanes.add(u, t);
        y = lanes.add(lanes.sub(u, t), lanes.q);
    }
    PG_INLINE V canonical(V x) const { return lanes.reduce_once(x, lanes.q); }

    template <bool LAST = true> PG_INLINE void inverse(V &x, V &y, const Twiddle &w) const {
        V d = lanes.add(lanes.sub(x, y), lanes.q);
        x = lanes.reduce_once(lanes.add(x, y), lanes.q);
        y = mul(d, w);
    }
    PG_INLINE void inverse_root(V &x, V &y, const Twiddle &scale, const Twiddle &w) const {
        V s = lanes.add(x, y), d = lanes.add(lanes.sub(x, y), lanes.q);
        x = mul(s, scale);
        y = mul(d, w);
    }
};

// Canonical after every operation, for moduli that leave no room above q. One lane only.
template <class L> struct Strict {
    using Lanes = L;
    using V = typename L::V;
    using Twiddle = typename L::Twiddle;
    const L lanes;
    explicit Strict(const Modulus &m) : lanes(m) {}

    PG_INLINE void forward(V &x, V &y, const Twiddle &w) const {
        V u = x, t = lanes.mul(y, w.w);
        x = lanes.add_mod(u, t);
        y = lanes.sub_mod(u, t);
    }
    PG_INLINE V canonical(V x) const { return x; }
    template <bool LAST = true> PG_INLINE void inverse(V &x, V &y, const Twiddle &w) const {
        V d = lanes.sub_mod(x, y);
        x = lanes.add_mod(x, y);
        y = lanes.mul(d, w.w);
    }
    PG_INLINE void inverse_root(V &x, V &y, const Twiddle &scale, const Twiddle &w) const {
        inverse(x, y, w);
        x = lanes.mul(x, scale.w);
    }
};

// Unless ORDERED, leaves inside a pair of vectors stay in the order of the registers: products pointwise and the
// inverse, which starts from that order, do not mind, and half of the exchanges are spared.
template <class B, bool ORDERED = true> struct Ntt {
    using L = typename B::Lanes;
    using T = typename L::T;
    using V = typename B::V;
    using Twiddle = typename B::Twiddle;
    static constexpr size_t WIDTH = L::WIDTH;

    const Row<T> &row;
    const B b;
    const size_t tail;  // blocks of this length are finished in registers

    Ntt(const Row<T> &r, const B &butterfly) : row(r), b(butterfly), tail(r.base > 2 * WIDTH ? r.base : 2 * WIDTH) {}

    PG_INLINE Twiddle forward_twiddle(size_t node) const {
        return b.lanes.broadcast(row.forward[node], row.forward_shoup[node]);
    }
    PG_INLINE Twiddle inverse_twiddle(size_t node) const {
        return b.lanes.broadcast(row.inverse[node], row.inverse_shoup[node]);
    }

    // ---- forward: from the root of the tree to its leaves ----

    // One stage on one block: x holds the residue mod node's polynomial, y the two residues below it.
    void forward_radix2(const T *x, T *y, size_t length, size_t node) const {
        const size_t h = length / 2;
        const Twiddle w = forward_twiddle(node);
        for (size_t j = 0; j < h; j += WIDTH) {
            V x0 = L::load(x + j), x1 = L::load(x + j + h);
            b.forward(x0, x1, w);
            L::store(y + j, x0), L::store(y + j + h, x1);
        }
    }
    // Two stages on one block.
    void forward_radix4(const T *x, T *y, size_t length, size_t node) const {
        const size_t h = length / 4;
        const Twiddle w = forward_twiddle(node), w0 = forward_twiddle(2 * node), w1 = forward_twiddle(2 * node + 1);
        for (size_t j = 0; j < h; j += WIDTH) {
            V x0 = L::load(x + j), x1 = L::load(x + j + h), x2 = L::load(x + j + 2 * h), x3 = L::load(x + j + 3 * h);
            b.forward(x0, x2, w), b.forward(x1, x3, w);
            b.forward(x0, x1, w0), b.forward(x2, x3, w1);
            L::store(y + j, x0), L::store(y + j + h, x1), L::store(y + j + 2 * h, x2), L::store(y + j + 3 * h, x3);
        }
    }
    // The stages inside a pair of vectors: granules of G coefficients, G = WIDTH/2 ... base.
    template <size_t G> PG_INLINE void forward_granules(V &u, V &v, size_t node) const {
        if constexpr (G == 0) {
            if constexpr (ORDERED && WIDTH > 1) exchange_all<L, 1, true>(u, v);
        } else {
            if (G >= row.base) {
                constexpr size_t COUNT = WIDTH / G;
                L::template exchange<G>(u, v);
                b.forward(u, v,
                          b.lanes.template expand<COUNT>(row.forward + node * COUNT, row.forward_shoup + node * COUNT));
                forward_granules<G / 2>(u, v, node);
            } else if constexpr (ORDERED && 2 * G < WIDTH) {
                exchange_all<L, 2 * G, true>(u, v);
            }
        }
    }
    // The last stages of `count` blocks of `tail` coefficients, to canonical residues.
    void forward_tail(const T *x, T *y, size_t count, size_t node) const {
        const size_t pairs = count * tail / (2 * WIDTH);
        for (size_t i = 0; i < pairs; ++i, x += 2 * WIDTH, y += 2 * WIDTH) {
            V u = L::load(x), v = L::load(x + WIDTH);
            if (row.base <= WIDTH) {
                b.forward(u, v, forward_twiddle(node + i));
                forward_granules<WIDTH / 2>(u, v, node + i);
            }
            L::store(y, b.canonical(u)), L::store(y + WIDTH, b.canonical(v));
        }
    }
    void forward(const T *x, T *y, size_t length, size_t node) const {
        if (length > row.block) {
            if (stopped(row.stop)) return;
            forward_radix4(x, y, length, node);
            for (size_t i = 0; i < 4; ++i) forward(y + i * length / 4, y + i * length / 4, length / 4, 4 * node + i);
            return;
        }
        size_t count = 1;
        while (length > tail) {
            const size_t radix = length / 4 >= tail ? 4 : 2;
            for (size_t i = 0; i < count; ++i) {
                if (radix == 4) forward_radix4(x + i * length, y + i * length, length, node + i);
                else forward_radix2(x + i * length, y + i * length, length, node + i);
            }
            x = y;
            count *= radix, length /= radix, node *= radix;
        }
        forward_tail(x, y, count, node);
    }

    // ---- inverse: from the leaves to the root ----

    template <bool ROOT, bool LAST = true>
    PG_INLINE void inverse_last(V &x, V &y, const Twiddle &scale, const Twiddle &w) const {
        if constexpr (ROOT) b.inverse_root(x, y, scale, w);
        else b.template inverse<LAST>(x, y, w);
    }
    template <bool ROOT> void inverse_radix2(const T *x, T *y, size_t length, size_t node) const {
        const size_t h = length / 2;
        const Twiddle w = inverse_twiddle(node), scale = inverse_twiddle(0);
        for (size_t j = 0; j < h; j += WIDTH) {
            V x0 = L::load(x + j), x1 = L::load(x + j + h);
            inverse_last<ROOT>(x0, x1, scale, w);
            L::store(y + j, x0), L::store(y + j + h, x1);
        }
    }
    template <bool ROOT> void inverse_radix4(const T *x, T *y, size_t length, size_t node) const {
        const size_t h = length / 4;
        const Twiddle w = inverse_twiddle(node), w0 = inverse_twiddle(2 * node), w1 = inverse_twiddle(2 * node + 1);
        const Twiddle scale = inverse_twiddle(0);
        for (size_t j = 0; j < h; j += WIDTH) {
            V x0 = L::load(x + j), x1 = L::load(x + j + h), x2 = L::load(x + j + 2 * h), x3 = L::load(x + j + 3 * h);
            b.template inverse<false>(x0, x1, w0), b.template inverse<false>(x2, x3, w1);
            inverse_last<ROOT>(x0, x2, scale, w), inverse_last<ROOT, false>(x1, x3, scale, w);
            L::store(y + j, x0), L::store(y + j + h, x1), L::store(y + j + 2 * h, x2), L::store(y + j + 3 * h, x3);
        }
    }
    template <size_t G> PG_INLINE void inverse_granules(V &u, V &v, size_t node) const {
        if constexpr (G == 0) {
            if constexpr (ORDERED && WIDTH > 1) exchange_all<L, 1, false>(u, v);
        } else {
            if (G >= row.base) {
                constexpr size_t COUNT = WIDTH / G;
                inverse_granules<G / 2>(u, v, node);
                b.template inverse<false>(
                    u, v, b.lanes.template expand<COUNT>(row.inverse + node * COUNT, row.inverse_shoup + node * COUNT));
                L::template exchange<G>(u, v);
            } else if constexpr (ORDERED && 2 * G < WIDTH) {
                exchange_all<L, 2 * G, false>(u, v);
            }
        }
    }
    template <bool ROOT> void inverse_tail(const T *x, T *y, size_t count, size_t node) const {
        const size_t pairs = count * tail / (2 * WIDTH);
        const Twiddle scale = inverse_twiddle(0);
        for (size_t i = 0; i < pairs; ++i, x += 2 * WIDTH, y += 2 * WIDTH) {
            V u = L::load(x), v = L::load(x + WIDTH);
            if (row.base <= WIDTH) {
                inverse_granules<WIDTH / 2>(u, v, node + i);
                inverse_last<ROOT>(u, v, scale, inverse_twiddle(node + i));
            }
            L::store(y, u), L::store(y + WIDTH, v);
        }
    }
    template <bool ROOT> void inverse(const T *x, T *y, size_t length, size_t node) const {
        if (length > row.block) {
            if (stopped(row.stop)) return;
            for (size_t i = 0; i < 4; ++i)
                inverse<false>(x + i * length / 4, y + i * length / 4, length / 4, 4 * node + i);
            inverse_radix4<ROOT>(y, y, length, node);
            return;
        }
        size_t count = 1, part = length;
        while (part > tail) {  // down to the blocks that the forward transform ends with
            const size_t radix = part / 4 >= tail ? 4 : 2;
            count *= radix, part /= radix, node *= radix;
        }
        if (count == 1) return inverse_tail<ROOT>(x, y, count, node);
        inverse_tail<false>(x, y, count, node);
        while (count > 1) {  // and the same passes back
            const size_t radix = count >= 4 ? 4 : 2;
            count /= radix, part *= radix, node /= radix;
            for (size_t i = 0; i < count; ++i) {
                T *z = y + i * part;
                if (ROOT && count == 1)
                    radix == 4 ? inverse_radix4<ROOT>(z, z, part, node) : inverse_radix2<ROOT>(z, z, part, node);
                else
                    radix == 4 ? inverse_radix4<false>(z, z, part, node + i)
                               : inverse_radix2<false>(z, z, part, node + i);
            }
        }
    }
};

template <class B>
void forward_row(const typename B::Lanes::T *x, typename B::Lanes::T *y, const Row<typename B::Lanes::T> &row) {
    Ntt<B>(row, B(*row.modulus)).forward(x, y, row.degree, 1);
}
template <class B>
void inverse_row(const typename B::Lanes::T *x, typename B::Lanes::T *y, const Row<typename B::Lanes::T> &row) {
    Ntt<B>(row, B(*row.modulus)).template inverse<true>(x, y, row.degree, 1);
}

// ---- pointwise ----

template <Op OP, class L> PG_INLINE typename L::V apply(const L &l, typename L::V a, typename L::V b, typename L::V c) {
    if constexpr (OP == Op::add) return l.add_mod(a, b);
    else if constexpr (OP == Op::sub) return l.sub_mod(a, b);
    else if constexpr (OP == Op::neg) return l.sub_mod(l.zero(), a);
    else if constexpr (OP == Op::mul) return l.mul(a, b);
    else return l.add_mod(l.mul(a, b), c);
}
template <Op OP, class L>
PG_INLINE void pointwise_range(const L &l, const typename L::T *a, const typename L::T *b, bool scalar,
                               const typename L::T *c, typename L::T *y, size_t begin, size_t end) {
    using V = typename L::V;
    constexpr bool BINARY = OP != Op::neg, TERNARY = OP == Op::mul_add;
    const V fixed = BINARY && scalar ? l.splat(*b) : l.zero();
    for (size_t i = begin; i < end; i += L::WIDTH) {
        V vb = BINARY && !scalar ? L::load(b + i) : fixed;
        L::store(y + i, apply<OP>(l, L::load(a + i), vb, TERNARY ? L::load(c + i) : l.zero()));
    }
}
template <Op OP, class L, class Rest>
void pointwise_loop(const typename L::T *a, const typename L::T *b, bool scalar, const typename L::T *c,
                    typename L::T *y, size_t n, const Modulus &m) {
    const size_t whole = n - n % L::WIDTH;
    pointwise_range<OP>(L(m), a, b, scalar, c, y, 0, whole);
    if (whole < n) pointwise_range<OP>(Rest(m), a, b, scalar, c, y, whole, n);
}
// Rest: the one-lane version for what is left over at the end of a row.
template <class L, class Rest>
void pointwise_row(Op op, const typename L::T *a, const typename L::T *b, bool scalar, const typename L::T *c,
                   typename L::T *y, size_t n, const Modulus &m) {
    switch (op) {
        case Op::add:
            return pointwise_loop<Op::add, L, Rest>(a, b, scalar, c, y, n, m);
        case Op::sub:
            return pointwise_loop<Op::sub, L, Rest>(a, b, scalar, c, y, n, m);
        case Op::neg:
            return pointwise_loop<Op::neg, L, Rest>(a, b, scalar, c, y, n, m);
        case Op::mul:
            return pointwise_loop<Op::mul, L, Rest>(a, b, scalar, c, y, n, m);
        case Op::mul_add:
            return pointwise_loop<Op::mul_add, L, Rest>(a, b, scalar, c, y, n, m);
    }
}

template <class B, class Rest> constexpr RowKernels<typename B::Lanes::T> row_kernels() {
    return {forward_row<B>, inverse_row<B>, pointwise_row<typename B::Lanes, Rest>, 2 * B::Lanes::WIDTH};
}

}  // namespace
}  // namespace pg
