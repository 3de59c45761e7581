"""The command line: polygpu info | demo | mul | selftest."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from . import __version__, fft, linalg
from .backends import backend
from .backends.reference import big_product, evaluate
from .errors import ParameterError, PolyGPUError
from .ring import Method, Ring, debug
from .roots import Kind, ntt_primes


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1 where a check failed, 2 for a wrong call."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except (PolyGPUError, OSError) as error:
        print(f"polygpu {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="polygpu", description="Polynomial-ring and NTT arithmetic, exact for every modulus."
    )
    parser.add_argument("--version", action="version", version=f"polygpu {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    def command(name: str, run: Callable[[argparse.Namespace], int], help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.set_defaults(run=run)
        return sub

    command("info", _info, "Versions, CPU features, threads, GPU or why none.")
    command("demo", _demo, "ML-KEM-768 known answers and homomorphic arithmetic, checked and timed.")
    mul = command(
        "mul",
        _mul,
        "Multiply batches of polynomials in .npy files: integer coefficients (*batch, at most n). "
        "The product has coefficients in [0, Q) for Q up to 2**64, and above residues (*batch, rows, n).",
    )
    mul.add_argument("a", metavar="A.npy")
    mul.add_argument("b", metavar="B.npy")
    mul.add_argument("-o", "--output", required=True, metavar="C.npy", help="written whole or not at all")
    mul.add_argument("--n", type=int, required=True, help="degree of X^n ± 1")
    mul.add_argument("--q", type=int, required=True, action="append", help="a modulus; repeat for RNS limbs")
    mul.add_argument(
        "--residues", action="store_true", help="files hold residues (*batch, rows, n), in and out, for any Q"
    )
    mul.add_argument("--kind", choices=("negacyclic", "cyclic"), default="negacyclic")
    selftest = command("selftest", _selftest, "Every path of this machine against the definitions.")
    selftest.add_argument("--device", default="cpu", help="device to test (default: cpu)")
    return parser


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


# ---- info ----


def _info(options: argparse.Namespace) -> int:
    from importlib.metadata import PackageNotFoundError, version

    from . import _cpu
    from .backends import backend, cuda_sources, current_device
    from .backends.cuda import absence, describe
    from .roots import cache_file

    backend()  # reads POLYGPU_CPU_ISA and POLYGPU_NUM_THREADS

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    packages = ("numpy", "sympy", "cryptography", "cupy-cuda12x", "cupy-cuda13x")
    variables = ("DEVICE", "CPU_ISA", "NUM_THREADS", "CACHE_DIR")
    facts = {
        "polygpu": __version__,
        "python": platform.python_version(),
        "packages": {name: installed(name) for name in packages if installed(name)},
        "platform": platform.platform(),
        "cpu": {
            "instruction sets": _cpu.supported_isas(),
            "in use": _cpu.isa(),
            "threads": _cpu.num_threads(),
            "clock GHz": round(_cpu.clock_ghz(), 2),
        },
        "device": current_device(),
        "gpu": f"none: {reason}" if (reason := absence(0)) else describe(),
        "CUDA sources": cuda_sources(),
        "root cache": cache_file(),
        "environment": {f"POLYGPU_{v}": os.environ.get(f"POLYGPU_{v}", "not set") for v in variables},
    }
    if options.json:
        _print_json(facts)
        return 0
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {' '.join(v) if isinstance(v, list) else v}" for k, v in value.items())
        print(f"{name:<14}{value}")
    return 0


# ---- demo ----


def _demo(options: argparse.Namespace) -> int:
    from .examples import demo

    progress = None if options.json else lambda step: print(f"... {step}", file=sys.stderr)
    try:
        rows, failure = demo.run(progress), None
    except demo.CheckFailed as error:
        rows, failure = error.rows, str(error)
    if options.json:
        keys = ("name", "what", "count", "seconds", "ok")
        _print_json({"ok": failure is None, "rows": [{k: getattr(r, k) for k in keys} for r in rows]})
    else:
        width = max(len(f"{row.name} {row.what}") for row in rows)
        print(f"{'':<{width}}  count  ms for all  checked")
        for row in rows:
            name = f"{row.name} {row.what}"
            print(f"{name:<{width}}  {row.count:5d} {1e3 * row.seconds:11.1f}  {'ok' if row.ok else 'WRONG'}")
    if failure is not None:
        print(f"polygpu demo: {failure}", file=sys.stderr)
    return 0 if failure is None else 1


# ---- mul ----


def _mul(options: argparse.Namespace) -> int:
    ring = Ring(options.n, options.q, kind=options.kind)
    arrays = [_load(path) for path in (options.a, options.b)]
    began = time.perf_counter()
    with debug():  # residues of a file are looked at
        a, b = (ring.from_residues(x) if options.residues else ring(x) for x in arrays)
    product = (a * b).cpu()
    residues = options.residues or ring.modulus > 1 << 64
    if residues:
        result = product.data
    else:
        signed = ring.modulus <= 1 << 63
        result = product.to_bigints().astype(np.int64 if signed else np.uint64)
    seconds = time.perf_counter() - began
    _save(options.output, result)
    kind = "residues (*batch, rows, n)" if residues else "coefficients"
    facts = {
        "output": options.output,
        "holds": kind,
        "shape": list(result.shape),
        "seconds": seconds,
    }
    if options.json:
        _print_json(facts)
    else:
        print(f"{options.output}: {result.dtype} {kind}, shape {result.shape}, {seconds:.3g} s")
    return 0


def _load(path: str) -> np.ndarray[Any, np.dtype[Any]]:
    """An integer array of a .npy file; nothing in the file is executed."""
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise ParameterError(f"{path}: no such file") from None
    except (ValueError, EOFError, OSError) as error:
        if str(error).startswith("Object arrays"):
            raise ParameterError(
                f"{path}: an array of Python objects is refused, loading one could run code; "
                "save ring(values).data with numpy.save and pass --residues"
            ) from None
        raise ParameterError(
            f"{path}: not a whole .npy file of integers ({str(error).splitlines()[0]}); "
            "write one with numpy.save"
        ) from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise ParameterError(f"{path}: an archive of several arrays; write one array with numpy.save")
    return array


def _save(path: str, array: np.ndarray[Any, np.dtype[Any]]) -> None:
    """Write to a neighbour and rename: a reader sees the old file or the whole new one."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ParameterError(f"{path}: there is no folder {folder}; make it first")
    handle, name = tempfile.mkstemp(dir=folder, prefix=".polygpu-", suffix=".npy")
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, array, allow_pickle=False)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


