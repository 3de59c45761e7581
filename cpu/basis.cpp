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

double Basis::slowness() const {
    for (const Modulus &m : moduli_)
        if (m.bits > (narrow_ ? 31 : 62)) return strict_slowness(m, narrow_);
    return isa_slowness();
}

}  // namespace pg
