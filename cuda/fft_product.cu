// Exact products modulo any q of one word, by transforms in doubles (docs/math.md, "Products by FFT").
//
// A unit is one limb of one polynomial. Its centred residues are split into balanced digits. Row i of a unit holds
// digit i of all residues, as `points` complex numbers. The real part of number r is the digit of residue r, and the
// imaginary part is the digit of residue r + points. A_i is the transform of row i of the first operand, B_j the
// transform of row j of the second. C_k is the sum of A_i * B_j over i + j = k. After the inverse transform, the real
// and imaginary parts of C_k are integers with the weight 2^(width * k).
#include "complex.cuh"
#include "ptx.cuh"
#include "quotient.cuh"
#include "rows.cuh"
#include "tile.cuh"

struct Digits {
    u32 count, width;  // count: how many digits a residue has; width: bits of a digit
    u32 sums;          // number of sums C_k; if q is a power of two, sums of weight q or more are left out
};

PG_DEVICE i32 as_signed(u32 x) { return (i32)x; }
PG_DEVICE i64 as_signed(u64 x) { return (i64)x; }

// Adding ROUND to a number below 2^51 in size leaves the nearest integer in the low bits of the sum.
constexpr double ROUND = 6755399441055744.0;  // 1.5 * 2^52
PG_DEVICE double to_double(i32 x) {
    return __hiloint2double(0x43300000, x ^ (i32)0x80000000) - 4503601774854144.0;  // the constant is 2^52 + 2^31
}

// Returns digit i of a centred residue x. Let half = 2^(width - 1) and shift = width * i. Every digit but the last is
// in [-half, half): it is the field of `width` bits of x + carry that begins at bit `shift`, minus half. Here carry is
// the sum of half * 2^(width * j) over j <= i. The last digit is in [-half, half]: it is x + carry shifted right by
// `shift` bits, where carry is the sum over j < i only.
template <class T> struct Digit {
    T half_q, q, low, carry = 0, mask, half;
    u32 shift;
    PG_DEVICE Digit(const Modulus &m, const Digits &digits, u32 i)
        : half_q((T)(m.last / 2)), q((T)m.q), shift(i * digits.width) {
        const bool last = i + 1 == digits.count;
        low = ((T)1 << shift) - 1;
        mask = last ? ~(T)0 : ((T)1 << digits.width) - 1;
        half = last ? 0 : (T)1 << (digits.width - 1);
        for (u32 j = 0; j < i + !last; ++j) carry += (T)1 << (digits.width * (j + 1) - 1);
    }
    PG_DEVICE double operator()(T x) const {
        x = x > half_q ? x - q : x;  // the residue's representative of least absolute value
        const T rest = (T)(as_signed(x) >> shift) + (((x & low) + carry) >> shift);
        return to_double((i32)((rest & mask) - half));
    }
};

struct Wide {  // an integer modulo 2^128
    u64 low, high;
    PG_DEVICE void add(u64 other_low, u64 other_high) {
        low += other_low;
        high += other_high + (low < other_low);
    }
};

