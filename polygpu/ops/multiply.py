"""How a ring multiplies."""

from __future__ import annotations

from ..backends import Backend
from ..checks import Kind
from ..errors import PrecisionError, TablesTooLarge
from ..plans.basis import limbs_of
from ..plans.ntt import transform_base
from ..plans.product import auxiliary_size, plan_fft


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
