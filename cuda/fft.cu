// Transforms of rows of complex numbers, and cyclic convolutions. A row has LENGTH = 2, 4, 8, ... or 4096 numbers, in
// natural order before and after the transform.
//
// The root of unity is exp(-2 pi i / LENGTH). The inverse transform exchanges real and imaginary parts, transforms, and
// exchanges the parts again. LENGTH / 8 threads share a row, with 8 values each. If LENGTH < 8, one thread has a row.
// Rounds have radix 8; only the first may have radix 2 or 4. Let R be the radix of a round, and P the product of the
// radices of all earlier rounds. For each j < LENGTH / R, the round transforms the R values with the indices j + r *
// LENGTH / R. Result r gets the index floor(j / P) * P * R + j % P + r * P. So the last round leaves natural order
// (Stockham; Govindaraju et al. 2008). Between rounds, values go through shared memory. A thread has the same indices
// of the row before and after the transform, so a kernel can multiply spectra in registers.
//
// twiddles: for each round, entry r * P + k is exp(-2 pi i * r * k / (P * R)), where k < P and 0 < r < R
// (_backends/cuda/fft.py).
#include "complex.cuh"
#include "ptx.cuh"

template <class Real, int LOG_LENGTH> struct Fft {
    using Value = Complex<Real>;
    static constexpr int LENGTH = 1 << LOG_LENGTH, VALUES = LENGTH < 8 ? LENGTH : 8, LANES = LENGTH / VALUES;
    static constexpr int THREADS = LANES < 128 ? 128 : LANES, ROWS = THREADS / LANES;
    static constexpr int FIRST_RADIX = (LOG_LENGTH - 1) % 3 + 1;
    static constexpr int WARP = 32, WARP_VALUES = WARP * VALUES;
    // SHORT: whether a row has too few threads for its accesses to cover whole cache lines.
    static constexpr bool SHORT = VALUES == 8 && LANES < 16;

    Value *const shared;
    const Value *const twiddles;
    const int lane, first;  // first: where the row begins in shared memory
    PG_DEVICE Fft(void *memory, const Value *table)
        : shared((Value *)memory), twiddles(table), lane(threadIdx.x % LANES), first(threadIdx.x / LANES * LENGTH) {}

    static PG_DEVICE u64 row() { return (u64)blockIdx.x * ROWS + threadIdx.x / LANES; }
    // Returns value `index` of this block of threads in shared memory. Threads that are served together use different
    // banks, both when their values are neighbours and when their values are 8 apart.
    PG_DEVICE Value &at(int index) const { return shared[index ^ (index >> 3 & 15)]; }
    static PG_DEVICE void synchronise() {
        if constexpr (LANES <= 32) __syncwarp();
        else __syncthreads();
    }

    // Transforms x[0 ... 2^LOG_R) in place.
    template <int LOG_R> static PG_DEVICE void transform_few(Value *x) {
        constexpr int HALF = 1 << (LOG_R - 1);
        Value even[HALF], odd[HALF];
#pragma unroll
        for (int k = 0; k < HALF; ++k) even[k] = x[k] + x[k + HALF], odd[k] = x[k] - x[k + HALF];
        if constexpr (LOG_R == 2) odd[1] = by_minus_i(odd[1]);
        if constexpr (LOG_R == 3) {
            constexpr Real ROOT_HALF = (Real)0.70710678118654752440;
            const Value one = odd[1], three = odd[3];
            odd[1] = Value{one.re + one.im, one.im - one.re} * ROOT_HALF;
            odd[2] = by_minus_i(odd[2]);
            odd[3] = Value{three.im - three.re, -three.re - three.im} * ROOT_HALF;
        }
        if constexpr (LOG_R > 1) transform_few<LOG_R - 1>(even), transform_few<LOG_R - 1>(odd);
#pragma unroll
        for (int k = 0; k < HALF; ++k) x[2 * k] = even[k], x[2 * k + 1] = odd[k];
    }

    // Computes the round of radix 2^LOG_R and all later rounds. values[k]: complex number lane + k * LANES of the row.
    template <int LOG_P = 0, int LOG_R = FIRST_RADIX> PG_DEVICE void transform(Value *values) const {
        constexpr int P = 1 << LOG_P, R = 1 << LOG_R, GROUPS = VALUES / R;
        constexpr bool LAST = LOG_P + LOG_R == LOG_LENGTH;
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const int j = lane + g * LANES, i = j % P;
            Value x[R];
#pragma unroll
            for (int r = 0; r < R; ++r) {
                x[r] = values[g + r * GROUPS];
                if (P > 1 && r > 0) x[r] = x[r] * read<READ_ONLY>(twiddles + r * P + i);
            }
            transform_few<LOG_R>(x);
#pragma unroll
            for (int r = 0; r < R; ++r) {
                if (LAST) values[g + r * GROUPS] = x[r];
                else at(first + j / P * P * R + i + r * P) = x[r];
            }
        }
        if constexpr (!LAST) {
            synchronise();
#pragma unroll
            for (int k = 0; k < VALUES; ++k) values[k] = at(first + lane + k * LANES);
            synchronise();  // the next round overwrites what other threads may still read
            transform<LOG_P + LOG_R, 3>(values);
        }
    }

    // Loads a row, or zeros if `inside` is false. A thread whose row does not exist still takes part in the barriers.
    PG_DEVICE void load(const Value *x, u64 row, bool inside, Value *values) const {
#pragma unroll
        for (int k = 0; k < VALUES; ++k)
            values[k] = inside ? read<DEFAULT>(x + row * LENGTH + lane + k * LANES) : Value{0, 0};
    }
    PG_DEVICE void store(Value *y, u64 row, bool inside, const Value *values) const {
        if (inside)
#pragma unroll
            for (int k = 0; k < VALUES; ++k) write<DEFAULT>(y + row * LENGTH + lane + k * LANES, values[k]);
    }
    // Loads a row. Call this only if SHORT is true. A warp loads all its rows together, since these rows are neighbours
    // in memory.
    PG_DEVICE void load_together(const Value *x, u64 rows, Value *values) const {
        const int own = threadIdx.x / WARP * WARP_VALUES + threadIdx.x % WARP;
        const u64 start = (u64)blockIdx.x * (ROWS * LENGTH) + own;
#pragma unroll
        for (int k = 0; k < VALUES; ++k)
            values[k] = start + k * WARP < rows * LENGTH ? read<DEFAULT>(x + start + k * WARP) : Value{0, 0};
#pragma unroll
        for (int k = 0; k < VALUES; ++k) at(own + k * WARP) = values[k];
        __syncwarp();
#pragma unroll
        for (int k = 0; k < VALUES; ++k) values[k] = at(first + lane + k * LANES);
        __syncwarp();
    }
    PG_DEVICE void store_together(Value *y, u64 rows, const Value *values) const {
        const int own = threadIdx.x / WARP * WARP_VALUES + threadIdx.x % WARP;
        const u64 start = (u64)blockIdx.x * (ROWS * LENGTH) + own;
#pragma unroll
        for (int k = 0; k < VALUES; ++k) at(first + lane + k * LANES) = values[k];
        __syncwarp();
#pragma unroll
        for (int k = 0; k < VALUES; ++k)
            if (start + k * WARP < rows * LENGTH) write<DEFAULT>(y + start + k * WARP, at(own + k * WARP));
    }
    // The inverse transform, including the factor 1 / LENGTH.
    PG_DEVICE void inverse(Value *values) const {
#pragma unroll
        for (int k = 0; k < VALUES; ++k) values[k] = swapped(values[k]);
        transform(values);
#pragma unroll
        for (int k = 0; k < VALUES; ++k) values[k] = swapped(values[k]) * ((Real)1 / LENGTH);
    }
};