// Returns, modulo q, the sum over k of C_k * 2^(width * k), where C_k is the integer nearest to sums(k). Needs |C_k| <
// 2^51. SUMS: the number of sums if it is known at compile time, else 0. If q is a power of two, sums with k >=
// digits.sums are left out.
template <class T, int SUMS, class Sums> PG_DEVICE T compose(const Modulus &m, const Digits &digits, const Sums &sums) {
    constexpr int UNROLL = SUMS ? SUMS : 1;
    const u32 most = SUMS ? SUMS : digits.sums, width = digits.width;
    const auto integer = [&](u32 k) { return __double_as_longlong(sums(k) + ROUND) - 0x4338000000000000ll; };
    if ((m.q & m.last) == 0) {  // a power of two
        u64 value = 0;
#pragma unroll UNROLL
        for (u32 k = 0; k < most; ++k)
            if (k < digits.sums && k * width < 64) value += (u64)integer(k) << k * width;
        return (T)(value & m.last);
    } else if constexpr (sizeof(T) == 4) {
        // Horner's rule in doubles. If a residue has one digit, the only sum is C_0, and r is 0. Otherwise |r| <= q <
        // 2^32 and width <= 16. In both cases |C_k| < 2^51, so |r * 2^width + C_k| < 2^52. Doubles hold this number and
        // its remainder modulo q exactly.
        double r = 0;
        const double q = (double)m.q, base = (double)(1u << width);
#pragma unroll UNROLL
        for (u32 k = most; k > 0; --k) {
            const double x = fma(r, base, sums(k - 1) + ROUND - ROUND);
            r = fma(-(fma(x, m.inverse, ROUND) - ROUND), q, x);
        }
        const i64 value = __double_as_longlong(r + ROUND) - 0x4338000000000000ll;
        const i64 positive = value < 0 ? value + (i64)m.q : value;
        return (T)(positive >= (i64)m.q ? positive - (i64)m.q : positive);
    } else {
        // Horner's rule in 128 bits. The number of sums is odd. The three highest sums form a group, and so does each
        // pair of lower sums. The total is reduced after each group. A group adds a number of absolute value at most q
        // * 2^55 (docs/math.md). The reduced total of earlier groups, times its power of two, is at most q * 2^62.
        // Adding q * 2^62 makes the total positive and keeps it below q * 2^64, as `reduce` needs.
        Wide total = {0, 0};
#pragma unroll UNROLL
        for (u32 k = most; k > 0; --k) {
            total = {total.low << width, total.high << width | total.low >> (64 - width)};
            const i64 c = integer(k - 1);
            total.add((u64)c, (u64)(c >> 63));
            if (k % 2 == 1 && (k < most || k == 1)) {
                total.add(m.q << 62, m.q >> 2);
                total = {reduce(m, total.high, total.low), 0};
            }
        }
        return (T)total.low;
    }
}

// ---- one kernel ----

// y = a * b. A block computes S::ROWS / (2 * DIGITS) products. S: the shape of the block's tile (tile.cuh). A row of
// the tile holds first a spectrum A_i or B_j, then a sum C_k. If FOLD is true, the transform gives the linear product,
// and the kernel reduces it by the ring's polynomial. grid: units * 2 * DIGITS / S::ROWS. block: S::THREADS threads.
// Dynamic shared memory: S::SHARED_VALUES complex numbers. twiddles: tables.cu.
template <class T> struct FftProductParameters {
    const T *a, *b;
    T *y;
    const Modulus *moduli;
    const Complex<double> *twiddles;
    u64 units;
    u64 rows_a, rows_b;  // unit u uses row u % rows_a of a and row u % rows_b of b: both can be broadcast
    u32 limbs, degree, width, sums;
    Quotient quotient;
};
template <class T, class S, int DIGITS, bool FOLD>
__global__ void __launch_bounds__(S::THREADS, S::THREADS < 512 ? 512 / S::THREADS : 1)
    fft_product(const FftProductParameters<T> p) {
    using W = Complex128;
    constexpr int PARTS = 2 * DIGITS, POINTS = S::LENGTH, TOGETHER = PARTS * S::LANES;
    static_assert(S::COLUMNS == 1 && S::ROWS % PARTS == 0 && S::VALUES >= PARTS, "rows are digits");
    extern __shared__ __align__(16) unsigned char memory[];
    Complex<double> *const shared = (Complex<double> *)memory;
    start_next(starts_early());
    const Place<S> place;
    const Digits digits = {DIGITS, p.width, p.sums};
    const u32 degree = p.degree, part = place.row % PARTS;
    u64 unit = (u64)blockIdx.x * (S::ROWS / PARTS) + place.row / PARTS;
    const bool inside = unit < p.units;
    if (!inside) unit = 0;  // threads without a unit take part in the barriers
    const Modulus &m = p.moduli[rest(unit, p.limbs)];

    const bool second = part >= DIGITS;
    const T *const x = (second ? p.b + (unit < p.rows_b ? unit : unit % p.rows_b) * degree
                               : p.a + (unit < p.rows_a ? unit : unit % p.rows_a) * degree);
    const Digit<T> digit(m, digits, second ? part - DIGITS : part);
    const auto at = [&](int k) { return place.template group_index<0>(k) + place.template offset<0>(k); };
    Complex<double> values[S::VALUES] = {};
    await_previous();
    if (inside)
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k) {
            const u32 j = at(k), i = j + POINTS;
            values[k] = {!FOLD || j < degree ? digit(x[j]) : 0., !FOLD || i < degree ? digit(x[i]) : 0.};
        }
    const W word(m);
    forward_rounds<W, S, 0>(word, values, shared, place, p.twiddles);

    // held(row, k): value k of row `row` of this product, for this thread's lane. A product uses only its own rows'
    // part of shared memory.
    Complex<double> *const own = shared + place.row / PARTS * (TOGETHER * (S::VALUES + 1));
    const auto held = [&](u32 row, int k) -> Complex<double> & {
        return own[(row * S::VALUES + k) * S::LANES + place.lane];
    };
    const auto publish = [&] {
        synchronise<TOGETHER>();
#pragma unroll
        for (int k = 0; k < S::VALUES; ++k) held(part, k) = values[k];
        synchronise<TOGETHER>();
    };
    publish();
