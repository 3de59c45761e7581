// Arithmetic modulo one number of more than 64 bits, held as little-endian words. Conversion of residues to mixed-radix
// digits (CRT).
#pragma once
#include <vector>

#include "modulus.hpp"

namespace pg {

struct WideModulus {
    std::vector<u64> q, d;  // the modulus, and q << shift with its top bit set
    unsigned shift = 0;
    Reciprocal top{};    // the reciprocal of the top word of d
    bool whole = false;  // q = 2^(64 words), written as words of 0

    WideModulus() = default;
    explicit WideModulus(std::vector<u64> words) : q(std::move(words)), d(q.size()) {
        whole = q.back() == 0;
        if (whole) return;
        shift = (unsigned)__builtin_clzll(q.back());
        for (size_t i = q.size(); i-- > 0;) d[i] = shift ? q[i] << shift | (i ? q[i - 1] >> (64 - shift) : 0) : q[i];
        top = reciprocal(d.back());
    }
    size_t words() const { return q.size(); }

    bool not_below(const u64 *x, const u64 *y) const {  // x >= y
        for (size_t i = words(); i-- > 0;)
            if (x[i] != y[i]) return x[i] > y[i];
        return true;
    }
    static u64 add_to(u64 *x, const u64 *y, size_t n) {  // x += y, returns the carry
        u64 carry = 0;
        for (size_t i = 0; i < n; ++i) {
            u128 s = (u128)x[i] + y[i] + carry;
            x[i] = (u64)s, carry = (u64)(s >> 64);
        }
        return carry;
    }
    static u64 sub_from(u64 *x, const u64 *y, size_t n) {  // x -= y, returns the borrow
        u64 borrow = 0;
        for (size_t i = 0; i < n; ++i) {
            u128 s = (u128)x[i] - y[i] - borrow;
            x[i] = (u64)s, borrow = (u64)(s >> 64) & 1;
        }
        return borrow;
    }
    // Computes x += y mod q, for x and y in [0, q).
    void add(u64 *x, const u64 *y) const {
        u64 carry = add_to(x, y, words());
        if (!whole && (carry || not_below(x, q.data()))) sub_from(x, q.data(), words());
    }
    void sub(u64 *x, const u64 *y) const {
        if (sub_from(x, y, words())) add_to(x, q.data(), words());
    }

    // x = (x * factor + word) mod q, for x in [0, q): a step of Horner's rule. Needs x * factor + word < q * 2^64,
    // which holds if word < factor, or if factor is 2^64 (passed as 0). The reduction is one step of a long division.
    // Source: Knuth, TAOCP vol. 2, 4.3.1, algorithm D.
    void horner(u64 *x, u64 factor, u64 word, u64 *u) const {  // u: words() + 1 of scratch
        const size_t n = words();
        if (factor == 0) {
            u[0] = word;
            for (size_t i = 0; i < n; ++i) u[i + 1] = x[i];
        } else {
            u64 carry = word;
            for (size_t i = 0; i < n; ++i) {
                u128 z = (u128)x[i] * factor + carry;
                u[i] = (u64)z, carry = (u64)(z >> 64);
            }
            u[n] = carry;
        }
        if (whole) {
            for (size_t i = 0; i < n; ++i) x[i] = u[i];
            return;
        }
        if (shift)
            for (size_t i = n + 1; i-- > 0;) u[i] = u[i] << shift | (i ? u[i - 1] >> (64 - shift) : 0);
        u64 quotient = ~(u64)0, unused;
        if (u[n] < top.d) quotient = divide(top, u[n], u[n - 1], unused);
        u64 carry = 0, borrow = 0;
        for (size_t i = 0; i < n; ++i) {
            u128 z = (u128)quotient * d[i] + carry;
            carry = (u64)(z >> 64);
            u128 s = (u128)u[i] - (u64)z - borrow;
            u[i] = (u64)s, borrow = (u64)(s >> 64) & 1;
        }
        // The estimate is at most 2 too large: add d back until the top word is no longer negative.
        u64 high = u[n] - carry - borrow;
        while (high) high += add_to(u, d.data(), n);
        for (size_t i = 0; i < n; ++i) x[i] = shift ? u[i] >> shift | (i + 1 < n ? u[i + 1] << (64 - shift) : 0) : u[i];
    }

