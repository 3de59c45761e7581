// Blind rotation modulo 2^32 or 2^64 in doubles, with rounding errors (docs/math.md, "Products in doubles").
//
// A ciphertext stays in shared memory as words of 32 bits, or in registers if each ciphertext has its own key. One
// block of threads holds ITEMS ciphertexts of K components, with S::LANES threads for each component. A transform reads
// the n coefficients of a row as n/2 complex numbers (fft_product.cu). The inverse transform runs the rounds backwards.
// Its butterflies multiply before they add (x + w * y and x - w * y), so a butterfly has six FMAs in both directions.
// Inverse butterflies of this form leave out one factor for each coefficient, the twist. Torus::add multiplies by the
// twist. cpu/fft_torus.hpp does the same operations in the same order.
#include "complex.cuh"
#include "ptx.cuh"
#include "tile.cuh"

constexpr int KEY_ROWS = 8;   // rows of a spectrum of the key: leaf i (entry i of the spectrum) is in row i % KEY_ROWS
constexpr int KEY_PARTS = 2;  // a step's matrix is fetched in this many parts, with KEY_ROWS / KEY_PARTS rows each

// Returns the place of leaf KEY_ROWS * i + v within row v, the same for every v below KEY_ROWS. If each thread holds 8,
// 16 or 32 neighbouring leaves, reads that shared memory serves at the same time use different banks.
PG_DEVICE u32 key_place(u32 i) { return i ^ (i >> 3 & 3); }

// The twiddles of a forward round. even(j) for j = 0, 1, 2, 3, ... are the twiddles of entries 1, 2, 4, 6, ...
// (tile.cuh). The twiddle of an odd entry above 1 is i times that of the even entry before it, where i^2 = -1.
template <class Even> struct TreeTwiddles {
    const Even &even;
    PG_DEVICE Complex<double> operator[](u32 entry) const {
        const Complex<double> w = even(entry / 2);
        return entry > 1 && entry % 2 ? Complex<double>{-w.im, w.re} : w;
    }
};

// A butterfly replaces x and y by x + w * y and x - w * y. finish_butterfly takes s = x + w * y.
PG_DEVICE void finish_butterfly(Complex<double> &x, Complex<double> &y, Complex<double> s) {
    y = {fma(2., x.re, -s.re), fma(2., x.im, -s.im)}, x = s;
}
PG_DEVICE void inverse_butterfly(Complex<double> &x, Complex<double> &y, Complex<double> w) {
    finish_butterfly(x, y, multiply_add(y, w, x));
}
// A butterfly with the twiddle -i * w.
PG_DEVICE void turned_butterfly(Complex<double> &x, Complex<double> &y, Complex<double> w) {
    finish_butterfly(x, y, {fma(y.im, w.re, fma(y.re, w.im, x.re)), fma(y.im, w.im, fma(-y.re, w.re, x.im))});
}

// Computes the stages of an inverse round on 2^RADIX values, beginning with the stage that joins neighbours in
// `values`. Stage 0 has one twiddle, twiddle(0). Let h = 2^(STAGE - 1). A later stage has 2 * h twiddles: twiddle(h +
// k) for k < h, then -i * twiddle(h + k) for k < h. LAST: whether this is the first inverse round, which undoes the
// last forward round; the first twiddle of every stage is then 1.
template <int RADIX, bool LAST, int STAGE = 0, class Twiddle>
PG_DEVICE void inverse_torus_stages(Complex<double> *values, const Twiddle &twiddle) {
    constexpr int HALF = 1 << STAGE, COUNT = STAGE ? HALF / 2 : 1;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
        const bool is_one = LAST && k == 0;
        const Complex<double> w = is_one ? Complex<double>{1, 0} : twiddle(STAGE ? COUNT + k : 0);
#pragma unroll
        for (int i = k; i < 1 << RADIX; i += 2 * HALF) {
            Complex<double> &x = values[i], &y = values[i + HALF];
            if (is_one) finish_butterfly(x, y, x + y);
            else inverse_butterfly(x, y, w);
            if constexpr (STAGE > 0) {
                Complex<double> &u = values[i + COUNT], &v = values[i + COUNT + HALF];
                if (is_one) finish_butterfly(u, v, {u.re + v.im, u.im - v.re});
                else turned_butterfly(u, v, w);
            }
        }
    }
    if constexpr (STAGE + 1 < RADIX) inverse_torus_stages<RADIX, LAST, STAGE + 1>(values, twiddle);
}

