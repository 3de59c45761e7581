// Key switching: the sum, over all digits, of the evaluated digit times its entry of the key
// (polygpu/_core/plans/switch.py).
#include "ntt_rows.cuh"
#include "quotient.cuh"
#include "rows.cuh"
#include "sum.cuh"
#include "tensor.cuh"

// digit_rows multiplies digits by a key and sums the products. It begins with the second pass of the digits' transform;
// start_rows (ntt_rows.cu) has computed the first pass. digits: (items, count, limbs, n). key: (at least count, 2,
// key_total, n). y: (items, 2, limbs, n). own: (items, own_rows, n), the evaluated operand. If a limb belongs to a
// digit, a row of `own` is this digit modulo the limb. digit_rows then reads this row instead of transforming the
// digit. more: (items, 2, own_rows, n). If ADDS is true, multiples of rows of `more` are added to the sums. If the sums
// of a limb are wanted in coefficients, digit_rows also computes the first pass of the inverse transform and writes
// lazy values (word.cuh). gridDim.x: (blocks of a row) * items. gridDim.y: entries of `rows`. blockIdx.y = 0 stands for
// the last entry of `rows`, because start_rows wrote the limb of this entry last. block: R::THREADS threads. Dynamic
// shared memory: R::SHARED_VALUES values, then a digit and two rows of the key, each as long as the block's part of a
// row.
//
// While a block works on a digit, each thread copies its chunks of the next digit, and of the key's rows for that
// digit, to shared memory.
struct LimbRow {
    u64 limb, key_row, digit, own_row;  // digit: index of the limb's digit, or `count` if the limb has no digit
    u64 factor;                         // multiplier of row own_row of `more`; if 0, nothing is added
    u64 inverse;                        // whether the sums are wanted in coefficients
};
struct DigitRowsParameters {
    const void *digits, *own, *key, *more;
    void *y;
    const Modulus *moduli;          // indexed by limb
    const LimbRow *rows;            // one for each limb of this launch; all limbs have the same word type
    const char *const *tables;      // for each entry of `rows`, the table of the limb's prime (tables.cu)
    u64 offset, inverse_offset, n;  // offsets: bytes in a table before the twiddles of the rows, forward and inverse
    u32 limbs, count, own_rows, key_total, starts_next;
};
template <class W, class R, bool ADDS>
__global__ void __launch_bounds__(R::THREADS, ROWS_BLOCKS<R>)
    digit_rows(const __grid_constant__ DigitRowsParameters p) {
    using T = typename W::Storage;
    using Tile = RowsTile<W, R>;
    using Chunk = typename Tile::Chunk;
    constexpr int COUNT = Tile::Side::COUNT, SIZE = Tile::Side::SIZE;
    constexpr u32 BLOCK = 1u << R::LOG_BLOCK_VALUES;
    static_assert(sizeof(Chunk) == 16, "what one copy moves");
    extern __shared__ __align__(16) unsigned char memory[];
    T *const digit = (T *)((typename W::Value *)memory + R::SHARED_VALUES), *const factors = digit + BLOCK;
    const u64 n = p.n;
    const u32 parts = (u32)(n >> R::LOG_BLOCK_VALUES), item = blockIdx.x / parts, part = blockIdx.x - item * parts;
    const u32 at = gridDim.y - 1 - blockIdx.y;
    const u64 first = (u64)part * BLOCK;
    const LimbRow row = p.rows[at];
    const u32 limb = (u32)row.limb;
    const Tile tile(memory, p.tables[at] + p.offset, part);
    const Modulus &m = p.moduli[limb];
    const W word(m);
    const T *const own = (const T *)p.own + ((u64)item * p.own_rows + row.own_row) * n + first;
    const T *const made = (const T *)p.digits + ((u64)item * p.count * p.limbs + limb) * n + first;
    const T *const key = (const T *)p.key + row.key_row * n + first;
    const auto fetch_digit = [&](u32 j) {
        const T *const from = j == row.digit ? own : made + (u64)j * p.limbs * n;
#pragma unroll
        for (int k = 0; k < COUNT; ++k)
            if (j < p.count) copy_async<16>(digit + tile.chunk(k), from + tile.chunk(k));
        end_copies();
    };
    const auto fetch_factors = [&](u32 j) {
        const T *const from = key + 2ull * j * p.key_total * n;
#pragma unroll
        for (int c = 0; c < 2; ++c)
#pragma unroll
            for (int k = 0; k < COUNT; ++k)
                if (j < p.count)
                    copy_async<16>(factors + c * BLOCK + tile.chunk(k), from + c * p.key_total * n + tile.chunk(k));
        end_copies();
    };
    await_previous();
    fetch_digit(0), fetch_factors(0);
    KeySum<W> sums[2][COUNT * SIZE];
    int added = 0;  // how many products were added since the last settle() of the sums (sum.cuh)
    if (ADDS && row.factor) {
        const T *const more = (const T *)p.more + (2ull * item * p.own_rows + row.own_row) * n + first;
#pragma unroll
        for (int c = 0; c < 2; ++c)
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                const Chunk chunk = read<STREAM>((const Chunk *)(more + (u64)c * p.own_rows * n + tile.chunk(k)));
#pragma unroll
                for (int i = 0; i < SIZE; ++i)
                    sums[c][k * SIZE + i].add(word, W::load(chunk.values[i], false), (T)row.factor);
            }
        added = 1;
    }
    for (u32 j = 0; j < p.count; ++j) {
        const bool is_own = j == row.digit;
        Chunk chunks[COUNT];
        T raw[R::VALUES];
        await_copies<1>();
        synchronise<R::sharers(0)>();  // waits for the copies of the other threads of the row
#pragma unroll
        for (int k = 0; k < COUNT; ++k)
            if (is_own) chunks[k] = *(const Chunk *)(digit + tile.chunk(k));
#pragma unroll
        for (int k = 0; k < R::VALUES; ++k)
            if (!is_own) raw[k] = digit[tile.value(k)];
        synchronise<R::sharers(0)>();  // all threads have read the digit: fetch_digit may overwrite it
        fetch_digit(j + 1);
        if (!is_own) tile.transform(word, raw, chunks);
        await_copies<1>();
        const bool full = added == KeySum<W>::STEPS;
        added = full ? 1 : added + 1;
#pragma unroll
        for (int c = 0; c < 2; ++c)
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                const Chunk factor = *(const Chunk *)(factors + c * BLOCK + tile.chunk(k));
#pragma unroll
                for (int i = 0; i < SIZE; ++i) {
                    KeySum<W> &sum = sums[c][k * SIZE + i];
                    if (full) sum.settle(word, m);
                    sum.add(word, W::load(chunks[k].values[i], !is_own), factor.values[i]);
                }
            }
        fetch_factors(j + 1);
    }
    start_next(p.starts_next);
    T *const y = (T *)p.y + (2ull * item * p.limbs + limb) * n + first;
    const u64 twiddles = p.inverse_offset - p.offset;  // distance from the twiddles of the forward pass, in bytes
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        T *const to = y + (u64)c * p.limbs * n;
        Chunk chunks[COUNT];
