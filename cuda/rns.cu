// Basis conversion: turns rows of residues into rows of residues modulo other moduli, coefficient by coefficient
// (docs/math.md, "Conversion between bases"; polygpu/_core/plans/rns.py computes the tables). A thread reads WIDTH
// neighbouring coefficients of a polynomial and computes the same coefficients in `share` rows of the target. The block
// keeps the moduli and table entries of these rows in shared memory. gridDim.x: entries / (256 * WIDTH). gridDim.y:
// parts * (targets / share). block: 256 threads. Dynamic shared memory: for each of the `share` rows, its modulus and
// its part of the table.
#include "memory.cuh"
#include "ptx.cuh"
#include "rows.cuh"
#include "sum.cuh"

// How the quotient is computed. FLOOR: it is the sum of all z_i / q_i, rounded down. NEAREST: it is this sum, rounded
// to the nearest integer. COUNTED: it is the number of z_i with z_i >= q_i / 2. NONE: no quotient is needed.
enum Way { NONE, FLOOR, NEAREST, COUNTED };

// The constants from which a quotient is computed. ratios: the doubles 1 / q_i of the source rows i. numbers: the
// product P of the moduli, then each P / q_i, of `words` little-endian words each.
struct QuotientTable {
    const u64 *ratios, *numbers;
    u32 words;
};

// A launch may have several parts. Each part converts the array x into some of the rows of `out`. Parts differ only in
// their moduli and their tables. source, target: the moduli of all parts, one part after another. table: the tables of
// all parts, part_words words each.
//
// A table consists of 64-bit words. First come the inverses of K source rows, their ratios and their places; then a
// TargetRow for each target row; then the `numbers` of the quotient (QuotientTable). If values are scaled, there follow
// the remainders of K source rows and their ratios, then the `numbers` for rounding the sum of fractions
// (_core/plans/rns.py). K may be larger than `rows`; entries of source rows that do not exist are zeros.
struct ConvertParameters {
    const void *x, *own;
    void *out;
    const Modulus *source, *target;
    const u64 *table;
    u64 n, entries;
    u32 rows, targets, x_rows, own_rows, out_rows, words, fraction_words, share, shares, part_words;
};

// Offsets of the words of a target row in the table. PLACE: the row's place in `out`. OWN_PLACE: the place in `own` of
// the row that is added. START: the value from which the sum starts. FACTORS: the factors of K source rows. TURNS: the
// factor of the quotient. SCALED: the factors of the low and the high part of a scaled value. THERE: the factor of the
// residue that `out` already holds. OWN_FACTOR: the factor of the row of `own`. Factors are packed as the type S packs
// them. There is no word for a start value or factor that the kernel does not use.
template <class S, int K, int WAY, int SCALE, bool ADDS, bool OWN> struct TargetRow {
    static constexpr int PLACE = 0, OWN_PLACE = 1, START = 2, FACTORS = START + S::STARTS, TURNS = FACTORS + K,
                         SCALED = TURNS + (WAY != NONE), THERE = SCALED + 2 * (SCALE != NONE),
                         OWN_FACTOR = THERE + ADDS, WORDS = OWN_FACTOR + OWN;
};

// Returns whether the sum of all z_i / q_i, plus 1/2 if WAY is NEAREST, is at least the positive integer `boundary`.
// Let P be the product of the q_i, and V the sum of z_i * P / q_i. The condition is 2 * V >= (2 * boundary - c) * P,
// where c is 1 if WAY is NEAREST, else 0. The difference of both sides is computed word by word from the lowest; only
// its sign is kept.
template <int WAY, class T, int K>
PG_DEVICE bool reaches(const T (&z)[K], u32 rows, const QuotientTable &table, u64 boundary) {
    const u64 factor = 2 * boundary - (WAY == NEAREST);
    u64 carry_low = 0, carry_high = 0, product_carry = 0, top = 0, borrow = 0;
    for (u32 w = 0; w < table.words; ++w) {
        u64 low = carry_low, middle = carry_high, high = 0;  // the carry, to which this word's products are added
#pragma unroll
        for (int i = 0; i < K; ++i)
            if (i < (int)rows) {
                const u64 number = table.numbers[(1 + i) * table.words + w];
                const u64 part = z[i] * number;
                low += part;
                const u64 rest = __umul64hi(z[i], number) + (low < part);  // at most 2^64 - 1
                middle += rest;
                high += middle < rest;
            }
        carry_low = middle, carry_high = high;
        const u64 doubled = low << 1 | top;
        top = low >> 63;
        const u64 part = table.numbers[w] * factor, other = part + product_carry;
        product_carry = __umul64hi(table.numbers[w], factor) + (other < part);
        const u64 difference = doubled - other;
        const bool less = doubled < other || difference < borrow;
        borrow = less;
    }
    return !borrow;
}