// A block transforms ROWS rows, with S::LANES threads for each row. INVERSE: whether there are tables for the inverse,
// too. PAIRED: whether a warp has half of the lanes of each of two rows; `move` then calls `transpose`.
template <class S, int ROWS, bool INVERSE, bool PAIRED> struct TorusTransform {
    using Value = Complex<double>;
    static constexpr int V = S::VALUES, LANES = S::LANES, M = S::LENGTH, LAST = S::ROUNDS - 1;
    // If a thread has 8 values, it needs so few twiddles that they stay in registers.
    static constexpr bool KEEPS = V == 8;
    static constexpr int ROUNDS = (1 + INVERSE) * LAST, TWIST = INVERSE ? M / 2 + 1 : 0,
                         TABLES = ROUNDS * (M / 2) + TWIST, KEPT = KEEPS ? ROUNDS * V / 2 + (INVERSE ? V : 0) : 1;
    static constexpr int ROOM = PAIRED ? 2 * 16 * 17 : M + LANES;  // complex numbers in shared memory for a row
    static constexpr int IN_SHARED = KEEPS ? 0 : TABLES;           // complex numbers in shared memory for tables
    static_assert(LANES >= 32, "a row has whole warps");

    Value *const tables, *const rooms;       // in shared memory: `tables` has IN_SHARED numbers, `rooms` ROWS * ROOM
    const double *const first, *const last;  // constant twiddles: of forward round 0, and of the first inverse round
    Place<S> place;
    Value kept[KEPT];  // twiddles of all rounds, then the twist
    // from: the twiddles of all rounds, in the order of twiddle(), then entries 0 ... M / 2 of the twist.
    PG_DEVICE TorusTransform(const Value *from, Value *t, Value *r, const double *f, const double *l, u32 row, u32 lane)
        : tables(t), rooms(r), first(f), last(l) {
        place.row = row, place.lane = lane;
        if constexpr (KEEPS) {
#pragma unroll
            for (int i = 0; i < ROUNDS * V / 2; ++i) kept[i] = read<READ_ONLY>(from + i * LANES + lane);
            if constexpr (INVERSE)
#pragma unroll
                for (int k = 0; k < V; ++k) kept[ROUNDS * V / 2 + k] = twist_of(from + ROUNDS * (M / 2), k);
        } else {
            for (u32 i = threadIdx.x; i < TABLES; i += ROWS * LANES) tables[i] = read<READ_ONLY>(from + i);
        }
    }

    // A barrier for the threads of a row, or of two rows if PAIRED.
    PG_DEVICE void synchronise_row() const {
        if constexpr (PAIRED) synchronise_named(1 + place.row / 2, 2 * LANES);
        else if constexpr (LANES == 32) __syncwarp();
        else synchronise_named(1 + place.row, LANES);
    }
    // A barrier for SHARERS consecutive threads of a row: for their warp if SHARERS <= 32, else synchronise_row().
    template <int SHARERS> PG_DEVICE void synchronise_some() const {
        if constexpr (SHARERS <= 32) __syncwarp();
        else synchronise_row();
    }
    PG_DEVICE u32 index(int k) const { return place.template group_index<0>(k) + place.template offset<0>(k); }
    static constexpr __device__ u32 distance(int k) {  // index(k) - place.lane
        return LANES * (k >> S::radix(0)) + Place<S>::template offset<0>(k);
    }
    // Returns the place from which this thread reads value v before round LAST.
    PG_DEVICE u32 last_place(int v) const { return place.template shared<LAST, S::log_gap(LAST)>(v); }

    // Transposes 32 x 32 numbers in quarters of 16 x 16. Each thread holds a row of the 32 x 32 numbers. Each half of
    // the threads (HALF: 0 or 1) first transposes its quarter on the diagonal.
    template <int HALF> PG_DEVICE void transpose(Value *values) const {
        constexpr int NEAR = 16 * HALF, FAR = 16 - NEAR;
        Value *const own = rooms + place.row * ROOM + HALF * 272, *const other = own + (1 - 2 * HALF) * 272;
        const u32 h = place.lane % 16;
#pragma unroll
        for (int r = 0; r < 16; ++r) own[r * 17 + h] = values[NEAR + r];
        __syncwarp();
#pragma unroll
        for (int r = 0; r < 16; ++r) values[NEAR + r] = own[h * 17 + r];
        synchronise_row();
#pragma unroll
        for (int r = 0; r < 16; ++r) other[r * 17 + h] = values[FAR + r];
        synchronise_row();
#pragma unroll
        for (int r = 0; r < 16; ++r) values[FAR + r] = own[h * 17 + r];
        __syncwarp();
    }
    // Moves values from their places in round FROM to those in round TO, as exchange() of tile.cuh does. If this
    // exchange has another gap (log_gap) than the previous one, a barrier is needed before the values are written.
    template <int FROM, int TO> PG_DEVICE void move(Value *values) const {
        if constexpr (PAIRED) {
            if (__shfl_sync(~0u, place.lane, 0) < 16) transpose<0>(values);
            else transpose<1>(values);
        } else {
            constexpr int LATER = FROM < TO ? TO : FROM, LOG_GAP = S::log_gap(LATER);
            if constexpr (S::log_gap(FROM) != S::log_gap(FROM + 1)) synchronise_some<S::sharers(FROM)>();
#pragma unroll
            for (int k = 0; k < V; ++k) rooms[place.template shared<FROM, LOG_GAP>(k)] = values[k];
            synchronise_some<S::sharers(LATER - 1)>();
#pragma unroll
            for (int k = 0; k < V; ++k) values[k] = rooms[place.template shared<TO, LOG_GAP>(k)];
        }
    }
    // Returns twiddle i of the V / 2 twiddles that this thread needs in a round. `round` = 0 ... LAST - 1 stands for
    // forward rounds 1 ... LAST; `round` = LAST ... 2 * LAST - 1 stands for inverse rounds LAST - 1 ... 0.
    PG_DEVICE Value twiddle(int round, int i) const {
        const int at = round * (V / 2) + i;
        return KEEPS ? kept[at] : tables[at * LANES + place.lane];
    }
    // Entry j of the twist is exp(-i pi j / (2 * M)) times a scale. The table has only entries j <= M / 2. For j > M /
    // 2, entry j is entry M - j with the real and the imaginary part exchanged and negated.
    PG_DEVICE Value twist_of(const Value *half, int k) const {
        const u32 j = index(k);
        if (!(k >> (S::radix(0) - 1) & 1)) return half[j];
        const Value mirrored = half[M - j];
        return {-mirrored.im, -mirrored.re};
    }
    PG_DEVICE Value twist(int k) const {
        return KEEPS ? kept[ROUNDS * V / 2 + k] : twist_of(tables + ROUNDS * (M / 2), k);
    }
    static PG_DEVICE Value constant(const double *of, int i) { return {of[2 * i], of[2 * i + 1]}; }
    // Computes forward round ROUND and the rounds after it. Calls before_last() just before round LAST.
    template <int ROUND = 0, class Before> PG_DEVICE void forward(Value *values, const Before &before_last) const {
        constexpr int RADIX = S::radix(ROUND);
        const Complex128 word{Modulus()};
        const auto even = [&](int i) { return ROUND ? twiddle(ROUND - 1, i) : constant(first, i); };
        if (ROUND == LAST) before_last();
#pragma unroll
        for (int group = 0; group < V; group += 1 << RADIX)
            forward_stages<Complex128, RADIX, 1, 0>(word, values + group, TreeTwiddles<decltype(even)>{even});
        if constexpr (ROUND < LAST) {
            move<ROUND, ROUND + 1>(values);
            forward<ROUND + 1>(values, before_last);
        }
    }
    template <int ROUND = LAST> PG_DEVICE void inverse(Value *values) const {
        constexpr int RADIX = S::radix(ROUND);
#pragma unroll
        for (int group = 0; group < V; group += 1 << RADIX)
            inverse_torus_stages<RADIX, ROUND == LAST>(values + group, [&](int i) {
                return ROUND == LAST ? constant(last, i) : twiddle(ROUNDS - 1 - ROUND, group / 2 + i);
            });
        if constexpr (ROUND > 0) {
            move<ROUND, ROUND - 1>(values);
            inverse<ROUND - 1>(values);
        }
    }
};