#pragma unroll
        for (int k = 0; k < COUNT; ++k)
#pragma unroll
            for (int i = 0; i < SIZE; ++i) {
                const typename W::Value value = sums[c][k * SIZE + i].value(word, m);
                chunks[k].values[i] = row.inverse ? W::store_lazy(value) : word.finish(value);
            }
        if (row.inverse) {
            T raw[R::VALUES];
            const char *const inverse = (const char *)tile.twiddles + twiddles;
            tile.template inverse<KeySum<W>::BOUND>(word, chunks, raw, (const typename W::Twiddle *)inverse);
#pragma unroll
            for (int k = 0; k < R::VALUES; ++k) to[tile.value(k)] = raw[k];
        } else {
#pragma unroll
            for (int k = 0; k < COUNT; ++k) write<DEFAULT>((Chunk *)(to + tile.chunk(k)), chunks[k]);
        }
    }
}

// An automorphism of evaluated values. It computes results at VALUES neighbouring points, beginning with point i. If
// VALUES > 1, n must be at least 2 * VALUES. A point is a power of a root of unity. Points are in bit-reversed order of
// their exponents. The results come from VALUES neighbouring points, the sources, beginning with point `from`. The
// exponents of the sources are order / VALUES apart, where `order` is the order of X in the ring. If results and
// sources are numbered by rising exponents, result k comes from source (first + multiplier * k) mod VALUES.
template <int VALUES> struct MovedPoints {
    static_assert(VALUES == 1 || VALUES == 2 || VALUES == 4);
    u32 from, first, multiplier;
    PG_DEVICE MovedPoints(u32 i, u32 n, u32 order, u32 multiplier) : multiplier(multiplier) {
        const u32 at = (u32)permuted_point(i, n, order, multiplier);
        from = at & ~(u32)(VALUES - 1), first = VALUES == 4 ? (at & 1) << 1 | (at >> 1 & 1) : at & (VALUES - 1);
    }
    template <class T> PG_DEVICE Neighbours<T, VALUES> arranged(Neighbours<T, VALUES> x) const {
        T *const v = x.values;
        if constexpr (VALUES == 2) exchange(first, v[0], v[1]);
        if constexpr (VALUES == 4) {  // the natural order of the four is 0 2 1 3
            const u32 reflects = multiplier >> 1 & 1, turn = reflects ? 0 - first : first;
            exchange(reflects, v[2], v[3]);
            const T start = v[0];
            if (turn & 1) v[0] = v[2], v[2] = v[1], v[1] = v[3], v[3] = start;
            exchange(turn >> 1 & 1, v[0], v[1]), exchange(turn >> 1 & 1, v[2], v[3]);
        }
        return x;
    }

  private:
    template <class T> static PG_DEVICE void exchange(u32 wanted, T &x, T &y) {
        const T old = x;
        x = wanted ? y : x, y = wanted ? old : y;
    }
};

