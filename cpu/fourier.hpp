// Complex transforms of arrays (rows, points), complex64 or complex128.
#pragma once
#include "array.hpp"

namespace pg {

// points = 2^k <= FFT_MAX_POINTS. out may be x. inverse: results are divided by points.
void fft(const Numbers &x, const Out &out, bool inverse);

// out = ifft(fft(a) * fft(b)) by rows of 64 points. b may be a single row. out may be a or b.
void convolve64(const Numbers &a, const Numbers &b, const Out &out);

}  // namespace pg
