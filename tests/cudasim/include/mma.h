// Tensor cores: nvcuda::wmma for half, tf32 and 8-bit integers.
//
// Every operation takes a whole warp, at one place. CUDA leaves open which lane holds which element of a fragment. Here
// a permutation, another one for each kind of fragment, decides it and means nothing. Fragments start as rubbish.
#pragma once
#include <limits.h>
#include <string.h>

#include <type_traits>

#include "api.h"
#include "cuda_fp16.h"
#include "warp.h"

inline float __float_to_tf32(float x) {  // 10 bits of mantissa, ties away from zero
    unsigned bits = sim::bits_as<unsigned>(x);
    return x - x != 0 ? x : sim::bits_as<float>((bits + 0x1000u) & ~0x1fffu);
}

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}  // namespace precision
using ::__float_to_tf32;

}  // namespace wmma
}  // namespace nvcuda

namespace sim {

namespace wmma = nvcuda::wmma;

// What memory and fragments hold for a type of operand, and what its products are summed in.
template <class T> struct Element {
    using type = T;
    using Sum = long long;
};
template <> struct Element<__half> {
    using type = __half;
    using Sum = float;
};
template <> struct Element<wmma::precision::tf32> {
    using type = float;
    using Sum = float;
};

template <class T, int M, int N, int K> constexpr bool has_shape() {
    constexpr bool tall = M == 32 && N == 8, wide = M == 8 && N == 32, square = M == 16 && N == 16;
    return std::is_same<T, wmma::precision::tf32>::value ? square && K == 8 : (tall || wide || square) && K == 16;
}

template <class T> T operand(T x) { return x; }
inline float operand(__half x) { return x; }

template <class T, class Sum> T rounded(Sum sum, bool saturate) {
    if constexpr (std::is_integral<T>::value)
        if (saturate) return T(sum > INT_MAX ? INT_MAX : sum < INT_MIN ? INT_MIN : sum);
    return T(sum);
}

// Checks a matrix in memory: its alignment, and that all lanes name the same one.
inline void meet_at_matrix(const char *name, const void *pointer, unsigned stride, unsigned bytes, Place place) {
    struct Matrix {
        const void *pointer;
        unsigned stride, unused;
    } matrix = {pointer, stride, 0};
    if (size_t(pointer) % 32 || size_t(stride) * bytes % 16)
        fail(
            "%s: a matrix at %p, %u elements of %u bytes from row to row: it must begin at a multiple of 32 bytes, "
            "rows "
            "follow each other by multiples of 16 (%s:%d)",
            name, pointer, stride, bytes, place.file, place.line);
    meet_whole_warp(
        name, &matrix, sizeof matrix,
        [](WarpCall *const *calls) {
            for (unsigned lane = 1; lane < 32; lane++)
                if (memcmp(calls[lane]->value, calls[0]->value, sizeof(Matrix)) != 0)
                    fail("%s: lane %u names another matrix than lane 0 (%s:%d)", calls[0]->name, lane,
                         calls[0]->place.file, calls[0]->place.line);
        },
        place);
}

}  // namespace sim

namespace nvcuda {
namespace wmma {

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
    static_assert(std::is_same<Use, accumulator>::value || sim::has_shape<T, M, N, K>(), "no such matrices");
    using element_type = typename sim::Element<T>::type;
    static constexpr bool IS_A = std::is_same<Use, matrix_a>::value, IS_B = std::is_same<Use, matrix_b>::value;
    static constexpr unsigned ROWS = IS_B ? K : M, COLUMNS = IS_A ? K : N;
    static constexpr bool BY_COLUMNS = std::is_same<Layout, col_major>::value;
    static constexpr int num_elements = ROWS * COLUMNS / 32;
    element_type x[num_elements];
    fragment() { memset(x, 0xa5, sizeof x); }

    // Element (row, column) lies in lane place / num_elements.
    static unsigned place(unsigned row, unsigned column) {
        constexpr unsigned SIZE = ROWS * COLUMNS;
        constexpr unsigned KIND = IS_A + 2 * IS_B + 4 * BY_COLUMNS + 8 * sizeof(T) + 128 * M + 8192 * K;
        unsigned mixed = (row * COLUMNS + column) * ((KIND * 0x9e3779b1u >> 16) | 1) % SIZE;
        mixed ^= mixed >> 3;
        return (mixed * 0x2d + KIND) % SIZE;
    }
    // Calls what(element, row, column) for those of this lane.
    template <class What> void each(What what) {
        for (unsigned row = 0; row < ROWS; row++)
            for (unsigned column = 0; column < COLUMNS; column++)
                if (place(row, column) / num_elements == sim::current->lane)
                    what(x[place(row, column) % num_elements], row, column);
    }
};

template <class F> inline void fill_fragment(F &f, const typename F::element_type &value) {
    for (auto &x : f.x) x = value;
}

template <class Use, int M, int N, int K, class T, class Layout, class Stored>
inline void load_matrix_sync(fragment<Use, M, N, K, T, Layout> &f, const Stored *p, unsigned stride,
                             ::sim::Place place = {}) {
    using F = fragment<Use, M, N, K, T, Layout>;
    static_assert(std::is_same<Stored, typename F::element_type>::value, "memory holds another type");
    static_assert(F::IS_A || F::IS_B, "a layout is missing");
    sim::meet_at_matrix("load_matrix_sync", p, stride, sizeof *p, place);
    f.each([&](auto &x, unsigned row, unsigned column) {
        x = p[F::BY_COLUMNS ? column * stride + row : row * stride + column];
    });
}
template <int M, int N, int K, class T>
inline void load_matrix_sync(fragment<accumulator, M, N, K, T> &f, const T *p, unsigned stride, layout_t layout,
                             ::sim::Place place = {}) {
    sim::meet_at_matrix("load_matrix_sync", p, stride, sizeof *p, place);
    f.each([&](T &x, unsigned row, unsigned column) {
        x = p[layout == mem_col_major ? column * stride + row : row * stride + column];
    });
}
template <int M, int N, int K, class T>
inline void store_matrix_sync(T *p, fragment<accumulator, M, N, K, T> f, unsigned stride, layout_t layout,
                              ::sim::Place place = {}) {
    sim::meet_at_matrix("store_matrix_sync", p, stride, sizeof *p, place);
    f.each([&](T &x, unsigned row, unsigned column) {
        p[layout == mem_col_major ? column * stride + row : row * stride + column] = x;
    });
}

}  // namespace wmma
}  // namespace nvcuda

