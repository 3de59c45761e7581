// A tile of a matrix product of bytes on tensor cores: ROWS rows of the left operand times COLUMNS columns of the right
// operand. A block computes one tile. The inner dimension (the depth) is processed in stages of DEPTH bytes. A stage
// holds both operands as rows of DEPTH bytes along the depth.
#pragma once
#include "memory.cuh"
#include "tensor.cuh"

using Chunk = Neighbours<u32, 4>;  // 16 bytes, the unit of copies and of load_matrices

template <int ROWS_, int COLUMNS_, int WARP_ROWS, int WARP_COLUMNS, int DEPTH_> struct GemmTile {
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, DEPTH = DEPTH_;
    static constexpr int CHUNKS = DEPTH / 16;  // chunks of a row
    static constexpr int WARPS_DOWN = ROWS / WARP_ROWS, WARPS_ACROSS = COLUMNS / WARP_COLUMNS;
    static constexpr int THREADS = 32 * WARPS_DOWN * WARPS_ACROSS;
    // For each 32 bytes of depth, a warp multiplies DOWN fragments of the left operand by ACROSS fragments of the
    // right.
    static constexpr int DOWN = WARP_ROWS / 16, ACROSS = WARP_COLUMNS / 8;
    static constexpr int RUN = 2 * ACROSS;  // neighbouring columns of which a lane holds the sums
    static_assert(CHUNKS == 4 || CHUNKS == 8, "rows of 64 or 128 bytes");
    static_assert(ACROSS % 2 == 0, "two matrices of columns are loaded at a time");

    // Returns the index of a chunk of a row in shared memory. Chunks with the same number lie in different banks in
    // 8 neighbouring rows, and also in 4 pairs of neighbouring rows if the pairs lie RUN rows apart.
    static PG_DEVICE int place(int row, int chunk) {
        return row * CHUNKS + (chunk ^ (row / (8 / CHUNKS) ^ row / RUN) % CHUNKS);
    }

    // row, column: where this thread's warp begins in the tile. lane: index of the thread in its warp.
    int row, column, lane;
    PG_DEVICE GemmTile()
        : row((int)threadIdx.x / 32 / WARPS_ACROSS * WARP_ROWS),
          column((int)threadIdx.x / 32 % WARPS_ACROSS * WARP_COLUMNS),
          lane((int)threadIdx.x % 32) {}

    // sums[i][c / 2][2 * h + c % 2] belongs to row row_of(i, h) and column column_of() + c.
    PG_DEVICE int row_of(int i, int h) const { return row + 16 * i + 8 * h + lane / 4; }
    PG_DEVICE int column_of() const { return column + RUN * (lane % 4); }

    // Adds the product of one stage, left times right, to the sums. load(a, step) loads fragments of the left operand
    // into `a`: those for the chunks `step` and step + 1 of each row. Column c of the right operand's fragment j is
    // column RUN * (c / 2) + 2 * j + c % 2 of the warp.
    template <class Load>
    PG_DEVICE void multiply(i32 (&sums)[DOWN][ACROSS][4], const Load &load, const Chunk *right) const {
        const int c = lane % 8, right_row = column + RUN * (c / 2) + c % 2 + lane / 16 * 2, right_chunk = lane / 8 % 2;
#pragma unroll
        for (int step = 0; step < CHUNKS; step += 2) {
            u32 a[DOWN][4], b[ACROSS][2];
            load(a, step);
#pragma unroll
            for (int j = 0; j < ACROSS; j += 2)
                load_matrices<>(b[j], right + place(right_row + 2 * j, right_chunk + step));
#pragma unroll
            for (int i = 0; i < DOWN; ++i)
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) multiply_add<Byte>(sums[i][j], a[i], b[j]);
        }
    }
    PG_DEVICE void load_rows(u32 (&a)[DOWN][4], const Chunk *left, int step) const {
        const int left_row = row + lane % 16, left_chunk = lane / 16;
#pragma unroll
        for (int i = 0; i < DOWN; ++i) load_matrices<>(a[i], left + place(left_row + 16 * i, left_chunk + step));
    }

    // Starts the copies of one stage of an operand: COUNT rows of DEPTH bytes. Only the first `rows` rows, and the
    // first `bytes` bytes of a row, exist. Missing bytes are read as zeros. Missing rows are read as copies of the last
    // row; their sums are not used.
    template <int COUNT, int BYTES>
    static PG_DEVICE void fetch(Chunk *to, const unsigned char *from, u64 stride, int rows, int bytes) {
        fetch_chunks<COUNT, CHUNKS, BYTES>(to, from, stride, rows, bytes, place);
    }

  protected:
    // Like `fetch`, for rows of LENGTH chunks. Chunk c of row r goes to at_place(r, c).
    template <int COUNT, int LENGTH, int BYTES, class Place>
    static PG_DEVICE void fetch_chunks(Chunk *to, const unsigned char *from, u64 stride, int rows, int bytes,
                                       const Place &at_place) {
        constexpr int PIECES = 16 / BYTES, TASKS = COUNT * LENGTH * PIECES, TURNS = TASKS / THREADS;
        static_assert(TASKS % THREADS == 0, "threads copy as many pieces each");
#pragma unroll(PIECES == 1 ? TURNS : 4)  // the addresses of all small pieces would not fit the registers
        for (int i = 0; i < TURNS; ++i) {
            int at = i * THREADS + (int)threadIdx.x, piece = at % PIECES, chunk = at / PIECES % LENGTH;
            int r = at / PIECES / LENGTH, first = 16 * chunk + BYTES * piece;
            int wanted = min(max(bytes - first, 0), BYTES);
            const unsigned char *source = from + (u64)min(r, rows - 1) * stride + (wanted ? first : 0);
            copy_async<BYTES>((unsigned char *)(to + at_place(r, chunk)) + BYTES * piece, source, wanted);
        }
    }
};

// Transposes four words of four bytes: byte j of word i becomes byte i of word j.
PG_DEVICE void transpose_bytes(u32 (&w)[4]) {
    u32 a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[0], w[1], 0x7362);
    u32 c = __byte_perm(w[2], w[3], 0x5140), d = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(a, c, 0x5410), w[1] = __byte_perm(a, c, 0x7632);
    w[2] = __byte_perm(b, d, 0x5410), w[3] = __byte_perm(b, d, 0x7632);
}

// Returns the sum over j of x[j] * 2^(8 * j), modulo q. Needs 0 <= x[j] < 2^31.
template <class W> PG_DEVICE W compose_digits(const Modulus &m, const i32 *x);
template <> PG_DEVICE u32 compose_digits<u32>(const Modulus &m, const i32 *x) {
    return (u32)reduce(m, (u64)x[0] + ((u64)x[1] << 8) + ((u64)x[2] << 16) + ((u64)x[3] << 24));
}
template <> PG_DEVICE u64 compose_digits<u64>(const Modulus &m, const i32 *x) {
    u64 low = (u64)x[0] + ((u64)x[1] << 8) + ((u64)x[2] << 16) + ((u64)x[3] << 24);
    u64 right = (u64)x[4] + ((u64)x[5] << 8) + ((u64)x[6] << 16) + ((u64)x[7] << 24), sum = low + (right << 32);
    return reduce(m, reduce(m, (right >> 32) + (sum < low)), sum);
}
