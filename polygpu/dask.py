"""Batches larger than memory and polynomials of huge degree, computed by Dask in blocks.

Dask's scheduler decides where and when each block is computed: on threads of this process, on several
processes, or on several machines. This module needs Dask: pip install "polygpu[dask]".

>>> import polygpu as pg, polygpu.dask as pd
>>> R = pg.Ring(2**10, pg.ntt_primes(2**10, bits=60))
>>> a, b = R.random(seed=1), R.random(seed=2)
>>> c = pd.from_poly(a, chunks=(-1, 2**8)) * pd.from_poly(b, chunks=(-1, 2**8))  # 4 blocks each
>>> c.compute() == a * b
True

Dask's own client starts processes on this machine, here two with one thread each. Its dashboard
(client.dashboard_link) and dask.distributed.progress show the work:

    from dask.distributed import Client, progress
    client = Client(n_workers=2, threads_per_worker=1, env={"POLYGPU_NUM_THREADS": "1"})
    c = c.persist()
    progress(c)

Client("tcp://scheduler:8786") uses workers on other machines. Each worker computes on its current device: if
POLYGPU_DEVICE=cuda:0 is in the worker's environment, each task copies its blocks to that GPU and the result
back. Between tasks blocks are NumPy arrays. Dask sends them to other workers and spills them to disk. If a
worker is lost, Dask computes its blocks again, because the result of a task depends only on its input blocks.

A single polynomial can be divided into several blocks if its ring has a complete transform. Then ntt() and
intt() use the four-step algorithm (docs/math.md, "Four steps"), and each step works on one block at a time.
The coefficients are arranged as a matrix, whose blocks are ranges of neighbouring columns. The evaluated
values are a matrix too, whose blocks are ranges of neighbouring rows. To go from columns to rows or back,
every block sends a piece to every other block; the docstrings below call this an exchange.
"""

from __future__ import annotations

import asyncio
import errno
import math
import operator
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

try:
    import dask
    import dask.array as da
    import zarr
    from dask.base import DaskMethodsMixin, compute_as_if_collection, get_scheduler, tokenize
    from dask.core import flatten
    from dask.highlevelgraph import HighLevelGraph
    from dask.utils import format_bytes, parse_bytes
except ImportError as error:
    raise ImportError(
        f'polygpu.dask needs Dask and zarr ({error}). Run pip install "polygpu[dask]".'
    ) from error

from . import functions, linalg
from ._backends import Array, backend, backend_for, host
from ._core.checks import Domain, checked_batch, integer, sequence, shown
from ._core.plans.four_step import FourStepPlan, plan_four_step
from ._core.ways import way_of_sums
from ._ops import four_step
from ._ops.arrays import NotAnArray, as_integers, broadcasts, check_unmasked, empty, shared
from ._ops.batch import checked_axis, index
from ._ops.einsum import Label, label_sizes, matmul_labels, parsed_subscripts
from ._ops.integers import factors_of_limbs
from ._ops.pointwise import pointwise
from ._ops.sampling import Batch, Seed, check_stream, key_of
from .errors import (
    CoefficientError,
    DomainError,
    FileError,
    OutOfHostMemory,
    OutputError,
    ParameterError,
    PolyGPUError,
    RingMismatch,
)
from .files import DAMAGED, Flaw, first_wrong, give_name, int_text, ring_entry, ring_of_entry, wrong_residue
from .poly import Poly
from .poly import _operator as operator_of_poly
from .ring import Ring

__all__ = ["BlockedPoly", "einsum", "equal", "from_array", "from_poly", "load", "matmul", "random"]

_FORMAT = 1  # version of a .zarr's attributes: the entries for a ring (files.py), "domain" and "format"
_WINDOW = 1 << 25  # bytes of a file that a worker maps into memory at a time
_LOOK = 5.0  # seconds between two checks of the workers' state
_PATIENCE = 30.0  # seconds after which an error is raised if all workers stay paused

Chunks = Any  # what Dask accepts: "auto", "64MiB", or for each axis a size or a tuple of sizes


