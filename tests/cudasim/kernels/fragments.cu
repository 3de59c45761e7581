// Tensor cores as PTX has them: a of 16 rows of 32 bytes, b of 8 columns of 32 bytes, c of 16 rows of 8 sums.
template <class Sum> __device__ void multiply(const unsigned *a, const unsigned *b, Sum *c, const char *type) {
    __shared__ __align__(16) unsigned left[16][12], right[8][12];  // rows of 48 bytes
    unsigned lane = threadIdx.x, g = lane / 4, t = lane % 4;
    for (unsigned i = lane; i < 128; i += 32) left[i / 8][i % 8] = a[i];
    for (unsigned i = lane; i < 64; i += 32) right[i / 8][i % 8] = b[i];
#ifndef WITHOUT_SYNC
    __syncwarp();
#endif
    unsigned x[4], y[2];
    Sum sums[4];
    for (int i = 0; i < 4; i++) sums[i] = c[8 * (g + i / 2 * 8) + 2 * t + i % 2];
    sim::load_matrices(x, 4, &left[lane % 16][lane / 16 * 4], false);
    sim::load_matrices(y, 2, &right[lane % 8][lane / 8 % 2 * 4], false);
    sim::mma(sums, x, y, type);
    for (int i = 0; i < 4; i++) c[8 * (g + i / 2 * 8) + 2 * t + i % 2] = sums[i];
}

extern "C" __global__ void multiply_s8(const unsigned *a, const unsigned *b, int *c) { multiply(a, b, c, "s8"); }
extern "C" __global__ void multiply_u8(const unsigned *a, const unsigned *b, int *c) { multiply(a, b, c, "u8"); }
extern "C" __global__ void multiply_f16(const unsigned *a, const unsigned *b, float *c) { multiply(a, b, c, "f16"); }
extern "C" __global__ void multiply_tf32(const unsigned *a, const unsigned *b, float *c) { multiply(a, b, c, "tf32"); }

// The transpose of a matrix of 8 x 8 halves.
extern "C" __global__ void transpose_halves(const unsigned *in, unsigned *out) {
    __shared__ __align__(16) unsigned rows[8][4];
    rows[threadIdx.x / 4][threadIdx.x % 4] = in[threadIdx.x];
    __syncwarp();
    sim::load_matrices(out + threadIdx.x, 1, rows[threadIdx.x % 8], true);
}

extern "C" __global__ void misaligned_row(unsigned *out) {
    __shared__ __align__(16) unsigned rows[64];
    sim::load_matrices(out + threadIdx.x, 1, rows + threadIdx.x, false);
}
