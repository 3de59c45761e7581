// Computes the row and the column of an entry, and the row of a broadcast operand that belongs to a row of the result.
// 64-bit divisions would take longer than a kernel's memory accesses. So if the divisor is a power of two, the usual
// case, `quotient` and `rest` use shifts and masks.
#pragma once
#include "modulus.cuh"

PG_DEVICE u64 quotient(u64 x, u64 y) { return y & (y - 1) ? x / y : x >> (63 - __clzll((i64)y)); }
PG_DEVICE u64 rest(u64 x, u64 y) { return y & (y - 1) ? x % y : x & (y - 1); }

constexpr int MAX_AXES = 6;  // axes of a batch, at most; in arrays the innermost comes last

// How the operands' batch axes broadcast. Dense operands have the same rows as the result, and need no layout.
template <int OPERANDS> struct LayoutOf {
    u64 shape[MAX_AXES];           // the shape of the batch
    u64 step[OPERANDS][MAX_AXES];  // by operand and axis: rows from one index to the next, 0 if the axis is broadcast

    PG_DEVICE u64 row(int operand, u64 row, u32 limbs) const {
        u64 at = rest(row, limbs);
        visit(quotient(row, limbs), [&](int axis, u64 i) { at += i * step[operand][axis]; });
        return at;
    }
    // Writes the rows of the first COUNT operands to `at`. The indices along the batch axes are computed once for all
    // operands.
    template <int COUNT> PG_DEVICE void rows(u64 row, u32 limbs, u64 (&at)[COUNT]) const {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) at[k] = rest(row, limbs);
        visit(quotient(row, limbs), [&](int axis, u64 i) {
#pragma unroll
            for (int k = 0; k < COUNT; ++k) at[k] += i * step[k][axis];
        });
    }

  private:
    // Calls add(axis, index) for each axis, beginning with the innermost. Stops if all further axes have index 0.
    template <class Add> PG_DEVICE void visit(u64 batch, const Add &add) const {
#pragma unroll
        for (int axis = MAX_AXES - 1; axis >= 0; --axis) {
            if (!batch) return;
            add(axis, rest(batch, shape[axis]));
            batch = quotient(batch, shape[axis]);
        }
    }
};
using Layout = LayoutOf<3>;