// Parameters of `fft`; x and y may be the same array. grid: rows / Fft::ROWS. block: Fft::THREADS threads. Dynamic
// shared memory: ROWS * LENGTH values.
template <class Real> struct FftParameters {
    const Complex<Real> *x;
    Complex<Real> *y;
    const Complex<Real> *twiddles;
    u64 rows;
};
template <class Real, int LOG_LENGTH, bool INVERSE>
__global__ void __launch_bounds__((Fft<Real, LOG_LENGTH>::THREADS)) fft(const FftParameters<Real> p) {
    extern __shared__ __align__(16) unsigned char memory[];
    using F = Fft<Real, LOG_LENGTH>;
    start_next(starts_early());
    const F f(memory, p.twiddles);
    const u64 row = F::row();
    await_previous();
    Complex<Real> values[F::VALUES];
    if constexpr (F::SHORT) f.load_together(p.x, p.rows, values);
    else f.load(p.x, row, row < p.rows, values);
    if (INVERSE) f.inverse(values);
    else f.transform(values);
    if constexpr (F::SHORT) f.store_together(p.y, p.rows, values);
    else f.store(p.y, row, row < p.rows, values);
}

// y = the cyclic convolution of rows of a and b. If rows_b = 1, every row of a is convolved with the one row of b. y
// may be the same array as a or b. grid: rows / Fft::ROWS. The block and its shared memory are as for `fft`.
template <class Real> struct ConvolveParameters {
    const Complex<Real> *a, *b;
    Complex<Real> *y;
    const Complex<Real> *twiddles;
    u64 rows, rows_b;
};
template <class Real, int LOG_LENGTH>
__global__ void __launch_bounds__((Fft<Real, LOG_LENGTH>::THREADS)) fft_convolve(const ConvolveParameters<Real> p) {
    extern __shared__ __align__(16) unsigned char memory[];
    using F = Fft<Real, LOG_LENGTH>;
    start_next(starts_early());
    const F f(memory, p.twiddles);
    const u64 row = F::row();
    await_previous();
    Complex<Real> left[F::VALUES], right[F::VALUES];
    f.load(p.b, p.rows_b == 1 ? 0 : row, row < p.rows, right);
    f.load(p.a, row, row < p.rows, left);
    f.transform(right);
    f.transform(left);
#pragma unroll
    for (int k = 0; k < F::VALUES; ++k) left[k] = left[k] * right[k];
    f.inverse(left);
    f.store(p.y, row, row < p.rows, left);
}