// Returns the place of one leaf in a matrix of shape (KEY_PARTS, columns, KEY_ROWS / KEY_PARTS, levels, k, n / 2 /
// KEY_ROWS). The leaf is value v of lane `lane`, in the polynomial of row (component `from`, level) and column
// `column`.
template <class S>
PG_DEVICE u32 matrix_place(u32 lane, int v, u32 levels, u32 k, u32 columns, u32 level, u32 from, u32 column) {
    constexpr u32 OF_PART = KEY_ROWS / KEY_PARTS;
    const u32 part = v % KEY_ROWS / OF_PART, row = v % OF_PART;
    const u32 at = (((part * columns + column) * OF_PART + row) * levels + level) * k + from;
    return at * (S::LENGTH / KEY_ROWS) + key_place(lane * (S::VALUES / KEY_ROWS) + v / KEY_ROWS);
}

// X^e times a polynomial of N words. Argument j stands for coefficient lane + j of the product. If j < wrap, it is sign
// * from[j]; else it is -sign * from[j - N].
template <class T, u32 N> struct Turned {
    const T *from;
    u32 wrap, sign;  // sign: 1 or -1, the sign for j < wrap
    PG_DEVICE Turned(const T *own, u32 e, u32 lane) {
        const u32 k = lane - e;
        from = own + (k & (N - 1)), wrap = N - (k & (N - 1)), sign = k & N ? ~0u : 1;
    }
    PG_DEVICE T value(u32 j) const { return (j >= wrap ? from - N : from)[j]; }  // the coefficient without its sign
    PG_DEVICE bool is_negative(u32 j) const { return (j >= wrap) != (sign != 1); }
    PG_DEVICE T plus(u32 j, T z) const { return value(j) * (j >= wrap ? 0 - sign : sign) + z; }
};

