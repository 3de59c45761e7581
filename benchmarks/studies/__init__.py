"""Comparisons of kernels that answer one question each, with their page in docs/studies/.

A study is a module with `main(out)`, which measures and writes rows. It may have `launches()`, which yields
what a profiler is to count, `tune(out)`, which measures what later runs choose from, and `PARTS` by name, of
which main does one after the other.
"""

STUDIES = {
    "fft64": "block shapes of batched 64-point FFTs",
    "gemm": "products of matrices, from global memory to tensor cores, and modulo q",
}
