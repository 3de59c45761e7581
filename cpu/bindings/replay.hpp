// Repeats a recorded call: calls the same functions on other arrays in host memory (polygpu/_backends/host_records.py).
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "gil.hpp"
#include "results.hpp"

namespace pg {

// Objects are numbered in this order:
//   - the operands of the call;
//   - the result of the call;
//   - `made`: arrays that each replay allocates, given by (shape, dtype);
//   - `fixed`: objects that are the same in each replay;
//   - `views`: views of earlier objects, given by (number of the object, shape, dtype, offset, strides).
class Replay {
  public:
    Replay(const nanobind::tuple &shape, nanobind::object dtype, const nanobind::list &made,
           const nanobind::list &fixed, const nanobind::list &views, const nanobind::list &steps, size_t operands,
           size_t limit, nanobind::object unusual, nanobind::object serves)
        : shape_(shape),
          dtype_(std::move(dtype)),
          operands_(operands),
          limit_(limit),
          unusual_(std::move(unusual)),
          serves_(std::move(serves)) {
        for (nanobind::handle item : made) {
            const nanobind::tuple pair = nanobind::cast<nanobind::tuple>(item);
            made_.push_back({nanobind::cast<nanobind::tuple>(pair[0]), pair[1]});
        }
        for (nanobind::handle item : fixed) fixed_.push_back(nanobind::borrow(item));
        for (nanobind::handle item : views) {
            const nanobind::tuple fields = nanobind::cast<nanobind::tuple>(item);
            views_.push_back({nanobind::cast<size_t>(fields[0]), nanobind::cast<std::vector<npy_intp>>(fields[1]),
                              fields[2], nanobind::cast<npy_intp>(fields[3]),
                              nanobind::cast<std::vector<npy_intp>>(fields[4])});
            if (views_.back().of >= count() - views_.size()) throw nanobind::value_error("views: of what comes later");
        }
        for (nanobind::handle item : steps) {
            const nanobind::tuple pair = nanobind::cast<nanobind::tuple>(item);
            steps_.push_back({pair[0], nanobind::cast<std::vector<size_t>>(pair[1])});
            const std::vector<size_t> &numbers = steps_.back().numbers;
            if (numbers.size() > MOST_ARGUMENTS) throw nanobind::value_error("steps: too many arguments");
            for (size_t number : numbers)
                if (number >= count()) throw nanobind::value_error("steps: no such object");
        }
    }

    // Returns the result, in `out` or in new memory. Returns None, with nothing done, if there is not enough memory, if
    // an array does not have the recorded form, or if unusual() is True and serves() is not. unusual(): the context
    // differs from the default context. serves(): the record may replace a call in this context.
    nanobind::object operator()(const nanobind::tuple &operands, nanobind::handle out) const {
        if (operands.size() != operands_ || (asks(unusual_) && !asks(serves_))) return nanobind::none();
        if (!out.is_none() && !takes(out.ptr(), operands)) return nanobind::none();
        nanobind::object result = out.is_none() ? empty(shape_, dtype_, false, limit_) : nanobind::borrow(out);
        if (result.is_none()) return result;
        PyObject *few[32];
        std::vector<PyObject *> many(count() > 32 ? count() : 0);
        PyObject **const objects = count() > 32 ? many.data() : few, **end = objects;
        for (size_t i = 0; i < operands_; ++i) *end++ = operands[i].ptr();
        *end++ = result.ptr();
        std::vector<nanobind::object> made;  // keeps temporary arrays and views alive
        for (const Array &array : made_) {
            made.push_back(empty(array.shape, array.dtype, false, limit_));
            if (made.back().is_none()) return made.back();
            *end++ = made.back().ptr();
        }
        for (const nanobind::object &object : fixed_) *end++ = object.ptr();
        for (const View &view : views_) {
            made.push_back(view_of(objects[view.of], view));
            if (made.back().is_none()) return made.back();
            *end++ = made.back().ptr();
        }
        PyObject *arguments[MOST_ARGUMENTS];
        for (const Step &step : steps_) {
            for (size_t i = 0; i < step.numbers.size(); ++i) arguments[i] = objects[step.numbers[i]];
            call(step.function.ptr(), arguments, step.numbers.size());
        }
        return result;
    }

    static constexpr size_t MOST_ARGUMENTS = 64;  // arguments of a recorded function call, at most

