"""Write the measured tables into README.md and docs/, figures beside them, and polygpu/_bench/recorded.json.

    python -m benchmarks.report [--check] [--prune] [--results DIR] [FILE ...]

A table is written between the lines `<!-- table: NAME -->` and `<!-- end: NAME -->`. Of all verified rows
with the same machine, op, params and library, the newest one counts, even if its source tree had uncommitted
changes. The line under a table names all dates and commits of its rows, and says which trees had uncommitted
changes. recorded.json holds the figures that `polygpu bench` shows beside those of a user's machine. With
`--check` nothing is written, and it is an error if a file would change. With `--prune`, rows that no table
and no figure shows are removed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polygpu._bench import bench

from . import (
    bootstrap,
    calls,
    conversions,
    distributed,
    kinds,
    lattice,
    packing,
    peers,
    retrieval,
    roofline,
    tfhe,
    verbs,
    ways_in,
)
from .harness import RESULTS, ROOT, Row
from .harness import rows as read_rows
from .studies import STUDIES, fft64, fourstep, gemm, ntt64, ntt256, transpose
from .studies.page import StudyKind
from .tables import LineKind, Table, drawn, figure, newest, of_last_machine, power, unique

RECORDED = ROOT / "polygpu" / "_bench" / "recorded.json"  # the figures that `polygpu bench` shows
PAGES = (
    RECORDED,
    ROOT / "README.md",
    ROOT / "docs" / "performance.md",
    ROOT / "docs" / "scale.md",
    *(ROOT / "docs" / "studies" / f"{name}.md" for name in STUDIES),
)


@dataclass(frozen=True)
class Kind:
    """Tables, one for each prime size, with a line for each N and a column for each library and op."""

    title: str
    device: str
    ops: Mapping[str, str]
    """The ops of the rows in the table, each with its text in the heading of a column."""
    cell: Callable[[Row, Row | None], str]
    """A function that makes a cell of a row and python-flint's row for the same op, or None."""

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that the tables show: one limb, no batch, and the newest modulus of each size."""
        shown: dict[object, Row] = {}
        for row in rows:
            p, machine = row.params, row.machine
            if row.op in self.ops and machine["kind"] == self.device and p["limbs"] == p["batch"] == 1:
                shown[machine["name"], row.op, row.library, p["n"], p["bits"]] = row
        return list(shown.values())

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the tables of the rows of one machine."""
        primes: dict[int, dict[tuple[int, str, str], Row]] = {}
        for row in self.rows(rows):
            cells = primes.setdefault(int(row.params["bits"]), {})
            cells[int(row.params["n"]), row.op, row.library] = row
        for bits, cells in sorted(primes.items()):
            columns = list(dict.fromkeys((op, library) for _, op, library in cells))
            columns.sort(key=lambda column: column[1] != "polygpu")
            yield Table(
                f"{bits}-bit prime: {self.title}",
                ("N", *(library + self.ops[op] for op, library in columns)),
                tuple(
                    (str(n), *(self.text(cells, n, op, library) for op, library in columns))
                    for n in sorted({n for n, _, _ in cells})
                ),
            )

    def text(self, cells: Mapping[tuple[int, str, str], Row], n: int, op: str, library: str) -> str:
        if (n, op, library) not in cells:
            return ""
        return self.cell(cells[n, op, library], cells.get((n, op, "python-flint")))


