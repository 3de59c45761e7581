// Tensor cores, and the copies that feed them. If PG_SIMULATOR is defined, functions of the tests' simulator do the
// same as the instructions.
#pragma once
#include "modulus.cuh"

// ---- copies from global to shared memory while the thread goes on ----

PG_DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Copies BYTES (4, 8 or 16) bytes: the first `wanted` are read, the rest are zeros. Below compute capability 8.0 the
// thread waits for the copy.
template <int BYTES> PG_DEVICE void copy_async(void *shared, const void *global, int wanted = BYTES) {
#ifdef PG_SIMULATOR
    sim::async_copy(shared, global, BYTES, (u32)wanted, sim::Place());
#elif __CUDA_ARCH__ >= 800
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                     "r"(wanted)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)), "l"(global),
                     "n"(BYTES), "r"(wanted)
                     : "memory");
#else
#pragma unroll
    for (int i = 0; i < BYTES; i += 4) ((u32 *)shared)[i / 4] = i < wanted ? ((const u32 *)global)[i / 4] : 0;
#endif
}
// Closes this thread's group of copies without waiting for it: later copies belong to the next group.
PG_DEVICE void end_copies() {
#ifdef PG_SIMULATOR
    sim::async_commit();
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until all but the last GROUPS groups of this thread's copies have arrived.
template <int GROUPS> PG_DEVICE void await_copies() {
#ifdef PG_SIMULATOR
    sim::async_wait(GROUPS);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
#endif
}

// ---- operands ----

// Loads four matrices of 8 rows of 16 bytes from shared memory, one register for each. Lane 8 * j + i gives the address
// of row i of matrix j. Lane 4 * g + t gets bytes 4 * t to 4 * t + 3 of row g of each matrix. If TRANSPOSED is true,
// elements have 2 bytes, and lane 4 * g + t gets the elements of column g in rows 2 * t and 2 * t + 1 instead.
template <bool TRANSPOSED = false> PG_DEVICE void load_matrices(u32 *registers, const void *row) {
#ifdef PG_SIMULATOR
    sim::load_matrices(registers, 4, row, TRANSPOSED);
#else
    const u32 p = shared_address(row);
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                     : "r"(p)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                     : "r"(p)
                     : "memory");
#endif
}

// ---- products ----

// The types of operands' elements, and the type in which their products are summed.
struct Byte {
    using Sum = i32;
    static constexpr const char *PTX = "u8";
};
struct Half {
    using Sum = float;
    static constexpr const char *PTX = "f16";
};
struct Tf32 {  // a float of which only 10 bits of the mantissa are used; needs compute capability 8.0
    using Sum = float;
    static constexpr const char *PTX = "tf32";
};

#define PG_MMA(SHAPE, TYPES, R)                                                     \
    asm volatile("mma.sync.aligned." SHAPE ".row.col." TYPES                        \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+" R(c[0]), "+" R(c[1]), "+" R(c[2]), "+" R(c[3])               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define PG_MMA_75_BYTES(I, J)                                                                     \
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.u8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};" \
                 : "+r"(c[2 * I]), "+r"(c[2 * I + 1])                                             \
                 : "r"(a[I + 2 * J]), "r"(b[J]))
#define PG_MMA_75_HALVES(J)                                                                                    \
    asm volatile(                                                                                              \
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                       \
        : "r"(a[2 * J]), "r"(a[2 * J + 1]), "r"(b[J]))

// A warp adds the product a * b to c. a has 16 rows of 32 bytes, b has 8 columns of 32 bytes, and c has 16 rows of 8
// sums. Lane 4 * g + t holds
//   a[0], a[1]         bytes 4 * t to 4 * t + 3 of rows g and g + 8
//   b[0]               bytes 4 * t to 4 * t + 3 of column g
//   a[2], a[3], b[1]   the same, 16 bytes further on
//   c                  columns 2 * t and 2 * t + 1 of rows g and g + 8
template <class T> PG_DEVICE void multiply_add(typename T::Sum *c, const u32 *a, const u32 *b) {
#ifdef PG_SIMULATOR
    sim::mma(c, a, b, T::PTX);
#elif __CUDA_ARCH__ >= 800
    if constexpr (T::PTX[0] == 'u') PG_MMA("m16n8k32", "s32.u8.u8.s32", "r");
    else if constexpr (T::PTX[0] == 'f') PG_MMA("m16n8k16", "f32.f16.f16.f32", "f");
    else PG_MMA("m16n8k8", "f32.tf32.tf32.f32", "f");
#else
    if constexpr (T::PTX[0] == 'u') {
        PG_MMA_75_BYTES(0, 0);
        PG_MMA_75_BYTES(1, 0);
        PG_MMA_75_BYTES(0, 1);
        PG_MMA_75_BYTES(1, 1);
    } else {
        static_assert(T::PTX[0] == 'f', "before 8.0 tensor cores take no tf32");
        PG_MMA_75_HALVES(0);
        PG_MMA_75_HALVES(1);
    }
#endif
}
