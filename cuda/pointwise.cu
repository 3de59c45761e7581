// Operations on residues one by one: arithmetic, permutations, products modulo the leaves of an incomplete transform. A
// thread computes one entry, or stores WIDTH neighbouring entries of a row at once. Entry e of the result is entry e %
// n of row e / n. Row r is modulo limb r % limbs. grid: entries / (256 * WIDTH * CHUNKS); a WIDTH or CHUNKS that a
// kernel does not have counts as 1. block: 256 threads.
#include "memory.cuh"
#include "ptx.cuh"
#include "quotient.cuh"
#include "rows.cuh"
#include "sum.cuh"

enum Op { ADD, SUB, NEG, MUL, MUL_ADD };

// What the moduli of a launch have in common. SHORT: all have at most 62 bits. ONLY_GOLDILOCKS: all are the Goldilocks
// prime. ANY: nothing.
enum Moduli { SHORT, ONLY_GOLDILOCKS, ANY };
// Returns a * b mod q. For q <= 2^32 the estimated quotient is exact or 1 too small.
template <class T, int MODULI = ANY> PG_DEVICE u64 product_mod(const Modulus &m, u64 a, u64 b) {
    if (sizeof(T) == 4) {
        const u64 z = a * b, r = z - __umul64hi(z, m.inverse64) * m.q;
        return min(r, r - m.q);
    }
    if (MODULI == ONLY_GOLDILOCKS || (MODULI == ANY && m.q == GOLDILOCKS)) return goldilocks_product(a, b);
    return MODULI == SHORT || m.bits <= 62 ? barrett_product(m, a, b) : mul_mod(m, a, b);
}

template <class T, int OP> PG_DEVICE u64 apply(const Modulus &m, u64 a, u64 b, u64 c) {
    static_assert(OP >= ADD && OP <= MUL_ADD, "an operation without its branch");
    if (OP == ADD) return add_mod(m, a, b);
    if (OP == SUB) return sub_mod(m, a, b);
    if (OP == NEG) return neg_mod(m, a);
    const u64 product = product_mod<T>(m, a, b);
    return OP == MUL ? product : add_mod(m, product, c);
}

template <class T> struct PointwiseParameters {
    const T *a, *b, *c;
    T *y;
    const Modulus *moduli;
    u64 n, b_length, entries;  // b_length: n, or 1 if b holds a scalar for each row
    u32 limbs, dense;
    Layout layout;  // the layout of a, b and c
};
template <class T, int OP, int WIDTH> __global__ void __launch_bounds__(256) pointwise(const PointwiseParameters<T> p) {
    using Item = Neighbours<T, WIDTH>;
    start_next(starts_early());
    const u64 e = ((u64)blockIdx.x * 256 + threadIdx.x) * WIDTH;
    if (e >= p.entries) return;
    const u64 row = quotient(e, p.n), j = e - row * p.n;
    u64 rows[3] = {row, row, row};
    if (!p.dense) p.layout.rows(row, p.limbs, rows);
    const Modulus &m = p.moduli[rest(row, p.limbs)];
    await_previous();
    Item values = read<DEFAULT>((const Item *)(p.a + rows[0] * p.n + j)), right = {}, added = {};
    if (OP == MUL_ADD) added = read<DEFAULT>((const Item *)(p.c + rows[2] * p.n + j));
    if (OP != NEG) {
        if (p.b_length == 1)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) right.values[i] = p.b[rows[1]];
        else right = read<DEFAULT>((const Item *)(p.b + rows[1] * p.n + j));
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
        values.values[i] = (T)apply<T, OP>(m, values.values[i], right.values[i], added.values[i]);
    write<DEFAULT>((Item *)(p.y + e), values);
}

