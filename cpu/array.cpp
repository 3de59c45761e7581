#include "array.hpp"

namespace pg {

template <class T>
Operand<T>::Operand(const Array &x, const Out &out, size_t rows)
    : data_((const T *)x.data()), length_(last(x)), rows_(rows) {
    require(x.ndim() >= 2 && x.ndim() <= out.ndim(), "operand: more axes than the result");
    require(x.itemsize() == sizeof(T) && x.shape(x.ndim() - 2) == rows, "operand: wrong dtype or rows");
    const size_t axes = out.ndim() - 2, missing = out.ndim() - x.ndim();
    const auto size = [&](size_t axis) { return axis < missing ? 1 : x.shape(axis - missing); };
    const size_t last_axis = x.ndim() - 1;
    require(x.size() == 0 || ((length_ == 1 || x.stride(last_axis) == 1) &&
                              (rows == 1 || x.stride(last_axis - 1) == (ptrdiff_t)length_)),
            "operand: rows must be dense");
    bool dense = true;
    ptrdiff_t step = (ptrdiff_t)(rows * length_);
    for (size_t i = axes; i-- > 0; step *= (ptrdiff_t)size(i)) {
        require(size(i) == 1 || size(i) == out.shape(i), "operand: batch axes do not broadcast");
        const ptrdiff_t stride = size(i) == 1 ? 0 : x.stride(i - missing);
        dense &= size(i) == out.shape(i) && (size(i) == 1 || stride == step);
        axes_.push_back({out.shape(i), stride});
    }
    if (dense) axes_.clear();
}
template class Operand<u32>;
template class Operand<u64>;

}  // namespace pg