#pragma unroll
    for (int k = 0; k < S::VALUES; ++k) {
        Complex<double> sum = {0, 0};
#pragma unroll
        for (int i = 0; i < DIGITS; ++i) {
            const u32 j = part - i;  // wraps to a large number if part < i
            if (j < DIGITS) sum = multiply_add(held(i, k), held(DIGITS + j, k), sum);
        }
        values[k] = sum;
    }
    synchronise<TOGETHER>();
    inverse_rounds<W, S, true, 0>(word, values, shared, place, p.twiddles);
    publish();

    T composed[S::VALUES / PARTS][2];
#pragma unroll
    for (int i = 0; i < S::VALUES / PARTS; ++i) {
        const int k = i * PARTS + part;
        constexpr double SCALE = 1. / POINTS;
        composed[i][0] = compose<T, PARTS - 1>(m, digits, [&](u32 sum) { return held(sum, k).re * SCALE; });
        composed[i][1] = compose<T, PARTS - 1>(m, digits, [&](u32 sum) { return held(sum, k).im * SCALE; });
    }
    T *const to = p.y + unit * degree;
    if constexpr (FOLD) {
        T *const linear = (T *)own;
        synchronise<TOGETHER>();
#pragma unroll
        for (int i = 0; i < S::VALUES / PARTS; ++i) {
            const u32 j = at(i * PARTS + part);
            linear[j] = composed[i][0], linear[j + POINTS] = composed[i][1];
        }
        synchronise<TOGETHER>();
        for (u32 j = part * S::LANES + place.lane; j < degree; j += TOGETHER) {
            const u64 value = folded(p.quotient, m, degree, j, [&](u32 k) { return linear[k]; });
            if (inside) to[j] = (T)value;
        }
    } else if (inside) {
#pragma unroll
        for (int i = 0; i < S::VALUES / PARTS; ++i) {
            const u32 j = at(i * PARTS + part);
            to[j] = (T)composed[i][0], to[j + POINTS] = (T)composed[i][1];
        }
    }
}

// ---- longer products, in passes ----

// x: (rows, degree). y: (units, count, points), the digits of units first_unit to first_unit + units - 1. grid: units *
// points / 256.
template <class T> struct SplitParameters {
    const T *x;
    Complex<double> *y;
    const Modulus *moduli;
    u64 degree, points, units, first_unit;
    u32 limbs, count, width, dense;
    Layout layout;
};
template <class T> __global__ void __launch_bounds__(256) fft_split(const SplitParameters<T> p) {
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= p.units * p.points) return;
    const u64 unit = quotient(e, p.points), j = e - unit * p.points, global_unit = p.first_unit + unit;
    const Modulus &m = p.moduli[rest(global_unit, p.limbs)];
    const T *const row = p.x + (p.dense ? global_unit : p.layout.row(0, global_unit, p.limbs)) * p.degree;
    const T low = j < p.degree ? row[j] : 0, high = j + p.points < p.degree ? row[j + p.points] : 0;
    for (u32 i = 0; i < p.count; ++i) {
        const Digit<T> digit(m, {p.count, p.width, 0}, i);
        p.y[(unit * p.count + i) * p.points + j] = {digit(low), digit(high)};
    }
}

