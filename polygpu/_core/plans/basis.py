"""The moduli of a ring and how residues are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from ..locks import cached_property
from .cache import Calls

# What backends store in a plan, for instance a native object, or a copy of the tables for each device. The
# entries live as long as the plan.
Handles = dict[str, Any]

_WORD = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class Basis:
    """The moduli of a ring, and how residues are stored: in arrays (*batch, rows, degree) of `dtype`."""

    moduli: tuple[int, ...]
    dtype: np.dtype[Any]
    words: int  # 64-bit words of one residue; more than 1 only if the one modulus is above 2^64
    handles: Handles = field(default_factory=dict, repr=False)
    calls: Calls = field(default_factory=Calls, repr=False)
    constants: Calls = field(default_factory=lambda: Calls(1 << 20), repr=False)  # cached residues of ints

    @cached_property
    def rows(self) -> int:
        """Return the length of the limb axis."""
        return self.words if self.words > 1 else len(self.moduli)

    @cached_property
    def wide(self) -> bool:
        """Return whether a residue takes several words."""
        return self.words > 1

    def residues(self, x: int | Sequence[int]) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the residues of x as they are stored, (rows, 1).

        x: one integer, or a list with an integer for each modulus.
        """
        values = [x] * len(self.moduli) if isinstance(x, int) else x
        pairs = zip(values, self.moduli, strict=True)
        words = [[v % q >> 64 * word & _WORD] for v, q in pairs for word in range(self.words)]
        return np.array(words, dtype=self.dtype)


@lru_cache(maxsize=256)
def basis_of(moduli: tuple[int, ...], wider: bool = False) -> Basis:
    """Return the basis of the given moduli, with dtype uint32 if all q <= 2^32 and not `wider`, else uint64.

    wider: True if the residues belong to a ring that stores uint64 because of other moduli.
    """
    narrow = not wider and all(q <= 1 << 32 for q in moduli)
    words = -(-(moduli[0] - 1).bit_length() // 64) if len(moduli) == 1 else 1
    return Basis(moduli, np.dtype(np.uint32 if narrow else np.uint64), max(1, words))
