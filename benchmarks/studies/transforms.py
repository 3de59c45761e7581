"""What studies of transforms share: values and twiddles on the host, polygpu's kernels in given passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu._backends import get_backend
from polygpu._backends.cuda.launch import Recipe
from polygpu._backends.cuda.tiles import Pass, split_passes, table_offsets
from polygpu._backends.cuda.transform import group_tables, passes_over, rows_of, transform_recipe
from polygpu._backends.cuda.words import LAZY60, Card, groups_of
from polygpu._backends.reference import reverse_bits

from . import kernel
from .kernel import Ready
from .runner import DEVICE

BITS = 60
WORD, WORD_BYTES = LAZY60.name, LAZY60.bytes  # of primes of that size
ADICITY = 2**25  # divides q - 1: the prime has negacyclic transforms of all sizes here


@cache
def modulus() -> int:
    """Return the largest prime of 60 bits with negacyclic transforms of 2^24 points."""
    return pg.ntt_primes(ADICITY // 2, bits=BITS)[0]


@cache
def ring(degree: int, kind: str = "negacyclic") -> pg.Ring:
    return pg.Ring(degree, modulus(), kind=kind)


def root(degree: int, kind: str = "negacyclic") -> int:
    """Return the root of the ring: of order 2 degree, or of order degree in a cyclic ring."""
    roots = ring(degree, kind).roots
    assert roots is not None
    return int(roots[0])


@cache
def residues(count: int) -> NDArray[Any]:
    """Random residues, with q - 1 among them."""
    found = np.random.default_rng(1).integers(0, modulus(), count, np.uint64)
    found[:: max(1, count // 7)] = modulus() - 1
    found.flags.writeable = False
    return found


def products(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Products modulo q, entry by entry, on the CPU; b may be one number."""
    one = ring(1)
    left = one.from_residues(np.ascontiguousarray(a).reshape(-1, 1, 1))
    right = one.from_residues(np.ascontiguousarray(b).reshape(-1, 1, 1))
    return np.asarray((left * right).data).reshape(a.shape)


def powers(x: int, count: int) -> NDArray[Any]:
    """x^0 ... x^(count - 1) modulo q."""
    found = np.ones(1, np.uint64)
    while len(found) < count:
        found = np.concatenate([found, products(found, np.uint64(pow(x, len(found), modulus())))])
    return found[:count]


def pairs(residues: NDArray[Any]) -> NDArray[Any]:
    """Each residue w with its Shoup quotient: (w, floor(w 2^64 / q))."""
    return np.array([(w, (w << 64) // modulus()) for w in residues.tolist()], np.uint64)


def split_powers(w: int, count: int, log_low: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Pairs of w^e, for e < 2^log_low and for the multiples e of 2^log_low below count."""
    step = pow(w, 1 << log_low, modulus())
    return pairs(powers(w, 1 << log_low)), pairs(powers(step, count >> log_low))


def transformed(x: NDArray[Any], kind: str = "negacyclic", psi: int | None = None) -> NDArray[Any]:
    """Compute transforms of rows, natural order to bit-reversed, on the CPU.

    psi: None is the ring's own root.
    """
    degree = x.shape[-1]
    own = ring(degree, kind) if psi is None else pg.Ring(degree, modulus(), kind=kind, root=psi)
    values = own.from_residues(np.ascontiguousarray(x).reshape(-1, 1, degree))
    return np.asarray(values.ntt().data).reshape(x.shape)


def node_twiddles(degree: int, kind: str = "negacyclic", psi: int | None = None) -> NDArray[Any]:
    """Return pairs by node of the tree of factors. Node 0 does not exist; its entry holds 1."""
    of_psi = powers(root(degree, kind) if psi is None else psi, degree)
    index = [0] * degree
    for node in range(1, degree):
        stage = 1 << (node.bit_length() - 1)
        index[node] = (
            reverse_bits(node, degree) if kind == "negacyclic" else reverse_bits(node - stage, degree // 2)
        )
    return pairs(of_psi[index])


# ---- on the card ----


def moduli() -> Any:
    """Return the constants of q (Modulus in cuda/modulus.cuh)."""
    backend: Any = get_backend(DEVICE)
    return backend.moduli(ring(1)._plan.basis)


def on_card(*tables: NDArray[Any]) -> tuple[Any, ...]:
    import cupy

    return tuple(map(cupy.asarray, tables))


def round_twiddles(degree: int, one: Pass) -> int:
    """Return the address of polygpu's own twiddles for a transform of one pass.

    They are in the order of its rounds.
    """
    backend: Any = get_backend(DEVICE)
    plan: Any = ring(degree)._plan.transform
    (group,) = groups_of(plan.basis, backend.card)
    packed: bytes = group_tables(backend, plan, group, (one,)).on(backend.stream())
    return int.from_bytes(packed[:8], "little")


def passes_of(degree: int, count: int) -> tuple[Pass, ...]:
    """Return the passes that polygpu takes for `count` rows."""
    card: Card = get_backend(DEVICE).card  # type: ignore[attr-defined]
    return passes_over(count, degree, 1, WORD_BYTES, card)


def taken(points: int, few: bool = False) -> Pass:
    """Return the pass that polygpu takes by itself for very short transforms.

    They are so short that it is the same on every card.
    """
    (one,) = split_passes(points, 1, WORD_BYTES, Card((9, 0), 227 << 10), few)
    return one


def in_passes(
    degree: int, count: int, passes: Sequence[Pass], only: int | None = None
) -> Callable[[], Ready]:
    """Return a function that makes polygpu's forward transform of `count` rows ready, in given passes.

    only: the number of one pass, which is done alone, from residues to residues.
    """
    chosen = slice(None) if only is None else slice(only, only + 1)
    done = tuple(passes)[chosen]

    def work() -> Ready:
        import cupy

        backend: Any = get_backend(DEVICE)
        plan: Any = ring(degree)._plan.transform
        (group,) = groups_of(plan.basis, backend.card)

        def recipe(rows_count: int) -> Recipe:
            made = Recipe(2)
            rows = rows_of(backend, plan, group, rows_count, tuple(passes), made)
            offsets = table_offsets(tuple(passes), group.word)[: len(passes)][chosen]
            made.add(transform_recipe(rows, done, offsets, "forward", backend.card), 0, 1)
            return made

        def run(x: Any, y: Any) -> None:
            count = prod(x.shape) // degree
            backend.run(plan.handles, ("study", tuple(passes), only, count), lambda: recipe(count), x, y)

        if len(done) > 1:
            return Ready(run)
        run(cupy.zeros(degree, np.uint64), cupy.empty(degree, np.uint64))  # which compiles it
        (one,) = done
        name = f"ntt_forward<{WORD}, {one.shape},"
        function = next(f for kernel, f in backend._kernels.items() if name in kernel)
        blocks, shared = -(-count * degree >> one.log_block_values), one.shared_values * WORD_BYTES
        return Ready(run, kernel.facts_of(function, blocks, one.threads, shared), "ntt_forward")

    return work
