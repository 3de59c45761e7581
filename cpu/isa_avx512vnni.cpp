// AVX-512 VNNI, which adds four products of bytes to each sum of 32 bits in one instruction. If the processor has VNNI,
// the other AVX-512 instruction sets use the byte kernels of this file.
#include "kernels.hpp"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>

#include "bytes.hpp"

namespace pg {
namespace {

struct VnniLanes {
    using V = __m512i;
    static constexpr size_t WIDTH = 64, ROWS = 4;
    static constexpr unsigned DIGIT_BITS = 8;
    static PG_INLINE V splat(u64 x) { return _mm512_set1_epi64((long long)x); }
    static PG_INLINE V load(const unsigned char *x) { return _mm512_loadu_si512(x); }
    static PG_INLINE V load_first(const unsigned char *x, size_t count) {
        return _mm512_maskz_loadu_epi8(((__mmask64)1 << count) - 1, x);
    }
    static PG_INLINE V flip(V x, V pattern) { return _mm512_xor_si512(x, pattern); }
    static PG_INLINE V add_products(V sum, V bytes, V digits) { return _mm512_dpbusd_epi32(sum, bytes, digits); }
    static PG_INLINE __m256i halves(V x) {
        return _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    }
    static PG_INLINE void sum(const V *x, int *y) {
        const __m256i low = _mm256_hadd_epi32(halves(x[0]), halves(x[1]));
        const __m256i high = _mm256_hadd_epi32(halves(x[2]), halves(x[3]));
        const __m256i both = _mm256_hadd_epi32(low, high);
        _mm_storeu_si128((__m128i *)y, _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1)));
    }
};

constexpr Isa make_vnni() {
    Isa isa = without_kernels("avx512vnni");
    isa.bytes = byte_kernels<VnniLanes>();
    return isa;
}

}  // namespace

const Isa isa_avx512vnni = make_vnni();

}  // namespace pg
#else
namespace pg {
const Isa isa_avx512vnni = without_kernels("avx512vnni");
}  // namespace pg
#endif
