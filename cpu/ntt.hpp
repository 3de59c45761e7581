// The transform, one source for all instruction sets and words.
//
// Lanes is a vector of residues of one modulus (lanes_*.hpp, isa_*.cpp):
//   T, V, WIDTH                          storage word, vector, residues in a vector
//   q, q2                                the modulus and its double in every lane
//   load store splat zero add sub        plain vector operations
//   add_mod sub_mod                      of canonical residues
//   reduce_once(x, bound)                x >= bound ? x - bound : x
//   broadcast(w, shoup)                  a Twiddle, the same in every lane
//   expand<COUNT>(w, shoup)              a Twiddle from COUNT neighbours, each WIDTH / COUNT times, in the order in
//                                        which the lanes hold legs, that is, operands of butterflies
//   mul_lazy(x, twiddle)                 x * w mod q in [0, 2q), for any x of the lane's range
//   mul_rough(x, twiddle)                the same in [0, 4q), for any x of the lane; only for Lazy<L, 16>
//   relax(x)                             x mod q in [0, 2q), for x in [0, 4q); lanes for Lazy<L, 64>: for any x
//   masked(x)                            x without the bits that the multiplier does not read: some multipliers read
//                                        only the low 52 bits of a lane of 64
//   mul(x, y)                            product of two residues, canonical
//   SHOUP                                whether a Twiddle consists of w and shoup, so that it pays to make one for
//                                        many products
//   exchange<G, BACK>(u, v)              from the legs of one stage to those of the next. Odd granules (runs of G
//                                        lanes) of u swap with even granules of v; AVX-512 interleaves instead. BACK
//                                        undoes the exchange
//   PERMUTES                             whether there is permute<G, BACK>(u, v), which does all exchanges from
//                                        WIDTH / 2 down to G at once or, if BACK, from G up
#pragma once
#include "quotient.hpp"

