// Products modulo any q of one word, through auxiliary primes (docs/math.md, "Products through auxiliary primes").
// auxiliary_spread turns residues modulo q into residues modulo the primes. auxiliary_compose turns products modulo the
// primes into residues modulo q. A unit is one limb of one polynomial. A column is the residues of one coefficient of a
// unit modulo all primes. A thread computes one column. A unit has `length` columns in auxiliary_spread, and n columns
// in auxiliary_compose. grid: units * (columns of a unit) / 256.
#include "ptx.cuh"
#include "quotient.cuh"
#include "rows.cuh"

constexpr int MAX_PRIMES = 6;  // suffices for q <= 2^64 and n <= 2^45

// x: (rows, n). y: (units, primes, length). Row i of a unit of y holds the centred residues of x, reduced modulo prime
// i, then length - n zeros.
template <class T> struct SpreadParameters {
    const T *x;
    u64 *y;
    const Modulus *moduli, *primes;
    u64 n, length, units, first_unit;
    u32 limbs, count, dense;
    Layout layout;
};
template <class T> __global__ void __launch_bounds__(256) auxiliary_spread(const SpreadParameters<T> p) {
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= p.units * p.length) return;
    const u64 unit = quotient(e, p.length), j = e - unit * p.length, global_unit = p.first_unit + unit;
    const Modulus &m = p.moduli[rest(global_unit, p.limbs)];
    const u64 row = p.dense ? global_unit : p.layout.row(0, global_unit, p.limbs);
    const u64 value = j < p.n ? p.x[row * p.n + j] : 0;
    const bool upper = value > m.last / 2;  // whether value - q has the smaller absolute value
    for (u32 i = 0; i < p.count; ++i) {
        const Modulus &prime = p.primes[i];
        u64 r = reduce(prime, value);
        if (upper) r = sub_mod(prime, r, m.q ? reduce(prime, m.q) : reduce(prime, 1, 0));
        p.y[(unit * p.count + i) * p.length + j] = r;
    }
}

// Returns z mod m.q, where z is the centred integer with the residue x[i * stride] modulo each prime p_i. The function
// first computes the mixed-radix digits of z. constants: count^2 entries, of which entry i * count + j is 1/p_j mod p_i
// for j < i; then `count` entries, the mixed-radix digits of (P - 1) / 2, where P is the product of the primes.
PG_DEVICE u64 signed_value(const u64 *x, u64 stride, const Modulus *primes, const u64 *constants, u32 count,
                           const Modulus &m) {
    u64 digits[MAX_PRIMES];
    for (u32 i = 0; i < count; ++i) {
        const Modulus &p = primes[i];
        u64 t = x[i * stride];
        for (u32 j = 0; j < i; ++j) {
            const u64 digit = digits[j] >= p.q ? digits[j] - p.q : digits[j];
            t = barrett_product(p, sub_mod(p, t, digit), constants[i * count + j]);
        }
        digits[i] = t;
    }
    const u64 *half = constants + count * count;
    bool negative = false;
    for (u32 i = count; i-- > 0;)
        if (digits[i] != half[i]) {
            negative = digits[i] > half[i];
            break;
        }
    u64 value = 0, product = reduce(m, 1);  // product: p_0 ... p_{i-1} mod q
    for (u32 i = 0; i < count; ++i) {
        value = add_mod(m, value, mul_mod(m, reduce(m, digits[i]), product));
        product = mul_mod(m, product, reduce(m, primes[i].q));
    }
    return negative ? sub_mod(m, value, product) : value;
}

// x: (units, primes, length). y: (units, n). If length != n, x holds linear products, and this kernel reduces them by
// the ring's polynomial.
template <class T> struct ComposeParameters {
    const u64 *x;
    T *y;
    const Modulus *moduli, *primes;
    const u64 *constants;
    u64 n, length, units, first_unit;
    u32 limbs, count;
    Quotient quotient;
};
// The launch bound asks for three blocks per multiprocessor. Without this bound, the compiler gives a thread only 48
// registers on compute capability 9.0, and spills.
template <class T> __global__ void __launch_bounds__(256, 3) auxiliary_compose(const ComposeParameters<T> p) {
    start_next(starts_early());
    await_previous();
    const u64 e = (u64)blockIdx.x * 256 + threadIdx.x;
    if (e >= p.units * p.n) return;
    const u64 unit = quotient(e, p.n), j = e - unit * p.n;
    const Modulus m = p.moduli[rest(p.first_unit + unit, p.limbs)];
    const u64 *column = p.x + unit * p.count * p.length;
    const auto coefficient = [&](u64 k) {
        return signed_value(column + k, p.length, p.primes, p.constants, p.count, m);
    };
    const u64 value = p.length == p.n ? coefficient(j) : folded(p.quotient, m, p.n, j, coefficient);
    p.y[(p.first_unit + unit) * p.n + j] = (T)value;
}
