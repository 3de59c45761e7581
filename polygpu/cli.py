"""The command line: polygpu info | demo | mul | convert | selftest | bench | plot."""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import IO, Any, TextIO

import numpy as np

from . import __version__, fft, linalg
from ._backends import backend
from ._backends.reference import big_product, evaluate
from ._core.checks import Domain, Product, debug
from ._core.exact.primes import ntt_primes
from ._core.memory import check_array
from ._core.quotient import KINDS
from .errors import ParameterError, PolyGPUError, RingMismatch
from .files import (
    LONGEST_NOTE,
    File,
    Held,
    Note,
    load,
    open_regular,
    opened,
    place_of,
    replacing,
    save,
    seed_shown,
    through,
    write_all,
)
from .poly import Poly
from .ring import Ring


def main(arguments: list[str] | None = None) -> int:
    """Run the command line. Return its status: 0, 1 if a check failed, 2 for an error, 130 after Ctrl-C.

    Without arguments it is that of this process, of sys.argv. Then a second Ctrl-C ends the process at once,
    even if it waits for the reader of a pipe. With arguments it leaves all signal handlers alone.
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
    if (
        arguments is None
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the flushes below may wait for a pipe's reader
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            _flush(stream)
    return status


@contextmanager
def _escaping() -> Iterator[None]:
    """Write characters that the encoding of stdout or stderr does not have as escapes."""
    changed = []
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            with suppress(OSError, ValueError):  # it flushes first, into what may be full or closed
                changed.append((stream, stream.errors))
                stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in changed:
            with suppress(OSError, ValueError):
                stream.reconfigure(errors=errors)


def _flush(stream: TextIO | None) -> None:
    """Write what the stream has buffered. On failure drop the rest, or Python fails again at its exit."""
    if stream is None:  # Python found it closed at its start
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
    mul.add_argument("--n", type=int, required=True, help="degree of X^n + 1 or X^n - 1")
    mul.add_argument("--q", type=int, required=True, action="append", help="a modulus; repeat for RNS limbs")
    mul.add_argument(
        "--residues", action="store_true", help="files hold residues (*batch, rows, n), in and out, for any Q"
    )
    mul.add_argument("--kind", choices=KINDS, default="negacyclic")
    convert = command(
        "convert",
        _convert,
        "Convert files of polynomials: .npy (one), .npz and .safetensors (several, by name). A .safetensors "
        "names rings and domains, and so do arrays that convert wrote wherever that is needed to read them "
        "back. Other arrays hold integer coefficients (*batch, at most n), of any sign and size. "
        "Coefficients are written in [0, Q) for Q up to 2**64; above, residues (*batch, rows, n) are.",
    )
    convert.add_argument("input", metavar="IN")
    convert.add_argument("output", metavar="OUT", help="a file is written whole or not at all")
    convert.add_argument("--name", help="the one value to convert; the name in OUT of what a .npy holds")
    convert.add_argument("--n", type=int, help="of other arrays: degree of X^n + 1 or X^n - 1")
    convert.add_argument(
        "--q", type=int, action="append", help="of other arrays: a modulus; repeat for RNS limbs"
    )
    convert.add_argument("--kind", choices=KINDS, help="of other arrays (default: negacyclic)")
    convert.add_argument(
        "--residues",
        action="store_true",
        help="other arrays hold residues (*batch, rows, n); arrays are written as residues",
    )
    convert.add_argument(
        "--domain", choices=("coef", "eval"), help="of residues in other arrays (default: coef)"
    )
    selftest = command("selftest", _selftest, "Every path of this machine against the definitions.")
    selftest.add_argument("--device", default="cpu", help="device to test (default: cpu)")
    bench = command(
        "bench", _bench, "Time transforms and products here, in about 20 s, beside recorded machines."
    )
    bench.add_argument("--out", metavar="FILE", help="add the rows to this file, a line of JSON each")
    bench.add_argument(
        "--device", action="append", help="only this one, or several (default: cpu and each GPU that answers)"
    )
    plot = command("plot", _plot, "Draw the rows of bench --out beside recorded machines, or these alone.")
    plot.add_argument("files", nargs="*", metavar="FILE")
    plot.add_argument("--op", choices=("ntt", "intt", "product"), default="product")
    plot.add_argument("-o", "--output", metavar="X.svg", help="an SVG; without it bars of text")
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
    from ._core.exact.root_cache import cache_file
    from ._core.processors import processor_quota

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
            "processor quota": round(processor_quota() or 0, 2) or "none",
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


def _info_of_file(file: File, as_json: bool) -> None:
    """Print what the header says; residues are not read."""
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


# ---- mul ----


def _mul(options: argparse.Namespace) -> int:
    place, regular = place_of(options.output)  # first: a wrong output fails before the work
    ring = Ring(options.n, options.q, kind=options.kind)
    arrays = {path: _load(path) for path in (options.a, options.b)}
    for path, (_, note) in arrays.items():
        if note is not None:
            _check_ring(path, note.ring, options, "Give those of that ring.")
            ring = note.ring  # maybe with other roots
    began = time.perf_counter()
    a, b = (
        _value_of(array, note, note.ring if note else ring, options.residues, "coef")
        for array, note in (arrays[options.a], arrays[options.b])
    )
    product = a * b
    result, held = _array_of(product, options.residues)
    seconds = time.perf_counter() - began
    with _being_written(options.output):
        _save(place, regular, partial(_write, array=result, note=_note_of(product, result, held, options)))
    facts = {
        "output": options.output,
        "holds": _SHOWN[held],
        "shape": list(result.shape),
        "seconds": seconds,
    }
    report = sys.stdout if regular else sys.stderr  # the array may have gone to stdout
    if options.json:
        _print_json(facts, report)
    else:
        what = f"{result.dtype} {_SHOWN[held]}, shape {result.shape}"
        print(f"{options.output}: {what}, {seconds:.3g} s", file=report)
    return 0


def _array_of(value: Poly, residues: bool) -> tuple[np.ndarray[Any, np.dtype[Any]], Held]:
    """Return what an array file holds of a value, and its name.

    It is residues if asked for or if Q is above 2^64, else coefficients in [0, Q).
    """
    value, modulus = value.cpu(), value.ring.modulus
    if residues:
        return value.data, "evaluated residues" if value.domain == "eval" else "residues"
    value = value.intt()
    if modulus > 1 << 64:
        return value.data, "residues"
    if modulus > 1 << 63:
        return value.to_bigints().astype(np.uint64), "coefficients"
    return value.to_int64(centered=False), "coefficients"


_SHOWN: dict[Held, str] = {
    "coefficients": "coefficients",
    "residues": "residues (*batch, rows, n)",
    "evaluated residues": "residues (*batch, rows, n), evaluated",
}


def _note_of(
    value: Poly, array: np.ndarray[Any, np.dtype[Any]], held: Held, options: argparse.Namespace
) -> bytes:
    """Return what to write beside the array of a value: a note, or nothing if the array needs none.

    A .npz has one for each array, since arrays of several rings may stand in it.
    """
    note = Note(value.ring, value.domain, held)
    if not options.output.endswith(".npz") and note.is_implied(options.residues, array.shape):
        return b""
    return note.to_bytes(options.output)


def _value_of(
    array: np.ndarray[Any, np.dtype[Any]], note: Note | None, ring: Ring, residues: bool, domain: Domain
) -> Poly:
    """Return the value that an array holds: as its note says, or else as the arguments say."""
    with debug():  # residues of a file are checked
        if note is None:
            return ring.from_residues(array, domain) if residues else ring(array)
        if note.holds == "coefficients":
            value = ring(array)
        else:
            value = ring.from_residues(array, "coef" if note.holds == "residues" else "eval")
    return value.ntt() if note.domain == "eval" else value


def _check_ring(path: str, ring: Ring, options: argparse.Namespace, way: str) -> None:
    """Raise unless the ring that a file names has the n, q and kind that were given."""
    told = (options.n, options.q and tuple(options.q), options.kind)
    for given, own in zip(told, (ring.n, ring.moduli, ring.kind), strict=True):
        if given not in (None, own):
            raise RingMismatch(
                f"{path}: its values are of {ring!r}, which is not the ring of --n, --q and --kind. {way}"
            )


@contextmanager
def _being_written(output: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PolyGPUError(
            f"{output}: not written ({error.strerror}); "
            "give a file with room for it, or a pipe that is read to its end"
        ) from None


_LONGEST_HEADER = 10000  # bytes; the headers that NumPy writes for integers have a few hundred at most


def _load(path: str) -> tuple[np.ndarray[Any, np.dtype[Any]], Note | None]:
    """Return the integer array of a .npy file, and the note behind it.

    Nothing in the file is executed, and the array fills all memory it takes.
    """
    refused = partial(_refused, path, ".npy file of integers", "numpy.save")
    with _regular(path, refused) as file:
        if file.read(4) in (b"PK\3\4", b"PK\5\6"):
            raise ParameterError(f"{path}: an archive of several arrays; write one array with numpy.save")
        file.seek(0)
        array, more = _integers(file, os.fstat(file.fileno()).st_size, path, refused)
        return array, Note.of(more + file.read(LONGEST_NOTE + 1), path)


def _load_all(path: str, name: str | None) -> dict[str, tuple[np.ndarray[Any, np.dtype[Any]], Note | None]]:
    """Return the arrays of a .npz file, or the one of a name; each is read as by _load()."""
    import zipfile  # here: only `convert` needs it

    refused = partial(_refused, path, ".npz file of integers", "numpy.savez")
    arrays: dict[str, tuple[np.ndarray[Any, np.dtype[Any]], Note | None]] = {}
    with _regular(path, refused) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    key = member.filename.removesuffix(".npy")
                    if name not in (None, key):
                        continue
                    if key in arrays:
                        raise refused(f"it has {_printable(key)} twice")
                    if member.compress_type != zipfile.ZIP_STORED:
                        raise refused("it is compressed, which residues do not gain from")
                    size = min(member.file_size, os.fstat(file.fileno()).st_size)
                    where = f"{path}: {_printable(key)}"
                    with archive.open(member) as part:
                        arrays[key] = _integers(part, size, where, refused)[0], Note.of(member.comment, where)
        except (PolyGPUError, MemoryError):
            raise
        except Exception as error:  # a hostile archive can raise nearly anything
            raise refused(f"no archive that Python reads: {type(error).__name__}") from None
    return arrays


def _refused(path: str, kind: str, writer: str, reason: object) -> ParameterError:
    return ParameterError(f"{path}: not a whole {kind} ({reason}); write one with {writer}")


@contextmanager
def _regular(path: str, refused: Callable[[object], ParameterError]) -> Iterator[IO[bytes]]:
    """A regular file, open for reading. The system's errors become ParameterError."""
    try:
        raw = open_regular(path)
        if raw is None:
            raise refused("a folder, pipe or device")
        with io.BufferedReader(raw) as file:
            yield file
    except FileNotFoundError:
        raise ParameterError(f"{path}: no such file") from None
    except OSError as error:
        raise refused(error.strerror or error) from None


