#include <algorithm>

#include "dispatch.hpp"
#include "multiply.hpp"

namespace pg {
namespace {

// Returns x mod p, where x is given by the little-endian words x[0], x[stride], ...
template <class T> u64 residue(const Modulus &p, const T *x, size_t words, size_t stride) {
    u64 r = 0;
    for (size_t w = words; w-- > 0;) r = reduce(p, r, x[w * stride]);
    return r;
}

}  // namespace

Auxiliary::Auxiliary(const Basis &basis, const Transform &transform, size_t degree, Quotient quotient)
    : basis_(basis), transform_(transform), degree_(degree), quotient_(quotient), radix_(transform.basis().moduli()) {
    require(!transform.basis().narrow(), "Auxiliary: 64-bit words");
    require(transform.degree() == degree || transform.degree() >= 2 * degree - 1, "Auxiliary: transform too short");
    for (const Modulus &p : radix_.primes) {
        require(p.bits == radix_.primes[0].bits && p.bits <= 62, "Auxiliary: primes of one bit length, at most 62");
        for (size_t i = 0; i < limb_count(); ++i) {
            std::vector<u64> q = basis.wide() ? basis.wide_modulus().q : std::vector<u64>{basis.moduli()[i].q};
            if (q.back() == 0) q.push_back(1);  // 0 stands for a power of 2^64
            q_mod_p_.push_back(residue(p, q.data(), q.size(), 1));
        }
    }
    for (size_t i = 0; i < limb_count(); ++i) {
        std::vector<u64> product = reduced_product(i);
        product_mod_q_.insert(product_mod_q_.end(), product.begin(), product.end());
    }
}

// Writes the number with the mixed-radix digits `digits`, modulo a limb, to `value`, by Horner's rule. value: words()
// words. scratch: words() + 1 words.
void Auxiliary::compose(const u64 *digits, size_t limb, u64 *value, u64 *scratch) const {
    const size_t k = radix_.primes.size();
    if (basis_.wide()) {
        std::fill(value, value + words(), 0);
        for (size_t i = k; i-- > 0;) basis_.wide_modulus().horner(value, radix_.primes[i].q, digits[i], scratch);
    } else {
        const Modulus &m = basis_.moduli()[limb];
        u64 v = 0;
        for (size_t i = k; i-- > 0;) {
            u128 z = (u128)v * radix_.primes[i].q + digits[i];
            v = m.q == 0 ? (u64)z : reduce(m, reduce(m, (u64)(z >> 64)), (u64)z);
        }
        *value = v;
    }
}

// Returns P modulo the modulus of a limb, where P is the product of all primes. It is computed as (P - 1) + 1, because
// the mixed-radix digits of P - 1 are p_i - 1.
std::vector<u64> Auxiliary::reduced_product(size_t limb) const {
    std::vector<u64> digits, value(words()), scratch(words() + 1), one(words(), 0);
    for (const Modulus &p : radix_.primes) digits.push_back(p.q - 1);
    compose(digits.data(), limb, value.data(), scratch.data());
    one[0] = 1;
    if (basis_.wide()) basis_.wide_modulus().add(value.data(), one.data());
    else value[0] = add_mod(basis_.moduli()[limb], value[0], 1);
    return value;
}

// Whether x > q/2.
template <class T> bool Auxiliary::upper_half(size_t limb, const T *x, size_t stride) const {
    if (!basis_.wide()) return *x > basis_.moduli()[limb].last / 2;
    const std::vector<u64> &q = basis_.wide_modulus().q;
    const u64 above = basis_.wide_modulus().whole;  // 1 if q = 2^(64 * words), which has one more word
    for (size_t w = q.size(); w-- > 0;) {           // compare x with floor(q / 2)
        const u64 half = q[w] >> 1 | (w + 1 < q.size() ? q[w + 1] : above) << 63;
        if (x[w * stride] != half) return x[w * stride] > half;
    }
    return false;
}

// Writes the centred coefficients of one polynomial modulo every prime, padded with zeros to the transform's degree.
template <class T> void Auxiliary::spread(const T *x, size_t limb, u64 *y, const Worker &worker) const {
    const size_t length = transform_.degree(), k = radix_.primes.size();
    std::vector<bool> upper(degree_);
    for (size_t j = 0; j < degree_; ++j) upper[j] = upper_half(limb, x + j, degree_);
    for (size_t i = 0; i < k && !stopped(worker.stop); ++i) {
        const Modulus &p = radix_.primes[i];
        const u64 q_mod_p = q_mod_p_[i * limb_count() + limb];
        u64 *to = y + i * length;
        for (size_t j = 0; j < degree_; ++j) {
            const u64 r = residue(p, x + j, words(), degree_);
            to[j] = upper[j] ? sub_mod(p, r, q_mod_p) : r;
        }
        std::fill(to + degree_, to + length, 0);
    }
}

void Auxiliary::combine(size_t limb, u64 *x, const u64 *y, bool negative) const {
    if (basis_.wide()) negative ? basis_.wide_modulus().sub(x, y) : basis_.wide_modulus().add(x, y);
    else *x = negative ? sub_mod(basis_.moduli()[limb], *x, *y) : add_mod(basis_.moduli()[limb], *x, *y);
}

void Auxiliary::signed_value(const u64 *x, size_t limb, u64 *digits, u64 *value, u64 *scratch) const {
    radix_.digits(x, transform_.degree(), digits);
    compose(digits, limb, value, scratch);
    if (radix_.negative(digits)) combine(limb, value, product_mod_q_.data() + limb * words(), true);
}

// Turns residues modulo the primes into residues modulo q. A linear product is also reduced by the ring's polynomial.
template <class T> void Auxiliary::gather(const u64 *x, size_t limb, T *y, const Worker &worker) const {
    const size_t length = transform_.degree(), k = radix_.primes.size(), n = words();
    const bool fold = length != degree_;
    std::vector<u64> digits(k), value(n), folded(n), scratch(n + 1);
    for (size_t j = 0; j < degree_ && !stopped(worker.stop); ++j) {
        signed_value(x + j, limb, digits.data(), value.data(), scratch.data());
        if (fold)
            for_each_folded(quotient_, degree_, j, [&](size_t at, bool negative) {
                signed_value(x + at, limb, digits.data(), folded.data(), scratch.data());
                combine(limb, value.data(), folded.data(), negative);
            });
        for (size_t w = 0; w < n; ++w) y[w * degree_ + j] = (T)value[w];
    }
}

template <class T> void Auxiliary::run(const Array &a, const Array &b, const Out &out) const {
    const size_t rows = basis_.rows(), limbs = limb_count(), length = transform_.degree(), k = radix_.primes.size();
    T *const result = result_of<T>(out, rows);
    const Operand<T> x(a, out, rows), y(b, out, rows);
    require(x.length() == degree_ && y.length() == degree_ && last(out) == degree_, "product: wrong degree");
    const double seconds =
        (double)k * (4 * transform_.basis().seconds_transform(length) + 5e-9 * (double)(degree_ * (k + 2 * words())));
    for_each_row(batch_of(out) * limbs, seconds, [&](size_t unit, const Worker &worker) {
        const size_t item = unit / limbs, limb = unit % limbs;
        const size_t offset = basis_.wide() ? 0 : limb * degree_;
        const T *u = x.item(item) + offset, *v = y.item(item) + offset;
        u64 *left = (u64 *)worker.scratch((u == v ? 1 : 2) * k * length * sizeof(u64));
        u64 *right = u == v ? left : left + k * length;
        spread(u, limb, left, worker);
        if (u != v) spread(v, limb, right, worker);
        for (size_t i = 0; i < k && !stopped(worker.stop); ++i) {
            u64 *left_i = left + i * length, *right_i = right + i * length;
            transform_.multiply_row<u64>(left_i, right_i, left_i, right_i, left_i, i, worker);
        }
        gather(left, limb, result + item * rows * degree_ + offset, worker);
    });
}

void Auxiliary::multiply(const Array &a, const Array &b, const Out &out) const {
    basis_.visit([&](auto word) { run<decltype(word)>(a, b, out); });
}

}  // namespace pg
