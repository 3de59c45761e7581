// What kernels of C = A B share: how tiles of A and B come from memory. All matrices are n x n and row-major. n is a
// multiple of every side of a tile.
#pragma once
#include "memory.cuh"
#include "tensor.cuh"

// A tile of HEIGHT rows of WIDTH elements, on its way from global to shared memory through the registers of THREADS
// threads. In shared memory its rows are STRIDE elements apart.
template <class T, int HEIGHT, int WIDTH, int STRIDE, int THREADS> struct Fetched {
    static constexpr int OWN = HEIGHT * WIDTH / THREADS, SIZE = OWN * sizeof(T) < 16 ? OWN : 16 / sizeof(T);
    static constexpr int ACROSS = WIDTH / SIZE, COUNT = OWN / SIZE;
    using Chunk = Neighbours<T, SIZE>;
    Chunk chunks[COUNT];
    PG_DEVICE void fetch(const T *from, int n) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int at = threadIdx.x + i * THREADS;
            chunks[i] = *(const Chunk *)(from + size_t(at / ACROSS) * n + at % ACROSS * SIZE);
        }
    }
    PG_DEVICE void store(T *to) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int at = threadIdx.x + i * THREADS;
            *(Chunk *)(to + at / ACROSS * STRIDE + at % ACROSS * SIZE) = chunks[i];
        }
    }
};

// Tiles of A and B go through registers to shared memory, one after the other. With two stages the next tiles are
// fetched while two tiles are multiplied. (A stage is here the room for one tile of A and one of B.)
template <class T, int TILE_M, int TILE_N, int TILE_K, int STAGES, int THREADS> struct Staged {
    static_assert(STAGES == 1 || STAGES == 2, "one to multiply, one to store");
    static constexpr int PADDING = 16 / sizeof(T);  // so that neighbouring rows begin in different banks
    static constexpr int A_STRIDE = TILE_K + PADDING, B_STRIDE = TILE_N + PADDING;
    T a[STAGES][TILE_M * A_STRIDE], b[STAGES][TILE_K * B_STRIDE];

    template <class Multiply> PG_DEVICE void each(const T *from_a, const T *from_b, int n, const Multiply &multiply) {
        Fetched<T, TILE_M, TILE_K, A_STRIDE, THREADS> next_a;
        Fetched<T, TILE_K, TILE_N, B_STRIDE, THREADS> next_b;
        const auto fetch = [&](int tile) {
            next_a.fetch(from_a + tile * TILE_K, n);
            next_b.fetch(from_b + size_t(tile) * TILE_K * n, n);
        };
        const auto store = [&](int stage) {
            next_a.store(a[stage]);
            next_b.store(b[stage]);
        };
        fetch(0);
        store(0);
        __syncthreads();
        for (int tile = 0; tile < n / TILE_K; ++tile) {
            const bool more = tile + 1 < n / TILE_K;
            if (STAGES == 2 && more) fetch(tile + 1);
            multiply(a[tile % STAGES], b[tile % STAGES]);
            if (STAGES == 1) {
                __syncthreads();
                if (more) fetch(tile + 1);
            }
            if (more) store((tile + 1) % STAGES);
            __syncthreads();
        }
    }
};

// Tiles come by asynchronous copies, STAGES - 1 tiles ahead. A tile is multiplied in STEPS steps. The operands of a
// step are loaded into registers while those of the step before are multiplied. Functions: copy(tile, stage),
// load(fragment, stage, step), multiply(fragment, step).
template <int STAGES, int STEPS, class Fragment, class Copy, class Load, class Multiply>
PG_DEVICE void pipeline(int tiles, const Copy &copy, const Load &load, const Multiply &multiply) {
    static_assert(STAGES >= 2 && STEPS % 2 == 0, "fragments take turns in every tile alike");
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < tiles) copy(i, i);
        end_copies();
    }
    await_copies<STAGES - 2>();
    __syncthreads();
    Fragment fragments[2];
    load(fragments[0], 0, 0);
    int stage = 0, free = STAGES - 1;
    for (int tile = 0; tile < tiles; ++tile) {
        const int next = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const bool last = step == STEPS - 1;
            if (last) {  // after the barrier the next tile is there, and every warp has loaded all of this one
                await_copies<STAGES - 2>();
                __syncthreads();
            }
            load(fragments[(step + 1) % 2], last ? next : stage, (step + 1) % STEPS);
            multiply(fragments[step % 2], step);
            if (step == 0) {
                if (tile + STAGES - 1 < tiles) copy(tile + STAGES - 1, free);
                end_copies();
            }
        }
        free = stage;
        stage = next;
    }
}
