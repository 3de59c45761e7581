"""How a ring multiplies: by its transform, complete or not, or exactly through auxiliary primes or an FFT."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from .backends import Backend
from .errors import ParameterError, PrecisionError, TablesTooLarge
from .plan import (
    AuxiliaryPlan,
    FftPlan,
    cached,
    check_memory,
    digit_width,
    limbs_of,
    plan_ntt,
    residue_bits,
)
from .roots import Kind, is_prime, ntt_primes, root_order, shown, two_power_root

# Auxiliary primes stay below 2^50: within reach of the 52-bit multipliers of CPUs and the FP64 units of GPUs.
AUXILIARY_BITS = 50

MAX_DIGITS = 8  # of an operand of a product by FFT
# The twiddles of an FFT are rounded from a format with more digits (plan.py, unit_roots).
LONG_DOUBLE = np.finfo(np.longdouble).nmant >= 63
LEAST_LENGTH = 32  # of its transforms, so that kernels find whole vectors and tiles

MAX_SKIPPED_LAYERS = 3  # leaves of an incomplete transform have at most 2^3 coefficients


def transform_base(n: int, moduli: tuple[int, ...], kind: Kind) -> int | None:
    """Coefficients of a leaf of the most complete transform: 1, 2, 4 or 8; None where there is none."""
    if n & (n - 1):
        return None
    for layers in range(min(MAX_SKIPPED_LAYERS, n.bit_length() - 1) + 1):
        order = root_order(n >> layers, kind)
        if all((q - 1) % order == 0 for q in moduli):
            return 1 << layers if all(is_prime(q) for q in moduli) else None
    return None


def auxiliary_size(n: int, moduli: tuple[int, ...]) -> tuple[int, int]:
    """Points of the auxiliary transform, and how many primes suffice.

    Their product exceeds 2 n (q/2)^2 for each q: a coefficient of the product of two centred
    operands, |x| <= q/2, is at most n (q/2)^2 in size (docs/math.md).
    """
    points = n if n & (n - 1) == 0 else 1 << (2 * n - 2).bit_length()
    bound = n * max(moduli) ** 2 // 2 + 1
    return points, -(-bound.bit_length() // (AUXILIARY_BITS - 1))  # each prime exceeds 2^(bits - 1)


def auxiliary_bytes(n: int, moduli: tuple[int, ...]) -> int:
    """Bytes that products take: twiddles, constants of the mixed-radix digits, residues of two operands."""
    points, count = auxiliary_size(n, moduli)
    return (4 + 2) * 8 * points * count + 16 * count * count


def plan_auxiliary(n: int, moduli: tuple[int, ...], kind: Kind) -> AuxiliaryPlan:
    """The plan of an exact product in the ring of any moduli and any degree."""

    def build() -> AuxiliaryPlan:
        points, count = auxiliary_size(n, moduli)
        own_kind: Kind = kind if points == n else "cyclic"  # the linear product is folded afterwards
        check_memory(auxiliary_bytes(n, moduli), n, moduli)
        primes = tuple(ntt_primes(points, AUXILIARY_BITS, count, own_kind))
        roots = tuple(two_power_root(p, root_order(points, own_kind)) for p in primes)
        transform = plan_ntt(points, primes, own_kind, 1, roots)
        return AuxiliaryPlan(limbs_of(moduli), n, kind, transform)

    return cached(("auxiliary", n, moduli, kind), build)


def fft_error_bound(n: int, points: int, digits: int, width: int) -> Fraction:
    """What no coefficient of a sum of products of digits exceeds in error (docs/math.md, equation 6)."""
    u = Fraction(1, 1 << 53)
    stage = 1 + Fraction(17, 4) * u
    stages = points.bit_length() - 1
    size = Fraction(digits * n << 2 * width, 4)  # of all products of a sum: digits n (2^(width - 1))^2
    return size * (stage ** (3 * stages) * (1 + 3 * digits * u) - 1)


def coarsest_fft(n: int, moduli: tuple[int, ...], kind: Kind) -> FftPlan:
    """The plan of plan_fft, whatever memory there is.

    Raises:
        PrecisionError: n is so large that even the shortest digits are not proven exact.
        ParameterError: a modulus above 2^64.
    """
    if limbs_of(moduli).wide:
        raise ParameterError(
            f"q = {shown(moduli[0])} is above 2**64, where there is no product by FFT; "
            "auxiliary primes serve it: leave 'fft' out"
        )
    if not LONG_DOUBLE:
        raise PrecisionError(
            "NumPy's longdouble has no more digits than a double here: no table of a product by FFT is close "
            "enough; auxiliary primes are exact: leave 'fft' out"
        )
    whole = n & (n - 1) == 0 and kind == "negacyclic" and n >= LEAST_LENGTH
    length = n if whole else max(LEAST_LENGTH, 1 << (2 * n - 2).bit_length())
    for digits in range(1, MAX_DIGITS + 1):
        width = digit_width(moduli, digits)
        bound = fft_error_bound(n, length // 2, digits, width)
        if bound < Fraction(1, 2):
            return FftPlan(limbs_of(moduli), n, kind, length, digits, float(bound))
    raise PrecisionError(
        f"n = {n} with moduli of {residue_bits(moduli)} bits: a product by FFT with {digits} digits of "
        f"{width} bits may be wrong by {float(bound):.2g}, which must be below 1/2; auxiliary primes are "
        "exact: leave 'fft' out"
    )


def plan_fft(n: int, moduli: tuple[int, ...], kind: Kind) -> FftPlan:
    """The plan of an exact product by transforms in doubles, with the fewest digits that are proven exact.

    Raises:
        PrecisionError, ParameterError: there is none.
        TablesTooLarge: its table does not fit in memory.
    """

    def build() -> FftPlan:
        plan = coarsest_fft(n, moduli, kind)
        check_memory(plan.bytes, n, moduli)
        return plan

    return cached(("fft", n, moduli, kind), build)


def fft_pays(n: int, moduli: tuple[int, ...], kind: Kind, compute: Backend) -> bool:
    """Whether a product by FFT is possible, and faster on a device than without a complete transform."""
    if limbs_of(moduli).wide:
        return False
    try:
        plan = plan_fft(n, moduli, kind)
    except (PrecisionError, TablesTooLarge):
        return False
    points, primes = auxiliary_size(n, moduli)
    residues = points * primes if transform_base(n, moduli, kind) is None else n
    return compute.prefers_fft(plan, residues)