template <class S, int WAY, class T, int K>
PG_DEVICE u64 quotient_of(const T (&z)[K], u32 rows, const Modulus *moduli, const QuotientTable &table) {
    if (WAY == COUNTED) {
        u64 count = 0;
#pragma unroll
        for (int i = 0; i < K; ++i)
            if (i < (int)rows) count += z[i] > moduli[i].last / 2;  // 2 * z >= q
        return count;
    }
    double sum = WAY == NEAREST ? 0.5 : 0;
#pragma unroll
    for (int i = 0; i < K; ++i)
        if (i < (int)rows) sum += S::number(z[i]) * __longlong_as_double((i64)table.ratios[i]);
    const u64 boundary = (u64)(sum + 0.5);
    const double guard = (double)((rows + 4) * (rows + 1)) * 2.220446049250313e-16;  // 2^-52
    const double distance = sum - (double)boundary;
    if (distance >= guard || distance <= -guard) return (u64)sum;
    return boundary == 0 || reaches<WAY>(z, rows, table, boundary) ? boundary : boundary - 1;
}

// CONVERT_BLOCKS: how many blocks of threads a multiprocessor should hold. Four if values are not scaled and a thread
// holds at most FEW_ROWS rows and FEW_BYTES bytes of source residues, else one.
constexpr int FEW_ROWS = 12;
constexpr int FEW_BYTES = 96;
template <class S, int K, int SCALE, int WIDTH>
constexpr int CONVERT_BLOCKS =
    SCALE == NONE && K <= FEW_ROWS && K * WIDTH * sizeof(typename S::Storage) <= FEW_BYTES ? 4 : 1;