class BatchKind:
    """A table of batched complex transforms, with a line for each library and a column for each precision."""

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that the table shows. If two differ only in the batch, the newer one counts."""
        shown: dict[object, Row] = {}
        for row in rows:
            if row.op == "fft64" and row.machine["kind"] == "cpu":
                shown[row.machine["name"], row.library, row.params["dtype"]] = row
        return list(shown.values())

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the table of the rows of one machine, if there are any."""
        cells = {(row.library, str(row.params["dtype"])): row for row in self.rows(rows)}
        dtypes = sorted({dtype for _, dtype in cells}, key=lambda dtype: int(dtype.removeprefix("complex")))
        libraries = dict.fromkeys(library for library, _ in cells)
        batches = unique(row.params["batch"] for row in cells.values())
        if cells:
            yield Table(
                f"64 points, batches of {batches}: ns for each transform (times as fast as scipy.fft)",
                ("library", *dtypes),
                tuple(
                    (library, *(self.text(cells, library, dtype) for dtype in dtypes))
                    for library in sorted(libraries, key=lambda library: library != "polygpu")
                ),
            )

    def text(self, cells: Mapping[tuple[str, str], Row], library: str, dtype: str) -> str:
        row, scipy = cells.get((library, dtype)), cells.get(("scipy.fft", dtype))
        if row is None:
            return ""
        times = f" ({figure(scipy.median / row.median)}x)" if scipy else ""
        return figure(row.median / int(row.params["batch"])) + times


@dataclass(frozen=True)
class ExactKind:
    """A table of exact products by both methods, with a line for each N and a column for each modulus."""

    device: str

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that the table shows. If two differ only in the batch, the newer one counts."""
        shown: dict[object, Row] = {}
        for row in rows:
            if row.op == "exact product" and row.machine["kind"] == self.device:
                p = row.params
                shown[row.machine["name"], p["q"], p["n"], p["method"]] = row
        return list(shown.values())

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the table of the rows of one machine, if there are any."""
        cells = {
            (str(r.params["q"]), int(r.params["n"]), str(r.params["method"])): r for r in self.rows(rows)
        }
        moduli = list(dict.fromkeys(q for q, _, _ in cells))
        if cells:
            yield Table(
                "Exact products, ps per coefficient: modulo primes / by FFT (* taken by itself)",
                ("N", *moduli),
                tuple(
                    (power(n), *(self.text(cells, q, n) for q in moduli))
                    for n in sorted({n for _, n, _ in cells})
                ),
            )

    def text(self, cells: Mapping[tuple[str, int, str], Row], q: str, n: int) -> str:
        methods = [cells.get((q, n, method)) for method in ("ntt", "fft")]
        return " / ".join(ps(row) + "*" * int(row.params["auto"]) if row else "-" for row in methods)


# The fastest other library for a forward transform, and its ps per coefficient, by card, bits of a word and
# log2 N. The libraries are GPU-NTT (merge and 4-step; its 4-step is cyclic and was timed without transposes),
# Phantom, Cheddar, FIDESlib, Troy and sppark. Each was built from source and run on one card, with the
# largest batch that was measured (2^26 coefficients; 32 rows for Phantom and Cheddar; one row for sppark).
# Each figure is the median of at least 20 runs.
PEERS: Mapping[str, Mapping[int | str, Mapping[int, tuple[float, str]]]] = {
    "NVIDIA H100 80GB HBM3": {
        32: {
            10: (9.29, "GPU-NTT"),
            11: (12.6, "GPU-NTT"),
            12: (10.5, "GPU-NTT"),
            13: (11.3, "GPU-NTT"),
            14: (12.1, "GPU-NTT"),
            15: (12.8, "GPU-NTT"),
            16: (8.24, "Cheddar"),
            17: (14.8, "GPU-NTT"),
            20: (16.9, "GPU-NTT"),
            24: (12.9, "sppark"),
        },
        64: {
            10: (17.9, "GPU-NTT"),
            11: (22.1, "GPU-NTT"),
            12: (21.8, "GPU-NTT"),
            13: (23.6, "GPU-NTT"),
            14: (25.3, "GPU-NTT"),
            15: (27.0, "GPU-NTT"),
            16: (25.9, "Phantom"),
            17: (26.9, "Phantom"),
            20: (35.0, "GPU-NTT"),
            24: (35.4, "sppark"),
        },
    },
    "NVIDIA H200": {
        32: {
            12: (10.6, "GPU-NTT"),
            14: (12.2, "GPU-NTT"),
            16: (7.57, "Cheddar"),
            20: (17.0, "GPU-NTT"),
            24: (13.2, "sppark"),
        },
        64: {
            12: (21.9, "GPU-NTT"),
            13: (27.8, "Phantom"),
            14: (25.4, "GPU-NTT"),
            15: (29.1, "Phantom"),
            16: (25.1, "Phantom"),
            20: (35.2, "GPU-NTT"),
            24: (35.8, "sppark"),
        },
        "Goldilocks, X^N - 1": {
            20: (42.2, "sppark"),
            24: (35.8, "sppark"),
        },
    },
}
SUMMARY_DEGREES = (2**12, 2**14, 2**16, 2**20)
PRIMES = {30: "30-bit prime", 50: "50-bit prime", 60: "60-bit prime"}
PRIMES |= {31: PRIMES[30]}  # for BabyBear, which is used if no prime of 30 bits has a transform


