// The kernels of one instruction set: operations on one row, the residues of one polynomial modulo one q.
#pragma once
#include <algorithm>

#include "modulus.hpp"

#define PG_INLINE inline __attribute__((always_inline))

namespace pg {

enum class Op { add, sub, neg, mul, mul_add };                          // mul_add: a * b + c
constexpr const char *OPS[] = {"add", "sub", "neg", "mul", "mul_add"};  // their names in Python

// The twiddles of one limb, indexed by node of the tree of factors (Row). shoup: floor(w * 2^bits(T) / q). Kernels that
// compute in doubles read `number` = w in [-q/2, q/2], and `ratio` = number / q, instead of w and shoup.
template <class T> struct Twiddles {
    const T *w, *shoup;
    const double *number = nullptr, *ratio = nullptr;
};

enum class Quotient : u32;  // quotient.hpp

// The transform of one limb. Node i of the tree of factors (the root is 1, the children of i are 2i and 2i + 1) splits
// X^2t - w^2 into X^t - w and X^t + w. Only the root of a trinomial splits X^2t - X^t + 1, into X^t - w and
// X^t - (1 - w) (docs/math.md, "The tree of factors").
template <class T> struct Row {
    const Modulus *modulus;
    Twiddles<T> forward, inverse;  // inverse: 1/w; entry 0 is 1/points; entry 1 has the factor 1/points
    size_t degree;                 // coefficients
    size_t leaf_size;              // leaves are polynomials of degree < leaf_size; degree = leaf_size * points
    size_t block;                  // coefficients that fit the cache: longer blocks are transformed depth first
    const int *stop;               // read with stopped(): whether the result is no longer wanted
    Quotient quotient{};           // the ring's polynomial, which is that of the root
};

template <class T> struct RowKernels {
    // forward: from coefficients in natural order to leaves in bit-reversed order; inverse: back. x may be y. Residues
    // are canonical before and after.
    void (*forward)(const T *x, T *y, const Row<T> &row);
    void (*inverse)(const T *x, T *y, const Row<T> &row);
    // y = op(a, b, c) on n residues. Operands may be y. scalar: b is one residue.
    void (*pointwise)(Op op, const T *a, const T *b, bool scalar, const T *c, T *y, size_t n, const Modulus &m);
    // y = sum of x[i] * w[i] over the terms, as n canonical residues. x: any words, but below 2^50 in the kernels q46
    // and q50 of Isa. If `combine` is null, callers use the portable kernel.
    void (*combine)(const T *const *x, const T *w, const T *shoup, size_t terms, T *y, size_t n, const Modulus &m);
    size_t least_degree;  // shorter rows use the portable kernels
    bool numbers;         // the transforms read the twiddles as doubles (number, ratio), not w and shoup
};

// The parts of a basis conversion that estimate floor(s + half), where s is the sum of z_i / q_i over the rows z_i of
// residues (docs/math.md). half: 1/2 to round s to the nearest integer, or 0 to round s down.
template <class T> struct EstimateKernels {
    void (*add_ratios)(const T *z, double ratio, double *sum, size_t n);  // sum += z * ratio
    void (*count_from)(const T *z, T least, T *count, size_t n);          // count += 1 where z >= least
    // quotient = floor(sum + half). Returns true if any sum + half is closer than `guard` to an integer.
    bool (*round_sums)(const double *sum, double half, double guard, T *quotient, size_t n);
    // z = y * r mod q. The low 16 bits of floor(y * r / q) are added to `low`, the other bits to `high`.
    void (*split_products)(const T *y, u64 r, const Modulus &m, T *z, T *low, T *high, size_t n);
    // y = sum of x[i] * w[i] over the terms, modulo 2^b, where b is the number of bits of T.
    void (*combine_words)(const T *const *x, const T *w, size_t terms, T *y, size_t n);
};

// The complex FFT: rows of 2^k values (re, im) in natural order. The forward transform uses exp(-2 pi i jk / points).
constexpr size_t FFT_LEVELS = 13, FFT_MAX_POINTS = 1 << (FFT_LEVELS - 1);
// A pass splits a transform of `length` points into this many transforms.
constexpr size_t fft_radix(size_t length) { return length == 2 ? 2 : length == 4 || length == 16 ? 4 : 8; }

template <class T> struct Fft {
    size_t points;
    // twiddles[log2(length)][(j - 1) * length / radix + p] = exp(-2 pi i jp / length), where 0 < j < radix and
    // p < length / radix
    const T *twiddles[FFT_LEVELS];
};

template <class T> struct FftKernels {
    // x may be y. If `inverse`, the results are divided by fft.points. scratch: fft_scratch(fft.points) reals.
    void (*transform)(const T *x, T *y, size_t rows, bool inverse, const Fft<T> &fft, T *scratch);
    // y = ifft(fft(a) * fft(b)) by rows of 64 points. Operands may be y. shared: b is one row, which is already
    // transformed.
    void (*convolve64)(const T *a, const T *b, bool shared, T *y, size_t rows, const Fft<T> &fft);
};

// Returns the length of scratch memory, in reals. It holds a row of `points` points. If points < 64, it holds two
// buffers of 8 rows.
constexpr size_t fft_scratch(size_t points) { return points > 512 ? 2 * points : 1024; }

struct Complex {
    double re, im;
};

// Exact products of one limb. A centred residue is a sum of digits d_i * 2^(width * i), |d_i| <= 2^(width - 1).
// Polynomials of digits are multiplied modulo X^length + 1 by complex transforms of length/2 points. The transform of a
// polynomial is called its spectrum.
struct ProductRow {
    const Modulus *modulus;
    const Complex *twiddles;  // w by node of the tree below X^(length/2) - i; entry 0 is 1
    size_t degree;            // coefficients of an operand, at most length; length is a power of two
    size_t length;
    size_t block;  // points that stay in the cache
    unsigned digits, width;
    // sums: number of sums. Sum k adds up the products of digits i and k - i. If q = 2^e, sum k is needed only if
    // 2^(width * k) < q.
    unsigned sums;
    unsigned group;             // number of neighbouring sums that, with the weights 1, 2^width, ..., stay below 2^61
    const u64 *weight, *shoup;  // 2^(width * group * i) mod q of group i and, for q < 2^62, its Shoup quotient
    const int *stop;
};

constexpr unsigned MAX_DIGITS = 8, MAX_SUMS = 2 * MAX_DIGITS - 1;

template <class T> struct ProductKernels {
    // y = a * b mod X^length + 1, as `length` canonical residues. For a square, pass a = b. y may overlap a and b.
    // scratch: 2 * digits * length/2 complex numbers.
    void (*multiply)(const T *a, const T *b, Complex *scratch, T *y, const ProductRow &row);
    // z = the spectra of `digits` digits of x. The last digit is what remains after the others.
    void (*transform)(const T *x, unsigned digits, Complex *z, const ProductRow &row);
    // Adds x * y_k to sums_k, for each of row.sums spectra y_k.
    void (*add_products)(const Complex *x, const Complex *y, Complex *sums, const ProductRow &row);
    // y = the residues of `sums`. `sums` is overwritten.
    void (*compose)(Complex *sums, T *y, const ProductRow &row);
    size_t least_length;  // shorter products use the portable kernels
};

// Products of digits with spectra modulo X^n + 1 and 2^w, where w is the number of bits of a word W, and n = 2 *
// points. The results contain rounding errors (docs/math.md, "Products in doubles").
struct TorusRow {
    const Complex *forward;  // twiddles as in ProductRow
    // inverse: twiddles of the inverse transform. twist: factors for the results of that transform. Both have the
    // layout of vectors (torus.cpp).
    const Complex *inverse;
    const Complex *twist;
    size_t points;
    unsigned bits;  // bits of a digit; digit l, the most significant first, is a field of x + offset, minus half
    u64 offset, mask;
    double half;
};
// Passes of radix 4 divide a transform into blocks of 2 * width or 4 * width points, which are transformed in registers
// (Ntt::forward). Returns whether blocks have 4 * width points. The inverse transform uses the same blocks.
constexpr bool torus_is_wide(size_t points, size_t width) {
    while (points >= 8 * width) points /= 4;
    return points > 2 * width;
}
template <class W> struct TorusKernels {
    size_t width;  // doubles of a vector, which determines the layout of tables and spectra
    // Let x be X^e * y - y if `turns`, else y. Writes for each coefficient of x the field (see TorusRow) that becomes
    // digit `level`.
    void (*fields)(const W *y, bool turns, size_t e, W *fields, unsigned level, const TorusRow &row);
    void (*transform)(const W *fields, Complex *z, const TorusRow &row);  // z = the spectrum of the digits
    // sum = one column of the product of digits (components, levels) with a matrix (components, levels, columns). In
    // each level, the sum begins with component `column`. step: the distance from one spectrum of the column to the
    // next, in complex numbers. ahead: the distance from this matrix to the matrix that is prefetched, in complex
    // numbers; 0 for no prefetch.
    void (*multiply)(const Complex *digits, const Complex *matrix, size_t step, unsigned levels, unsigned components,
                     unsigned column, size_t ahead, Complex *sum, const TorusRow &row);
    void (*finish)(Complex *sum, W *y, bool adds, const TorusRow &row);    // y = product, or y += product if `adds`
    void (*add_turned)(const W *x, size_t e, W *y, const TorusRow &row);   // y += X^e * x
    void (*transform_words)(const W *x, Complex *z, const TorusRow &row);  // z = the spectrum of the centred residues
};

template <class T> struct MatrixView {
    T *data;
    ptrdiff_t row, column;  // strides, in entries; a stride of 0 repeats the entry
};

// c = a * b modulo one q. a has `rows` rows and `inner` columns, b has `inner` rows and `columns` columns.
template <class T> struct MatrixProduct {
    const Modulus *modulus;
    size_t rows, inner, columns;
    MatrixView<const T> a, b;
    MatrixView<T> c;
    const int *stop;
};

// A block of a product has at most GEMM_DEPTH terms and GEMM_COLUMNS columns. Scratch memory holds the digits of the
// block's part of the right matrix, and of 4 rows of the left matrix. A residue has at most two words of digits.
constexpr size_t GEMM_DEPTH = 256, GEMM_COLUMNS = 128;
constexpr size_t GEMM_SCRATCH = 2 * (GEMM_DEPTH * GEMM_COLUMNS + 4 * (GEMM_DEPTH + 8));

// A call of multiply_points has at most GEMM_POINTS points. It gathers the digits of gemm_gathered_points() points at a
// time. These are as many points as fit GEMM_GATHERED words (the second-level cache), from 16 to 128, and a multiple of
// the lanes of a vector. words: how many words the digits of both operands have at one point.
constexpr size_t GEMM_POINTS = 512, GEMM_GATHERED = 32768;
constexpr size_t gemm_gathered_points(size_t words) {
    return words < GEMM_GATHERED / 128 ? 128 : words > GEMM_GATHERED / 16 ? 16 : GEMM_GATHERED / words / 8 * 8;
}
// Returns whether multiply_points gathers digits if the result has this many rows and columns. Gathering does not pay
// for operands that are read only a few times.
constexpr bool gemm_gathers(size_t rows, size_t columns) { return std::min(rows, columns) > 8; }
constexpr size_t gemm_points_scratch(size_t rows, size_t inner, size_t columns) {
    return gemm_gathers(rows, columns) ? std::max(GEMM_GATHERED, 2 * 16 * inner * (rows + columns)) : 0;
}

template <class T> struct GemmKernels {
    // Any q. Column strides are 1, inner > 0, and there are at most GEMM_COLUMNS columns. Inputs are any words, results
    // canonical residues.
    void (*multiply)(const MatrixProduct<T> &product, u64 *scratch);
    // The entries of the matrices are rows of `points` canonical residues. Entries are multiplied point by point.
    void (*multiply_points)(const MatrixProduct<T> &product, size_t points, u64 *scratch);
};

// Distributions of small integers (polygpu/_core/plans/sampling.py). Kernels draw all but the sparse one.
enum class DrawShape { ternary, sparse, binomial, gaussian, tuniform };
constexpr const char *SHAPES[] = {"ternary", "sparse", "binomial", "gaussian", "tuniform"};  // their names in Python
constexpr size_t DRAW_BLOCK = 64;  // integers that kernels draw together

struct Draw {
    DrawShape shape;
    size_t bytes;        // bytes of the random stream for one integer
    unsigned parameter;  // eta of a binomial, or b of TUniform
    // An integer of the Gaussian distribution is a sum of weighted terms. Each term has a random sign. The size of a
    // term is the number of thresholds t with t <= u, where u is a random number of 63 bits.
    size_t terms, thresholds;
    i64 weights[4];
    const u64 *sorted;  // the thresholds
    size_t bucket;      // thresholds in each of 16 buckets, not counting the end; `buckets` has 16 * (bucket + 1) cells
    // buckets[i * 16 + b] is cell i of bucket b. It holds sorted[(bucket + 1) * b + i], or 2^64 - 1 if there are fewer
    // thresholds. The last cell, i = bucket, holds the end of bucket b.
    const u64 *buckets;
};

// Describes which numbers in [0, P) fit a machine word, and for which integers the numbers stand. Numbers are given by
// mixed-radix digits. P: the product of the radices.
struct MixedWords {
    size_t count;
    const u64 *radix, *most, *least;  // radices modulo 2^64; digits of the two bounds
    u64 product, negative;            // P modulo 2^64; 1 if numbers x >= `least` stand for x - P
};

// Constants for sums of y_i * Q / q_i in digits of BITS bits. 128 bits hold the sum of 2^12 products of a word and a
// digit.
struct SumWords {
    static constexpr unsigned BITS = 52;
    static constexpr size_t MAX_COUNT = 4094;  // moduli, at most; the multiple of Q and a carry make 2^12 terms
    static constexpr u64 MASK = ((u64)1 << BITS) - 1;
    size_t count, digits, words;  // number of moduli; of digits for bits(Q) + 3 bits; of words for bits(Q) + 1 bits
    const u64 *terms;             // (digits, count + 1): Q / q_i, then -Q modulo 2^(BITS * digits)
    const double *inverse;        // 1 / q_i
    const u64 *modulus;           // digits of Q
    const u64 *low, *high;        // digits of the bounds of the range: x + low >= 0 and x - high < 0
    double unsure;                // how far the estimated quotient of a sum may be from the true one
    bool centered, narrow;        // narrow: all y_i are below 2^52, and count + 2 <= 2000
};

// The digits of y = floor((2 * x * B^levels + q) / (2 * q)) to the base B = 2^bits; digits are in [-B/2, B/2).
struct Gadget {
    u64 q;  // 0 stands for 2^64
    unsigned bits, levels;
    u64 power, scale;  // B^levels, floor(2^w * B^levels / q) for words of w bits; both are 0 if B^levels is q
    u64 offset;        // sum of B/2 * B^i, i < levels
};
// Needs bits * levels <= 64 and 2^(bits * levels) <= q. word: bits of a word, 32 or 64.
constexpr Gadget make_gadget(u64 q, unsigned bits, unsigned levels, unsigned word) {
    const u128 modulus = q ? q : (u128)1 << 64, power = (u128)1 << (bits * levels);
    Gadget gadget{q, bits, levels, 0, 0, 0};
    for (unsigned i = 0; i < levels; ++i) gadget.offset += (u64)1 << (bits * i + bits - 1);
    if (power < modulus) gadget.power = (u64)power, gadget.scale = (u64)((power << word) / modulus);
    return gadget;
}

// Kernels on blocks of n integers.
struct IntegerKernels {
    // Writes integers of 1, 2 or 4 bytes to y as words in two's complement; integers of 8 bytes stay where they are.
    // Returns their extent: every x is in [-extent - 1, extent].
    u64 (*widen)(const void *x, size_t bytes, bool is_signed, u64 *y, size_t n);
    void (*join_digits)(const u64 *digits, const MixedWords &m, u64 *y, u64 *wrong, size_t n);
    void (*make_sizes)(u64 *x, size_t digits, size_t n, u64 *scratch);  // x becomes |x|; scratch: n words
    void (*add_squares)(const u64 *x, size_t digits, size_t n, u64 *sums);
    // Draws n integers, each from draw.bytes bytes of x. draw.shape must not be DrawShape::sparse.
    void (*draw)(const unsigned char *x, i64 *v, size_t n, const Draw &draw);
};

// Kernels on residues in words T, modulo any q whose residues fit T.
template <class T> struct WordKernels {
    ProductKernels<T> product;
    TorusKernels<T> torus;
    GemmKernels<T> gemm;
    EstimateKernels<T> estimate;
    // y = the residues of numbers of two words each, the low word first.
    void (*reduce_pairs)(const u64 *x, T *y, size_t n, const Modulus &m);
    // y = the residues of v. Needs |v| <= bound <= 2^62.
    void (*reduce_small)(const i64 *v, T *y, size_t n, const Modulus &m, u64 bound);
    // y = the residues of words x. Needs every x in [-extent - 1, extent]; `widen` of IntegerKernels returns `extent`.
    void (*reduce)(const u64 *x, bool is_signed, u64 extent, T *y, size_t n, const Modulus &m);
    u64 (*compare)(const T *x, const T *y, u64 *wrong, size_t n);
    // Writes integers as digits of SumWords: digit d of number j is x[d * n + j]. scratch: 2n + count + 2 + digits
    // words.
    void (*compose)(const T *y, const SumWords &m, u64 *x, size_t n, u64 *scratch);
    // Writes digits modulo q, the most significant first: digit i of number j is y[i * n + j].
    void (*decompose)(const T *x, T *y, size_t n, const Gadget &g);
};

// Multiplies each row of bytes by each vector of signed digits. Bytes are read as unsigned after an exclusive or with
// `flip`, a pattern of 8 bytes. The vectors are padded with zeros to a multiple of 64 entries.
struct ByteProduct {
    const unsigned char *rows;
    ptrdiff_t row_step;
    size_t height, length;  // number of rows; bytes of a row, at most BYTES_AT_ONCE
    u64 flip;
    const signed char *vectors;
    size_t vector_step, count;
    i64 *sums;  // the product is added to sums[row * count + vector]
};
constexpr size_t BYTES_AT_ONCE = 1 << 15;  // sums of this many products of 8 and 8 bits fit 32 bits

struct ByteKernels {
    unsigned digit_bits;  // digits are in [-2^(digit_bits - 1), 2^(digit_bits - 1))
    void (*add)(const ByteProduct &product);
};

// Measured times in nanoseconds on one core (docs/performance.md, "How a ring multiplies"). `sum` was measured on AMD
// Zen 5.
struct Costs {
    double fft;            // time for a real number in a complex FFT
    double sum;            // time for a term of a sum of rows that is reduced only once
    double layer[5];       // time for a coefficient in one layer of a transform, by kind of modulus (dispatch.cpp)
    double product[5];     // time for a product that is added to another, by kind of modulus
    size_t matrix_degree;  // largest degree at which many polynomials are multiplied by one as a product of matrices
};

// Kernels are named by their bound on q. If an instruction set does not have a kernel, the pointer to the kernel is
// null.
struct Isa {
    const char *name;
    Costs costs;
    RowKernels<u32> q30, q31, q32;            // q < 2^30, q < 2^31, q <= 2^32
    RowKernels<u64> q46, q50, q60, q62, q64;  // q < 2^46, ..., q <= 2^64
    RowKernels<u64> goldilocks;               // q = GOLDILOCKS
    FftKernels<float> fft_float;
    FftKernels<double> fft_double;
    WordKernels<u32> words32;
    WordKernels<u64> words64;
    IntegerKernels integers;
    ByteKernels bytes;

