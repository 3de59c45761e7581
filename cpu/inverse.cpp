// Inverses in F_q[X]/(P), q prime and P the polynomial of quotient.hpp, by the extended Euclidean algorithm on dense
// rows. An inverse takes O(n^2) products.
#include <algorithm>
#include <cstring>
#include <vector>

#include "basis.hpp"
#include "threads.hpp"

namespace pg {
namespace {

// ---- fields: their numbers have words() words each, which are neighbours in memory ----

inline unsigned product_high(uint16_t x, uint16_t y) { return (unsigned)x * y >> 16; }
inline u32 product_high(u32 x, u32 y) { return (u32)((u64)x * y >> 32); }
inline u64 product_high(u64 x, u64 y) { return mul_hi(x, y); }

// Integers modulo a prime q with q + 2 * (q - 1)^2 < 2^bits(T): a residue plus two products fits T.
template <class T> class SmallField {
  public:
    using Word = T;
    static constexpr u64 LIMIT = (u64)1 << (4 * sizeof(T) - 1);  // the largest q that this field may have
    explicit SmallField(const Modulus &m) : m_(m), q_((T)m.q), quotient_((T)((u64)(T) ~(T)0 / m.q)) {}
    static constexpr size_t words() { return 1; }
    static constexpr size_t scratch() { return 0; }
    void multiply(T *x, const T *y, T *) const { *x = (T)mul_mod(m_, *x, *y); }
    void subtract(T *x, const T *y) const { *x = (T)sub_mod(m_, *x, *y); }
    void invert(T *x, T *) const { *x = (T)pow_mod(m_, *x, m_.q - 2); }
    // r[i] += high * s[i - 1] + low * s[i]. product_high(t, v) is floor(t / q) or 1 less.
    void eliminate(T *__restrict r, const T *__restrict s, const T *high, const T *low, size_t count, T *) const {
        const T h = *high, l = *low, q = q_, v = quotient_;
        for (size_t i = 0; i < count; ++i) {
            const T t = (T)(r[i] + h * s[i - 1] + l * s[i]);
            const T rest = (T)(t - (T)product_high(t, v) * q);
            r[i] = rest >= q ? (T)(rest - q) : rest;
        }
    }

  private:
    Modulus m_;
    T q_, quotient_;  // quotient_: floor((2^(bits of T) - 1) / q)
};

// Integers modulo any prime q below 2^64.
class WordField {
  public:
    using Word = u64;
    explicit WordField(const Modulus &m) : m_(m) {}
    static constexpr size_t words() { return 1; }
    static constexpr size_t scratch() { return 0; }
    void multiply(u64 *x, const u64 *y, u64 *) const { *x = mul_mod(m_, *x, *y); }
    void subtract(u64 *x, const u64 *y) const { *x = sub_mod(m_, *x, *y); }
    void invert(u64 *x, u64 *) const { *x = pow_mod(m_, *x, m_.q - 2); }
    void eliminate(u64 *r, const u64 *s, const u64 *high, const u64 *low, size_t count, u64 *) const {
        for (size_t i = 0; i < count; ++i) {
            const u128 x = (u128)*high * s[i - 1], y = (u128)*low * s[i], sum = x + y;
            // The exact value of (x + y) / 2^64 is below 2q. If it is 2^64 or more, `top` lacks its bit 64.
            const u64 top = (u64)(sum >> 64);
            const bool over = sum < x || top >= m_.q;
            r[i] = add_mod(m_, r[i], reduce(m_, over ? top - m_.q : top, (u64)sum));
        }
    }

  private:
    Modulus m_;
};

class WideField {
  public:
    using Word = u64;
    explicit WideField(const WideModulus &m) : m_(m), exponent_(m.q) {
        std::vector<u64> two(m.words());
        two[0] = 2;
        WideModulus::sub_from(exponent_.data(), two.data(), m.words());
    }
    size_t words() const { return m_.words(); }
    size_t scratch() const { return m_.multiply_scratch() + 2 * words(); }
    void multiply(u64 *x, const u64 *y, u64 *u) const { m_.multiply(x, y, u); }
    void subtract(u64 *x, const u64 *y) const { m_.sub(x, y); }
    void invert(u64 *x, u64 *u) const {
        u64 *const power = u, *const same = power + words(), *const rest = same + words();
        std::copy(x, x + words(), power);
        std::fill(x, x + words(), 0);
        x[0] = 1;
        for (size_t bit = 0; bit < 64 * words(); ++bit) {
            if (exponent_[bit / 64] >> bit % 64 & 1) m_.multiply(x, power, rest);
            std::copy(power, power + words(), same);
            m_.multiply(power, same, rest);
        }
    }
    void eliminate(u64 *r, const u64 *s, const u64 *high, const u64 *low, size_t count, u64 *u) const {
        u64 *const term = u, *const rest = u + words();
        for (size_t i = 0; i < count; ++i, r += words(), s += words()) {
            std::copy(s - words(), s, term);
            m_.multiply(term, high, rest);
            m_.add(r, term);
            std::copy(s, s + words(), term);
            m_.multiply(term, low, rest);
            m_.add(r, term);
        }
    }

