"""The command line: polygpu info | demo | mul | selftest."""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import signal
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any, TextIO

import numpy as np

from . import __version__, _interrupts_end, fft, linalg
from .backends import backend
from .backends.reference import big_product, evaluate
from .checks import Kind, Product, debug
from .errors import ParameterError, PolyGPUError
from .exact.primes import ntt_primes
from .memory import check_array
from .ring import Ring


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1 where a check failed, 2 for a wrong call."""
    ours = (
        _interrupts_end
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    )
    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # polygpu/__init__.py took it away
    name = "polygpu"
    try:
        try:
            options = _parser().parse_args(arguments)
            name = f"polygpu {options.command}"
            status: int = options.run(options)
        except SystemExit:  # of --help, --version and wrong calls
            _flush(sys.stdout)
            raise
        _flush(sys.stdout)
    except KeyboardInterrupt:
        status = 130
    except (PolyGPUError, OSError, MemoryError) as error:
        status = 2
        with suppress(OSError):
            print(f"{name}: {str(error) or 'not enough memory; take smaller batches'}", file=sys.stderr)
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is left may wait for a reader
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            _flush(stream)
    return status


def _flush(stream: TextIO | None) -> None:
    """Write what is kept. Where that fails the rest is dropped, or Python would fail again at its exit."""
    if stream is None:  # closed from the start
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


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
    mul.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="C.npy",
        help="a file is written whole or not at all; into a pipe or device, with the report on stderr",
    )
    mul.add_argument("--n", type=int, required=True, help="degree of X^n ± 1")
    mul.add_argument("--q", type=int, required=True, action="append", help="a modulus; repeat for RNS limbs")
    mul.add_argument(
        "--residues", action="store_true", help="files hold residues (*batch, rows, n), in and out, for any Q"
    )
    mul.add_argument("--kind", choices=("negacyclic", "cyclic"), default="negacyclic")
    selftest = command("selftest", _selftest, "Every path of this machine against the definitions.")
    selftest.add_argument("--device", default="cpu", help="device to test (default: cpu)")
    return parser


def _print_json(value: Any, file: TextIO | None = None) -> None:
    print(json.dumps(value, indent=2), file=file)


# ---- info ----


def _info(options: argparse.Namespace) -> int:
    from importlib.metadata import PackageNotFoundError, version

    from . import _cpu
    from .backends import backend, cuda_sources, current_device
    from .backends.cuda import absence, describe
    from .exact.root_cache import cache_file

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
        keys = ("name", "what", "count", "seconds", "ok", "note")
        _print_json({"ok": failure is None, "rows": [{k: getattr(r, k) for k in keys} for r in rows]})
    else:
        width = max(len(f"{row.name} {row.what}") for row in rows)
        print(f"{'':<{width}}  count  ms for all  checked")
        for row in rows:
            name, verdict = f"{row.name} {row.what}", "ok" if row.ok else "WRONG"
            line = f"{name:<{width}}  {row.count:5d} {1e3 * row.seconds:11.1f}  {verdict:<7}  {row.note}"
            print(line.rstrip())
    if failure is not None:
        print(f"polygpu demo: {failure}", file=sys.stderr)
    return 0 if failure is None else 1


# ---- mul ----


def _mul(options: argparse.Namespace) -> int:
    place, regular = _place(options.output)  # first, so that nobody waits for nothing
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
    try:
        _save(place, regular, result)
    except OSError as error:
        raise PolyGPUError(
            f"{options.output}: not written ({error.strerror}); "
            "give a file with room for it, or a pipe that is read to its end"
        ) from None
    kind = "residues (*batch, rows, n)" if residues else "coefficients"
    facts = {
        "output": options.output,
        "holds": kind,
        "shape": list(result.shape),
        "seconds": seconds,
    }
    report = sys.stdout if regular else sys.stderr  # not into the array
    if options.json:
        _print_json(facts, report)
    else:
        print(f"{options.output}: {result.dtype} {kind}, shape {result.shape}, {seconds:.3g} s", file=report)
    return 0


_LONGEST_HEADER = 10000  # bytes; NumPy's own, for integers, have a few hundred


def _load(path: str) -> np.ndarray[Any, np.dtype[Any]]:
    """An integer array of a .npy file; nothing in it is executed, no memory taken that it does not fill."""

    def refused(reason: object) -> ParameterError:
        return ParameterError(
            f"{path}: not a whole .npy file of integers ({reason}); write one with numpy.save"
        )

    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # not opened: that could wait for a writer
            raise refused("a folder, pipe or device")
        with open(path, "rb") as file:
            head = io.BytesIO(file.read(_LONGEST_HEADER))
            if head.getvalue().startswith((b"PK\3\4", b"PK\5\6")):
                raise ParameterError(f"{path}: an archive of several arrays; write one array with numpy.save")
            try:
                shape, fortran_order, dtype = _header(head)
            except Exception:  # nearly any, for a hostile header; NumPy's advice to trust it is kept back
                raise refused("it has no header that NumPy reads") from None
            if dtype.hasobject:
                raise ParameterError(
                    f"{path}: an array of Python objects is refused, loading one could run code; "
                    "save ring(values).data with numpy.save and pass --residues"
                )
            if dtype.kind not in "iu":
                raise ParameterError(
                    f"{path}: dtype {dtype.name} must be ints; convert with x.astype(np.int64) or round "
                    "yourself, nothing is rounded for you"
                )
            if not all(type(length) is int and length >= 0 for length in shape):  # True is an int too
                raise refused("its shape has other than lengths")
            count, held = prod(shape), os.fstat(file.fileno()).st_size - head.tell()
            if count * dtype.itemsize > held:
                raise refused(f"its header announces more than the {held} bytes that follow it")
            check_array(count * dtype.itemsize)
            file.seek(head.tell())
            array = np.fromfile(file, dtype, count)
    except FileNotFoundError:
        raise ParameterError(f"{path}: no such file") from None
    except OSError as error:
        raise refused(error.strerror or error) from None
    try:
        return array.reshape(shape, order="F" if fortran_order else "C")
    except (ValueError, OverflowError):  # too many axes, an empty one beside huge ones, a file cut meanwhile
        raise refused("no array has its shape") from None


def _header(head: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the order is Fortran's, and dtype; leaves `head` behind them."""
    first, later = np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0
    # A header of version 3.0 is one of 2.0 in another encoding; for integers it is all ASCII.
    read = {(1, 0): first, (2, 0): later, (3, 0): later}[np.lib.format.read_magic(head)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers by Python 2, which are right, and of odd literals
        return read(head)


def _place(path: str) -> tuple[str | int, bool]:
    """The name of the regular file that a path leads to, old or new, and True; else what to write through."""
    try:
        status = os.stat(path)  # follows links, also those in /proc to what has no name
    except FileNotFoundError:
        status = None  # a new file, maybe at the end of a link
    except OSError as error:
        raise ParameterError(
            f"{path}: {error.strerror}; give a file in a folder that can be written"
        ) from None
    if status is not None:
        if stat.S_ISDIR(status.st_mode):
            raise ParameterError(f"{path}: a folder; give the name of a file in it")
        with suppress(OSError):
            if os.path.samestat(status, os.fstat(1)):
                return 1, False  # by its number: a socket has no name, a file would be written from its start
        if not os.access(path, os.W_OK):
            raise ParameterError(f"{path}: may not be written; allow that with chmod, or give another file")
        if not stat.S_ISREG(status.st_mode):
            return path, False
    name = path
    while os.path.islink(name):  # loops have been refused above
        name = os.path.join(os.path.dirname(name), os.readlink(name))
    if status is not None and not (os.path.exists(name) and os.path.samestat(status, os.stat(name))):
        return path, False  # open in some process, and without a name since
    folder, last = os.path.split(name)
    if not last:
        raise ParameterError(f"{path!r}: no name of a file; give one")
    if not os.path.isdir(folder or "."):
        raise ParameterError(f"{path}: there is no folder {folder}; make it first")
    if not os.access(folder or ".", os.W_OK | os.X_OK):
        raise ParameterError(
            f"{path}: its folder may not be written; allow that with chmod, or give another file"
        )
    return name, True


_THROUGH = os.O_WRONLY | os.O_NOCTTY | os.O_TRUNC  # nothing is created where a pipe has gone meanwhile


def _save(place: str | int, regular: bool, array: np.ndarray[Any, np.dtype[Any]]) -> None:
    """Write a neighbour and rename it: a reader sees the old file or the whole new one. Or write through."""
    if isinstance(place, int) or not regular:
        handle = os.dup(place) if isinstance(place, int) else os.open(place, _THROUGH)
        with open(handle, "wb", buffering=0):
            _write(handle, array)
        return
    old = os.stat(place) if os.path.exists(place) else None
    neighbour = os.path.join(os.path.dirname(place), f".polygpu-{os.urandom(8).hex()}")
    # The old file may be private; a new one has what the umask leaves.
    opener = partial(os.open, mode=0o600 if old else 0o666)
    try:
        with open(neighbour, "xb", buffering=0, opener=opener) as file:
            _write(file.fileno(), array)
            if old:
                for owner in ((-1, old.st_gid), (old.st_uid, -1)):
                    with suppress(OSError):  # only root gives files away
                        os.fchown(file.fileno(), *owner)
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))  # last: a new owner clears bits
            os.fsync(file.fileno())
        os.replace(neighbour, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(neighbour)
        raise


def _write(handle: int, array: np.ndarray[Any, np.dtype[Any]]) -> None:
    """A .npy file from front to back, since NumPy would seek in a file of its own, and pipes cannot."""

    def write(data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(handle, rest) :]

    sink: Any = SimpleNamespace(write=write)
    np.save(sink, array, allow_pickle=False)


# ---- selftest ----


def _selftest(options: argparse.Namespace) -> int:
    from . import _cpu
    from .backends import device, get_backend

    failures, results = 0, []
    began = time.perf_counter()
    get_backend("cpu")  # reads POLYGPU_CPU_ISA, so that it does not undo the choices below
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
            several = ring.leaf_size != 1 and not ring.basis.wide
            products: tuple[Product, ...] = ("ntt", "fft") if several else ()
            for way in products:
                assert a.mul(b, product=way) == c, f"product by {way} in {ring!r}"
            assert (a + b - b) == a and (-a + a) == 0, f"sum in {ring!r}"
            x, y = a.to_bigints().tolist(), b.to_bigints().tolist()
            if n <= 4096:
                expected = big_product(x, y, modulus, -1 if ring.kind == "negacyclic" else 1)
                assert c.to_bigints().tolist() == expected, f"product in {ring!r}"
            if value is None:
                continue
            assert value.intt() == a, f"inverse transform in {ring!r}"
            assert (value * b.ntt()).intt() == c, f"convolution in {ring!r}"
            if ring.leaf_size == 1 and not ring.basis.wide:
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
