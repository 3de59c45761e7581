// Exact products of matrices modulo q on tensor cores that multiply bytes and sum in 32 bits (docs/math.md, "Products
// of matrices").
//
// By digits: let a be a word of the left matrix and a_i its bytes, so that a is the sum of a_i * 2^(8 * i). For a word
// b of the right matrix, a * b is congruent to the sum of a_i * (2^(8 * i) * b mod q). The factors in parentheses are
// cut into bytes too. So the whole product is one product of matrices of bytes. The bytes of the left matrix are read
// as they lie in memory.
//
// By residues: both operands are reduced modulo several pairwise coprime numbers p <= 2^8. The matrices are multiplied
// modulo each p, and the results are joined by the Chinese remainder theorem.
#include "matmul_tensor.cuh"

// ---- by digits ----

// Computes a number below 2q that is congruent to 2^8 * x modulo q: Shoup's product with a constant.
template <class W> struct ByteShift;
template <> struct ByteShift<u32> {  // q <= 2^31, or q = 2^32 (held as 0)
    u32 factor, quotient, q;
    PG_DEVICE ByteShift(const Modulus &m)
        : factor((u32)(256 % m.q)), quotient((u32)(((u64)factor << 32) / m.q)), q((u32)m.q) {}
    PG_DEVICE u32 operator()(u32 x) const { return x * factor - __umulhi(x, quotient) * q; }
};
template <> struct ByteShift<u64> {  // q <= 2^62
    u64 factor, quotient, q;
    PG_DEVICE ByteShift(const Modulus &m) : factor(256 % m.q), quotient(shoup_quotient(m, factor)), q(m.q) {}
    PG_DEVICE u64 operator()(u64 x) const { return x * factor - __umul64hi(x, quotient) * q; }
};

// Joins the low bytes of four words.
PG_DEVICE u32 join_bytes(const u32 (&w)[4]) {
    return __byte_perm(__byte_perm(w[0], w[1], 0x0040), __byte_perm(w[2], w[3], 0x0040), 0x5410);
}

// The right operand's part of a stage. A thread cuts DEEP words of one column into bytes. These bytes fill 16 bytes in
// each of L rows of the tile.
template <class Tile, class W> struct RightDigits {
    static constexpr int L = sizeof(W), DEEP = 16 / L,
                         WIDE = Tile::COLUMNS / L;  // DEEP: words of a thread; WIDE: words of a row of the tile
    static constexpr int TASKS = WIDE * Tile::CHUNKS, TURNS = (TASKS + Tile::THREADS - 1) / Tile::THREADS;
    W words[TURNS][DEEP];

    static PG_DEVICE int task(int turn) { return turn * Tile::THREADS + (int)threadIdx.x; }
    // b: the first word of the stage. `rows` rows and `columns` columns exist, beginning with b; other words are read
    // as 0.
    PG_DEVICE void read(const W *b, u64 stride, int rows, int columns) {
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            int n = task(turn) % WIDE, k = task(turn) / WIDE * DEEP;
#pragma unroll
            for (int i = 0; i < DEEP; ++i)
                words[turn][i] = n < columns && k + i < rows ? b[(u64)(k + i) * stride + n] : 0;
        }
    }
    // Let x be word k of column n. Byte j of 2^(8 * i) * x, reduced below 2q, goes to byte L * k + i of row L * n + j.
    PG_DEVICE void store(Chunk *right, const ByteShift<W> &shift) const {
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            if (TASKS % Tile::THREADS && task(turn) >= TASKS) break;
            int n = task(turn) % WIDE, chunk = task(turn) / WIDE;
            u32 bytes[L][4];  // bytes[j]: the 16 bytes for row L * n + j (n: the column)
#pragma unroll
            for (int k = 0; k < DEEP; ++k) {
                W x = words[turn][k];
#pragma unroll
                for (int i = 0; i < L; i += 4) {
                    u32 w[L / 4][4];
#pragma unroll
                    for (int s = 0; s < 4; ++s) {
#pragma unroll
                        for (int h = 0; h < L / 4; ++h) w[h][s] = (u32)(x >> 32 * h % (8 * L));
                        if (i + s + 1 < L) x = shift(x);
                    }
#pragma unroll
                    for (int h = 0; h < L / 4; ++h) {
                        transpose_bytes(w[h]);
#pragma unroll
                        for (int s = 0; s < 4; ++s) bytes[4 * h + s][(L * k + i) / 4] = w[h][s];
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < L; ++j) right[Tile::place(L * n + j, chunk)] = pack<4>(bytes[j]);
        }
    }
};