  private:
    const WideModulus &m_;
    std::vector<u64> exponent_;  // q - 2
};

// ---- the extended Euclidean algorithm ----

// A polynomial of at most n + 1 coefficients, with a zero before the first.
template <class F> struct Row {
    std::vector<typename F::Word> memory;
    size_t words;
    ptrdiff_t degree;  // -1 for the zero polynomial

    Row(size_t n, size_t words_) : memory((n + 2) * words_), words(words_), degree(-1) {}
    typename F::Word *at(ptrdiff_t i) { return memory.data() + (size_t)(i + 1) * words; }
    bool is_zero(ptrdiff_t i) {
        const auto *x = at(i);
        return std::all_of(x, x + words, [](auto word) { return word == 0; });
    }
    void find_degree(ptrdiff_t from) {
        for (degree = from; degree >= 0 && is_zero(degree);) --degree;
    }
};

// Writes 1/a and returns 0. If a has no inverse, returns the degree of the common factor of a and the ring's
// polynomial. apart: distance between the words of a coefficient.
template <class F, class T>
int64_t invert_row(const F &field, const T *a, size_t n, size_t apart, Quotient quotient, T *out, const int *stop) {
    using Word = typename F::Word;
    const size_t words = field.words();
    // Invariants, where P is the ring's polynomial, and s and t are polynomials that are not computed: divisor = s * P
    // + cofactor * a, and rest = t * P + rest_cofactor * a.
    Row<F> divisor(n, words), rest(n, words), cofactor(n, words), rest_cofactor(n, words);
    std::vector<Word> memory(5 * words + field.scratch());
    Word *const inverse = memory.data(), *const high = inverse + words, *const low = high + words;
    Word *const zero = low + words, *const after = zero + words, *const scratch = after + words;
    divisor.degree = (ptrdiff_t)n;
    low[0] = 1;
    for_each_term(quotient, n, [&](size_t exponent, bool negative) {
        Word *const to = divisor.at((ptrdiff_t)exponent);
        if (negative) field.subtract(to, low);
        else to[0] = 1;
    });
    for (size_t i = 0; i < n; ++i)
        for (size_t w = 0; w < words; ++w) rest.at((ptrdiff_t)i)[w] = (Word)a[w * apart + i];
    rest.find_degree((ptrdiff_t)n - 1);
    rest_cofactor.at(0)[0] = 1;
    while (rest.degree > 0) {
        if (stopped(stop)) return 0;
        std::copy(rest.at(rest.degree), rest.at(rest.degree) + words, inverse);
        field.invert(inverse, scratch);
        // The degree of rest_cofactor is n - divisor.degree. The degree of cofactor is smaller.
        const size_t length = n - (size_t)divisor.degree + 1;
        while (divisor.degree >= rest.degree) {
            // high, low: the two highest coefficients of the quotient, negated. One pass over the rows uses both.
            const ptrdiff_t top = divisor.degree, steps = top - rest.degree, at = steps ? steps - 1 : 0;
            Word *const first = steps ? high : low;
            std::fill(high, high + words, 0);
            std::fill(low, low + words, 0);
            field.subtract(first, divisor.at(top));
            field.multiply(first, inverse, scratch);
            if (steps) {
                // after: coefficient top - 1 of divisor + high * X^steps * rest. `low` is -after * inverse.
                Word *const next = divisor.at(top - 1);
                std::copy(next, next + words, after);
                field.eliminate(after, rest.at(rest.degree), high, zero, 1, scratch);
                field.subtract(low, after);
                field.multiply(low, inverse, scratch);
            }
            field.eliminate(divisor.at(at), rest.at(0), high, low, (size_t)rest.degree + 2 - !steps, scratch);
            field.eliminate(cofactor.at(at), rest_cofactor.at(0), high, low, std::min(length + 1, n + 1 - (size_t)at),
                            scratch);
            divisor.find_degree(top - 1);
        }
        std::swap(divisor, rest);
        std::swap(cofactor, rest_cofactor);
    }
    if (rest.degree < 0) return divisor.degree;
    std::copy(rest.at(0), rest.at(0) + words, inverse);
    field.invert(inverse, scratch);
    for (size_t i = 0; i < n; ++i) {
        Word *const x = rest_cofactor.at((ptrdiff_t)i);
        field.multiply(x, inverse, scratch);
        for (size_t w = 0; w < words; ++w) out[w * apart + i] = (T)x[w];
    }
    return 0;
}

// ---- modulo 2: coefficients are bits ----

struct Bits {
    std::vector<u64> words;
    ptrdiff_t degree = -1;

