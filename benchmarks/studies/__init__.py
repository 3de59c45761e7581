"""Comparisons of kernels that answer one question each, with their page in docs/studies/.

A study is a module with `main(out)`, which measures and writes rows. It may have `launches()`, which yields
what a profiler is to count, `tune(out)`, which measures what later runs choose from, and `PARTS` by name, of
which main does one after the other.
"""

STUDIES = {
    "fft64": "block shapes of batched 64-point FFTs",
    "fourstep": "large transforms in four steps, and the shapes of two passes",
    "gemm": "products of matrices, from global memory to tensor cores, and modulo q",
    "transpose": "transposes through shared memory, bank conflicts, products with twiddles on the way",
    "ntt64": "transforms of 64 residues, through shared memory and in registers, part by part",
    "ntt256": "transforms of 2^16 residues by transforms of 256, with transposes apart or fused",
}