Cells = Mapping[tuple[str, int, str], Row]  # rows by prime, N and op


@dataclass(frozen=True)
class GpuKind:
    """Tables of polygpu's transforms of batches with one limb."""

    layout: Callable[[Cells], Iterator[Table]]
    last: bool = False
    """Whether the machine measured last stands for all."""

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that the tables show, the newer one of two that differ only in batch or modulus."""
        shown: dict[object, Row] = {}
        for row in rows:
            p, machine = row.params, row.machine
            if (machine["kind"], row.library) != ("gpu", "polygpu"):
                continue
            if row.op in ("forward", "inverse", "product") and p["limbs"] == 1 and p["batch"] != 1:
                shown[machine["name"], prime(row), p["n"], loaded(row)] = row
        return of_last_machine(shown.values()) if self.last else list(shown.values())

    def cells(self, rows: Iterable[Row]) -> Cells:
        return {(prime(row), int(row.params["n"]), loaded(row)): row for row in self.rows(rows)}

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the tables of the rows of one machine, if there are any."""
        cells = self.cells(rows)
        if cells:
            yield from self.layout(cells)


def prime(row: Row) -> str:
    """Return the name of a row's modulus in the tables."""
    bits = int(row.params["bits"])
    return PRIMES[bits] if bits in PRIMES else str(row.params["word"])


def best_peer(cells: Cells, name: str, n: int) -> tuple[float, str] | None:
    """Return the ps per coefficient and the name of the peer whose forward transform is fastest.

    The figure is for the card of these rows. Return None if no peer is known for it.
    """
    card = PEERS.get(str(next(iter(cells.values())).machine["name"]), {})
    word = name if name.startswith("Goldilocks") else 32 if name == PRIMES[30] else 64
    return card.get(word, {}).get(n.bit_length() - 1)


def loaded(row: Row) -> str:
    """Return the op of a row, with ", loaded" if the card had worked for a long time before."""
    return row.op + (", loaded" if "load_s" in row.params else "")


def gpu_load(cells: Cells) -> Iterator[Table]:
    """Yield the table of forward transforms on a card that has rested, and after a long load."""
    primes = sorted({name for name, _, op in cells if op == "forward, loaded"})
    body = [
        (
            power(n),
            *(ps(cells.get((name, n, op))) for name in primes for op in ("forward", "forward, loaded")),
        )
        for n in sorted({n for _, n, op in cells if op == "forward, loaded"})
    ]
    loads = unique(r.params["load_s"] for (_, _, op), r in cells.items() if op == "forward, loaded")
    heads = (f"{name}{what}" for name in primes for what in ("", f" after {loads} s"))
    if body:
        yield Table("Forward transform of a batch, ps per coefficient", ("N", *heads), tuple(body))


def gpu_ntt(cells: Cells) -> Iterator[Table]:
    """Yield a table for each kind of prime."""
    for name in sorted({name for name, _, _ in cells}):
        body = []
        for n in sorted({n for own, n, _ in cells if own == name}):
            forward, inverse, product = (cells.get((name, n, op)) for op in ("forward", "inverse", "product"))
            peer = best_peer(cells, name, n)
            body.append(
                (
                    power(n) + ("*" if forward and forward.params["bits"] == 31 else ""),
                    ps_and_share(forward),
                    ps_and_share(inverse),
                    ps(product),
                    f"{figure(peer[0])} ({peer[1]})" if peer else "",
                )
            )
        words = unique(str(r.params["word"]).split()[0] for (own, _, _), r in cells.items() if own == name)
        star = "; * 31-bit BabyBear" if any("*" in line[0] for line in body) else ""
        yield Table(
            (name if name.startswith("Goldilocks") else f"{name} ({words})")
            + f": ps per coefficient (share of the copy's bandwidth){star}",
            ("N", "forward", "inverse", "product", "forward: best peer"),
            tuple(body),
        )


