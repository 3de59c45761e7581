// Tables of twiddles, made where they are used. One thread an entry of one limb. grid: points / 256 in x, limbs in y.
#include "word.cuh"

// Stages are grouped in rounds (tile.cuh). Within the depth D of the tree, node (b << k) + i of the round that starts
// at depth d = D - k lies at 2^D + (i << d) + b. starts[D]: that d.
PG_DEVICE u64 node_of_entry(u64 entry, const u32 *starts) {
    if (entry < 2) return entry;
    const u32 depth = 63 - __clzll((i64)entry), start = starts[depth], k = depth - start;
    const u64 rest = entry ^ (1ull << depth);
    return (1ull << depth) + ((rest & ((1ull << start) - 1)) << k) + (rest >> start);
}
PG_DEVICE u64 entry_of_node(u64 node, const u32 *starts) {
    if (node < 2) return node;
    const u32 depth = 63 - __clzll((i64)node), start = starts[depth], k = depth - start;
    const u64 rest = node ^ (1ull << depth);
    return (1ull << depth) + ((rest & ((1ull << k) - 1)) << start) + (rest >> k);
}

// The twiddle of a node is the product of factors[limb][d] over the bits d of its index (docs/math.md, "The tree of
// factors"): all bits of a negacyclic node, all but the top one of a cyclic node. Entries 0 and 1 carry scale[limb]
// too.
template <class W>
__global__ void __launch_bounds__(256)
    fill_twiddles(typename W::Twiddle *table, const Modulus *moduli, const u64 *factors, const u64 *scale,
                  const u32 *starts, u64 points, u32 bits, u32 negacyclic) {
    const u64 entry = (u64)blockIdx.x * 256 + threadIdx.x;
    if (entry >= points) return;
    const Modulus m = moduli[blockIdx.y];
    const u64 *factor = factors + blockIdx.y * bits, node = node_of_entry(entry, starts);
    u64 index = node;
    if (!negacyclic && node) index ^= 1ull << (63 - __clzll((i64)node));
    u64 w = node < 2 ? scale[blockIdx.y] : reduce(m, 1);
    for (u32 d = 0; d < bits; ++d)
        if (index >> d & 1) w = mul_mod(m, w, factor[d]);
    table[blockIdx.y * points + entry] = W::twiddle(m, w);
}

// leaves: the constants c of the leaves X^base - c; the two below the last twiddle w have c = w and c = -w.
template <class W>
__global__ void __launch_bounds__(256)
    fill_leaves(u64 *leaves, const typename W::Twiddle *forward, const Modulus *moduli, const u32 *starts, u64 points) {
    const u64 k = (u64)blockIdx.x * 256 + threadIdx.x;
    if (k >= points) return;
    const Modulus &m = moduli[blockIdx.y];
    const u64 entry = entry_of_node(points / 2 + k / 2, starts);
    const u64 w = W::residue(m, forward[blockIdx.y * points + entry]);
    leaves[blockIdx.y * points + k] = k % 2 ? neg_mod(m, w) : w;
}
