#include <algorithm>
#include <complex>

#include "dispatch.hpp"
#include "multiply.hpp"

namespace pg {
namespace {

constexpr size_t BLOCK = 2048;  // complex numbers: 32 KiB, which fit a core's first-level cache

// Returns the bit length of q - 1.
unsigned bits_below(const Modulus &m) { return 64 - (unsigned)__builtin_clzll(m.last | 1); }

}  // namespace

FftProduct::FftProduct(const Basis &basis, size_t degree, size_t length, Quotient quotient, unsigned digits,
                       unsigned width, unsigned sums, const Lasting<Numbers> &table, unsigned terms, unsigned bits)
    : basis_(basis),
      degree_(degree),
      length_(length),
      quotient_(quotient),
      digits_(digits),
      width_(width),
      sums_(sums),
      table_(table.memory) {
    require(!basis.wide(), "FftProduct: moduli of at most 64 bits");
    require(length >= 2 && (length & (length - 1)) == 0 && degree >= 1 &&
                ((wrap(quotient) == -1 && length == degree) || length >= 2 * degree - 1),
            "FftProduct: length, a power of two, must be degree (X^n + 1) or hold the linear product");
    require(digits >= 1 && digits <= MAX_DIGITS && width >= 2 && width <= 30 && sums >= 1 && sums <= 2 * digits - 1,
            "FftProduct: 1 to 8 digits of 2 to 30 bits, 1 to 2 digits - 1 sums");
    require(table.array.hold<std::complex<double>>() && table.array.size() == length / 2,
            "FftProduct: length/2 twiddles");
    // A sum is at most terms * degree * 2^(bits + width - 2) <= 2^bound in size. The total of a group of neighbouring
    // sums with weights 2^(width * i), i < group, is below 2^(bound + width * (group - 1)) / (1 - 2^-width) < 2^61.
    if (!terms) terms = digits, bits = width;
    require(bits >= 1 && bits <= 30 && terms <= 1u << 20, "FftProduct: 2^20 terms at most, of 1 to 30 bits");
    const unsigned bound = bits + width - 2 + 64 - (unsigned)__builtin_clzll((terms * degree - 1) | 1);
    require(bound <= 51, "FftProduct: sums of products of digits beyond 2^51");
    group_ = 1 + (60 - bound) / width;
    for (const Modulus &m : basis.moduli()) {
        require(digits * width >= bits_below(m), "FftProduct: the digits do not hold the modulus");
        for (unsigned i = 0; i < MAX_SUMS; ++i) {
            weights_.push_back(pow_mod(m, reduce(m, 2), i * group_ * width));
            shoup_.push_back(m.bits <= 62 ? shoup_quotient(m, weights_.back()) : 0);
        }
    }
}

ProductRow FftProduct::row(size_t limb, const Worker &worker) const {
    const Modulus &m = basis_.moduli()[limb];
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

template <class T> void FftProduct::run(const Array &a, const Array &b, const Out &out) const {
    const size_t limbs = basis_.rows(), n = degree_;
    T *const result = result_of<T>(out, limbs);
    const Operand<T> x(a, out, limbs), y(b, out, limbs);
    require(x.length() == n && y.length() == n && last(out) == n, "product: wrong degree");
    const auto multiply_row = product_kernels<T>(length_).multiply;
    const size_t numbers = (size_t)digits_ * length_;
    const double seconds = seconds_fft((double)((2 * digits_ + sums_) * length_));
    for_each_row(batch_of(out) * limbs, seconds, [&](size_t i, const Worker &worker) {
        const ProductRow r = row(i % limbs, worker);
        T *to = result + i * n;
        Complex *scratch = (Complex *)worker.scratch(numbers * sizeof(Complex) + length_ * sizeof(T));
        if (length_ == n) return multiply_row(x.row(i), y.row(i), scratch, to, r);
        T *linear = (T *)(scratch + numbers);
        multiply_row(x.row(i), y.row(i), scratch, linear, r);
        fold_row(quotient_, pointwise_kernels<T>(*r.modulus), linear, to, n, *r.modulus);
    });
}

void FftProduct::multiply(const Array &a, const Array &b, const Out &out) const {
    basis_.visit([&](auto word) { run<decltype(word)>(a, b, out); });
}

template <class T> void FftProduct::compose_row(Complex *sums, T *room, T *y, const ProductRow &row) const {
    const bool whole = length_ == degree_;
    product_kernels<T>(length_).compose(sums, whole ? y : room, row);
    if (!whole) fold_row(quotient_, pointwise_kernels<T>(*row.modulus), room, y, degree_, *row.modulus);
}
template void FftProduct::compose_row(Complex *, u32 *, u32 *, const ProductRow &) const;
template void FftProduct::compose_row(Complex *, u64 *, u64 *, const ProductRow &) const;

}  // namespace pg
