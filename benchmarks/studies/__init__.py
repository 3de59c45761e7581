"""Comparisons of kernels that answer one question each, with their page in docs/studies/.

A study is a module with `main(out)`, which measures and writes rows, and `launches()`, which yields what a
profiler is to count.
"""

STUDIES = {"fft64": "block shapes of batched 64-point FFTs"}