// Computes `count` combinations. A combination is a sum of multiples of the operands; all combinations have the same
// operands, at most COMBINE_TERMS. A thread reads its entries of each operand once. A combination has `entries` entries
// in y. factors[(c * factors_each + i) * limbs + limb]: the factor of operand i in combination c, for a limb. constant:
// if has_constant is true, one residue for each row, which is added to entries 0, step, 2 * step, ... of the row. adds:
// whether the sums are added to the previous values of y. A block of threads computes CHUNKS * 256 * WIDTH neighbouring
// entries. If CHUNKS > 1, these entries lie in one row.
constexpr int COMBINE_TERMS = 8;
template <class T> struct CombineParameters {
    const T *x[COMBINE_TERMS];
    const T *factors, *constant;
    T *y;
    const Modulus *moduli;
    u64 n, entries, count, factors_each, step;
    u32 limbs, terms, adds, has_constant, dense;  // dense: whether operands have the same rows as a combination
    LayoutOf<COMBINE_TERMS + 1> layout;           // of the operands and of `constant`, for all batch axes of the result
};
template <class T, int MODULI> struct SumOf {
    using Type = Sum64;
};
template <> struct SumOf<u64, SHORT> {
    using Type = Sum62;
};
template <int MODULI> struct SumOf<u32, MODULI> {
    using Type = Sum32;
};
template <class T, int TERMS, int WIDTH, int CHUNKS, int MODULI>
__global__ void __launch_bounds__(256, 2) combine(const CombineParameters<T> p) {
    using Item = Neighbours<T, WIDTH>;
    constexpr u32 STEP = 256 * WIDTH;
    start_next(starts_early());
    const u64 e = (u64)blockIdx.x * (CHUNKS * STEP) + threadIdx.x * WIDTH;
    if (e >= p.entries) return;
    const u64 row = quotient(e, p.n), j = e - row * p.n, limb = rest(row, p.limbs), rows = quotient(p.entries, p.n);
    const Modulus m = p.moduli[limb];
    u64 own[TERMS];
    if (!p.dense) p.layout.rows(row, p.limbs, own);
    await_previous();
    Item x[TERMS][CHUNKS];
#pragma unroll
    for (int i = 0; i < TERMS; ++i)
#pragma unroll
        for (int k = 0; k < CHUNKS; ++k)
            if (i < (int)p.terms)
                x[i][k] = read<DEFAULT>((const Item *)(p.x[i] + (p.dense ? row : own[i]) * p.n + j + k * STEP));
    for (u64 c = 0; c < p.count; ++c) {
        T *const to = p.y + c * p.entries + e;
        const T *const factors = p.factors + c * p.factors_each * p.limbs + limb;
        const u64 number = p.has_constant ? p.constant[p.layout.row(COMBINE_TERMS, c * rows + row, p.limbs)] : 0;
        T factor[TERMS];
#pragma unroll
        for (int i = 0; i < TERMS; ++i) factor[i] = i < (int)p.terms ? factors[i * p.limbs] : 0;
#pragma unroll
        for (int k = 0; k < CHUNKS; ++k) {
            typename SumOf<T, MODULI>::Type sums[WIDTH];
            Item sum, old = {};
            if (p.adds) old = read<DEFAULT>((const Item *)(to + k * STEP));
#pragma unroll
            for (int i = 0; i < TERMS; ++i)
#pragma unroll
                for (int w = 0; w < WIDTH; ++w)
                    if (i < (int)p.terms) sums[w].add(x[i][k].values[w], factor[i]);
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) {
                u64 value = sums[w].value(m);
                if (p.adds) value = add_mod(m, value, old.values[w]);
                if (p.has_constant && rest(j + k * STEP + w, p.step) == 0) value = add_mod(m, value, number);
                sum.values[w] = (T)value;
            }
            write<DEFAULT>((Item *)(to + k * STEP), sum);
        }
    }
}

