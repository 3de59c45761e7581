"""The command line: polygpu info | demo | selftest | bench."""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from math import prod
from typing import Any, TextIO

import numpy as np

from . import __version__, fft, linalg
from ._backends import backend
from ._backends.reference import big_product, evaluate
from ._core.checks import Product
from ._core.exact.primes import ntt_primes
from ._core.quotient import KINDS, Quotient
from .errors import ParameterError, PolyGPUError
from .files import File, opened, seed_shown
from .ring import Ring


def main(arguments: list[str] | None = None) -> int:
    """Run the command line. Return its status: 0, 1 if a check failed, 2 for an error, 130 after Ctrl-C.

    arguments: the words of the command line after the program's name, by default those in sys.argv.
    """
    with _escaping():
        return _main(arguments)


def _main(arguments: list[str] | None) -> int:
    name = "polygpu"
    try:
        try:
            options = _parser().parse_args(arguments)
            name = f"polygpu {options.command}"
            status: int = options.run(options)
        except SystemExit:  # raised by argparse for --help, --version and wrong arguments
            _flush(sys.stdout)
            raise
        _flush(sys.stdout)
    except KeyboardInterrupt:
        status = 130
    except (PolyGPUError, OSError, MemoryError) as error:
        status = 2
        with suppress(OSError):
            print(
                f"{name}: {str(error) or 'There is not enough memory. Use smaller batches.'}", file=sys.stderr
            )
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            _flush(stream)
    return status


@contextmanager
def _escaping() -> Iterator[None]:
    """Make stdout and stderr write escapes instead of characters that they cannot encode."""
    changed = []
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            with suppress(OSError, ValueError):  # reconfigure() flushes, and the stream may be full or closed
                changed.append((stream, stream.errors))
                stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in changed:
            with suppress(OSError, ValueError):
                stream.reconfigure(errors=errors)


def _flush(stream: TextIO | None) -> None:
    """Flush the stream. If this fails, drop the buffered text: Python would flush it again at exit."""
    if stream is None:  # the stream was closed when Python started
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

    info = command("info", _info, "Versions, CPU features, threads, GPU or why none; or what a file holds.")
    info.add_argument(
        "file", nargs="?", metavar="FILE", help="of polygpu.save: its names, shapes, rings and bytes"
    )
    command("demo", _demo, "ML-KEM-768 known answers and homomorphic arithmetic, checked and timed.")
    selftest = command("selftest", _selftest, "Every path of this machine against the definitions.")
    selftest.add_argument("--device", default="cpu", help="device to test (default: cpu)")
    bench = command(
        "bench", _bench, "Time transforms and products here, in about 20 s, beside recorded machines."
    )
    bench.add_argument("--out", metavar="FILE", help="add the rows to this file, a line of JSON each")
    bench.add_argument(
        "--device", action="append", help="only this one, or several (default: cpu and each GPU that answers)"
    )
    return parser


def _print_json(value: Any, file: TextIO | None = None) -> None:
    print(json.dumps(value, indent=2), file=file)


# ---- info ----


def _info(options: argparse.Namespace) -> int:
    if options.file is not None:
        with opened(options.file) as file:
            _info_of_file(file, options.json)
        return 0
    from importlib.metadata import PackageNotFoundError, version

    from . import _cpu
    from ._backends import backend, cuda_sources, current_device
    from ._backends.cuda import absence, describe
    from ._core.exact.root_cache import cache_folder
    from ._core.processors import processor_quota

    backend()  # reads POLYGPU_CPU_ISA, POLYGPU_NUM_THREADS and POLYGPU_POOL_BYTES

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    packages = ("numpy", "sympy", "cryptography", "cupy-cuda12x", "cupy-cuda13x", "torch")
    variables = [f"POLYGPU_{v}" for v in ("DEVICE", "CPU_ISA", "NUM_THREADS", "POOL_BYTES", "CACHE_DIR")]
    facts = {
        "polygpu": __version__,
        "python": platform.python_version(),
        "packages": {name: installed(name) for name in packages if installed(name)},
        "platform": platform.platform(),
        "cpu": {
            "instruction sets": _cpu.supported_isas(),
            "in use": _cpu.isa(),
            "threads": _cpu.num_threads(),
            "processor quota": round(processor_quota() or 0, 2) or "none",
            "clock GHz": round(_cpu.clock_ghz(), 2),
        },
        "device": current_device(),
        "gpu": f"none: {reason}" if (reason := absence(0)) else describe(),
        "CUDA sources": cuda_sources(),
        "root cache": cache_folder(),
        "environment": {name: os.environ.get(name, "not set") for name in variables},
        "missing extras": {
            extra: f'pip install "polygpu[{extra}]"'
            for extra, modules in EXTRAS.items()
            if not all(map(find_spec, modules))
        },
    }
    if options.json:
        _print_json(facts)
        return 0
    for name, value in _lines(facts):
        print(f"{name:<15}{value}")
    return 0


