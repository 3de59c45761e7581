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
    const GemmKernels<T> &kernels = word_kernels<T>().gemm;
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

size_t word_bytes(const Basis &basis) { return basis.narrow() ? sizeof(u32) : sizeof(u64); }
bool holds_words(const Basis &basis, const Out &out) { return basis.narrow() ? out.hold<u32>() : out.hold<u64>(); }

}  // namespace

void Basis::matmul(const Array &a, const Array &b, const Out &out) const {
    require(rows() == 1 && !wide(), "matmul: one modulus of at most 2^64");
    visit([&](auto word) { matmul_words<decltype(word)>(*this, a, b, out); });
}

PointsProduct Basis::matmul_points(const StridedArray &a, const StridedArray &b, const StridedOut &out) const {
    const PointsProduct product(*this, a, b, out);
    product.run(a.data(), b.data(), out.data());
    return product;
}

PointsProduct::PointsProduct(const Basis &basis, const StridedArray &a, const StridedArray &b, const StridedOut &out)
    : basis_(&basis) {
    require(!basis.wide(), "matmul_points: moduli of at most 64 bits");
    require(a.ndim() == 5 && b.ndim() == 5 && out.ndim() == 5, "matmul_points: (batch, m, n, rows, points)");
    require(holds_words(basis, out), "matmul_points: wrong dtype");
    batch_ = out.shape(0), m_ = out.shape(1), p_ = out.shape(2), k_ = a.shape(2), points_ = out.shape(4);
    a_ = place(a, m_, k_), b_ = place(b, k_, p_), out_ = place(out, m_, p_);
}

PointsProduct::Place PointsProduct::place(const Array &x, size_t height, size_t width) const {
    const size_t limbs = basis_->rows();
    require(x.itemsize() == word_bytes(*basis_) && x.shape(0) == batch_ && x.shape(1) == height &&
                x.shape(2) == width && x.shape(3) == limbs && x.shape(4) == points_,
            "matmul_points: wrong dtype or shape");
    Place of{x.stride(0), x.stride(1), x.stride(2), 0};
    if (x.size() == 0) return of;
    require((points_ == 1 || x.stride(4) == 1) && (limbs == 1 || x.stride(3) == (ptrdiff_t)points_),
            "matmul_points: rows and points must be dense");
    of.reach = limbs * points_;
    for (size_t axis = 0; axis < 3; ++axis) {
        if (x.shape(axis) > 1 && x.stride(axis) < 0) return {of.item, of.row, of.column, 0};
        of.reach += (x.shape(axis) - 1) * (size_t)x.stride(axis);
    }
    return of;
}

void PointsProduct::run(const Array &a, const Array &b, const Out &out) const {
    const bool empty = batch_ * m_ * p_ * points_ == 0;
    const auto fits = [&](const Array &x, const Place &of, bool unread) {
        return x.itemsize() == word_bytes(*basis_) && x.size() >= of.reach && (of.reach || unread);
    };
    require(fits(a, a_, empty || k_ == 0) && fits(b, b_, empty || k_ == 0) && fits(out, out_, empty) &&
                holds_words(*basis_, out),
            "matmul_points again: wrong dtype or size");
    run(a.data(), b.data(), out.data());
}

void PointsProduct::run(const void *a, const void *b, void *out) const {
    if (batch_ * m_ * p_ * points_ == 0) return;
    basis_->narrow() ? run_words((const u32 *)a, (const u32 *)b, (u32 *)out)
                     : run_words((const u64 *)a, (const u64 *)b, (u64 *)out);
}

template <class T> void PointsProduct::run_words(const T *a, const T *b, T *out) const {
    const GemmKernels<T> &kernels = word_kernels<T>().gemm;
    const size_t limbs = basis_->rows(), chunks = (points_ + GEMM_POINTS - 1) / GEMM_POINTS;
    const size_t threads = (size_t)num_threads();
    size_t height = m_, blocks = 1;  // rows of a block, blocks: fewer rows where threads would have nothing to do
    while (threads > 1 && height > 16 && batch_ * limbs * chunks * blocks < 2 * threads)
        height = (height + 1) / 2, blocks = (m_ + height - 1) / height;
    const double seconds = seconds_products((double)(height * p_ * (k_ + 1)) * (double)std::min(points_, GEMM_POINTS));
    for_each_row(batch_ * limbs * chunks * blocks, seconds, [&](size_t unit, const Worker &worker) {
        const size_t row = unit % blocks * height, rows = std::min(height, m_ - row);
        const size_t chunk = unit / blocks, point = chunk % chunks * GEMM_POINTS;
        const size_t item = chunk / chunks / limbs, limb = chunk / chunks % limbs;
        const auto view = [&](auto *first, const Place &of, size_t from) {
            return MatrixView<std::remove_pointer_t<decltype(first)>>{
                first + (ptrdiff_t)item * of.item + (ptrdiff_t)from * of.row + limb * points_ + point, of.row,
                of.column};
        };
        const MatrixProduct<T> product{&basis_->moduli()[limb], rows,       k_, p_, view(a, a_, row), view(b, b_, 0),
                                       view(out, out_, row),    worker.stop};
        kernels.multiply_points(product, std::min(GEMM_POINTS, points_ - point),
                                (u64 *)worker.scratch(gemm_points_scratch(rows, k_, p_) * sizeof(u64)));
    });
}

}  // namespace pg
