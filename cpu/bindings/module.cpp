// The Python module polygpu._cpu: arrays in, arrays out; every argument was checked by backends/cpu.py.
//
// Arrays are C-contiguous, (*batch, rows, degree): one row of residues a limb, or the words of one wide
// modulus. Batch axes broadcast against those of the result.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <complex>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "array.hpp"
#include "buffer.hpp"
#include "gil.hpp"
#include "kernels.hpp"
#include "tables.hpp"
#include "threads.hpp"
#include "wide.hpp"

namespace nb = nanobind;

namespace pg {
namespace {

// ---- instruction sets ----

bool supported(const Isa &isa) {
    if (!isa.name) return false;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (&isa == &isa_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512ifma");
    if (&isa == &isa_avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return &isa == &isa_portable;
}

const Isa *best_isa() {
    for (const Isa *isa : {&isa_avx512, &isa_avx2})
        if (supported(*isa)) return isa;
    return &isa_portable;
}
std::atomic<const Isa *> current_isa{best_isa()};

const RowKernels<u32> &slot(const Isa &isa, const Modulus &m, u32) {
    return m.bits <= 30 ? isa.q30 : m.bits <= 31 ? isa.q31 : isa.q32;
}
const RowKernels<u64> &slot(const Isa &isa, const Modulus &m, u64) {
    if (m.bits <= 46 && isa.q46.forward) return isa.q46;  // else the next serves as well
    return m.bits <= 50 ? isa.q50 : m.bits <= 62 ? isa.q62 : isa.q64;
}
template <class T> const RowKernels<T> &kernels(const Modulus &m, size_t degree) {
    const RowKernels<T> &fast = slot(*current_isa.load(std::memory_order_relaxed), m, T());
    return fast.forward && degree >= fast.least_degree ? fast : slot(isa_portable, m, T());
}

// Pointwise loops finish rows of any length themselves.
template <class T> const RowKernels<T> &pointwise_kernels(const Modulus &m) { return kernels<T>(m, ~(size_t)0); }

// Estimates, with AVX-512, for the number of threads and for whether the GIL is given away.
double seconds_pointwise(size_t n) { return 0.3e-9 * (double)n; }
double seconds_products(double count) { return 0.3e-9 * count; }
double seconds_transform(size_t n) { return 0.12e-9 * (double)n * (double)(64 - __builtin_clzll(n | 1)); }

// Axes `row` and `row + 1` of an array are those of a matrix.
template <class T, class A> MatrixView<T> matrix_view(const A &x, size_t row) {
    return {(T *)x.data(), (ptrdiff_t)x.stride(row), (ptrdiff_t)x.stride(row + 1)};
}
// ---- the moduli of a ring ----

class Limbs {
  public:
    // moduli: (limbs, words) little-endian; several words: one wide modulus; words of 0 stand for 2^(64 words)
    Limbs(const Numbers &moduli, int storage_bits) : narrow_(storage_bits == 32) {
        require(moduli.hold<u64>() && moduli.ndim() == 2 && moduli.size() && (storage_bits == 32 || storage_bits == 64),
                "Limbs: moduli (limbs, words), 32 or 64 bits");
        const u64 *q = (const u64 *)moduli.data();
        const size_t limbs = moduli.shape(0), words = moduli.shape(1);
        if (words > 1) {
            require(limbs == 1, "Limbs: a wide modulus stands alone");
            wide_ = WideModulus(std::vector<u64>(q, q + words));
        } else {
            for (size_t i = 0; i < limbs; ++i) moduli_.push_back(make_modulus(q[i]));
        }
    }
    bool wide() const { return moduli_.empty(); }
    bool narrow() const { return narrow_; }
    size_t rows() const { return wide() ? wide_.words() : moduli_.size(); }
    const std::vector<Modulus> &moduli() const { return moduli_; }
    const WideModulus &wide_modulus() const { return wide_; }
    // times as long as with AVX-512, about: the slowest of the moduli
    double slowness() const {
        for (const Modulus &m : moduli_)
            if (m.bits > (narrow_ ? 31 : 62)) return 25;  // a division for each product
        const Isa *isa = current_isa.load(std::memory_order_relaxed);
        return isa == &isa_portable ? 8 : isa == &isa_avx2 ? 3 : 1;
    }

    void pointwise(int op, const Array &a, const Array &b, const Array &c, const Out &out) const {
        if (wide()) pointwise_wide((Op)op, a, b, out);
        else if (narrow_) pointwise_words<u32>((Op)op, a, b, c, out);
        else pointwise_words<u64>((Op)op, a, b, c, out);
    }

    // out[j] = x[index[j]], negated where index[j] >= degree counts from degree
    void permute(const Array &x, const Numbers &index, const Out &out) const {
        if (narrow_) permute_words<u32>(x, index, out);
        else permute_words<u64>(x, index, out);
    }

    // out: residues of machine integers x, (*batch, count <= degree); the rest of a row is zero
    void reduce_integers(const Numbers &x, const Out &out) const {
        const bool is_signed = x.hold<int64_t>();
        require(is_signed || x.hold<u64>(), "reduce_integers: int64 or uint64");
        if (narrow_) reduce_integers_to<u32>(x, is_signed, out);
        else reduce_integers_to<u64>(x, is_signed, out);
    }

    // out row `limb` (all rows of a wide modulus): numbers of k words, (items, degree, k), mod q
    void reduce_words(const Numbers &words, size_t limb, const Out &out) const {
        require(words.hold<u64>() && words.ndim() == 3, "reduce_words: uint64 (items, degree, words)");
        const size_t n = words.shape(1), k = words.shape(2), r = rows();
        if (narrow_) result_of<u32>(out, r);
        else result_of<u64>(out, r);
        require(limb < r && last(out) == n && batch_of(out) == words.shape(0), "reduce_words: lengths differ");
        for_each_row(words.shape(0), 20e-9 * (double)(n * k * r), [&](size_t item, const Worker &worker) {
            const u64 *x = (const u64 *)words.data() + item * n * k;
            if (wide()) {
                std::vector<u64> value(r), scratch(r + 1);
                u64 *y = (u64 *)out.data() + item * r * n;
                for (size_t j = 0; j < n && !stopped(worker.stop); ++j, x += k) {
                    std::fill(value.begin(), value.end(), 0);
                    for (size_t i = k; i-- > 0;) wide_.horner(value.data(), 0, x[i], scratch.data());
                    for (size_t i = 0; i < r; ++i) y[i * n + j] = value[i];
                }
                return;
            }
            const Modulus &m = moduli_[limb];
            for (size_t j = 0; j < n && !stopped(worker.stop); ++j, x += k) {
                u64 value = 0;
                for (size_t i = k; i-- > 0;) value = reduce(m, value, x[i]);
                const size_t at = (item * r + limb) * n + j;
                if (narrow_) ((u32 *)out.data())[at] = (u32)value;
                else ((u64 *)out.data())[at] = value;
            }
        });
    }

    // out (batch, m, n) = a b of any words, (batch or 1, m, k) and (batch or 1, k, n)
    void matmul(const Array &a, const Array &b, const Out &out) const {
        require(rows() == 1 && !wide() && moduli_[0].last < 1ull << 62, "matmul: one modulus of at most 2^62");
        narrow_ ? matmul_words<u32>(a, b, out) : matmul_words<u64>(a, b, out);
    }

    // out (batch, m, p, rows, points) = a b by row and point, (batch, m, k, rows, points) and (batch, k, p, rows,
    // points); the first three axes have any steps
    void matmul_points(const StridedArray &a, const StridedArray &b, const StridedOut &out) const {
        require(!wide(), "matmul_points: moduli of at most 64 bits");
        narrow_ ? matmul_points_words<u32>(a, b, out) : matmul_points_words<u64>(a, b, out);
    }

  private:
    static const GemmKernels<u32> &gemm_slot(const Isa &isa, u32) { return isa.gemm32; }
    static const GemmKernels<u64> &gemm_slot(const Isa &isa, u64) { return isa.gemm64; }
    template <class T> static const GemmKernels<T> &gemm_kernels() {
        return gemm_slot(*current_isa.load(std::memory_order_relaxed), T());
    }

    template <class T> void matmul_words(const Array &a, const Array &b, const Out &out) const {
        require(a.ndim() == 3 && b.ndim() == 3 && out.ndim() == 3, "matmul: (batch, rows, columns)");
        const size_t n = out.shape(2), k = a.shape(2);
        size_t batch = out.shape(0), m = out.shape(1);
        for (const Array *x : {&a, &b})
            require(x->itemsize() == sizeof(T) && (x->shape(0) == batch || x->shape(0) == 1),
                    "matmul: wrong dtype or batch");
        require(out.hold<T>() && a.shape(1) == m && b.shape(1) == k && b.shape(2) == n,
                "matmul: wrong dtype or shapes");
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
            const MatrixProduct<T> product{&moduli_[0],
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
    template <class T>
    void matmul_points_words(const StridedArray &a, const StridedArray &b, const StridedOut &out) const {
        require(a.ndim() == 5 && b.ndim() == 5 && out.ndim() == 5, "matmul_points: (batch, m, n, rows, points)");
        const size_t batch = out.shape(0), m = out.shape(1), p = out.shape(2), k = a.shape(2), limbs = rows();
        const size_t points = out.shape(4);
        const auto check = [&](const auto &x, size_t height, size_t width) {
            require(x.itemsize() == sizeof(T) && x.shape(0) == batch && x.shape(1) == height && x.shape(2) == width &&
                        x.shape(3) == limbs && x.shape(4) == points,
                    "matmul_points: wrong dtype or shape");
            require(
                x.size() == 0 || ((points == 1 || x.stride(4) == 1) && (limbs == 1 || x.stride(3) == (int64_t)points)),
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
            const MatrixProduct<T> product{&moduli_[limb],  rows,       k, p, at(x, a, row), at(y, b, 0),
                                           at(z, out, row), worker.stop};
            kernels.multiply_points(product, std::min(GEMM_POINTS, points - point),
                                    (u64 *)worker.scratch(gemm_points_scratch(rows, k, p) * sizeof(u64)));
        });
    }

    template <class T>
    void pointwise_words(Op op, const Array &a, const Array &b, const Array &c, const Out &out) const {
        const size_t n = last(out), limbs = rows();
        T *const result = result_of<T>(out, limbs);
        const Operand<T> x(a, out, limbs), y(b ? b : a, out, limbs), z(c ? c : a, out, limbs);
        require(x.length() == n && (y.length() == n || y.length() == 1) && z.length() == n,
                "pointwise: lengths differ");
        const bool scalar = y.length() == 1 && n != 1;
        for_each_row(batch_of(out) * limbs, slowness() * seconds_pointwise(n), [&](size_t i, const Worker &) {
            const Modulus &m = moduli_[i % limbs];
            pointwise_kernels<T>(m).pointwise(op, x.row(i), y.row(i), scalar, z.row(i), result + i * n, n, m);
        });
    }
    void pointwise_wide(Op op, const Array &a, const Array &b, const Out &out) const {
        require(op == Op::add || op == Op::sub || op == Op::neg, "pointwise: a wide modulus adds and subtracts only");
        const size_t n = last(out), words = rows();
        u64 *const result = result_of<u64>(out, words);
        const Operand<u64> x(a, out, words), y(b ? b : a, out, words);
        require(x.length() == n && y.length() == n, "pointwise: lengths differ");
        for_each_row(batch_of(out), seconds_pointwise(4 * n * words), [&](size_t i, const Worker &worker) {
            const u64 *from_x = x.item(i), *from_y = y.item(i);
            u64 *to = result + i * n * words;
            std::vector<u64> u(words), v(words);
            for (size_t j = 0; j < n && !stopped(worker.stop); ++j) {
                for (size_t w = 0; w < words; ++w) {
                    u[w] = op == Op::neg ? 0 : from_x[w * n + j];
                    v[w] = op == Op::neg ? from_x[w * n + j] : from_y[w * n + j];
                }
                if (op == Op::add) wide_.add(u.data(), v.data());
                else wide_.sub(u.data(), v.data());
                for (size_t w = 0; w < words; ++w) to[w * n + j] = u[w];
            }
        });
    }
    template <class T> void permute_words(const Array &x, const Numbers &index, const Out &out) const {
        const size_t n = last(out), r = rows();
        T *const result = result_of<T>(out, r);
        const Operand<T> from(x, out, r);
        require(from.length() == n && index.size() == n && index.hold<int64_t>(), "permute: lengths or index differ");
        const int64_t *at = (const int64_t *)index.data();
        for_each_row(batch_of(out), seconds_pointwise(2 * n * r), [&](size_t i, const Worker &) {
            const T *source = from.item(i);
            T *to = result + i * n * r;
            std::vector<u64> value(r), difference(r);
            for (size_t w = 0; w < r; ++w) {
                for (size_t j = 0; j < n; ++j) {
                    const size_t k = (size_t)at[j];
                    if (k < n) to[w * n + j] = source[w * n + k];
                    else if (!wide()) to[w * n + j] = (T)neg_mod(moduli_[w], source[w * n + k - n]);
                }
            }
            if (!wide()) return;
            for (size_t j = 0; j < n; ++j) {
                const size_t k = (size_t)at[j];
                if (k < n) continue;
                std::fill(difference.begin(), difference.end(), 0);
                for (size_t w = 0; w < r; ++w) value[w] = source[w * n + k - n];
                wide_.sub(difference.data(), value.data());
                for (size_t w = 0; w < r; ++w) to[w * n + j] = (T)difference[w];
            }
        });
    }
    template <class T> void reduce_integers_to(const Numbers &x, bool is_signed, const Out &out) const {
        const size_t n = last(out), count = last(x), r = rows();
        T *const result = result_of<T>(out, r);
        require(count <= n && x.size() == batch_of(out) * count, "reduce_integers: lengths differ");
        const u64 *source = (const u64 *)x.data();
        for_each_row(batch_of(out), 3e-9 * (double)(n * r), [&](size_t i, const Worker &) {
            const u64 *from = source + i * count;
            T *to = result + i * n * r;
            std::memset(to, 0, n * r * sizeof(T));
            for (size_t w = 0; w < r; ++w) {
                for (size_t j = 0; j < count; ++j) {
                    const bool negative = is_signed && (int64_t)from[j] < 0;
                    const u64 magnitude = negative ? 0 - from[j] : from[j];
                    if (wide()) {
                        if (w == 0) set_wide((u64 *)to + j, n, magnitude, negative);
                    } else {
                        const u64 residue = reduce(moduli_[w], magnitude);
                        to[w * n + j] = (T)(negative ? neg_mod(moduli_[w], residue) : residue);
                    }
                }
            }
        });
    }
    // A machine integer is smaller than any wide modulus.
    void set_wide(u64 *to, size_t stride, u64 magnitude, bool negative) const {
        std::vector<u64> value(rows(), 0), size(rows(), 0);
        size[0] = magnitude;
        if (negative) wide_.sub(value.data(), size.data());
        else value = size;
        for (size_t w = 0; w < rows(); ++w) to[w * stride] = value[w];
    }

    bool narrow_;
    std::vector<Modulus> moduli_;  // empty for a wide modulus
    WideModulus wide_;
};

// ---- transforms ----

class Transform {
  public:
    // forward, inverse: (limbs, 2, points), twiddles and their Shoup quotients (tables.hpp)
    Transform(const Limbs &limbs, size_t degree, size_t base, size_t block, bool negacyclic,
              const Lasting<Array> &forward, const Lasting<Array> &inverse)
        : limbs_(limbs),
          degree_(degree),
          base_(base),
          points_(degree / base),
          block_(block),
          negacyclic_(negacyclic),
          forward_table_(forward.memory),
          inverse_table_(inverse.memory) {
        require(!limbs.wide(), "Transform: no transform modulo a wide modulus");
        for (const Array *table : {&forward.array, &inverse.array})
            require(table->ndim() == 3 && table->shape(0) == limbs.rows() && table->shape(1) == 2 &&
                        table->shape(2) == points_ && table->itemsize() == (limbs.narrow() ? 4 : 8),
                    "Transform: tables must be (limbs, 2, points) words");
    }
    void forward(const Array &x, const Out &out) const {
        limbs_.narrow() ? run<u32, true>(x, out) : run<u64, true>(x, out);
    }
    void inverse(const Array &x, const Out &out) const {
        limbs_.narrow() ? run<u32, false>(x, out) : run<u64, false>(x, out);
    }
    // coefficients to coefficients: both transforms, the product, the inverse, row by row
    void multiply(const Array &a, const Array &b, const Out &out) const {
        limbs_.narrow() ? product<u32, false>(a, b, out) : product<u64, false>(a, b, out);
    }
    // transformed operands, any base: products modulo the leaves
    void multiply_leaves(const Array &a, const Array &b, const Out &out) const {
        limbs_.narrow() ? product<u32, true>(a, b, out) : product<u64, true>(a, b, out);
    }

    const Limbs &limbs() const { return limbs_; }
    size_t points() const { return points_; }
    size_t degree() const { return degree_; }

    template <class T> struct LimbRow : Row<T> {
        const RowKernels<T> *kernels;
    };
    template <class T> LimbRow<T> row(size_t limb, const Worker &worker) const {
        const Modulus &m = limbs_.moduli()[limb];
        const RowKernels<T> &fast = kernels<T>(m, degree_);
        const T *f = (const T *)forward_table_.get() + limb * 2 * points_,
                *i = (const T *)inverse_table_.get() + limb * 2 * points_;
        Twiddles<T> forward{f, f + points_}, inverse{i, i + points_};
        if (fast.numbers) {
            const double *numbers = this->numbers() + limb * 4 * points_;
            forward.number = numbers, forward.ratio = numbers + points_;
            inverse.number = numbers + 2 * points_, inverse.ratio = numbers + 3 * points_;
        }
        return {{&m, forward, inverse, degree_, base_, block_, worker.stop}, &fast};
    }
    template <class T> void forward_row(const T *x, T *y, const LimbRow<T> &r) const {
        if (points_ == 1) std::memmove(y, x, degree_ * sizeof(T));
        else r.kernels->forward(x, y, r);
    }
    template <class T> void inverse_row(const T *x, T *y, const LimbRow<T> &r) const {
        if (points_ == 1) std::memmove(y, x, degree_ * sizeof(T));
        else r.kernels->inverse(x, y, r);
    }
    template <class T> void multiply_leaves_row(const T *a, const T *b, T *y, const Row<T> &r) const {
        const Modulus &m = *r.modulus;
        if (base_ == 1) {
            pointwise_kernels<T>(m).pointwise(Op::mul, a, b, false, a, y, degree_, m);
            return;
        }
        u64 product[MAX_BASE];
        for (size_t leaf = 0; leaf < points_; ++leaf, a += base_, b += base_, y += base_) {
            const u64 constant = leaf_constant(r, leaf);
            for (size_t k = 0; k < base_; ++k) {  // coefficient k of a * b mod X^base - constant
                u64 low = 0, high = 0;
                for (size_t i = 0; i < base_; ++i) {
                    u64 &sum = i <= k ? low : high;
                    sum = add_mod(m, sum, mul_mod(m, a[i], b[(k + base_ - i) % base_]));
                }
                product[k] = add_mod(m, low, mul_mod(m, high, constant));
            }
            for (size_t k = 0; k < base_; ++k) y[k] = (T)product[k];
        }
    }

    static constexpr size_t MAX_BASE = 8;

  private:
    // (limbs, forward and inverse, w and w / q, points): made when an instruction set first needs them.
    const double *numbers() const {
        std::call_once(numbers_made_, [this] {
            numbers_.resize(limbs_.rows() * 4 * points_);
            double *to = numbers_.data();
            for (size_t limb = 0; limb < limbs_.rows(); ++limb)
                for (const Memory *table : {&forward_table_, &inverse_table_}) {
                    const u64 *w = (const u64 *)table->get() + limb * 2 * points_;
                    fill_numbers(limbs_.moduli()[limb], w, points_, to, to + points_);
                    to += 2 * points_;
                }
        });
        return numbers_.data();
    }
    // Leaf i is X^base - c: the two leaves below the twiddle w have c = w and c = -w.
    template <class T> u64 leaf_constant(const Row<T> &r, size_t leaf) const {
        if (points_ == 1) return negacyclic_ ? r.modulus->last : reduce(*r.modulus, 1);
        const u64 w = r.forward.w[points_ / 2 + leaf / 2];
        return leaf % 2 ? neg_mod(*r.modulus, w) : w;
    }
    template <class T, bool FORWARD> void run(const Array &x, const Out &out) const {
        const size_t limbs = limbs_.rows();
        T *const result = result_of<T>(out, limbs);
        const Operand<T> from(x, out, limbs);
        require(from.length() == degree_ && last(out) == degree_, "transform: wrong degree");
        const double seconds = limbs_.slowness() * seconds_transform(degree_);
        for_each_row(batch_of(out) * limbs, seconds, [&](size_t i, const Worker &worker) {
            const LimbRow<T> r = row<T>(i % limbs, worker);
            if (FORWARD) forward_row(from.row(i), result + i * degree_, r);
            else inverse_row(from.row(i), result + i * degree_, r);
        });
    }
    template <class T, bool TRANSFORMED> void product(const Array &a, const Array &b, const Out &out) const {
        require(base_ <= MAX_BASE, "transform: base polynomials are too long");
        const size_t limbs = limbs_.rows(), n = degree_;
        T *const result = result_of<T>(out, limbs);
        const Operand<T> x(a, out, limbs), y(b, out, limbs);
        require(x.length() == n && y.length() == n && last(out) == n, "transform: wrong degree");
        const double leaves = base_ > 1 ? 5e-9 * (double)(n * base_) : limbs_.slowness() * seconds_pointwise(n);
        const double seconds = leaves + (TRANSFORMED ? 0 : 3 * limbs_.slowness() * seconds_transform(n));
        for_each_row(batch_of(out) * limbs, seconds, [&](size_t i, const Worker &worker) {
            const LimbRow<T> r = row<T>(i % limbs, worker);
            const T *u = x.row(i), *v = y.row(i);
            T *to = result + i * n;
            if (TRANSFORMED) return multiply_leaves_row(u, v, to, r);
            T *left = (T *)worker.scratch(2 * n * sizeof(T)), *right = left + n;
            forward_row(u, left, r);
            if (u != v) forward_row(v, right, r);
            multiply_leaves_row(left, u != v ? right : left, left, r);
            inverse_row(left, to, r);
        });
    }

    const Limbs &limbs_;  // kept alive by the binding
    size_t degree_, base_, points_, block_;
    bool negacyclic_;
    Memory forward_table_, inverse_table_;
    mutable std::once_flag numbers_made_;
    mutable std::vector<double> numbers_;
};

// Products modulo anything: exact over the integers modulo enough primes, then reduced.
class Auxiliary {
  public:
    // transform: over the auxiliary primes, of degree `degree` and the ring's kind, or cyclic and long enough
    // for the linear product, which is then folded.
    Auxiliary(const Limbs &limbs, const Transform &transform, size_t degree, bool negacyclic)
        : limbs_(limbs),
          transform_(transform),
          degree_(degree),
          negacyclic_(negacyclic),
          radix_(transform.limbs().moduli()) {
        require(!transform.limbs().narrow(), "Auxiliary: 64-bit words");
        require(transform.degree() == degree || transform.degree() >= 2 * degree - 1, "Auxiliary: transform too short");
        for (const Modulus &p : radix_.primes) {
            require(p.bits == radix_.primes[0].bits && p.bits <= 62, "Auxiliary: primes of one bit length, at most 62");
            for (size_t i = 0; i < (limbs.wide() ? 1 : limbs.rows()); ++i) {
                std::vector<u64> q = limbs.wide() ? limbs.wide_modulus().q : std::vector<u64>{limbs.moduli()[i].q};
                if (q.back() == 0) q.push_back(1);  // a power of 2^64
                q_mod_p_.push_back(residue(p, q.data(), q.size(), 1));
            }
        }
        for (size_t i = 0; i < (limbs.wide() ? 1 : limbs.rows()); ++i) {
            std::vector<u64> product = reduced_product(i);
            product_mod_q_.insert(product_mod_q_.end(), product.begin(), product.end());
        }
    }

    void multiply(const Array &a, const Array &b, const Out &out) const {
        limbs_.narrow() ? run<u32>(a, b, out) : run<u64>(a, b, out);
    }

  private:
    size_t limbs_count() const { return limbs_.wide() ? 1 : limbs_.rows(); }
    size_t words() const { return limbs_.wide() ? limbs_.rows() : 1; }

    // x mod p of little-endian words at x[0], x[stride], ...
    template <class T> static u64 residue(const Modulus &p, const T *x, size_t words, size_t stride) {
        u64 r = 0;
        for (size_t w = words; w-- > 0;) r = reduce(p, r, x[w * stride]);
        return r;
    }
    // Horner's rule over mixed-radix digits, modulo limb `limb`; value, scratch: words() and words() + 1
    void compose(const u64 *digits, size_t limb, u64 *value, u64 *scratch) const {
        const size_t k = radix_.primes.size();
        if (limbs_.wide()) {
            std::fill(value, value + words(), 0);
            for (size_t i = k; i-- > 0;) limbs_.wide_modulus().horner(value, radix_.primes[i].q, digits[i], scratch);
        } else {
            const Modulus &m = limbs_.moduli()[limb];
            u64 v = 0;
            for (size_t i = k; i-- > 0;) {
                u128 z = (u128)v * radix_.primes[i].q + digits[i];
                v = m.q == 0 ? (u64)z : reduce(m, reduce(m, (u64)(z >> 64)), (u64)z);
            }
            *value = v;
        }
    }
    // p_0 ... p_{k-1} mod q of one limb: (P - 1) + 1 through its digits p_i - 1
    std::vector<u64> reduced_product(size_t limb) const {
        std::vector<u64> digits, value(words()), scratch(words() + 1), one(words(), 0);
        for (const Modulus &p : radix_.primes) digits.push_back(p.q - 1);
        compose(digits.data(), limb, value.data(), scratch.data());
        one[0] = 1;
        if (limbs_.wide()) limbs_.wide_modulus().add(value.data(), one.data());
        else value[0] = add_mod(limbs_.moduli()[limb], value[0], 1);
        return value;
    }
    // Whether x > q/2, so that x - q is the smaller representative.
    template <class T> bool upper_half(size_t limb, const T *x, size_t stride) const {
        if (!limbs_.wide()) return *x > limbs_.moduli()[limb].last / 2;
        const std::vector<u64> &q = limbs_.wide_modulus().q;
        const u64 above = limbs_.wide_modulus().whole;  // the word beyond the last
        for (size_t w = q.size(); w-- > 0;) {           // compare x with floor(q / 2)
            const u64 half = q[w] >> 1 | (w + 1 < q.size() ? q[w + 1] : above) << 63;
            if (x[w * stride] != half) return x[w * stride] > half;
        }
        return false;
    }
    // Centred residues of one polynomial modulo every prime, zero-padded to the transform's degree.
    template <class T> void spread(const T *x, size_t limb, u64 *y, const Worker &worker) const {
        const size_t length = transform_.degree(), k = radix_.primes.size();
        std::vector<bool> upper(degree_);
        for (size_t j = 0; j < degree_; ++j) upper[j] = upper_half(limb, x + j, degree_);
        for (size_t i = 0; i < k && !stopped(worker.stop); ++i) {
            const Modulus &p = radix_.primes[i];
            const u64 q_mod_p = q_mod_p_[i * limbs_count() + limb];
            u64 *to = y + i * length;
            for (size_t j = 0; j < degree_; ++j) {
                const u64 r = residue(p, x + j, words(), degree_);
                to[j] = upper[j] ? sub_mod(p, r, q_mod_p) : r;
            }
            std::fill(to + degree_, to + length, 0);
        }
    }
    template <class T> void run(const Array &a, const Array &b, const Out &out) const {
        const size_t rows = limbs_.rows(), limbs = limbs_count(), length = transform_.degree(),
                     k = radix_.primes.size();
        T *const result = result_of<T>(out, rows);
        const Operand<T> x(a, out, rows), y(b, out, rows);
        require(x.length() == degree_ && y.length() == degree_ && last(out) == degree_, "product: wrong degree");
        const double seconds = (double)k * (4 * transform_.limbs().slowness() * seconds_transform(length) +
                                            5e-9 * (double)(degree_ * (k + 2 * words())));
        for_each_row(batch_of(out) * limbs, seconds, [&](size_t unit, const Worker &worker) {
            const size_t item = unit / limbs, limb = unit % limbs;
            const size_t offset = limbs_.wide() ? 0 : limb * degree_;
            const T *u = x.item(item) + offset, *v = y.item(item) + offset;
            u64 *left = (u64 *)worker.scratch((u == v ? 1 : 2) * k * length * sizeof(u64));
            u64 *right = u == v ? left : left + k * length;
            spread(u, limb, left, worker);
            if (u != v) spread(v, limb, right, worker);
            for (size_t i = 0; i < k && !stopped(worker.stop); ++i) {
                const auto r = transform_.row<u64>(i, worker);
                u64 *left_i = left + i * length, *right_i = right + i * length;
                transform_.forward_row(left_i, left_i, r);
                if (u != v) transform_.forward_row(right_i, right_i, r);
                transform_.multiply_leaves_row(left_i, right_i, left_i, r);
                transform_.inverse_row(left_i, left_i, r);
            }
            gather(left, limb, result + item * rows * degree_ + offset, worker);
        });
    }
    // Residues modulo the primes to residues modulo q; a linear product is folded by X^degree = -1 or 1.
    template <class T> void gather(const u64 *x, size_t limb, T *y, const Worker &worker) const {
        const size_t length = transform_.degree(), k = radix_.primes.size(), n = words();
        const bool fold = length != degree_;
        std::vector<u64> digits(k), value(n), folded(n), scratch(n + 1);
        for (size_t j = 0; j < degree_ && !stopped(worker.stop); ++j) {
            signed_value(x + j, limb, digits.data(), value.data(), scratch.data());
            if (fold && j + 1 < degree_) {
                signed_value(x + j + degree_, limb, digits.data(), folded.data(), scratch.data());
                combine(limb, value.data(), folded.data(), negacyclic_);
            }
            for (size_t w = 0; w < n; ++w) y[w * degree_ + j] = (T)value[w];
        }
    }
    void signed_value(const u64 *x, size_t limb, u64 *digits, u64 *value, u64 *scratch) const {
        radix_.digits(x, transform_.degree(), digits);
        compose(digits, limb, value, scratch);
        if (radix_.negative(digits)) combine(limb, value, product_mod_q_.data() + limb * words(), true);
    }
    void combine(size_t limb, u64 *x, const u64 *y, bool subtract) const {
        if (limbs_.wide()) subtract ? limbs_.wide_modulus().sub(x, y) : limbs_.wide_modulus().add(x, y);
        else *x = subtract ? sub_mod(limbs_.moduli()[limb], *x, *y) : add_mod(limbs_.moduli()[limb], *x, *y);
    }

    const Limbs &limbs_;  // both kept alive by the binding
    const Transform &transform_;
    size_t degree_;
    bool negacyclic_;
    MixedRadix radix_;
    std::vector<u64> q_mod_p_;        // [prime * limbs + limb]
    std::vector<u64> product_mod_q_;  // words of the product of the primes, by limb
};

// Products over the integers by complex transforms of digits, then reduced.
class FftProduct {
  public:
    // length: degree for X^degree + 1 with degree a power of two, else at least 2 degree - 1, for the linear
    // product, which is then folded. Each limb of q = 2^e drops the sums whose weights vanish.
    FftProduct(const Limbs &limbs, size_t degree, size_t length, bool negacyclic, unsigned digits, unsigned width,
               unsigned sums, const Lasting<Numbers> &table)
        : limbs_(limbs),
          degree_(degree),
          length_(length),
          negacyclic_(negacyclic),
          digits_(digits),
          width_(width),
          sums_(sums),
          table_(table.memory) {
        require(!limbs.wide(), "FftProduct: moduli of at most 64 bits");
        require(length >= 2 && (length & (length - 1)) == 0 && degree >= 1 &&
                    ((negacyclic && length == degree) || length >= 2 * degree - 1),
                "FftProduct: length, a power of two, must be degree (negacyclic) or hold the linear product");
        require(digits >= 1 && digits <= MAX_DIGITS && width >= 2 && width <= 30 && sums >= 1 && sums <= 2 * digits - 1,
                "FftProduct: 1 to 8 digits of 2 to 30 bits, 1 to 2 digits - 1 sums");
        require(table.array.hold<std::complex<double>>() && table.array.size() == length / 2,
                "FftProduct: length/2 twiddles");
        // A sum is at most digits * degree * 2^(2 width - 2) <= 2^bound in size. With weights 2^(width i), i < group,
        // neighbours are below 2^(bound + width (group - 1)) / (1 - 2^-width) < 2^61 together.
        const unsigned bound = 2 * width - 2 + 64 - (unsigned)__builtin_clzll((digits * degree - 1) | 1);
        require(bound <= 51, "FftProduct: sums of products of digits beyond 2^51");
        group_ = 1 + (60 - bound) / width;
        for (const Modulus &m : limbs.moduli()) {
            require(digits * width >= bits_below(m), "FftProduct: the digits do not hold the modulus");
            for (unsigned i = 0; i < MAX_SUMS; ++i) {
                weights_.push_back(pow_mod(m, reduce(m, 2), i * group_ * width));
                shoup_.push_back(m.bits <= 62 ? shoup_quotient(m, weights_.back()) : 0);
            }
        }
    }

    void multiply(const Array &a, const Array &b, const Out &out) const {
        limbs_.narrow() ? run<u32>(a, b, out) : run<u64>(a, b, out);
    }

  private:
    // bits of q - 1
    static unsigned bits_below(const Modulus &m) { return 64 - (unsigned)__builtin_clzll(m.last | 1); }
    static const ProductKernels<u32> &slot(const Isa &isa, u32) { return isa.product32; }
    static const ProductKernels<u64> &slot(const Isa &isa, u64) { return isa.product64; }

    ProductRow row(size_t limb, const Worker &worker) const {
        const Modulus &m = limbs_.moduli()[limb];
        unsigned sums = sums_;
        if ((m.q & m.last) == 0) sums = std::min(sums, (bits_below(m) + width_ - 1) / width_);
        return {&m,
                (const Complex *)table_.get(),
                degree_,
                length_,
                BLOCK,
                digits_,
                width_,
                sums,
                group_,
                weights_.data() + limb * MAX_SUMS,
                shoup_.data() + limb * MAX_SUMS,
                worker.stop};
    }
    template <class T> void run(const Array &a, const Array &b, const Out &out) const {
        const size_t limbs = limbs_.rows(), n = degree_;
        T *const result = result_of<T>(out, limbs);
        const Operand<T> x(a, out, limbs), y(b, out, limbs);
        require(x.length() == n && y.length() == n && last(out) == n, "product: wrong degree");
        const ProductKernels<T> &fast = slot(*current_isa.load(std::memory_order_relaxed), T());
        const auto multiply_row = length_ >= fast.least_length ? fast.multiply : slot(isa_portable, T()).multiply;
        const size_t numbers = (size_t)digits_ * length_;
        const double seconds = (double)(2 * digits_ + sums_) * 0.2 * seconds_transform(length_);
        for_each_row(batch_of(out) * limbs, seconds, [&](size_t i, const Worker &worker) {
            const ProductRow r = row(i % limbs, worker);
            T *to = result + i * n;
            Complex *scratch = (Complex *)worker.scratch(numbers * sizeof(Complex) + length_ * sizeof(T));
            if (length_ == n) return multiply_row(x.row(i), y.row(i), scratch, to, r);
            T *linear = (T *)(scratch + numbers);
            multiply_row(x.row(i), y.row(i), scratch, linear, r);
            pointwise_kernels<T>(*r.modulus)
                .pointwise(negacyclic_ ? Op::sub : Op::add, linear, linear + n, false, linear, to, n - 1, *r.modulus);
            to[n - 1] = linear[n - 1];
        });
    }

    static constexpr size_t BLOCK = 2048;  // 32 KiB, for a core's first cache

    const Limbs &limbs_;  // kept alive by the binding
    size_t degree_, length_;
    bool negacyclic_;
    unsigned digits_, width_, sums_, group_;
    std::vector<u64> weights_, shoup_;  // [limb * MAX_SUMS + group]
    Memory table_;
};

template <class T> void fill_words(u64 q, u64 root, bool negacyclic, const Out &forward, const Out &inverse) {
    const size_t points = last(forward);
    require(points >= 2 && (points & (points - 1)) == 0 && last(inverse) == points && forward.size() == 2 * points &&
                inverse.size() == 2 * points,
            "fill_twiddles: tables of (2, points), points a power of two");
    T *const w = result_of<T>(forward, 2), *const v = result_of<T>(inverse, 2);
    GilReleased released;
    fill_twiddles<T>(q, root, negacyclic, points, w, w + points, v, v + points);
}
void fill(u64 q, u64 root, bool negacyclic, const Out &forward, const Out &inverse) {
    forward.hold<u32>() ? fill_words<u32>(q, root, negacyclic, forward, inverse)
                        : fill_words<u64>(q, root, negacyclic, forward, inverse);
}

// ---- the complex FFT ----

// Rows of `points` complex numbers with parts of type T
template <class T, class A> auto *complex_rows(const A &x, size_t rows, size_t points) {
    require(x.ndim() == 2 && x.template hold<std::complex<T>>(), "fft: (rows, points) of one complex dtype");
    require(x.shape(0) == rows && x.shape(1) == points, "fft: shapes differ");
    return x.data();
}
template <class F> void dispatch_precision(const Out &out, const F &run) {
    if (out.hold<std::complex<float>>()) run(float());
    else if (out.hold<std::complex<double>>()) run(double());
    else throw std::invalid_argument("fft: complex64 or complex128");
}
const FftKernels<float> &slot(const Isa &isa, float) { return isa.fft_float; }
const FftKernels<double> &slot(const Isa &isa, double) { return isa.fft_double; }

// Rows in pieces of about 8192 values, work that outweighs handing it out; body(first row, rows, worker)
template <class F> void for_rows_of(size_t rows, size_t points, double transforms, const F &body) {
    const size_t piece = std::max<size_t>(1, 8192 / points), pieces = (rows + piece - 1) / piece;
    for_each_row(pieces, 0.1 * transforms * seconds_transform(points) * (double)piece,
                 [&](size_t i, const Worker &worker) { body(i * piece, std::min(piece, rows - i * piece), worker); });
}

void fft(const Numbers &x, const Out &out, bool inverse) {
    dispatch_precision(out, [&](auto precision) {
        using T = decltype(precision);
        require(out.ndim() == 2, "fft: (rows, points)");
        const size_t rows = out.shape(0), points = out.shape(1);
        require(points > 0 && (points & (points - 1)) == 0 && points <= FFT_MAX_POINTS,
                "fft: points must be a power of two, at most 4096");
        const T *from = (const T *)complex_rows<T>(x, rows, points);
        T *to = (T *)complex_rows<T>(out, rows, points);
        const Fft<T> plan = make_fft<T>(points);
        const FftKernels<T> &kernels = slot(*current_isa.load(std::memory_order_relaxed), T());
        for_rows_of(rows, points, 1, [&](size_t first, size_t count, const Worker &worker) {
            T *scratch = (T *)worker.scratch(fft_scratch(points) * sizeof(T));
            const size_t at = 2 * points * first;
            kernels.transform(from + at, to + at, count, inverse, plan, scratch);
        });
    });
}

void convolve64(const Numbers &a, const Numbers &b, const Out &out) {
    dispatch_precision(out, [&](auto precision) {
        using T = decltype(precision);
        require(out.ndim() == 2 && b.ndim() == 2, "fft: (rows, points)");
        const size_t rows = out.shape(0);
        const bool shared = b.shape(0) == 1;
        const T *x = (const T *)complex_rows<T>(a, rows, 64), *y = (const T *)complex_rows<T>(b, shared ? 1 : rows, 64);
        T *to = (T *)complex_rows<T>(out, rows, 64);
        const Fft<T> plan = make_fft<T>(64);
        const FftKernels<T> &kernels = slot(*current_isa.load(std::memory_order_relaxed), T());
        alignas(64) T filter[128];
        if (shared) kernels.transform(y, filter, 1, false, plan, nullptr);
        for_rows_of(rows, 64, shared ? 2 : 3, [&](size_t first, size_t count, const Worker &) {
            const size_t at = 128 * first;
            kernels.convolve64(x + at, shared ? filter : y + at, shared, to + at, count, plan);
        });
    });
}

// The clock in GHz while steps run that wait for each other: an addition and a rotation, one cycle each. Of
// registers: sums with constants are done by some processors before they are due, without a cycle of their own.
double clock_ghz() {
    constexpr long ROUNDS = 200'000, STEPS = 16;
    double best = 0;
    for (int attempt = 0; attempt < 5; ++attempt) {
        auto begin = std::chrono::steady_clock::now();
        u64 x = 1, y = 0x9e3779b97f4a7c15;
        for (long i = 0; i < ROUNDS; ++i)
            for (long k = 0; k < STEPS; ++k) {
                asm volatile("" : "+r"(x), "+r"(y));  // nothing is known of them
                x += y;
                x = x << 7 | x >> 57;
            }
        asm volatile("" : : "r"(x));
        double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
        best = std::max(best, (double)(2 * ROUNDS * STEPS) / ns);
    }
    return best;
}

// Memory that runs out is polygpu.errors.OutOfHostMemory in Python.
void translate_bad_alloc(const std::exception_ptr &failure, void *) {
    try {
        std::rethrow_exception(failure);
    } catch (const std::bad_alloc &error) {
        const auto *sized = dynamic_cast<const OutOfMemory *>(&error);
        const std::string need =
            sized ? std::to_string((sized->bytes >> 20) + 1) + " MiB of scratch memory" : "more memory";
        const nb::object type = nb::module_::import_("polygpu.errors").attr("OutOfHostMemory");
        PyErr_SetString(type.ptr(), ("this call needs " + need +
                                     ", and the system gives none (a limit of addresses, ulimit -v, counts too); "
                                     "take smaller batches, or fewer threads")
                                        .c_str());
    }
}

}  // namespace
}  // namespace pg

NB_MODULE(_cpu, module) {
    using namespace pg;
    nb::register_exception_translator(translate_bad_alloc);
    static const Python python;
    set_caller(python);
    nb::set_leak_warnings(false);  // plans in Python's caches live until the interpreter ends
    nb::class_<Limbs>(module, "Limbs")
        .def(nb::init<const Numbers &, int>(), nb::arg("moduli"), nb::arg("storage_bits"))
        .def("pointwise", &Limbs::pointwise, nb::arg("op"), nb::arg("a"), nb::arg("b").none(), nb::arg("c").none(),
             nb::arg("out"))
        .def("permute", &Limbs::permute, nb::arg("x"), nb::arg("index"), nb::arg("out"))
        .def("reduce_integers", &Limbs::reduce_integers, nb::arg("x"), nb::arg("out"))
        .def("reduce_words", &Limbs::reduce_words, nb::arg("words"), nb::arg("limb"), nb::arg("out"))
        .def("matmul", &Limbs::matmul, nb::arg("a"), nb::arg("b"), nb::arg("out"))
        .def("matmul_points", &Limbs::matmul_points, nb::arg("a"), nb::arg("b"), nb::arg("out"));
    nb::class_<Transform>(module, "Transform")
        .def(nb::init<const Limbs &, size_t, size_t, size_t, bool, const Lasting<Array> &, const Lasting<Array> &>(),
             nb::keep_alive<1, 2>(), nb::arg("limbs"), nb::arg("degree"), nb::arg("base"), nb::arg("block"),
             nb::arg("negacyclic"), nb::arg("forward"), nb::arg("inverse"))
        .def("forward", &Transform::forward, nb::arg("x"), nb::arg("out"))
        .def("inverse", &Transform::inverse, nb::arg("x"), nb::arg("out"))
        .def("multiply", &Transform::multiply, nb::arg("a"), nb::arg("b"), nb::arg("out"))
        .def("multiply_leaves", &Transform::multiply_leaves, nb::arg("a"), nb::arg("b"), nb::arg("out"));
    nb::class_<Auxiliary>(module, "Auxiliary")
        .def(nb::init<const Limbs &, const Transform &, size_t, bool>(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
             nb::call_guard<GilReleased>(),  // many moduli take long
             nb::arg("limbs"), nb::arg("transform"), nb::arg("degree"), nb::arg("negacyclic"))
        .def("multiply", &Auxiliary::multiply, nb::arg("a"), nb::arg("b"), nb::arg("out"));
    nb::class_<FftProduct>(module, "FftProduct")
        .def(nb::init<const Limbs &, size_t, size_t, bool, unsigned, unsigned, unsigned, const Lasting<Numbers> &>(),
             nb::keep_alive<1, 2>(), nb::arg("limbs"), nb::arg("degree"), nb::arg("length"), nb::arg("negacyclic"),
             nb::arg("digits"), nb::arg("width"), nb::arg("sums"), nb::arg("table"))
        .def("multiply", &FftProduct::multiply, nb::arg("a"), nb::arg("b"), nb::arg("out"));
    module.def("fill_twiddles", &fill, nb::arg("q"), nb::arg("root"), nb::arg("negacyclic"), nb::arg("forward"),
               nb::arg("inverse"));
    module.def("smallest_generator", &smallest_generator, nb::arg("q"), nb::arg("root"), nb::arg("order"),
               nb::call_guard<GilReleased>());
    module.def("fft", &fft, nb::arg("x"), nb::arg("out"), nb::arg("inverse"));
    module.def("convolve64", &convolve64, nb::arg("a"), nb::arg("b"), nb::arg("out"));
    module.def("supported_isas", [] {
        std::vector<std::string> names;
        for (const Isa *isa : {&isa_avx512, &isa_avx2, &isa_portable})
            if (supported(*isa)) names.push_back(isa->name);
        return names;
    });
    module.def("isa", [] { return std::string(current_isa.load()->name); });
    module.def(
        "set_isa",
        [](const std::string &name) {
            for (const Isa *isa : {&isa_avx512, &isa_avx2, &isa_portable})
                if (supported(*isa) && name == isa->name) {
                    current_isa = isa;
                    return;
                }
            throw std::invalid_argument("this CPU has no " + name);
        },
        nb::arg("name"));
    module.def("set_num_threads", &set_num_threads, nb::arg("count"));
    module.def("num_threads", &num_threads);
    module.def("clock_ghz", &clock_ghz, nb::call_guard<GilReleased>());
}
