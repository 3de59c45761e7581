// Products in the ring, checked at random points.
//
// a b = c in Z_q[X]/(X^n - s), s = 1 or -1, where c(r) = the sum over j of b_j v_j(r), v_j = X^j a in the ring:
// v_0 = a, v_(j+1) = X v_j - (coefficient n-1 of v_j, up to a sign a_(n-1-j)) (X^n - s).
// Source: docs/math.md, "Checked products".
#include <algorithm>
#include <atomic>
#include <vector>

#include "basis.hpp"
#include "threads.hpp"

namespace pg {
namespace {

constexpr size_t CHAINS = 4;  // points that are worked on together: each is a chain of products that wait

// A row of words at `count` points, at most CHAINS
template <class T>
bool holds(const Modulus &m, const T *a, const T *b, const T *c, size_t n, bool negacyclic, const u64 *points,
           size_t count, const int *stop) {
    u64 v[CHAINS] = {}, expected[CHAINS] = {}, sum[CHAINS] = {}, wrap[CHAINS];
    for (size_t p = 0; p < count; ++p) {
        wrap[p] = pow_mod(m, points[p], n);
        wrap[p] = negacyclic ? add_mod(m, wrap[p], reduce(m, 1)) : sub_mod(m, wrap[p], reduce(m, 1));
    }
    for (size_t j = n; j-- > 0;) {
        if (j % 4096 == 0 && stopped(stop)) return true;
        for (size_t p = 0; p < count; ++p) {
            v[p] = add_mod(m, mul_mod(m, v[p], points[p]), a[j]);
            expected[p] = add_mod(m, mul_mod(m, expected[p], points[p]), c[j]);
        }
    }
    for (size_t j = 0; j < n; ++j) {
        if (j % 4096 == 0 && stopped(stop)) return true;
        for (size_t p = 0; p < count; ++p) {
            sum[p] = add_mod(m, sum[p], mul_mod(m, v[p], b[j]));
            v[p] = sub_mod(m, mul_mod(m, v[p], points[p]), mul_mod(m, wrap[p], a[n - 1 - j]));
        }
    }
    return std::equal(sum, sum + count, expected);
}

// The same of a wide modulus, at one point; numbers lie n words apart
bool holds_wide(const WideModulus &q, const u64 *a, const u64 *b, const u64 *c, size_t n, bool negacyclic,
                const u64 *point, size_t apart, const int *stop) {
    const size_t words = q.words();
    std::vector<u64> memory(7 * words + q.multiply_scratch());
    u64 *const r = memory.data(), *const v = r + words, *const expected = v + words, *const sum = expected + words;
    u64 *const wrap = sum + words, *const x = wrap + words, *const one = x + words, *const scratch = one + words;
    const auto read = [&](u64 *number, const u64 *from, size_t step, size_t j) {
        for (size_t w = 0; w < words; ++w) number[w] = from[w * step + j];
    };
    read(r, point, apart, 0);
    one[0] = 1;
    wrap[0] = 1;
    std::copy(r, r + words, x);
    for (size_t exponent = n; exponent; exponent >>= 1) {
        if (exponent & 1) q.multiply(wrap, x, scratch);
        std::copy(x, x + words, expected);
        q.multiply(x, expected, scratch);
    }
    if (negacyclic) q.add(wrap, one);
    else q.sub(wrap, one);
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
        q.multiply(x, wrap, scratch);
        q.sub(v, x);
    }
    return std::equal(sum, sum + words, expected);
}

template <class T>
int64_t find_wrong(const Basis &basis, const Array &a, const Array &b, const Out &c, const Array &points,
                   bool negacyclic) {
    const size_t n = last(c), rows = basis.rows(), limbs = basis.wide() ? 1 : rows;
    const T *const z = result_of<T>(c, rows);
    const Operand<T> x(a, c, rows), y(b, c, rows);
    require(x.length() == n && y.length() == n, "find_wrong_product: lengths differ");
    require(points.ndim() == 2 && points.shape(0) == rows && points.itemsize() == sizeof(T),
            "find_wrong_product: points (rows, count)");
    const T *const at = (const T *)points.data();
    const size_t count = points.shape(1);
    std::atomic<int64_t> wrong{INT64_MAX};
    const double each = basis.wide() ? 40e-9 * (double)(rows * rows) : 15e-9;
    for_each_row(batch_of(c) * limbs, each * (double)(n * count), [&](size_t i, const Worker &worker) {
        bool right = true;
        if constexpr (sizeof(T) == sizeof(u64))
            for (size_t p = 0; basis.wide() && p < count && right; ++p)
                right = holds_wide(basis.wide_modulus(), x.item(i), y.item(i), z + i * rows * n, n, negacyclic, at + p,
                                   count, worker.stop);
        for (size_t p = 0; !basis.wide() && p < count && right; p += CHAINS) {
            const size_t chains = std::min(CHAINS, count - p);
            u64 some[CHAINS] = {};
            std::copy(at + i % limbs * count + p, at + i % limbs * count + p + chains, some);
            right = holds(basis.moduli()[i % limbs], x.row(i), y.row(i), z + i * n, n, negacyclic, some, chains,
                          worker.stop);
        }
        int64_t first = wrong.load();
        while (!right && (int64_t)i < first && !wrong.compare_exchange_weak(first, (int64_t)i)) {
        }
    });
    return wrong == INT64_MAX ? -1 : wrong.load();
}

}  // namespace

int64_t Basis::find_wrong_product(const Array &a, const Array &b, const Out &c, const Array &points,
                                  bool negacyclic) const {
    return narrow_ ? find_wrong<u32>(*this, a, b, c, points, negacyclic)
                   : find_wrong<u64>(*this, a, b, c, points, negacyclic);
}

}  // namespace pg
