// Products in the ring, checked at random points.
//
// Let a * b = c in Z_q[X]/(X^n - s), s = 1 or -1. Then c(r) = sum over j of b_j * v_j(r) at every point r, where v_j is
// X^j * a, reduced in the ring: v_0 = a, v_(j+1) = X * v_j - a_(n-1-j) * (X^n - s), since a_(n-1-j) is coefficient n-1
// of v_j. Source: docs/math.md, "Checked products".
#include <algorithm>
#include <atomic>
#include <vector>

#include "basis.hpp"
#include "threads.hpp"

namespace pg {
namespace {

// A factor w of many products modulo q. For q < 2^63, products are computed by Shoup's method.
struct Factor {
    u64 w = 0, quotient = 0;

    Factor() = default;
    Factor(const Modulus &m, u64 w_) : w(w_), quotient(m.bits <= 63 ? shoup_quotient(m, w_) : 0) {}
    u64 times(const Modulus &m, u64 x) const {
        if (m.bits > 63) return mul_mod(m, x, w);
        const u64 r = x * w - mul_hi(x, quotient) * m.q;  // below 2q
        return r >= m.q ? r - m.q : r;
    }
};

// Returns whether a * b = c holds at one point, for one row.
template <class T>
bool holds(const Modulus &m, const T *a, const T *b, const T *c, size_t n, Quotient quotient, u64 point,
           const int *stop) {
    u64 v = 0, expected = 0, sum = 0, value = 0;  // value: the ring's polynomial at the point
    for_each_term(quotient, n, [&](size_t exponent, bool negative) {
        const u64 power = pow_mod(m, point, exponent);
        value = negative ? sub_mod(m, value, power) : add_mod(m, value, power);
    });
    const Factor r(m, point), quotient_value(m, value);
    for (size_t j = n; j-- > 0;) {
        if (j % 4096 == 0 && stopped(stop)) return true;
        v = add_mod(m, r.times(m, v), a[j]);
        expected = add_mod(m, r.times(m, expected), c[j]);
    }
    for (size_t j = 0; j < n; ++j) {
        if (j % 4096 == 0 && stopped(stop)) return true;
        sum = add_mod(m, sum, mul_mod(m, v, b[j]));
        v = sub_mod(m, r.times(m, v), quotient_value.times(m, a[n - 1 - j]));
    }
    return sum == expected;
}

// Like `holds`, for a wide modulus. Words of a coefficient are n words apart. Words of the point are `apart` words
// apart.
bool holds_wide(const WideModulus &q, const u64 *a, const u64 *b, const u64 *c, size_t n, Quotient quotient,
                const u64 *point, size_t apart, const int *stop) {
    const size_t words = q.words();
    std::vector<u64> memory(7 * words + q.multiply_scratch());
    u64 *const r = memory.data(), *const v = r + words, *const expected = v + words, *const sum = expected + words;
    u64 *const value = sum + words, *const x = value + words, *const power = x + words, *const scratch = power + words;
    const auto read = [&](u64 *number, const u64 *from, size_t step, size_t j) {
        for (size_t w = 0; w < words; ++w) number[w] = from[w * step + j];
    };
    read(r, point, apart, 0);
    for_each_term(quotient, n, [&](size_t exponent, bool negative) {  // value: the ring's polynomial at the point
        std::fill(power, power + words, 0);
        power[0] = 1;
        std::copy(r, r + words, x);
        for (; exponent; exponent >>= 1) {
            if (exponent & 1) q.multiply(power, x, scratch);
            std::copy(x, x + words, expected);
            q.multiply(x, expected, scratch);
        }
        negative ? q.sub(value, power) : q.add(value, power);
    });
    std::fill(expected, expected + words, 0);
    for (size_t j = n; j-- > 0;) {
        if (stopped(stop)) return true;
        q.multiply(v, r, scratch);
        read(x, a, n, j);
        q.add(v, x);
        q.multiply(expected, r, scratch);
        read(x, c, n, j);
        q.add(expected, x);
    }
    for (size_t j = 0; j < n; ++j) {
        if (stopped(stop)) return true;
        read(x, b, n, j);
        q.multiply(x, v, scratch);
        q.add(sum, x);
        q.multiply(v, r, scratch);
        read(x, a, n, n - 1 - j);
        q.multiply(x, value, scratch);
        q.sub(v, x);
    }
    return std::equal(sum, sum + words, expected);
}

template <class T>
int64_t find_wrong(const Basis &basis, const Array &a, const Array &b, const Out &c, const Array &points,
                   Quotient quotient) {
    const size_t n = last(c), rows = basis.rows(), limbs = basis.wide() ? 1 : rows;
    const T *const z = result_of<T>(c, rows);
    const Operand<T> x(a, c, rows), y(b, c, rows);
    require(wrap(quotient) != 0, "find_wrong_product: of X^n - 1 or X^n + 1");
    require(x.length() == n && y.length() == n, "find_wrong_product: lengths differ");
    require(points.ndim() == 2 && points.shape(0) == rows && points.itemsize() == sizeof(T),
            "find_wrong_product: points (rows, count)");
    const T *const at = (const T *)points.data();
    const size_t count = points.shape(1);
    std::atomic<int64_t> wrong{INT64_MAX};
    const double each = basis.wide() ? 40e-9 * (double)(rows * rows) : 8e-9;
    for_each_row(batch_of(c) * limbs, each * (double)(n * count), [&](size_t i, const Worker &worker) {
        bool right = true;
        for (size_t p = 0; p < count && right; ++p) {
            if constexpr (sizeof(T) == sizeof(u64)) {
                if (basis.wide()) {
                    right = holds_wide(basis.wide_modulus(), x.item(i), y.item(i), z + i * rows * n, n, quotient,
                                       at + p, count, worker.stop);
                    continue;
                }
            }
            right = holds(basis.moduli()[i % limbs], x.row(i), y.row(i), z + i * n, n, quotient,
                          at[i % limbs * count + p], worker.stop);
        }
        int64_t first = wrong.load();
        while (!right && (int64_t)i < first && !wrong.compare_exchange_weak(first, (int64_t)i)) {
        }
    });
    return wrong == INT64_MAX ? -1 : wrong.load();
}

}  // namespace

int64_t Basis::find_wrong_product(const Array &a, const Array &b, const Out &c, const Array &points,
                                  Quotient quotient) const {
    return visit([&](auto word) { return find_wrong<decltype(word)>(*this, a, b, c, points, quotient); });
}

}  // namespace pg