    bool compiled() const { return q50.forward; }
    template <class T> const WordKernels<T> &words() const {
        if constexpr (sizeof(T) == 4) return words32;
        else return words64;
    }
    template <class T> const FftKernels<T> &fft() const {
        if constexpr (sizeof(T) == 4) return fft_float;
        else return fft_double;
    }
};

// Returns `isa`. If `isa` lacks kernels of rows, complex transforms, products by FFT or `torus`, takes these from
// `rest`. If `isa` has no kernel at all, returns `isa` unchanged.
inline Isa completed(Isa isa, const Isa &rest) {
    if (!isa.compiled()) return isa;
    const auto take = [](auto &own, const auto &other, bool has) {
        if (!has) own = other;
    };
    const auto take_rows = [&](auto &own, const auto &other) { take(own, other, own.forward); };
    take_rows(isa.q30, rest.q30), take_rows(isa.q31, rest.q31), take_rows(isa.q32, rest.q32);
    take_rows(isa.q46, rest.q46), take_rows(isa.q50, rest.q50), take_rows(isa.q60, rest.q60);
    take_rows(isa.q62, rest.q62), take_rows(isa.q64, rest.q64), take_rows(isa.goldilocks, rest.goldilocks);
    take(isa.fft_float, rest.fft_float, isa.fft_float.transform);
    take(isa.fft_double, rest.fft_double, isa.fft_double.transform);
    const auto take_products = [&](auto &own, const auto &other) {
        take(own.product, other.product, own.product.multiply), take(own.torus, other.torus, own.torus.transform);
    };
    take_products(isa.words32, rest.words32), take_products(isa.words64, rest.words64);
    return isa;
}

// Returns an Isa without kernels, for an instruction set that the compiler's target lacks.
constexpr Isa without_kernels(const char *name) {
    Isa isa{};
    isa.name = name;
    return isa;
}

extern const Isa isa_portable;
extern const Isa isa_avx2, isa_avx512dq, isa_avx512, isa_neon;
extern const Isa isa_avx512vnni;  // has only kernels of bytes

}  // namespace pg
