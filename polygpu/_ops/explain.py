"""The text of Ring.explain: how a ring stores and multiplies elements, its root of unity, and its tables."""

from __future__ import annotations

import numpy as np

from .._backends import backend
from .._core.checks import shown
from .._core.memory import check_memory
from .._core.plans.basis import Basis
from .._core.plans.ntt import table_bytes
from .._core.plans.product import AUXILIARY_BITS, auxiliary_bytes, auxiliary_size, coarsest_fft
from .._core.quotient import Quotient
from .._core.ring_plan import RingPlan
from .._core.ways import way_of_product
from ..errors import ParameterError, TablesTooLarge


def explain(ring: RingPlan) -> str:
    """Return a text about the ring's storage, kernels, products, root and tables, without making tables."""
    n, moduli, basis, leaf_size = ring.n, ring.moduli, ring.basis, ring.leaf_size
    size = basis.rows * n * basis.dtype.itemsize
    lines = {
        "storage": f"{basis.dtype.name}, (*batch, {basis.rows}, {n}), {size / 1024:.1f} KiB a polynomial",
        "word": _word(basis),
    }
    tables = needed = 0 if leaf_size is None else table_bytes(n, moduli, leaf_size)
    way, reason = way_of_product(ring, "auto", backend())
    if way == "fft":
        lines["product"], table, memory = _explain_fft(ring.quotient, moduli)
        tables, needed = tables + table, needed + memory
    elif way == "auxiliary":
        length, count = auxiliary_size(ring.quotient, moduli)
        primes = f"{count} auxiliary prime{'s' * (count > 1)} of {AUXILIARY_BITS} bits"
        lines["product"] = f"{primes}, transforms of {length} points, CRT"
        tables, needed = 4 * 8 * length * count, auxiliary_bytes(ring.quotient, moduli)
    if leaf_size is not None:
        points, layers = n // leaf_size, leaf_size.bit_length() - 1
        transform = f"transform of {points} points"
        if layers and ring.quotient.is_binomial:
            transform += f", stopped {layers} layer{'s' * (layers > 1)} early"
        if layers:
            transform += f": {points} leaves of {leaf_size} coefficients"
        lines["eval" if "product" in lines else "product"] = transform
    lines["because"] = reason
    try:
        check_memory(needed, n, moduli)
        if leaf_size is None:
            lines["eval"] = f"none: {ring.why_no_transform()}"
        else:
            assert ring.roots is not None
            shown_roots = ", ".join(map(shown, ring.roots[:3])) + ", ..." * (len(ring.roots) > 3)
            lines["root"] = f"{shown_roots}, of order {ring.root_order}"
        lines["tables"] = f"{tables / 1024:.1f} KiB"
    except TablesTooLarge as error:
        lines["tables"] = f"too large: {error}"
    head = f"{ring!r}: Z_Q[X]/({ring.quotient}), Q of {ring.modulus.bit_length()} bits"
    return "\n".join([head, *(f"{name:<10}{text}" for name, text in lines.items())])


def _explain_fft(quotient: Quotient, moduli: tuple[int, ...]) -> tuple[str, int, int]:
    """Return three values: a text about products by FFT, and two numbers of bytes.

    The numbers are the bytes of the table, and the bytes of the table and the workspace together.
    """
    try:
        plan = coarsest_fft(quotient, moduli)
    except ParameterError as error:
        return f"none: {error}", 0, 0
    digits = f"{plan.digits} digit{'s' * (plan.digits > 1)} of {plan.width} bits"
    return (
        f"FFT of {plan.points} complex points, {digits}, error below {plan.error_bound:.2g} by proof, "
        "0.5 allowed",
        16 * plan.points,
        plan.bytes,
    )


def _word(basis: Basis) -> str:
    """Return, as text, the range of q of the kernels in use, or how many words a wide modulus has."""
    if basis.wide:
        return f"{basis.words} words of 64 bits"
    limits = (30, 31) if basis.dtype == np.uint32 else (50, 62)
    top = 32 if basis.dtype == np.uint32 else 64
    bits = next((b for b in limits if max(basis.moduli) < 1 << b), None)
    return f"q < 2^{bits}" if bits else f"q <= 2^{top}"
