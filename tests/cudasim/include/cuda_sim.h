// Force-included before every kernel source: CUDA C++ on the host, one fiber per CUDA thread.
// `__shared__`, `__global__`, `__launch_bounds__` and `__cluster_dims__` are left to translate.py.
#pragma once
#include <type_traits>
#include <utility>

#undef _GLIBCXX_USE_STD_SPEC_FUNCS  // math.h's special functions: a third of all that a kernel parses
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define PG_SIMULATOR 1
#define __CUDACC__ 1
#define __NVCC__ 1
#define __CUDACC_RTC__ 1
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 8

#define __host__
#define __device__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))

#include "api.h"
#include "vector_types.h"
// In this order: the later ones use the earlier.
#include "async.h"
#include "intrinsics.h"
#include "memory.h"
#include "warp.h"
#include "tensor.h"

#define threadIdx (::sim::current->index)
#define blockIdx (::sim::current->block->index)
#define blockDim (::sim::shape.block)
#define gridDim (::sim::shape.grid)
#define warpSize 32

#undef assert
#define assert(condition) \
    ((condition) ? (void)0 : ::sim::fail("%s:%d: assertion `%s` failed", __FILE__, __LINE__, #condition))
inline void __trap() { sim::fail("__trap()"); }
inline void __brkpt() {}
inline void __builtin_assume(bool condition) {
    if (!condition) sim::fail("__builtin_assume of something false");
}
inline long long clock64() { return (long long)sim::clock(); }

#include "export.h"
