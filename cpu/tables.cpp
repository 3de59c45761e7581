#include "tables.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "lazy.hpp"

namespace pg {
namespace {

// exp(-2 pi i k / length). The angle is reduced to [0, pi/4], so that both parts keep all digits of long double.
template <class T> void root_of_unity(size_t k, size_t length, T *w) {
    const long double PI = 3.14159265358979323846264338327950288L;
    const size_t octant = k * 8 / length, above = k * 8 % length;
    const bool mirrored = octant % 2;
    const long double angle = PI / 4 * (long double)(mirrored ? length - above : above) / (long double)length;
    long double x = std::cos(angle), y = std::sin(angle);
    if (mirrored) std::swap(x, y);  // the angle was replaced by pi/2 minus it
    for (size_t turn = 0; turn < octant / 2; ++turn) x = -std::exchange(y, x);
    w[0] = (T)x, w[1] = (T)-y;
}

template <class T> std::vector<T> fft_table(size_t length) {
    const size_t radix = fft_radix(length), count = length / radix;
    std::vector<T> w(2 * (radix - 1) * count);
    for (size_t j = 1; j < radix; ++j)
        for (size_t p = 0; p < count; ++p) root_of_unity(j * p, length, &w[2 * ((j - 1) * count + p)]);
    return w;
}

template <class T> void fill_words(u64 q, u64 root, Quotient quotient, const Out &forward, const Out &inverse) {
    const size_t points = last(forward);
    require(points >= 2 && (points & (points - 1)) == 0 && last(inverse) == points && forward.size() == 2 * points &&
                inverse.size() == 2 * points,
            "fill_twiddles: tables of (2, points), points a power of two");
    T *const w = result_of<T>(forward, 2), *const v = result_of<T>(inverse, 2);
    fill_twiddles<T>(q, root, quotient, points, w, w + points, v, v + points);
}

}  // namespace

template <class T>
void fill_twiddles(u64 q, u64 root, Quotient quotient, size_t points, T *forward, T *forward_shoup, T *inverse,
                   T *inverse_shoup) {
    const Modulus m = make_modulus(q);
    const auto set = [&m](size_t node, u64 x, T *w, T *shoup) {
        w[node] = (T)x, shoup[node] = (T)(shoup_quotient(m, x) >> (64 - 8 * sizeof(T)));
    };
    set(0, 1, forward, forward_shoup);
    const auto fill = [&](size_t level, u64 x, T *w, T *shoup) {
        for_each_part(quotient, points, level, [&](size_t first, size_t count, size_t source, u64 exponent) {
            if (exponent == 0) {
                std::copy_n(w + source, count, w + first);
                std::copy_n(shoup + source, count, shoup + first);
                return;
            }
            const u64 factor = pow_mod(m, x, exponent);
            for (size_t i = 0; i < count; ++i) set(first + i, mul_mod(m, w[source + i], factor), w, shoup);
        });
    };
    const u64 inverse_root = pow_mod(m, root, order_of_x(quotient, points) - 1);
    set(0, 1, inverse, inverse_shoup);
    for (size_t level = 1; level < points; level *= 2) {
        fill(level, root, forward, forward_shoup);
        if (level == 1) {
            set(1, inverse_root_twiddle(quotient, m, forward[1]), inverse, inverse_shoup);
            continue;
        }
        if (!mirrors(quotient)) {
            fill(level, inverse_root, inverse, inverse_shoup);
            continue;
        }
        const size_t count = new_twiddles(quotient, level), old = level - count, first = level + old;
        std::copy_n(inverse + level / 2, old, inverse + level);
        std::copy_n(inverse_shoup + level / 2, old, inverse_shoup + level);
        for (size_t i = 0; i < count; ++i) {
            inverse[first + i] = (T)(q - forward[2 * level - 1 - i]);
            inverse_shoup[first + i] = (T)~forward_shoup[2 * level - 1 - i];
        }
    }
    const u64 scale = pow_mod(m, reduce(m, points), q - 2);  // 1/points, since q is prime
    set(0, scale, inverse, inverse_shoup);
    set(1, mul_mod(m, inverse[1], scale), inverse, inverse_shoup);
}
template void fill_twiddles<u32>(u64, u64, Quotient, size_t, u32 *, u32 *, u32 *, u32 *);
template void fill_twiddles<u64>(u64, u64, Quotient, size_t, u64 *, u64 *, u64 *, u64 *);

void fill_twiddle_tables(u64 q, u64 root, Quotient quotient, const Out &forward, const Out &inverse) {
    with_word(forward.hold<u32>(), [&](auto word) { fill_words<decltype(word)>(q, root, quotient, forward, inverse); });
}

void fill_numbers(const Modulus &m, const u64 *w, size_t points, double *number, double *ratio) {
    for (size_t i = 0; i < points; ++i) {
        number[i] = w[i] > m.q / 2 ? -(double)(m.q - w[i]) : (double)w[i];
        ratio[i] = number[i] / (double)m.q;
    }
}

u64 smallest_generator(u64 q, u64 root, u64 order) {
    const Modulus m = make_modulus(q);
    const u64 step = order % 2 ? 1 : 2, factor = pow_mod(m, root, step);  // exponents are odd if the order is even
    u64 least = root;
    const auto search = [&](const auto &is_coprime) {
        u64 x = root;
        for (u64 k = 1 + step; k < order; k += step) {
            x = mul_mod(m, x, factor);
            if (x < least && is_coprime(k)) least = x;
        }
    };
    if (order & (order - 1)) search([&](u64 k) { return std::gcd(k, order) == 1; });
    else search([](u64) { return true; });  // all odd exponents are coprime to the order
    return least;
}

namespace {
// Never freed: threads may outlive all destructors.
template <class T> Lazy<std::vector<T>> *const fft_tables = new Lazy<std::vector<T>>[FFT_LEVELS];
}  // namespace

template <class T> Fft<T> make_fft(size_t points) {
    Fft<T> fft{};
    fft.points = points;
    for (size_t length = points; length > 1; length /= fft_radix(length)) {
        const int level = __builtin_ctzll(length);
        fft.twiddles[level] = fft_tables<T>[level].get([&] { return fft_table<T>(length); }).data();
    }
    return fft;
}
template Fft<float> make_fft<float>(size_t);
template Fft<double> make_fft<double>(size_t);

}  // namespace pg