// Products of ciphertexts of two components: pair = (x_0 * y_0, x_0 * y_1 + x_1 * y_0) and square = x_1 * y_1. If
// SQUARE is true, y is x. adds: whether the products are added to the previous values of `pair` and `square`. has_more:
// whether `more` is added to `pair`; at most one of `adds` and has_more is true. component: the distance, in
// rows, of component 1 from component 0 in x, y and `more`; in `pair` the distance is `limbs`. pair_rows, square_rows:
// the distance, in rows, from one item to the next.
template <class T> struct TensorParameters {
    const T *x, *y, *more;
    T *pair, *square;
    const Modulus *moduli;
    u64 n, entries;  // entries: how many entries `square` has
    u64 component[3], pair_rows, square_rows;
    u32 limbs, adds, has_more;
    Layout layout;  // the layout of x, y and `more`, without the axis of components
};
template <class T, bool SQUARE, int WIDTH, int MODULI>
__global__ void __launch_bounds__(256) tensor(const TensorParameters<T> p) {
    using Item = Neighbours<T, WIDTH>;
    start_next(starts_early());
    const u64 e = ((u64)blockIdx.x * 256 + threadIdx.x) * WIDTH;
    if (e >= p.entries) return;
    const u64 row = quotient(e, p.n), j = e - row * p.n, item = quotient(row, p.limbs), limb = row - item * p.limbs;
    u64 rows[3];
    p.layout.rows(row, p.limbs, rows);
    const Modulus m = p.moduli[limb];
    const auto from = [&](const T *x, int operand, int c) {
        return read<DEFAULT>((const Item *)(x + (rows[operand] + c * p.component[operand]) * p.n + j));
    };
    Item *const to[3] = {(Item *)(p.pair + (item * p.pair_rows + limb) * p.n + j),
                         (Item *)(p.pair + (item * p.pair_rows + p.limbs + limb) * p.n + j),
                         (Item *)(p.square + (item * p.square_rows + limb) * p.n + j)};
    await_previous();
    const Item x0 = from(p.x, 0, 0), x1 = from(p.x, 0, 1);
    Item y0 = x0, y1 = x1, sums[3] = {};
    if (!SQUARE) y0 = from(p.y, 1, 0), y1 = from(p.y, 1, 1);
    if (p.has_more) sums[0] = from(p.more, 2, 0), sums[1] = from(p.more, 2, 1);
    if (p.adds)
#pragma unroll
        for (int c = 0; c < 3; ++c) sums[c] = read<DEFAULT>(to[c]);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const auto add = [&](int c, u64 product) { sums[c].values[i] = (T)add_mod(m, sums[c].values[i], product); };
        const u64 a0 = x0.values[i], a1 = x1.values[i], b0 = y0.values[i], b1 = y1.values[i];
        const u64 mixed = product_mod<T, MODULI>(m, a0, b1);
        add(0, product_mod<T, MODULI>(m, a0, b0)), add(2, product_mod<T, MODULI>(m, a1, b1));
        add(1, add_mod(m, mixed, SQUARE ? mixed : product_mod<T, MODULI>(m, a1, b0)));
    }
#pragma unroll
    for (int c = 0; c < 3; ++c) write<DEFAULT>(to[c], sums[c]);
}