    // x = x * y mod q, for x, y in [0, q): the words of the product are reduced from the top by Horner's rule.
    void multiply(u64 *x, const u64 *y, u64 *u) const {  // u: 3 * words() + 1 of scratch
        const size_t n = words();
        u64 *const product = u + n + 1;
        for (size_t i = 0; i < 2 * n; ++i) product[i] = 0;
        for (size_t i = 0; i < n; ++i) {
            u64 carry = 0;
            for (size_t j = 0; j < n; ++j) {
                u128 z = (u128)x[i] * y[j] + product[i + j] + carry;
                product[i + j] = (u64)z, carry = (u64)(z >> 64);
            }
            product[i + n] = carry;
        }
        for (size_t i = 0; i < n; ++i) x[i] = 0;
        for (size_t i = 2 * n; i-- > 0;) horner(x, 0, product[i], u);
    }
    size_t multiply_scratch() const { return 3 * words() + 1; }
};

// Turns residues modulo primes p_0 ... p_{k-1} of the same bit length into mixed-radix digits and a sign. Source:
// Garner 1959; docs/math.md, "Products through auxiliary primes".
struct MixedRadix {
    std::vector<Modulus> primes;
    std::vector<u64> inverse, inverse_shoup;  // [i * k + j]: 1/p_j mod p_i, j < i
    std::vector<u64> half;                    // digits of (p_0 ... p_{k-1} - 1) / 2

    MixedRadix() = default;
    explicit MixedRadix(const std::vector<Modulus> &moduli) : primes(moduli) {
        const size_t k = primes.size();
        inverse.assign(k * k, 0), inverse_shoup.assign(k * k, 0);
        for (size_t i = 0; i < k; ++i)
            for (size_t j = 0; j < i; ++j) {
                const Modulus &p = primes[i];
                inverse[i * k + j] = pow_mod(p, reduce(p, primes[j].q), p.q - 2);
                inverse_shoup[i * k + j] = shoup_quotient(p, inverse[i * k + j]);
            }
        // x = (P - 1) / 2 has residue (p_i - 1) / 2 = -1/2 mod every p_i
        half.resize(k);
        std::vector<u64> residues(k);
        for (size_t i = 0; i < k; ++i) residues[i] = (primes[i].q - 1) / 2;
        digits(residues.data(), 1, half.data());
    }

    // Writes the digits y[i] of the number y_0 + p_0 * (y_1 + p_1 * (y_2 + ...)) whose residue modulo p_i is x[i *
    // stride].
    void digits(const u64 *x, size_t stride, u64 *y) const {
        const size_t k = primes.size();
        for (size_t i = 0; i < k; ++i) {
            const Modulus &p = primes[i];
            u64 t = x[i * stride];
            for (size_t j = 0; j < i; ++j) {
                u64 digit = y[j] >= p.q ? y[j] - p.q : y[j];  // p_j < 2 p_i: they have one bit length
                u64 difference = t >= digit ? t - digit : t - digit + p.q;
                t = difference * inverse[i * k + j] - mul_hi(difference, inverse_shoup[i * k + j]) * p.q;
                t = t >= p.q ? t - p.q : t;
            }
            y[i] = t;
        }
    }
    // Whether the digits stand for more than (P - 1) / 2, that is for a negative number.
    bool negative(const u64 *y) const {
        for (size_t i = primes.size(); i-- > 0;)
            if (y[i] != half[i]) return y[i] > half[i];
        return false;
    }
};

}  // namespace pg
