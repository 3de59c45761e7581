#include "tables.hpp"

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

}  // namespace pg