  private:
    struct Array {
        nanobind::tuple shape;
        nanobind::object dtype;
    };
    struct View {
        size_t of;
        std::vector<npy_intp> shape;
        nanobind::object dtype;
        npy_intp offset;
        std::vector<npy_intp> strides;
    };
    struct Step {
        nanobind::object function;
        std::vector<size_t> numbers;
    };

    // Calls a function without arguments. Returns whether its answer is True.
    static bool asks(const nanobind::object &function) {
        const nanobind::object answer = nanobind::steal(take_gil([&] { return PyObject_CallNoArgs(function.ptr()); }));
        if (!answer.is_valid()) throw nanobind::python_error();
        return answer.is(Py_True);
    }

    // Returns the memory of a nonempty array: the address of the lowest entry, and the address behind the highest.
    static std::pair<const char *, const char *> range_of(PyArrayObject *array) {
        const char *first = PyArray_BYTES(array), *last = first;
        for (int axis = 0; axis < PyArray_NDIM(array); ++axis) {
            const npy_intp reach = (PyArray_DIM(array, axis) - 1) * PyArray_STRIDE(array, axis);
            (reach < 0 ? first : last) += reach;
        }
        return {first, last + PyArray_ITEMSIZE(array)};
    }

    // Whether the result may be written to `out`: out must match, and must not overlap an operand (but may be one).
    bool takes(PyObject *out, const nanobind::tuple &operands) const {
        if (!PyArray_CheckExact(out)) return false;
        auto *const array = reinterpret_cast<PyArrayObject *>(out);
        if (!PyArray_ISCARRAY(array) || (size_t)PyArray_NDIM(array) != shape_.size()) return false;
        for (size_t axis = 0; axis < shape_.size(); ++axis)
            if (PyArray_DIM(array, (int)axis) != nanobind::cast<npy_intp>(shape_[axis])) return false;
        if (!PyArray_EquivTypes(PyArray_DESCR(array), reinterpret_cast<PyArray_Descr *>(dtype_.ptr()))) return false;
        const auto [begin, end] = range_of(array);
        for (nanobind::handle x : operands) {
            if (x.ptr() == out) continue;
            if (!PyArray_Check(x.ptr())) return false;
            const auto [first, behind] = range_of(reinterpret_cast<PyArrayObject *>(x.ptr()));
            if (first < end && begin < behind) return false;
        }
        return true;
    }

    size_t count() const { return operands_ + 1 + made_.size() + fixed_.size() + views_.size(); }

    // Returns a view that lies within its base, or None if the base is too small or is not contiguous.
    static nanobind::object view_of(PyObject *base, const View &view) {
        if (!PyArray_Check(base)) return nanobind::none();
        auto *const array = reinterpret_cast<PyArrayObject *>(base);
        auto *const descriptor = reinterpret_cast<PyArray_Descr *>(view.dtype.ptr());
        npy_intp first = view.offset, last = view.offset;
        for (size_t axis = 0; axis < view.shape.size(); ++axis) {
            const npy_intp reach = (view.shape[axis] - 1) * view.strides[axis];
            (reach < 0 ? first : last) += reach;
        }
        if (!PyArray_IS_C_CONTIGUOUS(array) || first < 0 ||
            last + PyDataType_ELSIZE(descriptor) > PyArray_NBYTES(array))
            return nanobind::none();
        view.dtype.inc_ref();  // the view takes over this reference
        nanobind::object made = nanobind::steal(
            PyArray_NewFromDescr(&PyArray_Type, descriptor, (int)view.shape.size(), view.shape.data(),
                                 view.strides.data(), PyArray_BYTES(array) + view.offset,
                                 PyArray_FLAGS(array) & (NPY_ARRAY_WRITEABLE | NPY_ARRAY_ALIGNED), nullptr));
        if (!made.is_valid()) throw nanobind::python_error();
        Py_INCREF(base);
        if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject *>(made.ptr()), base) < 0)
            throw nanobind::python_error();
        return made;
    }

    static void call(PyObject *function, PyObject *const *arguments, size_t count) {
        // `function` may release the GIL and take it back.
        PyObject *const returned = take_gil([&] { return PyObject_Vectorcall(function, arguments, count, nullptr); });
        if (returned == nullptr) throw nanobind::python_error();
        Py_DECREF(returned);
    }

    nanobind::tuple shape_;
    nanobind::object dtype_;
    size_t operands_, limit_;
    nanobind::object unusual_, serves_;
    std::vector<Array> made_;
    std::vector<nanobind::object> fixed_;
    std::vector<View> views_;
    std::vector<Step> steps_;
};

}  // namespace pg