def gpu_summary(cells: Cells) -> Iterator[Table]:
    """Yield one table with the forward transforms of a few sizes."""
    primes = sorted({name for name, _, op in cells if op == "forward"})
    body = []
    for n in SUMMARY_DEGREES:
        texts = []
        for name in primes:
            row, peer = cells.get((name, n, "forward")), best_peer(cells, name, n)
            times = ""
            if row and peer:
                times = f", {figure(peer[0] / ps_per_coefficient(row))}x {peer[1]}"
            texts.append(ps_and_share(row) + times)
        if any(texts):
            body.append((power(n), *texts))
    yield Table(
        "Forward transform of a batch: ps per coefficient (share of the copy's bandwidth), "
        "times as fast as the best peer",
        ("N", *primes),
        tuple(body),
    )


def ps_per_coefficient(row: Row) -> float:
    return 1000 * row.median / row.work


def ps(row: Row | None) -> str:
    return figure(ps_per_coefficient(row)) if row else ""


def ps_and_share(row: Row | None) -> str:
    return f"{ps(row)} ({row.figures['eff1']:.0%})" if row else ""


def times_flint(row: Row, flint: Row | None, unit: float = 1e3) -> str:
    """Return the text of a cell: the time in units of `unit` ns, and the speed-up over python-flint."""
    return figure(row.median / unit) + (f" ({figure(flint.median / row.median)}x)" if flint else "")


def per_butterfly(row: Row, _: Row | None) -> str:
    n = int(row.params["n"])
    return f"{us(row)} ({figure(row.median / (n / 2 * math.log2(n)))})"


