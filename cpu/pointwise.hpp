// Operations on each residue of a row, one source for all instruction sets and words. L, Rest: Lanes of ntt.hpp.
#pragma once
#include "kernels.hpp"

namespace pg {
namespace {

template <Op OP, class L> PG_INLINE typename L::V apply(const L &l, typename L::V a, typename L::V b, typename L::V c) {
    if constexpr (OP == Op::add) return l.add_mod(a, b);
    else if constexpr (OP == Op::sub) return l.sub_mod(a, b);
    else if constexpr (OP == Op::neg) return l.sub_mod(l.zero(), a);
    else if constexpr (OP == Op::mul) return l.mul(a, b);
    else {
        static_assert(OP == Op::mul_add, "an operation without its branch");
        return l.add_mod(l.mul(a, b), c);
    }
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
// y = a * w for the entries from `begin` to end - 1, where w is one residue.
template <class L>
PG_INLINE void scale_range(const L &l, const typename L::T *a, const typename L::Twiddle &w, typename L::T *y,
                           size_t begin, size_t end) {
    for (size_t i = begin; i < end; i += L::WIDTH)
        L::store(y + i, L::reduce_once(l.masked(l.mul_lazy(L::load(a + i), w)), l.q));
}
template <Op OP, class L, class Rest>
void pointwise_loop(const typename L::T *a, const typename L::T *b, bool scalar, const typename L::T *c,
                    typename L::T *y, size_t n, const Modulus &m) {
    const size_t whole = n - n % L::WIDTH;
    if constexpr (OP == Op::mul && L::SHOUP) {
        if (scalar) {
            using T = typename L::T;
            const T w = *b, shoup = (T)(sizeof(T) == 4 ? ((u64)w << 32) / m.q : shoup_quotient(m, w));
            scale_range(L(m), a, L::broadcast(w, shoup), y, 0, whole);
            if (whole < n) scale_range(Rest(m), a, Rest::broadcast(w, shoup), y, whole, n);
            return;
        }
    }
    pointwise_range<OP>(L(m), a, b, scalar, c, y, 0, whole);
    if (whole < n) pointwise_range<OP>(Rest(m), a, b, scalar, c, y, whole, n);
}
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

}  // namespace
}  // namespace pg