// out = left * right, or out += left * right if `add` is true. left: (batch, m, k). right: (batch, k, n). W is u32 with
// q <= 2^31 or q = 2^32, or u64 with q <= 2^62. k is at most 2^15 / sizeof(W); sums then stay below 2^31. grid: (n *
// sizeof(W) / COLUMNS) * (m / ROWS) * batch, each quotient rounded up.
template <class W> struct DigitsParameters {
    const W *left, *right;
    W *out;
    const Modulus *moduli;
    u64 left_stride, left_step, right_step;
    u32 m, n, k, add;
};
template <class W, int ROWS, int COLUMNS, int WARP_ROWS, int STAGES, int BYTES>
__global__ void __launch_bounds__(32 * (ROWS / WARP_ROWS) * (COLUMNS / 64)) gemm_digits(const DigitsParameters<W> p) {
    constexpr int L = sizeof(W);
    using Tile = GemmTile<ROWS, COLUMNS, WARP_ROWS, 64, L == 4 ? 64 : 128>;
    constexpr int LEFT = ROWS * Tile::CHUNKS, RIGHT = COLUMNS * Tile::CHUNKS, DEEP = Tile::DEPTH / L;
    extern __shared__ Chunk memory[];
    Chunk *lefts = memory, *rights = memory + STAGES * LEFT;
    const Modulus &modulus = *p.moduli;
    const Tile tile;
    const ByteShift<W> shift(modulus);
    // Along blockIdx.x, columns change fastest, then rows, then the batch.
    const u32 across = (p.n + COLUMNS / L - 1) / (COLUMNS / L), down = (p.m + ROWS - 1) / ROWS;
    const u32 first_column = blockIdx.x % across * (COLUMNS / L), first_row = blockIdx.x / across % down * ROWS;
    const u32 batch = blockIdx.x / across / down;
    const W *a = p.left + batch * p.left_step + first_row * p.left_stride;
    const W *b = p.right + batch * p.right_step + first_column;
    const int rows = (int)min(p.m - first_row, (u32)ROWS), columns = (int)min(p.n - first_column, (u32)(COLUMNS / L));
    const int stages = (int)((p.k + DEEP - 1) / DEEP);

    auto fetch = [&](int stage) {
        if (stage < stages)
            Tile::template fetch<ROWS, BYTES>(lefts + stage % STAGES * LEFT, (const unsigned char *)(a + stage * DEEP),
                                              p.left_stride * L, rows, (int)(p.k - stage * DEEP) * L);
        end_copies();
    };
    RightDigits<Tile, W> digits;
    auto read = [&](int stage) {
        if (stage < stages) digits.read(b + (u64)stage * DEEP * p.n, p.n, (int)(p.k - stage * DEEP), columns);
    };
    i32 sums[Tile::DOWN][Tile::ACROSS][4] = {};
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage);
    read(0);
    digits.store(rights, shift);
    read(1);
    for (int stage = 0; stage < stages; ++stage) {
        await_copies<STAGES - 2>();
        __syncthreads();
        fetch(stage + STAGES - 1);
        if (stage + 1 < stages) digits.store(rights + (stage + 1) % 2 * RIGHT, shift);
        read(stage + 2);
        const Chunk *const left = lefts + stage % STAGES * LEFT;
        tile.multiply(sums, [&](auto &a, int step) { tile.load_rows(a, left, step); }, rights + stage % 2 * RIGHT);
    }
    W *c = p.out + (u64)batch * p.m * p.n + (u64)first_row * p.n + first_column;