class SpeedupKind:
    """The summary table: how many times as fast as each other library polygpu is."""

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows of the tables that this table sums up."""
        found = list(rows)
        kinds = peers.PeerSummaryKind(), GpuKind(gpu_summary, last=True), bootstrap.BesideKind()
        return [row for kind in kinds for row in kind.rows(found)]

    def markdown(self, rows: Iterable[Row]) -> str:
        """Return the table as text; there is one for all machines, whose names are in its lines."""
        return "\n".join(table.markdown() for table in self.tables(rows)) or "Nothing has been measured yet."

    def tables(self, rows: Iterable[Row]) -> Iterator[Table]:
        """Yield the table if there are rows for a line."""
        found, body = list(rows), []
        cores = unique(row.machine["name"] for row in peers.PeerSummaryKind().rows(found))
        for library, (least, most) in peers.speedups(found).items():
            body.append((CORE_WORK, library, f"{least:.1f} to {most:.1f}", cores))
        gpu = GpuKind(gpu_summary, last=True)
        cells = gpu.cells(found)
        ratios: dict[str, list[float]] = {}
        for (name, n, op), row in cells.items():
            if op == "forward" and n in SUMMARY_DEGREES and (peer := best_peer(cells, name, n)):
                ratios.setdefault(peer[1], []).append(peer[0] / ps_per_coefficient(row))
        if ratios:
            every = [x for own in ratios.values() for x in own]
            fastest = f"the fastest of {', '.join(sorted(ratios))}"
            cards = unique(row.machine["name"] for row in gpu.rows(found))
            body.append((CARD_WORK, fastest, f"{min(every):.1f} to {max(every):.1f}", cards))
        own_ms = [row.median / 1e6 for row in bootstrap.BesideKind().rows(found)]
        if own_ms:
            beside_ms = min(ms for _, _, ms, _, _ in bootstrap.BESIDE)
            speed = f"{beside_ms / max(own_ms):.1f} to {beside_ms / min(own_ms):.1f}"
            cards = unique(row.machine["name"] for row in bootstrap.BesideKind().rows(found))
            body.append((BOOTSTRAP_WORK, "Cheddar", speed, cards))
        header = "work", "compared with", "times as fast", "measured on"
        if body:
            yield Table("How many times as fast polygpu is", header, tuple(body))


CORE_WORK = "NTT, inverse and product on one core, primes of 30 to 60 bits, N = 2^12 to 2^16"
CARD_WORK = "NTT of many polynomials on a GPU, N = 2^12 to 2^20"
BOOTSTRAP_WORK = "CKKS bootstrap on a GPU, N = 2^16 (more multiplications are possible after Cheddar's)"


AnyKind = (
    Kind
    | SpeedupKind
    | BatchKind
    | ExactKind
    | GpuKind
    | calls.CallKind
    | verbs.VerbKind
    | LineKind
    | bootstrap.BesideKind
    | retrieval.ByteKind
    | tfhe.TfheKind
    | packing.PackingKind
    | kinds.QuotientKind
    | peers.PeerKind
    | StudyKind
)

KINDS: dict[str, AnyKind] = {
    "speedups": SpeedupKind(),
    "cpu-product": Kind(
        title="product, us (times as fast as python-flint)",
        device="cpu",
        ops={"product": ""},
        cell=times_flint,
    ),
    "cpu-ntt": Kind(
        title="NTT, us (ns for each of N/2 log2 N butterflies)",
        device="cpu",
        ops={"ntt": ", forward", "intt": ", inverse"},
        cell=per_butterfly,
    ),
    "cpu-matmul": Kind(
        title="product of N x N matrices, ms (times as fast as python-flint; must: 3x)",
        device="cpu",
        ops={"matmul": ""},
        cell=partial(times_flint, unit=1e6),
    ),
    "cpu-fft": BatchKind(),
    "cpu-exact": ExactKind("cpu"),
    "gpu-ntt": GpuKind(gpu_ntt),
    "gpu-exact": ExactKind("gpu"),
    "gpu-load": GpuKind(gpu_load),
    "gpu-summary": GpuKind(gpu_summary, last=True),
    **calls.KINDS,
    **verbs.KINDS,
    **conversions.KINDS,
    **distributed.KINDS,
    **lattice.KINDS,
    **bootstrap.KINDS,
    **retrieval.KINDS,
    **tfhe.KINDS,
    **packing.KINDS,
    **kinds.KINDS,
    **peers.KINDS,
    **fft64.KINDS,
    **fourstep.KINDS,
    **gemm.KINDS,
    **transpose.KINDS,
    **ntt64.KINDS,
    **ntt256.KINDS,
    **ways_in.KINDS,
}


def us(row: Row) -> str:
    return figure(row.median / 1000)


def markdown(kind: AnyKind, rows: Iterable[Row]) -> str:
    """Return the text between the markers of a table, with a part for each machine."""
    if isinstance(kind, SpeedupKind):
        return kind.markdown(rows)
    machines: dict[str, list[Row]] = {}
    for row in kind.rows(rows):
        machines.setdefault(str(row.machine["name"]), []).append(row)
    parts = []
    for _, own in sorted(machines.items()):
        parts += [*(table.markdown() for table in kind.tables(own)), provenance(own)]
    return "\n\n".join(parts or ["Nothing has been measured yet."])


def provenance(rows: Sequence[Row]) -> str:
    """Return a line that says where, when and with which versions the rows of one machine were measured."""
    commits = (
        f"{row.date[:10]} at commit {row.commit[:10]}" + (" with uncommitted changes" if row.dirty else "")
        for row in rows
    )
    versions = (f"{name} {number}" for row in rows for name, number in row.versions.items())
    spread = max((row.q3 - row.q1) / row.median for row in rows)
    about = about_gpu if rows[0].machine["kind"] == "gpu" else about_cpu
    return (
        f"{rows[0].machine['name']}, {about(rows)}; {unique(commits)}; {unique(versions)}. "
        f"Medians of {min(row.samples for row in rows)} or more samples, whose quartiles are "
        f"{spread:.0%} of the median apart at worst. Every result was verified."
    )


def about_cpu(rows: Sequence[Row]) -> str:
    clocks = sorted(float(row.machine["clock_ghz"]) for row in rows)
    return (
        f"{unique(row.machine['cores'] for row in rows)} core(s), "
        f"{figure(clocks[0])} to {figure(clocks[-1])} GHz "
        f"({unique(row.machine['clock_source'] for row in rows)}), "
        f"{unique(row.machine['isa'] for row in rows)}"
    )


def about_gpu(rows: Sequence[Row]) -> str:
    copies = sorted({row.figures["copy_gbps"] for row in rows if "copy_gbps" in row.figures})
    copy = ""
    if copies:
        least, most = f"{copies[0]:.0f}", f"{copies[-1]:.0f}"
        copy = f"copy {least if least == most else f'{least} to {most}'} GB/s, "
    return (
        f"{copy}driver {unique(row.machine['driver'] for row in rows)}, "
        f"CUDA {unique(row.machine['cuda'] for row in rows)}, "
        f"CuPy {unique(row.machine['cupy'] for row in rows)}"
    )


def rewrite(page: str, rows: Sequence[Row]) -> str:
    """Return the text of a page with every marked table written anew."""

    def table(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in KINDS:
            raise ValueError(f"table {name!r}: unknown, must be one of {', '.join(KINDS)}")
        if match["end"] is None:
            raise ValueError(f"table {name!r}: the page has no end marker for it")
        return f"<!-- table: {name} -->\n\n{markdown(KINDS[name], rows)}\n\n<!-- end: {name} -->"

    marked = r"<!-- table: (?P<name>\S+) -->(.*?(?P<end><!-- end: (?P=name) -->))?"
    return re.sub(marked, table, page, flags=re.DOTALL)


FigureKind = GpuKind | LineKind | StudyKind

# Functions that draw figures, by the path of the figure in docs/.
FIGURES: dict[str, tuple[FigureKind, Callable[[Any], str | None]]] = {
    "roofline.svg": (GpuKind(gpu_ntt), roofline.svg),
    **fourstep.FIGURES,
    **transpose.FIGURES,
    **ntt64.FIGURES,
    **ntt256.FIGURES,
    **lattice.FIGURES,
}


def prune(directory: Path) -> int:
    """Remove the rows that no table and no figure shows, and return their number."""
    rows = newest(read_rows(directory))
    kinds = [*KINDS.values(), *(kind for kind, _ in FIGURES.values())]
    shown = {json.dumps(asdict(row)) for kind in kinds for row in kind.rows(rows)}
    removed = 0
    for path in sorted(directory.glob("*.jsonl")):
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if json.dumps(json.loads(line)) in shown]
        if len(kept) < len(lines):
            path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
            removed += len(lines) - len(kept)
    return removed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a table differs")
    parser.add_argument("--prune", action="store_true", help="remove the rows that nothing shows")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the rows")
    parser.add_argument("--figures", type=Path, default=ROOT / "docs", help="directory of the figures")
    parser.add_argument("pages", nargs="*", type=Path, metavar="FILE", default=list(PAGES))
    options = parser.parse_args(arguments)
    if missing := [str(page) for page in options.pages if not page.is_file()]:
        parser.error(f"{', '.join(missing)}: no such page")

    if options.prune:
        print(f"{options.results}: {prune(options.results)} rows removed")
    rows = newest(read_rows(options.results))
    status = 0
    files = [
        (path, bench.as_json(bench.figures(rows)))
        if path.suffix == ".json"
        else (path, rewrite(path.read_text(encoding="utf-8"), rows))
        for path in options.pages
    ]
    figures = ((options.figures / name, drawn(*figure, rows)) for name, figure in FIGURES.items())
    files += [(path, svg) for path, svg in figures if svg is not None]
    for path, written in files:
        if path.exists() and path.read_text(encoding="utf-8") == written:
            continue
        if options.check:
            print(f"{path}: differs from the results; run python -m benchmarks.report")
            status = 1
        else:
            path.write_text(written, encoding="utf-8")
            print(f"{path}: written")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
