// Blind rotation modulo 2^32 or 2^64 in doubles, with rounding errors (docs/math.md, "Products in doubles").
//
// A ciphertext stays in shared memory, as words of 32 bits. One block of threads holds ITEMS ciphertexts of K
// components, S::LANES threads for each component. A transform takes the n coefficients of a row as n/2 complex numbers
// (fft_product.cu). The inverse one takes the rounds backwards, but multiplies before it adds, x + w y and x - w y, so
// that both directions have six FMAs a butterfly; what is missing is a factor for each coefficient, the twist.
// cpu/fft_torus.hpp does the same operations in the same order.
#include "complex.cuh"
#include "ptx.cuh"
#include "tile.cuh"

constexpr int KEY_ROWS = 8;   // of a spectrum: leaf i is in row i % KEY_ROWS
constexpr int KEY_PARTS = 2;  // of the matrices of a step that are fetched one by one, so many rows each

// Where leaf KEY_ROWS i + v lies in row v. Threads of 8, 16 and 32 neighbouring leaves each meet different banks.
PG_DEVICE u32 key_place(u32 i) { return i ^ (i >> 3 & 3); }

// The twiddles of a forward round, of which even[i] are those of entries 1, 2, 4, 6, ... (tile.cuh). An odd entry has i
// times the twiddle of the even one before it.
template <class Even> struct TreeTwiddles {
    const Even &even;
    PG_DEVICE Complex<double> operator[](u32 entry) const {
        const Complex<double> w = even(entry / 2);
        return entry > 1 && entry % 2 ? Complex<double>{-w.im, w.re} : w;
    }
};

// x + w y and x - w y.
PG_DEVICE void finish_butterfly(Complex<double> &x, Complex<double> &y, Complex<double> s) {
    y = {fma(2., x.re, -s.re), fma(2., x.im, -s.im)}, x = s;
}
PG_DEVICE void inverse_butterfly(Complex<double> &x, Complex<double> &y, Complex<double> w) {
    finish_butterfly(x, y, multiply_add(y, w, x));
}
PG_DEVICE void turned_butterfly(Complex<double> &x, Complex<double> &y, Complex<double> w) {  // by -i w
    finish_butterfly(x, y, {fma(y.im, w.re, fma(y.re, w.im, x.re)), fma(y.im, w.im, fma(-y.re, w.re, x.im))});
}

// Stages of an inverse round on 2^RADIX values that are 2^LOG_H apart, from the shortest distance on. twiddle(i): that
// of stage 0, then from 2^(STAGE - 1) on the first half of those of a stage; the others are -i times these.
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

