"""How a value is shown: one line, and a table for notebooks. Nothing is transformed, moved or waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends import Array, backend_of
from ..checks import shown
from .integers import big_integers, residue_ints

if TYPE_CHECKING:
    from ..ring import Ring

_ITEMS, _FIRST, _LAST = 4, 3, 2  # polynomials of which numbers are shown, and so many of each


def line(ring: Ring, data: Array, domain: str) -> str:
    """The ring, the domain, the shape and the device; of few polynomials in host memory some numbers.

    Coefficients are centred integers. Evaluated residues are those of the first limb.
    """
    q = (
        f"q={shown(ring.moduli[0])}"
        if len(ring.moduli) == 1
        else f"limbs={len(ring.moduli)}, bits={ring.modulus.bit_length()}"
    )
    kind = "" if ring.kind == "negacyclic" else ", kind=cyclic"
    shape, device = data.shape[:-2], backend_of(data).name
    numbers = _numbers(ring, data, domain) if isinstance(data, np.ndarray) else ""
    return f"Poly(n={ring.n}, {q}{kind}, domain={domain}, shape={shape}, device={device}{numbers})"


def _numbers(ring: Ring, data: Array, domain: str) -> str:
    items = data.reshape(-1, *data.shape[-2:]) if data.size else data[:0]
    if not 1 <= len(items) <= _ITEMS:
        return ""
    whole = ring.n <= _FIRST + _LAST + 1
    ends = items if whole else np.concatenate([items[..., :_FIRST], items[..., -_LAST:]], axis=-1)
    if domain == "coef":
        name, values = "centered", big_integers(ring.basis, np.ascontiguousarray(ends), True)
    else:
        name = "values" if len(ring.moduli) == 1 else f"values mod {ring.moduli[0]}"
        values = residue_ints(ring.basis, ends).reshape(len(items), -1, ends.shape[-1])[:, 0]
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


def table(ring: Ring, data: Array, domain: str) -> str:
    """An HTML table: the same, and the first residues wherever they lie."""
    compute, shape = backend_of(data), data.shape[:-2]
    cells = {
        "ring": ring._repr_latex_(),
        "limbs": len(ring.moduli),
        "bits": ring.modulus.bit_length(),
        "domain": domain,
        "shape": shape,
        "device": compute.name,
    }
    if data.size:
        few = data[(0,) * len(shape)][:, :6]
        first = residue_ints(ring.basis, few).reshape(-1, few.shape[-1])[0].tolist()
        cells["first residues"] = ", ".join(map(shown, first)) + (", ..." if ring.n > 6 else "")
    rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in cells.items())
    return f"<table>{rows}</table>"
