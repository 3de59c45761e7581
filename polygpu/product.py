"""How a ring multiplies: by its transform, complete or not, or exactly through auxiliary primes."""

from __future__ import annotations

from .plan import AuxiliaryPlan, NttPlan, Plan, cached, limbs_of, plan_ntt
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


def product_plan(n: int, moduli: tuple[int, ...], kind: Kind, transform: NttPlan | None) -> Plan:
    """What multiplies coefficients: the ring's own transform if words can run it, else auxiliary primes."""
    if transform is not None and not transform.limbs.wide:
        return transform
    return plan_auxiliary(n, moduli, kind)


def auxiliary_primes(n: int, moduli: tuple[int, ...], kind: Kind) -> tuple[int, list[int]]:
    """Degree of the auxiliary transform and its primes: their product exceeds 2 n (q/2)^2 for each q.

    A coefficient of the product of two centred operands, |x| <= q/2, is at most n (q/2)^2 in size.
    """
    length = n if n & (n - 1) == 0 else 1 << (2 * n - 2).bit_length()
    auxiliary_kind: Kind = kind if length == n else "cyclic"
    bound = 2 * n * max(moduli) ** 2 // 4 + 1
    # A prime of AUXILIARY_BITS bits exceeds 2^(AUXILIARY_BITS - 1).
    count = -(-bound.bit_length() // (AUXILIARY_BITS - 1))
    primes = ntt_primes(length, AUXILIARY_BITS, count, auxiliary_kind)
    product, needed = 1, 0
    while product <= bound:
        product *= primes[needed]
        needed += 1
    return length, primes[:needed]


def plan_auxiliary(n: int, moduli: tuple[int, ...], kind: Kind) -> AuxiliaryPlan:
    """The plan of an exact product in the ring of any moduli and any degree."""

    def build() -> AuxiliaryPlan:
        length, primes = auxiliary_primes(n, moduli, kind)
        own_kind: Kind = kind if length == n else "cyclic"
        roots = tuple(two_power_root(p, root_order(length, own_kind)) for p in primes)
        transform = plan_ntt(length, tuple(primes), own_kind, 1, roots)
        return AuxiliaryPlan(limbs_of(moduli), n, kind, transform)

    return cached(("auxiliary", n, moduli, kind), build)