template <class T> struct TorusParameters {
    const T *x;                  // (items, K, n)
    const Complex<double> *key;  // (count, KEY_ROWS, LEVELS, K, K, n / 2 / KEY_ROWS)
    T *y;
    const i64 *exponents;           // (items, 1 + count)
    const Complex<double> *tables;  // twiddles of rounds (Torus::twiddle), the first half of the twist, and one more
    double first[32], last[32];     // constant twiddles: of forward round 0, and of the first inverse round
    u32 items, count, bits, offset;
};
template <class T, class S, int K, int LEVELS, int ITEMS, bool STAGED> struct Torus {
    using Value = Complex<double>;
    static constexpr int V = S::VALUES, LANES = S::LANES, M = S::LENGTH, N = 2 * M, LAST = S::ROUNDS - 1;
    static constexpr int OF_ITEM = LANES * K, THREADS = OF_ITEM * ITEMS;
    // A warp has half of the lanes of both components. They exchange digits by shuffles, and a transform of two rounds
    // moves a quarter of its values at a time, in place.
    static constexpr bool PAIRED = K == 2 && LANES == 32 && V == 32 && LEVELS == 1;
    // Few threads have few twiddles each, which stay in registers.
    static constexpr bool KEEPS = V == 8;
    static constexpr int ROUNDS = 2 * LAST, TABLES = ROUNDS * (M / 2) + M / 2 + 1,
                         KEPT = KEEPS ? ROUNDS * V / 2 + V : 1;
    static constexpr int ROOM = PAIRED ? 2 * 16 * 17 : M + LANES;  // numbers in shared memory for a component
    // Words in shared memory for a component. The components of a warp begin in different banks.
    static constexpr int HELD = PAIRED ? N + 16 : N;
    static constexpr int STEP = LEVELS * K * K * M, PART = STEP / KEY_PARTS;  // numbers of a key
    static_assert(V >= KEY_ROWS && LANES >= 32 && OF_ITEM % 32 == 0, "whole rows of a key, and whole warps");

    unsigned char *const memory;
    const TorusParameters<T> &p;
    Place<S> place;
    u32 item, component;
    Value kept[KEPT];  // twiddles, then the twist
    PG_DEVICE Torus(unsigned char *m, const TorusParameters<T> &parameters) : memory(m), p(parameters) {
        const u32 t = threadIdx.x % OF_ITEM;
        item = threadIdx.x / OF_ITEM;
        component = PAIRED ? t / 16 % 2 : t / LANES;
        place.lane = PAIRED ? t / 32 * 16 + t % 16 : t % LANES;
        place.row = item * K + component;
        if constexpr (KEEPS) {
#pragma unroll
            for (int i = 0; i < ROUNDS * V / 2; ++i) kept[i] = read<READ_ONLY>(p.tables + i * LANES + place.lane);
#pragma unroll
            for (int k = 0; k < V; ++k) kept[ROUNDS * V / 2 + k] = twist_of(p.tables + ROUNDS * (M / 2), k);
        } else {
            for (u32 i = threadIdx.x; i < TABLES; i += THREADS) tables()[i] = read<READ_ONLY>(p.tables + i);
        }
    }

    // Dynamic shared memory: a step of the key if STAGED, tables unless in registers, rooms, ciphertexts, an mbarrier
    // and a counter for each part of a step.
    PG_DEVICE Value *staged() const { return (Value *)memory; }
    PG_DEVICE Value *tables() const { return staged() + (STAGED ? STEP : 0); }
    PG_DEVICE Value *rooms() const { return tables() + (KEEPS ? 0 : TABLES); }
    PG_DEVICE u32 *held() const { return (u32 *)(rooms() + K * ITEMS * ROOM); }
    PG_DEVICE u64 *barriers() const { return (u64 *)(held() + K * ITEMS * HELD); }
    PG_DEVICE u32 *counters() const { return (u32 *)(barriers() + KEY_PARTS); }

    PG_DEVICE void synchronise_item() const {
        if constexpr (OF_ITEM == 32) __syncwarp();
        else synchronise_named(1 + item, OF_ITEM);
    }
    // Of SHARERS threads of a component, which follow each other.
    template <int SHARERS> PG_DEVICE void synchronise_some() const {
        if constexpr (SHARERS <= 32) __syncwarp();
        else synchronise_item();
    }
    PG_DEVICE u32 index(int k) const { return place.template group_index<0>(k) + place.template offset<0>(k); }

    // ---- transforms ----

    // Transposes 32 x 32 numbers, a thread's values being a row: by quarters of 16 x 16, of which each half of the
    // threads first takes the one on the diagonal.
    template <int HALF> PG_DEVICE void transpose(Value *values) const {
        constexpr int NEAR = 16 * HALF, FAR = 16 - NEAR;
        Value *const own = rooms() + place.row * ROOM + HALF * 272, *const other = own + (1 - 2 * HALF) * 272;
        const u32 h = place.lane % 16;
#pragma unroll
        for (int r = 0; r < 16; ++r) own[r * 17 + h] = values[NEAR + r];
        __syncwarp();
#pragma unroll
        for (int r = 0; r < 16; ++r) values[NEAR + r] = own[h * 17 + r];
        synchronise_item();
#pragma unroll
        for (int r = 0; r < 16; ++r) other[r * 17 + h] = values[FAR + r];
        synchronise_item();
#pragma unroll
        for (int r = 0; r < 16; ++r) values[FAR + r] = own[h * 17 + r];
        __syncwarp();
    }
    // As exchange() of tile.cuh. While the layout stays, a thread writes only where it has read itself.
    template <int FROM, int TO> PG_DEVICE void move(Value *values) const {
        if constexpr (PAIRED) {
            if (__shfl_sync(~0u, place.lane, 0) < 16) transpose<0>(values);
            else transpose<1>(values);
        } else {
            constexpr int LATER = FROM < TO ? TO : FROM, LOG_GAP = S::log_gap(LATER);
            if constexpr (S::log_gap(FROM) != S::log_gap(FROM + 1)) synchronise_some<S::sharers(FROM)>();
            Value *const all = rooms();
#pragma unroll
            for (int k = 0; k < V; ++k) all[place.template shared<FROM, LOG_GAP>(k)] = values[k];
            synchronise_some<S::sharers(LATER - 1)>();
#pragma unroll
            for (int k = 0; k < V; ++k) values[k] = all[place.template shared<TO, LOG_GAP>(k)];
        }
    }
    // Twiddle i of V / 2 of this thread in a round: 0 ... LAST - 1 are forward rounds 1 ... LAST, then come inverse
    // rounds LAST - 1 ... 0.
    PG_DEVICE Value twiddle(int round, int i) const {
        const int at = round * (V / 2) + i;
        return KEEPS ? kept[at] : tables()[at * LANES + place.lane];
    }
    // The twist is exp(-i pi j / (2 M)) times a scale. Of the second half it has the parts of number M - j, exchanged.
    PG_DEVICE Value twist_of(const Value *half, int k) const {
        const u32 j = index(k);
        if (!(k >> (S::radix(0) - 1) & 1)) return half[j];
        const Value mirrored = half[M - j];
        return {-mirrored.im, -mirrored.re};
    }
    PG_DEVICE Value twist(int k) const {
        return KEEPS ? kept[ROUNDS * V / 2 + k] : twist_of(tables() + ROUNDS * (M / 2), k);
    }
    static PG_DEVICE Value constant(const double *of, int i) { return {of[2 * i], of[2 * i + 1]}; }
    // Waits for the first part of the key before the last round, so that the products find it.
    template <int ROUND = 0> PG_DEVICE void forward(Value *values, u32 step) const {
        constexpr int RADIX = S::radix(ROUND);
        const Complex128 word{Modulus()};
        const auto even = [&](int i) { return ROUND ? twiddle(ROUND - 1, i) : constant(p.first, i); };
        if (STAGED && ROUND == LAST) await_bulk(barriers(), step & 1);
#pragma unroll
        for (int group = 0; group < V; group += 1 << RADIX)
            forward_stages<Complex128, RADIX, 1, 0>(word, values + group, TreeTwiddles<decltype(even)>{even});
        if constexpr (ROUND < LAST) {
            move<ROUND, ROUND + 1>(values);
            forward<ROUND + 1>(values, step);
        }
    }
    template <int ROUND = LAST> PG_DEVICE void inverse(Value *values) const {
        constexpr int RADIX = S::radix(ROUND);
#pragma unroll
        for (int group = 0; group < V; group += 1 << RADIX)
            inverse_torus_stages<RADIX, ROUND == LAST>(values + group, [&](int i) {
                return ROUND == LAST ? constant(p.last, i) : twiddle(ROUNDS - 1 - ROUND, group / 2 + i);
            });
        if constexpr (ROUND > 0) {
            move<ROUND, ROUND - 1>(values);
            inverse<ROUND - 1>(values);
        }
    }

    // ---- the key ----

    // Fetches part `part` of the matrix of a step into shared memory.
    PG_DEVICE void fetch(u32 step, int part) const {
        if (step < p.count)
            copy_bulk(staged() + part * PART, p.key + (u64)step * STEP + part * PART, PART * sizeof(Value),
                      barriers() + part);
    }
    // The last warp that has read a part fetches the same part of the next step, so that the ciphertexts of a block
    // need not wait for each other.
    PG_DEVICE void release(u32 step, int part) const {
        __syncwarp();
        if (threadIdx.x % 32 == 0 && add_in_block(counters() + part, 1) == (step + 1) * (THREADS / 32) - 1)
            fetch(step + 1, part);
    }
    // Waits until all threads have read all parts, and fetches those of the next step.
    PG_DEVICE void release(u32 step) const {
        __syncthreads();
        if (threadIdx.x == 0)
#pragma unroll
            for (int part = 0; part < KEY_PARTS; ++part) fetch(step + 1, part);
    }
    PG_DEVICE Value factor(const Value *key, int level, u32 from, int v) const {
        constexpr int ROW = M / KEY_ROWS;
        const u32 row = ((v % KEY_ROWS * LEVELS + level) * K + from) * K + component;
        return key[row * ROW + key_place(place.lane * (V / KEY_ROWS) + v / KEY_ROWS)];
    }
    // sums += the products of all components' digits of a level with the key's entries for this component, its own
    // digits first. Of one level, sums are the digits' places.
    PG_DEVICE void multiply(const Value *key, Value *digits, Value *sums, int level, u32 step) const {
        // Digits go where the thread read them last.
        const auto at = [&](int v) { return place.template shared<LAST, S::log_gap(LAST)>(v); };
        if constexpr (!PAIRED) {
#pragma unroll
            for (int v = 0; v < V; ++v) rooms()[at(v)] = digits[v];
            synchronise_item();
        }
#pragma unroll
        for (int part = 0; part < KEY_PARTS; ++part) {
            if (STAGED && part > 0) await_bulk(barriers() + part, step & 1);
#pragma unroll
            for (int v = 0; v < V; ++v) {
                if (v % KEY_ROWS / (KEY_ROWS / KEY_PARTS) != part) continue;
                const Value own = digits[v];
                Value sum = multiply_add(own, factor(key, level, component, v), level ? sums[v] : Value{0, 0});
#pragma unroll
                for (int i = 1; i < K; ++i) {
                    const u32 from = component + i < K ? component + i : component + i - K;
                    Value other;
                    if constexpr (PAIRED) other = {__shfl_xor_sync(~0u, own.re, 16), __shfl_xor_sync(~0u, own.im, 16)};
                    else other = rooms()[at(v) + ((int)from - (int)component) * ROOM];
                    sum = multiply_add(other, factor(key, level, from, v), sum);
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

    // X^e times this component, which is read along its numbers from place.lane on. It wraps round once, where its sign
    // changes.
    struct Turned {
        const u32 *from;
        u32 wrap, sign;  // sign: 1 or -1, before it wraps
        PG_DEVICE Turned(const u32 *own, u32 e, u32 lane) {
            const u32 k = lane - e;
            from = own + (k & (N - 1)), wrap = N - (k & (N - 1)), sign = k & N ? ~0u : 1;
        }
        // Number lane + j, plus z
        PG_DEVICE u32 plus(u32 j, u32 z) const {
            const bool wrapped = j >= wrap;
            return (wrapped ? from - N : from)[j] * (wrapped ? 0 - sign : sign) + z;
        }
    };
    static constexpr __device__ u32 distance(int k) {  // of index(k) from place.lane
        return LANES * (k >> S::radix(0)) + Place<S>::template offset<0>(k);
    }
    // current = own += the nearest integers to values times the twist
    PG_DEVICE void add(Value *values, u32 *own, u32 *current) const {
        u32 largest = 0;
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const Value x = values[k] = multiply_add(values[k], twist(k), Value{0, 0});
            largest = max(largest, max(size_of(x.re), size_of(x.im)));
        }
        if (largest < 0x43e00000) {  // below 2^63, as all but made-up values are
#pragma unroll
            for (int k = 0; k < V; ++k) {
                current[k] = own[index(k)] + (u32)__double2ll_rn(values[k].re);
                current[k + V] = own[index(k) + M] + (u32)__double2ll_rn(values[k].im);
            }
        } else {
#pragma unroll
            for (int k = 0; k < V; ++k) {
                current[k] = own[index(k)] + nearest_word<u32>(values[k].re);
                current[k + V] = own[index(k) + M] + nearest_word<u32>(values[k].im);
            }
        }
#pragma unroll
        for (int k = 0; k < V; ++k) own[index(k)] = current[k], own[index(k) + M] = current[k + V];
    }
    static PG_DEVICE u32 size_of(double x) { return (u32)__double2hiint(x) & 0x7fffffff; }  // grows with |x|
    // The digit in a number to which p.offset has been added.
    PG_DEVICE double digit(u32 x, int level) const {
        const u32 shift = 32 - p.bits * (level + 1);
        if (LEVELS == 1) return (double)((i32)x >> shift);
        const u32 half = 1u << (p.bits - 1);
        return (double)(i32)((x >> shift & (2 * half - 1)) - half);
    }
    PG_DEVICE void run() const {
        u32 *const own = held() + place.row * HELD;
        const u64 wanted = (u64)blockIdx.x * ITEMS + item, at = wanted < p.items ? wanted : p.items - 1;
        const i64 *const exponents = p.exponents + at * (1 + p.count);
        const T *const x = p.x + (at * K + component) * N;
        if (STAGED && threadIdx.x == 0) {
#pragma unroll
            for (int part = 0; part < KEY_PARTS; ++part) start_barrier(barriers() + part), counters()[part] = 0;
            end_barrier_starts();
#pragma unroll
            for (int part = 0; part < KEY_PARTS; ++part) fetch(0, part);
        }
        u32 current[2 * V];
        const u32 first = (u32)exponents[0];
#pragma unroll
        for (int k = 0; k < 2 * V; ++k) {
            const u32 j = index(k % V) + k / V * M, from = j - first;
            constexpr int SHIFT = 8 * (sizeof(T) - 4);
            const T value = x[from & (N - 1)] + (SHIFT ? (T)1 << (SHIFT ? SHIFT - 1 : 0) : 0);
            const u32 word = (u32)(value >> SHIFT);
            own[j] = current[k] = from & N ? 0 - word : word;
        }
        __syncthreads();  // mbarriers and tables are there
        u32 next = p.count ? (u32)exponents[1] : 0;
        for (u32 step = 0; step < p.count; ++step) {
            const u32 e = next;
            if (step + 1 < p.count) next = (u32)exponents[2 + step];
            const Value *const key = STAGED ? staged() : p.key + (u64)step * STEP;
            Value sums[V];
            for (int level = 0; level < LEVELS; ++level) {
                Value values[V];
                Value *const digits = LEVELS == 1 ? sums : values;
                const Turned turned(own, e, place.lane);
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    const u32 j = index(k), d = distance(k), low = LEVELS == 1 ? current[k] : own[j];
                    const u32 high = LEVELS == 1 ? current[k + V] : own[j + M];
                    digits[k] = {digit(turned.plus(d, p.offset - low), level),
                                 digit(turned.plus(d + M, p.offset - high), level)};
                }
                forward(digits, step);
                multiply(key, digits, sums, level, step);
            }
            inverse(sums);
            add(sums, own, current);
            synchronise_item();
        }
        if (wanted >= p.items) return;
        T *const y = p.y + (at * K + component) * N;
#pragma unroll
        for (int k = 0; k < 2 * V; ++k) y[index(k % V) + k / V * M] = (T)current[k] << 8 * (sizeof(T) - 4);
    }
};
// grid: items / ITEMS in x. block: Torus::THREADS.
template <class T, class S, int K, int LEVELS, int ITEMS, bool STAGED>
__global__ void __launch_bounds__((Torus<T, S, K, LEVELS, ITEMS, STAGED>::THREADS))
    torus_rotation(const __grid_constant__ TorusParameters<T> p) {
    extern __shared__ __align__(16) unsigned char memory[];
    Torus<T, S, K, LEVELS, ITEMS, STAGED>(memory, p).run();
}
