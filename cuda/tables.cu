// Tables of twiddles, made where they are used: one for each pass. One thread an entry of one limb. grid: entries / 256
// in x, limbs in y.
#include "complex.cuh"

// A pass takes stages log_blocks ... log_blocks + log_length - 1 of the tree (tile.cuh). Below each of its 2^log_blocks
// nodes ("blocks") it has 2^log_length twiddles. Stages are grouped in rounds; starts[stage]: the stage at which its
// round starts, counted within the pass. Node (b << k) + i of a stage k below its round's start lies in unit i >> unit
// of the stage, of 2^unit entries. There are 2^start such units side by side, for each b.
struct PassTable {
    const u32 *starts;
    u32 log_blocks, log_length, log_unit;  // log_unit: of the largest units

    PG_DEVICE u64 node_of_entry(u64 entry) const {
        const u64 block = entry >> log_length, local = entry & ((1ull << log_length) - 1);
        if (local == 0) return 0;
        const u32 stage = 63 - __clzll((i64)local), start = starts[stage], k = stage - start, unit = min(k, log_unit);
        const u64 rest = local ^ (1ull << stage), b = rest >> unit & ((1ull << start) - 1);
        const u64 i = (rest >> (unit + start) << unit) + (rest & ((1u << unit) - 1));
        return (1ull << (log_blocks + stage)) + (block << stage) + (b << k) + i;
    }
    // The entry of node `node` of the last stage of all.
    PG_DEVICE u64 entry_of_last(u64 node) const {
        const u32 stage = log_length - 1, start = starts[stage], k = stage - start, unit = min(k, log_unit);
        const u64 block = node >> stage, rest = node & ((1ull << stage) - 1);
        const u64 b = rest >> k, i = rest & ((1ull << k) - 1);
        return (block << log_length) + (1ull << stage) + (((i >> unit << start) + b) << unit) +
               (i & ((1u << unit) - 1));
    }
};
template <class W> constexpr u32 LOG_UNIT = sizeof(typename W::Twiddle) == 8;

// The twiddle of a node is the product of factors[limb][d] over the bits d of its index (docs/math.md, "The tree of
// factors"): all bits of a negacyclic node, all but the top one of a cyclic node. Nodes 0 (which is none: its entry is
// the factor of the root's other half) and 1 carry scale[limb] too.
template <class W>
__global__ void __launch_bounds__(256)
    fill_twiddles(typename W::Twiddle *table, const Modulus *moduli, const u64 *factors, const u64 *scale,
                  const u32 *starts, u32 log_blocks, u32 log_length, u32 bits, u32 negacyclic) {
    const u64 entry = (u64)blockIdx.x * 256 + threadIdx.x, entries = 1ull << (log_blocks + log_length);
    if (entry >= entries) return;
    const Modulus m = moduli[blockIdx.y];
    const u64 *factor = factors + blockIdx.y * bits,
              node = PassTable{starts, log_blocks, log_length, LOG_UNIT<W>}.node_of_entry(entry);
    u64 index = node;
    if (!negacyclic && node) index ^= 1ull << (63 - __clzll((i64)node));
    u64 w = node < 2 ? scale[blockIdx.y] : reduce(m, 1);
    for (u32 d = 0; d < bits; ++d)
        if (index >> d & 1) w = mul_mod(m, w, factor[d]);
    table[blockIdx.y * entries + entry] = W::twiddle(m, w);
}

// leaves: the constants c of the leaves X^base - c; the two below the last twiddle w have c = w and c = -w.
// forward: the table of the last pass.
template <class W>
__global__ void __launch_bounds__(256)
    fill_leaves(u64 *leaves, const typename W::Twiddle *forward, const Modulus *moduli, const u32 *starts,
                u32 log_blocks, u32 log_length) {
    const u64 k = (u64)blockIdx.x * 256 + threadIdx.x, points = 1ull << (log_blocks + log_length);
    if (k >= points) return;
    const Modulus &m = moduli[blockIdx.y];
    const PassTable table = {starts, log_blocks, log_length, LOG_UNIT<W>};
    const u64 w = W::residue(m, forward[blockIdx.y * points + table.entry_of_last(k / 2)]);
    leaves[blockIdx.y * points + k] = k % 2 ? neg_mod(m, w) : w;
}

// table: the twiddles that `nodes` holds by node, in the order of a pass.
template <class W>
__global__ void __launch_bounds__(256) arrange_twiddles(typename W::Twiddle *table, const typename W::Twiddle *nodes,
                                                        const u32 *starts, u32 log_blocks, u32 log_length) {
    const u64 entry = (u64)blockIdx.x * 256 + threadIdx.x;
    if (entry >= 1ull << (log_blocks + log_length)) return;
    table[entry] = nodes[PassTable{starts, log_blocks, log_length, LOG_UNIT<W>}.node_of_entry(entry)];
}
