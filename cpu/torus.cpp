#include "torus.hpp"

#include <complex>
#include <cstring>

#include "dispatch.hpp"
#include "threads.hpp"

namespace pg {
namespace {
constexpr size_t TOGETHER = 8;  // ciphertexts that use a matrix while it is in the cache
constexpr size_t WIDEST = 8;    // doubles of a vector, at most

size_t components_of(const Out &out) { return out.ndim() >= 3 ? out.shape(out.ndim() - 3) : 0; }

// Writes number j of an array in the layout of vectors: `width` real parts, then as many imaginary parts.
void put(Complex *z, size_t j, size_t width, Complex value) {
    double *const parts = &z[j / width * width].re + j % width;
    parts[0] = value.re, parts[width] = value.im;
}
}  // namespace

TorusProduct::TorusProduct(unsigned modulus_bits, unsigned bits, unsigned levels, const Lasting<Numbers> &twiddles,
                           const Numbers &roots)
    : modulus_bits_(modulus_bits),
      bits_(bits),
      levels_(levels),
      points_(twiddles.array.size()),
      forward_(twiddles.memory) {
    require(modulus_bits == 32 || modulus_bits == 64, "TorusProduct: modulo 2^32 or 2^64");
    require(bits >= 1 && bits <= 31 && levels >= 1 && levels <= modulus_bits && bits * levels <= modulus_bits,
            "TorusProduct: wrong digits");
    require(twiddles.array.hold<std::complex<double>>() && roots.hold<std::complex<double>>() &&
                points_ >= 2 * WIDEST && (points_ & (points_ - 1)) == 0 && roots.size() == 4 * points_,
            "TorusProduct: tables of a power of two of points, 16 or more");
    for (size_t width = 1; width <= WIDEST; width *= 2)
        tables_.push_back(make_tables((const Complex *)roots.data(), width));
}

// A pass that joins blocks of `half` values multiplies by exp(-i pi k / half), k = 0 ... half - 1. Some passes compute
// the second half of these factors as -i times the first half. For such passes, only the first half is stored.
TorusProduct::Tables TorusProduct::make_tables(const Complex *roots, size_t width) const {
    const size_t order = 4 * points_;
    const auto root = [&](size_t k) { return roots[k ? order - k : 0]; };  // exp(-2 pi i k / order)
    Tables made{std::vector<Complex>(2 * points_), std::vector<Complex>(points_), std::vector<Complex>(points_)};
    size_t at = 0;
    const auto write = [&](size_t half, size_t first) {  // one vector of a pass's twiddles, from index `first`
        for (size_t i = 0; i < width; ++i)
            put(made.inverse.data(), at + i, width, root((first + i) % half * (order / (2 * half))));
        at += width;
    };
    size_t half = 1;
    for (; half <= width; half *= 2) write(half, 0);
    if (torus_is_wide(points_, width)) write(half, 0), half *= 2;
    for (; half < points_; half *= 4)
        for (size_t j = 0; j < half; j += width) write(half, j), write(2 * half, j);
    for (size_t j = 0; j < points_; ++j) {
        const double scale = 1 / (double)points_, halved = scale / 4294967296.0;
        const Complex w = root(j);
        put(made.twist.data(), j, width, {w.re * scale, w.im * scale});
        put(made.halved_twist.data(), j, width, {w.re * halved, w.im * halved});
    }
    return made;
}

void TorusProduct::arrange(const Numbers &leaves, const Out &out) const {
    require(leaves.hold<std::complex<double>>() && out.hold<std::complex<double>>() && last(leaves) == points_ &&
                last(out) == points_ && out.size() == leaves.size(),
            "arrange: wrong dtype or shape");
    const Complex *const x = (const Complex *)leaves.data();
    Complex *const z = (Complex *)out.data();
    const size_t width = word_kernels<u64>().torus.width;
    // In each run of 2 * width entries, the entries with even indices move before those with odd indices.
    for_each_row(out.size() / points_, seconds_pointwise(4 * points_), [&](size_t row, const Worker &) {
        for (size_t j = 0; j < points_; ++j) {
            const size_t i = j % (2 * width), to = j - i + i % 2 * width + i / 2;
            put(z + row * points_, to, width, x[row * points_ + j]);
        }
    });
}

// Returns the TorusRow for the kernels on words of type W. halved: whether words hold the high halves of residues.
template <class W> TorusRow TorusProduct::row(bool halved) const {
    const unsigned rest = 8 * sizeof(W) - bits_ * levels_;
    u64 offset = rest ? 1ull << (rest - 1) : 0;  // half of a unit, so that x + offset rounds to the nearest
    for (unsigned i = 0; i < levels_; ++i) offset += 1ull << (rest + bits_ * i + bits_ - 1);
    const u64 half = 1ull << (bits_ - 1);
    const Tables &own = tables_[__builtin_ctzll(word_kernels<W>().torus.width)];
    const Complex *const twist = (halved ? own.halved_twist : own.twist).data();
    return {
        (const Complex *)forward_.get(), own.inverse.data(), twist, points_, bits_, offset, 2 * half - 1, (double)half};
}

template <class W> size_t TorusProduct::scratch(size_t components) const {
    return (components * levels_ + 1) * points_ * sizeof(Complex) + 2 * points_ * sizeof(W);
}

// out = G * c or, if turns, out += G * (X^e * out - out).
template <class W>
void TorusProduct::product(const Complex *matrix, const W *c, bool turns, size_t e, W *out, size_t components,
                           void *room, size_t ahead, const TorusRow &row) const {
    const TorusKernels<W> &kernels = word_kernels<W>().torus;
    const size_t n = 2 * points_;
    Complex *const digits = (Complex *)room, *const sum = digits + components * levels_ * points_;
    W *const fields = (W *)(sum + points_);
    for (size_t i = 0; i < components; ++i)
        for (unsigned level = 0; level < levels_; ++level) {
            kernels.fields(c + i * n, turns, e, fields, level, row);
            kernels.transform(fields, digits + (i * levels_ + level) * points_, row);
        }
    for (size_t j = 0; j < components; ++j) {
        kernels.multiply(digits, matrix + j * points_, components * points_, levels_, (unsigned)components, (unsigned)j,
                         ahead, sum, row);
        kernels.finish(sum, out + j * n, turns, row);
    }
}

template <class W> void TorusProduct::multiply_words(const Numbers &ggsw, const Array &c, const Out &out) const {
    W *const y = result_of<W>(out, 1);
    const size_t k = components_of(out), n = 2 * points_, size = k * n;
    require(k && last(out) == n && c && c.itemsize() == sizeof(W) && c.size() == out.size() && last(c) == n &&
                ggsw.hold<std::complex<double>>() && ggsw.size() == k * levels_ * k * points_,
            "multiply: wrong dtype or shape");
    const W *const x = (const W *)c.data();
    const TorusRow r = row<W>(false);
    for_each_row(out.size() / size, (double)(k * (levels_ + 1)) * seconds_fft((double)n),
                 [&](size_t i, const Worker &worker) {
                     product((const Complex *)ggsw.data(), x + i * size, false, 0, y + i * size, k,
                             worker.scratch(scratch<W>(k)), 0, r);
                 });
}

// Calls steps(sums, e, some, room, worker) for groups of `some` ciphertexts. sums: the ciphertexts of the group, each
// multiplied by X^e_0. e: points to e_1 of the first ciphertext. The exponents of the next ciphertext begin
// last(exponents) entries later. room: scratch memory for one product, then `more` bytes for each ciphertext of the
// group.
template <class T, class W, class Steps>
void TorusProduct::rotate_each(const Array &c, const Numbers &exponents, const Out &out, double seconds, size_t more,
                               const Steps &steps) const {
    T *const y = result_of<T>(out, 1);
    const size_t k = components_of(out), n = 2 * points_, size = k * n;
    require(exponents.ndim() >= 1 && exponents.hold<i64>() && last(exponents) >= 1, "rotate: exponents of int64");
    require(k && last(out) == n && c && c.itemsize() == sizeof(T) && c.size() == out.size() && last(c) == n,
            "rotate: wrong dtype or shape");
    const size_t items = out.size() / size, width = last(exponents);
    require(exponents.size() == items * width, "rotate: exponents of another shape");
    const i64 *const powers = (const i64 *)exponents.data();
    for (size_t i = 0; i < exponents.size(); ++i)
        require(powers[i] >= 0 && (u64)powers[i] < 2 * n, "rotate: exponents below the order of X");
    constexpr unsigned SHIFT = 8 * (sizeof(T) - sizeof(W));
    constexpr T HALF = SHIFT ? (T)1 << (SHIFT - 1) : 0;
    const T *const x = (const T *)c.data();
    // If there are few ciphertexts, distribute them evenly among the threads.
    const size_t together = std::min(TOGETHER, std::max<size_t>(1, items / num_threads()));
    for_each_row((items + together - 1) / together, (double)together * seconds, [&](size_t at, const Worker &worker) {
        const size_t first = at * together, some = std::min(together, items - first);
        char *const room = (char *)worker.scratch(scratch<W>(k) + some * (size * sizeof(W) + more));
        W *const sums = (W *)(room + scratch<W>(k) + some * more);
        const i64 *const e = powers + first * width;
        for (size_t i = 0; i < some * k; ++i) {
            const size_t turn = (size_t)e[i / k * width];
            const T *const from = x + (first * k + i) * n;
            for (size_t j = 0; j < n; ++j) {  // multiplies the polynomial by X^turn
                const size_t to = (j + turn) % (2 * n);
                const W value = (W)((T)(from[j] + HALF) >> SHIFT);
                sums[i * n + to % n] = to < n ? value : (W)0 - value;
            }
        }
        steps(sums, e + 1, some, room, worker);
        for (size_t i = 0; i < some * size; ++i) y[first * size + i] = (T)sums[i] << SHIFT;
    });
}

template <class T, class W>
void TorusProduct::rotate_words(const Numbers &ggsws, const Array &c, const Numbers &exponents, const Out &out) const {
    const size_t k = components_of(out), n = 2 * points_, size = k * n;
    const size_t count = last(exponents) - 1, step = k * levels_ * k * points_;
    require(ggsws.hold<std::complex<double>>() && ggsws.size() == count * step, "rotate: matrices of another shape");
    const Complex *const matrices = (const Complex *)ggsws.data();
    const TorusRow r = row<W>(sizeof(T) != sizeof(W));
    const double seconds = (double)(count + 1) * (double)(k * (levels_ + 1)) * seconds_fft((double)n);
    rotate_each<T, W>(c, exponents, out, seconds, 0,
                      [&](W *sums, const i64 *e, size_t some, void *room, const Worker &worker) {
                          for (size_t i = 0; i < count && !stopped(worker.stop); ++i)
                              for (size_t item = 0; item < some; ++item) {
                                  const size_t turn = (size_t)e[item * (count + 1) + i],
                                               ahead = i + 1 < count && item == 0 ? step : 0;
                                  W *const sum = sums + item * size;
                                  if (turn) product(matrices + i * step, sum, true, turn, sum, k, room, ahead, r);
                              }
                      });
}

template <class T, class W>
void TorusProduct::rotate_words_by_groups(const Array &keys, const Array &c, const Numbers &exponents,
                                          const Out &out) const {
    const size_t k = components_of(out), n = 2 * points_, size = k * n, polynomials = k * levels_ * k;
    require(keys && keys.ndim() == 7 && keys.itemsize() == sizeof(T) && keys.shape(1) &&
                (keys.shape(1) & (keys.shape(1) - 1)) == 0 &&
                keys.size() == keys.shape(0) * keys.shape(1) * polynomials * n,
            "rotate_by_groups: keys of another dtype or shape");
    const size_t group = (size_t)__builtin_ctzll(keys.shape(1)), bits = last(exponents) - 1, groups = keys.shape(0);
    require(group && groups == (bits + group - 1) / group, "rotate_by_groups: another number of groups");
    const T *const words = (const T *)keys.data();
    const TorusRow r = row<W>(sizeof(T) != sizeof(W)), whole = row<T>(false);
    const TorusKernels<T> &kernels = word_kernels<T>().torus;
    const double seconds = (double)(groups + 1) * ((double)(k * (levels_ + 1) + polynomials) * seconds_fft((double)n) +
                                                   (double)(polynomials << group) * seconds_pointwise(n));
    const size_t matrix = polynomials * points_ * sizeof(Complex);
    const auto steps = [&](W *sums, const i64 *e, size_t some, void *room, const Worker &worker) {
        Complex *const matrices = (Complex *)((char *)room + scratch<W>(k));
        T *const total = (T *)room;
        for (size_t i = 0; i < groups && !stopped(worker.stop); ++i) {
            const size_t first = i * group, those = std::min(group, bits - first);
            for (size_t polynomial = 0; polynomial < polynomials; ++polynomial)  // all ciphertexts read the same keys
                for (size_t item = 0; item < some; ++item) {
                    const i64 *const turns = e + item * (bits + 1) + first;
                    for (size_t set = 0; set < (size_t)1 << those; ++set) {
                        const T *const key = words + (((i << group) + set) * polynomials + polynomial) * n;
                        size_t turn = 0;
                        for (size_t j = 0; j < those; ++j)
                            if (set >> j & 1) turn += (size_t)turns[j];
                        if (set == 0) memcpy(total, key, n * sizeof(T));
                        else kernels.add_turned(key, turn % (2 * n), total, whole);
                    }
                    kernels.transform_words(total, matrices + (item * polynomials + polynomial) * points_, whole);
                }
            for (size_t item = 0; item < some; ++item) {
                W *const sum = sums + item * size;
                product(matrices + item * polynomials * points_, sum, false, 0, sum, k, room, 0, r);
            }
        }
    };
    rotate_each<T, W>(c, exponents, out, seconds, matrix, steps);
}

void TorusProduct::multiply(const Numbers &ggsw, const Array &c, const Out &out) const {
    if (modulus_bits_ == 32) multiply_words<u32>(ggsw, c, out);
    else multiply_words<u64>(ggsw, c, out);
}
void TorusProduct::rotate(const Numbers &ggsws, const Array &c, const Numbers &exponents, const Out &out) const {
    if (modulus_bits_ == 32) rotate_words<u32, u32>(ggsws, c, exponents, out);
    else if (bits_ * levels_ < 32) rotate_words<u64, u32>(ggsws, c, exponents, out);
    else rotate_words<u64, u64>(ggsws, c, exponents, out);
}
void TorusProduct::rotate_by_groups(const Array &keys, const Array &c, const Numbers &exponents, const Out &out) const {
    if (modulus_bits_ == 32) rotate_words_by_groups<u32, u32>(keys, c, exponents, out);
    else if (bits_ * levels_ < 32) rotate_words_by_groups<u64, u32>(keys, c, exponents, out);
    else rotate_words_by_groups<u64, u64>(keys, c, exponents, out);
}

}  // namespace pg
