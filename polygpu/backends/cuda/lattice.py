"""Key switching and gadgets: digits, their transforms and their products with keys."""

from __future__ import annotations

from math import prod

from ...plans.basis import basis_of
from ...plans.lattice import DigitProduct, Gadget
from ...plans.ntt import part_of
from ...plans.rns import runs_of
from .. import Array
from .launch import POINTER, U32, U64, Launch, Recipe, Struct, ctype, entrywise
from .matmul import Matmul
from .pointwise import Pointwise
from .rns import Rns

_FILE = "lattice.cu"
_WORD = (1 << 64) - 1

DECOMPOSE = Struct(
    _FILE,
    "DecomposeParameters<u64>",
    ("x y", POINTER),
    ("q power scale offset n entries", U64),
    ("bits levels", U32),
)


def decompose_launch(gadget: Gadget, n: int, entries: int, **values: int) -> Launch:
    """The digits of so many entries."""
    q, power = gadget.basis.moduli[0], 1 << gadget.bits * gadget.levels
    scale = (power << 8 * gadget.basis.dtype.itemsize) // q
    if power == q:
        power = scale = 0
    numbers = {"q": q & _WORD, "power": power, "scale": scale, "offset": gadget.offset & _WORD}
    sizes = {"n": n, "entries": entries, "bits": gadget.bits, "levels": gadget.levels}
    parameters = DECOMPOSE(**numbers, **sizes, **values)
    return entrywise(_FILE, f"decompose<{ctype(gadget.basis)}>", entries, parameters)


class Lattice(Pointwise, Rns, Matmul):
    """The kernel of lattice.cu, and launches of the other operations'."""

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

    # ---- gadgets ----

    def decompose(self, gadget: Gadget, x: Array, out: Array) -> None:
        """See Backend."""
        if not out.size:
            return

        def recipe() -> Recipe:
            made = Recipe(2)
            made.launch(decompose_launch(gadget, x.shape[-1], x.size, x=0, y=0), 0, 1)
            return made

        self.run(gadget.handles, ("decompose", x.size, x.shape[-1]), recipe, x, out)

    def gadget_product(self, gadget: Gadget, ggsw: Array, c: Array, out: Array) -> None:
        """See Backend."""
        if not out.size:
            return
        (k, n), plan = (c.shape[-3], c.shape[-1]), gadget.transform
        assert plan is not None
        items = prod(c.shape[:-3])
        with self._scope:
            digits = self.xp.empty((items, k * gadget.levels, 1, n), c.dtype)
        self.decompose(gadget, c, digits)
        self.ntt(plan, digits, digits)
        sums, matrix = out.reshape(1, items, k, 1, n), ggsw.reshape(1, k * gadget.levels, k, 1, n)
        self.matmul_points(gadget.basis, digits[None], matrix, sums)
        self.intt(plan, out, out)

    def gadget_rotation(self, gadget: Gadget, ggsws: Array, c: Array, exponents: Array, out: Array) -> None:
        """See Backend."""
        if not out.size:
            return
        assert gadget.transform is not None
        order = 2 * c.shape[-1] if gadget.transform.kind == "negacyclic" else c.shape[-1]
        powers = self.from_host(exponents.reshape(-1, exponents.shape[-1]))
        with self._scope:
            moved = self.xp.empty_like(out)
        self.turn_items(gadget.basis, order, c, powers[:, 0], out)
        for i, ggsw in enumerate(ggsws, 1):
            self.turn_items(gadget.basis, order, out, powers[:, i], moved, less=True)
            self.gadget_product(gadget, ggsw, moved, moved)
            self.pointwise(gadget.basis, "add", out, moved, None, out)
