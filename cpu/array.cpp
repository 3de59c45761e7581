#include "array.hpp"

namespace pg {

template <class T>
Operand<T>::Operand(const Array &x, const Out &out, size_t rows)
    : data_((const T *)x.data()), length_(last(x)), rows_(rows) {
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
template class Operand<u32>;
template class Operand<u64>;

}  // namespace pg
