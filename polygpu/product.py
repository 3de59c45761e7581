"""How a ring multiplies: by its transform, complete or not, or exactly through auxiliary primes."""

from __future__ import annotations

from .plan import AuxiliaryPlan, cached, check_memory, limbs_of, plan_ntt
from .roots import Kind, is_prime, ntt_primes, root_order, two_power_root

# Auxiliary primes stay below 2^50: within reach of the 52-bit multipliers of CPUs and the FP64 units of GPUs.
AUXILIARY_BITS = 50

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