    explicit Bits(size_t bits) : words(bits / 64 + 2) {}
    void flip(size_t i) { words[i / 64] ^= (u64)1 << i % 64; }
    bool bit(size_t i) const { return words[i / 64] >> i % 64 & 1; }
    // Adds X^shift * x to this polynomial. Only the first `count` words of x may be nonzero.
    void add_shifted(const Bits &x, size_t shift, size_t count) {
        const size_t whole = shift / 64, part = shift % 64;
        u64 *const to = words.data() + whole;
        count = std::min(count, words.size() - whole);
        if (!part) {
            for (size_t i = 0; i < count; ++i) to[i] ^= x.words[i];
            return;
        }
        to[0] ^= x.words[0] << part;
        for (size_t i = 1; i < count; ++i) to[i] ^= x.words[i] << part | x.words[i - 1] >> (64 - part);
        if (whole + count < words.size()) to[count] ^= x.words[count - 1] >> (64 - part);
    }
    void find_degree(ptrdiff_t from) {
        degree = -1;
        for (ptrdiff_t i = from / 64; from >= 0 && i >= 0; --i)
            if (words[(size_t)i]) {
                degree = 64 * i + 63 - __builtin_clzll(words[(size_t)i]);
                return;
            }
    }
};

template <class T> int64_t invert_bits(const T *a, size_t n, Quotient quotient, T *out, const int *stop) {
    Bits divisor(n), rest(n), cofactor(n), rest_cofactor(n);
    for_each_term(quotient, n, [&](size_t exponent, bool) { divisor.flip(exponent); });
    divisor.degree = (ptrdiff_t)n;
    for (size_t i = 0; i < n; ++i)
        if (a[i] & 1) rest.flip(i);
    rest.find_degree((ptrdiff_t)n - 1);
    rest_cofactor.flip(0);
    while (rest.degree > 0) {
        if (stopped(stop)) return 0;
        const size_t length = (n - (size_t)divisor.degree) / 64 + 1;
        while (divisor.degree >= rest.degree) {
            const size_t shift = (size_t)(divisor.degree - rest.degree);
            divisor.add_shifted(rest, shift, (size_t)rest.degree / 64 + 1);
            cofactor.add_shifted(rest_cofactor, shift, length);
            divisor.find_degree(divisor.degree - 1);
        }
        std::swap(divisor, rest);
        std::swap(cofactor, rest_cofactor);
    }
    if (rest.degree < 0) return divisor.degree;
    for (size_t i = 0; i < n; ++i) out[i] = rest_cofactor.bit(i);
    return 0;
}

template <class T>
void invert_items(const Basis &basis, const Array &x, Quotient quotient, const Out &out, const Out &degrees) {
    const size_t n = last(out), rows = basis.rows(), items = batch_of(out);
    T *const result = result_of<T>(out, rows);
    const Operand<T> from(x, out, rows);
    require(from.length() == n && degrees.size() == items && degrees.hold<int64_t>(), "invert: lengths or degrees");
    int64_t *const found = (int64_t *)degrees.data();
    const double seconds = 2e-9 * (double)(n * n * rows * rows);
    for_each_row(items, seconds, [&](size_t i, const Worker &worker) {
        const T *const a = from.item(i);
        T *const to = result + i * rows * n;
        const auto run = [&](const auto &field) { return invert_row(field, a, n, n, quotient, to, worker.stop); };
        if constexpr (sizeof(T) == sizeof(u64)) {
            if (basis.wide()) {
                found[i] = run(WideField(basis.wide_modulus()));
                return;
            }
        }
        const Modulus &m = basis.moduli()[0];
        found[i] = m.q == 2                             ? invert_bits(a, n, quotient, to, worker.stop)
                   : m.q <= SmallField<uint16_t>::LIMIT ? run(SmallField<uint16_t>(m))
                   : m.q <= SmallField<u32>::LIMIT      ? run(SmallField<u32>(m))
                   : m.q <= SmallField<u64>::LIMIT      ? run(SmallField<u64>(m))
                                                        : run(WordField(m));
    });
}

}  // namespace

void Basis::invert(const Array &x, Quotient quotient, const Out &out, const Out &degrees) const {
    require(wide() || rows() == 1, "invert: one modulus");
    visit([&](auto word) { invert_items<decltype(word)>(*this, x, quotient, out, degrees); });
}

}  // namespace pg
