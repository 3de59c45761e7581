// Products of matrices modulo the moduli of a Basis, cut into blocks for threads.
#include <algorithm>
#include <cstring>
#include <vector>

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
    size_t height = 128;  // rows of a block, which packs its columns of b once for all these rows
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

// ---- matrices of bytes ----

// Turns columns of words into vectors of signed digits, as ByteProduct takes them. A word is the sum over these vectors
// of 2^shift * digit.
class Digits {
  public:
    // Byte i of an integer of `size` bytes has the weight 256^i.
    Digits(const Modulus &m, unsigned digit_bits, size_t size) : m_(m), digit_bits_(digit_bits), size_(size) {
        power_ = m.q & m.last ? 0 : m.q ? m.bits - 1 : 64;
        // Modulo 2^power, the digits must have `power` bits together. Modulo another q, digits must be able to
        // represent q - 1.
        const u64 largest = ((u64)1 << (digit_bits - 1)) - 1;
        u128 sum = 0;
        for (digits_ = 0; power_ ? digits_ * digit_bits < power_ : sum < m.last; ++digits_)
            sum = sum << digit_bits | largest;
        const auto add = [&](size_t byte, unsigned digit, unsigned shift) {
            if (!power_ || shift < power_) vectors_.push_back({byte, digit, shift});
        };
        if (digit_bits == 8 && size == 2) {
            // Digit d times the low byte and digit d - 1 times the high byte have the same weight. So one vector
            // contains both digits.
            for (unsigned d = 0; d <= digits_; ++d) add(BOTH, d, 8 * d);
        } else {
            for (size_t byte = 0; byte < size; ++byte)
                for (unsigned d = 0; d < digits_; ++d) add(byte, d, 8 * (unsigned)byte + d * digit_bits);
        }
    }
    size_t count() const { return vectors_.size(); }
    bool is_power() const { return power_; }
    unsigned shift(size_t vector) const { return vectors_[vector].shift; }

    // Writes the digits of words first ... last - 1 of a column to all vectors. Word k of the column is x[k * stride].
    // Vector v begins at y + v * step.
    template <class T>
    void write(const T *x, size_t stride, size_t first, size_t last, signed char *y, size_t step) const {
        const unsigned half = 1u << (digit_bits_ - 1);
        int digit[12];  // digit[d + 1] is digit d; 0 stands before the first and after the last
        for (size_t k = first; k < last; ++k) {
            u64 rest = x[k * stride];
            if (rest > m_.last) rest = reduce(m_, rest);
            digit[0] = 0;
            for (unsigned d = 0; d < digits_; ++d) {
                const unsigned low = (unsigned)rest & (2 * half - 1);
                digit[d + 1] = low < half ? (int)low : (int)low - (int)(2 * half);
                rest = (rest >> digit_bits_) + (low >= half);
            }
            digit[digits_ + 1] = 0;
            for (size_t v = 0; v < vectors_.size(); ++v) {
                const Vector &of = vectors_[v];
                signed char *const to = y + v * step + k * size_;
                if (of.byte == BOTH) to[0] = (signed char)digit[of.digit + 1], to[1] = (signed char)digit[of.digit];
                else to[of.byte] = (signed char)digit[of.digit + 1];
            }
        }
    }

  private:
    static constexpr size_t BOTH = 2;
    struct Vector {
        size_t byte;
        unsigned digit, shift;
    };
    const Modulus &m_;
    unsigned digit_bits_, digits_, power_;  // power_: the modulus is 2^power_; 0 for other moduli
    size_t size_;
    std::vector<Vector> vectors_;
};

// Returns (the sum over vectors v of 2^shift(v) * sums[v]) - excess modulo q. Needs excess < q.
u64 joined(const Modulus &m, const Digits &digits, const i64 *sums, u64 excess) {
    if (digits.is_power()) {
        u64 total = 0;
        for (size_t v = 0; v < digits.count(); ++v) total += (u64)sums[v] << digits.shift(v);
        return (total - excess) & m.last;
    }
    __int128 total = 0;
    for (size_t v = 0; v < digits.count(); ++v) total += (__int128)sums[v] * ((__int128)1 << digits.shift(v));
    const u128 size = total < 0 ? -(u128)total : (u128)total;
    const u64 residue = reduce(m, reduce(m, (u64)(size >> 64)), (u64)size);
    return sub_mod(m, total < 0 ? neg_mod(m, residue) : residue, excess);
}

