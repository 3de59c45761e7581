// Arrays that Python passes, read through the buffer protocol: nanobind's ndarray takes four times as long, and
// reads strides that ctypes leaves out.
#pragma once
#include <nanobind/nanobind.h>

#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace pg {

inline void require(bool holds, const char *what) {
    if (!holds) throw nanobind::value_error(what);
}

// An array of numbers in host memory, C-contiguous, that stays where it is during a call. Whoever reads it compares
// its shape and the size of its numbers with what they expect.
class Array {
  public:
    static constexpr int ACCESS = PyBUF_C_CONTIGUOUS;

    Array() = default;
    Array(const Array &) = delete;
    ~Array() { PyBuffer_Release(&view_); }
    // False, and no Python error, where the object offers no such array.
    bool open(PyObject *object, int access) {
        if (PyObject_GetBuffer(object, &view_, access) == 0) {
            if (readable()) return true;
            PyBuffer_Release(&view_);
        }
        PyErr_Clear();
        return false;
    }
    explicit operator bool() const { return view_.obj; }  // not None

    const void *data() const { return view_.buf; }
    nanobind::object owner() const { return nanobind::borrow(view_.obj); }
    size_t itemsize() const { return (size_t)view_.itemsize; }
    size_t size() const { return (size_t)view_.len / itemsize(); }
    size_t ndim() const { return (size_t)view_.ndim; }
    size_t shape(size_t axis) const { return (size_t)view_.shape[axis]; }
    ptrdiff_t stride(size_t axis) const { return view_.strides[axis] / view_.itemsize; }  // in entries

  protected:
    Py_buffer view_{};

  private:
    // Of 4, 8 or 16 bytes, where such numbers may lie, and with strides, which ctypes leaves out
    bool readable() const {
        if (view_.itemsize != 4 && view_.itemsize != 8 && view_.itemsize != 16) return false;
        if ((uintptr_t)view_.buf % (uintptr_t)std::min<Py_ssize_t>(view_.itemsize, 8)) return false;
        if (view_.ndim && !(view_.shape && view_.strides)) return false;
        for (int i = 0; i < view_.ndim; ++i)
            if (view_.strides[i] % view_.itemsize) return false;
        return true;
    }
};

// An array of which the kind of numbers is known, which takes a little longer.
class Numbers : public Array {
  public:
    static constexpr int ACCESS = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;
    // Whether they are of this type, in the machine's order of bytes. Source: format characters of Python's struct.
    template <class T> bool hold() const {
        const char *formats = std::is_same_v<T, std::complex<float>>    ? "Zf"
                              : std::is_same_v<T, std::complex<double>> ? "Zd"
                              : std::is_signed_v<T>                     ? "ilq"
                                                                        : "ILQ";
        const char *format = view_.format ? view_.format : "B";
        if (*formats == 'Z') return itemsize() == sizeof(T) && !std::strcmp(format, formats);
        return itemsize() == sizeof(T) && *format && !format[1] && std::strchr(formats, *format);
    }
};

// One that is written. It holds no references to objects, say, which words would overwrite.
class Out : public Numbers {
  public:
    static constexpr int ACCESS = PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE | PyBUF_FORMAT;
    void *data() const { return view_.buf; }
};

// With any strides
class StridedArray : public Array {
  public:
    static constexpr int ACCESS = PyBUF_STRIDES;
};
class StridedOut : public Out {
  public:
    static constexpr int ACCESS = PyBUF_STRIDES | PyBUF_WRITABLE | PyBUF_FORMAT;
};

template <class A> size_t last(const A &x) {
    require(x.ndim() >= 1, "an array without axes");
    return x.shape(x.ndim() - 1);
}

// Where a result begins, (*batch, rows, n)
template <class T> T *result_of(const Out &out, size_t rows) {
    require(out.ndim() >= 2 && out.shape(out.ndim() - 2) == rows && out.hold<T>(), "out: wrong dtype or rows");
    return (T *)out.data();
}

inline size_t batch_of(const Out &x) {
    size_t items = 1;
    for (size_t i = 0; i + 2 < x.ndim(); ++i) items *= x.shape(i);
    return items;
}

// An operand whose batch axes broadcast against those of the result.
template <class T> class Operand {
  public:
    Operand(const Array &x, const Out &out, size_t rows) : data_((const T *)x.data()), length_(last(x)), rows_(rows) {
        require(x.ndim() >= 2 && x.ndim() <= out.ndim(), "operand: more axes than the result");
        require(x.itemsize() == sizeof(T) && x.shape(x.ndim() - 2) == rows, "operand: wrong dtype or rows");
        const size_t axes = out.ndim() - 2, missing = out.ndim() - x.ndim();
        const auto size = [&](size_t axis) { return axis < missing ? 1 : x.shape(axis - missing); };
        bool repeats = false;
        for (size_t i = 0; i < axes; ++i) {
            require(size(i) == 1 || size(i) == out.shape(i), "operand: batch axes do not broadcast");
            repeats |= size(i) != out.shape(i);
        }
        if (!repeats) return;
        size_t step = 1;
        for (size_t i = axes; i-- > 0; step *= size(i)) axes_.push_back({out.shape(i), size(i) == 1 ? 0 : step});
    }
    size_t length() const { return length_; }
    const T *item(size_t index) const {
        size_t at = axes_.empty() ? index : 0;
        for (const Axis &axis : axes_) at += index % axis.size * axis.step, index /= axis.size;
        return data_ + at * rows_ * length_;
    }
    const T *row(size_t index) const { return item(index / rows_) + index % rows_ * length_; }

  private:
    struct Axis {
        size_t size, step;  // of the result, and items between neighbours of the operand
    };

    const T *data_;
    size_t length_, rows_;
    std::vector<Axis> axes_;  // the last one first; none where the operand has all items of the result
};

}  // namespace pg

namespace nanobind::detail {

template <class A> struct type_caster<A, enable_if_t<std::is_base_of_v<pg::Array, A>>> {
    static constexpr auto Name = const_name("numpy.ndarray");
    template <class> using Cast = A &;
    template <class> static constexpr bool can_cast() { return true; }
    bool from_python(handle source, uint32_t, cleanup_list *) noexcept {
        return source.is_none() || array.open(source.ptr(), A::ACCESS);
    }
    explicit operator A &() { return array; }
    A array;
};

}  // namespace nanobind::detail
