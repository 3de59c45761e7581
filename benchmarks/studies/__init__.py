"""Comparisons of kernels that answer one question each, with their page in docs/studies/.

A study is a module with

    PARTS      by name; the tasks of a part become rows, one after the other
    KINDS      by name; the tables of these rows
    groups()   a profiler counts the kernels of these groups; optional, as the next two
    tune       a part that measures what other parts choose from
    FIGURES    by their places in docs/
"""

STUDIES = {
    "fft64": "block shapes of batched 64-point FFTs",
    "fourstep": "large transforms in four steps, and the shapes of two passes",
    "gemm": "products of matrices, from global memory to tensor cores, and modulo q",
    "transpose": "transposes through shared memory, bank conflicts, products with twiddles on the way",
    "ntt64": "transforms of 64 residues, through shared memory and in registers, part by part",
    "ntt256": "transforms of 2^16 residues by transforms of 256, with transposes apart or fused",
}