def _integers(
    file: IO[bytes], size: int, name: str, refused: Callable[[object], ParameterError]
) -> tuple[np.ndarray[Any, np.dtype[Any]], bytes]:
    """Return the integer array of a .npy file of `size` bytes, and bytes behind it that were read too.

    The file is read from its start.
    """
    head = io.BytesIO(file.read(_LONGEST_HEADER))
    try:
        shape, fortran_order, dtype = _header(head)
    except Exception:  # nearly anything; NumPy's message is dropped, as it may advise to trust the file
        raise refused("it has no header that NumPy reads") from None
    if dtype.hasobject:
        raise ParameterError(
            f"{name}: an array of Python objects is refused, loading one could run code; "
            "save ring(values).data with numpy.save and pass --residues"
        )
    if dtype.kind not in "iu":
        raise ParameterError(
            f"{name}: dtype {dtype.name} must be ints, and nothing is rounded for you. To round floats, save "
            "ring.from_floats(x).data with numpy.save and pass --residues."
        )
    if not all(type(length) is int and length >= 0 for length in shape):  # True is an int too
        raise refused("its shape has other than lengths")
    count, held = prod(shape), size - head.tell()
    if count * dtype.itemsize > held:
        raise refused(f"its header announces more than the {held} bytes that follow it")
    check_array(count * dtype.itemsize)
    array = np.empty(count, dtype)
    rest: memoryview = array.view(np.uint8).data
    taken = head.readinto(rest)  # no seek, after which zipfile would not compare the checksum
    rest = rest[taken:]
    while rest:
        taken = file.readinto(rest)  # type: ignore[attr-defined]
        if not taken:
            raise refused("cut while it was read")
        rest = rest[taken:]
    try:
        return array.reshape(shape, order="F" if fortran_order else "C"), head.read()
    except (ValueError, OverflowError):  # too many axes, or an empty axis beside huge ones
        raise refused("no array has its shape") from None


