// Tables of twiddles, computed on the device that uses them. The table of a prime holds the twiddles of each pass of
// the forward transform, then those of the inverse transform. A thread computes one entry of one prime. gridDim.x:
// entries / 256. gridDim.y: primes.
#include "complex.cuh"
#include "goldilocks.cuh"
#include "quotient.cuh"

// A pass computes stages log_blocks ... log_blocks + log_length - 1 of the tree (tile.cuh). It starts at 2^log_blocks
// nodes ("blocks"), and has 2^log_length twiddles below each. Its stages are grouped in rounds of log_values stages;
// the first round may be shorter. A round starts at stage `start` of the pass. This stage has 2^start nodes in each
// block; b is the index of such a node. Stage k of the round has 2^k nodes below node b; i is the index of such a node.
// A unit holds 2^unit twiddles, where `unit` is the smaller of k and log_unit. The twiddle of node i lies in unit i >>
// unit of node b. Units with the same index lie side by side, in the order of their nodes b.
struct PassTable {
    u32 log_blocks, log_length, log_values, log_unit;  // log_unit: log2 of the entries of the largest units

    PG_DEVICE u32 first_radix() const { return (log_length - 1) % log_values + 1; }
    // start(stage): the stage at which the round that contains `stage` starts; both are counted within the pass.
    // radix(start): the number of stages of the round that starts at `start`.
    PG_DEVICE u32 start(u32 stage) const {
        return stage < first_radix() ? 0 : stage - (stage - first_radix()) % log_values;
    }
    PG_DEVICE u32 radix(u32 start) const { return start == 0 ? first_radix() : log_values; }
    // The node to which an entry of the table belongs. `first`: the stage at which the node's round starts. The node is
    // in stage first + k. It is descendant i of node b of stage `first`. i and b count from 0; b is a number within
    // `block`. Entry 0 of a block has no node.
    struct Entry {
        u64 block, b, i;
        u32 first, k;
    };
    PG_DEVICE Entry entry_at(u64 entry) const {
        const u64 block = entry >> log_length, local = entry & ((1ull << log_length) - 1);
        const u32 stage = 63 - __clzll((i64)local), first = start(stage), k = stage - first, unit = min(k, log_unit);
        const u64 rest = local ^ (1ull << stage), b = rest >> unit & ((1ull << first) - 1);
        const u64 i = (rest >> (unit + first) << unit) + (rest & ((1u << unit) - 1));
        return {block, b, i, first, k};
    }
    PG_DEVICE bool is_first(u64 entry) const { return (entry & ((1ull << log_length) - 1)) == 0; }
    // Node e.b of stage e.first has 2^k descendants in stage e.first + k. Returns the index of descendant i in the
    // tree, 0 <= i < 2^k.
    PG_DEVICE u64 node(const Entry &e, u32 k, u64 i) const {
        const u32 stage = e.first + k;
        return (1ull << (log_blocks + stage)) + (e.block << stage) + (e.b << k) + i;
    }
    PG_DEVICE u64 node_of_entry(u64 entry) const {
        if (is_first(entry)) return 0;
        const Entry e = entry_at(entry);
        return node(e, e.k, e.i);
    }
};
template <class W> constexpr u32 LOG_UNIT = sizeof(typename W::Twiddle) == 8;
// POWERS: whether a table holds powers of a number rho (goldilocks.cuh) instead of twiddles (tile.cuh). A round starts
// at several nodes, and each of these nodes has its own rho: the twiddle of its first descendant in the round's last
// stage. The power rho^E, 0 < E < 2^radix, lies where the twiddle with the number E would lie. In the pass that starts
// at node 1, entry 0 is the first of the two numbers of first[prime], and all powers of the second round are multiplied
// by it. Inverse rounds that start at a stage START > 0 have their powers in another order: rho^j of node b is entry
//     2^START + 2 * ((b >> 1) * (2^radix - 1) + j - 1) + (b & 1).
// One instruction of a thread reads rho^j of the nodes b and b + 1, where b is even. The next thread reads rho^j or
// rho^(j + 1).
template <class W> constexpr bool POWERS = false;
template <int K, Quotient QUOTIENT> constexpr bool POWERS<Goldilocks<K, QUOTIENT>> = true;