// Copies rows of a matrix whose columns are dense: byte b of entry (row, k) from x + row * size + k * step + b.
void gather_rows(const unsigned char *x, ptrdiff_t step, size_t size, size_t rows, size_t columns, unsigned char *y,
                 size_t y_step) {
    size_t row = 0;
    for (; size == 1 && row + 8 <= rows; row += 8) {
        size_t k = 0;
        for (; k + 8 <= columns; k += 8) {  // transposes 8 x 8 bytes by exchanges of bytes, of pairs and of fours
            u64 v[8];
            for (size_t i = 0; i < 8; ++i) std::memcpy(v + i, x + row + (ptrdiff_t)(k + i) * step, 8);
            const u64 masks[] = {0x00ff00ff00ff00ff, 0x0000ffff0000ffff, 0x00000000ffffffff};
            for (size_t level = 0; level < 3; ++level) {
                const size_t by = (size_t)1 << level;
                for (size_t i = 0; i < 8; ++i)
                    if (!(i & by)) {
                        const u64 low = v[i], high = v[i + by];
                        v[i] = (low & masks[level]) | (high & masks[level]) << (8 * by);
                        v[i + by] = (low >> (8 * by) & masks[level]) | (high & ~masks[level]);
                    }
            }
            for (size_t i = 0; i < 8; ++i) std::memcpy(y + (row + i) * y_step + k, v + i, 8);
        }
        for (; k < columns; ++k)
            for (size_t i = 0; i < 8; ++i) y[(row + i) * y_step + k] = x[row + i + (ptrdiff_t)k * step];
    }
    for (; row < rows; ++row)
        for (size_t k = 0; k < columns; ++k)
            std::memcpy(y + row * y_step + k * size, x + row * size + (ptrdiff_t)k * step, size);
}

constexpr size_t BYTE_COLUMNS = 32;          // columns of b whose digits are made together
constexpr size_t DIGITS_IN_CACHE = 1 << 19;  // bytes of vectors that are multiplied by all rows of a block