def _header(head: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the order is Fortran's, and dtype. Leaves `head` where the data begin."""
    first, later = np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0
    # A header of version 3.0 is one of 2.0 in another encoding; for integers it is all ASCII.
    read = {(1, 0): first, (2, 0): later, (3, 0): later}[np.lib.format.read_magic(head)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers by Python 2, which are right, and odd literals
        return read(head)


def _save(place: str | int, regular: bool, write: Callable[[int], None]) -> None:
    """Write a regular file whole or not at all. Write through into a pipe, a device or stdout."""
    if isinstance(place, int) or not regular:
        handle = through(place)
        with open(handle, "wb", buffering=0):
            write(handle)
        return
    with replacing(place) as file:
        write(file.fileno())


def _write(handle: int, array: np.ndarray[Any, np.dtype[Any]], note: bytes) -> None:
    """Write a .npy file front to back. Given a real file, NumPy would seek in it, which pipes cannot."""
    sink: Any = SimpleNamespace(write=partial(write_all, handle))
    np.save(sink, array, allow_pickle=False)
    write_all(handle, note)


def _write_all(handle: int, arrays: dict[str, tuple[np.ndarray[Any, np.dtype[Any]], bytes]]) -> None:
    """Write a .npz file front to back. numpy.savez would take an array named "file" for its own parameter."""
    import zipfile  # here: see _load_all

    sink: Any = SimpleNamespace(write=partial(write_all, handle), flush=lambda: None)
    with zipfile.ZipFile(sink, "w") as archive:
        for name, (array, note) in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")
            member.comment = note
            if member.filename != f"{name}.npy" or len(name.encode()) >= 1 << 15:
                raise ParameterError(
                    f"--name: no archive takes the name {_printable(name[:40])}; give another"
                )
            with archive.open(member, "w", force_zip64=True) as part:
                np.lib.format.write_array(part, array, allow_pickle=False)


# ---- convert ----

_SUFFIXES = (".npy", ".npz", ".safetensors")


def _convert(options: argparse.Namespace) -> int:
    source, target = (_suffix(path) for path in (options.input, options.output))
    place, regular = place_of(options.output)  # first: a wrong output fails before the work
    if target == ".safetensors" and not regular:
        raise ParameterError(f"{options.output}: a pipe or device; a .safetensors is written to a file alone")
    began = time.perf_counter()
    values, reduced = _values_of(options, source)
    if target == ".npy" and not values:
        raise ParameterError(f"{options.input}: holds no value, and a .npy holds one. Write a .npz instead.")
    if target == ".npy" and len(values) != 1:
        some = ", ".join(map(_printable, list(values)[:8])) + ", ..." * (len(values) > 8)
        raise ParameterError(
            f"{options.input}: holds {len(values)} values ({some}), a .npy holds one; --name chooses it"
        )
    with _being_written(options.output):
        if target == ".safetensors":
            save(options.output, values)
            held = {name: (value.data, f"residues, {value.domain}") for name, value in values.items()}
        else:
            written = {name: _array_of(value, options.residues) for name, value in values.items()}
            held = {name: (array, _SHOWN[what]) for name, (array, what) in written.items()}
            arrays = {
                name: (array, _note_of(values[name], array, what, options))
                for name, (array, what) in written.items()
            }
            write = partial(_write_all, arrays=arrays)
            if target == ".npy":
                array, note = next(iter(arrays.values()))
                write = partial(_write, array=array, note=note)
            _save(place, regular, write)
    seconds = time.perf_counter() - began
    report = sys.stdout if regular else sys.stderr  # the array may have gone to stdout
    if options.json:
        facts = [
            {
                "name": name,
                "holds": kind,
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                "reduced": name in reduced,
            }
            for name, (array, kind) in held.items()
        ]
        _print_json({"output": options.output, "values": facts, "seconds": seconds}, report)
    else:
        print(f"{options.output}: values {len(held)}, {seconds:.3g} s", file=report)
        for name, (array, kind) in held.items():
            more = ", reduced to [0, Q)" * (name in reduced)
            print(f"{_printable(name)}: {array.dtype} {kind}, shape {array.shape}{more}", file=report)
    return 0


def _suffix(path: str) -> str:
    suffix = os.path.splitext(path)[1]
    if suffix not in _SUFFIXES:
        raise ParameterError(f"{path}: must end in {', '.join(_SUFFIXES)}, which says what it holds")
    return suffix


def _values_of(options: argparse.Namespace, source: str) -> tuple[dict[str, Poly], set[str]]:
    """Return the values of a file by their names, and the names of those with integers outside [0, Q)."""
    path, name = options.input, options.name
    if source == ".safetensors":
        given = {"--n": options.n, "--q": options.q, "--kind": options.kind, "--domain": options.domain}
        if wrong := [option for option, value in given.items() if value is not None]:
            raise ParameterError(f"{', '.join(wrong)}: {path} names rings and domains; leave them out")
        return load(path, None if name is None else [name]), set()
    if source == ".npy":
        stem = os.path.splitext(os.path.basename(path))[0]
        arrays = {stem if name is None else name: _load(path)}
    else:
        arrays = _load_all(path, name)
        if name is not None and name not in arrays:
            raise ParameterError(f"--name: {_printable(name)} is not in {path}")
    told = None
    if any(note is None for _, note in arrays.values()):
        if options.n is None or not options.q:
            raise ParameterError(f"{path}: an array names no ring; --n 1024 --q 12289 does")
        if options.domain is not None and not options.residues:
            raise ParameterError(
                "--domain: of residues alone; add --residues, or leave it out for coefficients"
            )
        told = Ring(options.n, options.q, kind=options.kind or "negacyclic")
    values, reduced, rings = {}, set(), dict[Any, Ring]()
    for name, (array, note) in arrays.items():
        where = f"{_printable(name)} in {path}"
        if note is not None:
            _check_note(where, note, options)
            ring = rings.setdefault(note.ring.__reduce__()[1], note.ring)
        else:
            assert told is not None
            ring = told
            if not options.residues:
                _check_coefficients(where, array, ring)
        values[name] = _value_of(array, note, ring, options.residues, options.domain or "coef")
        if array.size and (int(array.min()) < 0 or int(array.max()) >= ring.modulus):
            reduced.add(name)
    return values, reduced


def _check_note(where: str, note: Note, options: argparse.Namespace) -> None:
    _check_ring(where, note.ring, options, "Leave them out, because the file names its rings.")
    if options.domain not in (None, note.domain):
        raise ParameterError(
            f"--domain: {where} is in {note.domain!r}. Leave the option out, because the file names domains."
        )


def _check_coefficients(where: str, array: np.ndarray[Any, np.dtype[Any]], ring: Ring) -> None:
    """Raise if an array looks like residues that were written with --residues."""
    if (array.dtype, array.shape[-2:]) == (ring.dtype, (ring.rows, ring.n)):
        raise ParameterError(
            f"{where}: words of {array.dtype} in the shape {array.shape} may be residues. Add --residues if "
            "they are. Save coefficients as x.astype(np.int64), or by pg.save(path, {'x': ring(x)})."
        )


# ---- selftest ----


def _selftest(options: argparse.Namespace) -> int:
    from . import _cpu
    from ._backends import device, get_backend

    failures, results = 0, []
    began = time.perf_counter()
    get_backend("cpu")  # reads POLYGPU_CPU_ISA now; later that would undo the choices below
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
    """A name and a check for every word, path and kind. small: only sizes for "reference"."""
    degrees = (1, 8, 64) if small else (1, 8, 64, 512, 1 << 14)
    for bits in (29, 30, 31, 32, 46, 50, 51, 60, 62, 63, 64):
        for kind in KINDS:
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
    """Random and largest operands: whole products up to degree 4096, one point of complete transforms."""
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
    """Products of random and largest words, against Python ints."""
    compute, rng, (m, k, n) = backend(), np.random.default_rng(1), shape
    for q in (2, 257, 2**30 - 35, 2**31 - 1, 1 << 32, 2**50 - 27, 2**62 - 57, 1 << 62):
        dtype = np.uint32 if q <= 1 << 32 else np.uint64
        a, b = (rng.integers(0, q, size, dtype=dtype) for size in ((m, k), (k, n)))
        a[0], b[:, 0] = np.iinfo(dtype).max, q - 1
        c = compute.to_host(linalg.matmul(compute.from_host(a), compute.from_host(b), q))
        expected = a.astype(object) @ b.astype(object) % q
        assert c.tolist() == expected.tolist(), f"matrix product modulo {q}"


def _check_poly_matrices(rings: list[Ring]) -> None:
    """Products of random matrices, against sums of products of polynomials."""
    for ring in rings:
        a, b = ring.random((3, 4), seed=1), ring.random((4, 2), seed=2)
        assert a @ b == (a[:, :, np.newaxis] * b).sum(1), f"matrix product in {ring!r}"


def _check_complex(lengths: tuple[int, ...]) -> None:
    """Transforms, their inverses and convolutions, against NumPy in long double."""
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


# ---- bench and plot ----


def _bench(options: argparse.Namespace) -> int:
    from ._backends import checked_device
    from ._bench import bench
    from ._bench.timing import Row, Unverified, print_table

    place: str | int | None = None
    if options.out is not None:  # first: a wrong output fails before the work
        place, regular = place_of(options.out)
        if not regular:
            raise ParameterError(f"{options.out}: no regular file; rows are added to one, --json prints them")
        bench.with_rows(str(place), [])  # raises if it holds something else
    devices = [checked_device(name, "--device") for name in options.device or bench.answering()]
    if "reference" in devices:
        raise ParameterError("--device: 'reference' is for checks, and takes hours; give cpu or cuda")

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
    if place is not None:
        # Read again: others may have added rows, of which none must be lost.
        _save_text(options.out, place, True, bench.with_rows(str(place), rows))
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


def _plot(options: argparse.Namespace) -> int:
    from ._bench import bench

    place = None if options.output is None else place_of(options.output)
    own = bench.figures(row for path in options.files for row in bench.rows_of(path))
    if options.files and not own:
        raise ParameterError(
            f"{', '.join(options.files)}: no row of a transform or product as polygpu bench times them"
        )
    if own and not options.json and all(key.op != options.op for m in own for key in m.ps):
        there = " or ".join(op for op in bench.OPS if any(key.op == op for m in own for key in m.ps))
        raise ParameterError(
            f"{', '.join(options.files)}: no row is of the operation {options.op}. --op {there} draws others."
        )
    boards = bench.boards(own, bench.recorded())
    if options.json:
        facts = [
            {"kind": b.kind, "yours": b.own, "machines": json.loads(bench.as_json(b.machines))}
            for b in boards
        ]
        _print_json(facts, sys.stderr if place is not None and place[0] == 1 else sys.stdout)
    if place is not None:
        drawn = bench.svg(boards, options.op)
        _save_text(options.output, *place, drawn)
    elif not options.json:
        encoding = (sys.stdout.encoding if sys.stdout else None) or "ascii"
        mark = "█" if encoding.lower().replace("-", "") == "utf8" else "#"
        width = min(100, shutil.get_terminal_size().columns)
        for board in boards:
            print("\n".join((*bench.bars(board, options.op, width, mark), *board.legend(), "")))
    return 0


def _save_text(path: str, place: str | int, regular: bool, text: str) -> None:
    def write(handle: int) -> None:
        write_all(handle, text.encode())

    try:
        _save(place, regular, write)
    except OSError as error:
        raise PolyGPUError(
            f"{path}: not written ({error.strerror}); give a file with room for it, or a pipe that is read "
            "to its end"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
