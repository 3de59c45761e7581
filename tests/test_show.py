"""HTML tables of values and rings in notebooks: right, well-formed, and bounded in size."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from devices import CARDS, on
from oracle import RINGS, RNS, draw, ring

import polygpu as pg
from polygpu import Poly, Ring, ntt_primes
from polygpu._backends.cpu import CpuBackend
from polygpu._ops import show


class Page(HTMLParser):
    """The text before the table, and the table's rows; shortened ints are replaced by the whole ones."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.title = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("div", "table", "thead", "tbody", "tr", "th", "td", "sub", "sup", "i", "br"), tag
        for name, value in attrs:
            assert name in ("style", "title") and (name != "style" or "color" not in str(value))
        if tag != "br":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.whole = dict(attrs).get("title")
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "td" and self.whole is not None:
            first, _, last = self.rows[-1][-1].partition("…")
            assert self.whole.startswith(first) and self.whole.endswith(last) and first and last
            self.rows[-1][-1] = self.whole

    def handle_data(self, data: str) -> None:
        if "table" in self.open:
            self.rows[-1][-1] += data
        else:
            self.title += data


def places(count: int, most: int, first: int) -> list[int]:
    """The indices below `count` that are shown, where at most `most` places have room."""
    return list(range(count)) if count <= most else [*range(first), *range(count - most + first + 1, count)]


def text(x: int) -> str:
    return str(x) if abs(x) < 1 << 256 else ""


def check(a: Poly) -> None:
    """The table of a value, against Python ints."""
    page, n, shape = Page(a._repr_html_()), a.ring.n, a.shape
    assert f"domain {a.domain}" in page.title and f"batch shape {shape}" in page.title
    assert f"device {a.device}" in page.title
    if not prod(shape):
        assert page.rows == []
        return
    at, batch = places(n, 6, 3), list(np.ndindex(shape))
    batch = [batch[i] for i in places(len(batch), 4 + (len(batch) > 4), 3)]
    head, *rows = [[cell for cell in row if cell != "…"] for row in page.rows if set(row) != {"…"}]
    lead = 1 if shape else 0
    found = {}
    if a.domain == "coef":
        assert head[lead:] == [f"X{k}" for k in at]
        values = a.to_bigints(centered=True)
        expected = {(str(i) if shape else ""): [text(x) for x in values[i][at]] for i in batch}
        for row in rows:
            found[row[0] if shape else ""] = [x if "0x" not in x else "" for x in row[lead:]]
    else:
        assert head[lead:] == ["limb", *(f"value {k}" for k in at)]
        limbs = places(len(a.ring.moduli), 7, 4)
        residues = a.to_residue_ints().reshape(*shape, len(a.ring.moduli), n)
        expected = {
            (str(i) if shape else "", j): [text(x) for x in residues[i][j][at]]
            for i, j in product(batch, limbs)
        }
        for row in rows:
            label, limb = (row[0] if shape else ""), row[lead].partition(":")[0]
            found[label, int(limb)] = [x if "0x" not in x else "" for x in row[lead + 1 :]]
    assert found == expected


@pytest.mark.parametrize("name", RINGS)
def test_html_table_shows_the_values(name: str) -> None:
    R = ring(name)
    for shape in ((), (1,), (4,), (2, 3), (5, 0)):
        a = R(draw(R, shape)) if prod(shape) else R.zeros(shape)
        check(a)
        if R.has_eval:
            check(a.ntt())


@pytest.mark.parametrize("count", [2, 6, 7, 8, 20])
def test_html_table_of_many_limbs(count: int) -> None:
    R = Ring(8, ntt_primes(8, bits=40, count=count))
    a = R.random(7, seed=1)
    check(a), check(a.ntt()), check(a[3].ntt())
    page = Page(R._repr_html_())
    moduli = {int(m[1]) for row in page.rows if (m := re.fullmatch(r"(\d+) \(40 bits\)", row[1]))}
    assert moduli == {R.moduli[i] for i in places(count, 7, 4)}
    assert f"{R.modulus.bit_length()} bits in {count} limbs" in page.title


@on(*CARDS)
def test_html_table_of_values_on_a_card() -> None:
    a = RNS(draw(RNS, (2, 4)))
    check(a), check(a.ntt())


def test_html_table_composes_only_the_shown_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value has 2^22 residues, or repeats one polynomial 10^12 times."""
    sizes = []
    for name in ("to_bigints", "to_residue_ints"):
        real = getattr(show, name)

        def noted(basis: Any, data: Any, *more: Any, real: Any = real) -> Any:
            sizes.append(data.size)
            return real(basis, data, *more)

        monkeypatch.setattr(show, name, noted)

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a table transforms something")

    long = Ring(1 << 20, ntt_primes(1 << 20, bits=50, count=4)).zeros()
    small = Ring(4, [17, 97])
    many = np.broadcast_to(np.ones((2, 4), np.uint32), (10**6, 10**6, 2, 4))
    values = [long, Poly._make(long.ring, long.data, "eval"), Poly._make(small, many, "coef")]
    monkeypatch.setattr(CpuBackend, "ntt", forbidden)
    monkeypatch.setattr(CpuBackend, "intt", forbidden)
    for value in values:
        sizes.clear()
        began = time.perf_counter()
        html = value._repr_html_()
        assert time.perf_counter() - began < 0.5 and len(html) < 8000
        assert sizes and sum(sizes) <= 4 * 5 * 4
    assert "(999999, 999999)" in Page(html).rows[-1][0]


def test_html_tables_are_small() -> None:
    wide = Ring(64, ntt_primes(64, bits=60, count=40))
    huge = Ring(8, 2**20_000)
    for R in (wide, huge):
        assert len(R._repr_html_()) < 2500
        a = R.random((2, 3), seed=1)
        check(a)
        assert len(R.zeros((30, 30))._repr_html_()) < len(a._repr_html_()) + 100 < 12_000
    assert len(wide.random((30, 30), seed=1).ntt()._repr_html_()) < 24_000


@pytest.mark.parametrize(
    "R, facts",
    [
        (Ring(4096, 12289), {"modulus": "12289 (14 bits)", "transform": "of 2048 points, to leaves of 2"}),
        (Ring(8, 17, kind="cyclic", product="fft"), {"transform": "of 8 points, complete", "product": "fft"}),
        (Ring(12, [97, 101]), {"limb 0": "97 (7 bits)", "limb 1": "101 (7 bits)", "transform": "none"}),
        (Ring(8, 2**128), {"storage": "uint64, (*batch, 2, 8)", "modulus": f"{2**128} (129 bits)"}),
    ],
    ids=repr,
)
def test_html_table_of_a_ring(R: Ring, facts: dict[str, str]) -> None:
    page = Page(R._repr_html_())
    assert facts.items() <= dict(page.rows).items()
    assert (
        page.title.startswith("ℤ")
        and f"[X]/(X{R.n} {'+' if R.kind == 'negacyclic' else '−'} 1)" in page.title
    )


def test_html_table_of_a_ring_skips_large_primality_tests() -> None:
    """A primality test of 20,000 bits takes seconds."""
    R = Ring(4, 2**20_000 - 2**10_000 + 1)
    began = time.perf_counter()
    assert "transform" not in dict(Page(R._repr_html_()).rows)
    assert time.perf_counter() - began < 0.5


def test_html_text_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBackend, "name", '<b onclick="x">&amp;')
    page = Page(pg.Ring(4, 17)([1])._repr_html_())
    assert '<b onclick="x">&amp;' in page.title
