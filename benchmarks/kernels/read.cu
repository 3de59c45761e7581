// Reads n times 16 bytes and does nothing with them: how fast memory is read. grid: any. block: any.
extern "C" __global__ void read_all(const uint4 *x, unsigned long long n, unsigned *y) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    unsigned sum = 0;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 4 * step) {
        uint4 values[4] = {};
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (i + k * step < n) values[k] = __ldcs(x + i + k * step);
#pragma unroll
        for (int k = 0; k < 4; ++k) sum ^= values[k].x ^ values[k].y ^ values[k].z ^ values[k].w;
    }
    atomicXor(y, sum);
}
