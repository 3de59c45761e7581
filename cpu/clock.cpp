#include "clock.hpp"

#include <algorithm>
#include <chrono>

#include "modulus.hpp"

namespace pg {

// Times a chain of dependent additions and rotations, which take one cycle each. The additions are of two registers,
// because some processors add constants without using a cycle.
double clock_ghz() {
    constexpr long ROUNDS = 200'000, STEPS = 16;
    double best = 0;
    for (int attempt = 0; attempt < 5; ++attempt) {
        auto begin = std::chrono::steady_clock::now();
        u64 x = 1, y = 0x9e3779b97f4a7c15;
        for (long i = 0; i < ROUNDS; ++i)
            for (long k = 0; k < STEPS; ++k) {
                asm volatile("" : "+r"(x), "+r"(y));  // hides their values from the compiler
                x += y;
                x = x << 7 | x >> 57;
            }
        asm volatile("" : : "r"(x));
        double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
        best = std::max(best, (double)(2 * ROUNDS * STEPS) / ns);
    }
    return best;
}

}  // namespace pg