// scale_by_powers: y[j] = x[j] * first * step^j for each row. Row i uses entry i % rows of `first` and of `step`. Rows
// of x and y begin at multiples of x_pitch and y_pitch. A row of y is cut into runs of 2^log_run entries. run_step:
// entries from the beginning of one run to that of the next. The kernel fill_powers makes a table. A row of the table
// holds the near factors, first * step^k for k < 2^log_near, then the far factors, step^(2^log_near * k) for k = 0, 1,
// .... Each first * step^j is the product of a near factor and a far factor.
template <class T> struct FillPowersParameters {
    const T *first, *step;
    T *powers;
    const Modulus *moduli;
    u64 entries, row;  // row: number of entries in a row of the table
    u32 log_near, limbs;
};
template <class T> __global__ void __launch_bounds__(256) fill_powers(const FillPowersParameters<T> p) {
    start_next(starts_early());
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= p.entries) return;
    const u64 row = e / p.row, i = e - row * p.row;
    const Modulus &m = p.moduli[rest(row, p.limbs)];
    await_previous();
    const bool near = i >> p.log_near == 0;
    u64 power = near ? p.first[row] : 1, square = p.step[row];
    u64 exponent = near ? i : (i - (1ull << p.log_near)) << p.log_near;
    for (; exponent; exponent >>= 1, square = mul_mod(m, square, square))
        if (exponent & 1) power = mul_mod(m, power, square);
    p.powers[e] = (T)power;
}
template <class T> struct ScaleParameters {
    const T *x, *powers;
    T *y;
    const Modulus *moduli;
    u64 n, entries, rows, row, x_pitch, y_pitch, run_step;
    u32 limbs, log_near, log_run;
};
// A block of threads computes CHUNKS * 256 * WIDTH neighbouring entries. If CHUNKS > 1, these entries lie in one row.
// Since 2^log_near divides 256 * WIDTH, a thread then needs the same factors first * step^k, with k < 2^log_near, for
// all its chunks.
template <class T, int WIDTH, int CHUNKS, int MODULI>
__global__ void __launch_bounds__(256) scale_by_powers(const ScaleParameters<T> p) {
    using Item = Neighbours<T, WIDTH>;
    constexpr u32 STEP = 256 * WIDTH;
    start_next(starts_early());
    const u64 first = (u64)blockIdx.x * (CHUNKS * STEP) + (CHUNKS == 1 ? threadIdx.x * WIDTH : 0);
    if (first >= p.entries) return;
    const u64 row = quotient(first, p.n), size = 1ull << p.log_near;
    const u64 start = first - row * p.n + (CHUNKS == 1 ? 0 : threadIdx.x * WIDTH);
    const Modulus &m = p.moduli[rest(row, p.limbs)];
    const T *const near = p.powers + rest(row, p.rows) * p.row, *const far = near + size;
    const T *const x = p.x + row * p.x_pitch;
    T *const y = p.y + row * p.y_pitch;
    await_previous();
    Item chunks[CHUNKS];
#pragma unroll
    for (int k = 0; k < CHUNKS; ++k) chunks[k] = read<DEFAULT>((const Item *)(x + start + k * STEP));
    u64 powers[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) powers[i] = near[(start + i) & (size - 1)];
#pragma unroll
    for (int k = 0; k < CHUNKS; ++k) {
        const u64 j = start + k * STEP, run = j >> p.log_run;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            const u64 factor = product_mod<T, MODULI>(m, powers[i], far[(j + i) >> p.log_near]);
            chunks[k].values[i] = (T)product_mod<T, MODULI>(m, chunks[k].values[i], factor);
        }
        write<DEFAULT>((Item *)(y + run * p.run_step + (j - (run << p.log_run))), chunks[k]);
    }
}

