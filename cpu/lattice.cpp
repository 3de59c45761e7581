#include "lattice.hpp"

#include <algorithm>
#include <complex>
#include <cstring>

#include "dispatch.hpp"
#include "threads.hpp"

namespace pg {
namespace {
constexpr size_t COMPONENTS = 2;  // components of a key's entry and of the result

// sum = x * y if this is the first product, else sum += x * y.
template <class T> void add_product(const T *x, const T *y, T *sum, bool first, size_t n, const Modulus &m) {
    pointwise_kernels<T>(m).pointwise(first ? Op::mul : Op::mul_add, x, y, false, first ? nullptr : sum, sum, n, m);
}

// Whether one call of multiply_points computes a sum of `terms` products of rows faster than `terms` calls of
// add_product, by measurements with rows outside the caches. For q < 2^50 in 64-bit words, add_product has fast
// kernels.
template <class T> bool prefers_gemm(const Modulus &m, size_t terms) {
    return terms > 3 && (sizeof(T) == 4 || m.bits > 50);
}
}  // namespace

DigitProduct::DigitProduct(const Transform &transform, size_t digits, std::vector<size_t> own_digits,
                           std::vector<size_t> own_rows, size_t own_total, std::vector<size_t> key_rows,
                           size_t key_total, bool transformed)
    : transform_(transform),
      digits_(digits),
      own_digits_(std::move(own_digits)),
      own_rows_(std::move(own_rows)),
      own_total_(own_total),
      key_rows_(std::move(key_rows)),
      key_total_(key_total),
      transformed_(transformed) {
    const size_t limbs = transform.basis().rows();
    require(own_digits_.size() == limbs && own_rows_.size() == limbs && key_rows_.size() == limbs && digits,
            "DigitProduct: one entry a limb, and at least a digit");
    for (size_t r = 0; r < limbs; ++r)
        require(own_digits_[r] <= digits && (own_digits_[r] == digits || own_rows_[r] < own_total) &&
                    key_rows_[r] < key_total,
                "DigitProduct: no such row");
}

template <class T>
void DigitProduct::run_words(const Array &digits, const Array &own, const Array &key, const Out &out) const {
    const size_t limbs = transform_.basis().rows(), n = transform_.degree();
    T *const result = result_of<T>(out, limbs);
    const size_t items = batch_of(out) / COMPONENTS;
    const auto is = [&](const Array &x, size_t count, size_t rows) {
        return x && x.itemsize() == sizeof(T) && x.size() == count * rows * n && last(x) == n;
    };
    require(last(out) == n && batch_of(out) == COMPONENTS * items && is(digits, items * digits_, limbs) &&
                (own_total_ == 0 || is(own, items, own_total_)),
            "DigitProduct: wrong dtype or shape");
    require(key.itemsize() == sizeof(T) && last(key) == n && key.size() >= digits_ * COMPONENTS * key_total_ * n,
            "DigitProduct: a key of another shape");
    const T *const x = (const T *)digits.data(), *const value = (const T *)own.data(),
                   *const keys = (const T *)key.data();
    const Basis &basis = transform_.basis();
    const double seconds = (transformed_ ? 0 : basis.seconds_transform(n)) + basis.seconds_pointwise(3 * n);
    // Rows lie a cache line further apart than needed, so that they do not compete for the same few sets of a cache.
    const size_t step = n + 64 / sizeof(T);
    for_each_row(items * limbs, (double)digits_ * seconds, [&](size_t unit, const Worker &worker) {
        const size_t item = unit / limbs, limb = unit % limbs;
        T *const rows = (T *)worker.scratch(digits_ * step * sizeof(T));
        for (size_t j = 0; j < digits_ && !stopped(worker.stop); ++j) {
            const T *const digit = x + ((item * digits_ + j) * limbs + limb) * n;
            T *const row = rows + j * step;
            if (own_digits_[limb] == j)
                std::memcpy(row, value + (item * own_total_ + own_rows_[limb]) * n, n * sizeof(T));
            else if (!transformed_) transform_.row<T>(limb, worker).ntt(digit, row);
            else std::memcpy(row, digit, n * sizeof(T));
        }
        const MatrixProduct<T> product{
            &transform_.basis().moduli()[limb],
            1,
            digits_,
            COMPONENTS,
            {rows, 0, (ptrdiff_t)step},
            {keys + key_rows_[limb] * n, (ptrdiff_t)(COMPONENTS * key_total_ * n), (ptrdiff_t)(key_total_ * n)},
            {result + (item * COMPONENTS * limbs + limb) * n, 0, (ptrdiff_t)(limbs * n)},
            worker.stop};
        word_kernels<T>().gemm.multiply_points(product, n, nullptr);
    });
}

void DigitProduct::run(const Array &digits, const Array &own, const Array &key, const Out &out) const {
    transform_.basis().visit([&](auto word) { run_words<decltype(word)>(digits, own, key, out); });
}

// ---- rotations ----

Order::Order(const Numbers &index) {
    const size_t n = index.size();
    require(index.hold<i64>() && n && n >> 32 == 0, "Order: index (n,)");
    const i64 *const from = (const i64 *)index.data();
    std::vector<bool> found(n);
    for (size_t i = 0; i < n; ++i) {
        require(from[i] >= 0 && (u64)from[i] < n && !found[(size_t)from[i]], "Order: not a permutation");
        found[(size_t)from[i]] = true;
        is_identity_ &= (size_t)from[i] == i;
        index_.push_back((u32)from[i]);
    }
}

template <class T> void Order::apply(const T *x, T *y) const {
    if (is_identity_) std::memcpy(y, x, size() * sizeof(T));
    else permute_row(x, index_.data(), y, size());
}

RotatedSums::RotatedSums(const Transform &transform, size_t digits, std::vector<Term> terms, std::vector<u64> factors,
                         std::vector<size_t> more_rows, size_t more_total, bool turned, bool split,
                         std::vector<std::vector<i64>> places)
    : transform_(transform),
      digits_(digits),
      terms_(std::move(terms)),
      factors_(std::move(factors)),
      more_rows_(std::move(more_rows)),
      more_total_(more_total),
      turned_(turned),
      split_(split),
      places_(std::move(places)) {
    const Basis &basis = transform.basis();
    const size_t limbs = basis.rows(), n = transform.degree();
    require(!terms_.empty() && !places_.empty() && digits && factors_.size() == limbs && more_rows_.size() == limbs,
            "RotatedSums: terms, results and digits, and one entry a limb");
    for (size_t limb = 0; limb < limbs; ++limb)
        require(factors_[limb] <= basis.moduli()[limb].last && more_rows_[limb] < more_total,
                "RotatedSums: no such factor or row");
    for (const Term &term : terms_) {
        require(term.order->size() == n, "RotatedSums: an order of other rows");
        require(term.key_rows.empty() || term.key_rows.size() == limbs, "RotatedSums: one row of a key for each limb");
        for (const size_t row : term.key_rows) require(row < term.key_total, "RotatedSums: no such row of a key");
        keyed_ += !term.key_rows.empty();
    }
    for (const std::vector<i64> &of_terms : places_) {
        require(of_terms.size() == terms_.size(), "RotatedSums: one place for each result and term");
        size_t count = 0;
        for (const i64 place : of_terms)
            if (place >= 0) ++count, weights_ = std::max(weights_, (size_t)place + 1);
        require(count, "RotatedSums: a result without terms");
        places_taken_ += count;
    }
}

// The arrays of one call.
template <class T> struct RotatedSums::Call {
    const T *digits, *more, *weights;
    T *out;
    std::vector<const T *> keys;  // the keys of all terms; null for terms without a key
    size_t items;

    // Returns the index of a row of the result.
    size_t result(size_t g, size_t item, size_t component, size_t limb, size_t limbs) const {
        return ((g * items + item) * COMPONENTS + component) * limbs + limb;
    }
};

bool RotatedSums::starts(size_t result, size_t term) const {
    const i64 *const of_terms = places_[result].data();
    return of_terms[term] >= 0 && std::all_of(of_terms, of_terms + term, [](i64 place) { return place < 0; });
}

// Adds a term, times its weight, to the results that contain the term. The first term of a result overwrites the
// result. The components of the term are x and x + step.
template <class T>
void RotatedSums::add_term(const Call<T> &call, size_t item, size_t limb, size_t term, const T *x, size_t step) const {
    const size_t limbs = transform_.basis().rows(), n = transform_.degree();
    const Modulus &m = transform_.basis().moduli()[limb];
    for (size_t g = 0; g < places_.size(); ++g) {
        const i64 place = places_[g][term];
        if (place < 0) continue;
        for (size_t c = 0; c < COMPONENTS; ++c) {
            const T *const from = x + c * step;
            T *const y = call.result(g, item, c, limb, limbs) * n + call.out;
            if (from == y) continue;  // the term was written there already
            if (call.weights)
                add_product(from, call.weights + ((size_t)place * limbs + limb) * n, y, starts(g, term), n, m);
            else if (starts(g, term)) std::memcpy(y, from, n * sizeof(T));
            else pointwise_kernels<T>(m).pointwise(Op::add, y, from, false, nullptr, y, n, m);
        }
    }
}

template <class T>
void RotatedSums::run_row(const Call<T> &call, size_t item, size_t limb, const Worker &worker) const {
    const size_t limbs = transform_.basis().rows(), n = transform_.degree();
    const Modulus &m = transform_.basis().moduli()[limb];
    const RowKernels<T> &kernels = pointwise_kernels<T>(m);
    const T factor = (T)factors_[limb];
    // Rows lie a cache line further apart than needed, so that they do not compete for the same few sets of a cache.
    const size_t step = n + 64 / sizeof(T);
    T *const sums = (T *)worker.scratch((2 * COMPONENTS + 1 + digits_) * step * sizeof(T));
    T *const moved = sums + COMPONENTS * step, *const addend = moved + COMPONENTS * step, *const rows = addend + step;
    const bool by_gemm = prefers_gemm<T>(m, digits_);
    size_t keyed = 0;  // terms so far that have a key
    for (size_t t = 0; t < terms_.size() && !stopped(worker.stop); ++t) {
        const Order &order = *terms_[t].order;
        const auto more = [&](size_t c) {
            const size_t first = ((split_ ? t * call.items : 0) + item) * COMPONENTS + c;
            return call.more + (first * more_total_ + more_rows_[limb]) * n;
        };
        // The term is written to `to`. If results have weights, or if none of them begins with this term, `to` is
        // `moved`. Otherwise `to` is the first result that begins with this term.
        T *to = moved;
        size_t to_step = step;
        for (size_t g = 0; g < places_.size() && !call.weights; ++g)
            if (starts(g, t)) {
                to = call.out + call.result(g, item, 0, limb, limbs) * n, to_step = limbs * n;
                break;
            }
        if (const T *const key = call.keys[t]) {
            const size_t first = ((split_ ? keyed * call.items : 0) + item) * digits_;
            const T *digits = call.digits + (first * limbs + limb) * n;
            size_t digit_step = limbs * n;
            if (!turned_ || by_gemm) {
                // Terms that share digits reuse the copy that the first of them made.
                if (!turned_ || split_ || keyed == 0)
                    for (size_t j = 0; j < digits_; ++j) {
                        T *const row = rows + j * step;
                        if (turned_) std::memcpy(row, digits + j * digit_step, n * sizeof(T));
                        else order.apply(digits + j * digit_step, row);
                    }
                digits = rows, digit_step = step;
            }
            T *const y = turned_ ? sums : to;
            const size_t y_step = turned_ ? step : to_step, key_step = terms_[t].key_total * n;
            const T *const factors = key + terms_[t].key_rows[limb] * n;
            if (by_gemm) {
                const MatrixProduct<T> product{&m,
                                               1,
                                               digits_,
                                               COMPONENTS,
                                               {digits, 0, (ptrdiff_t)digit_step},
                                               {factors, (ptrdiff_t)(COMPONENTS * key_step), (ptrdiff_t)key_step},
                                               {y, 0, (ptrdiff_t)y_step},
                                               worker.stop};
                word_kernels<T>().gemm.multiply_points(product, n, nullptr);
            } else {
                for (size_t j = 0; j < digits_; ++j)
                    for (size_t c = 0; c < COMPONENTS; ++c)
                        add_product(digits + j * digit_step, factors + (j * COMPONENTS + c) * key_step, y + c * y_step,
                                    j == 0, n, m);
            }
            if (factor) {
                const T *x = more(0);
                if (!turned_) order.apply(x, addend), x = addend;
                if (factor == 1) kernels.pointwise(Op::add, y, x, false, nullptr, y, n, m);
                else kernels.pointwise(Op::mul_add, x, &factor, true, y, y, n, m);
            }
            if (turned_)
                for (size_t c = 0; c < COMPONENTS; ++c) order.apply(sums + c * step, to + c * to_step);
            ++keyed;
        } else {
            for (size_t c = 0; c < COMPONENTS; ++c) {
                T *const y = to + c * to_step;
                if (factor) order.apply(more(c), y);
                else std::memset(y, 0, n * sizeof(T));
                if (factor > 1) kernels.pointwise(Op::mul, y, &factor, true, nullptr, y, n, m);
            }
        }
        add_term(call, item, limb, t, to, to_step);
    }
}

template <class T>
void RotatedSums::run_words(const Array &digits, const Array &more, const Array &weights, const Out &out,
                            const std::vector<Array> &keys) const {
    const Basis &basis = transform_.basis();
    const size_t limbs = basis.rows(), n = transform_.degree(), results = places_.size();
    Call<T> call{(const T *)digits.data(),
                 (const T *)more.data(),
                 (const T *)weights.data(),
                 result_of<T>(out, limbs),
                 {},
                 batch_of(out) / (COMPONENTS * results)};
    const auto is = [&](const Array &x, size_t rows) {
        return x && x.itemsize() == sizeof(T) && x.size() == rows * n && last(x) == n;
    };
    require(last(out) == n && batch_of(out) == COMPONENTS * results * call.items &&
                (keyed_ == 0 || is(digits, (split_ ? keyed_ : 1) * call.items * digits_ * limbs)) &&
                is(more, (split_ ? terms_.size() : 1) * call.items * COMPONENTS * more_total_),
            "RotatedSums: wrong dtype or shape");
    require(
        !weights || (weights.itemsize() == sizeof(T) && last(weights) == n && weights.size() >= weights_ * limbs * n),
        "RotatedSums: weights of another shape");
    require(keys.size() == keyed_, "RotatedSums: a key for each term that has one");
    size_t next = 0;
    for (const Term &term : terms_) {
        if (term.key_rows.empty()) {
            call.keys.push_back(nullptr);
            continue;
        }
        const Array &key = keys[next++];
        require(
            key.itemsize() == sizeof(T) && last(key) == n && key.size() >= digits_ * COMPONENTS * term.key_total * n,
            "RotatedSums: a key of another shape");
        call.keys.push_back((const T *)key.data());
    }
    const double products = (double)(COMPONENTS * (keyed_ * digits_ + terms_.size() + places_taken_));
    // Consecutive units are items of the same limb, because they read the same keys and weights.
    for_each_row(
        limbs * call.items, basis.seconds_products(products * (double)n),
        [&](size_t unit, const Worker &worker) { run_row(call, unit % call.items, unit / call.items, worker); });
}

void RotatedSums::run(const Array &digits, const Array &more, const Array &weights, const Out &out,
                      const std::vector<Array> &keys) const {
    transform_.basis().visit([&](auto word) { run_words<decltype(word)>(digits, more, weights, out, keys); });
}

// ---- gadgets ----

GadgetProduct::GadgetProduct(const Basis &basis, const Transform *transform, const FftProduct *product, unsigned bits,
                             unsigned levels)
    : basis_(basis), transform_(transform), product_(product) {
    require(basis.rows() == 1 && !basis.wide(), "GadgetProduct: one modulus of at most 2^64");
    require(!transform || transform->basis().rows() == 1, "GadgetProduct: a transform of one limb");
    require(!transform || !product, "GadgetProduct: a transform or products by FFT");
    const Modulus &m = basis.moduli()[0];
    require(bits && levels && bits <= 64 && (u64)bits * levels <= 64, "GadgetProduct: digits of more than 64 bits");
    require((u128)1 << (bits * levels) <= (m.q ? m.q : (u128)1 << 64), "GadgetProduct: more digits than q has");
    gadget_ = make_gadget(m.q, bits, levels, basis.narrow() ? 32 : 64);
    if (product) {
        const ProductRow row = product->row(0, Worker{nullptr});
        require(row.digits == row.sums && row.modulus->last == m.last, "GadgetProduct: a sum for each digit modulo q");
    }
}

// Returns the number of complex numbers in the spectra of one polynomial's digits.
size_t GadgetProduct::spectra() const { return product_->row(0, Worker{nullptr}).sums * product_->length() / 2; }

template <class T> void GadgetProduct::decompose_words(const Array &x, const Out &out) const {
    const size_t n = last(out), levels = gadget_.levels;
    T *const result = result_of<T>(out, 1);
    const size_t items = batch_of(out) / levels;
    require(x && x.itemsize() == sizeof(T) && last(x) == n && x.size() == items * n && batch_of(out) == items * levels,
            "decompose: wrong dtype or shape");
    const T *const words = (const T *)x.data();
    for_each_row(items, seconds_pointwise((1 + levels) * n), [&](size_t i, const Worker &) {
        word_kernels<T>().decompose(words + i * n, result + i * levels * n, n, gadget_);
    });
}

template <class T> void GadgetProduct::prepare_words(const Array &x, const Out &out) const {
    require(product_ && x && x.itemsize() == sizeof(T) && last(x) == product_->degree() &&
                out.hold<std::complex<double>>() && out.size() == x.size() / product_->degree() * spectra(),
            "prepare: wrong dtype or shape");
    const size_t n = product_->degree();
    const T *const rows = (const T *)x.data();
    Complex *const result = (Complex *)out.data();
    for_each_row(x.size() / n, seconds_fft((double)n), [&](size_t i, const Worker &worker) {
        const ProductRow row = product_->row(0, worker);
        product_kernels<T>(product_->length()).transform(rows + i * n, row.digits, result + i * spectra(), row);
    });
}

// Checks c, out and `count` matrices. Returns the sizes and costs of one product.
template <class T>
GadgetProduct::Item GadgetProduct::item_of(const Array &c, const Out &out, const Array &ggsws, size_t count) const {
    require(transform_ || product_, "GadgetProduct: digits alone");
    const size_t n = transform_ ? transform_->degree() : product_->degree();
    require(out.ndim() >= 3 && last(out) == n, "GadgetProduct: wrong shape");
    result_of<T>(out, 1);
    const size_t k = out.shape(out.ndim() - 3), levels = gadget_.levels;
    require(k && c && c.itemsize() == sizeof(T) && c.size() == out.size() && last(c) == n,
            "GadgetProduct: wrong dtype or shape");
    require(ggsws && ggsws.itemsize() == (transform_ ? sizeof(T) : sizeof(Complex)) &&
                ggsws.size() == count * k * levels * k * (transform_ ? n : spectra()),
            "GadgetProduct: a matrix of another shape");
    const double row = transform_ ? transform_->basis().seconds_transform(n) : seconds_fft((double)n);
    const double seconds = (double)(k * (levels + 1)) * row;
    if (transform_) return {k, n, (k + levels) * n * sizeof(T), seconds};
    const size_t numbers = k * spectra() + product_->length() / 2;
    return {k, n, numbers * sizeof(Complex) + (levels * n + product_->length()) * sizeof(T), seconds};
}

// out = (matrix number `index` of ggsws) * c.
template <class T>
void GadgetProduct::multiply_item(const void *ggsws, size_t index, const T *c, T *out, const Item &item, void *room,
                                  const Worker &worker) const {
    const size_t k = item.components, rows = index * k * gadget_.levels * k;
    if (transform_) transform_product((const T *)ggsws + rows * item.n, c, out, k, (T *)room, worker);
    else fft_product((const Complex *)ggsws + rows * spectra(), c, out, k, (Complex *)room, worker);
}

template <class T>
void GadgetProduct::transform_product(const T *ggsw, const T *c, T *out, size_t components, T *room,
                                      const Worker &worker) const {
    const size_t n = transform_->degree(), levels = gadget_.levels;
    const Modulus &m = basis_.moduli()[0];
    const Transform::LimbRow<T> transform = transform_->row<T>(0, worker);
    T *const sums = room, *const digits = sums + components * n;
    for (size_t i = 0; i < components; ++i) {
        word_kernels<T>().decompose(c + i * n, digits, n, gadget_);
        for (size_t level = 0; level < levels; ++level) {
            T *const digit = digits + level * n;
            transform.ntt(digit, digit);
            const T *const row = ggsw + (i * levels + level) * components * n;
            for (size_t j = 0; j < components; ++j)
                add_product(digit, row + j * n, sums + j * n, i == 0 && level == 0, n, m);
        }
    }
    for (size_t j = 0; j < components; ++j) transform.intt(sums + j * n, out + j * n);
}

template <class T>
void GadgetProduct::fft_product(const Complex *ggsw, const T *c, T *out, size_t components, Complex *room,
                                const Worker &worker) const {
    const size_t n = product_->degree(), levels = gadget_.levels, size = spectra();
    const ProductRow row = product_->row(0, worker);
    const ProductKernels<T> &kernels = product_kernels<T>(product_->length());
    Complex *const sums = room, *const digit = sums + components * size;
    T *const digits = (T *)(digit + product_->length() / 2), *const linear = digits + levels * n;
    std::memset((void *)sums, 0, components * size * sizeof(Complex));
    for (size_t i = 0; i < components; ++i) {
        word_kernels<T>().decompose(c + i * n, digits, n, gadget_);
        for (size_t level = 0; level < levels; ++level, ggsw += components * size) {
            kernels.transform(digits + level * n, 1, digit, row);
            for (size_t j = 0; j < components; ++j) kernels.add_products(digit, ggsw + j * size, sums + j * size, row);
        }
    }
    for (size_t j = 0; j < components; ++j) product_->compose_row(sums + j * size, linear, out + j * n, row);
}

template <class T> void GadgetProduct::multiply_words(const Array &ggsw, const Array &c, const Out &out) const {
    const Item item = item_of<T>(c, out, ggsw, 1);
    const size_t size = item.components * item.n;
    const T *const x = (const T *)c.data();
    T *const y = (T *)out.data();
    for_each_row(out.size() / size, item.seconds, [&](size_t i, const Worker &worker) {
        multiply_item(ggsw.data(), 0, x + i * size, y + i * size, item, worker.scratch(item.scratch), worker);
    });
}

template <class T>
void GadgetProduct::rotate_words(const Array &ggsws, const Array &c, const Numbers &exponents, const Out &out) const {
    require(exponents.ndim() >= 1 && exponents.hold<i64>() && last(exponents) >= 1, "rotate: exponents of int64");
    const size_t count = last(exponents) - 1;
    const Item item = item_of<T>(c, out, ggsws, count);
    const size_t k = item.components, n = item.n, size = k * n, items = out.size() / size;
    require(exponents.size() == items * (count + 1), "rotate: exponents of another shape");
    const Quotient quotient = transform_ ? transform_->quotient() : product_->quotient();
    const u64 order = order_of_x(quotient, n);
    const i64 *const powers = (const i64 *)exponents.data();
    for (size_t i = 0; i < exponents.size(); ++i)
        require(powers[i] >= 0 && (u64)powers[i] < order, "rotate: exponents below the order of X");
    const T *const x = (const T *)c.data();
    T *const y = (T *)out.data();
    const Modulus &m = basis_.moduli()[0];
    const RowKernels<T> &kernels = pointwise_kernels<T>(m);
    const auto mul_monomial = [&](const T *from, T *to, i64 e) {
        for (size_t j = 0; j < k; ++j) mul_monomial_row(quotient, kernels, from + j * n, to + j * n, n, (u64)e, m);
    };
    for_each_row(items, (double)(count + 1) * item.seconds, [&](size_t at, const Worker &worker) {
        T *const moved = (T *)worker.scratch(2 * size * sizeof(T) + item.scratch), *const sum = moved + size;
        const i64 *const e = powers + at * (count + 1);
        mul_monomial(x + at * size, sum, e[0]);
        for (size_t i = 0; i < count && !stopped(worker.stop); ++i) {
            if (e[i + 1] == 0) continue;
            mul_monomial(sum, moved, e[i + 1]);
            kernels.pointwise(Op::sub, moved, sum, false, nullptr, moved, size, m);
            multiply_item(ggsws.data(), i, moved, moved, item, sum + size, worker);
            kernels.pointwise(Op::add, sum, moved, false, nullptr, sum, size, m);
        }
        std::memcpy(y + at * size, sum, size * sizeof(T));
    });
}

void GadgetProduct::decompose(const Array &x, const Out &out) const {
    basis_.visit([&](auto word) { decompose_words<decltype(word)>(x, out); });
}
void GadgetProduct::prepare(const Array &x, const Out &out) const {
    basis_.visit([&](auto word) { prepare_words<decltype(word)>(x, out); });
}
void GadgetProduct::multiply(const Array &ggsw, const Array &c, const Out &out) const {
    basis_.visit([&](auto word) { multiply_words<decltype(word)>(ggsw, c, out); });
}
void GadgetProduct::rotate(const Array &ggsws, const Array &c, const Numbers &exponents, const Out &out) const {
    basis_.visit([&](auto word) { rotate_words<decltype(word)>(ggsws, c, exponents, out); });
}

}  // namespace pg