// S: the type of sums (sum.cuh) modulo the target's moduli. X, Y, O: storage of x, own and out. K: number of source
// rows in registers, at least `rows`. ADDS: whether a multiple of the previous value of `out` is added. OWN: whether a
// multiple of a row of `own` is added. WIDTH: neighbouring coefficients of a thread; one instruction loads or stores
// them.
template <class S, class X, class Y, class O, int K, int WAY, int SCALE, bool ADDS, bool OWN, int WIDTH>
__global__ void __launch_bounds__(256, (CONVERT_BLOCKS<S, K, SCALE, WIDTH>)) convert(const ConvertParameters p) {
    using T = typename S::Storage;
    using Row = TargetRow<S, K, WAY, SCALE, ADDS, OWN>;
    using Target = Neighbours<O, WIDTH>;
    start_next(starts_early());
    await_previous();
    const u32 part = blockIdx.y / p.shares;
    const Modulus *const source = p.source + part * p.rows;
    const u64 *const inverses = p.table + part * p.part_words, *const ratios = inverses + K, *const places = ratios + K;
    const u64 *const targets = places + K, *const numbers = targets + (u64)p.targets * Row::WORDS;
    const u32 first = (blockIdx.y - part * p.shares) * p.share, count = min(p.share, p.targets - first);
    extern __shared__ __align__(16) unsigned char memory[];
    Modulus *const moduli = (Modulus *)memory;
    u64 *const rows = (u64 *)(moduli + p.share);
    constexpr u32 MODULUS_WORDS = sizeof(Modulus) / sizeof(u64);
    for (u32 i = threadIdx.x; i < count * MODULUS_WORDS; i += 256)
        ((u64 *)moduli)[i] = ((const u64 *)(p.target + part * p.targets + first))[i];
    for (u32 i = threadIdx.x; i < count * Row::WORDS; i += 256) rows[i] = targets[first * Row::WORDS + i];
    __syncthreads();
    const u64 e = ((u64)blockIdx.x * 256 + threadIdx.x) * WIDTH;
    if (e >= p.entries) return;
    const u64 item = quotient(e, p.n), j = e - item * p.n;
    const X *const x = (const X *)p.x + item * p.x_rows * p.n + j;
    T y[WIDTH][K];
    u64 turns[WIDTH], low[WIDTH], high[WIDTH];
#pragma unroll
    for (int i = 0; i < K; ++i) {
        Neighbours<X, WIDTH> values = {};
        const bool held = i < (int)p.rows;
        if (held) values = read<DEFAULT>((const Neighbours<X, WIDTH> *)(x + (u32)places[i] * p.n));
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) {
            y[w][i] = values.values[w];
            if (held && inverses[i] != 1) y[w][i] = (T)S::product(source[i], y[w][i], inverses[i]);
        }
    }
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
        turns[w] = low[w] = high[w] = 0;
        if (WAY != NONE) turns[w] = quotient_of<S, WAY>(y[w], p.rows, source, {ratios, numbers, p.words});
        if (SCALE != NONE) {
            const u64 *const remainders = numbers + (u64)(1 + p.rows) * p.words, *const own_ratios = remainders + K;
            u64 z[K];
#pragma unroll
            for (int i = 0; i < K; ++i) {
                z[i] = 0;
                if (i < (int)p.rows) {
                    const Modulus &m = source[i];
                    const u64 value = y[w][i], product = value * remainders[i],
                              above = __umul64hi(value, remainders[i]);
                    u64 whole = above;
                    z[i] = product;
                    if (m.q) {
                        whole = divide(m, m.shift ? above << m.shift | product >> (64 - m.shift) : above,
                                       product << m.shift, z[i]);
                        z[i] >>= m.shift;
                    }
                    low[w] += whole & 0xffff, high[w] += whole >> 16;
                }
            }
            low[w] += quotient_of<S, SCALE>(z, p.rows, source, {own_ratios, own_ratios + K, p.fraction_words});
        }
#pragma unroll
        for (int i = 0; i < K; ++i) y[w][i] = (T)S::pack(y[w][i]);
        turns[w] = S::pack((T)turns[w]), low[w] = S::pack((T)low[w]), high[w] = S::pack((T)high[w]);
    }
    const u64 *row = rows;
    for (u32 t = 0; t < count; ++t, row += Row::WORDS) {
        const Modulus &m = moduli[t];
        Target *const to = (Target *)((O *)p.out + (item * p.out_rows + (u32)row[Row::PLACE]) * p.n + j);
        Target there = {};
        Neighbours<Y, WIDTH> own = {};
        if (ADDS) there = read<DEFAULT>(to);
        if (OWN) {
            const u64 own_row = item * p.own_rows + (u32)row[Row::OWN_PLACE];
            own = read<DEFAULT>((const Neighbours<Y, WIDTH> *)((const Y *)p.own + own_row * p.n + j));
        }
        S sums[WIDTH];
        int held = 0;  // how many products were added since the last settle() of the sums (sum.cuh)
        const auto add = [&](const auto &value, int at) {
            const T factor = (T)row[at];
            const bool full = held == S::STEPS;
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) {
                if (full) sums[w].settle(m);
                sums[w].add((T)value(w), factor);
            }
            held = full ? 1 : held + 1;
        };
#pragma unroll
        for (int w = 0; w < WIDTH; ++w)
            if (S::STARTS) sums[w].start(row[Row::START]);
#pragma unroll
        for (int i = 0; i < K; ++i) add([&](int w) { return y[w][i]; }, Row::FACTORS + i);
        if (WAY != NONE) add([&](int w) { return turns[w]; }, Row::TURNS);
        if (SCALE != NONE) {
            add([&](int w) { return low[w]; }, Row::SCALED);
            add([&](int w) { return high[w]; }, Row::SCALED + 1);
        }
        if (ADDS) add([&](int w) { return S::pack((T)there.values[w]); }, Row::THERE);
        if (OWN) add([&](int w) { return S::pack((T)own.values[w]); }, Row::OWN_FACTOR);
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) there.values[w] = (O)sums[w].value(m);
        write<DEFAULT>(to, there);
    }
}