class BlockedPoly(NotAnArray, DaskMethodsMixin):
    """A batch of ring elements in blocks, which are computed only when the value is needed.

    `ring` and `domain` mean the same as for a Poly; `data` is a dask.array of residues (*batch, rows, n),
    where `rows` is ring.rows. from_poly, from_array, random and load make such values. The operators +, -, *
    and @ and the index a[i] follow the rules of Poly, give equal residues and raise the same errors. One
    operand may be a Poly or an int. A BlockedPoly is a Dask collection: dask.compute, dask.persist and
    dask.visualize accept it.

    >>> from polygpu import Ring
    >>> x = random(Ring(4, 17), batch=6, seed=1, chunks=(2, -1, -1))
    >>> x, (x + x - 2 * x).sum().compute() == 0
    (BlockedPoly(Ring(4, 17), domain=coef, shape=(6,), blocks=3), True)
    """

    ring: Ring
    domain: Domain

    # If _divided is False, each block holds whole polynomials, and _array has the shape (*batch, ring.rows,
    # n). If _divided is True, _array has the shape (*batch, ring.rows, height, width). Entry (c, j) of a
    # limb's matrix (height, width) is entry c * width + j of the limb. A block of evaluated values holds rows
    # of the matrix. A block of coefficients holds columns or rows.
    _array: Any
    _divided: bool

    __hash__ = None  # type: ignore[assignment]
    __dask_optimize__ = staticmethod(da.Array.__dask_optimize__)
    __dask_scheduler__ = staticmethod(da.Array.__dask_scheduler__)

    def __init__(self, ring: Ring, array: Any, domain: Domain, divided: bool = False) -> None:
        self.ring, self.domain = ring, domain
        self._array, self._divided = array, divided

    # ---- shape and residues ----

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch shape; () for a single polynomial.

        >>> from polygpu import Ring
        >>> random(Ring(4, 17), (2, 3), seed=1).shape
        (2, 3)
        """
        shape: tuple[int, ...] = self._array.shape[: self.ndim]
        return shape

    @property
    def ndim(self) -> int:
        """Number of batch axes; 0 for a single polynomial.

        >>> from polygpu import Ring
        >>> random(Ring(4, 17), (2, 3), seed=1).ndim
        2
        """
        return int(self._array.ndim) - self._tail

    @property
    def _tail(self) -> int:
        """Number of axes that `_array` has after the batch axes."""
        return 3 if self._divided else 2

    @property
    def _parts(self) -> int:
        """Number of blocks into which each polynomial is divided."""
        return math.prod(self._array.numblocks[-2:]) if self._divided else 1

    @property
    def data(self) -> Any:
        """The residues as a dask.array of shape (*batch, rows, n).

        If polynomials are divided, each block of `data` holds neighbouring entries of a polynomial. If the
        blocks of this value hold columns of the matrix of coefficients (see ntt), computing `data` needs an
        exchange: every block sends a piece to every other block.

        >>> from polygpu import Ring
        >>> from_poly(Ring(4, 17)([1, -1])).data.compute().tolist()
        [[1, 16, 0, 0]]
        """
        if not self._divided:
            return self._array
        rows = _in_rows(self._array)
        height, width = rows.chunks[-2:]
        # Dask's own reshape accepts neither empty batches nor batches of unknown lengths.
        return rows.map_blocks(
            _flat,
            drop_axis=rows.ndim - 1,
            chunks=(*rows.chunks[:-2], tuple(h * width[0] for h in height)),
            dtype=rows.dtype,
            meta=_meta(rows, -1),
        )

    def __repr__(self) -> str:
        blocks = math.prod(self._array.numblocks)
        return f"BlockedPoly({self.ring!r}, domain={self.domain}, shape={self.shape}, blocks={blocks})"

    def _exits(self) -> str:
        return (
            "Use the methods of BlockedPoly and the functions of polygpu.dask, or take a Poly with "
            "x.compute() or a dask.array of residues with x.data"
        )

    def __len__(self) -> int:
        """Return the length of the first batch axis; raise TypeError for a single polynomial.

        >>> from polygpu import Ring
        >>> len(random(Ring(4, 17), (2, 3), seed=1))
        2
        """
        if not self.ndim:
            raise TypeError(
                "A single polynomial has no len(). Use x.ring.n for its degree, and x.shape for its batch."
            )
        return self._lengths("len()")[0]

    def __iter__(self) -> Iterator[BlockedPoly]:
        """Yield the entries along the first batch axis.

        >>> from polygpu import Ring
        >>> [x.compute()(0) for x in from_poly(Ring(2, 17)([[1, 2], [3, 4]]))]
        [1, 3]
        """
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> BlockedPoly:
        """Index the batch axes by NumPy's rules, as in Poly.

        Args:
            key: ints, slices, None, Ellipsis, or arrays of ints or bools. One dask.array with one axis, such
                as the result of `equal`, may be combined with slices. If this dask.array is a mask of bools,
                the length of the indexed axis is unknown until the result is computed. The result can then
                be summed, transformed, multiplied by ints and by single polynomials, and used in operators
                with values that were indexed by the same mask. All other operations raise ParameterError.

        Raises:
            IndexError: an index is outside its axis.
            ParameterError: a dask.array in the key is combined with another array, an int or None, or does
                not have exactly one axis.

        Cost: none before the value is computed; then only the blocks that hold the chosen polynomials are
        computed. If the key has several arrays, or an array with several axes, this call makes an array of
        the indices of all polynomials in the batch.

        >>> from polygpu import Ring
        >>> x = from_poly(Ring(2, 17)([[1, 2], [3, 4]]))
        >>> x[1].compute().to_bigints().tolist()
        [3, 4]
        >>> x[equal(x, x[0])].compute().to_bigints().tolist()
        [[1, 2]]
        """
        batch = self._lengths("an index")
        keys = key if isinstance(key, tuple) else (key,)
        places = tuple(_standing_for(k) for k in keys)
        shape = index(np.empty((*batch, 1, 0), np.bool_), places).shape[:-2]  # raises the errors of Poly[key]
        if any(isinstance(k, da.Array) for k in keys):
            _check_lazy(keys)
        elif not _is_plain(keys):
            return self._gathered(keys, shape)
        keys = keys if any(k is Ellipsis for k in keys) else (*keys, Ellipsis)
        return self._with(self._array[(*keys, *(slice(None),) * self._tail)])

    def _gathered(self, keys: tuple[Any, ...], shape: tuple[int, ...]) -> BlockedPoly:
        """Index the batch axes by NumPy's rules. Use this if _is_plain(keys) is False.

        shape: batch shape of the result.
        """
        x, tail = self._array, self._array.shape[self.ndim :]
        if not math.prod(shape):
            chunks = (*((size,) for size in shape), *x.chunks[self.ndim :])
            return self._with(da.zeros((*shape, *tail), dtype=x.dtype, chunks=chunks))
        count = math.prod(self.shape)
        numbers = index(np.arange(count).reshape(*self.shape, 1, 1), keys)
        chosen = x.reshape(count, *tail)[numbers.ravel()]
        return self._with(chosen.reshape(*shape, *tail))

    def _lengths(self, what: str) -> tuple[int, ...]:
        """Return the batch shape. If a length is unknown, raise a ParameterError that names `what`."""
        if any(math.isnan(size) for size in self.shape):
            raise ParameterError(
                f"The batch shape {self.shape} has lengths that are unknown until a mask is computed, and "
                f"{what} needs them. Index with the computed mask, x[mask.compute()]."
            )
        return self.shape

    def rechunk(self, chunks: Chunks) -> BlockedPoly:
        """Return the same value, cut into other blocks.

        Args:
            chunks: see from_array.

        Raises:
            ParameterError: `chunks` does not follow the rules of from_array, or a batch axis has an unknown
                length.

        Cost: blocks are cut and joined when the value is computed. If polynomials are divided, and the blocks
        hold columns of the matrix of coefficients (see ntt), every block sends a piece to every other block.

        >>> from polygpu import Ring
        >>> random(Ring(16, 97), 6, seed=1).rechunk((3, -1, 4))
        BlockedPoly(Ring(16, 97), domain=coef, shape=(6,), blocks=8)
        """
        self._lengths("rechunk")
        return _in_blocks(self.data, self.ring, self.domain, _checked_chunks(self.ring, self.shape, chunks))

    def _with(self, array: Any, domain: Domain | None = None) -> BlockedPoly:
        return BlockedPoly(self.ring, array, domain or self.domain, self._divided)

    # ---- Dask's protocol ----

    def __dask_graph__(self) -> Any:
        return self._array.__dask_graph__()

    def __dask_keys__(self) -> Any:
        return self._array.__dask_keys__()

    def __dask_layers__(self) -> Any:
        return self._array.__dask_layers__()

    def __dask_tokenize__(self) -> Any:
        return BlockedPoly, self.ring, self.domain, self._array.name

    def __dask_postcompute__(self) -> Any:
        return _joined, (*self._array.__dask_postcompute__(), self.ring, self.domain, self._tail)

    def __dask_postpersist__(self) -> Any:
        return _persisted, (*self._array.__dask_postpersist__(), self.ring, self.domain, self._divided)

    def compute(self, **kwargs: Any) -> Poly:
        """Compute the value and return it as a polygpu.Poly on the current device.

        Args:
            **kwargs: keyword arguments of dask.compute, such as scheduler="threads".

        Raises:
            OutOfHostMemory: Dask's workers have too little memory. Either a block is larger than the memory
                of every worker, or Dask ended workers that used too much memory, or all workers have stopped
                because their memory is full of data that cannot be spilled. (The function dask.compute(x)
                raises Dask's KilledWorker in the second case, and waits forever in the third.)

        Cost: the work of all tasks. This method joins the blocks in this process; the function
        dask.compute(x, y) joins the blocks of each value on a worker. With a client that was made by
        Client(..., direct_to_workers=True), blocks do not pass through the scheduler.

        >>> from polygpu import Ring
        >>> random(Ring(4, 17), 2, seed=1).compute() == Ring(4, 17).random(2, seed=1)
        True
        """
        graph = self.__dask_graph__()
        blocks = compute_as_if_collection(da.Array, graph, self.__dask_keys__(), **_checked(graph, kwargs))
        finish, args = self.__dask_postcompute__()
        return finish(blocks, *args)  # type: ignore[no-any-return]

    def persist(self, **kwargs: Any) -> BlockedPoly:
        """Compute the blocks now, and return the same value with its blocks in memory.

        The blocks stay in the memory of this process or of Dask's workers. With Dask's distributed client the
        call returns at once, while the workers still compute.

        Args:
            **kwargs: keyword arguments of dask.persist.

        Raises:
            OutOfHostMemory: a block is larger than the memory of every worker of Dask.

        Cost: the work of all tasks, and memory for all blocks.

        >>> from polygpu import Ring
        >>> x = random(Ring(4, 17), 4, seed=1, chunks=(2, -1, -1)).ntt().persist()
        >>> (x - x).compute() == 0
        True
        """
        _checked(self.__dask_graph__(), kwargs)
        return super().persist(**kwargs)  # type: ignore[no-any-return, no-untyped-call]

    # ---- domains ----

    def ntt(self) -> BlockedPoly:
        """Transform to the evaluation domain, in the ring's order. An evaluated value is returned as it is.

        Raises:
            NotNTTFriendly: the ring has no evaluation domain.

        Cost: a transform of each block. Divided coefficients also need exchanges, in which every block sends
        a piece to every other block. The coefficients of a polynomial form a matrix, row by row. One exchange
        is needed if the blocks hold columns of this matrix, and two if they hold rows. The blocks hold
        columns if the value is a product or a result of intt, was drawn by random, or was made from an array
        in memory or a .npy file. They hold rows if it was made from a dask.array, from a .zarr folder or by
        rechunk.

        >>> from polygpu import Ring
        >>> R = Ring(16, 97)
        >>> from_poly(R([0, 1]), chunks=(-1, 4)).ntt().compute() == R([0, 1]).ntt()
        True
        """
        self.ring._checked_domain("eval")
        if self.domain == "eval":
            return self
        if not self._divided:
            return self._mapped(Poly.ntt, domain="eval")
        rows = _exchange(partial(_forward_rows, _with_roots(self.ring)), -2, self._first_half())
        return self._with(rows, "eval")

    def intt(self) -> BlockedPoly:
        """Transform back to coefficients, the inverse of ntt(). A value in coefficients is returned as it is.

        Cost: a transform of each block. If the polynomials are divided, there is also one exchange, in which
        every block sends a piece to every other block.

        >>> from polygpu import Ring
        >>> x = random(Ring(16, 97), seed=1, chunks=(-1, 4))
        >>> x.ntt().intt().compute() == x.compute()
        True
        """
        if self.domain == "coef":
            return self
        if not self._divided:
            return self._mapped(Poly.intt, domain="coef")
        return self._second_half(_of_blocks(partial(_inverse_rows, _with_roots(self.ring)), self._array))

    def _first_half(self) -> Any:
        """Transform the columns of the matrix of coefficients. This is the first half of ntt()."""
        x, call = _in_columns(self._array), partial(_forward_columns, _with_roots(self.ring))
        return da.map_blocks(call, x, dtype=x.dtype, meta=x._meta)

    def _second_half(self, rows: Any) -> BlockedPoly:
        """Finish intt(): cut `rows` into blocks of columns, and transform the columns."""
        return self._with(_exchange(partial(_inverse_columns, _with_roots(self.ring)), -1, rows), "coef")

    # ---- arithmetic ----

    def __add__(self, other: Any) -> BlockedPoly:
        return _operator(partial(self._binary, operator.add), other)

    def __radd__(self, other: Any) -> BlockedPoly:
        return _operator(lambda x: self._operand(x) + self if isinstance(x, Poly) else self + x, other)

    def __sub__(self, other: Any) -> BlockedPoly:
        return _operator(partial(self._binary, operator.sub), other)

    def __rsub__(self, other: Any) -> BlockedPoly:
        return _operator(lambda x: self._operand(x) - self if isinstance(x, Poly) else -self + x, other)

    def __mul__(self, other: Any) -> BlockedPoly:
        return _operator(self._times, other)

    def __rmul__(self, other: Any) -> BlockedPoly:
        return _operator(lambda x: self._operand(x) * self if isinstance(x, Poly) else self * x, other)

    def __neg__(self) -> BlockedPoly:
        return self._mapped(Poly.neg)

    def __pos__(self) -> BlockedPoly:
        return self

    def __matmul__(self, other: Any) -> BlockedPoly:
        return _operator(lambda x: _matmul(self, self._operand(x)), other)

    def __rmatmul__(self, other: Any) -> BlockedPoly:
        return _operator(lambda x: _matmul(self._operand(x), self), other)

    def __eq__(self, other: object) -> NoReturn:
        """Raise TypeError, because the values are not computed yet. equal(a, b).compute() compares them."""
        raise TypeError(
            "== does not compare values that are not computed. Use polygpu.dask.equal(a, b).compute() to "
            "compare each polynomial of a batch."
        )

    def __ne__(self, other: object) -> NoReturn:
        self == other  # noqa: B015  (__eq__ raises TypeError)
        raise AssertionError

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "The truth value of a BlockedPoly is ambiguous. Use polygpu.dask.equal(a, b).all().compute() to "
            "compare two values."
        )

    def scale_by(self, ints: Any = None, *, limbs: Sequence[int] | None = None) -> BlockedPoly:
        """Multiply by one integer for each polynomial of the batch, or by one integer for each limb.

        The result has the same domain as this value.

        Args:
            ints: an int, or integers of any size in an array or nested list that broadcasts to the batch
                shape.
            limbs: one int for each modulus. Give either `ints` or `limbs`.

        Raises:
            CoefficientError: a factor is not an integer.
            ParameterError: `ints` does not broadcast to the batch shape, `limbs` does not have one entry for
                each modulus, or `ints` and `limbs` are both given or both omitted.

        Cost: one pass over each block. The integers are part of the task graph.

        >>> from polygpu import Ring
        >>> x = from_poly(Ring(2, 17)([[1, 2], [3, 4]]))
        >>> x.scale_by([10, -1]).compute().to_bigints(centered=True).tolist()
        [[-7, 3], [-3, -4]]
        """
        if (ints is None) == (limbs is None):
            raise ParameterError(
                "scale_by needs exactly one of ints and limbs. Give ints for the batch, or limbs with one "
                "integer for each modulus."
            )
        if limbs is not None:
            factors_of_limbs(self.ring._plan.basis, limbs, host())  # raises the errors of Poly.scale_by
            numbers = tuple(_Number(integer(x, "limbs")) for x in sequence(limbs))
            return self._mapped(partial(_scaled_limbs, numbers))
        factors = as_integers(ints, "ints")
        known = tuple(1 if math.isnan(size) else size for size in self.shape)
        if not broadcasts(factors.shape, known):
            self._lengths("an array of factors")
            raise ParameterError(
                f"The shape of ints is {factors.shape}, which does not broadcast to the batch shape "
                f"{self.shape}. Give one int, or one for each batch element."
            )
        if not factors.ndim:
            return self._times(int(factors))
        batch_chunks = self._array.chunks[self.ndim - factors.ndim : self.ndim]
        chunks = tuple(1 if size == 1 else c for size, c in zip(factors.shape, batch_chunks, strict=True))
        spread = da.from_array(factors, chunks=chunks)[(..., *(None,) * self._tail)]
        call = partial(_scaled_block, _with_roots(self.ring), self._tail)
        return self._with(_of_blocks(call, self._array, spread))

    def sum(self, axis: int | tuple[int, ...] | None = None) -> BlockedPoly:
        """Return the sum over batch axes. The sum over an empty axis is zero.

        Args:
            axis: the index of a batch axis, or a tuple of such indices. None means all batch axes.

        Raises:
            ParameterError: `axis` is not the index of a batch axis.

        Cost: one pass over each block. Then the sums of the blocks are added in a tree.

        >>> from polygpu import Ring
        >>> x = from_poly(Ring(2, 17)([[1, 2], [3, 4], [5, 6]]), chunks=(2, -1, -1))
        >>> x.sum().compute().to_bigints().tolist()
        [9, 12]
        """
        axes = range(self.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        chosen = tuple(sorted({checked_axis(a, self.ndim) for a in axes}))
        if not chosen:
            return self
        x, add = self._array, partial(_added, _with_roots(self.ring), self._tail)
        total = da.reduction(
            x, add, add, axis=chosen, keepdims=False, dtype=x.dtype, meta=_meta(x, -len(chosen))
        )
        return self._with(total)

    # ---- files ----

    def save(self, path: str | os.PathLike[str]) -> None:
        """Compute the value and write it to a new file, block by block; load(path) reads it.

        The file is written under a temporary name in the same folder and renamed at the end. So a file at
        `path` is always complete, and an error leaves no file there. If this process is killed, the temporary
        file ".name.*.part" may remain.

        Args:
            path: a name that ends in .zarr or .npy. A .zarr is a folder, which also stores the parameters of
                the ring. A .npy file holds only the residues, an array of shape (*batch, rows, n). Every
                worker must be able to write at this path.

        Raises:
            OutputError: `path` exists already.
            ParameterError: `path` has another ending, or a batch axis has an unknown length. Or `path` ends
                in .zarr, and the ring has more moduli, or longer ones, than load() accepts from a file.
            OutOfHostMemory: see compute.

        Cost: the work of all tasks, and each block is written once. A .zarr also needs an exchange (every
        block sends a piece to every other block) if polynomials are divided and the blocks hold columns of
        the matrix of coefficients (see ntt).

        >>> import tempfile
        >>> from polygpu import Ring
        >>> R = Ring(16, 97)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     random(R, 3, seed=1).save(f"{folder}/x.npy")
        ...     R.from_residues(np.load(f"{folder}/x.npy")) == R.random(3, seed=1)
        True
        """
        target = Path(path).absolute()
        if target.suffix not in _WRITERS:
            raise ParameterError(f"path={str(path)!r} must end in .npy or .zarr.")
        if os.path.lexists(target):
            raise OutputError(f"path={str(path)!r} exists. Remove it first, or give another name.")
        self._lengths("a file")
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        try:
            _WRITERS[target.suffix](self, temporary)
            give_name(temporary, target)
        finally:
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink(missing_ok=True)

    # ---- blocks ----

    def _operand(self, other: object) -> BlockedPoly:
        """Return `other` as a BlockedPoly. Raise RingMismatch if `other` is not a value of this ring."""
        if isinstance(other, Poly):
            other = from_poly(other) if not self._divided else _divided_poly(other, self._parts)
        if not isinstance(other, BlockedPoly):
            raise RingMismatch(
                f"The operand must be a Poly or a BlockedPoly, not {type(other).__name__}. Use ring(x) to "
                "make a Poly of ints."
            )
        if other.ring != self.ring:
            raise RingMismatch(
                f"The operands are of different rings, {self.ring!r} and {other.ring!r}. Bring both into one "
                "ring before you cut them into blocks."
            )
        return other

    def _aligned(self, other: BlockedPoly) -> tuple[BlockedPoly, BlockedPoly]:
        """Return `self` and `other` in one domain and divided into the same number of parts."""
        a, b = self, other
        parts = max(a._parts, b._parts)
        a, b = a._in_parts(parts), b._in_parts(parts)
        if a.domain != b.domain:
            a, b = a.ntt(), b.ntt()
        return a, b

    def _in_parts(self, parts: int) -> BlockedPoly:
        if self._parts == parts:
            return self
        if not self._divided:
            self._lengths("a product with divided polynomials")
            sizes = *self._array.chunks[:-1], (self.ring.n // parts,) * parts
            return _in_blocks(self._array, self.ring, self.domain, sizes)
        axis = _divided_axis(self._array)
        return self._with(self._array.rechunk({axis: self._array.shape[axis] // parts}, method="tasks"))

    def _mapped(
        self, f: Callable[..., Poly], *others: BlockedPoly, domain: Domain | None = None
    ) -> BlockedPoly:
        """Apply f block by block to this value and `others`.

        All values must have the same `_parts`.
        """
        values = [self, *others]
        if self._divided and len({_divided_axis(x._array) for x in values}) > 1:
            values = [x._with(_in_columns(x._array)) for x in values]
        alike = _axes_alike(values)
        ring = _ring_of_parts(self.ring, self._parts)
        arrays = [x._array for x in values]
        call = partial(_apply, f, ring, tuple(x.domain for x in values), self._tail, alike)
        return self._with(_of_blocks(call, *arrays), domain)

    def _binary(self, op: Callable[[Any, Any], Poly], other: Any) -> BlockedPoly:
        if isinstance(other, (BlockedPoly, Poly)):
            a, b = self._aligned(self._operand(other))
            return a._mapped(op, b)
        x, ring = integer(other, "operand"), _ring_of_parts(self.ring, self._parts)
        constant = _Number(x if op is operator.add else -x)
        call = partial(_plus_constant, ring, self.domain, self._tail, constant)
        return self._with(da.map_blocks(call, self._array, dtype=self.ring.dtype, meta=_meta(self._array)))

    def _times(self, other: Any) -> BlockedPoly:
        if not isinstance(other, (BlockedPoly, Poly)):
            return self._mapped(partial(_scaled, _Number(integer(other, "operand"))))
        a, b = self._aligned(self._operand(other))
        if not a._divided:
            return a._mapped(operator.mul, b)
        if a.domain == "eval":
            return a._mapped(_multiply_points, b)
        # The task _product_rows holds two blocks: it does all steps on rows. Separate tasks would hold four
        # blocks.
        rows = partial(_product_rows, _with_roots(self.ring), _axes_alike([a, b]))
        return a._second_half(_exchange(rows, -2, a._first_half(), b._first_half()))


def _operator(method: Callable[[Any], BlockedPoly], other: object) -> BlockedPoly:
    """Return method(other) if `other` is a BlockedPoly, Poly or int; else do what Poly's operators do."""
    if isinstance(other, BlockedPoly):
        return method(other)
    if isinstance(other, da.Array):
        raise CoefficientError(
            "The operand is a dask.array, which is not a constant. Use from_array(array, ring) to make a "
            "value of its residues."
        )
    return operator_of_poly(method, other)  # type: ignore[arg-type, return-value]


# ---- indices of the batch axes ----


def _standing_for(key: Any) -> Any:
    """Return the key, or zeros of the same shape and dtype if the key is a dask.array.

    NumPy needs only the zeros to check the index and to compute the shape of the result.
    """
    if not isinstance(key, da.Array):
        return key
    if key.ndim != 1 or math.isnan(key.shape[0]) or key.dtype.kind not in "biu":
        raise ParameterError(
            f"The key in x[key] is a Dask array of {key.dtype} and shape {key.shape}. Such a key must hold "
            "bools or ints along one axis of known length. Use x[key.compute()]."
        )
    return np.zeros(key.shape, key.dtype)


def _check_lazy(keys: tuple[Any, ...]) -> None:
    """Raise ParameterError unless all keys other than the dask.array are slices or Ellipsis."""
    if sum(k is not Ellipsis and not isinstance(k, slice) for k in keys) > 1:
        raise ParameterError(
            "The key in x[key] combines a Dask array with other arrays, ints or None. Call compute() on the "
            "Dask array in the key, or index in two steps."
        )


def _is_plain(keys: tuple[Any, ...]) -> bool:
    """Return True only if Dask reads the keys as NumPy does.

    Slices, None and Ellipsis are allowed. Other keys must all be ints, or be a single array or list with one
    axis. Examples of differences: Dask orders the axes of x[0, :, [1, 2]] in another way. Dask reads True and
    1.5 as 1.
    """
    others = [k for k in keys if not (k is None or k is Ellipsis or isinstance(k, slice))]
    if all(isinstance(k, (int, np.integer)) and not isinstance(k, bool) for k in others):
        return True
    return len(others) == 1 and isinstance(others[0], (list, np.ndarray)) and np.ndim(others[0]) == 1


# ---- functions that make values ----


def from_array(x: Any, ring: Ring, *, domain: Domain = "coef", chunks: Chunks = "auto") -> BlockedPoly:
    """Return the ring elements whose residues are x. Blocks are cut from x when they are computed.

    Args:
        x: canonical residues (*batch, rows, n): a dask.array, nested lists, or anything that da.from_array
            accepts, such as an array of NumPy, zarr or h5py. If the dtype of x is not ring.dtype, the
            residues are checked and converted when the blocks are computed.
        ring: the ring.
        domain: domain of the residues, "coef" or "eval". Evaluated residues are in the ring's order.
        chunks: sizes of the blocks, in any form that Dask accepts. The axis of length ring.rows must be one
            chunk. The axis of coefficients must be one chunk, or k equal chunks if the ring has a complete
            transform, k is a power of two and k^2 <= n. A size in bytes, such as "64MiB", divides a
            polynomial only if the polynomial is larger than this size. "auto" means the size that Dask's
            configuration has under array.chunk-size.

    Raises:
        ParameterError: the shape of x does not end in (rows, n), an axis of x has an unknown length, or
            `chunks` does not follow the rules above.
        CoefficientError: x does not hold integers, or x is a masked array. Masked blocks of a dask.array are
            found when they are computed.
        NotCanonical: a residue is outside [0, q). If the dtype of x is not ring.dtype, this is checked when
            the blocks are computed.
        DomainError: `domain` is neither "coef" nor "eval".
        NotNTTFriendly: `domain` is "eval" and the ring has no transform.

    Cost: none before the value is computed. An array in memory becomes part of the task graph, which passes
    through the scheduler. If the array is larger than a few hundred MiB, it is better to write it to a file
    with numpy.save, and to use load(), by which the workers read the file.

    >>> import numpy as np
    >>> from polygpu import Ring
    >>> x = from_array(np.arange(64, dtype=np.uint32).reshape(4, 1, 16), Ring(16, 97), chunks=(2, -1, 4))
    >>> x, x[1].compute().data.tolist()[0][:3]
    (BlockedPoly(Ring(16, 97), domain=coef, shape=(4,), blocks=8), [16, 17, 18])
    """
    domain = _checked_ring(ring)._checked_domain(domain)
    check_unmasked(x._meta if isinstance(x, da.Array) else x, "x")
    x = shared(x, "x")
    if not (hasattr(x, "shape") and hasattr(x, "dtype")):
        x = as_integers(x, "x")
    shape = tuple(x.shape)
    if shape[-2:] != (ring.rows, ring.n) or len(shape) < 2:
        raise ParameterError(
            f"The shape of x is {shape}, but it must end in (rows, n) = ({ring.rows}, {ring.n}). Use "
            "from_poly(ring(x)) if x holds integers of shape (*batch, n)."
        )
    if x.dtype.kind not in "iuO":
        raise CoefficientError(
            f"x has dtype {x.dtype}, which is not an integer dtype. Convert it to {ring.dtype}."
        )
    if any(math.isnan(size) for size in shape):
        raise ParameterError(
            f"The shape of x is {shape}, which has unknown lengths. Call x.compute_chunk_sizes() first to "
            "compute them."
        )
    if isinstance(x, da.Array):  # its blocks may be masked arrays although x._meta is not
        x = da.map_blocks(_unmasked, x, dtype=x.dtype, meta=x._meta)
    return _in_blocks(x, ring, domain, _checked_chunks(ring, shape[:-2], chunks))


def _checked_ring(ring: object) -> Ring:
    if not isinstance(ring, Ring):
        raise ParameterError(f"ring must be a Ring, not {type(ring).__name__}.")
    return ring


def _in_blocks(x: Any, ring: Ring, domain: Domain, sizes: tuple[tuple[int, ...], ...]) -> BlockedPoly:
    """Return a BlockedPoly with the residues x. sizes: the chunks of an array (*batch, rows, n)."""
    parts = len(sizes[-1])
    height, width = _sides(ring.n)
    # name=False: otherwise Dask hashes the contents. The hash takes as long as a transform.
    if parts == 1:
        array = x.rechunk(sizes) if isinstance(x, da.Array) else da.from_array(x, sizes, name=False)
    elif domain == "coef" and isinstance(x, (np.ndarray, _NpyFile)):  # columns are cut out directly
        matrix = x.reshape(*x.shape[:-1], height, width)
        array = da.from_array(matrix, (*sizes[:-1], height, width // parts), name=False)
    else:
        array = x.rechunk(sizes) if isinstance(x, da.Array) else da.from_array(x, sizes, name=False)
        array = array.map_blocks(
            partial(_rows_of, width),
            new_axis=array.ndim,
            chunks=(*sizes[:-1], (height // parts,) * parts, (width,)),
            dtype=array.dtype,
            meta=_meta(array, 1),
        )
    if array.dtype != ring.dtype:
        meta = _meta(array, dtype=ring.dtype)
        convert = partial(_canonical, _ring_of_parts(ring, parts), 2 + (parts > 1))
        array = da.map_blocks(convert, array, dtype=ring.dtype, meta=meta)
    return BlockedPoly(ring, array, domain, parts > 1)


def from_poly(a: Poly, *, chunks: Chunks = "auto") -> BlockedPoly:
    """Return a BlockedPoly with the value of a Poly.

    Args:
        a: the Poly. If it is on a GPU, it is copied to the host.
        chunks: see from_array.

    Raises:
        RingMismatch: `a` is not a Poly.
        ParameterError: `chunks` does not follow the rules of from_array.

    Cost: the same as for from_array with an array in memory.

    >>> from polygpu import Ring
    >>> a = Ring(4, 17)([[1, 2], [3, 4]])
    >>> (from_poly(a, chunks=(1, -1, -1)) * a).compute() == a * a
    True
    """
    if not isinstance(a, Poly):
        raise RingMismatch(f"a must be a Poly, not {type(a).__name__}. Use from_array for residues.")
    return from_array(a.cpu().data, a.ring, domain=a.domain, chunks=chunks)


def random(
    ring: Ring, batch: Batch = (), *, seed: Seed = None, chunks: Chunks = "auto", start: int = 0
) -> BlockedPoly:
    """Return the elements of ring.random(batch, seed=seed, start=start) in blocks, drawn by the workers.

    Args:
        ring: the ring.
        batch: batch shape.
        seed: see Ring.random. If it is None, a seed is taken from the operating system now and kept in the
            task graph, so computing the value again gives the same elements.
        chunks: see from_array. If polynomials are divided, each part is drawn separately.
        start: index of the first polynomial in the stream of `seed`.

    Raises:
        ParameterError: an argument breaks a rule of Ring.random, or `chunks` does not follow the rules of
            from_array.
        NotAnInteger: see Ring.random.

    Cost: none before the value is computed; then the same as for Ring.random, on the workers.

    >>> from polygpu import Ring
    >>> R = Ring(16, 97)
    >>> random(R, 3, seed=1, chunks=(2, -1, 4)).compute() == R.random(3, seed=1)
    True
    """
    shape = checked_batch(batch)
    _checked_ring(ring)
    check_stream(ring.n, 8 * (ring._plan.basis.words + 1), start, math.prod(shape))
    key_of(seed)  # checks the seed
    seed = secrets.token_bytes(32) if seed is None else seed
    named = seed if isinstance(seed, (bytes, str)) else _Number(integer(seed, "seed"))
    sizes = _checked_chunks(ring, shape, chunks)
    parts = len(sizes[-1])
    height, width = _sides(ring.n)
    if parts > 1:
        sizes = *sizes[:-1], (height,), (width // parts,) * parts
    draw = partial(_drawn, ring, shape, named, integer(start, "start"), parts > 1)
    meta = np.empty((0,) * len(sizes), ring.dtype)
    return BlockedPoly(
        ring, da.map_blocks(draw, chunks=sizes, dtype=ring.dtype, meta=meta), "coef", parts > 1
    )


# ---- functions of several values ----


def einsum(subscripts: str, *operands: BlockedPoly | Poly) -> BlockedPoly:
    """Sum products over labelled batch axes, by the rules of polygpu.einsum. a @ b is such a sum.

    Args:
        subscripts: see polygpu.einsum.
        operands: values of one ring, each a BlockedPoly or a Poly.

    Raises:
        ParameterError: an argument breaks a rule of polygpu.einsum, or a batch axis has an unknown length.
        RingMismatch: the operands belong to different rings.

    Cost: the blocks cut the axis of each label into ranges. For each combination of ranges, one for each
    label, polygpu.einsum is called once, on one block of each operand. Then the results are added in a tree.
    If the products use the ring's transform and all operands are coefficients, each operand is transformed
    once, and the result is transformed back once.

    >>> from polygpu import Ring
    >>> R = Ring(4, 17)
    >>> a = R.random((4, 6), seed=1)
    >>> x = from_poly(a, chunks=(2, 2, -1, -1))
    >>> import polygpu as pg
    >>> einsum("ij,kj->ik", x, x).compute() == pg.einsum("ij,kj->ik", a, a)
    True
    """
    if not operands:
        raise ParameterError("einsum has no operands. Give a value for each term of the subscripts.")
    blocked = next((x for x in operands if isinstance(x, BlockedPoly)), None)
    first = blocked if blocked is not None else from_poly(operands[0])  # type: ignore[arg-type]
    values = [first._operand(x) for x in operands]
    labels, output = parsed_subscripts(subscripts, [x.ndim for x in values])
    return _sum_of_products(subscripts, labels, output, values)


def _sum_of_products(
    subscripts: str, labels: list[list[Label]], output: list[Label], values: list[BlockedPoly]
) -> BlockedPoly:
    """Sum the products over all labels that do not occur in `output`."""
    label_sizes([x._lengths("a sum of products") for x in values], labels)  # raises polygpu.einsum's errors
    # A repeated label, as in "ii", means the diagonal. da.blockwise needs distinct labels. So take diagonals
    # first, and remove repeated labels from the subscripts.
    if any(len(set(of)) < len(of) for of in labels):
        values = [_diagonal(x, of) for x, of in zip(values, labels, strict=True)]
        labels = [list(dict.fromkeys(of)) for of in labels]
        terms, arrow, result = subscripts.replace(" ", "").partition("->")
        terms = ",".join("".join(dict.fromkeys(re.findall(r"\.{3}|.", term))) for term in terms.split(","))
        if not arrow:
            dots = "..." * any(isinstance(x, int) for x in output)
            result = dots + "".join(x for x in output if isinstance(x, str))
        subscripts = f"{terms}->{result}"
    ring = values[0].ring
    parts = max(x._parts for x in values)
    values = [x._in_parts(parts) for x in values]
    # Divided polynomials must be transformed before they are multiplied. If sums of products use the ring's
    # complete transform, transform each operand only once, before the products. `back`: transform the sum
    # back at the end.
    back = all(x.domain == "coef" for x in values) and (
        parts > 1 or (way_of_sums(ring._plan) == "transform" and ring.leaf_size == 1)
    )
    if back or parts > 1:
        values = [x.ntt() for x in values]
    summed = list(dict.fromkeys(x for of in labels for x in of if x not in output))
    tail = [f"tail {i}" for i in range(3 if parts > 1 else 2)]
    domains = tuple(x.domain for x in values)
    call = partial(
        _einsum_of_blocks,
        subscripts,
        _ring_of_parts(ring, parts),
        domains,
        len(tail),
        len(output),
        len(summed),
    )
    # The result of da.blockwise still has an axis for each summed label. On this axis, each block has one
    # entry: the sum over the block. products.sum below adds these entries.
    pairs = [y for x, of in zip(values, labels, strict=True) for y in (x._array, [*map(str, of), *tail])]
    names = [*map(str, output), *map(str, summed), *tail]
    array = da.blockwise(
        call,
        names,
        *pairs,
        adjust_chunks=dict.fromkeys(map(str, summed), 1),
        dtype=ring.dtype,
        meta=np.empty((0,) * len(names), ring.dtype),
    )
    domain: Domain = "eval" if "eval" in domains else "coef"
    products = BlockedPoly(ring, array, domain, parts > 1)
    total = products.sum(tuple(range(len(output), len(output) + len(summed))))
    return total.intt() if back else total


def _matmul(a: BlockedPoly, b: BlockedPoly) -> BlockedPoly:
    labels, output = matmul_labels(*(x._lengths("a product of matrices") for x in (a, b)))
    left = "j" if a.ndim == 1 else "...ij"
    right = "j" if b.ndim == 1 else "...jk"
    kept = "..." * (a.ndim > 1 or b.ndim > 1) + "i" * (a.ndim > 1) + "k" * (b.ndim > 1)
    return _sum_of_products(f"{left},{right}->{kept}", labels, output, [a, b])


def _diagonal(x: BlockedPoly, labels: list[Label]) -> BlockedPoly:
    """Return x with one batch axis for each distinct label. If axes share a label, take their diagonal."""
    array, names = x._array, list(labels)
    for label in dict.fromkeys(labels):
        while names.count(label) > 1:
            i = names.index(label)
            j = names.index(label, i + 1)
            array = da.moveaxis(da.diagonal(array, 0, i, j), -1, i)
            del names[j]
    return x._with(array)


def matmul(A: Any, B: Any, *, q: int) -> Any:
    """Multiply A, a matrix of integers in blocks, by B modulo q, as polygpu.linalg.matmul does.

    Each block of A is multiplied on the worker that computes it or reads it from a file. Only B is sent to
    the workers.

    Args:
        A: dask.array of integers, of shape (m, k).
        B: array of NumPy or Dask, or nested lists of integers, of shape (k,) or (k, n).
        q: any modulus from 2 to 2**64.

    Returns:
        A dask.array of residues, of shape (m,) or (m, n). Its first axis has the same chunks as that of A.

    Raises:
        ParameterError: A is not a dask.array with two axes, the shapes of A and B do not fit, a length is
            unknown, or q is outside its range.
        CoefficientError: A or B holds something other than integers.

    Cost: none before the result is computed. Then there is one product for each block of A, and the products
    of blocks that hold the same rows of A are added.

    >>> import dask.array
    >>> A = dask.array.ones((4, 6), dtype="uint8", chunks=(2, 3))
    >>> matmul(A, [1, 2, 3, 4, 5, 6], q=16).compute().tolist()
    [5, 5, 5, 5]
    """
    modulus = integer(q, "q")
    if not 2 <= modulus <= linalg.MAX_MODULUS:
        raise ParameterError(f"q={shown(modulus)} must be from 2 to 2**64.")
    if not isinstance(A, da.Array) or A.ndim != 2:
        kind = f"one of shape {A.shape}" if isinstance(A, da.Array) else type(A).__name__
        raise ParameterError(
            f"A must be a dask.array of two axes, not {kind}. Use polygpu.linalg.matmul for other matrices."
        )
    right = B if isinstance(B, da.Array) else as_integers(B, "B")
    for name, x in (("A", A), ("B", right)):
        if x.dtype.kind not in "iuO":
            raise CoefficientError(
                f"{name} has dtype {x.dtype}, but it must be an integer dtype. Use {name}.astype to convert "
                "it."
            )
    if any(math.isnan(size) for size in (*A.shape, *right.shape)):
        raise ParameterError(
            "A or B has unknown lengths. Call A.compute_chunk_sizes() and B.compute_chunk_sizes() first."
        )
    if right.ndim not in (1, 2) or right.shape[0] != A.shape[1]:
        raise ParameterError(
            f"The shapes of A and B are {A.shape} and {right.shape}. The last axis of A must be as long as "
            "the first axis of B, and B must have one or two axes."
        )
    dtype = np.dtype(np.uint32 if modulus <= 1 << 32 else np.uint64)
    columns = right[:, None] if right.ndim == 1 else right
    parts = da.blockwise(
        partial(_product_of_blocks, modulus),
        "ikn",
        A,
        "ik",
        da.asarray(columns).rechunk((A.chunks[1], -1)),
        "kn",
        adjust_chunks={"k": 1},
        dtype=dtype,
        meta=np.empty((0, 0, 0), dtype),
    ).rechunk({1: -1})
    total = parts.map_blocks(
        partial(_sum_of_blocks, modulus), drop_axis=1, dtype=dtype, meta=np.empty((0, 0), dtype)
    )
    return total[:, 0] if right.ndim == 1 else total


def equal(a: BlockedPoly | Poly | int, b: BlockedPoly | Poly | int) -> Any:
    """Return whether two values are equal, polynomial by polynomial.

    Args:
        a: a BlockedPoly, a Poly, or an int, which stands for a constant polynomial.
        b: another such operand. At least one of `a` and `b` must be a BlockedPoly. Their batch axes
            broadcast, and their domains may differ.

    Returns:
        A dask.array of bools, which has the broadcast batch shape.

    Raises:
        RingMismatch: `a` and `b` belong to different rings, or neither is a BlockedPoly.
        ParameterError: the batch axes do not broadcast.
        NotAnInteger: one of `a` and `b` is not a BlockedPoly, a Poly or an int.

    Cost: none before the result is computed. Then each block takes a subtraction and one more pass, and a
    transform if the domains differ.

    >>> from polygpu import Ring
    >>> a = Ring(4, 17)([[1, 2], [3, 4]])
    >>> equal(from_poly(a), a[0]).compute().tolist()
    [True, False]
    """
    if not isinstance(a, BlockedPoly):
        a, b = b, a
    if not isinstance(a, BlockedPoly):
        raise RingMismatch(
            f"One of a and b must be a BlockedPoly, not {type(a).__name__}. Use polygpu.equal to compare "
            "other values."
        )
    difference = a._binary(operator.sub, b)
    return (difference._array == 0).all(axis=tuple(range(-difference._tail, 0)))


# ---- files ----


def load(
    path: str | os.PathLike[str],
    ring: Ring | None = None,
    *,
    domain: Domain | None = None,
    chunks: Chunks = None,
) -> BlockedPoly:
    """Return the ring elements whose residues are in a file. Workers read each block when it is needed.

    Args:
        path: a file that save() wrote, or another .npy or .zarr array of residues (*batch, rows, n). Every
            worker must be able to read it.
        ring: the ring of the residues. It is not needed for a .zarr that save() wrote, which stores its ring.
        domain: "coef" or "eval", the domain of the residues. None means the stored domain for a .zarr that
            save() wrote, and "coef" for every other file.
        chunks: see from_array. None means the chunks of the file for a .zarr, and "auto" for a .npy file.

    Raises:
        ParameterError: `path` does not end in .npy or .zarr, or neither the file nor the call gives the ring.
        RingMismatch: `ring` differs from the ring that the file stores.
        DomainError: `domain` differs from the domain that the file stores.
        FileError: the file is damaged or incomplete, or is not an array in the format that its ending says.
            Damage within a chunk, and residues outside [0, q) in a .zarr that save() wrote, are found when a
            block is read.
        CoefficientError: the array in the file does not hold integers.
        NotCanonical: a residue is outside [0, q), and the file is not a .zarr that save() wrote. See
            from_array.
        FileNotFoundError: `path` does not exist.

    Cost: before the value is computed, only the metadata of the file and the names of a .zarr's chunks are
    read. Each block is read when a task needs it. The residues of a .zarr that save() wrote are then checked
    in one pass.

    >>> import tempfile
    >>> from polygpu import Ring
    >>> x = random(Ring(16, 97), 3, seed=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     x.save(f"{folder}/x.zarr")
    ...     load(f"{folder}/x.zarr").compute() == x.compute()
    True
    """
    source = Path(path).absolute()
    if source.suffix not in _WRITERS:
        raise ParameterError(f"path={str(path)!r} must end in .npy or .zarr.")
    if ring is not None:
        _checked_ring(ring)
    if source.suffix == ".npy":
        return from_array(
            _NpyFile(source), _given(ring, path), domain=domain or "coef", chunks=_or_auto(chunks)
        )
    x = _ZarrFile(source)
    if x.told is None:
        return from_array(
            x, _given(ring, path), domain=domain or "coef", chunks=x.chunks if chunks is None else chunks
        )
    own, own_domain = _told(x.told, source)
    if ring is not None and ring != own:
        raise RingMismatch(
            f"ring is {ring!r}, but the file {str(path)!r} holds values of {own!r}. Use that ring, or do not "
            "give ring."
        )
    if domain is not None and own._checked_domain(domain) != own_domain:
        raise DomainError(
            f"domain={domain!r} does not fit the file {str(path)!r}, which holds values in {own_domain!r}. "
            f"Do not give domain, and call {'intt' if own_domain == 'eval' else 'ntt'}() on the result."
        )
    if x.dtype != own.dtype or len(x.shape) < 2 or x.shape[-2:] != (own.rows, own.n):
        raise _damaged(source, f"its array of {x.dtype} and shape {x.shape} does not fit its ring.")
    if x.misses_chunks():
        raise _damaged(source, "some of its chunks are missing.")
    ring = ring or own
    sizes = _checked_chunks(ring, x.shape[:-2], x.chunks if chunks is None else chunks)
    read = da.from_array(x, sizes, name=False)
    looked_at = da.map_blocks(partial(_residues_of, source, ring), read, dtype=read.dtype, meta=read._meta)
    return _in_blocks(looked_at, ring, own_domain, sizes)


def _given(ring: Ring | None, path: object) -> Ring:
    if ring is None:
        raise ParameterError(
            f"The file {str(path)!r} does not name the ring of its residues. Use load(path, ring=...) to "
            "give the ring."
        )
    return ring


def _or_auto(chunks: Chunks) -> Chunks:
    return "auto" if chunks is None else chunks


def _damaged(path: Path, reason: str, way: str = DAMAGED) -> FileError:
    way = "Copy the file again, or write it anew with save(path)." if way is DAMAGED else way
    return FileError(f"{path}: {reason} {way}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise FileError instead of the errors of NumPy, zarr and json for a damaged file.

    PolyGPUError and MemoryError are not replaced. Among the kinds of OSError, only FileNotFoundError,
    NotADirectoryError and IsADirectoryError are replaced.
    """
    try:
        yield
    except (PolyGPUError, MemoryError):
        raise
    except Exception as error:
        lost = isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError))
        if isinstance(error, OSError) and not lost:
            raise
        raise _damaged(
            path, f"it is cut or damaged, or it is not a {path.suffix} file of an array."
        ) from error


def _check_kind(path: Path, kind: Callable[[Path], bool]) -> None:
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if not kind(path):
        raise _damaged(path, f"it exists, but it is not a {path.suffix} file of an array.")


class _ZarrFile:
    """The array in a .zarr folder. Reading it raises FileError if the folder is damaged."""

    def __init__(self, path: Path) -> None:
        _check_kind(path, Path.is_dir)
        self.path = path
        with _reading(path):
            x = zarr.open_array(path, mode="r")
            self._array: Any = x
            self.dtype, self.shape, self.ndim = np.dtype(x.dtype), tuple(x.shape), x.ndim
            self.chunks = tuple(x.chunks)
            self.told: Any = dict(x.attrs).get("polygpu")

    def __getitem__(self, key: Any) -> Array:
        with _reading(self.path):
            return np.asarray(self._array[key])

    def misses_chunks(self) -> bool:
        """Return whether a chunk is missing. zarr would read a missing chunk as zeros."""
        with _reading(self.path):
            # An older save() left out chunks of zeros. Its files do not have the attribute "format".
            return "format" in self.told and self._array.nchunks_initialized < self._array.nchunks


class _NpyFile:
    """The array in a .npy file, optionally reshaped.

    Each access opens the file. Only the file's name is sent to the workers.
    """

    def __init__(self, path: Path, shape: tuple[int, ...] | None = None) -> None:
        _check_kind(path, Path.is_file)
        with _reading(path):
            found = np.load(path, mmap_mode="r", allow_pickle=False)
            self.path, self.dtype, self.shape = path, found.dtype, shape or found.shape
            self.ndim = len(self.shape)

    def reshape(self, *shape: int) -> _NpyFile:
        """Return the array of the same file in another shape."""
        return _NpyFile(self.path, shape)

    def _opened(self, mode: Literal["r", "r+"]) -> Array:
        with _reading(self.path):
            mapped: Array = np.load(self.path, mmap_mode=mode, allow_pickle=False)
            return mapped.reshape(self.shape)

    def __getitem__(self, key: Any) -> Array:
        chosen = self._opened("r")[key]
        if not isinstance(chosen, np.memmap):  # `key` has an index array, so NumPy has made a copy
            return np.array(chosen)
        out = np.empty(chosen.shape, chosen.dtype)
        for window in _windows(chosen):
            out[window] = self._opened("r")[key][window]
        return out

    def __setitem__(self, key: Any, value: Array) -> None:
        for window in _windows(self._opened("r")[key]):
            self._opened("r+")[key][window] = value[window]

    def __dask_tokenize__(self) -> Any:
        status = self.path.stat()
        return str(self.path), status.st_mtime_ns, status.st_size, self.shape


def _windows(x: Array) -> Iterator[tuple[int | slice, ...]]:
    """Yield indices that cut x into parts of at most _WINDOW bytes of the file from which x is mapped.

    Map one part at a time. Dask counts every mapped page that a process touched as memory of the process. A
    block of columns touches pages of the whole file.
    """
    if not x.ndim:
        yield ()
    elif step := _WINDOW // max(1, abs(x.strides[0])):
        yield from ((slice(i, i + step),) for i in range(0, len(x), step))
    else:
        yield from ((i, *rest) for i in range(len(x)) for rest in _windows(x[i]))


def _write_npy(x: BlockedPoly, path: Path) -> None:
    np.lib.format.open_memmap(path, "w+", x.ring.dtype, (*x.shape, x.ring.rows, x.ring.n))
    _store(x._array, _NpyFile(path, x._array.shape))


def _write_zarr(x: BlockedPoly, path: Path) -> None:
    data = x.data
    data = data.rechunk(tuple(max(sizes) for sizes in data.chunks))  # zarr needs chunks of equal size
    told = ring_entry(x.ring.__reduce__()[1])
    try:  # fail now if load() would refuse the file
        ring_of_entry(told, "ring of x", x.domain == "eval")
    except Flaw as flaw:
        raise ParameterError(f"{flaw.reason} {flaw.way}") from None
    target: Any = zarr.create_array(
        path,
        shape=data.shape,
        chunks=tuple(max(1, size) for size in data.chunksize),
        dtype=data.dtype,
        compressors=None,  # residues look random and do not compress
        attributes={"polygpu": {**told, "domain": x.domain, "format": _FORMAT}},
        config={"write_empty_chunks": True},  # so that load() can tell a chunk of zeros from a lost one
    )
    _store(data, target)


def _store(x: Any, target: Any) -> None:
    da.store(x, target, lock=False, **_checked(x.__dask_graph__(), {}))


_WRITERS = {".npy": _write_npy, ".zarr": _write_zarr}


def _told(x: Any, path: Path) -> tuple[Ring, Domain]:
    """Return the ring and the domain in `x`, the attribute "polygpu" of the .zarr at `path`."""
    try:
        if type(x) is not dict:
            raise Flaw("its attribute polygpu must be a JSON object.")
        told = dict(x)
        version, domain = told.pop("format", _FORMAT), told.pop("domain", None)
        if type(version) is int and version > _FORMAT:
            raise Flaw(
                f"it has format {version}, and this polygpu knows only {_FORMAT}.", "Install a newer polygpu."
            )
        if type(version) is not int or version != _FORMAT:
            raise Flaw(f"its format must be {_FORMAT}.")
        if domain not in ("coef", "eval"):
            raise Flaw("its domain must be 'coef' or 'eval'.")
        for field in ("moduli", "root"):
            if type(told.get(field)) is list:
                told[field] = [_in_hexadecimal(number) for number in told[field]]
        ring = ring_of_entry(told, "its ring", domain == "eval")
        if domain == "eval" and not ring.has_eval:
            raise Flaw("its values are evaluated, but its ring has no transform.")
    except Flaw as flaw:
        raise _damaged(path, flaw.reason, flaw.way) from None
    return ring, domain


def _in_hexadecimal(number: Any) -> Any:
    """Return a modulus or root in the form of the current file format.

    Files without the attribute "format" hold numbers above 2^64 as decimal strings.
    """
    is_long = type(number) is str and re.fullmatch("[1-9][0-9]{19,4299}", number)
    return int_text(int(number)) if is_long else number


# ---- errors if workers lack memory ----


def _checked(graph: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return `kwargs` with a scheduler that raises OutOfHostMemory if workers lack memory.

    Returns `kwargs` itself inside a task, and for schedulers other than Dask's distributed one.
    """
    scheduler = get_scheduler(scheduler=kwargs.get("scheduler"), cls=da.Array)
    client: Any = getattr(scheduler, "__self__", None)
    if not hasattr(client, "scheduler_info"):
        return kwargs
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        pass
    else:  # this code runs in a task: only Dask's own get() lets other tasks run while this task waits
        return kwargs
    most = _largest_block(graph)
    limits = [worker["memory_limit"] for worker in client.sync(_workers, client)]
    if limits and all(limits) and most > max(limits):
        raise OutOfHostMemory(
            f"A block needs {format_bytes(most)}, and no worker has more than {format_bytes(max(limits))} of "
            f"memory (memory_limit). {_way_out(most, max(limits))}"
        )
    return {**kwargs, "scheduler": partial(_get, client, most)}


def _largest_block(graph: Any) -> int:
    """Return the size in bytes of the largest block in a graph.

    A block does not count if tasks read only slices of the block.
    """
    largest, dependents = 0, graph.dependents
    for name, layer in graph.layers.items():
        about, users = layer.collection_annotations or {}, dependents[name]
        if "chunksize" in about and not (users and all(user.startswith("getitem") for user in users)):
            largest = max(largest, math.prod(about["chunksize"]) * np.dtype(about["dtype"]).itemsize)
    return largest


def _way_out(most: int, limit: int) -> str:
    """Return advice for an error message: make blocks so small that a worker has room for ten.

    A worker holds operands, results and tables at the same time. most: bytes of the largest
    block. limit: bytes of memory of a worker.
    """
    size = min(limit // 10, most // 2)
    chunks = f"{size >> 20}MiB" if size >> 20 else f"{size}B"
    return f'Cut the values into smaller blocks, as with chunks="{chunks}", or give workers more memory.'


async def _workers(client: Any) -> list[dict[str, Any]]:
    """Return the scheduler's information on each worker, such as its status, memory limit and metrics."""
    return list((await client.scheduler.identity())["workers"].values())


def _get(client: Any, most: int, graph: Any, keys: Any, **kwargs: Any) -> Any:
    """Compute a graph by Dask's distributed scheduler.

    most: bytes of the largest block, for error messages.
    """
    from distributed import KilledWorker

    futures = client.get(graph, keys, sync=False, **kwargs)
    try:
        return client.sync(_gathered, client, most, futures, kwargs.get("direct"))
    except KilledWorker as error:
        if not _took_too_much(client, error.last_worker):
            raise
        limit = error.last_worker.memory_limit
        raise OutOfHostMemory(
            f"A task ran out of memory. Its blocks of up to {format_bytes(most)} each, its tables and its "
            f"result were more than Dask lets a worker of {format_bytes(limit)} (memory_limit) use. Dask "
            f"ended the worker (attempts: {error.allowed_failures + 1}). {_way_out(most, limit)}"
        ) from error
    finally:
        _release(futures)


def _release(futures: Any) -> None:
    for future in flatten([futures]):
        future.release()


def _took_too_much(client: Any, worker: Any) -> bool:
    """Return whether Dask's nanny ended a worker because it used too much memory.

    Wait up to a second: the nanny may report after the worker has ended.
    """
    for _ in range(10):
        if any(event["worker"] == worker.address for _, event in client.get_events("worker-restart-memory")):
            return True
        time.sleep(0.1)
    return False


async def _gathered(client: Any, most: int, futures: Any, direct: bool | None) -> Any:
    """Return the results of the futures. Raise OutOfHostMemory if all workers stay paused.

    A paused worker starts no task. Dask pauses a worker while its process holds more than 80 % (by default)
    of the memory limit, and spills blocks to disk. Dask cannot spill tables, or memory that was freed and not
    returned to the system. So a worker may stay paused.
    """
    gathering = asyncio.ensure_future(client.gather(futures, direct=direct, asynchronous=True))
    before, since = None, 0.0
    try:
        while not (await asyncio.wait([gathering], timeout=_LOOK))[0]:
            workers = await _workers(client)
            state = [_waiting(worker) for worker in workers]
            is_done = all(future.status != "pending" for future in flatten([futures]))
            if is_done or not state or None in state or state != before:
                before, since = state, time.monotonic()
            elif time.monotonic() - since > _PATIENCE:
                fullest = max(workers, key=lambda w: w["metrics"]["memory"] / w["memory_limit"])
                held, limit = fullest["metrics"]["memory"], fullest["memory_limit"]
                raise OutOfHostMemory(
                    "All workers are paused, because their memory is almost full and nothing more can be "
                    f"spilled. The fullest worker holds {format_bytes(held)} of its {format_bytes(limit)} "
                    f"(memory_limit), and the largest block has {format_bytes(most)}. {_way_out(most, limit)}"
                )
        return gathering.result()
    finally:
        _release(futures)
        await asyncio.wait([gathering], timeout=_LOOK)  # ends soon, because the futures are released
        if gathering.done() and not gathering.cancelled():
            gathering.exception()  # asyncio would log an exception that nobody reads


def _waiting(worker: dict[str, Any]) -> Any:
    """Return (managed bytes, spilled bytes) of a paused and idle worker. Return None for others."""
    metrics = worker["metrics"]
    at_work = ("executing", "long-running", "flight", "cancelled", "resumed")
    if worker["status"] != "paused" or any(metrics["task_counts"].get(state) for state in at_work):
        return None
    return metrics["managed_bytes"], metrics["spilled_bytes"]


# ---- how values are cut into blocks ----


def _sides(n: int) -> tuple[int, int]:
    """Return height and width of the matrix of n coefficients: (1, n) if n is not a power of two."""
    height = 1 << (n.bit_length() - 1) // 2 if n & (n - 1) == 0 else 1
    return height, n // height


def _checked_chunks(ring: Ring, batch: tuple[int, ...], chunks: Chunks) -> tuple[tuple[int, ...], ...]:
    """Return the chunks of an array (*batch, rows, n), as one tuple of sizes for each axis.

    Raises:
        ParameterError: Dask does not accept `chunks` for this shape, the rows are divided, or the
            coefficients are divided in a way that the four-step algorithm does not allow.
    """
    shape, complete = (*batch, ring.rows, ring.n), ring._plan.has_four_steps
    largest = _sides(ring.n)[0] if complete else 1  # largest possible number of parts of a polynomial
    limit, given = None, chunks
    try:
        if isinstance(chunks, str):
            limit = None if chunks == "auto" else chunks
            size = parse_bytes(limit or dask.config.get("array.chunk-size"))
            parts, one = 1, ring.rows * ring.n * ring.dtype.itemsize
            while one > size * parts and parts < largest:
                parts *= 2
            chunks = *("auto",) * len(batch), ring.rows, ring.n // parts
        if 0 in batch:  # for "auto" and sizes in bytes Dask would divide by the size of the array, which is 0
            if isinstance(chunks, dict):
                chunks = {axis: -1 if isinstance(c, str) else c for axis, c in chunks.items()}
            elif isinstance(chunks, (tuple, list)):
                chunks = tuple(-1 if isinstance(c, str) else c for c in chunks)
        sizes: tuple[tuple[int, ...], ...] = da.core.normalize_chunks(
            chunks, shape, limit=limit, dtype=ring.dtype
        )
        if any(size < 0 for of in sizes for size in of):
            raise ValueError
    except (ValueError, TypeError, ArithmeticError):
        raise ParameterError(
            f"chunks={shown(given)} does not fit the shape (*batch, rows, n) = {shape}. Give a size or a "
            'tuple of sizes for each axis, such as (64, -1, -1), or one size in bytes, such as "64MiB".'
        ) from None
    if len(sizes[-2]) > 1:
        raise ParameterError(
            f"chunks divides the rows into {shown(sizes[-2])}, but all rows must be in one chunk. Give "
            f"{ring.rows} or -1 for this axis."
        )
    parts = len(sizes[-1])
    if parts > 1 and (parts > largest or parts & (parts - 1) or len(set(sizes[-1])) > 1):
        rule = (
            f"The parts must be equal, and their number must be a power of two and at most {largest}."
            if complete and largest > 1
            else "Only rings with n > 2 and a complete transform modulo X^n ± 1 allow more than one chunk."
        )
        raise ParameterError(
            f"chunks divides the n={ring.n} coefficients into {shown(sizes[-1])}. {rule} Give -1 for one "
            "chunk."
        )
    return sizes


def _divided_poly(a: Poly, parts: int) -> BlockedPoly:
    return from_poly(a, chunks=(*("auto",) * a.ndim, -1, a.ring.n // parts))


def _meta(x: Any, more: int = 0, dtype: Any = None) -> Array:
    """Return an empty array of x.ndim + more axes. It tells Dask the dtype and the axes of blocks."""
    return np.empty((0,) * (x.ndim + more), dtype or x.dtype)


def _axes_alike(values: Sequence[BlockedPoly]) -> tuple[int, ...]:
    """Return the batch axes along which blocks must have equal lengths, as negative indices.

    The lengths along these axes are unknown until the blocks are computed. _check_alike then compares the
    lengths.

    Raises:
        ParameterError: the batch shapes do not broadcast, or unknown lengths decide whether they do.
    """
    shapes = [x.shape for x in values]
    try:
        np.broadcast_shapes(*(tuple(1 if math.isnan(size) else size for size in shape) for shape in shapes))
    except ValueError:
        raise ParameterError(
            f"The batch shapes {', '.join(map(str, shapes))} do not broadcast. Index the values, with None "
            "for new axes, so that the shapes broadcast."
        ) from None
    alike = []
    for axis in range(-max(map(len, shapes)), 0):
        sides = [x for x in values if -axis <= x.ndim and x.shape[axis] != 1]
        if len(sides) > 1 and any(math.isnan(x.shape[axis]) for x in sides):
            blocks = {x._array.numblocks[axis - x._tail] for x in sides}
            if len(blocks) > 1 or not all(math.isnan(x.shape[axis]) for x in sides):
                sides[0]._lengths("an operand of these batch axes")
                sides[1]._lengths("an operand of these batch axes")
            alike.append(axis)
    return tuple(alike)


def _check_alike(axes: tuple[int, ...], tail: int, blocks: Sequence[Array]) -> None:
    """Raise ParameterError if the blocks of a task have different lengths along one of the axes.

    NumPy would broadcast a block of length 1 without an error.
    """
    for axis in axes:
        if len({x.shape[axis - tail] for x in blocks}) > 1:
            raise ParameterError(
                "Blocks of two values have different lengths, which were unknown because masks chose them. "
                "Index with the computed masks, x[mask.compute()]."
            )


def _of_blocks(f: Callable[..., Array], *arrays: Any) -> Any:
    """Apply f to the blocks of `arrays`. The arrays must broadcast and be cut at the same places.

    f must return the dtype of arrays[0].
    """
    axes = max(x.ndim for x in arrays)
    pairs = [y for x in arrays for y in (x, range(axes - x.ndim, axes))]
    first = arrays[0]
    meta = np.empty((0,) * axes, first.dtype)
    return da.blockwise(f, range(axes), *pairs, dtype=first.dtype, meta=meta)


# ---- the exchange: every block sends a piece to every other block ----


def _divided_axis(x: Any) -> int:
    """Return the axis along which x is cut into blocks: -1 for blocks of columns, -2 for blocks of rows."""
    return -2 if x.numblocks[-2] > 1 else -1


def _in_columns(x: Any) -> Any:
    return x if _divided_axis(x) == -1 else _exchange(partial(_relaid, -2), -1, x)


def _in_rows(x: Any) -> Any:
    return x if _divided_axis(x) == -2 else _exchange(partial(_relaid, -1), -2, x)


def _exchange(step: Callable[..., Array], axis: int, *matrices: Any) -> Any:
    """Divide matrices along `axis` instead of along the other axis. Apply `step` to each new block.

    axis: -2 makes blocks of rows from blocks of columns; -1 makes blocks of columns from blocks of rows.
    Arguments of `step`: one list of pieces for each matrix, then the indices of the rows or columns of the
    new block.

    Dask's own rechunk is worse. Its method "p2p" needs Dask's distributed scheduler and is slower: on 2
    processes of one host, a product of 2^26 coefficients of 60 bits in 8 parts took 6.5 s with "p2p" on disk,
    4.0 s with "p2p" in memory, and 2.2 to 3.0 s with this function. In all three cases each process held 0.8
    to 1.1 GiB in addition to the operands. The method "tasks" makes views as pieces. A view keeps the whole
    old block in memory.
    """
    pieces = [_cut(x, axis) for x in matrices]
    first = max(pieces, key=lambda x: x.ndim)
    axes = list(range(first.ndim))
    pairs = [y for x in pieces for y in (x, axes[-x.ndim :])]
    # The axis that was divided gets a new label in the result. Its old label then occurs only in the inputs,
    # so da.blockwise passes all pieces along this axis to `step`, as a list.
    given = list(axes)
    given[-3 - axis] = first.ndim
    numbers = da.arange(first.shape[axis], chunks=first.chunks[axis])
    return da.blockwise(
        step,
        given,
        *pairs,
        numbers,
        [axes[axis]],
        new_axes={first.ndim: first.shape[-3 - axis]},
        dtype=first.dtype,
        meta=_meta(first),
    )


def _cut(x: Any, axis: int) -> Any:
    """Divide the matrix x along `axis` too, into as many parts as x has along the other axis."""
    parts = x.numblocks[-3 - axis]
    size = x.shape[axis] // parts
    name = f"piece-{tokenize(x.name, axis)}"
    graph: dict[Any, Any] = {}
    for block in np.ndindex(*x.numblocks):
        for i in range(parts):
            at = [*block]
            at[axis] = i
            graph[(name, *at)] = _piece, (x.name, *block), axis, i * size, size
    chunks = list(x.chunks)
    chunks[axis] = (size,) * parts
    layers = HighLevelGraph.from_collections(name, graph, dependencies=[x])
    return da.Array(layers, name, tuple(chunks), meta=_meta(x))


def _piece(x: Array, axis: int, first: int, size: int) -> Array:
    """Return a copy of `size` entries along `axis`, beginning at index `first`.

    A view would keep the whole block in memory until the piece is used.
    """
    at: list[Any] = [slice(None)] * x.ndim
    at[axis] = slice(first, first + size)
    return _copied(x[tuple(at)])


def _copied(x: Array) -> Array:
    out = host().empty(x.shape, x.dtype)
    out[...] = x
    return out


def _joined_pieces(pieces: list[Array], axis: int) -> Array:
    shape = list(pieces[0].shape)
    shape[axis] = sum(x.shape[axis] for x in pieces)
    return np.concatenate(pieces, axis, out=host().empty(tuple(shape), pieces[0].dtype))


def _relaid(axis: int, pieces: list[Array], numbers: Array) -> Array:
    return _joined_pieces(pieces, axis)


# ---- functions for tasks: they take and return NumPy arrays, and compute on the worker's device ----


@lru_cache(maxsize=128)
def _kept(ring: Ring) -> Ring:
    """Return the first ring object of this process that is equal to `ring`.

    The first object already has its tables. The ring object that arrives with a task does not have any yet.
    """
    return ring


@lru_cache(maxsize=128)
def _with_roots(ring: Ring) -> Ring:
    """Return the same ring with its roots given explicitly.

    Without given roots, each worker would search for roots. A search takes as long as a transform.
    """
    if ring.roots is None:
        return ring
    return Ring(ring.n, ring.moduli, kind=ring.kind, root=ring.roots, product=ring.product)


@lru_cache(maxsize=128)
def _ring_of_parts(ring: Ring, parts: int) -> Ring:
    """Return a ring of degree n / `parts`, for entry by entry operations on a part of a polynomial."""
    return _with_roots(ring) if parts == 1 else Ring(ring.n // parts, ring.moduli, kind=ring.kind)


@dataclass(frozen=True)
class _Number:
    """An int as an argument of a task.

    Dask prints the arguments of tasks, and Python refuses to print an int of more than 4300 digits.
    """

    value: int

    def __dask_tokenize__(self) -> Any:
        return "number", hex(self.value)


def _value(ring: Ring, x: Array, domain: Domain, tail: int) -> Poly:
    """Return the block x as a Poly on the current device.

    tail: number of axes of x after its batch axes.
    """
    return (
        _kept(ring).from_residues(x.reshape(*x.shape[: x.ndim - tail], ring.rows, ring.n), domain=domain).to()
    )


def _block(a: Poly, like: Array, tail: int) -> Array:
    """Return the residues of `a` as a NumPy array whose last `tail` axes are as long as those of `like`."""
    data = a.cpu().data
    return data.reshape(*data.shape[:-2], *like.shape[like.ndim - tail :])


def _unmasked(x: Any) -> Any:
    check_unmasked(x, "x")
    return x


def _residues_of(path: Path, ring: Ring, x: Array) -> Array:
    """Return x, a block of the file at `path`. Raise FileError if a residue is outside [0, q)."""
    if at := first_wrong(ring._plan.basis, x):
        raise _damaged(path, f"in a block, {wrong_residue(ring._plan.basis, x, at)}.")
    return x


def _flat(x: Array) -> Array:
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def _rows_of(width: int, x: Array) -> Array:
    return x.reshape(*x.shape[:-1], x.shape[-1] // width, width)


def _apply(
    f: Callable[..., Poly],
    ring: Ring,
    domains: tuple[Domain, ...],
    tail: int,
    alike: tuple[int, ...],
    *blocks: Array,
) -> Array:
    _check_alike(alike, tail, blocks)
    values = [_value(ring, x, domain, tail) for x, domain in zip(blocks, domains, strict=True)]
    return _block(f(*values), blocks[0], tail)


def _scaled(factor: _Number, a: Poly) -> Poly:
    return a * factor.value


def _scaled_limbs(factors: tuple[_Number, ...], a: Poly) -> Poly:
    return a.scale_by(limbs=[x.value for x in factors])


def _multiply_points(a: Poly, b: Poly) -> Poly:
    """Multiply evaluated parts entry by entry, without making the tables of their ring."""
    return a._with(pointwise(a.ring._plan.basis, "mul", a.data, b.data))


def _plus_constant(
    ring: Ring, domain: Domain, tail: int, constant: _Number, x: Array, block_id: tuple[int, ...] = ()
) -> Array:
    """Add a constant to a block. In the coefficient domain, only the block with coefficient 0 changes."""
    if domain == "coef" and any(block_id[len(block_id) - tail :]):
        return x
    return _block(_value(ring, x, domain, tail) + constant.value, x, tail)


def _scaled_block(ring: Ring, tail: int, x: Array, ints: Array) -> Array:
    factors = ints.reshape(ints.shape[: ints.ndim - tail])
    part = _part_of(ring, x, tail)
    return _block(_value(part, x, "coef", tail).scale_by(factors), x, tail)


def _added(ring: Ring, tail: int, x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    total = _block(_value(_part_of(ring, x, tail), x, "coef", tail).sum(axis), x, tail)
    return np.expand_dims(total, axis) if keepdims else total


def _part_of(ring: Ring, x: Array, tail: int) -> Ring:
    """Return a ring for the block x, which holds a part of each polynomial.

    The degree of this ring is the number of coefficients of such a part.
    """
    return _ring_of_parts(ring, ring.n // math.prod(x.shape[x.ndim - tail + 1 :]))


def _einsum_of_blocks(
    subscripts: str,
    ring: Ring,
    domains: tuple[Domain, ...],
    tail: int,
    kept: int,
    summed: int,
    *blocks: Array,
) -> Array:
    """Call einsum on one block of each operand.

    The summed axes stay in the result, with length 1. _sum_of_products adds the results of several blocks.
    """
    values = [_value(ring, x, domain, tail) for x, domain in zip(blocks, domains, strict=True)]
    found = _block(functions.einsum(subscripts, *values), blocks[0], tail)
    return found.reshape(*found.shape[:kept], *(1,) * summed, *found.shape[kept:])


def _product_of_blocks(q: int, a: Array, b: Array) -> Array:
    """Multiply `a`, a block of the matrix A, by `b`, the rows of B that belong to the columns of `a`.

    Returns shape (rows of a, 1, columns of b). `matmul` joins and sums the results along the middle axis.
    """
    compute = backend()
    found = linalg.matmul(compute.from_host(np.asarray(a)), compute.from_host(np.ascontiguousarray(b)), q=q)
    return compute.to_host(found)[:, None]


def _sum_of_blocks(q: int, parts: Array) -> Array:
    """Sum residues `parts` of shape (m, count, n) over the middle axis, modulo q."""
    m, count, n = parts.shape
    rows = parts.swapaxes(1, 2).reshape(m * n, count)
    return np.asarray(linalg.matmul(rows, np.ones(count, parts.dtype), q=q).reshape(m, n))


def _canonical(ring: Ring, tail: int, x: Array) -> Array:
    return _block(_value(ring, x, "coef", tail), x, tail)


def _drawn(
    ring: Ring,
    batch: tuple[int, ...],
    seed: bytes | str | _Number,
    start: int,
    divided: bool,
    block_info: Any = None,
) -> Array:
    """Draw one block of the polynomials that ring.random draws from the same seed.

    If polynomials are divided, a block holds several ranges of neighbouring coefficients of each polynomial.
    Each range is drawn as one polynomial of a ring of smaller degree.
    """
    where = block_info[None]["array-location"]
    shape = tuple(stop - first for first, stop in where)
    out = np.empty(shape, ring.dtype)
    count = shape[-1]  # number of neighbouring coefficients that are drawn at once
    part = _kept(ring) if count == ring.n else _ring_of_parts(ring, ring.n // count)
    height, steps = (shape[-2], ring.n // count) if divided else (1, 1)
    key, compute = key_of(seed.value if isinstance(seed, _Number) else seed), backend()
    drawn = empty(compute, (part.rows, part.n), part.dtype)
    stride, first = steps // height, where[-1][0] // count
    for at in np.ndindex(*shape[: len(batch)]):
        number = start + _number(batch, at, where)
        for row in range(height):
            place = number * steps + row * stride + first
            entry = (*at, slice(None), row) if divided else at
            # `place` is the index of a part. It may exceed the limit of part.random, which is a limit for
            # indices of polynomials.
            backend_for(part._plan.basis, drawn).uniform(part._plan.basis, key, place, drawn)
            out[entry] = compute.to_host(drawn)
    return out


def _number(batch: tuple[int, ...], at: tuple[int, ...], where: Any) -> int:
    """Return the flat index of a polynomial in the whole batch. at: its index within its block.

    where: (begin, end) of the block in the whole batch, for each axis.
    """
    number = 0
    for size, i, (first, _) in zip(batch, at, where, strict=False):
        number = number * size + first + i
    return number


def _forward_columns(ring: Ring, x: Array, block_id: tuple[int, ...] = ()) -> Array:
    return _step(four_step.forward_columns, ring, _copied(x), block_id[-1] * x.shape[-1])


def _forward_rows(ring: Ring, pieces: list[Array], numbers: Array) -> Array:
    return _step(four_step.forward_rows, ring, _joined_pieces(pieces, -1))


def _inverse_rows(ring: Ring, x: Array) -> Array:
    return _step(four_step.inverse_rows, ring, _copied(x))


def _inverse_columns(ring: Ring, pieces: list[Array], numbers: Array) -> Array:
    return _step(four_step.inverse_columns, ring, _joined_pieces(pieces, -2), int(numbers[0]))


def _product_rows(
    ring: Ring, alike: tuple[int, ...], a: list[Array], b: list[Array], numbers: Array
) -> Array:
    """Transform the rows of two operands, multiply pointwise, and transform the product's rows back.

    a: pieces of a block of rows of the first operand. b: pieces for the second operand.
    """
    _check_alike(alike, 3, (a[0], b[0]))
    ring, compute = _kept(ring), backend()
    with compute.device_scope():
        x, y = (compute.from_host(_joined_pieces(pieces, -1)) for pieces in (a, b))
        plan = _plan(ring, ring.n // x.shape[-1])
        four_step.forward_rows(plan, x)
        four_step.forward_rows(plan, y)
        sides = x.shape[-2:]
        x, y = (v.reshape(*v.shape[:-2], sides[0] * sides[1]) for v in (x, y))
        shape = np.broadcast_shapes(x.shape, y.shape)
        out = next((v for v in (x, y) if v.shape == shape), None)
        product = pointwise(ring._plan.basis, "mul", x, y, out).reshape(*shape[:-1], *sides)
        four_step.inverse_rows(plan, product)
    return compute.to_host(product)


def _step(step: Callable[..., None], ring: Ring, x: Array, *first: int) -> Array:
    """Return the result of `step`, a step of the four-step algorithm, for the block x.

    x: rows of the matrix, or columns if `first` is given. first: index of the first column of x. On the host
    the result overwrites x.
    """
    ring, compute = _kept(ring), backend()
    plan = _plan(ring, x.shape[-2] if first else ring.n // x.shape[-1])
    with compute.device_scope():
        moved = compute.from_host(x)
        step(plan, moved, *first)
    return compute.to_host(moved)


def _plan(ring: Ring, height: int) -> FourStepPlan:
    assert ring.roots is not None
    return plan_four_step(ring._plan.basis, ring._plan.quotient, ring.roots, height)


# ---- functions that make a value from computed blocks (__dask_postcompute__, __dask_postpersist__) ----


def _joined(
    blocks: Any, finish: Callable[..., Array], args: tuple[Any, ...], ring: Ring, domain: Domain, tail: int
) -> Poly:
    """Join all blocks of a value and return the value as a Poly."""
    data = np.asarray(finish(blocks, *args))
    return ring.from_residues(
        data.reshape(*data.shape[: data.ndim - tail], ring.rows, ring.n), domain=domain
    ).to()


def _persisted(
    graph: Any,
    rebuild: Callable[..., Any],
    args: tuple[Any, ...],
    ring: Ring,
    domain: Domain,
    divided: bool,
    *,
    rename: Any = None,
) -> BlockedPoly:
    """Return a BlockedPoly made of blocks that are already computed or are being computed."""
    return BlockedPoly(ring, rebuild(graph, *args, rename=rename), domain, divided)
