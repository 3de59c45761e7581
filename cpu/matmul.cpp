// Products of matrices modulo the moduli of a Basis: their blocks, over threads.
#include <algorithm>
#include <cstring>

#include "basis.hpp"
#include "dispatch.hpp"
#include "threads.hpp"

namespace pg {
namespace {

template <class T> void matmul_words(const Basis &basis, const Array &a, const Array &b, const Out &out) {
    require(a.ndim() == 3 && b.ndim() == 3 && out.ndim() == 3, "matmul: (batch, rows, columns)");
    const size_t n = out.shape(2), k = a.shape(2);
    size_t batch = out.shape(0), m = out.shape(1);
    for (const Array *x : {&a, &b})
        require(x->itemsize() == sizeof(T) && (x->shape(0) == batch || x->shape(0) == 1),
                "matmul: wrong dtype or batch");
    require(out.hold<T>() && a.shape(1) == m && b.shape(1) == k && b.shape(2) == n, "matmul: wrong dtype or shapes");
    if (batch * m * n == 0) return;
    if (b.shape(0) == 1 && a.shape(0) == batch) m *= batch, batch = 1;  // one tall matrix, and b is packed once
    T *const c = (T *)out.data();
    if (k == 0) {
        std::memset(c, 0, batch * m * n * sizeof(T));
        return;
    }
    const GemmKernels<T> &kernels = gemm_kernels<T>();
    const size_t column_blocks = (n + GEMM_COLUMNS - 1) / GEMM_COLUMNS;
    size_t height = 128;  // rows of a block, over which the packing of its columns is shared
    if (batch * ((m + height - 1) / height) * column_blocks < 2 * (size_t)num_threads()) height = 32;
    const size_t row_blocks = (m + height - 1) / height, blocks = row_blocks * column_blocks;
    const T *const x = (const T *)a.data(), *const y = (const T *)b.data();
    const double seconds = seconds_products((double)k * (double)(std::min(m, height) * std::min(n, GEMM_COLUMNS)));
    for_each_row(batch * blocks, seconds, [&](size_t unit, const Worker &worker) {
        const size_t item = unit / blocks, block = unit % blocks;
        const size_t row = block / column_blocks * height, column = block % column_blocks * GEMM_COLUMNS;
        const size_t item_a = a.shape(0) == 1 ? 0 : item, item_b = b.shape(0) == 1 ? 0 : item;
        const MatrixProduct<T> product{&basis.moduli()[0],
                                       std::min(height, m - row),
                                       k,
                                       std::min(GEMM_COLUMNS, n - column),
                                       {x + (item_a * m + row) * k, (ptrdiff_t)k, 1},
                                       {y + item_b * k * n + column, (ptrdiff_t)n, 1},
                                       {c + (item * m + row) * n + column, (ptrdiff_t)n, 1},
                                       worker.stop};
        kernels.multiply(product, (u64 *)worker.scratch(GEMM_SCRATCH * sizeof(u64)));
    });
}

// Axes `row` and `row + 1` of an array are those of a matrix.
template <class T, class A> MatrixView<T> matrix_view(const A &x, size_t row) {
    return {(T *)x.data(), (ptrdiff_t)x.stride(row), (ptrdiff_t)x.stride(row + 1)};
}

template <class T>
void matmul_points_words(const Basis &basis, const StridedArray &a, const StridedArray &b, const StridedOut &out) {
    require(a.ndim() == 5 && b.ndim() == 5 && out.ndim() == 5, "matmul_points: (batch, m, n, rows, points)");
    const size_t batch = out.shape(0), m = out.shape(1), p = out.shape(2), k = a.shape(2), limbs = basis.rows();
    const size_t points = out.shape(4);
    const auto check = [&](const auto &x, size_t height, size_t width) {
        require(x.itemsize() == sizeof(T) && x.shape(0) == batch && x.shape(1) == height && x.shape(2) == width &&
                    x.shape(3) == limbs && x.shape(4) == points,
                "matmul_points: wrong dtype or shape");
        require(x.size() == 0 || ((points == 1 || x.stride(4) == 1) && (limbs == 1 || x.stride(3) == (int64_t)points)),
                "matmul_points: rows and points must be dense");
    };
    require(out.hold<T>(), "matmul_points: wrong dtype");
    check(a, m, k), check(b, k, p), check(out, m, p);
    if (out.size() == 0) return;
    const GemmKernels<T> &kernels = gemm_kernels<T>();
    const MatrixView<const T> x = matrix_view<const T>(a, 1), y = matrix_view<const T>(b, 1);
    const MatrixView<T> z = matrix_view<T>(out, 1);
    const size_t chunks = (points + GEMM_POINTS - 1) / GEMM_POINTS, threads = (size_t)num_threads();
    size_t height = m, blocks = 1;  // of rows: fewer to a unit where threads would have nothing to do
    while (threads > 1 && height > 16 && batch * limbs * chunks * blocks < 2 * threads)
        height = (height + 1) / 2, blocks = (m + height - 1) / height;
    const double seconds = seconds_products((double)(height * p * (k + 1)) * (double)std::min(points, GEMM_POINTS));
    for_each_row(batch * limbs * chunks * blocks, seconds, [&](size_t unit, const Worker &worker) {
        const size_t row = unit % blocks * height, rows = std::min(height, m - row);
        const size_t chunk = unit / blocks, point = chunk % chunks * GEMM_POINTS;
        const size_t item = chunk / chunks / limbs, limb = chunk / chunks % limbs;
        const auto at = [&](const auto &view, const auto &array, size_t first) {
            return std::decay_t<decltype(view)>{
                view.data + (ptrdiff_t)item * array.stride(0) + (ptrdiff_t)first * view.row + limb * points + point,
                view.row, view.column};
        };
        const MatrixProduct<T> product{&basis.moduli()[limb], rows,       k, p, at(x, a, row), at(y, b, 0),
                                       at(z, out, row),       worker.stop};
        kernels.multiply_points(product, std::min(GEMM_POINTS, points - point),
                                (u64 *)worker.scratch(gemm_points_scratch(rows, k, p) * sizeof(u64)));
    });
}

}  // namespace

void Basis::matmul(const Array &a, const Array &b, const Out &out) const {
    require(rows() == 1 && !wide() && moduli_[0].last < 1ull << 62, "matmul: one modulus of at most 2^62");
    narrow_ ? matmul_words<u32>(*this, a, b, out) : matmul_words<u64>(*this, a, b, out);
}

void Basis::matmul_points(const StridedArray &a, const StridedArray &b, const StridedOut &out) const {
    require(!wide(), "matmul_points: moduli of at most 64 bits");
    narrow_ ? matmul_points_words<u32>(*this, a, b, out) : matmul_points_words<u64>(*this, a, b, out);
}

}  // namespace pg
