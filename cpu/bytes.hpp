// Products of bytes with signed digits, in tiles of rows and vectors. All instruction sets share this code.
#pragma once
#include <cstring>

#include "kernels.hpp"

namespace pg {
namespace {

constexpr size_t BYTE_VECTORS = 4;  // vectors of digits in a tile, at most

// A tile has ROWS * VECTORS vectors of 32-bit sums. All loops are unrolled, so that the sums stay in registers. L:
// operations on vectors of WIDTH bytes or of 32-bit sums.
template <class L, size_t ROWS, size_t VECTORS> struct Tile {
    using V = typename L::V;
    const ByteProduct &p;
    const unsigned char *const x;
    const signed char *const y;
    const V flip;
    V sums[ROWS][BYTE_VECTORS];

    // Adds the products of `count` bytes, beginning with byte k. If WHOLE, `count` is ignored: L::WIDTH bytes are
    // multiplied.
    template <bool WHOLE> PG_INLINE void step(size_t k, size_t count, bool ahead) {
        V bytes[ROWS];
#pragma GCC unroll 8
        for (size_t r = 0; r < ROWS; ++r) {
            const unsigned char *const from = x + (ptrdiff_t)r * p.row_step + k;
            // Beyond the end of the row, the digits in y are 0, but x must not be read there.
            bytes[r] = L::flip(WHOLE ? L::load(from) : L::load_first(from, count), flip);
            // Prefetches the rows of the next tile.
            if (ahead) __builtin_prefetch(from + (ptrdiff_t)ROWS * p.row_step, 0, 2);
        }
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; ++v) {
            const V digits = L::load((const unsigned char *)y + v * p.vector_step + k);
#pragma GCC unroll 8
            for (size_t r = 0; r < ROWS; ++r) sums[r][v] = L::add_products(sums[r][v], bytes[r], digits);
        }
    }
};

template <class L, size_t ROWS, size_t VECTORS> void add_tile(const ByteProduct &p, size_t row, size_t vector) {
    constexpr size_t W = L::WIDTH;
    Tile<L, ROWS, VECTORS> tile{
        p, p.rows + (ptrdiff_t)row * p.row_step, p.vectors + vector * p.vector_step, L::splat(p.flip), {}};
    size_t k = 0;
    if (vector == 0)
        for (; k + W <= p.length; k += W) tile.template step<true>(k, W, true);
    else
        for (; k + W <= p.length; k += W) tile.template step<true>(k, W, false);
    if (k < p.length) tile.template step<false>(k, p.length - k, false);
#pragma GCC unroll 8
    for (size_t r = 0; r < ROWS; ++r) {
        int found[BYTE_VECTORS];
        L::sum(tile.sums[r], found);
        for (size_t v = 0; v < VECTORS; ++v) p.sums[(row + r) * p.count + vector + v] += found[v];
    }
}

template <class L, size_t ROWS> void add_rows(const ByteProduct &p, size_t row) {
    size_t vector = 0;
    for (; vector + BYTE_VECTORS <= p.count; vector += BYTE_VECTORS) add_tile<L, ROWS, BYTE_VECTORS>(p, row, vector);
    switch (p.count - vector) {
        case 1:
            return add_tile<L, ROWS, 1>(p, row, vector);
        case 2:
            return add_tile<L, ROWS, 2>(p, row, vector);
        case 3:
            return add_tile<L, ROWS, 3>(p, row, vector);
    }
}

template <class L> void add_products_of_bytes(const ByteProduct &p) {
    size_t row = 0;
    for (; row + L::ROWS <= p.height; row += L::ROWS) add_rows<L, L::ROWS>(p, row);
    for (; row < p.height; ++row) add_rows<L, 1>(p, row);
}

// add_products_of_bytes by plain loops, which compilers vectorise. A row is widened to 16 bits once for all vectors of
// digits.
struct ByteLoops {
    static constexpr unsigned DIGIT_BITS = 8;
};
template <> inline void add_products_of_bytes<ByteLoops>(const ByteProduct &p) {
    constexpr size_t BLOCK = 2048;
    short wide[BLOCK];
    unsigned char pattern[8];
    std::memcpy(pattern, &p.flip, sizeof pattern);
    for (size_t row = 0; row < p.height; ++row)
        for (size_t k = 0; k < p.length; k += BLOCK) {
            const size_t n = p.length - k < BLOCK ? p.length - k : BLOCK;
            const unsigned char *const x = p.rows + (ptrdiff_t)row * p.row_step + k;
            for (size_t i = 0; i < n; ++i) wide[i] = (short)(x[i] ^ pattern[i % 8]);
            for (size_t v = 0; v < p.count; ++v) {
                const signed char *const y = p.vectors + v * p.vector_step + k;
                int sum = 0;
                for (size_t i = 0; i < n; ++i) sum += wide[i] * y[i];
                p.sums[row * p.count + v] += sum;
            }
        }
}

template <class L> constexpr ByteKernels byte_kernels() { return {L::DIGIT_BITS, add_products_of_bytes<L>}; }

}  // namespace
}  // namespace pg
