// Operations of Basis on each residue: pointwise ones, permutations, products with powers.
#include <algorithm>
#include <memory>
#include <vector>

#include "basis.hpp"
#include "dispatch.hpp"
#include "threads.hpp"

namespace pg {
namespace {

template <class T>
void pointwise_words(const Basis &basis, Op op, const Array &a, const Array &b, const Array &c, const Out &out) {
    const size_t n = last(out), limbs = basis.rows();
    T *const result = result_of<T>(out, limbs);
    const Operand<T> x(a, out, limbs), y(b ? b : a, out, limbs), z(c ? c : a, out, limbs);
    require(x.length() == n && (y.length() == n || y.length() == 1) && z.length() == n, "pointwise: lengths differ");
    const bool scalar = y.length() == 1 && n != 1;
    for_each_row(batch_of(out) * limbs, basis.seconds_pointwise(n), [&](size_t i, const Worker &) {
        const Modulus &m = basis.moduli()[i % limbs];
        pointwise_kernels<T>(m).pointwise(op, x.row(i), y.row(i), scalar, z.row(i), result + i * n, n, m);
    });
}

void pointwise_wide(const Basis &basis, Op op, const Array &a, const Array &b, const Array &c, const Out &out) {
    const size_t n = last(out), words = basis.rows();
    u64 *const result = result_of<u64>(out, words);
    const Operand<u64> x(a, out, words), y(b ? b : a, out, words), z(c ? c : a, out, words);
    require(x.length() == n && (y.length() == n || y.length() == 1) && z.length() == n, "pointwise: lengths differ");
    // step: distance between the entries of the second operand; 0 if it has only one number for each item.
    const size_t step = y.length() == n ? 1 : 0;
    const bool products = op == Op::mul || op == Op::mul_add;
    const double each = products ? 10e-9 * (double)(words * words) : seconds_pointwise(4 * words);
    for_each_row(batch_of(out), each * (double)n, [&](size_t i, const Worker &worker) {
        const WideModulus &q = basis.wide_modulus();
        const u64 *from_x = x.item(i), *from_y = y.item(i), *from_z = z.item(i);
        u64 *to = result + i * n * words;
        std::vector<u64> memory(2 * words + q.multiply_scratch());
        u64 *const u = memory.data(), *const v = u + words, *const scratch = v + words;
        const auto read = [&](u64 *number, const u64 *from, size_t length, size_t j) {
            for (size_t w = 0; w < words; ++w) number[w] = from[w * length + j];
        };
        for (size_t j = 0; j < n && !stopped(worker.stop); ++j) {
            if (op == Op::neg) {
                std::fill(u, u + words, 0);
                read(v, from_x, n, j);
            } else {
                read(u, from_x, n, j);
                read(v, from_y, y.length(), j * step);
            }
            if (op == Op::add) q.add(u, v);
            else if (products) q.multiply(u, v, scratch);
            else q.sub(u, v);
            if (op == Op::mul_add) {
                read(v, from_z, n, j);
                q.add(u, v);
            }
            for (size_t w = 0; w < words; ++w) to[w * n + j] = u[w];
        }
    });
}

// A thread computes all combinations of a block of entries while the operands' words are in the cache.
template <class T>
void combine_words(const Basis &basis, const std::vector<Array> &operands, const Array &factors, const Array &constant,
                   size_t step, const Out &out) {
    const size_t n = last(out), limbs = basis.rows(), terms = operands.size(), items = batch_of(out);
    T *const result = result_of<T>(out, limbs);
    std::vector<Operand<T>> from;
    for (const Array &x : operands) from.emplace_back(x, out, limbs);
    for (const Operand<T> &x : from) require(x.length() == n, "combine: lengths differ");
    require(terms && factors.itemsize() == sizeof(T) && factors.size() % (terms * limbs) == 0,
            "combine: factors (combinations, operands, rows, 1)");
    const size_t count = factors.size() / (terms * limbs);  // combinations
    if (items == 0 || n == 0 || count == 0) return;
    require(items % count == 0 && step && n % step == 0, "combine: combinations of all items, and constants at a step");
    std::unique_ptr<Operand<T>> added;
    if (constant) {
        added.reset(new Operand<T>(constant, out, limbs));
        require(added->length() == 1, "combine: constants (*batch, rows, 1)");
    }
    const size_t each = items / count;
    const T *const given = (const T *)factors.data();
    std::vector<T> w(count * limbs * terms), shoup(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
        const size_t term = i % terms, limb = i / terms % limbs, made = i / terms / limbs;
        const Modulus &m = basis.moduli()[limb];
        w[i] = given[(made * terms + term) * limbs + limb];
        shoup[i] = m.q ? (T)(shoup_quotient(m, w[i]) >> (64 - 8 * sizeof(T))) : 0;
    }
    constexpr size_t BLOCK_BYTES = 1 << 17;  // a block of all operands, in bytes, must fit the second-level cache
    const size_t block = std::min(n, std::max<size_t>(BLOCK_BYTES / (sizeof(T) * (terms + 1)) & ~(size_t)63, 128));
    const size_t blocks = (n + block - 1) / block;
    const double seconds = basis.seconds_products((double)(block * terms * count));
    for_each_row(each * limbs * blocks, seconds, [&](size_t index, const Worker &) {
        const size_t begin = index % blocks * block, size = std::min(block, n - begin);
        const size_t limb = index / blocks % limbs, item = index / blocks / limbs;
        const Modulus &m = basis.moduli()[limb];
        const RowKernels<T> &kernels = pointwise_kernels<T>(m);
        std::vector<const T *> x(terms);
        for (size_t i = 0; i < terms; ++i) x[i] = from[i].item(item) + limb * n + begin;
        for (size_t made = 0; made < count; ++made) {
            const size_t to = made * each + item, first = (made * limbs + limb) * terms;
            T *const y = result + (to * limbs + limb) * n + begin;
            if (kernels.combine) {
                kernels.combine(x.data(), &w[first], &shoup[first], terms, y, size, m);
            } else {  // products in vectors are faster than sums by the portable kernel
                kernels.pointwise(Op::mul, x[0], &w[first], true, nullptr, y, size, m);
                for (size_t i = 1; i < terms; ++i)
                    kernels.pointwise(Op::mul_add, x[i], &w[first + i], true, y, y, size, m);
            }
            if (!added) continue;
            const T c = added->item(to)[limb];
            if (step == 1) kernels.pointwise(Op::add, y, &c, true, nullptr, y, size, m);
            else
                for (size_t j = (step - begin % step) % step; j < size; j += step) y[j] = (T)add_mod(m, y[j], c);
        }
    });
}

template <class T> void permute_words(const Basis &basis, const Array &x, const Numbers &index, const Out &out) {
    const size_t n = last(out), r = basis.rows();
    T *const result = result_of<T>(out, r);
    const Operand<T> from(x, out, r);
    require(from.length() == n && index.size() == n && index.hold<int64_t>(), "permute: lengths or index differ");
    const int64_t *at = (const int64_t *)index.data();
    if (std::all_of(at, at + n, [n](int64_t k) { return k >= 0 && (size_t)k < n; })) {
        for_each_row(batch_of(out) * r, seconds_pointwise(2 * n),
                     [&](size_t i, const Worker &) { permute_row(from.row(i), at, result + i * n, n); });
        return;
    }
    for_each_row(batch_of(out), seconds_pointwise(2 * n * r), [&](size_t i, const Worker &) {
        const T *source = from.item(i);
        T *to = result + i * n * r;
        std::vector<u64> value(r), difference(r);
        for (size_t w = 0; w < r; ++w) {
            for (size_t j = 0; j < n; ++j) {
                const size_t k = (size_t)at[j];
                if (k < n) to[w * n + j] = source[w * n + k];
                else if (!basis.wide()) to[w * n + j] = (T)neg_mod(basis.moduli()[w], source[w * n + k - n]);
            }
        }
        if (!basis.wide()) return;
        for (size_t j = 0; j < n; ++j) {
            const size_t k = (size_t)at[j];
            if (k < n) continue;
            std::fill(difference.begin(), difference.end(), 0);
            for (size_t w = 0; w < r; ++w) value[w] = source[w * n + k - n];
            basis.wide_modulus().sub(difference.data(), value.data());
            for (size_t w = 0; w < r; ++w) to[w * n + j] = (T)difference[w];
        }
    });
}

template <class T>
void mul_monomial_words(const Basis &basis, const Array &x, const Numbers &exponents, Quotient quotient,
                        const Out &out) {
    const size_t n = last(out), limbs = basis.rows();
    T *const result = result_of<T>(out, limbs);
    const size_t items = batch_of(out);
    const u64 order = order_of_x(quotient, n);
    require(x && x.itemsize() == sizeof(T) && x.size() == out.size() && last(x) == n,
            "mul_monomial: wrong dtype or shape");
    require(exponents.hold<i64>() && exponents.size() == items, "mul_monomial: an exponent for each item");
    const i64 *const powers = (const i64 *)exponents.data();
    for (size_t i = 0; i < items; ++i)
        require(powers[i] >= 0 && (u64)powers[i] < order, "mul_monomial: exponents below the order of X");
    const T *const from = (const T *)x.data();
    for_each_row(items * limbs, seconds_pointwise(n), [&](size_t row, const Worker &) {
        const Modulus &m = basis.moduli()[row % limbs];
        mul_monomial_row(quotient, pointwise_kernels<T>(m), from + row * n, result + row * n, n,
                         (u64)powers[row / limbs], m);
    });
}

// Computes step^j as a power of step^POWERS times one of step^0 ... step^(POWERS - 1). A table of these POWERS numbers
// stays in the first-level cache. by: step^have in the first loop, then step^POWERS. ahead: first * step^at.
template <class T>
void scale_words_by_powers(const Basis &basis, const Array &x, const Array &first, const Array &step, const Out &out) {
    constexpr size_t POWERS = 512;
    const size_t n = last(out), limbs = basis.rows(), rows = batch_of(out) * limbs, given = first.size();
    T *const result = result_of<T>(out, limbs);
    require(x.itemsize() == sizeof(T) && x.size() == out.size() && last(x) == n,
            "scale_by_powers: wrong dtype or shape");
    require(first.itemsize() == sizeof(T) && step.itemsize() == sizeof(T) && step.size() == given,
            "scale_by_powers: first and step of the residues' dtype and of one shape");
    require(!rows || (given && given % limbs == 0 && rows % given == 0), "scale_by_powers: items of first and step");
    const T *const from = (const T *)x.data(), *const firsts = (const T *)first.data(),
                   *const steps = (const T *)step.data();
    for_each_row(rows, basis.seconds_pointwise(3 * n), [&](size_t i, const Worker &worker) {
        const Modulus &m = basis.moduli()[i % limbs];
        const RowKernels<T> &kernels = pointwise_kernels<T>(m);
        T powers[POWERS], factors[POWERS], ahead = firsts[i % given], by = steps[i % given];
        powers[0] = 1;
        const size_t count = std::min(n, POWERS);
        for (size_t have = 1; have < count; have *= 2) {
            kernels.pointwise(Op::mul, powers, &by, true, nullptr, powers + have, std::min(have, count - have), m);
            by = (T)mul_mod(m, by, by);
        }
        for (size_t at = 0; at < n && !stopped(worker.stop); at += POWERS) {
            const size_t some = std::min(n - at, POWERS);
            kernels.pointwise(Op::mul, powers, &ahead, true, nullptr, factors, some, m);
            kernels.pointwise(Op::mul, from + i * n + at, factors, false, nullptr, result + i * n + at, some, m);
            ahead = (T)mul_mod(m, ahead, by);
        }
    });
}

}  // namespace

void Basis::mul_monomial(const Array &x, const Numbers &exponents, Quotient quotient, const Out &out) const {
    require(!wide(), "mul_monomial: moduli of at most 64 bits");
    visit([&](auto word) { mul_monomial_words<decltype(word)>(*this, x, exponents, quotient, out); });
}

void Basis::scale_by_powers(const Array &x, const Array &first, const Array &step, const Out &out) const {
    require(!wide(), "scale_by_powers: moduli of at most 64 bits");
    visit([&](auto word) { scale_words_by_powers<decltype(word)>(*this, x, first, step, out); });
}

void Basis::combine(const std::vector<Array> &operands, const Array &factors, const Array &constant, size_t step,
                    const Out &out) const {
    require(!wide(), "combine: moduli of at most 64 bits");
    visit([&](auto word) { combine_words<decltype(word)>(*this, operands, factors, constant, step, out); });
}

void Basis::pointwise(int op, const StridedArray &a, const StridedArray &b, const StridedArray &c,
                      const Out &out) const {
    if (wide()) pointwise_wide(*this, (Op)op, a, b, c, out);
    else visit([&](auto word) { pointwise_words<decltype(word)>(*this, (Op)op, a, b, c, out); });
}

void Basis::permute(const Array &x, const Numbers &index, const Out &out) const {
    visit([&](auto word) { permute_words<decltype(word)>(*this, x, index, out); });
}

}  // namespace pg