# The extras of pyproject.toml that add functions, and the modules that each of them installs. The extras
# for a GPU are not listed here: the line "gpu" of `polygpu info` says why a GPU cannot be used.
EXTRAS = {
    "dask": ("dask", "distributed", "zarr"),
    "interop": () if sys.version_info >= (3, 14) else ("zstandard",),  # Python 3.14 has its own
    "examples": ("sklearn",),
    "torch": ("torch",),
}


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each of the ten lines that `polygpu info` prints."""
    cpu, environment = facts["cpu"], facts["environment"]
    others = [isa for isa in cpu["instruction sets"] if isa != cpu["in use"]]
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    given = [f"{name}={value}" for name, value in environment.items() if value != "not set"]
    missing = [f"{extra} ({command})" for extra, command in facts["missing extras"].items()]
    yield "polygpu", facts["polygpu"]
    yield "python", f"{facts['python']} with {packages}"
    yield "platform", facts["platform"]
    yield (
        "processor",
        f"{cpu['in use']} at {cpu['clock GHz']} GHz; it also runs {', '.join(others) or 'no other'}",
    )
    yield "threads", f"{cpu['threads']}; quota of processors: {cpu['processor quota']}"
    yield "gpu", facts["gpu"]
    yield (
        "device",
        f"{facts['device']}, on which new values are made; CUDA sources in {facts['CUDA sources']}",
    )
    yield "root cache", facts["root cache"]
    yield "environment", ", ".join(given) or f"none of {', '.join(environment)} is set"
    yield "missing extras", ", ".join(missing) or "none"


def _info_of_file(file: File, as_json: bool) -> None:
    """Print what the header of a file says. Residues are not read."""
    rings = [file.ring(i) for i in range(len(file.rings))]
    facts = []
    for name, entry in file.entries.items():
        ring = rings[entry.ring]
        fact = {"name": name, "ring": entry.ring, "shape": entry.batch, "domain": entry.domain}
        if entry.seed is None:
            fact["bytes"] = entry.size
        else:
            expanded = prod(entry.batch) * ring.rows * ring.n * ring.dtype.itemsize
            fact |= {"seed": seed_shown(entry.seed), "start": entry.start, "expanded bytes": expanded}
        facts.append(fact)
    if as_json:
        more = [{"bits": ring.modulus.bit_length(), "dtype": str(ring.dtype)} for ring in rings]
        described = [{**told, **m} for told, m in zip(file.rings, more, strict=True)]
        _print_json({"file": file.path, "bytes": file.size, "rings": described, "values": facts})
        return
    print(f"{file.path}: {file.size} bytes, values {len(facts)}, rings {len(rings)}")
    for i, ring in enumerate(rings):
        print(f"ring {i}: {ring!r}, Q of {ring.modulus.bit_length()} bits, {ring.dtype}")
    width = min(40, max((len(_printable(fact["name"])) for fact in facts), default=0))
    for fact in facts:
        if "seed" in fact:
            held = f"seed <{fact['seed']}> from {fact['start']}, {fact['expanded bytes']} bytes when expanded"
        else:
            held = f"{fact['bytes']} bytes"
        about = f"ring {fact['ring']}, shape {fact['shape']}, {fact['domain']}, {held}"
        print(f"{_printable(fact['name']):<{width}}  {about}")


def _printable(name: str) -> str:
    return name if name.isascii() and name.isprintable() else ascii(name)


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


# ---- selftest ----


def _selftest(options: argparse.Namespace) -> int:
    from . import _cpu
    from ._backends import device, get_backend

    failures, results = 0, []
    began = time.perf_counter()
    get_backend("cpu")  # reads POLYGPU_CPU_ISA; at a later time this would override set_isa() below
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
    """Yield (name, check) for every word size, code path and kind of ring.

    small: use small degrees, for the slow device "reference".
    """
    degrees = (1, 8, 64) if small else (1, 8, 64, 512, 1 << 14)
    for bits in (29, 30, 31, 32, 46, 50, 51, 60, 62, 63, 64):
        for kind in KINDS:
            rings = [
                Ring(n, ntt_primes(n, bits=bits, kind=kind), kind=kind)
                for n in degrees
                if Quotient(kind, n).leaf_sizes and n >> (bits - 20) == 0
            ]
            yield f"{kind} transform and product, {bits}-bit prime", partial(_check_rings, rings)
    n = 32 if small else 256
    others = {
        "RNS of four limbs": Ring(n, ntt_primes(n, bits=50, count=2) + ntt_primes(n, bits=30, count=2)),
        "incomplete transform (ML-KEM)": Ring.preset("ml-kem")
        if not small
        else Ring(8, ntt_primes(4, bits=20)),
        "leaves of three coefficients (NTTRU)": Ring(48 if small else 768, 7681, kind="trinomial"),
        "trinomial, composite word": Ring(n + 2, 10**18 + 2, kind="trinomial"),
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
    squares = [Ring(8, ntt_primes(8, bits=bits)) for bits in (30, 50, 62, 64)]
    yield "matrices of polynomials", partial(_check_poly_matrices, [*squares, Ring(8, 41), Ring(6, 1 << 64)])
    yield "complex transforms and convolutions", partial(_check_complex, (2, 64) if small else (2, 64, 4096))


def _check_rings(rings: list[Ring]) -> None:
    """Check products and transforms in rings, with random operands and with the largest operands.

    Compare products of degree up to 4096 with products of Python ints. If a ring has a complete
    transform and no modulus above 2^64, also evaluate an operand and the product at one point in Python
    ints.
    """
    for ring in rings:
        n, modulus = ring.n, ring.modulus
        for a, b in (ring.random(2, seed=n), ring([[modulus - 1] * n] * 2)):
            c, value = a * b, a.ntt() if ring.has_eval else None
            several = ring.leaf_size != 1 and not ring._plan.basis.wide
            products: tuple[Product, ...] = ("ntt", "fft") if several else ()
            for way in products:
                assert a.mul(b, product=way) == c, f"product by {way} in {ring!r}"
            assert (a + b - b) == a and (-a + a) == 0, f"sum in {ring!r}"
            x, y = a.to_bigints().tolist(), b.to_bigints().tolist()
            if n <= 4096:
                expected = big_product(x, y, modulus, ring.kind)
                assert c.to_bigints().tolist() == expected, f"product in {ring!r}"
            if value is None:
                continue
            assert value.intt() == a, f"inverse transform in {ring!r}"
            assert (value * b.ntt()).intt() == c, f"convolution in {ring!r}"
            if ring.leaf_size == 1 and not ring._plan.basis.wide:
                limb = len(ring.moduli) - 1
                q, point = ring.moduli[limb], int(ring.eval_points(limb)[n - 1])
                at = [evaluate(p, point, q) for p in (x, y, c.to_bigints().tolist())]
                assert int(value.data[limb, n - 1]) == at[0], f"value at a point in {ring!r}"
                assert at[2] == at[0] * at[1] % q, f"product at a point in {ring!r}"


def _check_matrices(shape: tuple[int, int, int]) -> None:
    """Compare matrix products of random words and of the largest words with Python ints."""
    compute, rng, (m, k, n) = backend(), np.random.default_rng(1), shape
    for q in (2, 257, 2**30 - 35, 2**31 - 1, 1 << 32, 2**50 - 27, 2**62 - 57, 1 << 62):
        dtype = np.uint32 if q <= 1 << 32 else np.uint64
        a, b = (rng.integers(0, q, size, dtype=dtype) for size in ((m, k), (k, n)))
        a[0], b[:, 0] = np.iinfo(dtype).max, q - 1
        c = compute.to_host(linalg.matmul(compute.from_host(a), compute.from_host(b), q=q))
        expected = a.astype(object) @ b.astype(object) % q
        assert c.tolist() == expected.tolist(), f"matrix product modulo {q}"


def _check_poly_matrices(rings: list[Ring]) -> None:
    """Compare products of random matrices of polynomials with sums of products of polynomials."""
    for ring in rings:
        a, b = ring.random((3, 4), seed=1), ring.random((4, 2), seed=2)
        assert a @ b == (a[:, :, np.newaxis] * b).sum(1), f"matrix product in {ring!r}"


def _check_complex(lengths: tuple[int, ...]) -> None:
    """Compare complex transforms, their inverses and convolutions with NumPy in long double."""
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


# ---- bench ----


def _bench(options: argparse.Namespace) -> int:
    from ._backends import checked_device
    from ._bench import bench
    from ._bench.timing import Row, Unverified, print_table

    if options.out is not None:
        with open(options.out, "a"):  # before the work, so that a wrong path fails at once
            pass
    devices = [checked_device(name, "--device") for name in options.device or bench.answering()]
    if "reference" in devices:
        raise ParameterError(
            "--device reference would take hours, because that device is for checks. Use cpu or cuda."
        )

    def told(row: Row) -> None:
        if not options.json:
            n, bits, batch = (row.params[name] for name in ("n", "bits", "batch"))
            what = f"{row.op}, N = {n}, {bits} bits" + (f", {batch} polynomials" if batch != 1 else "")
            print(f"... {what}: {row.median / 1e3:.4g} us", file=sys.stderr)

    try:
        rows = bench.measure_here(devices, told)
    except Unverified as error:
        print(f"polygpu bench: {error}", file=sys.stderr)
        return 1
    if options.out is not None:
        with open(options.out, "a", encoding="utf-8") as file:
            file.writelines(bench.line_of(row) for row in rows)
    recorded = bench.recorded()
    if options.json:
        machines = json.loads(bench.as_json(recorded))
        _print_json({"rows": [asdict(row) for row in rows], "recorded": machines})
        return 0
    for board in bench.boards(bench.figures(rows), recorded):
        print_table(*bench.table(board))
        note = ["in brackets: A's time over theirs"] * (len(board.machines) > board.own)
        print("\n".join((*board.legend(), *note)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
