"""Integers and residues: CRT composition and reduction."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .plan import Limbs, ints_to_words, words_to_ints


def compose(limbs: Limbs, residues: NDArray[Any], centered: bool) -> NDArray[np.object_]:
    """Python ints (*batch, n) in [0, Q), or in (-Q/2, Q/2], of residues (*batch, rows, n).

    Cost: about 0.2 us a coefficient and limb. Source: Garner 1959, in its direct form.
    """
    if limbs.wide:
        value, modulus = words_to_ints(residues), limbs.moduli[0]
    elif len(limbs.moduli) == 1:
        value, modulus = residues[..., 0, :].astype(object), limbs.moduli[0]
    else:
        modulus = prod(limbs.moduli)
        value = np.zeros((*residues.shape[:-2], residues.shape[-1]), dtype=object)
        for i, q in enumerate(limbs.moduli):
            rest = modulus // q
            value += residues[..., i, :].astype(object) * (rest * pow(rest, -1, q) % modulus)
        value %= modulus
    if centered:
        value = np.where(value > modulus // 2, value - modulus, value).astype(object)
    return value


def residues_of_ints(limbs: Limbs, x: NDArray[np.object_], out: NDArray[Any]) -> None:
    """Reduce an object array of Python ints (*batch, count) into out (*batch, rows, n); the rest is 0."""
    count = x.shape[-1]
    out[..., count:] = 0
    if limbs.wide:
        out[..., :count] = ints_to_words(x % limbs.moduli[0], limbs.words)
        return
    for i, q in enumerate(limbs.moduli):
        out[..., i, :count] = (x % q).astype(limbs.dtype)