# ---- selftest ----


def _selftest(options: argparse.Namespace) -> int:
    from . import _cpu
    from .backends import device, load

    failures, results = 0, []
    began = time.perf_counter()
    load("cpu")  # reads POLYGPU_CPU_ISA, so that it does not undo the choices below
    before = _cpu.isa()
    with device(options.device):
        isas = _cpu.supported_isas() if options.device == "cpu" else [None]
        try:
            for isa in isas:
                if isa is not None:
                    _cpu.set_isa(isa)
                for name, check in _checks(small=options.device == "reference"):
                    start = time.perf_counter()
                    try:
                        check()
                        problem = None
                    except AssertionError as error:
                        problem, failures = str(error) or "wrong value", failures + 1
                    seconds = time.perf_counter() - start
                    results.append({"isa": isa, "name": name, "seconds": seconds, "problem": problem})
                    if not options.json:
                        where = isa or options.device
                        print(
                            f"{where:<10}{name:<52}{1e3 * seconds:8.1f} ms  {problem or 'ok'}",
                            flush=True,
                        )
        finally:
            _cpu.set_isa(before)
    total = time.perf_counter() - began
    if options.json:
        _print_json({"ok": not failures, "seconds": total, "checks": results})
    else:
        print(f"{len(results)} checks, {failures} failed, {total:.1f} s")
    return 1 if failures else 0


