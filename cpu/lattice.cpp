#include "lattice.hpp"

#include "dispatch.hpp"
#include "threads.hpp"

namespace pg {
namespace {
constexpr size_t COMPONENTS = 2;  // of a key's entry and of the result
}

DigitProduct::DigitProduct(const Transform &transform, size_t digits, std::vector<size_t> own_digits,
                           std::vector<size_t> own_rows, size_t own_total, std::vector<size_t> key_rows,
                           size_t key_total, bool transformed, const Numbers &index)
    : transform_(transform),
      digits_(digits),
      own_digits_(std::move(own_digits)),
      own_rows_(std::move(own_rows)),
      own_total_(own_total),
      key_rows_(std::move(key_rows)),
      key_total_(key_total),
      transformed_(transformed) {
    const size_t limbs = transform.basis().rows(), n = transform.degree();
    require(own_digits_.size() == limbs && own_rows_.size() == limbs && key_rows_.size() == limbs && digits,
            "DigitProduct: one entry a limb, and at least a digit");
    for (size_t r = 0; r < limbs; ++r)
        require(own_digits_[r] <= digits && (own_digits_[r] == digits || own_rows_[r] < own_total) &&
                    key_rows_[r] < key_total,
                "DigitProduct: no such row");
    if (!index) return;
    require(index.hold<i64>() && index.size() == n, "DigitProduct: index (n,)");
    for (size_t i = 0; i < n; ++i) {
        const i64 k = ((const i64 *)index.data())[i];
        require(k >= 0 && (u64)k < n, "DigitProduct: no such entry");
        index_.push_back((u32)k);
    }
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
    const double row = isa_slowness() * ((transformed_ ? 0 : seconds_transform(n)) + 3 * seconds_pointwise(n));
    for_each_row(items * limbs, (double)digits_ * row, [&](size_t unit, const Worker &worker) {
        const size_t item = unit / limbs, limb = unit % limbs;
        const Modulus &m = transform_.basis().moduli()[limb];
        const auto pointwise = pointwise_kernels<T>(m).pointwise;
        T *const room = (T *)worker.scratch(2 * n * sizeof(T)), *const moved = room + n;
        for (size_t j = 0; j < digits_; ++j) {
            const T *digit = x + ((item * digits_ + j) * limbs + limb) * n;
            if (own_digits_[limb] == j) {
                digit = value + (item * own_total_ + own_rows_[limb]) * n;
            } else if (!transformed_) {
                transform_.forward_row(digit, room, limb, worker);
                digit = room;
            }
            if (!index_.empty()) {
                for (size_t i = 0; i < n; ++i) moved[i] = digit[index_[i]];
                digit = moved;
            }
            for (size_t c = 0; c < COMPONENTS; ++c) {
                const T *const factor = keys + ((j * COMPONENTS + c) * key_total_ + key_rows_[limb]) * n;
                T *const sum = result + ((item * COMPONENTS + c) * limbs + limb) * n;
                pointwise(j ? Op::mul_add : Op::mul, digit, factor, false, j ? sum : nullptr, sum, n, m);
            }
        }
    });
}

void DigitProduct::run(const Array &digits, const Array &own, const Array &key, const Out &out) const {
    transform_.basis().narrow() ? run_words<u32>(digits, own, key, out) : run_words<u64>(digits, own, key, out);
}

}  // namespace pg
