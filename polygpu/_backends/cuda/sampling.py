"""Random residues: the device computes ChaCha20 streams and the residues that they define."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..._core.plans.basis import Basis
from ..._core.plans.sampling import Sampler, Shape
from .. import Array
from .launch import (
    ALIGNMENT,
    I64,
    POINTER,
    U32,
    U64,
    Context,
    Launch,
    Recipe,
    Struct,
    cbool,
    ctype,
    entrywise,
)

_FILE = "sampling.cu"
_BLOCK = 64  # bytes of a block of the ChaCha20 stream
_MAX_LIMBS = 65535  # the most blocks along the second axis of a grid
_SPARSE_THREADS = 1024
_SHAPES: dict[Shape, str] = {
    "ternary": "TERNARY",
    "binomial": "BINOMIAL",
    "gaussian": "GAUSSIAN",
    "tuniform": "TUNIFORM",
}

STREAM = Struct(_FILE, "Stream", ("key", (U32, 8)), ("block", U64))
UNIFORM = Struct(
    _FILE,
    "UniformParameters<u64>",
    ("y moduli", POINTER),
    ("stream", STREAM),
    ("n skip entries blocks", U64),
    ("limbs", U32),
)
SMALL = Struct(
    _FILE,
    "SmallParameters<u64>",
    ("y moduli thresholds", POINTER),
    ("stream", STREAM),
    ("n skip entries blocks bound", U64),
    ("weights", (I64, 4)),
    ("limbs parameter count", U32),
)
KEYS = Struct(_FILE, "KeysParameters", ("y", POINTER), ("stream", STREAM), ("blocks", U64))
SPARSE = Struct(
    _FILE, "SparseParameters<u64>", ("x y moduli", POINTER), ("n skip weight", U64), ("limbs", U32)
)


def stream_of(key: bytes, first: int, count: int, size: int) -> dict[str, Any]:
    """Return the launch fields for coefficients first, ..., first + count - 1 of the stream of `key`.

    size: bytes of the stream for each coefficient.
    """
    block, rest = divmod(first * size, _BLOCK)
    blocks = -(-(rest + count * size) // _BLOCK)
    return {"stream": STREAM(key=key, block=block), "skip": rest // size, "entries": count, "blocks": blocks}


def uniform_launch(basis: Basis, whole: bool, blocks: int, **values: Any) -> Launch:
    """Return the launch that draws uniform residues.

    whole: whether the four residues of each ChaCha20 block lie in one row, at an aligned address.
    """
    parameters = UNIFORM(blocks=blocks, limbs=basis.rows, **values)
    kernel = f"uniform<{ctype(basis)}, {cbool(whole)}>"
    return entrywise(_FILE, kernel, blocks, parameters, min(basis.rows, _MAX_LIMBS))


def small_launch(basis: Basis, sampler: Sampler, blocks: int, **values: Any) -> Launch:
    """Return the launch that draws small integers, for a sampler whose `shape` is not "sparse"."""
    weights = np.zeros(4, np.int64)
    weights[: len(sampler.weights)] = sampler.weights
    parameters = SMALL(
        blocks=blocks,
        bound=sampler.bound,
        weights=weights.tobytes(),
        limbs=basis.rows,
        parameter=sampler.parameter,
        count=len(sampler.thresholds),
        **values,
    )
    kernel = f"small<{ctype(basis)}, {_SHAPES[sampler.shape]}, {sampler.size}>"
    return entrywise(_FILE, kernel, blocks, parameters)


def keystream_launch(blocks: int, **values: Any) -> Launch:
    """Return the launch that writes the bytes of a stream."""
    return entrywise(_FILE, "keystream", blocks, KEYS(blocks=blocks, **values))


def sparse_launch(basis: Basis, items: int, **values: Any) -> Launch:
    """Return the launch that makes sparse polynomials from the words of a stream."""
    parameters = SPARSE(limbs=basis.rows, **values)
    return Launch(_FILE, f"sparse<{ctype(basis)}>", (items, 1), _SPARSE_THREADS, parameters)


def uniform(gpu: Context, basis: Basis, key: bytes, start: int, out: Array) -> None:
    n = out.shape[-1]
    fields = stream_of(key, start * n, prod(out.shape[:-2]) * n, 16)
    moduli = gpu.moduli_of(basis)
    where = {"y": 0, "moduli": gpu.address(moduli.value)}
    whole = n % 4 == 0 and gpu.address(out) % ALIGNMENT == 0
    recipe = Recipe(1, moduli)
    recipe.launch(uniform_launch(basis, whole, n=n, **where, **fields), 0)
    gpu.run_once(recipe, gpu.address(out))


def sample(gpu: Context, basis: Basis, sampler: Sampler, key: bytes, start: int, out: Array) -> None:
    n, items = out.shape[-1], prod(out.shape[:-2])
    fields = stream_of(key, start * n, items * n, sampler.size)
    moduli = gpu.moduli_of(basis)
    where = {"y": 0, "moduli": gpu.address(moduli.value)}
    if sampler.shape == "sparse":
        recipe = Recipe(1, moduli)
        words = recipe.temporary(_BLOCK * fields["blocks"])
        recipe.launch(keystream_launch(fields["blocks"], y=0, stream=fields["stream"]), words)
        values = where | {"x": 0, "n": n, "skip": fields["skip"], "weight": sampler.parameter}
        recipe.launch(sparse_launch(basis, items, **values), words, 0)
    else:
        made = np.array(sampler.thresholds or (0,), np.uint64)
        table = gpu.kept(sampler.handles, "thresholds", lambda: (gpu.from_host(made), ()))
        recipe = Recipe(1, moduli, table)
        where["thresholds"] = gpu.address(table.value)
        recipe.launch(small_launch(basis, sampler, n=n, **where, **fields), 0)
    gpu.run_once(recipe, gpu.address(out))
