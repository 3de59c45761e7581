#include "transform.hpp"

#include <memory>

#include "dispatch.hpp"
#include "tables.hpp"

namespace pg {

namespace {
constexpr size_t MAX_LEAF_SIZE = 8;
constexpr bool is_leaf_size(size_t size) { return size == 3 || (size & (size - 1)) == 0; }

// Writes the transpose of x to y, which has `rows` rows and `columns` columns: y[i * columns + j] = x[j * rows + i].
template <class T> void transpose(const T *x, T *y, size_t columns, size_t rows) {
    for (size_t i = 0; i < rows; ++i)
        for (size_t j = 0; j < columns; ++j) y[i * columns + j] = x[j * rows + i];
}
}  // namespace

PrimeTables::PrimeTables(u64 modulus, const Lasting<Array> &forward, const Lasting<Array> &inverse)
    : modulus_(modulus), tables_{forward.memory, inverse.memory} {
    require(forward.array.ndim() == 2, "PrimeTables: tables must be (2, points) words");
    points_ = last(forward.array), word_bytes_ = forward.array.itemsize();
    for (const Array *table : {&forward.array, &inverse.array})
        require(table->ndim() == 2 && table->shape(0) == 2 && last(*table) == points_ &&
                    table->itemsize() == word_bytes_ && (word_bytes_ == 4 || word_bytes_ == 8),
                "PrimeTables: tables must be (2, points) words");
}

template <class T> Twiddles<T> PrimeTables::twiddles(int direction, bool numbers) const {
    const T *const w = (const T *)tables_[direction].get();
    Twiddles<T> made{w, w + points_};
    if (numbers) {
        made.number = this->numbers() + direction * 2 * points_;
        made.ratio = made.number + points_;
    }
    return made;
}

// Returns doubles (2, 2, points). Axis 0: forward, inverse transform. Axis 1: twiddles w, w / q. The first call makes
// the doubles from 64-bit words.
const double *PrimeTables::numbers() const {
    const auto make = [this] {
        std::vector<double> numbers(4 * points_);
        const Modulus m = make_modulus(modulus_);
        for (int i : {0, 1}) {
            double *const to = &numbers[i * 2 * points_];
            fill_numbers(m, (const u64 *)tables_[i].get(), points_, to, to + points_);
        }
        return numbers;
    };
    return numbers_.get(make).data();
}

Transform::Transform(const Basis &basis, size_t degree, size_t leaf_size, size_t block, Quotient quotient,
                     const std::vector<const PrimeTables *> &tables)
    : basis_(basis),
      degree_(degree),
      leaf_size_(leaf_size),
      points_(leaf_size ? degree / leaf_size : 0),
      block_(block),
      quotient_(quotient),
      tables_(tables) {
    require(!basis.wide(), "Transform: no transform modulo a wide modulus");
    require(is_leaf_size(leaf_size), "Transform: leaves of 2^k or 3 coefficients");
    require(tables.size() == basis.rows(), "Transform: one table a limb");
    for (const PrimeTables *table : tables)
        require(table && table->points() == points_ && table->word_bytes() == (basis.narrow() ? 4 : 8),
                "Transform: tables of other points or words");
}

// Kernels take leaves of 2^k coefficients. A transform with leaves of 3 coefficients is three complete transforms in
// X^3. Transform r takes the coefficients r, r + 3, r + 6, ...
template <class T> template <bool FORWARD> void Transform::LimbRow<T>::run(const T *x, T *y) const {
    const auto kernel = FORWARD ? kernels->forward : kernels->inverse;
    const size_t n = this->degree, size = this->leaf_size;
    if (n == size) return (void)std::memmove(y, x, n * sizeof(T));
    if (size != 3) return kernel(x, y, *this);
    Row<T> third = *this;
    third.degree = n / size, third.leaf_size = 1;
    const std::unique_ptr<T[]> parts(new T[n]);  // scratch memory of the thread may be in use
    transpose(x, parts.get(), third.degree, size);
    for (size_t i = 0; i < n; i += third.degree) kernel(&parts[i], &parts[i], third);
    transpose(parts.get(), y, size, third.degree);
}

template <class T> Transform::LimbRow<T> Transform::row(size_t limb, const Worker &worker) const {
    const Modulus &m = basis_.moduli()[limb];
    const RowKernels<T> &fast = kernels<T>(m, leaf_size_ == 3 ? points_ : degree_);
    const PrimeTables &tables = *tables_[limb];
    return {{&m, tables.forward<T>(fast.numbers), tables.inverse<T>(fast.numbers), degree_, leaf_size_, block_,
             worker.stop, quotient_},
            &fast};
}

template Transform::LimbRow<u32> Transform::row(size_t, const Worker &) const;
template Transform::LimbRow<u64> Transform::row(size_t, const Worker &) const;
template void Transform::LimbRow<u32>::run<true>(const u32 *, u32 *) const;
template void Transform::LimbRow<u32>::run<false>(const u32 *, u32 *) const;
template void Transform::LimbRow<u64>::run<true>(const u64 *, u64 *) const;
template void Transform::LimbRow<u64>::run<false>(const u64 *, u64 *) const;

// Computes y = a * b modulo `some` leaves of SIZE coefficients, beginning with `leaf`. Row i of u, v and w holds
// coefficient i of a, b and y for all these leaves.
template <class T, size_t SIZE>
void Transform::multiply_leaves(const T *a, const T *b, T *y, size_t leaf, size_t some, const Row<T> &r) const {
    const Modulus &m = *r.modulus;
    const auto operation = pointwise_kernels<T>(m).pointwise;
    T u[SIZE][LEAVES], v[SIZE][LEAVES], w[SIZE][LEAVES], constant[LEAVES];
    node_constants(r.quotient, m, r.forward.w, points_ + leaf, some, constant);
    for (size_t j = 0; j < some; ++j)
        for (size_t i = 0; i < SIZE; ++i) u[i][j] = a[j * SIZE + i], v[i][j] = b[j * SIZE + i];
    for (size_t k = 0; k < SIZE; ++k) {  // coefficient k of u * v mod X^SIZE - constant
        const T *sum = nullptr;
        const auto add = [&](const T *x, const T *factor) {
            operation(sum ? Op::mul_add : Op::mul, x, factor, false, sum, w[k], some, m);
            sum = w[k];
        };
        for (size_t i = k + 1; i < SIZE; ++i) add(u[i], v[k + SIZE - i]);
        if (sum) operation(Op::mul, sum, constant, false, nullptr, w[k], some, m);
        for (size_t i = 0; i <= k; ++i) add(u[i], v[k - i]);
    }
    for (size_t j = 0; j < some; ++j)
        for (size_t i = 0; i < SIZE; ++i) y[j * SIZE + i] = w[i][j];
}

template <class T> void Transform::multiply_eval_row(const T *a, const T *b, T *y, const Row<T> &r) const {
    if (leaf_size_ == 1) {
        const Modulus &m = *r.modulus;
        return pointwise_kernels<T>(m).pointwise(Op::mul, a, b, false, a, y, degree_, m);
    }
    for (size_t leaf = 0; leaf < points_; leaf += LEAVES) {
        const size_t some = std::min(LEAVES, points_ - leaf), at = leaf * leaf_size_;
        if (leaf_size_ == 2) multiply_leaves<T, 2>(a + at, b + at, y + at, leaf, some, r);
        else if (leaf_size_ == 3) multiply_leaves<T, 3>(a + at, b + at, y + at, leaf, some, r);
        else if (leaf_size_ == 4) multiply_leaves<T, 4>(a + at, b + at, y + at, leaf, some, r);
        else multiply_leaves<T, MAX_LEAF_SIZE>(a + at, b + at, y + at, leaf, some, r);
    }
}

template <class T>
void Transform::multiply_row(const T *a, const T *b, T *left, T *right, T *y, size_t limb, const Worker &worker) const {
    const LimbRow<T> r = row<T>(limb, worker);
    r.ntt(a, left);
    if (a != b) r.ntt(b, right);
    multiply_eval_row(left, a != b ? right : left, left, r);
    r.intt(left, y);
}
template void Transform::multiply_row(const u64 *, const u64 *, u64 *, u64 *, u64 *, size_t, const Worker &) const;

template <class T, bool FORWARD> void Transform::run(const Array &x, const Out &out, size_t first) const {
    require(out.ndim() >= 2, "transform: an array without rows");
    const size_t limbs = basis_.rows(), rows = out.shape(out.ndim() - 2);
    T *const result = result_of<T>(out, rows);
    const Operand<T> from(x, out, rows);
    require(from.length() == degree_ && last(out) == degree_, "transform: wrong degree");
    require(first <= rows && limbs <= rows - first, "transform: fewer rows than limbs");
    const double seconds = basis_.seconds_transform(degree_);
    for_each_row(batch_of(out) * limbs, seconds, [&](size_t i, const Worker &worker) {
        const LimbRow<T> r = row<T>(i % limbs, worker);
        const size_t at = i / limbs * rows + first + i % limbs;
        FORWARD ? r.ntt(from.row(at), result + at * degree_) : r.intt(from.row(at), result + at * degree_);
    });
}

template <class T, bool TRANSFORMED> void Transform::product(const Array &a, const Array &b, const Out &out) const {
    require(leaf_size_ <= MAX_LEAF_SIZE, "transform: leaf_size polynomials are too long");
    const size_t limbs = basis_.rows(), n = degree_;
    T *const result = result_of<T>(out, limbs);
    const Operand<T> x(a, out, limbs), y(b, out, limbs);
    require(x.length() == n && y.length() == n && last(out) == n, "transform: wrong degree");
    const double leaf = leaf_size_ > 1 ? 5 + 1.3 * (double)leaf_size_ : 1;  // pointwise operations for a coefficient
    const double leaves = basis_.seconds_products(leaf * (double)n);
    const double seconds = leaves + (TRANSFORMED ? 0 : 3 * basis_.seconds_transform(n));
    for_each_row(batch_of(out) * limbs, seconds, [&](size_t i, const Worker &worker) {
        const T *u = x.row(i), *v = y.row(i);
        T *to = result + i * n;
        if (TRANSFORMED) return multiply_eval_row(u, v, to, row<T>(i % limbs, worker));
        T *left = (T *)worker.scratch(2 * n * sizeof(T));
        multiply_row(u, v, left, left + n, to, i % limbs, worker);
    });
}

void Transform::ntt(const Array &x, const Out &out, size_t first) const {
    basis_.visit([&](auto word) { run<decltype(word), true>(x, out, first); });
}

void Transform::intt(const Array &x, const Out &out, size_t first) const {
    basis_.visit([&](auto word) { run<decltype(word), false>(x, out, first); });
}

void Transform::multiply(const Array &a, const Array &b, const Out &out) const {
    basis_.visit([&](auto word) { product<decltype(word), false>(a, b, out); });
}

void Transform::multiply_eval(const Array &a, const Array &b, const Out &out) const {
    basis_.visit([&](auto word) { product<decltype(word), true>(a, b, out); });
}

}  // namespace pg