namespace pg {
namespace {

// Does all exchanges of granules, from granules of WIDTH / 2 lanes down to granules of G lanes. If BACK, undoes these
// exchanges, from G up.
template <class L, size_t G, bool BACK> PG_INLINE void exchange_all(typename L::V &u, typename L::V &v) {
    if constexpr (L::PERMUTES) L::template permute<G, BACK>(u, v);
    else {
        if constexpr (BACK) L::template exchange<G, true>(u, v);
        if constexpr (2 * G < L::WIDTH) exchange_all<L, 2 * G, BACK>(u, v);
        if constexpr (!BACK) L::template exchange<G, false>(u, v);
    }
}

// Butterflies. Reductions are deferred (docs/math.md, "Lazy ranges"): a butterfly reduces the values that it adds only
// if they may have grown too far. This depends on the stages before and after. A forward butterfly multiplies one of
// its two inputs. The other input is called the leg. A pass is two stages that one loop computes (forward_radix4). The
// last stages, on blocks of `tail` coefficients, and the stage before them belong to no pass. Leg says where a leg is:
//   kept    in the first stage of a pass, unless the second stage multiplies the leg; in the stage before the last
//           stages, if WIDTH > 4
//   later   in the second stage of a pass; in one of the last stages, if the legs of the stage before it are `kept` or
//           `other`
//   other   in all other stages
enum class Leg { kept, other, later };
// Sum says where an inverse butterfly forms its sum:
//   early      in the first two stages, from canonical residues
//   third      in the third stage
//   inner      in any other stage but the last of a pass
//   last       in the last stage of a pass
//   products   in the last stage of a pass, from two products of this pass
enum class Sum { early, third, inner, last, products };
// Root says which butterflies a pass needs at the root of the tree: ordinary ones, those of a binomial, or those of the
// trinomial X^n - X^(n/2) + 1. Forward butterflies of the trinomial give (x + w * y, x + (1 - w) * y). Inverse
// butterflies give (s - t, 2t), with the products s and t of inverse_root (docs/math.md, "The tree of factors").
enum class Root { none, binomial, trinomial };

// PAIRS, COLUMNS: independent butterflies are computed side by side, on PAIRS pairs of vectors in the last stages, and
// on COLUMNS columns in a pass. Both numbers were measured to be the fastest.

// Butterflies for lanes whose range holds ROOM * q.
//   ROOM = 4   forward values in [0, 4q), inverse values in [0, 2q). Source: Harvey 2014, algorithms 4 and 5.
//   ROOM = 16  products in [0, 4q), which take fewer operations; forward values in [0, 16q), reduced every second
//              stage; inverse values in [0, 8q)
//   ROOM = 64  forward values grow by 2q a stage and are not reduced; inverse values in [0, 8q) between passes, as sums
//              are reduced at the end of a pass
template <class L, unsigned ROOM = 4> struct Lazy {
    using Lanes = L;
    using T = typename L::T;
    using V = typename L::V;
    using Twiddle = typename L::Twiddle;
    static constexpr bool NUMBERS = false, ROUGH = ROOM == 16;
    static constexpr size_t PAIRS = L::WIDTH > 1 ? 8 : 1, COLUMNS = L::WIDTH > 1 ? 2 : 1;
    const L lanes;
    const V bound;  // every product is below this bound
    const V above;  // a multiple of q, at least as large as any value that the inverse subtracts
    explicit Lazy(const Modulus &m)
        : lanes(m),
          bound(L::splat((T)((ROUGH ? 4 : 2) * m.q))),
          above(L::splat((T)((ROOM >= 64 ? 16 : ROOM / 2) * m.q))) {}

    PG_INLINE V product(V x, const Twiddle &w) const {
        if constexpr (ROUGH) return lanes.mul_rough(x, w);
        else return lanes.mul_lazy(x, w);
    }
    // Reduces x from [0, 2 * above) to [0, above) or, if ROOM is 64, any x to [0, 2q).
    PG_INLINE V relax(V x) const {
        if constexpr (ROOM < 64) return L::reduce_once(lanes.masked(x), above);
        else return lanes.relax(x);
    }
    PG_INLINE V canonical_product(V x, const Twiddle &w) const {
        V t = product(x, w);
        if constexpr (ROUGH) t = L::reduce_once(t, lanes.q2);
        return L::reduce_once(lanes.masked(t), lanes.q);
    }

    template <Leg LEG = Leg::kept> PG_INLINE void forward(V &x, V &y, const Twiddle &w) const {
        constexpr bool REDUCED = ROOM == 4 || (ROUGH && LEG != Leg::later);
        V u = REDUCED ? relax(x) : x, t = product(y, w);
        x = L::add(u, t);
        y = L::sub(L::add(u, bound), t);
    }
    PG_INLINE void forward_trinomial(V &x, V &y, const Twiddle &w) const {  // residues to [0, 4q) or, if ROUGH, [0, 6q)
        V t = product(y, w), s = L::add(x, y);
        x = L::add(x, t);
        y = L::sub(L::add(s, bound), t);
    }
    PG_INLINE V canonical(V x) const {
        x = relax(x);
        if constexpr (ROUGH) x = L::reduce_once(L::reduce_once(x, bound), lanes.q2);
        return L::reduce_once(ROOM >= 64 ? lanes.masked(x) : x, lanes.q);
    }

    template <Sum SUM = Sum::last> PG_INLINE void inverse(V &x, V &y, const Twiddle &w) const {
        constexpr bool REDUCED = ROOM == 4 || SUM == Sum::last || (ROUGH && (SUM == Sum::third || SUM == Sum::inner));
        V s = L::add(x, y), d = L::sub(L::add(x, above), y);
        x = REDUCED ? relax(s) : s;
        y = product(d, w);
    }
    // Computes the inverse butterfly at the root of the tree, with the factor 1/points. Results are canonical.
    PG_INLINE void inverse_root(V &x, V &y, const Twiddle &scale, const Twiddle &w) const {
        V s = L::add(x, y), d = L::sub(L::add(x, above), y);
        x = canonical_product(s, scale);
        y = canonical_product(d, w);
    }
};

// Integers in doubles, q < 2^50, which stay doubles between passes (docs/math.md, "Lazy ranges", on Float64). Lanes
// must have
//   number(x) residue(x)          from a canonical residue to a double, and back from (-q, q)
//   sum(x, y) difference(x, y)
//   nearest(x)                    x mod q in [-q/2, q/2], give or take 1
//   mul_nearest(x, twiddle)       x * w mod q in (-q, q), for |x| <= 4q
template <class L> struct Float64 {
    using Lanes = L;
    using V = typename L::V;
    using Twiddle = typename L::Twiddle;
    static constexpr bool NUMBERS = true;
    static constexpr size_t PAIRS = 8, COLUMNS = 1;
    const L lanes;
    explicit Float64(const Modulus &m) : lanes(m) {}

    PG_INLINE V enter(V x) const { return lanes.number(x); }
    template <Leg LEG = Leg::kept> PG_INLINE void forward(V &x, V &y, const Twiddle &w) const {
        V u = LEG == Leg::kept ? lanes.nearest(x) : x, t = lanes.mul_nearest(y, w);
        x = lanes.sum(u, t), y = lanes.difference(u, t);
    }
    PG_INLINE void forward_trinomial(V &x, V &y, const Twiddle &w) const {
        V t = lanes.mul_nearest(y, w), u = lanes.nearest(x), s = lanes.nearest(lanes.sum(x, y));
        x = lanes.sum(u, t), y = lanes.difference(s, t);
    }
    PG_INLINE V canonical(V x) const { return lanes.residue(lanes.nearest(x)); }
    template <Sum SUM = Sum::last> PG_INLINE void inverse(V &x, V &y, const Twiddle &w) const {
        V s = lanes.sum(x, y), d = lanes.difference(x, y);
        x = SUM == Sum::early || SUM == Sum::inner ? s : lanes.nearest(s);
        y = lanes.mul_nearest(d, w);
    }
    PG_INLINE void inverse_root(V &x, V &y, const Twiddle &scale, const Twiddle &w) const {
        V s = lanes.sum(x, y), d = lanes.difference(x, y);
        x = lanes.residue(lanes.mul_nearest(s, scale));
        y = lanes.residue(lanes.mul_nearest(d, w));
    }
    PG_INLINE void inverse_trinomial(V &x, V &y, const Twiddle &scale, const Twiddle &w) const {
        V s = lanes.mul_nearest(lanes.sum(x, y), scale), t = lanes.mul_nearest(lanes.difference(x, y), w);
        x = canonical(lanes.difference(s, t));
        y = canonical(lanes.sum(t, t));
    }
};

// Butterflies for lanes that hold only numbers below 2q. Forward values are in [0, 2q), inverse values in [0, q).
template <class L> struct Tight {
    using Lanes = L;
    using V = typename L::V;
    using Twiddle = typename L::Twiddle;
    static constexpr bool NUMBERS = false;
    static constexpr size_t PAIRS = L::WIDTH > 1 ? 8 : 1, COLUMNS = L::WIDTH > 1 ? 2 : 1;
    const L lanes;
    explicit Tight(const Modulus &m) : lanes(m) {}

    PG_INLINE V mul(V x, const Twiddle &w) const { return lanes.reduce_once(lanes.mul_lazy(x, w), lanes.q); }
    template <Leg = Leg::kept> PG_INLINE void forward(V &x, V &y, const Twiddle &w) const {
        V u = lanes.reduce_once(x, lanes.q), t = mul(y, w);
        x = lanes.add(u, t);
        y = lanes.add(lanes.sub(u, t), lanes.q);
    }
    PG_INLINE void forward_trinomial(V &x, V &y, const Twiddle &w) const {
        V s = lanes.reduce_once(lanes.add(x, y), lanes.q), t = mul(y, w);
        x = lanes.add(x, t);
        y = lanes.add(lanes.sub(s, t), lanes.q);
    }
    PG_INLINE V canonical(V x) const { return lanes.reduce_once(x, lanes.q); }

    template <Sum = Sum::last> PG_INLINE void inverse(V &x, V &y, const Twiddle &w) const {
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

// Butterflies for moduli that may fill a whole lane: values are canonical after every operation.
template <class L> struct Strict {
    using Lanes = L;
    using V = typename L::V;
    using Twiddle = typename L::Twiddle;
    static constexpr bool NUMBERS = false;
    static constexpr size_t PAIRS = L::WIDTH > 1 ? 8 : 1, COLUMNS = L::WIDTH > 1 ? 2 : 1;
    const L lanes;
    explicit Strict(const Modulus &m) : lanes(m) {}

    template <Leg = Leg::kept> PG_INLINE void forward(V &x, V &y, const Twiddle &w) const {
        V u = x, t = lanes.mul(y, w);
        x = lanes.add_mod(u, t);
        y = lanes.sub_mod(u, t);
    }
    PG_INLINE void forward_trinomial(V &x, V &y, const Twiddle &w) const {
        V s = lanes.add_mod(x, y), t = lanes.mul(y, w);
        x = lanes.add_mod(x, t);
        y = lanes.sub_mod(s, t);
    }
    PG_INLINE V canonical(V x) const { return x; }
    template <Sum = Sum::last> PG_INLINE void inverse(V &x, V &y, const Twiddle &w) const {
        V d = lanes.sub_mod(x, y);
        x = lanes.add_mod(x, y);
        y = lanes.mul(d, w);
    }
    PG_INLINE void inverse_root(V &x, V &y, const Twiddle &scale, const Twiddle &w) const {
        inverse(x, y, w);
        x = lanes.mul(x, scale);
    }
};

// If ORDERED is false, the leaves inside a pair of vectors stay in the order of the registers, which saves half of the
// exchanges. Pointwise products do not depend on the order. An inverse with ORDERED = false takes the same order.
template <class B, bool ORDERED = true> struct Ntt {
    using L = typename B::Lanes;
    using T = typename L::T;
    using V = typename B::V;
    using Twiddle = typename B::Twiddle;
    static constexpr size_t WIDTH = L::WIDTH, PAIRS = B::PAIRS, COLUMNS = B::COLUMNS;
    template <bool WIDE> static constexpr size_t TOGETHER = WIDE && PAIRS < 2 ? 2 : PAIRS;

    const Row<T> row;  // a copy, which no store through a pointer can change
    const B b;
    const size_t tail;  // blocks of this length are finished in registers

    Ntt(const Row<T> &r, const B &butterfly)
        : row(r), b(butterfly), tail(r.leaf_size > 2 * WIDTH ? r.leaf_size : 2 * WIDTH) {}

    PG_INLINE Twiddle twiddle(const Twiddles<T> &of, size_t node) const {
        if constexpr (B::NUMBERS) return b.lanes.broadcast(of.number[node], of.ratio[node]);
        else return b.lanes.broadcast(of.w[node], of.shoup[node]);
    }
    PG_INLINE Twiddle forward_twiddle(size_t node) const { return twiddle(row.forward, node); }
    PG_INLINE Twiddle inverse_twiddle(size_t node) const { return twiddle(row.inverse, node); }
    // Returns the twiddles of COUNT neighbouring nodes, beginning with `node`.
    template <size_t COUNT> PG_INLINE Twiddle twiddles(const Twiddles<T> &of, size_t node) const {
        if constexpr (B::NUMBERS) return b.lanes.template expand<COUNT>(of.number + node, of.ratio + node);
        else return b.lanes.template expand<COUNT>(of.w + node, of.shoup + node);
    }

    // ---- forward: from the root of the tree to its leaves ----

    // If NUMBERS, converts the caller's residues to doubles.
    template <bool NUMBERS> PG_INLINE V load(const T *x) const {
        if constexpr (NUMBERS) return b.enter(L::load(x));
        else return L::load(x);
    }
    template <Root ROOT> static constexpr bool ENTERS = B::NUMBERS && ROOT != Root::none;
    template <Root ROOT, Leg LEG = Leg::kept> PG_INLINE void forward_first(V &x, V &y, const Twiddle &w) const {
        if constexpr (ROOT == Root::trinomial) b.forward_trinomial(x, y, w);
        else b.template forward<LEG>(x, y, w);
    }
    // Computes one stage on one block. x is a residue modulo the node's polynomial; y gets the residues modulo its two
    // factors.
    template <Root ROOT> void forward_radix2(const T *x, T *y, size_t length, size_t node) const {
        const size_t h = length / 2;
        const Twiddle w = forward_twiddle(node);
        for (size_t j = 0; j < h; j += WIDTH) {
            V x0 = load<ENTERS<ROOT>>(x + j), x1 = load<ENTERS<ROOT>>(x + j + h);
            forward_first<ROOT>(x0, x1, w);
            L::store(y + j, x0), L::store(y + j + h, x1);
        }
    }
    // Computes two stages on one block.
    template <Root ROOT> void forward_radix4(const T *x, T *y, size_t length, size_t node) const {
        const size_t h = length / 4;
        const Twiddle w = forward_twiddle(node), w0 = forward_twiddle(2 * node), w1 = forward_twiddle(2 * node + 1);
        for (size_t j = 0; j < h; j += COLUMNS * WIDTH) {
            V v[4][COLUMNS];
            for (size_t i = 0; i < 4; ++i)
                for (size_t k = 0; k < COLUMNS; ++k) v[i][k] = load<ENTERS<ROOT>>(x + j + i * h + k * WIDTH);
            for (size_t k = 0; k < COLUMNS; ++k) forward_first<ROOT>(v[0][k], v[2][k], w);
            for (size_t k = 0; k < COLUMNS; ++k) forward_first<ROOT, Leg::other>(v[1][k], v[3][k], w);
            for (size_t k = 0; k < COLUMNS; ++k) b.template forward<Leg::later>(v[0][k], v[1][k], w0);
            for (size_t k = 0; k < COLUMNS; ++k) b.template forward<Leg::later>(v[2][k], v[3][k], w1);
            for (size_t i = 0; i < 4; ++i)
                for (size_t k = 0; k < COLUMNS; ++k) L::store(y + j + i * h + k * WIDTH, v[i][k]);
        }
    }
    // Computes the stages inside K pairs of vectors, on granules of G, G / 2, ... leaf_size coefficients. COMPLETE:
    // whether the leaf size is 1. ODD: whether the first of these stages has an odd number, if the stages of
    // forward_pairs are numbered from 1.
    template <size_t G, bool COMPLETE, bool ODD, size_t K>
    PG_INLINE void forward_granules(V (&u)[K], V (&v)[K], size_t node) const {
        if constexpr (G == 0) {
            if constexpr (ORDERED && WIDTH > 1)
                for (size_t k = 0; k < K; ++k) exchange_all<L, 1, true>(u[k], v[k]);
        } else {
            if (COMPLETE || G >= row.leaf_size) {
                constexpr size_t COUNT = WIDTH / G;
                constexpr Leg LEG = ODD ? Leg::other : Leg::later;
                for (size_t k = 0; k < K; ++k) {
                    L::template exchange<G, false>(u[k], v[k]);
                    b.template forward<LEG>(u[k], v[k], twiddles<COUNT>(row.forward, (node + k) * COUNT));
                }
                forward_granules<G / 2, COMPLETE, !ODD>(u, v, node);
            } else if constexpr (ORDERED && 2 * G < WIDTH) {
                for (size_t k = 0; k < K; ++k) exchange_all<L, 2 * G, true>(u[k], v[k]);
            }
        }
    }
    // Computes the last stages, on blocks of `tail` coefficients. Results are canonical. If WIDE, also computes the
    // stage before them.
    template <Root ROOT, bool WIDE, bool COMPLETE, size_t K>
    void forward_pairs(const T *x, T *y, size_t pairs, size_t node) const {
        for (size_t i = 0; i < pairs; i += K, x += 2 * K * WIDTH, y += 2 * K * WIDTH) {
            V u[K], v[K];
            for (size_t k = 0; k < K; ++k)
                u[k] = load<ENTERS<ROOT>>(x + 2 * k * WIDTH), v[k] = load<ENTERS<ROOT>>(x + (2 * k + 1) * WIDTH);
            if constexpr (WIDE)
                for (size_t k = 0; k < K; k += 2) {
                    // If WIDTH > 4, more than three stages can follow this one.
                    constexpr Leg LEG = WIDTH > 4 ? Leg::kept : Leg::other;
                    const Twiddle w = forward_twiddle((node + i + k) / 2);
                    forward_first<ROOT, LEG>(u[k], u[k + 1], w), forward_first<ROOT, LEG>(v[k], v[k + 1], w);
                }
            if (COMPLETE || row.leaf_size <= WIDTH) {
                constexpr Leg LEG = WIDE ? Leg::later : Leg::other;
                for (size_t k = 0; k < K; ++k)
                    forward_first<WIDE ? Root::none : ROOT, LEG>(u[k], v[k], forward_twiddle(node + i + k));
                forward_granules<WIDTH / 2, COMPLETE, WIDE>(u, v, node + i);
            }
            for (size_t k = 0; k < K; ++k)
                L::store(y + 2 * k * WIDTH, b.canonical(u[k])), L::store(y + (2 * k + 1) * WIDTH, b.canonical(v[k]));
        }
    }
    template <Root ROOT, bool WIDE> void forward_pairs(const T *x, T *y, size_t pairs, size_t node) const {
        if (pairs % PAIRS) forward_pairs<ROOT, WIDE, false, WIDE ? 2 : 1>(x, y, pairs, node);
        else if (row.leaf_size > 1) forward_pairs<ROOT, WIDE, false, TOGETHER<WIDE>>(x, y, pairs, node);
        else forward_pairs<ROOT, WIDE, true, TOGETHER<WIDE>>(x, y, pairs, node);
    }
    // Computes the remaining stages of `count` blocks of `length` coefficients each. `length` is tail or 2 * tail.
    template <Root ROOT> void forward_tail(const T *x, T *y, size_t length, size_t count, size_t node) const {
        if (length > tail && tail > 2 * WIDTH) {  // leaves are longer than a pair of vectors
            for (size_t i = 0; i < count; ++i) forward_radix2<ROOT>(x + i * length, y + i * length, length, node + i);
            return forward_tail<Root::none>(y, y, length / 2, 2 * count, 2 * node);
        }
        const size_t pairs = count * length / (2 * WIDTH);
        if (length > tail) forward_pairs<ROOT, true>(x, y, pairs, 2 * node);
        else forward_pairs<ROOT, false>(x, y, pairs, node);
    }
    template <Root ROOT> void forward(const T *x, T *y, size_t length, size_t node) const {
        if (length > row.block) {
            if (stopped(row.stop)) return;
            forward_radix4<ROOT>(x, y, length, node);
            for (size_t i = 0; i < 4; ++i)
                forward<Root::none>(y + i * length / 4, y + i * length / 4, length / 4, 4 * node + i);
            return;
        }
        if (length < 4 * tail) return forward_tail<ROOT>(x, y, length, 1, node);
        forward_radix4<ROOT>(x, y, length, node);
        size_t count = 4, part = length / 4;
        for (; part >= 4 * tail; count *= 4, part /= 4)
            for (size_t i = 0; i < count; ++i)
                forward_radix4<Root::none>(y + i * part, y + i * part, part, node * count + i);
        forward_tail<Root::none>(y, y, part, count, node * count);
    }

    // ---- inverse: from the leaves to the root ----

    template <Root ROOT, Sum SUM = Sum::last>
    PG_INLINE void inverse_last(V &x, V &y, const Twiddle &scale, const Twiddle &w) const {
        if constexpr (ROOT == Root::trinomial && B::NUMBERS) b.inverse_trinomial(x, y, scale, w);
        else if constexpr (ROOT == Root::trinomial) {
            b.inverse_root(x, y, scale, w);
            x = b.lanes.sub_mod(x, y), y = b.lanes.add_mod(y, y);
        } else if constexpr (ROOT == Root::binomial) b.inverse_root(x, y, scale, w);
        else b.template inverse<SUM>(x, y, w);
    }
    template <Root ROOT> void inverse_radix2(const T *x, T *y, size_t length, size_t node) const {
        const size_t h = length / 2;
        const Twiddle w = inverse_twiddle(node), scale = inverse_twiddle(0);
        for (size_t j = 0; j < h; j += WIDTH) {
            V x0 = L::load(x + j), x1 = L::load(x + j + h);
            inverse_last<ROOT>(x0, x1, scale, w);
            L::store(y + j, x0), L::store(y + j + h, x1);
        }
    }
    template <Root ROOT> void inverse_radix4(const T *x, T *y, size_t length, size_t node) const {
        const size_t h = length / 4;
        const Twiddle w = inverse_twiddle(node), w0 = inverse_twiddle(2 * node), w1 = inverse_twiddle(2 * node + 1);
        const Twiddle scale = inverse_twiddle(0);
        for (size_t j = 0; j < h; j += COLUMNS * WIDTH) {
            V v[4][COLUMNS];
            for (size_t i = 0; i < 4; ++i)
                for (size_t k = 0; k < COLUMNS; ++k) v[i][k] = L::load(x + j + i * h + k * WIDTH);
            for (size_t k = 0; k < COLUMNS; ++k) b.template inverse<Sum::inner>(v[0][k], v[1][k], w0);
            for (size_t k = 0; k < COLUMNS; ++k) b.template inverse<Sum::inner>(v[2][k], v[3][k], w1);
            for (size_t k = 0; k < COLUMNS; ++k) inverse_last<ROOT>(v[0][k], v[2][k], scale, w);
            for (size_t k = 0; k < COLUMNS; ++k) inverse_last<ROOT, Sum::products>(v[1][k], v[3][k], scale, w);
            for (size_t i = 0; i < 4; ++i)
                for (size_t k = 0; k < COLUMNS; ++k) L::store(y + j + i * h + k * WIDTH, v[i][k]);
        }
    }
    template <size_t G, bool COMPLETE, size_t K>
    PG_INLINE void inverse_granules(V (&u)[K], V (&v)[K], size_t node) const {
        if constexpr (G == 0) {
            if constexpr (ORDERED && WIDTH > 1)
                for (size_t k = 0; k < K; ++k) exchange_all<L, 1, false>(u[k], v[k]);
        } else {
            if (COMPLETE || G >= row.leaf_size) {
                constexpr size_t COUNT = WIDTH / G;
                inverse_granules<G / 2, COMPLETE>(u, v, node);
                constexpr Sum SUM = G <= 2 ? Sum::early : G == 4 ? Sum::third : Sum::inner;
                for (size_t k = 0; k < K; ++k) {
                    b.template inverse<SUM>(u[k], v[k], twiddles<COUNT>(row.inverse, (node + k) * COUNT));
                    L::template exchange<G, true>(u[k], v[k]);
                }
            } else if constexpr (ORDERED && 2 * G < WIDTH) {
                for (size_t k = 0; k < K; ++k) exchange_all<L, 2 * G, false>(u[k], v[k]);
            }
        }
    }
    template <Root ROOT, bool WIDE, bool COMPLETE, size_t K>
    void inverse_pairs(const T *x, T *y, size_t pairs, size_t node) const {
        const Twiddle scale = inverse_twiddle(0);
        for (size_t i = 0; i < pairs; i += K, x += 2 * K * WIDTH, y += 2 * K * WIDTH) {
            V u[K], v[K];
            for (size_t k = 0; k < K; ++k)
                u[k] = load<B::NUMBERS>(x + 2 * k * WIDTH), v[k] = load<B::NUMBERS>(x + (2 * k + 1) * WIDTH);
            if (COMPLETE || row.leaf_size <= WIDTH) {
                inverse_granules<WIDTH / 2, COMPLETE>(u, v, node + i);
                for (size_t k = 0; k < K; ++k)
                    inverse_last<WIDE ? Root::none : ROOT>(u[k], v[k], scale, inverse_twiddle(node + i + k));
            }
            if constexpr (WIDE)
                for (size_t k = 0; k < K; k += 2) {
                    const Twiddle w = inverse_twiddle((node + i + k) / 2);
                    // If COMPLETE, both operands were reduced in the stage before.
                    inverse_last<ROOT, COMPLETE ? Sum::inner : Sum::last>(u[k], u[k + 1], scale, w);
                    inverse_last<ROOT, Sum::products>(v[k], v[k + 1], scale, w);
                }
            for (size_t k = 0; k < K; ++k) L::store(y + 2 * k * WIDTH, u[k]), L::store(y + (2 * k + 1) * WIDTH, v[k]);
        }
    }
    template <Root ROOT, bool WIDE> void inverse_pairs(const T *x, T *y, size_t pairs, size_t node) const {
        if (pairs % PAIRS) inverse_pairs<ROOT, WIDE, false, WIDE ? 2 : 1>(x, y, pairs, node);
        else if (row.leaf_size > 1) inverse_pairs<ROOT, WIDE, false, TOGETHER<WIDE>>(x, y, pairs, node);
        else inverse_pairs<ROOT, WIDE, true, TOGETHER<WIDE>>(x, y, pairs, node);
    }
    template <Root ROOT> void inverse_tail(const T *x, T *y, size_t length, size_t count, size_t node) const {
        if (length > tail && tail > 2 * WIDTH) {
            inverse_tail<Root::none>(x, y, length / 2, 2 * count, 2 * node);
            for (size_t i = 0; i < count; ++i) inverse_radix2<ROOT>(y + i * length, y + i * length, length, node + i);
            return;
        }
        const size_t pairs = count * length / (2 * WIDTH);
        if (length > tail) inverse_pairs<ROOT, true>(x, y, pairs, 2 * node);
        else inverse_pairs<ROOT, false>(x, y, pairs, node);
    }
    template <Root ROOT> void inverse(const T *x, T *y, size_t length, size_t node) const {
        if (length > row.block) {
            if (stopped(row.stop)) return;
            for (size_t i = 0; i < 4; ++i)
                inverse<Root::none>(x + i * length / 4, y + i * length / 4, length / 4, 4 * node + i);
            inverse_radix4<ROOT>(y, y, length, node);
            return;
        }
        size_t count = 1, part = length;  // the blocks with which the forward transform ends
        for (; part >= 4 * tail; part /= 4) count *= 4;
        if (count == 1) return inverse_tail<ROOT>(x, y, length, 1, node);
        inverse_tail<Root::none>(x, y, part, count, node * count);
        for (count /= 4, part *= 4; count > 1; count /= 4, part *= 4)  // the passes of the forward transform, backwards
            for (size_t i = 0; i < count; ++i)
                inverse_radix4<Root::none>(y + i * part, y + i * part, part, node * count + i);
        inverse_radix4<ROOT>(y, y, length, node);
    }
};

template <class B>
void forward_row(const typename B::Lanes::T *x, typename B::Lanes::T *y, const Row<typename B::Lanes::T> &row) {
    const Ntt<B> ntt(row, B(*row.modulus));
    if (row.quotient == Quotient::trinomial) ntt.template forward<Root::trinomial>(x, y, row.degree, 1);
    else ntt.template forward<B::NUMBERS ? Root::binomial : Root::none>(x, y, row.degree, 1);
}
template <class B>
void inverse_row(const typename B::Lanes::T *x, typename B::Lanes::T *y, const Row<typename B::Lanes::T> &row) {
    const Ntt<B> ntt(row, B(*row.modulus));
    if (row.quotient == Quotient::trinomial) ntt.template inverse<Root::trinomial>(x, y, row.degree, 1);
    else ntt.template inverse<Root::binomial>(x, y, row.degree, 1);
}

}  // namespace
}  // namespace pg