namespace sim {

// One lane's operands of a product; `multiply` takes those of all lanes together.
template <class D, class A, class B, class C> struct Product {
    D *d;
    const A *a;
    const B *b;
    const C *c;
    bool saturate;

    template <class Operand> struct Matrix {
        Operand values[512];
    };
    template <class T, class F> static auto gather(const F *const *lanes) {
        using Operand = decltype(operand(lanes[0]->x[0]));
        Matrix<Operand> matrix;
        for (unsigned row = 0; row < F::ROWS; row++) {
            for (unsigned column = 0; column < F::COLUMNS; column++) {
                unsigned place = F::place(row, column);
                matrix.values[row * F::COLUMNS + column] =
                    operand(lanes[place / F::num_elements]->x[place % F::num_elements]);
            }
        }
        return matrix;
    }
    template <class T> static void multiply(WarpCall *const *calls) {
        const A *as[32];
        const B *bs[32];
        const C *cs[32];
        D *ds[32];
        bool saturate = false;
        for (unsigned lane = 0; lane < 32; lane++) {
            const Product *product;
            memcpy(&product, calls[lane]->value, sizeof product);
            as[lane] = product->a, bs[lane] = product->b, cs[lane] = product->c, ds[lane] = product->d;
            saturate = product->saturate;
        }
        auto a = gather<T>(as);
        auto b = gather<T>(bs);
        auto c = gather<T>(cs);
        if (std::is_same<T, wmma::precision::tf32>::value) {
            check_tf32(a, A::ROWS * A::COLUMNS, calls[0]->place);
            check_tf32(b, B::ROWS * B::COLUMNS, calls[0]->place);
        }
        for (unsigned row = 0; row < D::ROWS; row++) {
            for (unsigned column = 0; column < D::COLUMNS; column++) {
                typename Element<T>::Sum sum = c.values[row * D::COLUMNS + column];
                for (unsigned k = 0; k < A::COLUMNS; k++)
                    sum += a.values[row * A::COLUMNS + k] * b.values[k * B::COLUMNS + column];
                unsigned place = D::place(row, column);
                ds[place / D::num_elements]->x[place % D::num_elements] =
                    rounded<typename D::element_type>(sum, saturate);
            }
        }
    }
    template <class Operand> static void check_tf32(const Matrix<Operand> &matrix, unsigned size, Place place) {
        for (unsigned i = 0; i < size; i++) {
            float x = float(matrix.values[i]);
            if (x == x && bits_as<unsigned>(x) & 0x1fffu)
                fail("mma_sync: %.9g has more than tf32's 10 bits: __float_to_tf32 is missing (%s:%d)", x, place.file,
                     place.line);
        }
    }
};

}  // namespace sim

namespace nvcuda {
namespace wmma {

// Products of two halves or two tf32 are exact in float, which sums them one after the other.
template <int M, int N, int K, class D, class T, class LayoutA, class LayoutB, class C>
inline void mma_sync(fragment<accumulator, M, N, K, D> &d, const fragment<matrix_a, M, N, K, T, LayoutA> &a,
                     const fragment<matrix_b, M, N, K, T, LayoutB> &b, const fragment<accumulator, M, N, K, C> &c,
                     bool saturate = false, ::sim::Place place = {}) {
    static_assert(std::is_integral<T>::value
                      ? std::is_same<D, int>::value && std::is_same<C, int>::value
                      : std::is_same<D, float>::value ||
                            (std::is_same<D, __half>::value && !std::is_same<T, precision::tf32>::value),
                  "no such sums");
    using P = sim::Product<std::decay_t<decltype(d)>, std::decay_t<decltype(a)>, std::decay_t<decltype(b)>,
                           std::decay_t<decltype(c)>>;
    const P product = {&d, &a, &b, &c, saturate};
    const P *pointer = &product;
    sim::meet_whole_warp("mma_sync", &pointer, sizeof pointer, &P::template multiply<T>, place);
}

}  // namespace wmma
}  // namespace nvcuda