def _checks(small: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """A name and a check for every word, path and kind; `small` keeps to degrees the definitions can do."""
    kinds: tuple[Kind, ...] = ("negacyclic", "cyclic")
    degrees = (1, 8, 64) if small else (1, 8, 64, 512, 1 << 14)
    for bits in (29, 30, 31, 32, 46, 50, 51, 60, 62, 63, 64):
        for kind in kinds:
            rings = [
                Ring(n, ntt_primes(n, bits, kind=kind), kind=kind) for n in degrees if n >> (bits - 20) == 0
            ]
            yield f"{kind} transform and product, {bits}-bit prime", partial(_check_rings, rings)
    n = 32 if small else 256
    others = {
        "RNS of four limbs": Ring(n, ntt_primes(n, 50, 2) + ntt_primes(n, 30, 2)),
        "incomplete transform (ML-KEM)": Ring.preset("ml-kem") if not small else Ring(8, ntt_primes(4, 20)),
        "power of two 2^64": Ring(n, 1 << 64),
        "power of two 2^32": Ring(n, 1 << 32, kind="cyclic"),
        "composite word": Ring(n + 1, 10**18 + 2, kind="cyclic"),
        "unfriendly primes": Ring(n - 1, [2**31 - 1, 2**61 - 1]),
        "wide modulus of 200 bits": Ring(n, 2**200 - 75),
        "wide modulus 2^128": Ring(n - 3, 2**128),
    }
    for name, ring in others.items():
        yield name, partial(_check_rings, [ring])
    shape = (3, 9, 2) if small else (33, 130, 17)
    yield "matrix products modulo words", partial(_check_matrices, shape)
    squares = [Ring(8, ntt_primes(8, bits)) for bits in (30, 50, 62, 64)]
    yield "matrices of polynomials", partial(_check_poly_matrices, [*squares, Ring(8, 41), Ring(6, 1 << 64)])
    yield "complex transforms and convolutions", partial(_check_complex, (2, 64) if small else (2, 64, 4096))


def _check_rings(rings: list[Ring]) -> None:
    """Random and largest operands: whole products up to degree 4096, values at points beyond."""
    for ring in rings:
        n, modulus = ring.n, ring.modulus
        for a, b in (ring.random(2, seed=n), ring([[modulus - 1] * n] * 2)):
            c, value = a * b, a.ntt() if ring.has_eval else None
            several = ring.base_degree != 1 and not ring.limbs.wide
            methods: tuple[Method, ...] = ("ntt", "fft") if several else ()
            for method in methods:
                assert a.mul(b, method=method) == c, f"product by {method} in {ring!r}"
            assert (a + b - b) == a and (-a + a) == 0, f"sum in {ring!r}"
            x, y = a.to_bigints().tolist(), b.to_bigints().tolist()
            if n <= 4096:
                expected = big_product(x, y, modulus, -1 if ring.kind == "negacyclic" else 1)
                assert c.to_bigints().tolist() == expected, f"product in {ring!r}"
            if value is None:
                continue
            assert value.intt() == a, f"inverse transform in {ring!r}"
            assert (value * b.ntt()).intt() == c, f"convolution in {ring!r}"
            if ring.base_degree == 1 and not ring.limbs.wide:
                limb = len(ring.moduli) - 1
                q, point = ring.moduli[limb], int(ring.eval_points(limb)[n - 1])
                at = [evaluate(p, point, q) for p in (x, y, c.to_bigints().tolist())]
                assert int(value.data[limb, n - 1]) == at[0], f"value at a point in {ring!r}"
                assert at[2] == at[0] * at[1] % q, f"product at a point in {ring!r}"


def _check_matrices(shape: tuple[int, int, int]) -> None:
    """Random and largest words, against Python ints."""
    compute, rng, (m, k, n) = backend(), np.random.default_rng(1), shape
    for q in (2, 257, 2**30 - 35, 2**31 - 1, 1 << 32, 2**50 - 27, 2**62 - 57, 1 << 62):
        dtype = np.uint32 if q <= 1 << 32 else np.uint64
        a, b = (rng.integers(0, q, size, dtype=dtype) for size in ((m, k), (k, n)))
        a[0], b[:, 0] = np.iinfo(dtype).max, q - 1
        c = compute.to_host(linalg.matmul(compute.from_host(a), compute.from_host(b), q))
        expected = a.astype(object) @ b.astype(object) % q
        assert c.tolist() == expected.tolist(), f"matrix product modulo {q}"


def _check_poly_matrices(rings: list[Ring]) -> None:
    """Random matrices, against sums of products of polynomials."""
    for ring in rings:
        a, b = ring.random((3, 4), seed=1), ring.random((4, 2), seed=2)
        assert a @ b == (a[:, :, np.newaxis] * b).sum(1), f"matrix product in {ring!r}"


def _check_complex(lengths: tuple[int, ...]) -> None:
    """Rows there and back, and convolutions, against NumPy in long double."""
    compute, rng = backend(), np.random.default_rng(1)

    def wrong(found: Any, expected: Any) -> float:
        return float(np.linalg.norm(compute.to_host(found) - expected) / np.linalg.norm(expected))

    for dtype, bound in ((np.complex64, 2.0**-21), (np.complex128, 2.0**-50)):
        for n in lengths:
            x = (rng.standard_normal((5, n)) + 1j * rng.standard_normal((5, n))).astype(dtype)
            spectrum = fft.fft(compute.from_host(x))
            exact = np.fft.fft(x.astype(np.clongdouble))
            assert wrong(spectrum, exact) < bound, f"{dtype.__name__} transform of {n} points"
            assert wrong(fft.fft(spectrum, inverse=True), x) < 2 * bound, f"{dtype.__name__} inverse of {n}"
            if n == 64:
                row = compute.from_host(x)
                convolution = np.fft.ifft(exact * exact[:1])
                assert wrong(fft.convolve64(row, row[:1]), convolution) < bound, (
                    f"{dtype.__name__} convolution"
                )


if __name__ == "__main__":
    sys.exit(main())
