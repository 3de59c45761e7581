// Arrays that Python passes, read through the buffer protocol. nanobind's ndarray takes four times as long, and fails
// to notice when ctypes leaves out the strides.
#pragma once
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "array.hpp"

namespace pg {

constexpr bool LITTLE_ENDIAN_BYTES = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

// The buffer flags for a parameter of type A.
template <class A> constexpr int ACCESS = PyBUF_C_CONTIGUOUS;
template <> inline constexpr int ACCESS<Numbers> = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;
template <> inline constexpr int ACCESS<Out> = PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE | PyBUF_FORMAT;
template <> inline constexpr int ACCESS<StridedArray> = PyBUF_STRIDES;
template <> inline constexpr int ACCESS<StridedOut> = PyBUF_STRIDES | PyBUF_WRITABLE | PyBUF_FORMAT;

// A Python array for the duration of a call. It cannot be copied or moved, because shape and strides may point into it.
class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer &) = delete;
    ~Buffer() { PyBuffer_Release(&view_); }
    // Returns false, without a Python error, if the object does not offer a readable array with the flags `access`.
    bool open(PyObject *object, int access) {
        if (PyObject_GetBuffer(object, &view_, access) == 0) {
            if (readable()) return true;
            PyBuffer_Release(&view_);
        }
        PyErr_Clear();
        return false;
    }
    Layout layout() const {
        return {view_.buf, (size_t)view_.len, (size_t)view_.itemsize, (size_t)view_.ndim, view_.shape, view_.strides,
                kind()};
    }
    // The array's memory, which keeps its Python owner alive. The last copy of the returned pointer must be destroyed
    // with the GIL held.
    Memory memory() const {
        const nanobind::object owner = nanobind::borrow(view_.obj);
        return Memory(view_.buf, [owner](const void *) {});
    }

  private:
    // Whether numbers have 1, 2, 4, 8 or 16 bytes and are aligned, and strides are given (ctypes gives no strides).
    bool readable() const {
        if (view_.itemsize < 1 || view_.itemsize > 16 || (view_.itemsize & (view_.itemsize - 1))) return false;
        if ((uintptr_t)view_.buf % (uintptr_t)std::min<Py_ssize_t>(view_.itemsize, 8)) return false;
        if (view_.ndim && !(view_.shape && view_.strides)) return false;
        for (int i = 0; i < view_.ndim; ++i)
            if (view_.strides[i] % view_.itemsize) return false;
        return true;
    }
    // Returns the kind that the format names. Returns `unknown` without a format, and for another byte order than the
    // machine's. Source: format characters of Python's struct; for the complex numbers Zf and Zd, PEP 3118.
    Kind kind() const {
        const char *format = view_.format;
        if (!format || !*format) return Kind::unknown;
        if (*format == (LITTLE_ENDIAN_BYTES ? '<' : '>')) ++format;
        const char letter = format[1] ? '\0' : *format;
        if (letter && std::strchr("BHILQ", letter)) return Kind::unsigned_integer;
        if (letter && std::strchr("bhilq", letter)) return Kind::signed_integer;
        if (letter == 'f' || letter == 'd') return Kind::real;
        return view_.itemsize < 8 || std::strcmp(format, view_.itemsize == 8 ? "Zf" : "Zd") ? Kind::unknown
                                                                                            : Kind::complex;
    }

    Py_buffer view_{};
};

// The arrays of a tuple, for the duration of a call. Arrays are opened like parameters of type A.
template <class A> class OpenArrays {
  public:
    OpenArrays(const nanobind::tuple &objects, const char *refusal) : buffers_(objects.size()) {
        for (size_t i = 0; i < buffers_.size(); ++i) {
            if (!buffers_[i].open(objects[i].ptr(), ACCESS<A>)) throw nanobind::type_error(refusal);
            arrays_.emplace_back(buffers_[i].layout());
        }
    }
    const std::vector<Array> &arrays() const { return arrays_; }

  private:
    std::vector<Buffer> buffers_;
    std::vector<Array> arrays_;
};

}  // namespace pg

namespace nanobind::detail {

template <class A> struct type_caster<A, enable_if_t<std::is_base_of_v<pg::Array, A>>> {
    static constexpr auto Name = const_name("numpy.ndarray");
    template <class> using Cast = A;
    template <class> static constexpr bool can_cast() { return true; }
    bool from_python(handle source, uint32_t, cleanup_list *) noexcept {
        return source.is_none() || buffer.open(source.ptr(), pg::ACCESS<A>);
    }
    explicit operator A() const { return A(buffer.layout()); }
    pg::Buffer buffer;
};

template <class A> struct type_caster<pg::Lasting<A>> : type_caster<A> {
    template <class> using Cast = pg::Lasting<A>;
    explicit operator pg::Lasting<A>() const { return {A(this->buffer.layout()), this->buffer.memory()}; }
};

}  // namespace nanobind::detail
