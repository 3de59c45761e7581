#include "basis.hpp"

#include "dispatch.hpp"

namespace pg {

Basis::Basis(const Numbers &moduli, int storage_bits) : narrow_(storage_bits == 32) {
    require(moduli.hold<u64>() && moduli.ndim() == 2 && moduli.size() && (storage_bits == 32 || storage_bits == 64),
            "Basis: moduli (limbs, words), 32 or 64 bits");
    const u64 *q = (const u64 *)moduli.data();
    const size_t limbs = moduli.shape(0), words = moduli.shape(1);
    if (words > 1) {
        require(limbs == 1, "Basis: a wide modulus stands alone");
        wide_ = WideModulus(std::vector<u64>(q, q + words));
    } else {
        for (size_t i = 0; i < limbs; ++i) moduli_.push_back(make_modulus(q[i]));
    }
}

double Basis::seconds_transform(size_t n) const {
    constexpr double COLD = 1.35;  // (time for rows outside the cache) / (time for rows in the cache, as in costs())
    double most = costs().layer[0];
    for (const Modulus &m : moduli_) most = std::max(most, layer_ns(m, narrow_));
    return COLD * 1e-9 * most * (double)n * layers(n);
}

double Basis::seconds_products(double count) const {
    double most = costs().product[0];
    for (const Modulus &m : moduli_) most = std::max(most, product_ns(m, narrow_));
    return 1e-9 * most * count;
}

double Basis::ns_by_transform(size_t points, size_t leaf_size) const {
    constexpr double CALL = 15;  // ns to call a kernel, which multiplies LEAVES leaves
    const double layers = 3 * (double)(63 - __builtin_clzll(points)), size = (double)leaf_size;
    const double calls = size * size * (double)((points + LEAVES - 1) / LEAVES);
    double ns = 0;
    for (const Modulus &m : moduli_) {
        const double leaf = leaf_size > 1 ? 1.6 + product_ns(m, narrow_) * size : 0.3;
        ns += (double)points * size * (layers * layer_ns(m, narrow_) + leaf) + (leaf_size > 1 ? CALL * calls : 0);
    }
    return ns;
}

double Basis::ns_by_fft(double reals) const { return (double)moduli_.size() * costs().fft * reals; }

double Basis::ns_by_primes(size_t points, size_t primes) const {
    return (double)moduli_.size() * (30 + 20 * costs().layer[0]) * (double)(points * primes);
}

}  // namespace pg
