#include "tables.hpp"

#include <cmath>
#include <mutex>
#include <utility>
#include <vector>

namespace pg {
namespace {

// y[i] = root^(bit reversal of i in `bits` bits), i < 2^bits: doubling, one product an entry.
void bit_reversed_powers(const Modulus &m, u64 root, unsigned bits, std::vector<u64> &y) {
    y.assign((size_t)1 << bits, 1);
    for (unsigned d = 0; d < bits; ++d) {
        const u64 factor = pow_mod(m, root, (u64)1 << (bits - 1 - d));
        const size_t count = (size_t)1 << d;
        for (size_t i = 0; i < count; ++i) y[count + i] = mul_mod(m, y[i], factor);
    }
}

template <class T>
void fill_one(const Modulus &m, u64 root, bool negacyclic, size_t points, u64 scale, T *w, T *shoup) {
    const unsigned bits = 63 - (unsigned)__builtin_clzll(points);
    std::vector<u64> powers;
    bit_reversed_powers(m, root, negacyclic ? bits : bits - 1, powers);
    for (size_t node = 0; node < points; ++node) {
        size_t level = node ? (size_t)1 << (63 - __builtin_clzll(node)) : 0;
        u64 x = powers[node == 0 ? 0 : negacyclic ? node : node - level];
        if (node < 2) x = mul_mod(m, x, scale);
        w[node] = (T)x;
        shoup[node] = (T)(shoup_quotient(m, x) >> (64 - 8 * sizeof(T)));
    }
}

// exp(-2 pi i k / length): the angle brought to [0, pi/4], so that both parts keep all digits of long double.
template <class T> void root_of_unity(size_t k, size_t length, T *w) {
    const long double PI = 3.14159265358979323846264338327950288L;
    const size_t octant = k * 8 / length, above = k * 8 % length;
    const bool mirrored = octant % 2;
    const long double angle = PI / 4 * (long double)(mirrored ? length - above : above) / (long double)length;
    long double x = std::cos(angle), y = std::sin(angle);
    if (mirrored) std::swap(x, y);  // pi/2 - angle
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

}  // namespace

template <class T>
void fill_twiddles(u64 q, u64 root, bool negacyclic, size_t points, T *forward, T *forward_shoup, T *inverse,
                   T *inverse_shoup) {
    const Modulus m = make_modulus(q);
    fill_one(m, root, negacyclic, points, 1, forward, forward_shoup);
    // q is prime, so x^(q-2) = 1/x
    fill_one(m, pow_mod(m, root, q - 2), negacyclic, points, pow_mod(m, reduce(m, points), q - 2), inverse,
             inverse_shoup);
}
template void fill_twiddles<u32>(u64, u64, bool, size_t, u32 *, u32 *, u32 *, u32 *);
template void fill_twiddles<u64>(u64, u64, bool, size_t, u64 *, u64 *, u64 *, u64 *);

u64 smallest_generator(u64 q, u64 root, u64 order) {
    const Modulus m = make_modulus(q);
    const u64 square = mul_mod(m, root, root);
    u64 least = root, x = root;
    for (u64 i = 1; i < order / 2; ++i) {  // the generators are the odd powers
        x = mul_mod(m, x, square);
        if (x < least) least = x;
    }
    return least;
}

template <class T> Fft<T> make_fft(size_t points) {
    static std::once_flag made[FFT_LEVELS];
    static std::vector<T> tables[FFT_LEVELS];
    Fft<T> fft{};
    fft.points = points;
    for (size_t length = points; length > 1; length /= fft_radix(length)) {
        const int level = __builtin_ctzll(length);
        std::call_once(made[level], [&] { tables[level] = fft_table<T>(length); });
        fft.twiddles[level] = tables[level].data();
    }
    return fft;
}
template Fft<float> make_fft<float>(size_t);
template Fft<double> make_fft<double>(size_t);

}  // namespace pg
