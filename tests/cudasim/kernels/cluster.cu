// Clusters: every block writes one word to every block of its cluster, then sums what it got.
template <int BLOCKS> __global__ void __cluster_dims__(BLOCKS) __launch_bounds__(32) exchange(unsigned *out) {
    __shared__ unsigned inbox[BLOCKS];
    unsigned rank = sim::cluster_rank();
    sim::cluster_arrive();  // the others must have started before they are written to
    sim::cluster_wait();
    if (threadIdx.x < BLOCKS) *sim::map_shared(&inbox[rank], threadIdx.x) = 100 * blockIdx.x + threadIdx.x;
    sim::cluster_arrive();
    sim::cluster_wait();
    if (threadIdx.x == 0) {
        unsigned sum = 0;
        for (int i = 0; i < BLOCKS; i++) sum += inbox[i];
        out[blockIdx.x] = sum;
    }
}

// The same without a cluster barrier for the data: each word arrives on the receiver's mbarrier.
extern "C" __global__ void __cluster_dims__(4, 1, 1) exchange_async(unsigned *out) {
    __shared__ unsigned inbox[4];
    __shared__ uint64_t arrived;
    if (threadIdx.x == 0) {
        sim::mbarrier_init(&arrived, 1);
        sim::mbarrier_arrive_expect_tx(&arrived, sizeof inbox);
    }
    sim::cluster_arrive();
    sim::cluster_wait();
    if (threadIdx.x < 4)
        sim::store_async(sim::map_shared(&inbox[sim::cluster_rank()], threadIdx.x), 100 * blockIdx.x + threadIdx.x,
                         sim::map_shared(&arrived, threadIdx.x));
    sim::mbarrier_wait_parity(&arrived, 0);
    if (threadIdx.x == 0) out[blockIdx.x] = inbox[0] + inbox[1] + inbox[2] + inbox[3];
    sim::cluster_arrive();  // nobody may leave while the others still write to it
    sim::cluster_wait();
}
