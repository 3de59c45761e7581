// One or two intrinsics a column, for comparison with Python's integers.
typedef unsigned long long u64;
typedef long long i64;

extern "C" __global__ void integer_intrinsics(const u64 *a, const u64 *b, u64 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u64 x = a[i], y = b[i], *o = out + 16 * i;
    unsigned x32 = unsigned(x), y32 = unsigned(y);
    o[0] = __umul64hi(x, y);
    o[1] = u64(__mul64hi(i64(x), i64(y)));
    o[2] = __umulhi(x32, y32);
    o[3] = unsigned(__mulhi(int(x32), int(y32)));
    o[4] = __clzll(i64(x));
    o[5] = __clz(int(x32));
    o[6] = __brevll(x);
    o[7] = __brev(x32);
    o[8] = __popcll(x) + 100 * __popc(x32);
    o[9] = __ffsll(i64(x)) + 100 * __ffs(int(x32));
    o[10] = __funnelshift_l(x32, y32, y32 & 63);
    o[11] = __funnelshift_r(x32, y32, y32 & 63);
    o[12] = min(x, y);
    o[13] = max(i64(x), i64(y));
    o[14] = __byte_perm(x32, y32, 0x1357);
    o[15] = u64(__double_as_longlong(__hiloint2double(int(x32), int(y32))));
}

// The product of two integers below 2^50, exactly, as a sum of two doubles.
extern "C" __global__ void exact_product(const u64 *a, const u64 *b, i64 *high, i64 *low) {
    double x = __ull2double_rn(a[threadIdx.x]), y = __ull2double_rn(b[threadIdx.x]);
    double h = __dmul_rn(x, y), l = __fma_rn(x, y, -h);
    high[threadIdx.x] = __double_as_longlong(h);
    low[threadIdx.x] = __double2ll_rn(l);
}
