// Complex transforms of arrays (rows, points), complex64 or complex128.
#pragma once
#include "array.hpp"

namespace pg {

// out = the transform of each row of x or, if `inverse`, the inverse transform with the factor 1/points. points is a
// power of two, at most FFT_MAX_POINTS. out may be x.
void fft(const Numbers &x, const Out &out, bool inverse);

// out = ifft(fft(a) * fft(b)) for each row. Rows have 64 points. b may be a single row. out may be a or b.
void convolve64(const Numbers &a, const Numbers &b, const Out &out);

}  // namespace pg
