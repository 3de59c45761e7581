"""Key switching: transforms of digits and their products with a key."""

from __future__ import annotations

from math import prod

from ...plans.basis import basis_of
from ...plans.lattice import DigitProduct
from ...plans.ntt import part_of
from ...plans.rns import runs_of
from .. import Array
from .matmul import Matmul
from .pointwise import Pointwise
from .rns import Rns


class Lattice(Pointwise, Rns, Matmul):
    """Launches of kernels of the other operations."""

    def digit_product(
        self, plan: DigitProduct, digits: Array, own: Array | None, key: Array, out: Array
    ) -> None:
        """See Backend."""
        n, limbs, items = out.shape[-1], len(plan.key_rows), prod(out.shape[:-3])
        if not items:
            return
        made, sums = digits.reshape(items, plan.digits, limbs, n), out.reshape(1, items, 2, limbs, n)
        if not plan.transformed:
            self._evaluate_digits(plan, made, own)
        if plan.permutation is not None:
            with self._scope:
                moved = self.xp.empty_like(made)
            self.permute(plan.transform.basis, made, plan.permutation, moved)
            made = moved
        done = 0
        for first, count in runs_of(plan.key_rows):
            limb = slice(done, done + count)
            basis = basis_of(plan.transform.basis.moduli[limb], out.dtype.itemsize == 8)
            rows = key[None, : plan.digits, :, first : first + count]
            self.matmul_points(basis, made[None, :, :, limb], rows, sums[..., limb, :])
            done += count

    def _evaluate_digits(self, plan: DigitProduct, made: Array, own: Array | None) -> None:
        """Transforms in place of all rows but own ones, which are copied."""
        items, digits, limbs, n = made.shape
        rows, taken = made.reshape(items, digits * limbs, n), {}
        if own is not None:
            value = own.reshape(items, -1, n)
            taken = {j * limbs + limb: row for limb, (j, row) in plan.own.items()}
            with self._scope:
                for place, count in runs_of(sorted(taken)):  # a digit's rows are neighbours in the value too
                    row = taken[place]
                    rows[:, place : place + count] = value[:, row : row + count]
        for first, count in runs_of(i for i in range(digits * limbs) if i not in taken):
            part = part_of(plan.transform, tuple(i % limbs for i in range(first, first + count)))
            self.ntt(part, rows, rows, first)
