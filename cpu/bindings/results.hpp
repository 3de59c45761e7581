// NumPy arrays that own memory of the core (pool.hpp). When an array and all its views are gone, NumPy frees the memory
// through the handler to which the array refers.
#pragma once
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <nanobind/nanobind.h>
#include <numpy/arrayobject.h>

#include "pool.hpp"

namespace pg {

// Source: NumPy's NEP 49
inline PyDataMem_Handler results_handler{
    "polygpu",
    1,
    {nullptr, [](void *, size_t bytes) { return pool_allocate(bytes); },
     [](void *, size_t count, size_t size) -> void * {
         return size && count > SIZE_MAX / size ? nullptr : pool_allocate_zeros(count * size);
     },
     [](void *, void *block, size_t bytes) { return pool_reallocate(block, bytes); },
     [](void *, void *block, size_t) { pool_free(block); }}};
inline PyObject *results_capsule = nullptr;

// Returns the handler for set_memory_handler. Must be called before any other function of this file, because it loads
// NumPy's functions.
inline nanobind::object make_results_handler() {
    if (PyArray_ImportNumPyAPI() < 0) throw nanobind::python_error();
    results_capsule = PyCapsule_New(&results_handler, "mem_handler", nullptr);
    if (!results_capsule) throw nanobind::python_error();
    return nanobind::borrow(results_capsule);  // the other reference stays until the process ends
}

// Sets NumPy's handler for all later arrays of this context, and returns the previous one.
inline nanobind::object set_memory_handler(nanobind::handle handler) {
    if (!PyCapsule_IsValid(handler.ptr(), "mem_handler")) throw nanobind::type_error("handler: must be one of NumPy's");
    PyObject *before = PyDataMem_SetHandler(handler.ptr());
    if (!before) throw nanobind::python_error();
    return nanobind::steal(before);
}

// Returns a new C-contiguous array of numbers, or None if it needs more than `limit` bytes of new memory or the system
// has no memory left. PyArray_Empty, between two calls of set_memory_handler, would be slower.
inline nanobind::object empty(const nanobind::tuple &shape, nanobind::handle dtype, bool zero, size_t limit) {
    auto *descriptor = reinterpret_cast<PyArray_Descr *>(dtype.ptr());
    if (!PyArray_DescrCheck(dtype.ptr()) || PyDataType_REFCHK(descriptor))
        throw nanobind::type_error("dtype: must be a numpy.dtype of numbers");
    npy_intp lengths[NPY_MAXDIMS];
    const size_t axes = shape.size();
    size_t bytes = (size_t)PyDataType_ELSIZE(descriptor);
    if (axes > NPY_MAXDIMS) throw nanobind::value_error("shape: too many axes");
    for (size_t i = 0; i < axes; ++i) {
        const npy_intp length = PyNumber_AsSsize_t(shape[i].ptr(), PyExc_OverflowError);
        lengths[i] = length;
        if (length < 0 || __builtin_mul_overflow(bytes, (size_t)length, &bytes)) {
            PyErr_Clear();
            return nanobind::none();
        }
    }
    void *block = bytes > limit ? zero ? pool_reuse_zeros(bytes) : pool_reuse(bytes)
                  : zero        ? pool_allocate_zeros(bytes)
                                : pool_allocate(bytes);
    if (!block) return nanobind::none();
    dtype.inc_ref();  // the array takes over this reference
    PyObject *array =
        PyArray_NewFromDescr(&PyArray_Type, descriptor, (int)axes, lengths, nullptr, block, NPY_ARRAY_CARRAY, nullptr);
    if (!array) {  // no memory for the array object, or an axis of an empty array is too long
        pool_free(block);
        PyErr_Clear();
        return nanobind::none();
    }
    // NumPy has no function that sets the handler of an array. The fields set here belong to NumPy's binary interface.
    Py_INCREF(results_capsule);
    reinterpret_cast<PyArrayObject_fields *>(array)->mem_handler = results_capsule;
    PyArray_ENABLEFLAGS(reinterpret_cast<PyArrayObject *>(array), NPY_ARRAY_OWNDATA);
    return nanobind::steal(array);
}

}  // namespace pg
