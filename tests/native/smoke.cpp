// The portable kernels without Python, for machines that are only cross-compiled for: transforms, products
// and pointwise operations of every word against schoolbook. Prints what failed; exits 1 then.
//   c++ -std=c++17 -O2 -I cpu tests/native/smoke.cpp cpu/isa_portable.cpp cpu/tables.cpp -o smoke && ./smoke
#include <cstdio>
#include <vector>

#include "kernels.hpp"
#include "tables.hpp"

using namespace pg;

namespace {

u64 state = 1;
u64 random_below(const Modulus &m) {  // xorshift64*; the largest residue every fourth time
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    u64 x = state * 2685821657736338717u;
    return x % 4 == 0 ? m.last : reduce(m, x);
}

template <class T> std::vector<T> schoolbook(const std::vector<T> &a, const std::vector<T> &b, const Modulus &m) {
    const size_t n = a.size();
    std::vector<T> c(n, 0);
    for (size_t i = 0; i < n; ++i)
        for (size_t j = 0; j < n; ++j) {
            const u64 p = mul_mod(m, a[i], b[j]);
            T &to = c[(i + j) % n];
            to = (T)(i + j < n ? add_mod(m, to, p) : sub_mod(m, to, p));
        }
    return c;
}

// psi: of order 2 * degree mod q
template <class T> bool check(const RowKernels<T> &kernels, u64 q, u64 psi, size_t degree) {
    const Modulus m = make_modulus(q);
    std::vector<T> forward(2 * degree), inverse(2 * degree), a(degree), b(degree), x(degree), y(degree);
    fill_twiddles<T>(q, psi, true, degree, forward.data(), forward.data() + degree, inverse.data(),
                     inverse.data() + degree);
    const int stop = 0;
    const Row<T> row{&m, forward.data(), forward.data() + degree, inverse.data(), inverse.data() + degree, degree, 1,
                     64, &stop};
    for (T &v : a) v = (T)random_below(m);
    for (T &v : b) v = (T)random_below(m);
    const std::vector<T> expected = schoolbook(a, b, m);
    kernels.forward(a.data(), x.data(), row);
    kernels.forward(b.data(), y.data(), row);
    kernels.pointwise(Op::mul, x.data(), y.data(), false, nullptr, x.data(), degree, m);
    kernels.inverse(x.data(), x.data(), row);
    const bool ok = x == expected;
    if (!ok) std::printf("wrong product mod %llu, degree %zu\n", (unsigned long long)q, degree);
    return ok;
}

// The least element of order 2 * degree mod the prime q.
u64 root(u64 q, u64 degree) {
    const Modulus m = make_modulus(q);
    for (u64 x = 2;; ++x) {
        const u64 psi = pow_mod(m, x, (q - 1) / (2 * degree));
        if (pow_mod(m, psi, degree) == q - 1) return psi;
    }
}

}  // namespace

int main() {
    bool ok = true;
    for (size_t degree : {2, 8, 64, 256, 512}) {  // primes 1 mod 1024, just under each word's bound
        ok &= check<u32>(isa_portable.q30, 1073738753, root(1073738753, degree), degree);
        ok &= check<u32>(isa_portable.q31, 2147473409, root(2147473409, degree), degree);
        ok &= check<u32>(isa_portable.q32, 4294957057, root(4294957057, degree), degree);
        ok &= check<u64>(isa_portable.q62, 4611686018427366401, root(4611686018427366401, degree), degree);
        ok &= check<u64>(isa_portable.q64, 18446744069414584321u, root(18446744069414584321u, degree), degree);
    }
    std::puts(ok ? "ok" : "failed");
    return ok ? 0 : 1;
}