// a, b: (units, count, points), the spectra of the digits. y: (units, sums, points); row k of a unit is the sum of row
// i of a times row j of b over i + j = k. grid: units * points / 256.
struct FftMultiplyParameters {
    const Complex<double> *a, *b;
    Complex<double> *y;
    u64 points, units;
    u32 count, sums;
};
__global__ void __launch_bounds__(256) fft_multiply(const FftMultiplyParameters p) {
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= p.units * p.points) return;
    const u64 unit = quotient(e, p.points), j = e - unit * p.points;
    const Complex<double> *const a = p.a + unit * p.count * p.points + j, *const b =
                                                                              p.b + unit * p.count * p.points + j;
    for (u32 k = 0; k < p.sums; ++k) {
        Complex<double> sum = {0, 0};
        for (u32 i = k < p.count ? 0 : k - p.count + 1; i < p.count && i <= k; ++i)
            sum = multiply_add(a[i * p.points], b[(k - i) * p.points], sum);
        p.y[(unit * p.sums + k) * p.points + j] = sum;
    }
}

// x: (items, terms, points), spectra. matrix: (terms, columns, points), spectra. y: (items, columns, points); at each
// point, y is the matrix product of x and `matrix`. A thread computes one number of y. grid: entries / 256.
struct FftMatrixParameters {
    const Complex<double> *x, *matrix;
    Complex<double> *y;
    u64 points, entries;
    u32 terms, columns;
};
__global__ void __launch_bounds__(256) fft_matrix(const FftMatrixParameters p) {
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= p.entries) return;
    const u64 row = quotient(e, p.points), j = e - row * p.points, item = row / p.columns;
    const Complex<double> *x = p.x + item * p.terms * p.points + j;
    const Complex<double> *factor = p.matrix + (row - item * p.columns) * p.points + j;
    Complex<double> sum = {0, 0};
    for (u32 t = 0; t < p.terms; ++t, x += p.points, factor += p.columns * p.points)
        sum = multiply_add(*x, *factor, sum);
    p.y[e] = sum;
}

// x: (units, sums, points), the sums of units first_unit to first_unit + units - 1. y: (rows, degree). grid: units *
// degree / 256. The launch bound asks for five blocks per multiprocessor. Without this bound, NVRTC for sm_80 limits
// registers to let eight blocks fit, and threads spill.
template <class T> struct FftComposeParameters {
    const Complex<double> *x;
    T *y;
    const Modulus *moduli;
    u64 degree, points, units, first_unit;
    u32 limbs, width, sums;
    Quotient quotient;
};
template <class T> __global__ void __launch_bounds__(256, 5) fft_compose(const FftComposeParameters<T> p) {
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= p.units * p.degree) return;
    const u64 unit = quotient(e, p.degree), j = e - unit * p.degree, points = p.points;
    const Modulus m = p.moduli[rest(p.first_unit + unit, p.limbs)];
    const Complex<double> *const rows = p.x + unit * p.sums * points;
    const double scale = 1. / points;
    const auto coefficient = [&](u64 at) {
        return compose<T, 0>(m, {0, p.width, p.sums}, [&](u32 k) {
            const Complex<double> *const row = rows + k * points;
            return (at < points ? row[at].re : row[at - points].im) * scale;
        });
    };
    const u64 value = 2 * points == p.degree ? coefficient(j) : folded(p.quotient, m, p.degree, j, coefficient);
    p.y[(p.first_unit + unit) * p.degree + j] = (T)value;
}

// x: (units, points), complex numbers. y: (units, degree), integers modulo 2^32 or 2^64 (the range of T): the parts of
// x, times 1 / points, rounded. Real parts become the first half of a row of y, imaginary parts the second half. grid:
// units * degree / 256.
template <class T> struct FftRoundParameters {
    const Complex<double> *x;
    T *y;
    u64 degree, points, units;
};
template <class T> __global__ void __launch_bounds__(256) fft_round(const FftRoundParameters<T> p) {
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= p.units * p.degree) return;
    const u64 unit = quotient(e, p.degree), j = e - unit * p.degree;
    const Complex<double> *const row = p.x + unit * p.points;
    p.y[e] = nearest_word<T>((j < p.points ? row[j].re : row[j - p.points].im) * (1. / p.points));
}