// Computes sums of rotated ciphertexts after key switching: rotated_sums() of polygpu/_backends/base.py. A thread
// computes both components at VALUES neighbouring points of a limb. If `is_turned` is true, the digits of a term are
// multiplied by the term's key at the rotation's source points, and the products are rotated. If `is_turned` is false,
// the digits are rotated before they are multiplied.
//
// digits: (T, items, count, limbs, n), where T is the number of terms with a key, or 1 if all terms share the same
// digits. more: (terms, items, 2, more_rows, n), ciphertexts; the first axis has length 1 if all terms share the same
// ciphertexts. Multiples of `more` are added to the sums. weights: (number of weights, limbs, n).
//
// If RESULTS > 0, a result is a weighted sum of all terms, and y has shape (results, items, 2, limbs, n). A block
// computes RESULTS results. The weight of a term in result g is weights[places[term][first_result + g]]. If this place
// is NO_PLACE, result g leaves out the term. If RESULTS = 0, terms have no weights, and y has shape (sets, items, 2,
// limbs, n). A set is terms_of_set neighbouring terms. A block adds up the terms of one set.
//
// If `adds` is true, the sums are added to the previous values of y. gridDim.x: (n / (ROTATED_THREADS * VALUES),
// rounded up) * items * sets; if RESULTS > 0, there is one set. gridDim.y: entries of `rows`. block: ROTATED_THREADS
// threads. Rows of all arrays begin at multiples of VALUES residues in memory.
constexpr int ROTATED_TERMS = 32;     // terms of a launch, at most
constexpr int ROTATED_THREADS = 128;  // threads of a block
constexpr u64 NO_PLACE = ~0ull;
struct RotatedLimb {
    u64 limb, more_row, factor;  // factor: multiplier of row more_row of `more`; if 0, nothing is added
};
struct RotatedTerm {
    u64 has_key, digits, key_total;  // digits: the term's index along the first axis of the array `digits`
};
struct RotatedParameters {
    const void *digits, *more, *weights;
    const u64 *multipliers;
    void *y;
    const void *keys[ROTATED_TERMS];
    const Modulus *moduli;  // indexed by limb
    const RotatedLimb *rows;
    const RotatedTerm *terms;
    const u64 *key_rows;  // (terms, limbs)
    const u64 *places;    // (terms, all results)
    u64 n, order;
    u32 limbs, count, more_rows, items, terms_of_set, term_count, is_turned, own_more, first_result, result_count, adds;
};
template <class W, int RESULTS, int VALUES>
__global__ void __launch_bounds__(ROTATED_THREADS) rotated_sums(const __grid_constant__ RotatedParameters p) {
    using T = typename W::Storage;
    using Points = Neighbours<T, VALUES>;
    constexpr int KEPT = RESULTS ? RESULTS : 1, DIGITS = 2;  // DIGITS: how many digits are loaded together
    start_next(starts_early());
    await_previous();
    const u32 n = (u32)p.n, parts = (n / VALUES + ROTATED_THREADS - 1) / ROTATED_THREADS;
    const u32 at = blockIdx.x / parts, set = at / p.items, item = at - set * p.items;
    const u32 i = ((blockIdx.x - at * parts) * ROTATED_THREADS + threadIdx.x) * VALUES;
    if (i >= n) return;
    const RotatedLimb row = p.rows[blockIdx.y];
    const Modulus &m = p.moduli[row.limb];
    const W word(m);
    const u64 plane = (u64)p.limbs * n, place = row.limb * n;
    KeySum<W> results[KEPT][2][VALUES];
    T totals[2][VALUES] = {};
    int weighted = 0;  // how many products were added since the last settle() of the results (sum.cuh)
    const u32 start = set * p.terms_of_set, end = min(start + p.terms_of_set, p.term_count);
    for (u32 t = start; t < end; ++t) {
        const RotatedTerm term = p.terms[t];
        const MovedPoints<VALUES> moved(i, n, (u32)p.order, (u32)p.multipliers[t]);
        const bool moves_sums = p.is_turned || !term.has_key;
        // All weights are loaded before the first of them is used.
        Points weights[KEPT];
        u32 has_weight = 0;  // bit g: whether result g has this term
        if constexpr (RESULTS > 0) {
#pragma unroll
            for (int g = 0; g < RESULTS; ++g) {
                const u32 result = p.first_result + g;
                const u64 number = result < p.result_count ? p.places[t * p.result_count + result] : NO_PLACE;
                if (number == NO_PLACE) continue;
                weights[g] = read<STREAM>((const Points *)((const T *)p.weights + number * plane + place + i));
                has_weight |= 1u << g;
            }
        }
        KeySum<W> sums[2][VALUES];
        int added = 0;  // how many products were added since the last settle() of the sums (sum.cuh)
        const auto settle = [&] {
            if (++added <= KeySum<W>::STEPS) return;
            added = 1;
#pragma unroll
            for (int k = 0; k < VALUES; ++k) sums[0][k].settle(word, m), sums[1][k].settle(word, m);
        };
        const auto add = [&](int c, const Points &x, const Points &y) {
#pragma unroll
            for (int k = 0; k < VALUES; ++k) sums[c][k].add(word, W::load(x.values[k], false), y.values[k]);
        };
        if (row.factor) {
            const u64 first = (p.own_more ? t * p.items : 0) + item;
            const T *const more = (const T *)p.more + (2 * first * p.more_rows + row.more_row) * n + moved.from;
            Points factor, x = read<DEFAULT>((const Points *)more);
#pragma unroll
            for (int k = 0; k < VALUES; ++k) factor.values[k] = (T)row.factor;
            settle();
            add(0, moves_sums ? x : moved.arranged(x), factor);
            if (!term.has_key) add(1, read<DEFAULT>((const Points *)(more + (u64)p.more_rows * n)), factor);
        }
        if (term.has_key) {
            const T *x = (const T *)p.digits + (term.digits * p.items + item) * p.count * plane + place + moved.from;
            const T *w = (const T *)p.keys[t] + p.key_rows[t * p.limbs + row.limb] * n + (p.is_turned ? moved.from : i);
            const u64 half = term.key_total * n;
            for (u32 j = 0; j < p.count; j += DIGITS) {
                Points digits[DIGITS], factors[DIGITS][2];
#pragma unroll
                for (u32 k = 0; k < DIGITS; ++k, x += plane, w += 2 * half)
                    if (j + k < p.count) {
                        digits[k] = read<DEFAULT>((const Points *)x);
                        factors[k][0] = read<STREAM>((const Points *)w);
                        factors[k][1] = read<STREAM>((const Points *)(w + half));
                    }
#pragma unroll
                for (u32 k = 0; k < DIGITS; ++k)
                    if (j + k < p.count) {
                        const Points digit = p.is_turned ? digits[k] : moved.arranged(digits[k]);
                        settle();
                        add(0, digit, factors[k][0]), add(1, digit, factors[k][1]);
                    }
            }
        }
        Points values[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#pragma unroll
            for (int k = 0; k < VALUES; ++k) values[c].values[k] = word.finish(sums[c][k].value(word, m));
            if (moves_sums) values[c] = moved.arranged(values[c]);
        }
        if constexpr (RESULTS == 0) {
#pragma unroll
            for (int c = 0; c < 2; ++c)
#pragma unroll
                for (int k = 0; k < VALUES; ++k)
                    totals[c][k] =
                        (T)(t == start ? values[c].values[k] : add_mod(m, totals[c][k], values[c].values[k]));
        } else {
            const bool full = ++weighted > KeySum<W>::STEPS;
            if (full) weighted = 1;
#pragma unroll
            for (int g = 0; g < RESULTS; ++g)
#pragma unroll
                for (int c = 0; c < 2; ++c)
#pragma unroll
                    for (int k = 0; k < VALUES; ++k) {
                        KeySum<W> &sum = results[g][c][k];
                        if (full) sum.settle(word, m);
                        if (has_weight >> g & 1)
                            sum.add(word, W::load(values[c].values[k], false), weights[g].values[k]);
                    }
        }
    }
#pragma unroll
    for (int g = 0; g < KEPT; ++g) {
        const u32 result = RESULTS ? p.first_result + g : set;
        if (RESULTS && result >= p.result_count) return;
        T *const y = (T *)p.y + 2ull * ((u64)result * p.items + item) * plane + place + i;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            Points sum, old;
            if (p.adds) old = read<DEFAULT>((const Points *)(y + c * plane));
#pragma unroll
            for (int k = 0; k < VALUES; ++k) {
                const T value = RESULTS ? word.finish(results[g][c][k].value(word, m)) : totals[c][k];
                sum.values[k] = p.adds ? (T)add_mod(m, value, old.values[k]) : value;
            }
            write<DEFAULT>((Points *)(y + c * plane), sum);
        }
    }
}