template <class T> struct TorusParameters {
    const T *x;                  // (items, K, n)
    const Complex<double> *key;  // (count, ...), or if OWN (items, count, ...); the other axes: see matrix_place
    T *y;
    const i64 *exponents;           // (items, width): e_0; then one for each step if OWN is false
    const Complex<double> *tables;  // see TorusTransform
    double first[32], last[32];     // constant twiddles: see TorusTransform
    u32 items, count, width, bits, offset;
    u32 begins;  // whether the kernel multiplies by X^e_0; if not, e_0 counts as 0
};
// If OWN is true, each ciphertext c has its own matrices, and a step computes c = matrix * c. If OWN is false, all
// ciphertexts share the matrices, and a step computes c = c + matrix * (X^e - 1) * c. If SPLIT is true, the K blocks of
// a cluster have one component of a ciphertext each.
template <class T, class S, int K, int LEVELS, int ITEMS, bool STAGED, bool OWN, bool SPLIT> struct Torus {
    using Value = Complex<double>;
    static constexpr int V = S::VALUES, LANES = S::LANES, M = S::LENGTH, N = 2 * M;
    static constexpr int HERE = SPLIT ? 1 : K;  // components of a ciphertext in a block
    static constexpr int OF_ITEM = LANES * HERE, THREADS = OF_ITEM * ITEMS;
    // PAIRED: whether a warp has half of the lanes of each of two components. The components then exchange digits by
    // shuffles.
    static constexpr bool PAIRED = K == 2 && LANES == 32 && V == 32 && LEVELS == 1 && !SPLIT;
    using Transform = TorusTransform<S, HERE * ITEMS, true, PAIRED>;
    // Words in shared memory for a component. If PAIRED, the two components of a warp begin in different banks.
    static constexpr int HELD = OWN ? 0 : PAIRED ? N + 16 : N;
    static constexpr int STEP = LEVELS * K * K * M;  // complex numbers of a step's matrix
    static constexpr int PART = LEVELS * K * HERE * M / KEY_PARTS;
    static constexpr int INBOX = SPLIT ? (K - 1) * M : 0;  // complex numbers that arrive from the other components
    static_assert(V >= KEY_ROWS && OF_ITEM % 32 == 0, "whole rows of a key, and whole warps");
    // Numbers of named barriers: components come first, then ciphertexts. A component of one warp needs no named
    // barrier.
    static constexpr int FIRST_OF_ITEMS = LANES == 32 ? 1 : 1 + HERE * ITEMS;
    static_assert(FIRST_OF_ITEMS + ITEMS <= 16, "barriers have numbers from 1 to 15");
    static_assert(!(OWN && STAGED) || ITEMS == 1, "a block stages one matrix");
    static_assert(!SPLIT || (STAGED && ITEMS == 1), "a cluster has one ciphertext, and stages the key");

    // Dynamic shared memory, in this order: if STAGED, a step's matrix; if SPLIT, two inboxes for digits from other
    // blocks; tables; rooms, through which transforms exchange values; ciphertexts; an mbarrier and a counter for each
    // part of a step; an mbarrier for each inbox.
    unsigned char *const memory;
    const TorusParameters<T> &p;
    u32 item, component;
    u64 at;  // index of the ciphertext
    Transform transform;
    PG_DEVICE u64 wanted_item() const { return SPLIT ? blockIdx.x / K : (u64)blockIdx.x * ITEMS + item; }
    static PG_DEVICE u32 own_component() {
        if (SPLIT) return blockIdx.x % K;
        const u32 t = threadIdx.x % OF_ITEM;
        return PAIRED ? t / 16 % 2 : t / LANES;
    }
    static PG_DEVICE u32 own_lane() {
        const u32 t = threadIdx.x % OF_ITEM;
        return PAIRED ? t / 32 * 16 + t % 16 : t % LANES;
    }
    PG_DEVICE Value *staged() const { return (Value *)memory; }
    PG_DEVICE Value *inbox(u32 exchange) const { return staged() + STAGED * KEY_PARTS * PART + exchange % 2 * INBOX; }
    PG_DEVICE Value *tables() const { return inbox(0) + 2 * INBOX; }
    PG_DEVICE Value *rooms() const { return tables() + Transform::IN_SHARED; }
    PG_DEVICE u32 *held() const { return (u32 *)(rooms() + HERE * ITEMS * Transform::ROOM); }
    PG_DEVICE u64 *barriers() const { return (u64 *)(held() + HERE * ITEMS * HELD); }
    PG_DEVICE u32 *counters() const { return (u32 *)(barriers() + KEY_PARTS); }
    PG_DEVICE u64 *arrivals(u32 exchange) const { return (u64 *)(counters() + KEY_PARTS) + exchange % 2; }
    PG_DEVICE Torus(unsigned char *m, const TorusParameters<T> &parameters)
        : memory(m),
          p(parameters),
          item(threadIdx.x / OF_ITEM),
          component(own_component()),
          transform(p.tables, tables(), rooms(), p.first, p.last, SPLIT ? 0 : item * K + component, own_lane()) {
        const u64 wanted = wanted_item();
        at = wanted < p.items ? wanted : p.items - 1;
    }
    PG_DEVICE void synchronise_item() const {
        if constexpr (OF_ITEM == 32) __syncwarp();
        else if constexpr (PAIRED) transform.synchronise_row();
        else synchronise_named(FIRST_OF_ITEMS + item, OF_ITEM);
    }

    // ---- the key ----

    PG_DEVICE const Value *matrix(u32 step) const { return p.key + ((OWN ? at * p.count : 0) + step) * STEP; }
    // Fetches part `part` of the matrix of a step into shared memory. If SPLIT, fetches only the entries of this part
    // that make component `component` of the result.
    PG_DEVICE void fetch(u32 step, int part) const {
        if (step >= p.count) return;
        expect_bytes(barriers() + part, PART * sizeof(Value));
        copy_bulk(staged() + part * PART, matrix(step) + (SPLIT ? part * K + component : part) * PART,
                  PART * sizeof(Value), barriers() + part);
    }
    // Counts the warps that have read part `part` of the matrix. The last of them fetches this part for the next step.
    // So the ciphertexts of a block need not wait for each other.
    PG_DEVICE void release(u32 step, int part) const {
        finish_before_copies();
        __syncwarp();
        if (threadIdx.x % 32 == 0 && add_in_block(counters() + part, 1) == (step + 1) * (THREADS / 32) - 1)
            fetch(step + 1, part);
    }
    // Waits until all threads have read all parts, then fetches all parts of the next step.
    PG_DEVICE void release(u32 step) const {
        finish_before_copies();
        __syncthreads();
        if (threadIdx.x == 0)
#pragma unroll
            for (int part = 0; part < KEY_PARTS; ++part) fetch(step + 1, part);
    }
    // Multiplies the digits of all components at one level by the key's entries for this component, and adds the
    // products to `sums`. At level 0, `sums` is overwritten instead. The product of this component's own digits comes
    // first in each sum. If LEVELS is 1, `sums` and `digits` are the same array.
    PG_DEVICE void multiply(const Value *key, Value *digits, Value *sums, int level, u32 step) const {
        const u32 lane = transform.place.lane, exchange = step * LEVELS + level;
        const auto factor = [&](u32 from, int v) {
            return key[matrix_place<S>(lane, v, LEVELS, K, HERE, level, from, SPLIT ? 0 : component)];
        };
        if constexpr (SPLIT) {
#pragma unroll
            for (int i = 1; i < K; ++i) {  // sends to the block in whose inbox this component is number i
                const OtherBlock other(memory, component >= i ? component - i : component + K - i);
                Value *const there = inbox(exchange) + (i - 1) * M + lane;
#pragma unroll
                for (int v = 0; v < V; ++v) other.store(there + v * LANES, digits[v], arrivals(exchange));
            }
            await_bulk(arrivals(exchange), exchange / 2 & 1);
            if (threadIdx.x == 0) expect_bytes(arrivals(exchange), INBOX * sizeof(Value));
        } else if constexpr (!PAIRED) {
#pragma unroll
            for (int v = 0; v < V; ++v) rooms()[transform.last_place(v)] = digits[v];
            synchronise_item();
        }
#pragma unroll
        for (int part = 0; part < KEY_PARTS; ++part) {
            if (STAGED && part > 0) await_bulk(barriers() + part, step & 1);
#pragma unroll
            for (int v = 0; v < V; ++v) {
                if (v % KEY_ROWS / (KEY_ROWS / KEY_PARTS) != part) continue;
                const Value own = digits[v];
                Value sum = multiply_add(own, factor(component, v), level ? sums[v] : Value{0, 0});
#pragma unroll
                for (int i = 1; i < K; ++i) {
                    const u32 from = component + i < K ? component + i : component + i - K;
                    Value other;
                    if constexpr (SPLIT) other = inbox(exchange)[(i - 1) * M + v * LANES + lane];
                    else if constexpr (PAIRED)
                        other = {__shfl_xor_sync(~0u, own.re, 16), __shfl_xor_sync(~0u, own.im, 16)};
                    else other = rooms()[transform.last_place(v) + ((int)from - (int)component) * Transform::ROOM];
                    sum = multiply_add(other, factor(from, v), sum);
                }
                sums[v] = sum;
            }
            if (STAGED && PAIRED) release(step, part);
        }
        if constexpr (STAGED && !PAIRED) {
            if (level + 1 == LEVELS) release(step);
            else synchronise_item();
        } else if constexpr (!PAIRED) synchronise_item();
    }

    // ---- rotation ----

    // Multiplies values by the twist and rounds the products to integers. If OWN is true, `current` becomes these
    // integers. If OWN is false, the integers are added to `own`, and `current` becomes the sums.
    PG_DEVICE void add(Value *values, u32 *own, u32 *current) const {
        u32 largest = 0;
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const Value x = values[k] = multiply_add(values[k], transform.twist(k), Value{0, 0});
            largest = max(largest, max(size_of(x.re), size_of(x.im)));
        }
        const auto before = [&](int k, u32 more) { return OWN ? 0 : own[transform.index(k) + more]; };
        if (largest < 0x43e00000) {  // below 2^63, as all values are in practice
#pragma unroll
            for (int k = 0; k < V; ++k) {
                current[k] = before(k, 0) + (u32)__double2ll_rn(values[k].re);
                current[k + V] = before(k, M) + (u32)__double2ll_rn(values[k].im);
            }
        } else {
#pragma unroll
            for (int k = 0; k < V; ++k) {
                current[k] = before(k, 0) + nearest_word<u32>(values[k].re);
                current[k + V] = before(k, M) + nearest_word<u32>(values[k].im);
            }
        }
        if constexpr (!OWN)
#pragma unroll
            for (int k = 0; k < V; ++k)
                own[transform.index(k)] = current[k], own[transform.index(k) + M] = current[k + V];
    }
    static PG_DEVICE u32 size_of(double x) { return (u32)__double2hiint(x) & 0x7fffffff; }  // grows with |x|
    // Returns digit `level` of a number. x: the number plus p.offset.
    PG_DEVICE double digit(u32 x, int level) const {
        const u32 shift = 32 - p.bits * (level + 1);
        if (LEVELS == 1) return (double)((i32)x >> shift);
        const u32 half = 1u << (p.bits - 1);
        return (double)(i32)((x >> shift & (2 * half - 1)) - half);
    }
    PG_DEVICE void run() const {
        u32 *const own = held() + transform.place.row * HELD;
        const i64 *const exponents = p.exponents + at * p.width;
        const T *const x = p.x + (at * K + component) * N;
        if (STAGED && threadIdx.x == 0) {
#pragma unroll
            for (int part = 0; part < KEY_PARTS; ++part) start_barrier(barriers() + part), counters()[part] = 0;
            if constexpr (SPLIT)
                for (u32 i = 0; i < 2; ++i) start_barrier(arrivals(i));
            end_barrier_starts();
            if constexpr (SPLIT)
                for (u32 i = 0; i < 2; ++i) expect_bytes(arrivals(i), INBOX * sizeof(Value));
#pragma unroll
            for (int part = 0; part < KEY_PARTS; ++part) fetch(0, part);
        }
        if constexpr (SPLIT) synchronise_cluster();  // the other blocks have started their barriers, too
        u32 current[2 * V];
        const u32 first = p.begins ? (u32)exponents[0] : 0;
#pragma unroll
        for (int k = 0; k < 2 * V; ++k) {
            const u32 j = transform.index(k % V) + k / V * M, from = j - first;
            constexpr int SHIFT = 8 * (sizeof(T) - 4);
            const T value = x[from & (N - 1)] + (SHIFT ? (T)1 << (SHIFT ? SHIFT - 1 : 0) : 0);
            const u32 word = (u32)(value >> SHIFT);
            current[k] = from & N ? 0 - word : word;
            if constexpr (!OWN) own[j] = current[k];
        }
        __syncthreads();  // waits until mbarriers and tables are written
        u32 next = !OWN && p.count ? (u32)exponents[1] : 0;
        for (u32 step = 0; step < p.count; ++step) {
            const u32 e = next;
            if (!OWN && step + 1 < p.count) next = (u32)exponents[2 + step];
            const Value *const key = STAGED ? staged() : matrix(step);
            Value sums[V];
            for (int level = 0; level < LEVELS; ++level) {
                Value values[V];
                Value *const digits = LEVELS == 1 ? sums : values;
                const Turned<u32, N> turned(own, e, transform.place.lane);
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    if constexpr (OWN) {
                        digits[k] = {digit(current[k] + p.offset, level), digit(current[k + V] + p.offset, level)};
                        continue;
                    }
                    const u32 j = transform.index(k), d = Transform::distance(k);
                    const u32 low = LEVELS == 1 ? current[k] : own[j], high = LEVELS == 1 ? current[k + V] : own[j + M];
                    digits[k] = {digit(turned.plus(d, p.offset - low), level),
                                 digit(turned.plus(d + M, p.offset - high), level)};
                }
                // Just before the last round, waits for the first part of the key, which the products need.
                transform.forward(digits, [&] {
                    if (STAGED) await_bulk(barriers(), step & 1);
                });
                multiply(key, digits, sums, level, step);
            }
            transform.inverse(sums);
            add(sums, own, current);
            if constexpr (!OWN) transform.synchronise_row();
        }
        if (wanted_item() >= p.items) return;
        T *const y = p.y + (at * K + component) * N;
