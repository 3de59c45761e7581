// Views of the arrays that a call of the core reads and writes. They own no memory; bindings/buffer.hpp makes them.
//
// Arrays have the shape (*batch, rows, degree). They are C-contiguous, except StridedArray and StridedOut. A row holds
// the residues of one limb or, for a modulus of more than 64 bits, one word of each residue. The batch axes of an
// operand broadcast against those of the result.
#pragma once
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "modulus.hpp"

namespace pg {

// Returns f(T()), where T is the word that stores residues: u32 if `narrow`, else u64.
template <class F> decltype(auto) with_word(bool narrow, const F &f) { return narrow ? f(u32()) : f(u64()); }

// If `holds` is false, throws an exception, which becomes a ValueError in Python.
inline void require(bool holds, const char *what) {
    if (!holds) throw std::invalid_argument(what);
}

enum class Kind : unsigned char { unknown, signed_integer, unsigned_integer, real, complex };

// Where and how the numbers of an array lie in memory. Data, shape and strides lie in the caller's memory.
struct Layout {
    void *data;
    size_t bytes, itemsize, ndim;      // bytes: size of the array; itemsize: bytes of a number, 1, 2, 4, 8 or 16
    const ptrdiff_t *shape, *strides;  // strides in bytes
    Kind kind;
};

// An array of numbers in host memory. The memory does not move during a call. Readers must check shape and item size.
class Array {
  public:
    Array() = default;
    explicit Array(const Layout &layout) : layout_(layout) {}
    explicit operator bool() const { return layout_.itemsize; }  // false for None

    const void *data() const { return layout_.data; }
    size_t itemsize() const { return layout_.itemsize; }
    size_t size() const { return layout_.bytes / layout_.itemsize; }
    size_t ndim() const { return layout_.ndim; }
    size_t shape(size_t axis) const { return (size_t)layout_.shape[axis]; }
    ptrdiff_t stride(size_t axis) const { return layout_.strides[axis] / (ptrdiff_t)itemsize(); }  // in entries

  protected:
    Layout layout_{};
};

// An array whose layout also tells the kind of its numbers (`Kind`). Finding the kind takes a little longer.
class Numbers : public Array {
  public:
    using Array::Array;
    template <class T> bool hold() const {
        constexpr Kind kind = std::is_floating_point_v<T> ? Kind::real
                              : !std::is_integral_v<T>    ? Kind::complex
                              : std::is_signed_v<T>       ? Kind::signed_integer
                                                          : Kind::unsigned_integer;
        return itemsize() == sizeof(T) && layout_.kind == kind;
    }
};

// An array to which results are written. Calls check the kind of its numbers, because residues must not overwrite
// references to Python objects.
class Out : public Numbers {
  public:
    using Numbers::Numbers;
    void *data() const { return layout_.data; }
};

// Arrays with any strides.
class StridedArray : public Array {
  public:
    using Array::Array;
};
class StridedOut : public Out {
  public:
    using Out::Out;
};

// Lasting: an array with a reference to its memory. The reference keeps the memory alive after the call.
using Memory = std::shared_ptr<const void>;
template <class A> struct Lasting {
    A array;
    Memory memory;  // keeps the array's numbers alive
};

template <class A> size_t last(const A &x) {
    require(x.ndim() >= 1, "an array without axes");
    return x.shape(x.ndim() - 1);
}

// Checks that `out` has the shape (*batch, rows, n) and words of type T. Returns a pointer to its first word.
template <class T> T *result_of(const Out &out, size_t rows) {
    require(out.ndim() >= 2 && out.shape(out.ndim() - 2) == rows && out.hold<T>(), "out: wrong dtype or rows");
    return (T *)out.data();
}

inline size_t batch_of(const Out &x) {
    size_t items = 1;
    for (size_t i = 0; i + 2 < x.ndim(); ++i) items *= x.shape(i);
    return items;
}

// An operand whose batch axes broadcast against those of the result. Batch axes may have any strides. Rows are dense.
template <class T> class Operand {
  public:
    Operand(const Array &x, const Out &out, size_t rows);
    size_t length() const { return length_; }
    const T *item(size_t index) const {
        if (axes_.empty()) return data_ + index * rows_ * length_;
        ptrdiff_t at = 0;
        for (const Axis &axis : axes_) at += (ptrdiff_t)(index % axis.size) * axis.step, index /= axis.size;
        return data_ + at;
    }
    const T *row(size_t index) const { return item(index / rows_) + index % rows_ * length_; }

  private:
    struct Axis {
        size_t size;     // length of the axis in the result
        ptrdiff_t step;  // stride of the axis in the operand, in entries; 0 if the axis broadcasts
    };

    const T *data_;
    size_t length_, rows_;
    std::vector<Axis> axes_;  // the last axis first; empty if the operand is dense and no axis broadcasts
};

}  // namespace pg