// Parameters of two kernels that reorder each row, `permute` and `mul_monomial`. numbers: the multipliers of `permute`,
// or the exponents of `mul_monomial`. An item is `rows` rows that share one number. Item i uses number i % count, which
// is entry (i % count) * step of `numbers`.
template <class T> struct ReorderParameters {
    const T *x;
    const u64 *numbers;
    T *y;
    const Modulus *moduli;
    u64 n, order, entries, count, step;
    u32 rows, limbs;

    PG_DEVICE u64 number(u64 row) const {
        const u64 item = quotient(row, rows);
        return numbers[(item < count ? item : rest(item, count)) * step];
    }
};
// Automorphisms by multipliers (_core/plans/permutation.py): y[j] = x[k] for k = j * multiplier mod order, but -x[k -
// n] if k >= n. If EVALUATED is true, entries are values at points in bit-reversed order, and k is permuted_point(j)
// (quotient.cuh). If EVALUATED is false, k grows by the multiplier from one of a thread's WIDTH entries to the next.
template <class T, bool EVALUATED, int WIDTH>
__global__ void __launch_bounds__(256) permute(const ReorderParameters<T> p) {
    start_next(starts_early());
    const u64 e = ((u64)blockIdx.x * 256 + threadIdx.x) * WIDTH, n = p.n;
    if (e >= p.entries) return;
    const u64 row = quotient(e, n), j = e - row * n;
    const Modulus &m = p.moduli[rest(row, p.limbs)];
    const T *const x = p.x + row * n;
    T values[WIDTH];
    await_previous();
    const u64 multiplier = p.number(row);
    u64 next = EVALUATED ? 0 : product_modulo(j, multiplier, p.order);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const u64 k = EVALUATED ? permuted_point(j + i, n, p.order, multiplier) : next;
        values[i] = k < n ? x[k] : (T)neg_mod(m, x[k - n]);
        next += multiplier;
        if (next >= p.order) next -= p.order;
    }
    write<DEFAULT>((Neighbours<T, WIDTH> *)(p.y + e), pack<WIDTH>(values));
}
// y = X^e * x, or X^e * x - x if LESS is true. Exponents: see reduced_exponent.
template <class T, bool LESS, int WIDTH>
__global__ void __launch_bounds__(256) mul_monomial(const ReorderParameters<T> p) {
    start_next(starts_early());
    const u64 e = ((u64)blockIdx.x * 256 + threadIdx.x) * WIDTH, n = p.n;
    if (e >= p.entries) return;
    const u64 row = quotient(e, n), j = e - row * n;
    const Modulus &m = p.moduli[rest(row, p.limbs)];
    const T *const x = p.x + row * n;
    T values[WIDTH];
    await_previous();
    const u64 exponent = reduced_exponent((i64)p.number(row), p.order);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const u64 moved = mul_monomial_at(m, x, n, p.order, exponent, j + i);
        values[i] = (T)(LESS ? sub_mod(m, moved, x[j + i]) : moved);
    }
    write<DEFAULT>((Neighbours<T, WIDTH> *)(p.y + e), pack<WIDTH>(values));
}

// y[j] = x[index[j]] in each row of n entries.
template <class T> struct TakeParameters {
    const T *x;
    const u64 *index;
    T *y;
    u64 n, entries;
};
template <class T> __global__ void __launch_bounds__(256) take(const TakeParameters<T> p) {
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= p.entries) return;
    const u64 j = rest(e, p.n);
    p.y[e] = p.x[e - j + p.index[j]];
}

// Products modulo the leaves X^leaf_size - constant. A thread computes one coefficient.
template <class T> struct LeavesParameters {
    const T *a, *b;
    T *y;
    const u64 *const *constants;  // constants[limb][leaf]
    const Modulus *moduli;
    u64 n, entries;
    u32 limbs, leaf_size, dense;
    Layout layout;  // the layout of a and b
};
template <class T> __global__ void __launch_bounds__(256) multiply_eval(const LeavesParameters<T> p) {
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x, n = p.n;
    if (e >= p.entries) return;
    const u64 row = quotient(e, n), j = e - row * n, leaf = j / p.leaf_size, k = j % p.leaf_size;
    const u64 row_a = p.dense ? row : p.layout.row(0, row, p.limbs);
    const u64 row_b = p.dense ? row : p.layout.row(1, row, p.limbs);
    const u64 limb = rest(row, p.limbs);
    const Modulus &m = p.moduli[limb];
    const T *u = p.a + row_a * n + leaf * p.leaf_size, *v = p.b + row_b * n + leaf * p.leaf_size;
    u64 low = 0, high = 0;
    for (u64 i = 0; i < p.leaf_size; ++i) {
        const u64 product = mul_mod(m, u[i], v[(k + p.leaf_size - i) % p.leaf_size]);
        if (i <= k) low = add_mod(m, low, product);
        else high = add_mod(m, high, product);
    }
    p.y[e] = (T)add_mod(m, low, mul_mod(m, high, p.constants[limb][leaf]));
}