#pragma unroll
        for (int k = 0; k < 2 * V; ++k) y[transform.index(k % V) + k / V * M] = (T)current[k] << 8 * (sizeof(T) - 4);
    }
};
// Computes the whole blind rotation of `items` ciphertexts. grid: items / ITEMS. block: Torus::THREADS threads.
template <class T, class S, int K, int LEVELS, int ITEMS, bool STAGED, bool OWN>
__global__ void __launch_bounds__((Torus<T, S, K, LEVELS, ITEMS, STAGED, OWN, false>::THREADS))
    torus_rotation(const __grid_constant__ TorusParameters<T> p) {
    extern __shared__ __align__(16) unsigned char memory[];
    Torus<T, S, K, LEVELS, ITEMS, STAGED, OWN, false>(memory, p).run();
}
// torus_rotation with a cluster of K blocks for each ciphertext. grid: K * items.
#if defined(PG_SIMULATOR) || __CUDA_ARCH__ >= 900
template <class T, class S, int K, int LEVELS, bool OWN>
__global__ void __cluster_dims__(K) __launch_bounds__((Torus<T, S, K, LEVELS, 1, true, OWN, true>::THREADS))
    torus_rotation_split(const __grid_constant__ TorusParameters<T> p) {
    extern __shared__ __align__(16) unsigned char memory[];
    Torus<T, S, K, LEVELS, 1, true, OWN, true>(memory, p).run();
}
#endif