#pragma unroll
    for (int i = 0; i < Tile::DOWN; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int row = tile.row_of(i, h), column = tile.column_of() / L;
#pragma unroll
            for (int e = 0; e < Tile::RUN / L; ++e) {
                i32 x[L];
#pragma unroll
                for (int j = 0; j < L; ++j) x[j] = sums[i][(L * e + j) / 2][2 * h + j % 2];
                if (row >= rows || column + e >= columns) continue;
                W *to = c + (u64)row * p.n + column + e, value = compose_digits<W>(modulus, x);
                *to = p.add ? (W)add_mod(modulus, *to, value) : value;
            }
        }
    }
}

// ---- by residues ----

// A modulus p <= 2^8, and the constants that reduce a centred word modulo p. The digits of the word are multiplied by
// `weights` and added up.
struct Residue {
    u32 p, inverse;  // inverse: floor(2^32 / p)
    u32 weights[3];  // 2^(16 * i), or 2^(21 * i) for words of 64 bits, times a factor (see Weight), modulo p
    u32 offset;      // 128 plus a multiple of p; the multiple makes the sum positive even if the last digit is negative
    u32 multiple;    // the largest multiple of p up to 2^31
    u32 unused;
    PG_DEVICE u32 reduce(u32 x) const {  // returns x mod p
        u32 r = x - __umulhi(x, inverse) * p;
        return min(r, r - p);
    }
};

// The digits of a centred word, |x| <= 2^31 or 2^61. Only the last one may be negative.
template <class W> struct CentredDigits;
template <> struct CentredDigits<u32> {
    u32 low;
    i32 high;
    PG_DEVICE CentredDigits(i64 x) : low((u32)x & 0xffff), high((i32)(x >> 16)) {}
    // Returns 128 plus a residue from -128 to 127.
    PG_DEVICE u32 modulo(const Residue &r) const {
        return r.reduce(low * r.weights[0] + (u32)high * r.weights[1] + r.offset);
    }
};
template <> struct CentredDigits<u64> {
    u32 low, middle;
    i32 high;
    PG_DEVICE CentredDigits(i64 x)
        : low((u32)x & ((1 << 21) - 1)), middle((u32)(x >> 21) & ((1 << 21) - 1)), high((i32)(x >> 42)) {}
    PG_DEVICE u32 modulo(const Residue &r) const {
        return r.reduce(low * r.weights[0] + middle * r.weights[1] + (u32)high * r.weights[2] + r.offset);
    }
};

// Computes signed residues of words. out: (p, matrix, row, depth), with zeros at depths >= k. A thread reduces eight
// words of a row. If TRANSPOSED is false, x has the axes (matrix, row, depth). If TRANSPOSED is true, x has the axes
// (matrix, depth, row), the last of length `width`, and rows of `out` with an index of at least `width` are zeros. A
// warp then writes 32 bytes in each of 8 rows of `out`. So it reads and writes whole sectors of memory. grid: matrices
// * rows * depth / (8 * 256); if TRANSPOSED is true, rows are rounded up to a multiple of 8.
template <class W> struct SplitParameters {
    const W *x;
    unsigned char *out;
    const Modulus *moduli;
    const Residue *residues;
    u64 matrices;
    u32 count, width, rows, k, depth;
};
template <class W, bool TRANSPOSED> __global__ void __launch_bounds__(256) gemm_split(const SplitParameters<W> p) {
    unsigned char *out = p.out;
    constexpr int WORDS = 8;
    const Modulus &modulus = *p.moduli;
    const u64 at = (u64)blockIdx.x * 256 + threadIdx.x;
    const u32 parts = p.depth / WORDS;
    u64 matrix, row;
    u32 part;
    if (TRANSPOSED) {
        const u32 bands = (p.rows + 7) / 8;
        const u64 group = at / 64;  // a group: 8 rows by 8 parts of rows, of 8 words each
        matrix = group / ((u64)bands * (parts / 8)), part = (u32)(group / bands % (parts / 8)) * 8 + at / 8 % 8;
        row = group % bands * 8 + at % 8;
    } else {
        matrix = at / ((u64)parts * p.rows), row = at / parts % p.rows, part = (u32)(at % parts);
    }
    if (matrix >= p.matrices || row >= p.rows) return;
    const u32 first = WORDS * part;
    const auto word = [&](int i) -> i64 {  // word i of this thread, centred
        if (first + i >= p.k || row >= p.width) return 0;
        const u64 from =
            TRANSPOSED ? (matrix * p.k + first + i) * p.width + row : (matrix * p.rows + row) * p.k + first + i;
        const u64 r = reduce(modulus, read<READ_ONLY>(p.x + from));
        return (i64)(r > modulus.q / 2 ? r - modulus.q : r);
    };
    const CentredDigits<W> digits[WORDS] = {word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7)};
    const u64 step = p.matrices * p.rows * p.depth;
    out += (matrix * p.rows + row) * p.depth + first;
    for (u32 j = 0; j < p.count; ++j, out += step) {
        const Residue residue = p.residues[j];
        u32 bytes[WORDS / 4];
#pragma unroll
        for (int i = 0; i < WORDS / 4; ++i) {
            u32 r[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) r[e] = digits[4 * i + e].modulo(residue);
            bytes[i] = join_bytes(r) ^ 0x80808080;
        }
        write<DEFAULT>((Neighbours<u32, WORDS / 4> *)out, pack<WORDS / 4>(bytes));
    }
}

