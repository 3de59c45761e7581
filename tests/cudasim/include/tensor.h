// Host twins of PTX's ldmatrix and mma.sync, whose lanes hold what PTX says they do.
#pragma once
#include <limits.h>
#include <string.h>

#include "cuda_fp16.h"
#include "warp.h"

namespace sim {

// ldmatrix: matrices of 8 rows of 16 bytes, one matrix a register. Lane 8 j + i names row i of matrix j.
inline void load_matrices(unsigned *registers, unsigned count, const void *row, bool transposed, Place place = {}) {
    if (current->lane < 8 * count && (!is_shared(row) || size_t(row) % 16))
        fail("ldmatrix: a row at %p must begin at a multiple of 16 bytes of shared memory (%s:%d)", row, place.file,
             place.line);
    struct Rows {
        const void *own;
        const char *all[32];
    } rows = {row, {}}, *lane_rows = &rows;
    meet_whole_warp(
        "ldmatrix", &lane_rows, sizeof lane_rows,
        [](WarpCall *const *calls) {
            Rows *lanes[32];
            for (unsigned i = 0; i < 32; i++) memcpy(&lanes[i], calls[i]->value, sizeof lanes[i]);
            for (unsigned i = 0; i < 32; i++)
                for (unsigned j = 0; j < 32; j++) lanes[i]->all[j] = (const char *)lanes[j]->own;
        },
        place);
    unsigned g = current->lane / 4, t = current->lane % 4;
    for (unsigned j = 0; j < count; j++) {
        char *to = (char *)&registers[j];
        if (transposed) {
            memcpy(to, rows.all[8 * j + 2 * t] + 2 * g, 2);
            memcpy(to + 2, rows.all[8 * j + 2 * t + 1] + 2 * g, 2);
        } else {
            memcpy(to, rows.all[8 * j + g] + 4 * t, 4);
        }
    }
}

template <class Element> inline Element element_at(const char *p) {
    Element x;
    memcpy(&x, p, sizeof x);
    return x;
}
inline float product(__half x, __half y) { return float(x) * float(y); }
inline float product(float x, float y) { return x * y; }
inline long long product(int x, int y) { return (long long)x * y; }

// mma.sync, 16 rows and 8 columns of 32 bytes: c += a b. Sums of integers that leave 32 bits are an error.
template <class Element, class Sum>
inline void multiply_add(Sum *c, const unsigned *a, const unsigned *b, Place place) {
    struct Lane {
        Sum *c;
        const char *a, *b;
    } lane = {c, (const char *)a, (const char *)b}, *pointer = &lane;
    meet_whole_warp(
        "mma.sync", &pointer, sizeof pointer,
        [](WarpCall *const *calls) {
            Lane *lanes[32];
            for (unsigned i = 0; i < 32; i++) memcpy(&lanes[i], calls[i]->value, sizeof lanes[i]);
            for (unsigned row = 0; row < 16; row++) {
                for (unsigned column = 0; column < 8; column++) {
                    Sum &to = lanes[row % 8 * 4 + column / 2]->c[row / 8 * 2 + column % 2];
                    decltype(product(Element(), Element())) sum = to;
                    for (unsigned byte = 0; byte < 32; byte += sizeof(Element)) {
                        unsigned t = byte / 4 % 4, right = byte / 16, rest = byte % 4;
                        const char *x = lanes[row % 8 * 4 + t]->a + 4 * (row / 8 + 2 * right) + rest;
                        const char *y = lanes[4 * column + t]->b + 4 * right + rest;
                        sum += product(element_at<Element>(x), element_at<Element>(y));
                    }
                    if (std::is_integral<Sum>::value && (sum > INT_MAX || sum < INT_MIN))
                        fail("mma.sync: a sum of %g leaves 32 bits (%s:%d)", double(sum), calls[0]->place.file,
                             calls[0]->place.line);
                    to = Sum(sum);
                }
            }
        },
        place);
}

// By PTX's name of the operands' type.
inline void mma(int *c, const unsigned *a, const unsigned *b, const char *type, Place place = {}) {
    type[0] == 's' ? multiply_add<signed char>(c, a, b, place) : multiply_add<unsigned char>(c, a, b, place);
}
inline void mma(float *c, const unsigned *a, const unsigned *b, const char *type, Place place = {}) {
    type[0] == 'f' ? multiply_add<__half>(c, a, b, place) : multiply_add<float>(c, a, b, place);
}

}  // namespace sim
