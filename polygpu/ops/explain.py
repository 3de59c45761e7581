"""What a ring says of itself: how it multiplies, and why it has no evaluation domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..backends import current_device
from ..checks import Kind, shown
from ..errors import ParameterError, TablesTooLarge
from ..exact.primes import is_prime, ntt_primes, root_order
from ..memory import check_memory
from ..plans.basis import Basis
from ..plans.ntt import table_bytes
from ..plans.product import AUXILIARY_BITS, auxiliary_bytes, auxiliary_size, coarsest_fft
from .multiply import choose

if TYPE_CHECKING:
    from ..ring import Ring


def explain(ring: Ring) -> str:
    """Storage, word, way of products, root and size of tables, as text; makes no tables."""
    n, moduli, basis, leaf_size = ring.n, ring.moduli, ring.basis, ring.leaf_size
    size = basis.rows * n * basis.dtype.itemsize
    sign = "+" if ring.kind == "negacyclic" else "-"
    lines = {
        "storage": f"{basis.dtype.name}, (*batch, {basis.rows}, {n}), {size / 1024:.1f} KiB a polynomial",
        "word": _word(basis),
    }
    tables = needed = 0 if leaf_size is None else table_bytes(n, moduli, leaf_size)
    way, reason = choose(ring, "auto", current_device())
    if way == "fft":
        lines["product"], table, memory = _explain_fft(n, moduli, ring.kind)
        tables, needed = tables + table, needed + memory
    elif way == "auxiliary":
        length, count = auxiliary_size(n, moduli)
        primes = f"{count} auxiliary prime{'s' * (count > 1)} of {AUXILIARY_BITS} bits"
        lines["product"] = f"{primes}, transforms of {length} points, CRT"
        tables, needed = 4 * 8 * length * count, auxiliary_bytes(n, moduli)
    if leaf_size is not None:
        points, layers = n // leaf_size, leaf_size.bit_length() - 1
        early = (
            f", stopped {layers} layer{'s' * (layers > 1)} early: {points} leaves of {leaf_size} coefficients"
        )
        transform = f"transform of {points} points" + (early if layers else "")
        lines["eval" if "product" in lines else "product"] = transform
    lines["because"] = reason
    try:
        check_memory(needed, n, moduli)
        if leaf_size is None:
            lines["eval"] = f"none: {why_no_transform(n, moduli, ring.kind)}"
        else:
            assert ring.roots is not None
            shown_roots = ", ".join(map(shown, ring.roots[:3])) + ", ..." * (len(ring.roots) > 3)
            lines["root"] = f"{shown_roots}, of order {root_order(n // leaf_size, ring.kind)}"
        lines["tables"] = f"{tables / 1024:.1f} KiB"
    except TablesTooLarge as error:
        lines["tables"] = f"too large: {error}"
    head = f"{ring!r}: Z_Q[X]/(X^{n} {sign} 1), Q of {ring.modulus.bit_length()} bits"
    return "\n".join([head, *(f"{name:<10}{text}" for name, text in lines.items())])


def _explain_fft(n: int, moduli: tuple[int, ...], kind: Kind) -> tuple[str, int, int]:
    """The text on a product by FFT, the bytes of its table, and the bytes of all that it needs."""
    try:
        plan = coarsest_fft(n, moduli, kind)
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
    """The bound of the kernels that serve the largest modulus; smaller limbs may take faster ones."""
    if basis.wide:
        return f"{basis.words} words of 64 bits"
    limits = (30, 31) if basis.dtype == np.uint32 else (50, 62)
    top = 32 if basis.dtype == np.uint32 else 64
    bits = next((b for b in limits if max(basis.moduli) < 1 << b), None)
    return f"q < 2^{bits}" if bits else f"q <= 2^{top}"


def why_no_transform(n: int, moduli: tuple[int, ...], kind: Kind) -> str:
    """Which condition of a complete transform fails, and what would meet it."""
    if n & (n - 1):
        return f"n = {n} is no power of two, so there is no evaluation domain; products work without"
    order = root_order(n, kind)
    for q in moduli:
        if not is_prime(q):
            return f"{shown(q)} is not prime, so there is no evaluation domain; products work without"
        if (q - 1) % order:
            return (
                f"q = {shown(q)}: q mod {order} is {q % order}, must be 1; "
                f"ntt_primes({n}, bits={_friendly_bits(n, moduli, kind)}, kind={kind!r}) lists "
                "moduli that do; products work without"
            )
    raise AssertionError("the ring has a transform")


def _friendly_bits(n: int, moduli: tuple[int, ...], kind: Kind) -> int:
    """The least size in bits, from the smallest modulus's (or 62) on, of which there are fitting primes."""
    order = root_order(n, kind)
    bits = max(order.bit_length() + 1, min(62, *(q.bit_length() for q in moduli)))
    while True:
        try:
            ntt_primes(n, bits, kind=kind)
            return bits
        except ParameterError:
            bits += 1
