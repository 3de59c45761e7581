// Converts nested lists of Python ints to NumPy arrays, in one pass that also checks the types of the entries.
#pragma once
#include <nanobind/nanobind.h>

#include <vector>

#include "results.hpp"

namespace pg {

// The entries of a list or tuple, as borrowed references. Entries of any other object (also of a subclass of list)
// convert to false.
class Entries {
  public:
    explicit Entries(PyObject *x) : x_(x), list_(PyList_CheckExact(x)), size_(-1) {
        if (list_) size_ = PyList_Size(x);
        else if (PyTuple_CheckExact(x)) size_ = PyTuple_Size(x);
    }
    explicit operator bool() const { return size_ >= 0; }
    Py_ssize_t size() const { return size_; }
    PyObject *operator[](Py_ssize_t i) const { return list_ ? PyList_GetItem(x_, i) : PyTuple_GetItem(x_, i); }

  private:
    PyObject *x_;
    bool list_;
    Py_ssize_t size_;
};

// Writes the ints of a nested list to `to`. Returns false if the list's lengths are not shape[axis], shape[axis + 1],
// ..., if the type of an entry is not exactly int (bool is refused), or if an int does not fit int64.
inline bool write_integers(PyObject *x, const std::vector<npy_intp> &shape, size_t axis, int64_t *&to) {
    const Entries entries(x);
    if (!entries || entries.size() != shape[axis]) return false;
    for (Py_ssize_t i = 0; i < entries.size(); ++i) {
        PyObject *const entry = entries[i];
        if (axis + 1 < shape.size()) {
            if (!write_integers(entry, shape, axis + 1, to)) return false;
            continue;
        }
        int overflow = 0;
        if (!PyLong_CheckExact(entry)) return false;
        *to++ = PyLong_AsLongLongAndOverflow(entry, &overflow);
        if (overflow) return false;
    }
    return true;
}

// Returns nested lists and tuples of ints as an int64 array. Returns None for any other object. No Python code runs
// meanwhile, so no list can change.
inline nanobind::object integers_of_list(nanobind::handle x) {
    std::vector<npy_intp> shape;
    PyObject *first = x.ptr();
    for (Entries entries(first); entries; entries = Entries(first)) {
        if (shape.size() == NPY_MAXDIMS) return nanobind::none();
        shape.push_back(entries.size());
        if (entries.size() == 0) break;
        first = entries[0];
    }
    if (shape.empty()) return nanobind::none();
    const nanobind::object array = nanobind::steal(PyArray_SimpleNew((int)shape.size(), shape.data(), NPY_INT64));
    if (!array) throw nanobind::python_error();
    auto *to = static_cast<int64_t *>(PyArray_DATA(reinterpret_cast<PyArrayObject *>(array.ptr())));
    return write_integers(x.ptr(), shape, 0, to) ? array : nanobind::none();
}

}  // namespace pg
