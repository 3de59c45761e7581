#include "rns.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "dispatch.hpp"
#include "threads.hpp"

namespace pg {
namespace {

// Bytes of all rows of a block of coefficients, which must fit the second-level cache.
constexpr size_t BLOCK_BYTES = 1 << 17;

// Residues in words of 32 or 64 bits, read as words of type W.
template <class W> class RowsOf {
  public:
    RowsOf(const Array &x, const Out &out, const Residues &rows) : narrow_(x && x.itemsize() == 4) {
        if (!x) return;
        if (narrow_) narrow_rows_.reset(new Operand<u32>(x, out, rows.count));
        else wide_rows_.reset(new Operand<u64>(x, out, rows.count));
        require((narrow_ ? narrow_rows_->length() : wide_rows_->length()) == last(out), "convert: lengths differ");
    }
    // Returns n words of a row, beginning with index `from`: in the array itself if its words have type W, else copied
    // to `room`.
    const W *at(size_t item, size_t row, size_t from, size_t n, W *room) const {
        if (narrow_) return words(narrow_rows_->item(item), row, narrow_rows_->length(), from, n, room);
        return words(wide_rows_->item(item), row, wide_rows_->length(), from, n, room);
    }

  private:
    template <class T> static const W *words(const T *item, size_t row, size_t length, size_t from, size_t n, W *room) {
        const T *x = item + row * length + from;
        if constexpr (sizeof(T) == sizeof(W)) return x;
        for (size_t j = 0; j < n; ++j) room[j] = (W)x[j];
        return room;
    }

    bool narrow_;
    std::unique_ptr<Operand<u32>> narrow_rows_;
    std::unique_ptr<Operand<u64>> wide_rows_;
};

}  // namespace

Residues::Residues(const std::vector<u64> &q, const std::vector<size_t> &places, size_t length)
    : at(places), count(length) {
    require(q.size() == places.size(), "Residues: one modulus a row");
    for (u64 modulus : q) moduli.push_back(make_modulus(modulus));
    for (size_t place : places) require(place < length, "Residues: no such row");
}

unsigned Residues::bits() const {
    unsigned most = 0;
    for (const Modulus &m : moduli) most = std::max(most, m.bits);
    return most;
}

// ---- quotients ----

Quotients::Quotients(const std::string &way, const std::vector<u64> &moduli, const Numbers &words)
    : way_(way == "floor"     ? Way::floor
           : way == "nearest" ? Way::nearest
           : way == "counted" ? Way::counted
                              : Way::none),
      moduli_(moduli) {
    if (way_ == Way::none || way_ == Way::counted) return;
    require(words && words.ndim() == 2 && words.hold<u64>() && words.shape(0) == 1 + moduli.size() && words.shape(1),
            "Quotients: words (1 + rows, count)");
    count_ = words.shape(1);
    words_.assign((const u64 *)words.data(), (const u64 *)words.data() + words.size());
    for (u64 q : moduli_) ratios_.push_back(q ? 1 / (double)q : 0x1p-64);
    // Each of k terms is rounded three times, each of k sums once, and no sum exceeds k + 1 (docs/math.md).
    const double k = (double)moduli_.size();
    guard_ = (k + 4) * (k + 1) * 0x1p-52;
}

// Whether the sum of z_i / q_i, plus 1/2 for `nearest`, is at least `boundary`, a positive integer. With T = sum of z_i
// * P / q_i this is 2 * T >= (2 * boundary - c) * P, where c is 1 for `nearest`, else 0. The difference of both sides
// is computed word by word from the lowest; only its sign is kept.
template <class T> bool Quotients::reaches(const T *const *z, size_t j, u64 boundary) const {
    const u64 factor = 2 * boundary - (way_ == Way::nearest);
    u128 carry = 0, product_carry = 0;  // the carries of T and of factor * P
    u64 top = 0, borrow = 0;            // top: the bit that doubling moves up
    for (size_t w = 0; w < count_; ++w) {
        u128 low = (u64)carry, high = carry >> 64;
        for (size_t i = 0; i < moduli_.size(); ++i) {
            const u128 product = (u128)z[i][j] * words_[(1 + i) * count_ + w];
            low += (u64)product, high += product >> 64;
        }
        carry = high + (low >> 64);
        const u64 word = (u64)low, doubled = word << 1 | top;
        top = word >> 63;
        product_carry += (u128)words_[w] * factor;
        const u64 other = (u64)product_carry;
        product_carry >>= 64;
        const u128 difference = (u128)doubled - other - borrow;
        borrow = (u64)(difference >> 64) & 1;
    }
    return !borrow;  // the words have room for 2 * k * P, so that nothing is carried out of the last
}

template <class T> void Quotients::find(const T *const *z, size_t n, double *sums, T *quotient) const {
    const EstimateKernels<T> &kernels = word_kernels<T>().estimate;
    std::fill(quotient, quotient + n, (T)0);
    if (way_ == Way::counted) {
        for (size_t i = 0; i < rows(); ++i)  // 2 * z >= q; q = 2^64 is stored as 0
            kernels.count_from(z[i], (T)(moduli_[i] ? moduli_[i] / 2 + moduli_[i] % 2 : (u64)1 << 63), quotient, n);
        return;
    }
    std::fill(sums, sums + n, 0.0);
    for (size_t i = 0; i < rows(); ++i) kernels.add_ratios(z[i], ratios_[i], sums, n);
    const double half = way_ == Way::nearest ? 0.5 : 0;
    if (!kernels.round_sums(sums, half, guard_, quotient, n)) return;
    for (size_t j = 0; j < n; ++j) {
        const double value = sums[j] + half;
        const u64 boundary = (u64)(value + 0.5);
        const double distance = value - (double)boundary;
        if (distance < guard_ && distance > -guard_)
            quotient[j] = (T)(boundary == 0 || reaches(z, j, boundary) ? boundary : boundary - 1);
    }
}

// ---- conversions ----

Conversion::Conversion(Residues source, std::vector<u64> inverses, Quotients quotients, Residues target,
                       bool accumulates, const Transform *transform, Residues own, const Numbers &matrix)
    : source_(std::move(source)),
      target_(std::move(target)),
      own_(std::move(own)),
      inverses_(std::move(inverses)),
      quotients_(std::move(quotients)),
      accumulates_(accumulates),
      transform_(transform) {
    require(inverses_.size() == source_.size(), "Conversion: one inverse a row");
    require(!quotients_.wanted() || quotients_.rows() == source_.size(), "Conversion: quotients of other rows");
    require(own_.size() == 0 || own_.size() == target_.size(), "Conversion: one own row for each of the target");
    require(!transform || transform->basis().rows() == target_.size(), "Conversion: a transform of other rows");
    require(matrix.ndim() == 2 && matrix.hold<u64>() && matrix.shape(0) == target_.size(), "Conversion: wrong matrix");
    terms_ = matrix.shape(1);
    matrix_.assign((const u64 *)matrix.data(), (const u64 *)matrix.data() + matrix.size());
}

void Conversion::scale(std::vector<size_t> rows, std::vector<u64> remainders, Quotients fractions) {
    require(rows.size() == remainders.size() && rows.size() == fractions.rows() && fractions.wanted(),
            "Conversion: one remainder a scaled row");
    for (size_t row : rows) require(row < source_.size(), "Conversion: no such row");
    scaled_ = std::move(rows), remainders_ = std::move(remainders), fractions_ = std::move(fractions);
}

template <class W> const Conversion::Factors<W> &Conversion::factors() const {
    const auto make = [this] {
        Factors<W> of;
        for (size_t i = 0; i < matrix_.size(); ++i) {
            const Modulus &m = target_.moduli[i / terms_];
            of.w.push_back((W)matrix_[i]);
            of.shoup.push_back(m.q ? (W)(shoup_quotient(m, matrix_[i]) >> (64 - 8 * sizeof(W))) : 0);
        }
        return of;
    };
    if constexpr (sizeof(W) == 4) return narrow_.get(make);
    else return wide_.get(make);
}

template <class W> void Conversion::run_words(const Array &x, const Array &own, const Out &out) const {
    const size_t n = last(out), k = source_.size(), scaled = scaled_.size(), inputs = k + 4 + scaled;
    const bool narrow_out = out.itemsize() == 4;
    void *const result = narrow_out ? (void *)result_of<u32>(out, target_.count) : result_of<u64>(out, target_.count);
    const RowsOf<W> from(x, out, source_), from_own(own, out, own_);
    require(terms_ == k + quotients_.wanted() + 2 * (scaled > 0) + (own_.size() > 0) + accumulates_,
            "Conversion: wrong number of terms");
    require((x || k == 0) && (own || own_.size() == 0), "Conversion: an operand is missing");
    const Factors<W> &factor = factors<W>();
    const unsigned bits = source_.bits();
    const size_t block = std::min(n, std::max<size_t>(BLOCK_BYTES / (sizeof(W) * (inputs + 3)) & ~(size_t)63, 128));
    const size_t blocks = (n + block - 1) / block;
    const double seconds = seconds_sums((double)(block * (k + target_.size() * terms_)));
    for_each_row(batch_of(out) * blocks, seconds, [&](size_t index, const Worker &worker) {
        const size_t item = index / blocks, begin = index % blocks * block, count = std::min(block, n - begin);
        // Scratch memory holds, in this order: the rows y, the quotient, low, high, the rows z, the fraction, the row
        // of `own`, the row of the target, and the sums.
        W *const room = (W *)worker.scratch((inputs + 2) * block * sizeof(W) + block * sizeof(double));
        double *const sums = (double *)(void *)(room + (inputs + 2) * block);
        std::vector<const W *> terms(terms_), parts(scaled);
        for (size_t i = 0; i < k; ++i) {
            const Modulus &m = source_.moduli[i];
            W *const y = room + i * block, inverse = (W)inverses_[i];
            const W *raw = from.at(item, source_.at[i], begin, count, y);
            terms[i] = raw;
            if (inverse == 1) continue;
            pointwise_kernels<W>(m).pointwise(Op::mul, raw, &inverse, true, raw, y, count, m);
            terms[i] = y;
        }
        size_t term = k;
        W *next = room + k * block;
        if (quotients_.wanted()) {
            quotients_.find(terms.data(), count, sums, next);
            terms[term++] = next;
        }
        next += block;
        if (scaled) {
            W *const low = next, *const high = low + block, *const rest = high + block;
            std::fill(low, high + block, (W)0);
            for (size_t i = 0; i < scaled; ++i) {
                W *const z = rest + i * block;
                word_kernels<W>().estimate.split_products(terms[scaled_[i]], remainders_[i], source_.moduli[scaled_[i]],
                                                          z, low, high, count);
                parts[i] = z;
            }
            W *const fraction = rest + scaled * block;
            fractions_.find(parts.data(), count, sums, fraction);
            for (size_t j = 0; j < count; ++j) low[j] += fraction[j];
            terms[term++] = low, terms[term++] = high;
        }
        W *const own_room = room + inputs * block, *const made = own_room + block;
        for (size_t j = 0; j < target_.size(); ++j) {
            const Modulus &m = target_.moduli[j];
            const size_t at = (item * target_.count + target_.at[j]) * n + begin;
            size_t t = term;
            W *y = made;
            if constexpr (sizeof(W) == 8) {
                if (!narrow_out) y = (W *)result + at;
                if (accumulates_ && narrow_out)
                    for (size_t i = 0; i < count; ++i) made[i] = ((u32 *)result)[at + i];
            } else {
                y = (W *)result + at;
            }
            if (accumulates_) terms[t++] = y;
            if (own_.size() && !transform_) terms[t++] = from_own.at(item, own_.at[j], begin, count, own_room);
            if ((W)m.q == 0)  // q is 2 to the bits of W
                word_kernels<W>().estimate.combine_words(terms.data(), &factor.w[j * terms_], t, y, count);
            else
                combine_kernels<W>(m, std::max(m.bits, bits))
                    .combine(terms.data(), &factor.w[j * terms_], &factor.shoup[j * terms_], t, y, count, m);
            if (y == made)
                for (size_t i = 0; i < count; ++i) ((u32 *)result)[at + i] = (u32)made[i];
        }
    });
}

// Transforms each row of the target, and adds the row of `own` while the target's row is in the cache. W: the type of
// the words of `out`.
template <class W> void Conversion::finish_rows(const Array &own, const Out &out) const {
    const size_t n = last(out), rows = target_.size();
    W *const result = result_of<W>(out, target_.count);
    const RowsOf<W> from_own(own, out, own_);
    require(transform_->degree() == n && transform_->basis().narrow() == (sizeof(W) == 4),
            "Conversion: a transform of other rows");
    const Factors<W> &factor = factors<W>();
    const double seconds = transform_->basis().seconds_transform(n) + transform_->basis().seconds_pointwise(2 * n);
    for_each_row(batch_of(out) * rows, seconds, [&](size_t index, const Worker &worker) {
        const size_t item = index / rows, j = index % rows;
        const Modulus &m = target_.moduli[j];
        W *const y = result + (item * target_.count + target_.at[j]) * n;
        transform_->row<W>(j, worker).ntt(y, y);
        if (own_.size() == 0) return;
        const W *const terms[] = {y, from_own.at(item, own_.at[j], 0, n, (W *)worker.scratch(n * sizeof(W)))};
        const size_t at = (j + 1) * terms_ - 1;
        const W one = (W)reduce(m, 1), w[] = {one, factor.w[at]};
        const u64 quotient = m.q ? shoup_quotient(m, one) : 0;
        const W shoup[] = {(W)(quotient >> (64 - 8 * sizeof(W))), factor.shoup[at]};
        combine_kernels<W>(m, m.bits).combine(terms, w, shoup, 2, y, n, m);
    });
}

void Conversion::run(const Array &x, const Array &own, const Out &out) const {
    const bool narrow_out = out.itemsize() == 4, narrow_own = !own || own.itemsize() == 4;
    const bool narrow = narrow_out && (!x || x.itemsize() == 4) && (transform_ || narrow_own);
    with_word(narrow, [&](auto word) { run_words<decltype(word)>(x, own, out); });
    if (!transform_) return;
    with_word(narrow_out, [&](auto word) { finish_rows<decltype(word)>(own, out); });
}

}  // namespace pg
