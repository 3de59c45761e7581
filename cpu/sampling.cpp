#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "dispatch.hpp"
#include "threads.hpp"

namespace pg {
namespace {

constexpr size_t PIECE =
    1024;  // coefficients that a thread takes at a time: integers and residues stay in the first cache

// Splits coefficients first ... first + count - 1 into runs, each within one polynomial. Calls body(item, column, from,
// length) for each run: `length` coefficients of polynomial `item`, beginning with coefficient `column`. Earlier runs
// have `from` coefficients in total.
template <class Body> void for_each_run(size_t first, size_t count, size_t n, const Body &body) {
    for (size_t done = 0; done < count;) {
        const size_t item = (first + done) / n, column = (first + done) % n, run = std::min(n - column, count - done);
        body(item, column, done, run);
        done += run;
    }
}

// Writes the residues of `count` integers to all limbs.
template <class T>
void store_small(const Basis &basis, const i64 *v, size_t first, size_t count, u64 bound, T *result, size_t n) {
    const size_t limbs = basis.rows();
    for_each_run(first, count, n, [&](size_t item, size_t column, size_t from, size_t run) {
        for (size_t limb = 0; limb < limbs; ++limb) {
            T *const to = result + (item * limbs + limb) * n + column;
            word_kernels<T>().reduce_small(v + from, to, run, basis.moduli()[limb], bound);
        }
    });
}
// store_small for a wide modulus, which is larger than any of the integers.
void store_wide(const Basis &basis, const i64 *v, size_t first, size_t count, u64 *result, size_t n) {
    const size_t words = basis.rows();
    std::vector<u64> value(words), size(words, 0);
    for_each_run(first, count, n, [&](size_t item, size_t column, size_t from, size_t run) {
        for (size_t i = 0; i < run; ++i) {
            const i64 x = v[from + i];
            std::fill(value.begin(), value.end(), 0);
            size[0] = x < 0 ? 0 - (u64)x : (u64)x;
            if (x < 0) basis.wide_modulus().sub(value.data(), size.data());
            else value[0] = size[0];
            for (size_t w = 0; w < words; ++w) result[(item * words + w) * n + column + i] = value[w];
        }
    });
}
void store(const Basis &basis, const i64 *v, size_t first, size_t count, u64 bound, const Out &out) {
    const size_t n = last(out);
    if (basis.wide()) store_wide(basis, v, first, count, (u64 *)out.data(), n);
    else if (basis.narrow()) store_small(basis, v, first, count, bound, (u32 *)out.data(), n);
    else store_small(basis, v, first, count, bound, (u64 *)out.data(), n);
}

// Each coefficient has a random word w. The `weight` coefficients with the smallest (floor(w / 2), index) become 1 or
// -1, by the last bit of w.
void draw_sparse(const unsigned char *x, i64 *v, size_t n, size_t weight, u64 *keys) {
    if (weight == 0) return std::fill(v, v + n, 0);
    const auto word = [x](size_t j) {
        u64 w;
        std::memcpy(&w, x + 8 * j, 8);
        return w;
    };
    // The expected number of keys below `likely` is `weight` plus more than six standard deviations. So the chosen keys
    // are nearly always below `likely`.
    const double share = ((double)weight + 6 * std::sqrt((double)weight) + 8) / (double)n;
    const u64 likely = share < 1 ? (u64)(share * 9223372036854775808.0) : ~(u64)0;
    size_t count = 0;
    for (size_t j = 0; j < n; ++j) {
        const u64 key = word(j) >> 1;
        keys[count] = key, count += key < likely;
    }
    if (count < weight)
        for (count = 0; count < n; ++count) keys[count] = word(count) >> 1;
    std::nth_element(keys, keys + weight - 1, keys + count);
    const u64 bound = keys[weight - 1];
    size_t equal = (size_t)std::count(keys, keys + weight, bound);  // how many chosen keys equal the bound
    if (equal == (size_t)std::count(keys, keys + count, bound)) {
        for (size_t j = 0; j < n; ++j) {
            const u64 w = word(j);
            v[j] = (1 - 2 * (i64)(w & 1)) & -(i64)(w >> 1 <= bound);
        }
        return;
    }
    for (size_t j = 0; j < n; ++j) {
        const u64 w = word(j), key = w >> 1;
        const bool chosen = key < bound || (key == bound && equal && equal--);
        v[j] = chosen ? 1 - 2 * (i64)(w & 1) : 0;
    }
}

}  // namespace

Sampler::Sampler(int shape, size_t bytes, u64 parameter, u64 bound, const Numbers &weights, const Numbers &thresholds)
    : parameter_(parameter), bound_(bound), draw_{} {
    require(shape >= 0 && shape <= (int)DrawShape::tuniform && bytes >= 1 && bytes <= 32 && bound <= (u64)1 << 62,
            "Sampler: shape, bytes or bound");
    draw_.shape = (DrawShape)shape, draw_.bytes = bytes, draw_.parameter = (unsigned)parameter;
    const bool gaussian = draw_.shape == DrawShape::gaussian,
               word = bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
    require(gaussian || word, "Sampler: bytes");
    require((draw_.shape != DrawShape::ternary && draw_.shape != DrawShape::sparse) || bytes == 8, "Sampler: 8 bytes");
    require(draw_.shape != DrawShape::binomial || (parameter >= 1 && 2 * parameter <= 8 * bytes), "Sampler: eta");
    require(draw_.shape != DrawShape::tuniform || parameter + 2 <= 8 * bytes, "Sampler: b");
    if (!gaussian) return;
    require(weights.hold<i64>() && thresholds.hold<u64>(), "Sampler: int64 weights, uint64 thresholds");
    draw_.terms = weights.size(), draw_.thresholds = thresholds.size();
    require(draw_.terms >= 1 && draw_.terms <= 4 && bytes == 8 * draw_.terms, "Sampler: 8 bytes a weight");
    require(draw_.thresholds >= 1 && draw_.thresholds < 1 << 16, "Sampler: thresholds");
    std::copy_n((const i64 *)weights.data(), draw_.terms, draw_.weights);
    const u64 *from = (const u64 *)thresholds.data();
    sorted_.assign(from, from + draw_.thresholds);
    const size_t cells = draw_.thresholds / 16 + 1;  // how many thresholds a bucket has room for
    draw_.bucket = cells - 1;
    buckets_.assign(16 * cells, ~(u64)0);
    for (size_t j = 0; j < draw_.thresholds; ++j) buckets_[j % cells * 16 + j / cells] = sorted_[j];
    draw_.sorted = sorted_.data(), draw_.buckets = buckets_.data();
}

void Sampler::draw(const Basis &basis, const Numbers &stream, size_t first, size_t count, const Out &out) const {
    const size_t n = last(out);
    basis.visit([&](auto word) { result_of<decltype(word)>(out, basis.rows()); });
    require(stream.hold<u64>(), "draw: uint64");
    require(
        first <= batch_of(out) * n && count <= batch_of(out) * n - first && count <= stream.size() * 8 / draw_.bytes,
        "draw: lengths differ");
    const unsigned char *const x = (const unsigned char *)stream.data();
    const double seconds = (double)basis.rows() * (basis.wide() ? 20e-9 : 0.5e-9);
    if (draw_.shape == DrawShape::sparse) {
        require(parameter_ <= n && first % n == 0 && count % n == 0, "draw: whole polynomials");
        for_each_row(count / n, (double)n * (10e-9 + seconds), [&](size_t i, const Worker &worker) {
            u64 *const scratch = (u64 *)worker.scratch(16 * n);
            draw_sparse(x + 8 * i * n, (i64 *)scratch + n, n, parameter_, scratch);
            store(basis, (i64 *)scratch + n, first + i * n, n, 1, out);
        });
        return;
    }
    const double drawing = 1e-9 + 0.02e-9 * (double)(draw_.terms * draw_.thresholds);
    for_each_row((count + PIECE - 1) / PIECE, PIECE * (drawing + seconds), [&](size_t i, const Worker &) {
        const size_t from = i * PIECE, some = std::min(PIECE, count - from);
        i64 v[PIECE];
        integer_kernels().draw(x + from * draw_.bytes, v, some, draw_);
        store(basis, v, first + from, some, bound_, out);
    });
}

void reduce_words(const Basis &basis, const Numbers &words, size_t limb, size_t first, const Out &out) {
    const size_t n = last(out), r = basis.rows(), k = basis.wide() ? r + 1 : 2, count = words.size() / k;
    basis.visit([&](auto word) { result_of<decltype(word)>(out, r); });
    require(words.hold<u64>() && words.size() % k == 0, "reduce_words: uint64, whole numbers");
    require(limb < r && first <= batch_of(out) * n && count <= batch_of(out) * n - first,
            "reduce_words: lengths differ");
    const u64 *const x = (const u64 *)words.data();
    const double seconds = basis.wide() ? 20e-9 * (double)(k * r) : basis.seconds_products(3);
    for_each_row((count + PIECE - 1) / PIECE, PIECE * seconds, [&](size_t i, const Worker &worker) {
        const size_t from = i * PIECE, some = std::min(PIECE, count - from);
        std::vector<u64> value(r), scratch(r + 1);
        for_each_run(first + from, some, n, [&](size_t item, size_t column, size_t at, size_t run) {
            const u64 *number = x + (from + at) * k;
            if (!basis.wide()) {
                const size_t to = (item * r + limb) * n + column;
                const Modulus &m = basis.moduli()[limb];
                basis.visit([&](auto word) {
                    using T = decltype(word);
                    word_kernels<T>().reduce_pairs(number, (T *)out.data() + to, run, m);
                });
                return;
            }
            u64 *const y = (u64 *)out.data() + item * r * n + column;
            for (size_t j = 0; j < run && !stopped(worker.stop); ++j, number += k) {
                std::fill(value.begin(), value.end(), 0);
                for (size_t w = k; w-- > 0;) basis.wide_modulus().horner(value.data(), 0, number[w], scratch.data());
                for (size_t w = 0; w < r; ++w) y[w * n + j] = value[w];
            }
        });
    });
}

}  // namespace pg