template <class T>
void matmul_bytes_words(const Modulus &m, const StridedArray &a, bool is_signed, const T *b, T *out, size_t n) {
    const size_t height = a.shape(1), k = a.shape(2), size = a.itemsize(), length = k * size;
    const bool by_columns = a.stride(2) != 1 && k > 1;  // the columns of a are dense
    const ptrdiff_t step = (by_columns ? a.stride(2) : a.stride(1)) * (ptrdiff_t)size;
    const unsigned char *const x = (const unsigned char *)a.data();
    const ByteKernels &kernels = byte_kernels();
    const Digits digits(m, kernels.digit_bits, size);
    const u64 flip = !is_signed ? 0 : size == 1 ? 0x8080808080808080 : 0x8000800080008000;
    const size_t padded = (length + 63) / 64 * 64;
    std::vector<signed char> vectors(std::min(n, BYTE_COLUMNS) * digits.count() * padded);
    std::vector<u64> excess(std::min(n, BYTE_COLUMNS));
    for (size_t column = 0; column < n; column += BYTE_COLUMNS) {
        const size_t columns = std::min(BYTE_COLUMNS, n - column), count = columns * digits.count();
        constexpr size_t PART = 4096;  // entries of a column
        const size_t parts = (k + PART - 1) / PART;
        for_each_row(columns * parts, seconds_products(2.0 * PART), [&](size_t unit, const Worker &) {
            const size_t c = unit / parts, first = unit % parts * PART;
            digits.write(b + column + c, n, first, std::min(k, first + PART),
                         vectors.data() + c * digits.count() * padded, padded);
        });
        // Signed entries are multiplied as unsigned ones, which are larger by 2^7 or 2^15. `excess` makes up for this.
        for (size_t c = 0; c < columns; ++c) {
            u128 sum = 0;
            for (size_t i = 0; is_signed && i < k; ++i) sum += b[i * n + column + c];
            const u64 residue = reduce(m, reduce(m, (u64)(sum >> 64)), (u64)sum);
            excess[c] = mul_mod(m, residue, reduce(m, (u64)1 << (8 * size - 1)));
        }
        // part: the number of bytes of each vector that are used at a time. These bytes of all `count` vectors fit in
        // the first-level cache if count <= 4. Otherwise they fit in the second-level cache, together with the gathered
        // rows.
        size_t part = std::min(BYTES_AT_ONCE, std::max((size_t)4096, DIGITS_IN_CACHE / count)) / 64 * 64;
        if (count <= 4) part = 8192;
        if (by_columns) part = 1024;
        const size_t rows = by_columns ? std::max((size_t)64, std::min((size_t)512, 4096 / count)) : 16;
        const size_t blocks = (height + rows - 1) / rows;
        const double seconds = seconds_products(0.1 * (double)(rows * length * count));
        for_each_row(blocks, seconds, [&](size_t block, const Worker &worker) {
            const size_t row = block * rows, own = std::min(rows, height - row);
            i64 *const sums = (i64 *)worker.scratch(own * count * sizeof(i64) + (by_columns ? rows * part : 0));
            unsigned char *const gathered = (unsigned char *)(sums + own * count);
            std::memset(sums, 0, own * count * sizeof(i64));
            for (size_t at = 0; at < length && !stopped(worker.stop); at += part) {
                const size_t now = std::min(part, length - at);
                ByteProduct product{
                    x + (ptrdiff_t)row * step + at, step, own, now, flip, vectors.data() + at, padded, count, sums};
                if (by_columns) {
                    gather_rows(x + row * size + (ptrdiff_t)(at / size) * step, step, size, own, now / size, gathered,
                                part);
                    product.rows = gathered, product.row_step = (ptrdiff_t)part;
                }
                kernels.add(product);
            }
            for (size_t r = 0; r < own; ++r)
                for (size_t c = 0; c < columns; ++c)
                    out[(row + r) * n + column + c] =
                        (T)joined(m, digits, sums + r * count + c * digits.count(), excess[c]);
        });
    }
}

size_t word_bytes(const Basis &basis) { return basis.narrow() ? sizeof(u32) : sizeof(u64); }
bool holds_words(const Basis &basis, const Out &out) { return basis.narrow() ? out.hold<u32>() : out.hold<u64>(); }

}  // namespace

void Basis::matmul(const Array &a, const Array &b, const Out &out) const {
    require(rows() == 1 && !wide(), "matmul: one modulus of at most 2^64");
    visit([&](auto word) { matmul_words<decltype(word)>(*this, a, b, out); });
}

void Basis::matmul_bytes(const StridedArray &a, bool is_signed, const Array &b, const Out &out) const {
    require(rows() == 1 && !wide(), "matmul_bytes: one modulus of at most 2^64");
    require(a.ndim() == 3 && b.ndim() == 3 && out.ndim() == 3, "matmul_bytes: (1, rows, columns)");
    const size_t m = a.shape(1), k = a.shape(2), n = b.shape(2);
    require(a.itemsize() <= 2 && b.itemsize() == word_bytes(*this) && holds_words(*this, out), "matmul_bytes: dtypes");
    require(a.shape(0) == 1 && b.shape(0) == 1 && out.shape(0) == 1 && b.shape(1) == k && out.shape(1) == m &&
                out.shape(2) == n,
            "matmul_bytes: wrong shapes");
    if (m * n == 0) return;
    if (k == 0) {
        std::memset(out.data(), 0, m * n * out.itemsize());
        return;
    }
    require(a.stride(2) == 1 || k == 1 || a.stride(1) == 1 || m == 1, "matmul_bytes: rows or columns must be dense");
    visit([&](auto word) {
        using T = decltype(word);
        matmul_bytes_words(moduli()[0], a, is_signed, (const T *)b.data(), (T *)out.data(), n);
    });
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
    size_t height = m_, blocks = 1;  // height: rows of a block, halved while blocks are too few for the threads
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
