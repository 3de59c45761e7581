"""How values and rings are shown: one line, and a table for notebooks.

Nothing is transformed. Only the numbers that are shown are copied to the host and composed from their limbs.
Making the line does not wait for a GPU.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .._backends import Array, Memory, backend_of
from .._core.checks import shown
from .._core.ring_plan import RingPlan
from .._core.value import Value
from .integers import to_bigints, to_residue_ints

_ITEMS, _FIRST, _LAST = 4, 3, 2  # how many polynomials are shown, and how many first and last numbers of each


def line(x: Value) -> str:
    """Return a line with the ring, the domain, the shape and the device.

    If x is in host memory and has few polynomials, the line also shows some numbers of each: centred
    coefficients, or evaluated residues of the first limb.
    """
    ring, data = x._plan, x._data
    q = (
        f"q={shown(ring.moduli[0])}"
        if len(ring.moduli) == 1
        else f"limbs={len(ring.moduli)}, bits={ring.modulus.bit_length()}"
    )
    kind = "" if ring.quotient.kind == "negacyclic" else f", kind={ring.quotient.kind}"
    device, numbers = backend_of(data).name, _numbers(x) if isinstance(data, np.ndarray) else ""
    return f"Poly(n={ring.n}, {q}{kind}, domain={x._domain}, shape={x._batch}, device={device}{numbers})"


def _numbers(x: Value) -> str:
    ring, data = x._plan, x._data
    items = data.reshape(-1, *data.shape[-2:]) if data.size else data[:0]
    if not 1 <= len(items) <= _ITEMS:
        return ""
    whole = ring.n <= _FIRST + _LAST + 1
    ends = items if whole else np.concatenate([items[..., :_FIRST], items[..., -_LAST:]], axis=-1)
    if x._domain == "coef":
        name, values = "centered", to_bigints(ring.basis, np.ascontiguousarray(ends), True)
    else:
        name = "values" if len(ring.moduli) == 1 else f"values mod {ring.moduli[0]}"
        values = to_residue_ints(ring.basis, ends).reshape(len(items), -1, ends.shape[-1])[:, 0]
    text = _nested(values.reshape(*data.shape[:-2], ends.shape[-1]).tolist(), whole)
    return f", {name}={text}"


def _nested(values: list[Any], whole: bool) -> str:
    if values and isinstance(values[0], list):
        parts = [_nested(x, whole) for x in values]
    else:
        parts = [shown(x) for x in values]
        if not whole:
            parts.insert(_FIRST, "...")
    return f"[{', '.join(parts)}]"


# ---- notebooks ----

_LIMBS, _LAST_LIMBS = 4, 2  # how many of the first and of the last limbs are shown, if a ring has many
_DIGITS = 32  # if an int has more digits, its cell shows only both ends, and the cell's title shows all
_ENDS = 14, 8
_SPACE = "white-space:nowrap;padding:0 .6em"


def table(x: Value) -> str:
    """Return an HTML table of some polynomials.

    For each polynomial, the table has the first and last coefficients, centred. If x is evaluated, the
    table has the first and last residues of each limb instead.
    """
    ring, data, domain, shape, n = x._plan, x._data, x._domain, x._batch, x._plan.n
    compute = backend_of(data)
    numbers = "centred coefficients" if domain == "coef" else "residues"
    facts = f"domain {domain}, {numbers}, batch shape {shape}, device {compute.name}"
    columns = _some(n, _FIRST, _LAST)
    polynomials = _some(prod(shape), _ITEMS - 1, 1)
    head = ["polynomial"] * bool(shape) + ["limb"] * (domain == "eval")
    if domain == "coef":
        head += ["…" if k is None else f"<i>X</i><sup>{k}</sup>" for k in columns]
    else:
        head += ["…" if k is None else f"value {k}" for k in columns]
    body = []
    for i in polynomials:
        if i is None:
            body.append([_cell("…", "right")] * len(head))
            continue
        at = tuple(int(k) for k in np.unravel_index(i, shape)) if shape else ()
        label, ends = [str(at)] * bool(shape), _ends(compute, data[at], columns)
        if domain == "coef":
            rows = [label + _cells(to_bigints(ring.basis, ends, True).tolist(), columns)]
        else:
            residues = to_residue_ints(ring.basis, ends).reshape(-1, ends.shape[-1]).tolist()
            rows = [
                ["…"] * len(head)
                if j is None
                else [*label, f"{j}: mod {shown(ring.moduli[j])}", *_cells(residues[j], columns)]
                for j in _some(len(ring.moduli), _LIMBS, _LAST_LIMBS)
            ]
        body += [[_cell(text, "right") for text in row] for row in rows]
    return _html(f"{_name(ring)}<br>{_escaped(facts)}", head if body else [], body)


def ring_table(ring: RingPlan) -> str:
    """Return an HTML table of a ring: moduli, storage and transform.

    The transform is left out if it is not known yet and primality tests of large moduli would take long.
    """
    moduli = ring.moduli
    chosen = _some(len(moduli), _LIMBS, _LAST_LIMBS)
    one = len(moduli) == 1
    facts = {"modulus" if one else f"limb {i}": "…" if i is None else _with_bits(moduli[i]) for i in chosen}
    facts["storage"] = f"{ring.dtype}, (*batch, {ring.rows}, {ring.n})"
    known = not ring.basis.wide or "leaf_size" in ring.__dict__  # primality of large numbers takes long
    if known:
        size = ring.leaf_size
        facts["transform"] = (
            "none"
            if size is None
            else f"of {ring.n // size} points, " + ("complete" if size == 1 else f"to leaves of {size}")
        )
    if ring.product != "auto":
        facts["product"] = ring.product
    body = [
        [_cell(name.replace("limb None", "…"), "left"), _cell(text, "left")] for name, text in facts.items()
    ]
    return _html(_name(ring), [], body)


def _with_bits(q: int) -> str:
    return shown(q) if q.bit_length() > 256 else f"{q} ({q.bit_length()} bits)"


def _name(ring: RingPlan) -> str:
    """Return the formula of the ring, and the size of Q if it has several limbs, as HTML."""
    one = len(ring.moduli) == 1
    q = _escaped(shown(ring.moduli[0])) if one else "<i>Q</i>"
    size = "" if one else f", <i>Q</i> of {ring.modulus.bit_length()} bits in {len(ring.moduli)} limbs"
    return f"ℤ<sub>{q}</sub>[<i>X</i>]/({ring.quotient.html}){size}"


def _some(count: int, first: int, last: int) -> list[int | None]:
    """Return the `first` lowest indices below `count`, None, and the `last` highest indices.

    If `count` is at most first + last + 1, return all indices below `count`.
    """
    if count <= first + last + 1:
        return list(range(count))
    return [*range(first), None, *range(count - last, count)]


def _ends(compute: Memory, x: Array, columns: list[int | None]) -> Array:
    """Return the shown columns of one polynomial, in host memory. No other columns are copied."""
    if None not in columns:
        return compute.to_host(x)
    first = columns.index(None)
    parts = x[:, :first], x[:, first + 1 - len(columns) :]
    return np.concatenate([compute.to_host(part) for part in parts], axis=-1)


def _cells(values: list[int], columns: list[int | None]) -> list[str]:
    texts = list(map(shown, values))
    if None in columns:
        texts.insert(columns.index(None), "…")
    return texts


def _cell(text: str, align: str) -> str:
    title = ""
    if text.lstrip("-").isdecimal() and len(text) > _DIGITS:
        title, text = f' title="{text}"', f"{text[: _ENDS[0]]}…{text[-_ENDS[1] :]}"
    return f'<td style="text-align:{align};{_SPACE}"{title}>{_escaped(text)}</td>'


def _escaped(text: str) -> str:
    from html import escape  # here, so that importing polygpu stays fast

    return escape(text)


def _html(caption: str, head: list[str], body: list[list[str]]) -> str:
    """Return a caption and a table as HTML without colours, for light and dark pages."""
    rows = "".join(f"<tr>{''.join(row)}</tr>" for row in body)
    top = "".join(f'<th style="text-align:right;{_SPACE}">{text}</th>' for text in head)
    top = f"<thead><tr>{top}</tr></thead>" if head else ""
    return f"<div>{caption}</div>" + (f"<table>{top}<tbody>{rows}</tbody></table>" if body else "")