// ---- keys of groups of bits ----

constexpr int COMBINED_STAGES = 4;  // polynomials of a key that are in shared memory at a time
constexpr int MOST_GROUP = 8;       // bits of a group, at most

template <class T> struct CombineParameters {
    const T *keys;         // (steps, 2^group, components, levels, components, n)
    Complex<double> *y;    // (items, count, ...); the other axes: see matrix_place
    const i64 *exponents;  // (items, width), beginning with the exponent of the first bit of step 0
    const Complex<double> *tables;
    double first[32];  // see TorusTransform
    u32 items, count, width, k, levels, group;
    u32 bits;  // bits of all steps together; the last group may be shorter
};
// Each step has a group of bits, and a matrix for each subset A of the group. For each step, the kernel computes the
// sum over all A of X^(sum of e_i for i in A) times the matrix of A. The sum is exact modulo 2^w (w: bits of T). Then
// it is transformed. A block computes one polynomial of a step for ITEMS ciphertexts, and reads the key once for all of
// them.
template <class T, class S, int ITEMS, bool STAGED> struct TorusCombination {
    using Value = Complex<double>;
    using Transform = TorusTransform<S, ITEMS, false, false>;
    static constexpr int V = S::VALUES, LANES = S::LANES, M = S::LENGTH, N = 2 * M, THREADS = LANES * ITEMS;
    static constexpr int ROOMS = ITEMS * Transform::ROOM * (int)sizeof(Value),
                         STAGES = STAGED ? COMBINED_STAGES * N * (int)sizeof(T) : 0;

    // Dynamic shared memory, in this order: polynomials of the key, or later the values that a transform exchanges;
    // tables; an mbarrier for each polynomial in shared memory.
    unsigned char *const memory;
    const CombineParameters<T> &p;
    Transform transform;
    PG_DEVICE Value *tables() const { return (Value *)(memory + (ROOMS > STAGES ? ROOMS : STAGES)); }
    PG_DEVICE u64 *barriers() const { return (u64 *)(tables() + Transform::IN_SHARED); }
    PG_DEVICE T *staged(u32 set) const { return (T *)memory + set % COMBINED_STAGES * N; }
    PG_DEVICE TorusCombination(unsigned char *m, const CombineParameters<T> &parameters)
        : memory(m),
          p(parameters),
          transform(p.tables, tables(), (Value *)memory, p.first, nullptr, threadIdx.x / LANES, threadIdx.x % LANES) {}

    PG_DEVICE void run() const {
        const u32 sets = (p.items + ITEMS - 1) / ITEMS, polynomials = p.k * p.levels * p.k;
        const u32 polynomial = blockIdx.x / sets % polynomials, step = blockIdx.x / sets / polynomials;
        const u32 size = min(p.group, p.bits - step * p.group),
                  count = 1u << size;  // size: bits of this group; count: matrices of this group
        const u64 wanted = (u64)(blockIdx.x % sets) * ITEMS + transform.place.row;
        const u64 at = wanted < p.items ? wanted : p.items - 1;
        const i64 *const exponents = p.exponents + at * p.width + step * p.group;
        u32 powers[MOST_GROUP];
#pragma unroll
        for (int i = 0; i < MOST_GROUP; ++i) powers[i] = (u32)i < size ? (u32)exponents[i] : 0;
        const T *const keys = p.keys + ((u64)(step << p.group) * polynomials + polynomial) * N;
        const auto key = [&](u32 set) { return keys + (u64)set * (polynomials * N); };
        const auto fetch = [&](u32 set) {
            u64 *const barrier = barriers() + set % COMBINED_STAGES;
            if (set >= count) return;
            expect_bytes(barrier, N * sizeof(T));
            copy_bulk(staged(set), key(set), N * sizeof(T), barrier);
        };
        if (STAGED && threadIdx.x == 0) {
            for (int i = 0; i < COMBINED_STAGES; ++i) start_barrier(barriers() + i);
            end_barrier_starts();
            for (u32 set = 0; set < COMBINED_STAGES; ++set) fetch(set);
        }
        __syncthreads();  // waits until mbarriers and tables are written
        T sums[2 * V] = {};
        for (u32 set = 0; set < count; ++set) {
            u32 e = 0;
#pragma unroll
            for (int i = 0; i < MOST_GROUP; ++i) e += set >> i & 1 ? powers[i] : 0;
            if (STAGED) await_bulk(barriers() + set % COMBINED_STAGES, set / COMBINED_STAGES & 1);
            const Turned<T, N> turned(STAGED ? staged(set) : key(set), e, transform.place.lane);
#pragma unroll
            for (int first = 0; first < 2 * V; first += 8) {
                T values[8];
#pragma unroll
                for (int k = 0; k < 8; ++k) values[k] = turned.value(place_of(first + k));
#pragma unroll
                for (int k = 0; k < 8; ++k)
                    sums[first + k] = turned.is_negative(place_of(first + k)) ? sums[first + k] - values[k]
                                                                              : sums[first + k] + values[k];
            }
            if constexpr (STAGED) {
                finish_before_copies();
                __syncthreads();
                if (threadIdx.x == 0) fetch(set + COMBINED_STAGES);
            }
        }
        Value values[V];
#pragma unroll
        for (int k = 0; k < V; ++k) values[k] = {number(sums[k]), number(sums[k + V])};
        transform.forward(values, [] {});
        if (wanted >= p.items) return;
        Value *const y = p.y + (at * p.count + step) * (polynomials * M);
        const u32 column = polynomial % p.k, row = polynomial / p.k;
#pragma unroll
        for (int v = 0; v < V; ++v)
            y[matrix_place<S>(transform.place.lane, v, p.levels, p.k, p.k, row % p.levels, row / p.levels, column)] =
                values[v];
    }
    static constexpr __device__ u32 place_of(int k) { return Transform::distance(k % V) + k / V * M; }
    static PG_DEVICE double number(u32 x) { return (double)(i32)x; }
    static PG_DEVICE double number(u64 x) { return (double)(i64)x; }
};
// grid: count * k * levels * k * (items / ITEMS, rounded up). block: TorusCombination::THREADS threads.
template <class T, class S, int ITEMS, bool STAGED>
__global__ void __launch_bounds__((TorusCombination<T, S, ITEMS, STAGED>::THREADS))
    torus_combination(const __grid_constant__ CombineParameters<T> p) {
    extern __shared__ __align__(16) unsigned char memory[];
    TorusCombination<T, S, ITEMS, STAGED>(memory, p).run();
}
