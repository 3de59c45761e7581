// Integers to residues and back.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "compose.hpp"
#include "dispatch.hpp"
#include "threads.hpp"

namespace pg {
namespace {

constexpr size_t BLOCK = 256;  // numbers that stay in the first-level cache while all limbs are computed
constexpr size_t PART = 4096;  // numbers that a thread takes at once

// ---- integers to residues ----

// Writes the residue of one machine integer, which is smaller than any wide modulus.
void set_wide(const WideModulus &m, u64 *to, size_t stride, u64 word, bool negative, u64 *value, u64 *size) {
    const size_t words = m.words();
    std::fill(value, value + words, 0), std::fill(size, size + words, 0);
    if (negative) size[0] = 0 - word, m.sub(value, size);
    else value[0] = word;
    for (size_t w = 0; w < words; ++w) to[w * stride] = value[w];
}

template <class T>
void reduce_part(const Basis &basis, const char *x, size_t bytes, bool is_signed, T *y, size_t n, size_t count,
                 const Worker &worker) {
    const IntegerKernels &kernels = integer_kernels();
    u64 widened[BLOCK];
    std::vector<u64> wide(basis.wide() ? 2 * basis.rows() : 0);
    for (size_t j = 0; j < count && !stopped(worker.stop); j += BLOCK) {
        const size_t length = std::min(BLOCK, count - j);
        const u64 extent = kernels.widen(x + j * bytes, bytes, is_signed, widened, length);
        const u64 *words = bytes == 8 ? (const u64 *)(x + j * bytes) : widened;
        if (basis.wide()) {
            for (size_t i = 0; i < length; ++i)
                set_wide(basis.wide_modulus(), (u64 *)y + j + i, n, words[i], is_signed && (int64_t)words[i] < 0,
                         wide.data(), wide.data() + basis.rows());
            continue;
        }
        for (size_t limb = 0; limb < basis.rows(); ++limb)
            word_kernels<T>().reduce(words, is_signed, extent, y + limb * n + j, length, basis.moduli()[limb]);
    }
}

// Sets the first `count` entries of each row of out to residues of integers in x, and the rest to zero. Calls
// reduce(from, y, length, worker) for parts of an item: `length` integers at `from`, of `bytes` bytes each, become
// residues at y.
template <class T, class Reduce>
void reduce_rows(const Basis &basis, const Array &x, size_t bytes, size_t count, double seconds, const Out &out,
                 Reduce reduce) {
    const size_t n = last(out), r = basis.rows();
    T *const result = result_of<T>(out, r);
    require(count <= n && x.size() * x.itemsize() == batch_of(out) * count * bytes, "integers: lengths differ");
    const size_t parts = (n + PART - 1) / PART;
    for_each_row(batch_of(out) * parts, seconds * (double)(std::min(n, PART) * r),
                 [&](size_t unit, const Worker &worker) {
                     const size_t item = unit / parts, begin = unit % parts * PART, end = std::min(n, begin + PART);
                     const size_t given = std::min(std::max(begin, count), end);
                     T *const y = result + item * n * r;
                     const char *const from = (const char *)x.data() + (item * count + begin) * bytes;
                     if (given > begin) reduce(from, y + begin, given - begin, worker);
                     for (size_t limb = 0; limb < r && given < end; ++limb)
                         std::memset(y + limb * n + given, 0, (end - given) * sizeof(T));
                 });
}

template <class T> void reduce_integers_to(const Basis &basis, const Numbers &x, bool is_signed, const Out &out) {
    const size_t n = last(out), bytes = x.itemsize();
    const auto part = [&](const char *from, T *y, size_t length, const Worker &worker) {
        reduce_part(basis, from, bytes, is_signed, y, n, length, worker);
    };
    reduce_rows<T>(basis, x, bytes, last(x), basis.seconds_pointwise(1), out, part);
}

// A residue is the sum of all words, each times a power of 2^64 modulo q. The sum is reduced once. The highest word is
// signed.
template <class T> void reduce_large_to(const Basis &basis, const Array &x, const Out &out) {
    const size_t n = last(out), words = last(x), limbs = basis.rows();
    std::vector<u64> powers(limbs * (words + 1));
    for (size_t limb = 0; limb < limbs; ++limb) {
        const Modulus &m = basis.moduli()[limb];
        u64 *const row = powers.data() + limb * (words + 1);
        row[0] = 1;
        for (size_t w = 0; w < words; ++w) row[w + 1] = reduce(m, row[w], 0);
    }
    const auto part = [&](const char *from, T *y, size_t length, const Worker &worker) {
        for (size_t j = 0; j < length && !stopped(worker.stop); ++j) {
            const u64 *const number = (const u64 *)from + j * words;
            const bool negative = number[words - 1] >> 63;
            for (size_t limb = 0; limb < limbs; ++limb) {
                const Modulus &m = basis.moduli()[limb];
                const u64 *const row = powers.data() + limb * (words + 1);
                u128 low = 0, rest = 0;  // sums of the low and of the high halves of the products
                for (size_t w = 0; w < words; ++w) {
                    const u128 product = (u128)number[w] * row[w];
                    low += (u64)product, rest += (u64)(product >> 64);
                }
                rest += (u64)(low >> 64);
                const u64 carry = (u64)(rest >> 64), over = carry <= m.last ? carry : reduce(m, carry);
                const u64 high = reduce(m, over, (u64)rest);
                const u64 residue = reduce(m, high, (u64)low);
                y[limb * n + j] = (T)(negative ? sub_mod(m, residue, row[words]) : residue);
            }
        }
    };
    const double seconds = basis.seconds_pointwise(4 * words);
    reduce_rows<T>(basis, x, 8 * words, x.shape(x.ndim() - 2), seconds, out, part);
}

// ---- residues to integers ----

constexpr unsigned BITS = SumWords::BITS;

// Converts a number from digits x[d * stride] to `words` words. Both are in two's complement.
void store_words(const u64 *x, size_t stride, size_t digits, u64 *out, size_t words) {
    const u64 sign = x[(digits - 1) * stride] >> (BITS - 1) ? ~(u64)0 : 0;
    u64 word = 0;
    size_t w = 0;
    unsigned bits = 0;  // how many bits of `word` are filled
    for (size_t d = 0; d < digits && w < words; ++d) {
        const u64 digit = x[d * stride];
        word |= digit << bits, bits += BITS;
        if (bits < 64) continue;
        out[w++] = word, bits -= 64;
        word = bits ? digit >> (BITS - bits) : 0;
    }
    if (w < words && bits) out[w++] = word | sign << bits;
    while (w < words) out[w++] = sign;
}
// Converts a number from `count` words to digits x[d * stride]. Both are in two's complement.
void store_digits(const u64 *words, size_t count, u64 *x, size_t stride, size_t digits) {
    const u64 sign = words[count - 1] >> 63 ? ~(u64)0 : 0;
    for (size_t d = 0; d < digits; ++d) {
        const size_t w = d * BITS / 64, shift = d * BITS % 64;
        const u64 low = w < count ? words[w] : sign, high = w + 1 < count ? words[w + 1] : sign;
        x[d * stride] = (shift ? low >> shift | high << (64 - shift) : low) & SumWords::MASK;
    }
}

// Returns the double nearest to the number that the words x represent in two's complement, with ties to even. size:
// scratch memory of `words` words.
double nearest_double(const u64 *x, size_t words, u64 *size) {
    const bool negative = x[words - 1] >> 63;
    u64 carry = negative;
    for (size_t w = 0; w < words; ++w) size[w] = (negative ? ~x[w] : x[w]) + carry, carry &= size[w] == 0;
    size_t top = words;
    while (top && size[top - 1] == 0) --top;
    if (top == 0) return 0;
    // Takes the leading 64 bits, and sets the last of them if any lower bit is set. So only the conversion to double
    // rounds.
    const unsigned shift = (unsigned)__builtin_clzll(size[top - 1]);
    u64 lead = size[top - 1] << shift;
    bool rest = false;
    if (top > 1) {
        if (shift) lead |= size[top - 2] >> (64 - shift);
        rest = shift ? size[top - 2] << shift != 0 : size[top - 2] != 0;
        for (size_t w = 0; w + 2 < top && !rest; ++w) rest = size[w] != 0;
    }
    const double value = std::ldexp((double)(lead | (u64)rest), (int)(64 * (top - 1)) - (int)shift);
    return negative ? -value : value;
}

// Updates `norm` by n nonnegative numbers. p = 0: `norm` is a maximum. p = 1: a sum. p = 2: a sum of squares. `norm`
// and the numbers are stored as digits: norm[c] counts units of 2^(BITS * c). n must be so small that no norm[c]
// overflows.
void add_to_norm(int p, const u64 *x, size_t digits, size_t n, u64 *norm) {
    if (p == 2) return integer_kernels().add_squares(x, digits, n, norm);
    for (size_t d = 0; p == 1 && d < digits; ++d)
        for (size_t j = 0; j < n; ++j) norm[d] += x[d * n + j];
    for (size_t j = 0; p == 0 && j < n; ++j) {
        size_t d = digits - 1;
        while (d && x[d * n + j] == norm[d]) --d;
        if (x[d * n + j] <= norm[d]) continue;
        for (size_t i = 0; i < digits; ++i) norm[i] = x[i * n + j];
    }
}
void carry_digits(u64 *norm, size_t digits) {
    for (size_t d = 0; d + 1 < digits; ++d) norm[d + 1] += norm[d] >> BITS, norm[d] &= SumWords::MASK;
}

}  // namespace

void Basis::reduce_integers(const Numbers &x, const Out &out) const {
    const bool is_signed = x.hold<int64_t>() || x.hold<int32_t>() || x.hold<int16_t>() || x.hold<int8_t>();
    require(is_signed || x.hold<u64>() || x.hold<u32>() || x.hold<uint16_t>() || x.hold<uint8_t>(),
            "reduce_integers: integers of 1, 2, 4 or 8 bytes");
    visit([&](auto word) { reduce_integers_to<decltype(word)>(*this, x, is_signed, out); });
}

void Basis::reduce_large_integers(const Array &x, const Out &out) const {
    require(!wide() && x.ndim() >= 2 && last(x) > 0 && x.itemsize() == 8, "reduce_large_integers: words of 8 bytes");
    visit([&](auto word) { reduce_large_to<decltype(word)>(*this, x, out); });
}

Composition::Composition(const Basis &basis, size_t words, const Numbers &inverse, const Numbers &terms,
                         const Numbers &modulus, const Numbers &prefix_inverse, const Numbers &bounds)
    : basis_(basis), words_(words) {
    const auto copy = [](const Numbers &x) {
        require(x.hold<u64>(), "Composition: uint64 tables");
        return std::vector<u64>((const u64 *)x.data(), (const u64 *)x.data() + x.size());
    };
    const size_t k = basis.rows();
    require(words > 0, "Composition: no words");
    digits_ = (64 * words + BITS) / BITS;
    if (basis.wide()) return;
    inverse_ = copy(inverse), terms_ = copy(terms), modulus_ = copy(modulus);
    prefix_inverse_ = copy(prefix_inverse), bounds_ = copy(bounds);
    prefix_ = bounds_.size() / 4;
    const size_t digits = digits_ = modulus_.size();
    require(k <= SumWords::MAX_COUNT && inverse_.size() == k && terms_.size() == digits * (k + 1),
            "Composition: tables of other moduli");
    require(prefix_ > 0 && prefix_ <= k && bounds_.size() == 4 * prefix_ && prefix_inverse_.size() == prefix_ * prefix_,
            "Composition: tables of another prefix");
    for (const Modulus &m : basis.moduli()) {
        radix_.push_back(m.q), reciprocal_.push_back(m.q ? 1 / (double)m.q : 0x1p-64);
        if (radix_.size() <= prefix_) prefix_product_ *= m.q;
        narrow_ &= m.bits <= SumWords::BITS;
    }
    // halves_ becomes floor(Q / 2) and Q - floor(Q / 2).
    halves_[0].assign(digits, 0), halves_[1].assign(digits, 0), zero_.assign(digits, 0);
    u64 carry = modulus_[0] & 1;
    for (size_t d = 0; d < digits; ++d) {
        const u64 next = d + 1 < digits ? modulus_[d + 1] & 1 : 0;
        halves_[0][d] = modulus_[d] >> 1 | next << (SumWords::BITS - 1);
    }
    for (size_t d = 0; d < digits; ++d) {
        const u64 sum = halves_[0][d] + carry;
        halves_[1][d] = sum & SumWords::MASK, carry = sum >> SumWords::BITS;
    }
}

SumWords Composition::sums(bool centered) const {
    const double count = (double)radix_.size() + 2;
    const u64 *low = centered ? halves_[0].data() : zero_.data(),
              *high = centered ? halves_[1].data() : modulus_.data();
    return {radix_.size(),
            modulus_.size(),
            words_,
            terms_.data(),
            reciprocal_.data(),
            modulus_.data(),
            low,
            high,
            count * count * 0x1p-52,
            centered,
            narrow_ && count <= 2000};
}

size_t Composition::items(const Array &x) const {
    require(x.ndim() >= 2 && x.shape(x.ndim() - 2) == basis_.rows() && x.itemsize() == (basis_.narrow() ? 4u : 8u),
            "x: wrong dtype or rows");
    const size_t of_one = basis_.rows() * last(x);
    return of_one ? x.size() / of_one : 0;
}

template <class T, class Use>
void Composition::compose(const T *x, size_t n, size_t begin, size_t end, bool centered, const Worker &worker,
                          Use &use) const {
    const size_t k = basis_.rows();
    const SumWords m = sums(centered);
    std::vector<T> y(k * BLOCK);
    std::vector<u64> digits(BLOCK * digits_), scratch(2 * BLOCK + k + 2 + digits_);
    for (size_t j = begin; j < end && !stopped(worker.stop); j += BLOCK) {
        const size_t count = std::min(BLOCK, end - j);
        for (size_t i = 0; i < k; ++i) {
            const T factor = (T)inverse_[i];
            const T *row = x + i * n + j;
            const Modulus &q = basis_.moduli()[i];
            pointwise_kernels<T>(q).pointwise(Op::mul, row, &factor, true, row, y.data() + i * count, count, q);
        }
        word_kernels<T>().compose(y.data(), m, digits.data(), count, scratch.data());
        use(digits.data(), j, count);
    }
}

template <class Use>
void Composition::compose_wide(const u64 *x, size_t n, size_t begin, size_t end, bool centered, const Worker &worker,
                               Use &use) const {
    const WideModulus &m = basis_.wide_modulus();
    const size_t r = m.words();
    std::vector<u64> value(words_ + r + 1), rest(r), digits(digits_);
    for (size_t j = begin; j < end && !stopped(worker.stop); ++j) {
        std::fill(value.begin(), value.end(), 0);
        for (size_t w = 0; w < r; ++w) value[w] = rest[w] = x[w * n + j];
        if (centered) {  // if x >= q - x, x - q replaces x
            bool upper = m.whole && value[r - 1] >> 63;
            if (!m.whole) {
                std::copy(m.q.begin(), m.q.end(), rest.begin());
                WideModulus::sub_from(rest.data(), value.data(), r);
                upper = m.not_below(value.data(), rest.data());
            }
            if (upper) {
                u64 borrow = m.whole ? 1 : WideModulus::sub_from(value.data(), m.q.data(), r);
                for (size_t w = r; w < words_; ++w) value[w] -= borrow, borrow = value[w] == ~(u64)0;
            }
        }
        store_digits(value.data(), words_, digits.data(), 1, digits_);
        use(digits.data(), j, 1);
    }
}

template <class Make> void Composition::run(const Array &x, bool centered, double products, const Make &make) const {
    const size_t n = last(x), parts = (n + PART - 1) / PART, k = basis_.rows();
    const double seconds = basis_.seconds_products(products * (double)(std::min(n, PART) * k));
    for_each_row(items(x) * parts, seconds, [&](size_t unit, const Worker &worker) {
        const size_t item = unit / parts, begin = unit % parts * PART, end = std::min(n, begin + PART);
        auto use = make(unit, item);
        const size_t at = item * k * n;
        if (basis_.wide()) compose_wide((const u64 *)x.data() + at, n, begin, end, centered, worker, use);
        else if (basis_.narrow()) compose((const u32 *)x.data() + at, n, begin, end, centered, worker, use);
        else compose((const u64 *)x.data() + at, n, begin, end, centered, worker, use);
    });
}

void Composition::to_words(const Array &x, bool centered, const Out &out) const {
    const size_t n = last(x);
    require(out.hold<u64>() && out.size() == items(x) * n * words_, "out: wrong dtype or size");
    run(x, centered, 9, [&](size_t, size_t item) {
        u64 *const y = (u64 *)out.data() + item * n * words_;
        return [=](const u64 *digits, size_t first, size_t count) {
            for (size_t j = 0; j < count; ++j)
                store_words(digits + j, count, digits_, y + (first + j) * words_, words_);
        };
    });
}

void Composition::to_float64(const Array &x, bool centered, const Out &out) const {
    const size_t n = last(x);
    require(out.hold<double>() && out.size() == items(x) * n, "out: wrong dtype or size");
    run(x, centered, 9, [&](size_t, size_t item) {
        double *const y = (double *)out.data() + item * n;
        return [=, words = std::vector<u64>(2 * words_)](const u64 *digits, size_t first, size_t count) mutable {
            for (size_t j = 0; j < count; ++j) {
                store_words(digits + j, count, digits_, words.data(), words_);
                y[first + j] = nearest_double(words.data(), words_, words.data() + words_);
            }
        };
    });
}

void Composition::norm(const Array &x, int p, const Out &out) const {
    const size_t n = last(x), parts = (n + PART - 1) / PART, count_of_items = items(x);
    const size_t words = p == 0 ? words_ : p == 1 ? words_ + 1 : 2 * words_ + 1;
    const size_t length =
        2 * digits_ + 4;  // digits of a norm, which is below 2^64 times the square of the largest number
    require(p >= 0 && p <= 2 && out.hold<u64>() && out.size() == count_of_items * words, "out: wrong dtype or size");
    std::vector<u64> found(count_of_items * parts * length);
    run(x, true, 4, [&](size_t unit, size_t) {
        u64 *const norm = found.data() + unit * length;
        return [=, size = std::vector<u64>(), scratch = std::vector<u64>(BLOCK)](const u64 *digits, size_t,
                                                                                 size_t count) mutable {
            size.assign(digits, digits + count * digits_);
            integer_kernels().make_sizes(size.data(), digits_, count, scratch.data());
            add_to_norm(p, size.data(), digits_, count, norm);
            if (p == 2) carry_digits(norm, length);
        };
    });
    std::vector<u64> norm(length);
    for (size_t item = 0; item < count_of_items; ++item) {
        std::fill(norm.begin(), norm.end(), 0);
        for (size_t part = 0; part < parts; ++part) {
            u64 *const of_part = found.data() + (item * parts + part) * length;
            carry_digits(of_part, length);
            add_to_norm(p == 0 ? 0 : 1, of_part, length, 1, norm.data());
            carry_digits(norm.data(), length);
        }
        store_words(norm.data(), 1, length, (u64 *)out.data() + item * words, words);
    }
}

template <class T>
int64_t Composition::fit(const T *x, size_t n, size_t begin, size_t end, bool centered, const Worker &worker,
                         u64 *y) const {
    const size_t k = basis_.rows();
    const IntegerKernels &kernels = integer_kernels();
    const std::vector<Modulus> &moduli = basis_.moduli();
    const u64 *bounds = bounds_.data() + (centered ? 2 * prefix_ : 0);
    const MixedWords m{prefix_, radix_.data(), bounds, bounds + prefix_, prefix_product_, centered};
    std::vector<u64> digits(prefix_ * BLOCK), wrong(BLOCK);
    std::vector<T> rest(2 * BLOCK);
    T *const t = rest.data(), *const other = t + BLOCK;
    for (size_t j = begin; j < end && !stopped(worker.stop); j += BLOCK) {
        const size_t count = std::min(BLOCK, end - j);
        for (size_t i = 0; i < prefix_; ++i) {  // Garner 1959
            const Modulus &q = moduli[i];
            const T *from = x + i * n + j;
            for (size_t d = 0; d < i; ++d, from = t) {
                const T factor = (T)prefix_inverse_[i * prefix_ + d];
                word_kernels<T>().reduce(digits.data() + d * count, false, moduli[d].last, other, count, q);
                pointwise_kernels<T>(q).pointwise(Op::sub, from, other, false, from, t, count, q);
                pointwise_kernels<T>(q).pointwise(Op::mul, t, &factor, true, t, t, count, q);
            }
            std::copy(from, from + count, digits.data() + i * count);
        }
        kernels.join_digits(digits.data(), m, y + j, wrong.data(), count);
        const u64 extent = kernels.widen(y + j, 8, true, nullptr, count);
        u64 any = word_kernels<T>().compare(t, t, wrong.data(), count);
        for (size_t i = prefix_; i < k; ++i) {
            word_kernels<T>().reduce(y + j, true, extent, t, count, moduli[i]);
            any |= word_kernels<T>().compare(x + i * n + j, t, wrong.data(), count);
        }
        if (any) return (int64_t)(j + (size_t)(std::find(wrong.begin(), wrong.end(), 1) - wrong.begin()));
    }
    return -1;
}

int64_t Composition::to_int64(const Array &x, bool centered, const Out &out) const {
    const size_t n = last(x), k = basis_.rows(), parts = (n + PART - 1) / PART;
    require(out.hold<int64_t>() && out.size() == items(x) * n, "out: wrong dtype or size");
    constexpr int64_t NONE = INT64_MAX;
    std::atomic<int64_t> first{NONE};
    const auto note = [&](int64_t at) {
        int64_t seen = first.load();
        while (at < seen && !first.compare_exchange_weak(seen, at)) {
        }
    };
    if (basis_.wide()) {
        run(x, centered, 6, [&](size_t, size_t item) {
            int64_t *const y = (int64_t *)out.data() + item * n;
            return [=, &note, all = std::vector<u64>(words_)](const u64 *digits, size_t j, size_t) mutable {
                store_words(digits, 1, digits_, all.data(), words_);
                const u64 sign = all[0] >> 63 ? ~(u64)0 : 0;
                for (size_t w = 1; w < words_; ++w)
                    if (all[w] != sign) return note((int64_t)(item * n + j));
                y[j] = (int64_t)all[0];
            };
        });
    } else {
        const double seconds = basis_.seconds_pointwise(2 * std::min(n, PART) * k);
        for_each_row(items(x) * parts, seconds, [&](size_t unit, const Worker &worker) {
            const size_t item = unit / parts, begin = unit % parts * PART, end = std::min(n, begin + PART);
            u64 *const y = (u64 *)out.data() + item * n;
            const size_t at = item * k * n;
            const int64_t found = basis_.narrow() ? fit((const u32 *)x.data() + at, n, begin, end, centered, worker, y)
                                                  : fit((const u64 *)x.data() + at, n, begin, end, centered, worker, y);
            if (found >= 0) note((int64_t)(item * n) + found);
        });
    }
    return first == NONE ? -1 : first.load();
}

}  // namespace pg