// The twiddle of a node is the product of factors[prime][d] over the bits d that are set in the node's exponent
// (exponent_of_node). Entries 0 and 1 of a table are those of first[prime]. Both belong to node 1: the inverse
// transform multiplies one half of the root's results by entry 0, the other half by entry 1 (inverse_root in word.cuh).
// The tables may be for the part of a larger tree below its node `root`. The nodes of the part are then numbered from
// 1, but `bits` and `factors` are those of the larger tree, which has 2^bits leaves.
struct FillParameters {
    char *const *tables;  // the table of each prime
    const Modulus *moduli;
    const u64 *factors, *first;
    u64 offset;  // bytes in a table before the twiddles of this pass
    u64 root;    // the tables belong to the tree below this node; 1: to the whole tree
    u32 log_blocks, log_length, log_values;
    u32 bits, inverse;
    Quotient quotient;
};
template <class W> __global__ void __launch_bounds__(256) fill_twiddles(const FillParameters p) {
    const u64 entry = (u64)blockIdx.x * 256 + threadIdx.x;
    if (entry >= 1ull << (p.log_blocks + p.log_length)) return;
    const Modulus m = p.moduli[blockIdx.y];
    const u32 count = p.bits + 2;  // exponents are below 3 * 2^bits
    const u64 *factor = p.factors + blockIdx.y * count;
    const PassTable pass = {p.log_blocks, p.log_length, p.log_values, LOG_UNIT<W>};
    const u64 one = reduce(m, 1), *const first = p.first + 2 * blockIdx.y;
    const auto twiddle_of = [&](u64 node) {
        const u64 below = (p.root - 1) << (63 - __clzll((i64)node));
        const u64 exponent = exponent_of_node(p.quotient, p.bits, node + below);
        u64 w = one;
        for (u32 d = 0; d < count; ++d)
            if (exponent >> d & 1) w = mul_mod(m, w, factor[d]);
        return w;
    };
    u64 w;
    if constexpr (POWERS<W>) {
        const bool is_first = pass.is_first(entry);
        PassTable::Entry e = is_first ? PassTable::Entry() : pass.entry_at(entry);
        u64 power = (1ull << e.k) + e.i;  // the entry stands for this power of rho, not for node i of a stage
        if (p.inverse && e.first > 0) {
            const u64 local = entry & ((1ull << p.log_length) - 1), rest = local - (1ull << e.first);
            const u64 powers = (1ull << pass.radix(e.first)) - 1, pair = rest / 2;
            e.b = pair / powers * 2 + rest % 2, power = pair % powers + 1;
        }
        const bool scaled = is_first || e.first == pass.first_radix();
        w = p.log_blocks == 0 && scaled ? first[0] : one;
        if (!is_first) {
            const u64 rho = twiddle_of(pass.node(e, pass.radix(e.first) - 1, 0));
            for (; power > 0; --power) w = mul_mod(m, w, rho);
        }
    } else {
        const u64 node = pass.node_of_entry(entry);
        w = node < 2 ? first[node] : twiddle_of(node);
    }
    ((typename W::Twiddle *)(p.tables[blockIdx.y] + p.offset))[entry] = W::twiddle(m, w);
}

// Copies twiddles from `nodes`, which is indexed by node, into the order of a pass. grid: entries / 256.
struct ArrangeParameters {
    char *table;
    const void *nodes;
    u64 offset;  // bytes in the table before the twiddles of this pass
    u32 log_blocks, log_length, log_values;
};
template <class W> __global__ void __launch_bounds__(256) arrange_twiddles(const ArrangeParameters p) {
    using Twiddle = typename W::Twiddle;
    const u64 entry = (u64)blockIdx.x * 256 + threadIdx.x;
    if (entry >= 1ull << (p.log_blocks + p.log_length)) return;
    const PassTable pass = {p.log_blocks, p.log_length, p.log_values, LOG_UNIT<W>};
    ((Twiddle *)(p.table + p.offset))[entry] = ((const Twiddle *)p.nodes)[pass.node_of_entry(entry)];
}