// The numbers by which gemm_compose multiplies a sum modulo p. P is the product of all moduli p. The left operand was
// multiplied by 1/(P/p) mod p, so the sum contains this factor. cofactor: P/p modulo q. share: 2^26 / p, rounded.
struct Weight {
    u64 cofactor;
    u32 share, unused;
};

// Computes X modulo q for integers X with |X| < P/2 * (1 - 2^-11). P is the product of the `count` small moduli p.
// sums: (count, rows, pitch). For each p, it holds an integer congruent to X / (P/p) modulo p, below 2^31 - 2^8 in
// size. Let y be this integer modulo p. Let t be the sum over p of y/p, rounded. X is the sum over p of y * P/p, minus
// t * P. weights[count].cofactor: -P mod q. A thread computes four words of a row. grid: rows * pitch / (4 * 256).
template <class W> struct ComposeParameters {
    const i32 *sums;
    W *out;
    const Modulus *moduli;
    const Residue *residues;
    const Weight *weights;
    u64 rows;
    u32 count, n, pitch, add;
};
template <class W> __global__ void __launch_bounds__(256) gemm_compose(const ComposeParameters<W> p) {
    const i32 *sums = p.sums;
    const Modulus &modulus = *p.moduli;
    const u64 at = ((u64)blockIdx.x * 256 + threadIdx.x) * 4, row = at / p.pitch;
    const u32 column = (u32)(at % p.pitch);
    if (row >= p.rows) return;
    u64 low[4] = {}, high[4] = {};  // sums of y times the halves of cofactors: below 2^45
    u32 shares[4] = {};
    const u64 step = p.rows * p.pitch;
    sums += at;
    for (u32 j = 0; j < p.count; ++j, sums += step) {
        const Residue residue = p.residues[j];
        const Weight weight = p.weights[j];
        u32 x[4];
        unpack<4>(read<STREAM>((const Neighbours<u32, 4> *)sums), x);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 y = residue.reduce(x[i] + residue.multiple);
            low[i] += (u64)y * (u32)weight.cofactor;
            if (sizeof(W) == 8) high[i] += (u64)y * (u32)(weight.cofactor >> 32);
            shares[i] += y * weight.share;
        }
    }
    const u64 minus_p = p.weights[p.count].cofactor;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (column + i >= p.n) break;
        const u32 t = (shares[i] + (1u << 25)) >> 26;
        low[i] += (u64)t * (u32)minus_p;
        u64 x;
        if (sizeof(W) == 8) {
            high[i] += (u64)t * (u32)(minus_p >> 32);
            const u64 sum = low[i] + (high[i] << 32);
            x = reduce(modulus, reduce(modulus, (high[i] >> 32) + (sum < low[i])), sum);
        } else {
            x = reduce(modulus, low[i]);
        }
        W *to = p.out + row * p.n + column + i;
        *to = p.add ? (W)add_mod(modulus, *to, x) : (W)x;
    }
}
