"""Batches larger than a memory and polynomials of huge degree, in blocks that Dask computes.

The same work runs on the cores of this process, on processes or on machines: Dask's schedulers decide where
and when. Needs Dask: pip install "polygpu[dask]".

>>> import polygpu as pg, polygpu.dask as pd
>>> R = pg.Ring(2**10, pg.ntt_primes(2**10, bits=60))
>>> a, b = R.random(seed=1), R.random(seed=2)
>>> c = pd.from_poly(a, chunks=(-1, 2**8)) * pd.from_poly(b, chunks=(-1, 2**8))  # four parts each
>>> c.compute() == a * b
True

Processes of this machine, one thread each, with Dask's own client; its dashboard (client.dashboard_link) and
dask.distributed.progress show the work:

    from dask.distributed import Client, progress
    client = Client(n_workers=2, threads_per_worker=1, env={"POLYGPU_NUM_THREADS": "1"})
    c = c.persist()
    progress(c)

Client("tcp://scheduler:8786") takes workers of other machines. Each worker computes on its current device:
with POLYGPU_DEVICE=cuda:0 in its environment a block goes to that GPU and back. Between tasks blocks are
NumPy arrays. Dask sends them, spills them to disk, and computes them again if a worker is lost, because
the result of a task depends on its blocks alone.

One polynomial can be divided if its ring has a complete transform. Then ntt() and intt() are four steps
(docs/math.md, "Four steps"), each on a block: coefficients are a matrix in blocks of neighbouring columns,
evaluated values a matrix in blocks of neighbouring rows. Between columns and rows every block sends a piece
to every other.
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
    raise ImportError(f'polygpu.dask needs Dask and zarr ({error}): pip install "polygpu[dask]"') from error

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

_FORMAT = 1  # of the attributes of a .zarr: those of a ring in files.py, "domain" and "format"
_WINDOW = 1 << 25  # bytes of a file that a worker maps at a time
_LOOK = 5.0  # seconds between looks at workers
_PATIENCE = 30.0  # seconds for which all workers may have stopped, before an error

Chunks = Any  # as Dask takes them: "auto", "64MiB", a size or a tuple for each axis


class BlockedPoly(NotAnArray, DaskMethodsMixin):
    """A batch of elements of a ring in blocks, which are computed when they are asked for.

    `ring` and `domain` are those of a Poly; `data` is a dask.array of residues (*batch, rows, n). Make values
    from_poly, from_array, random and load. The operators +, -, * and @ and a[i] have the rules of Poly,
    give the same bits and raise the same errors. One operand may be a Poly or an int. A value is a
    collection of Dask, which dask.compute, dask.persist and dask.visualize take.

    >>> from polygpu import Ring
    >>> x = random(Ring(4, 17), batch=6, seed=1, chunks=(2, -1, -1))
    >>> x, (x + x - 2 * x).sum().compute() == 0
    (BlockedPoly(Ring(4, 17), domain=coef, shape=(6,), blocks=3), True)
    """

    ring: Ring
    domain: Domain

    # The residues: (*batch, rows, n), if a block has all n. Or divided: (*batch, rows, height, width), a
    # matrix whose entry (c, j) is number c width + j. Then a block has some rows of the matrix for evaluated
    # values, and some columns or some rows for coefficients.
    _array: Any
    _divided: bool

    __hash__ = None  # type: ignore[assignment]
    __dask_optimize__ = staticmethod(da.Array.__dask_optimize__)
    __dask_scheduler__ = staticmethod(da.Array.__dask_scheduler__)

    def __init__(self, ring: Ring, array: Any, domain: Domain, divided: bool = False) -> None:
        self.ring, self.domain = ring, domain
        self._array, self._divided = array, divided

    # ---- what it is ----

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
        """Number of axes after the batch axes."""
        return 3 if self._divided else 2

    @property
    def _parts(self) -> int:
        """Number of blocks of a polynomial."""
        return math.prod(self._array.numblocks[-2:]) if self._divided else 1

    @property
    def data(self) -> Any:
        """Residues (*batch, rows, n), a dask.array. Coefficients that lie in columns take an exchange.

        >>> from polygpu import Ring
        >>> from_poly(Ring(4, 17)([1, -1])).data.compute().tolist()
        [[1, 16, 0, 0]]
        """
        if not self._divided:
            return self._array
        rows = _in_rows(self._array)
        height, width = rows.chunks[-2:]
        # Dask's own reshape takes neither empty batches nor batches of unknown lengths.
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
            "Use its methods and the functions of polygpu.dask, or take a Poly with x.compute() or a "
            "dask.array of residues with x.data"
        )

    def __len__(self) -> int:
        """Return the length of the first batch axis; raise TypeError for a single polynomial.

        >>> from polygpu import Ring
        >>> len(random(Ring(4, 17), (2, 3), seed=1))
        2
        """
        if not self.ndim:
            raise TypeError(
                "A single polynomial has no len(). Use x.ring.n for its degree, x.shape for its batch."
            )
        return self._lengths("len()")[0]

    def __iter__(self) -> Iterator[BlockedPoly]:
        """Yield the entries of the first batch axis, one after the other.

        >>> from polygpu import Ring
        >>> [x.compute()(0) for x in from_poly(Ring(2, 17)([[1, 2], [3, 4]]))]
        [1, 3]
        """
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> BlockedPoly:
        """Return the polynomials at a key of the batch axes, by NumPy's rules, as in Poly.

        Args:
            key: ints, slices, None, Ellipsis, or arrays of ints or bools. One array of Dask with one axis,
                such as the bools of `equal`, may stand among slices. The length of its axis is then unknown
                until the value is computed. Such a value has sums, transforms, products with ints and single
                polynomials, and results with values that the same mask has chosen; all else raises
                ParameterError.

        Raises:
            IndexError: there is no such place.
            ParameterError: an array of Dask that stands among other arrays or ints, or has several axes.

        Cost: none before the value is computed; then the blocks that hold the chosen polynomials. Several
        arrays, and arrays of several axes, take a list of all places in the batch when they are given.

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
        shape = index(np.empty((*batch, 1, 0), np.bool_), places).shape[:-2]  # raises Poly's errors
        if any(isinstance(k, da.Array) for k in keys):
            _check_lazy(keys)
        elif not _is_plain(keys):
            return self._gathered(keys, shape)
        keys = keys if any(k is Ellipsis for k in keys) else (*keys, Ellipsis)
        return self._with(self._array[(*keys, *(slice(None),) * self._tail)])

    def _gathered(self, keys: tuple[Any, ...], shape: tuple[int, ...]) -> BlockedPoly:
        """Return the polynomials at a key that Dask does not take or takes in another way than NumPy."""
        x, tail = self._array, self._array.shape[self.ndim :]
        if not math.prod(shape):
            chunks = (*((size,) for size in shape), *x.chunks[self.ndim :])
            return self._with(da.zeros((*shape, *tail), dtype=x.dtype, chunks=chunks))
        count = math.prod(self.shape)
        numbers = index(np.arange(count).reshape(*self.shape, 1, 1), keys)
        chosen = x.reshape(count, *tail)[numbers.ravel()]
        return self._with(chosen.reshape(*shape, *tail))

    def _lengths(self, what: str) -> tuple[int, ...]:
        """Return the batch shape; raise ParameterError if a length is unknown, which `what` needs."""
        if any(math.isnan(size) for size in self.shape):
            raise ParameterError(
                f"The batch shape {self.shape} has lengths that are unknown until a mask is computed, and "
                f"{what} needs them. Index with the computed mask, x[mask.compute()]."
            )
        return self.shape

    def rechunk(self, chunks: Chunks) -> BlockedPoly:
        """Return the same value in other blocks.

        Args:
            chunks: see from_array.

        Raises:
            ParameterError: chunks that cannot be, or batch axes of unknown lengths.

        Cost: blocks are cut and joined when the value is computed; coefficients in columns take an exchange.

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
        """Compute the value as a polygpu.Poly, on the current device.

        Args:
            **kwargs: those of dask.compute, such as scheduler="threads".

        Raises:
            OutOfHostMemory: Dask's workers have too little memory. A block is larger than a worker's memory,
                or Dask ended workers that took too much, or all workers have stopped because their memory is
                full of data that cannot be spilled. (dask.compute(x) raises Dask's KilledWorker in the second
                case, and waits in the third.)

        Cost: the work of all tasks. This process joins the blocks; with dask.compute(x, y) a worker joins the
        blocks of each value. With Client(..., direct_to_workers=True) blocks do not pass through the
        scheduler.

        >>> from polygpu import Ring
        >>> random(Ring(4, 17), 2, seed=1).compute() == Ring(4, 17).random(2, seed=1)
        True
        """
        graph = self.__dask_graph__()
        blocks = compute_as_if_collection(da.Array, graph, self.__dask_keys__(), **_checked(graph, kwargs))
        finish, args = self.__dask_postcompute__()
        return finish(blocks, *args)  # type: ignore[no-any-return]

    def persist(self, **kwargs: Any) -> BlockedPoly:
        """Compute the blocks now and keep them, in this process or on Dask's workers; return the same value.

        With Dask's distributed client the call returns while workers compute.

        Args:
            **kwargs: those of dask.persist.

        Raises:
            OutOfHostMemory: a block is larger than the memory of any of Dask's workers.

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
        """Transform to the evaluation domain, in the ring's order; return the value itself if already there.

        Raises:
            NotNTTFriendly: the ring has no evaluation domain.

        Cost: a transform of each block. Divided coefficients take one exchange more if they lie in columns,
        two if they lie in rows. They lie in columns if they are products, random, or from memory or a .npy
        file; they lie in rows if they are from a dask.array or a .zarr folder.

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
        """Transform back to coefficients, the inverse of ntt(); return the value itself if already there.

        Cost: a transform of each block; for divided values an exchange more.

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
        """Return the transformed columns of divided coefficients."""
        x, call = _in_columns(self._array), partial(_forward_columns, _with_roots(self.ring))
        return da.map_blocks(call, x, dtype=x.dtype, meta=x._meta)

    def _second_half(self, rows: Any) -> BlockedPoly:
        """Return the coefficients that inversely transformed rows give: an exchange, then the columns."""
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
        """Raise TypeError, as the values are not computed: equal(a, b).compute() compares them."""
        raise TypeError(
            "== of values that are not computed: pd.equal(a, b).compute() compares each of a batch"
        )

    def __ne__(self, other: object) -> NoReturn:
        self == other  # noqa: B015  (which raises)
        raise AssertionError

    def __bool__(self) -> NoReturn:
        raise TypeError("the truth of a BlockedPoly is ambiguous; pd.equal(a, b).all().compute() compares")

    def scale_by(self, ints: Any = None, *, limbs: Sequence[int] | None = None) -> BlockedPoly:
        """Return the product with one integer for each polynomial of the batch, or one for each limb.

        The result is in this value's domain.

        Args:
            ints: an int, or integers of any size in an array or nested list that broadcasts to the batch
                shape.
            limbs: given instead of ints: one int for each modulus.

        Raises:
            CoefficientError: no integers.
            ParameterError: shapes that do not fit; both ints and limbs are given, or neither.

        Cost: one pass over each block; the integers travel with the graph.

        >>> from polygpu import Ring
        >>> x = from_poly(Ring(2, 17)([[1, 2], [3, 4]]))
        >>> x.scale_by([10, -1]).compute().to_bigints(centered=True).tolist()
        [[-7, 3], [-3, -4]]
        """
        if (ints is None) == (limbs is None):
            raise ParameterError("scale_by: give integers for the batch, or limbs=, one for each modulus")
        if limbs is not None:
            factors_of_limbs(self.ring._plan.basis, limbs, host())  # raises Poly's errors
            numbers = tuple(_Number(integer(x, "limbs")) for x in sequence(limbs))
            return self._mapped(partial(_scaled_limbs, numbers))
        factors = as_integers(ints, "ints")
        known = tuple(1 if math.isnan(size) else size for size in self.shape)
        if not broadcasts(factors.shape, known):
            self._lengths("an array of factors")
            raise ParameterError(
                f"ints: shape {factors.shape} does not broadcast to the batch shape {self.shape}; "
                "give one int, or one for each batch element"
            )
        if not factors.ndim:
            return self._times(int(factors))
        batch_chunks = self._array.chunks[self.ndim - factors.ndim : self.ndim]
        chunks = tuple(1 if size == 1 else c for size, c in zip(factors.shape, batch_chunks, strict=True))
        spread = da.from_array(factors, chunks=chunks)[(..., *(None,) * self._tail)]
        call = partial(_scaled_block, _with_roots(self.ring), self._tail)
        return self._with(_of_blocks(call, self._array, spread))

    def sum(self, axis: int | tuple[int, ...] | None = None) -> BlockedPoly:
        """Return the sum over batch axes; over an empty axis it is zero.

        Args:
            axis: the number of an axis, or a tuple of them; all axes by default.

        Raises:
            ParameterError: there is no such axis.

        Cost: one pass over each block; then the blocks' sums are added in a tree.

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

        The file is written under a temporary name beside the path and renamed at the end. So a file of that
        name is always complete, and an error leaves none. If this process is killed, ".name.*.part" may stay.

        Args:
            path: ends in .zarr, for a folder with the ring's parameters in its attributes, or in .npy, for
                the array (*batch, rows, n) alone. Every worker must be able to write there.

        Raises:
            OutputError: something of that name is there already. ParameterError: another ending, batch axes
                of unknown lengths, or a ring that load() would refuse. OutOfHostMemory: see compute.

        Cost: the work of all tasks, and each block is written once. Divided coefficients that lie in columns
        take an exchange for .zarr, none for .npy.

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
            raise ParameterError(f"path: {str(path)!r} must end in .npy or .zarr")
        if os.path.lexists(target):
            raise OutputError(f"path: {str(path)!r} exists; remove it first, or give another name")
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
        """Return the other operand in blocks; raise RingMismatch unless it is of this ring."""
        if isinstance(other, Poly):
            other = from_poly(other) if not self._divided else _divided_poly(other, self._parts)
        if not isinstance(other, BlockedPoly):
            raise RingMismatch(
                f"operand: {type(other).__name__}, must be a Poly or a BlockedPoly; ring(x) makes one of ints"
            )
        if other.ring != self.ring:
            raise RingMismatch(
                f"operands of different rings: {self.ring!r} and {other.ring!r}; "
                "bring both into one before they are cut into blocks"
            )
        return other

    def _aligned(self, other: BlockedPoly) -> tuple[BlockedPoly, BlockedPoly]:
        """Return both in one domain, with polynomials divided in the same way."""
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
        """Apply f to the values in each block; the operands are divided in the same way."""
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
        # One task holds two blocks; a task for each step would hold four.
        rows = partial(_product_rows, _with_roots(self.ring), _axes_alike([a, b]))
        return a._second_half(_exchange(rows, -2, a._first_half(), b._first_half()))


def _operator(method: Callable[[Any], BlockedPoly], other: object) -> BlockedPoly:
    """Return the method's result for a value or an int; treat all else as the operators of Poly do."""
    if isinstance(other, BlockedPoly):
        return method(other)
    if isinstance(other, da.Array):
        raise CoefficientError(
            "operand: an array of Dask is not a constant. Use from_array(array, ring) to make a value of its "
            "residues."
        )
    return operator_of_poly(method, other)  # type: ignore[arg-type, return-value]


# ---- keys of the batch axes ----


def _standing_for(key: Any) -> Any:
    """Return the key, or an array of the same kind and shape for one of Dask, whose entries are unknown."""
    if not isinstance(key, da.Array):
        return key
    if key.ndim != 1 or math.isnan(key.shape[0]) or key.dtype.kind not in "biu":
        raise ParameterError(
            f"The key is an array of Dask of {key.dtype} and shape {key.shape}. Only bools or ints along one "
            "axis of known length are possible. Use x[key.compute()]."
        )
    return np.zeros(key.shape, key.dtype)


def _check_lazy(keys: tuple[Any, ...]) -> None:
    """Raise ParameterError unless an array of Dask stands among slices alone."""
    if sum(k is not Ellipsis and not isinstance(k, slice) for k in keys) > 1:
        raise ParameterError(
            "An array of Dask is in a key with other arrays, ints or None. Use x[key.compute()], or take two "
            "steps."
        )


def _is_plain(keys: tuple[Any, ...]) -> bool:
    """Return whether Dask takes keys as NumPy does: slices and ints, or slices and an array with one axis.

    Dask gives the axes of x[0, :, [1, 2]] another order, and reads True and 1.5 as 1.
    """
    others = [k for k in keys if not (k is None or k is Ellipsis or isinstance(k, slice))]
    if all(isinstance(k, (int, np.integer)) and not isinstance(k, bool) for k in others):
        return True
    return len(others) == 1 and isinstance(others[0], (list, np.ndarray)) and np.ndim(others[0]) == 1


# ---- makers ----


def from_array(x: Any, ring: Ring, *, domain: Domain = "coef", chunks: Chunks = "auto") -> BlockedPoly:
    """Return the elements with these residues, in blocks that are cut from the array when they are needed.

    Args:
        x: canonical residues (*batch, rows, n): a dask.array, anything that da.from_array takes, such as an
            array of NumPy, zarr or h5py, or nested lists. Residues of another dtype are checked and
            converted.
        ring: the ring.
        domain: "coef", or "eval" in the ring's order.
        chunks: sizes of the blocks, as Dask takes them. The axis of rows is one chunk. The axis of
            coefficients is one chunk too, or k equal chunks in a ring with a complete transform: k a power of
            two with k^2 <= n. A size in bytes such as "64MiB" divides a polynomial only if it is larger.
            "auto" is the size in Dask's configuration, array.chunk-size.

    Raises:
        ParameterError: another shape, axes of unknown lengths, or chunks that cannot be.
        CoefficientError: no integers, or a masked array (of a dask.array, when its blocks are computed).
        NotCanonical: when blocks of another dtype are computed, a residue outside [0, q).
        DomainError: another domain. NotNTTFriendly: "eval", and the ring has no transform.

    Cost: none before the value is computed. An array in memory travels with the graph through the scheduler.
    It is better to write an array of more than some hundred MiB by numpy.save, and to read it by load() where
    it is needed.

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
            f"x: shape {shape} must end in (rows, n) = ({ring.rows}, {ring.n}); ring(x) takes integers "
            "(*batch, n), from_poly(ring(x)) cuts them into blocks"
        )
    if x.dtype.kind not in "iuO":
        raise CoefficientError(f"x: dtype {x.dtype} must be an integer dtype, best {ring.dtype}")
    if any(math.isnan(size) for size in shape):
        raise ParameterError(
            f"x: shape {shape} has lengths that are unknown. Call x.compute_chunk_sizes() first, which "
            "computes them."
        )
    if isinstance(x, da.Array):  # its meta does not always tell what its blocks are
        x = da.map_blocks(_unmasked, x, dtype=x.dtype, meta=x._meta)
    return _in_blocks(x, ring, domain, _checked_chunks(ring, shape[:-2], chunks))


def _checked_ring(ring: object) -> Ring:
    if not isinstance(ring, Ring):
        raise ParameterError(f"ring: {type(ring).__name__}, must be a Ring")
    return ring


def _in_blocks(x: Any, ring: Ring, domain: Domain, sizes: tuple[tuple[int, ...], ...]) -> BlockedPoly:
    """Return the elements with the residues of an array, cut into blocks of these sizes."""
    parts = len(sizes[-1])
    height, width = _sides(ring.n)
    # name=False: a name from the contents takes as long as a transform.
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
    """Return a Poly in blocks.

    Args:
        a: the value; from a GPU it is copied to the host.
        chunks: see from_array.

    Raises:
        RingMismatch: a is not a Poly. ParameterError: chunks that cannot be.

    Cost: that of from_array for an array in memory.

    >>> from polygpu import Ring
    >>> a = Ring(4, 17)([[1, 2], [3, 4]])
    >>> (from_poly(a, chunks=(1, -1, -1)) * a).compute() == a * a
    True
    """
    if not isinstance(a, Poly):
        raise RingMismatch(f"a: {type(a).__name__}, must be a Poly; from_array takes residues")
    return from_array(a.cpu().data, a.ring, domain=a.domain, chunks=chunks)


def random(
    ring: Ring, batch: Batch = (), *, seed: Seed = None, chunks: Chunks = "auto", start: int = 0
) -> BlockedPoly:
    """Return the uniform elements ring.random(batch, seed=seed, start=start), drawn where they are needed.

    Args:
        ring: the ring.
        batch: batch shape.
        seed: see Ring.random. For None a seed comes from the operating system, and the graph keeps it.
        chunks: see from_array. Divided polynomials are drawn in parts.
        start: number of the first polynomial.

    Raises:
        ParameterError, NotAnInteger: see Ring.random; also chunks that cannot be.

    Cost: none before the value is computed; then that of Ring.random, on the workers.

    >>> from polygpu import Ring
    >>> R = Ring(16, 97)
    >>> random(R, 3, seed=1, chunks=(2, -1, 4)).compute() == R.random(3, seed=1)
    True
    """
    shape = checked_batch(batch)
    _checked_ring(ring)
    check_stream(ring.n, 8 * (ring._plan.basis.words + 1), start, math.prod(shape))
    key_of(seed)  # checks it
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
    """Sum products over labelled batch axes, by the rules of polygpu.einsum; a @ b is such a sum.

    Args:
        subscripts: see polygpu.einsum.
        operands: values of one ring, in blocks or not.

    Raises:
        ParameterError: see polygpu.einsum; also batch axes of unknown lengths.
        RingMismatch: operands of different rings.

    Cost: that of polygpu.einsum for each pair of blocks that meet; then the sums of blocks are added in a
    tree. If products go through the ring's transform, coefficients of each operand are transformed once, and
    the result is transformed back once.

    >>> from polygpu import Ring
    >>> R = Ring(4, 17)
    >>> a = R.random((4, 6), seed=1)
    >>> x = from_poly(a, chunks=(2, 2, -1, -1))
    >>> import polygpu as pg
    >>> einsum("ij,kj->ik", x, x).compute() == pg.einsum("ij,kj->ik", a, a)
    True
    """
    if not operands:
        raise ParameterError("einsum: no operands; give a value for each term of the subscripts")
    blocked = next((x for x in operands if isinstance(x, BlockedPoly)), None)
    first = blocked if blocked is not None else from_poly(operands[0])  # type: ignore[arg-type]
    values = [first._operand(x) for x in operands]
    labels, output = parsed_subscripts(subscripts, [x.ndim for x in values])
    return _sum_of_products(subscripts, labels, output, values)


def _sum_of_products(
    subscripts: str, labels: list[list[Label]], output: list[Label], values: list[BlockedPoly]
) -> BlockedPoly:
    """Return the sum of the products over all labels that the result lacks."""
    label_sizes([x._lengths("a sum of products") for x in values], labels)  # raises Poly's errors
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
    """Return the value with one axis for each label, the diagonal of the axes that share it."""
    array, names = x._array, list(labels)
    for label in dict.fromkeys(labels):
        while names.count(label) > 1:
            i = names.index(label)
            j = names.index(label, i + 1)
            array = da.moveaxis(da.diagonal(array, 0, i, j), -1, i)
            del names[j]
    return x._with(array)


def matmul(A: Any, B: Any, *, q: int) -> Any:
    """Multiply a matrix of integers in blocks by a matrix modulo q, as polygpu.linalg.matmul does.

    The matrix stays where its blocks are made, such as in files that workers map; only B travels.

    Args:
        A: a dask.array of integers, (m, k).
        B: (k,) or (k, n), an array of NumPy or of Dask.
        q: any modulus from 2 to 2**64.

    Returns:
        A dask.array of residues, (m,) or (m, n), in blocks of as many rows as A's.

    Raises:
        ParameterError: A is not a dask.array of two axes, shapes that do not fit, unknown lengths, or q
            outside its range.
        CoefficientError: A or B holds something other than integers.

    Cost: none before it is computed; then a product for each block of A, and a sum of those of a row of
    blocks.

    >>> import dask.array
    >>> A = dask.array.ones((4, 6), dtype="uint8", chunks=(2, 3))
    >>> matmul(A, [1, 2, 3, 4, 5, 6], q=16).compute().tolist()
    [5, 5, 5, 5]
    """
    modulus = integer(q, "q")
    if not 2 <= modulus <= linalg.MAX_MODULUS:
        raise ParameterError(f"q: {shown(modulus)} must be from 2 to 2**64")
    if not isinstance(A, da.Array) or A.ndim != 2:
        kind = f"of shape {A.shape}" if isinstance(A, da.Array) else type(A).__name__
        raise ParameterError(f"A: {kind}. Give a dask.array of two axes; polygpu.linalg.matmul takes others")
    right = B if isinstance(B, da.Array) else as_integers(B, "B")
    for name, x in (("A", A), ("B", right)):
        if x.dtype.kind not in "iuO":
            raise CoefficientError(f"{name}: dtype {x.dtype} holds no integers")
    if any(math.isnan(size) for size in (*A.shape, *right.shape)):
        raise ParameterError("A, B: unknown lengths. Call compute_chunk_sizes() first")
    if right.ndim not in (1, 2) or right.shape[0] != A.shape[1]:
        raise ParameterError(
            f"A, B: shapes {A.shape} and {right.shape}; the last axis of A must be as long as the first of B"
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
        a: a value in blocks, a Poly, or an int, which is a constant.
        b: as a, one of the two in blocks; batch axes broadcast. The domains may differ.

    Returns:
        A dask.array of bools of the broadcast batch shape.

    Raises:
        RingMismatch: different rings, or neither value in blocks. ParameterError: batch axes that do not
            broadcast. NotAnInteger: another type.

    Cost: none before it is computed; then a subtraction and one pass over each block, and a transform if the
    domains differ.

    >>> from polygpu import Ring
    >>> a = Ring(4, 17)([[1, 2], [3, 4]])
    >>> equal(from_poly(a), a[0]).compute().tolist()
    [True, False]
    """
    if not isinstance(a, BlockedPoly):
        a, b = b, a
    if not isinstance(a, BlockedPoly):
        raise RingMismatch(
            f"a: {type(a).__name__}, one of both must be a BlockedPoly; polygpu.equal compares others"
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
    """Return the elements with the residues of a file, in blocks that are read where they are needed.

    Args:
        path: a file that save() wrote, or another .npy or .zarr array of residues (*batch, rows, n). Every
            worker must be able to read it.
        ring: the ring of the residues. A .zarr that save() wrote names it.
        domain: "coef" or "eval", the domain of the residues. A .zarr that save() wrote names it; for all
            others it is "coef" by default.
        chunks: see from_array; by default the chunks of a .zarr, and "auto" for a .npy.

    Raises:
        ParameterError: another ending, or a ring that neither the file nor the call names.
        RingMismatch, DomainError: a ring or domain other than the file's.
        FileError: the file is cut or damaged, or is none of its kind. Parts of blocks, and residues outside
            [0, q) in a .zarr that save() wrote, are found when a block is read.
        CoefficientError, NotCanonical: see from_array. FileNotFoundError: there is no such file.

    Cost: none before the value is computed, but a look at the names of a .zarr's chunks; then each block is
    read when a task needs it. Residues of a .zarr that save() wrote are looked at, in one pass.

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
        raise ParameterError(f"path: {str(path)!r} must end in .npy or .zarr")
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
        raise RingMismatch(f"ring: {ring!r}, the file {str(path)!r} is of {own!r}")
    if domain is not None and own._checked_domain(domain) != own_domain:
        raise DomainError(
            f"domain: {domain!r}, the file {str(path)!r} holds values in {own_domain!r}. Leave domain out, "
            f"and call {'intt' if own_domain == 'eval' else 'ntt'}() of the result."
        )
    if x.dtype != own.dtype or len(x.shape) < 2 or x.shape[-2:] != (own.rows, own.n):
        raise _damaged(source, f"its array is of {x.dtype} and shape {x.shape}, which does not fit its ring")
    if x.misses_chunks():
        raise _damaged(source, "chunks are missing")
    ring = ring or own
    sizes = _checked_chunks(ring, x.shape[:-2], x.chunks if chunks is None else chunks)
    read = da.from_array(x, sizes, name=False)
    looked_at = da.map_blocks(partial(_residues_of, source, ring), read, dtype=read.dtype, meta=read._meta)
    return _in_blocks(looked_at, ring, own_domain, sizes)


def _given(ring: Ring | None, path: object) -> Ring:
    if ring is None:
        raise ParameterError(
            f"ring: {str(path)!r} names none; load(path, ring=...) says whose residues it holds"
        )
    return ring


def _or_auto(chunks: Chunks) -> Chunks:
    return "auto" if chunks is None else chunks


def _damaged(path: Path, reason: str, way: str = DAMAGED) -> FileError:
    way = "copy the file again, or write it anew with save(path)" if way is DAMAGED else way
    return FileError(f"{path}: {reason}; {way}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise FileError for what NumPy, zarr and json say of a damaged file; the system's errors stay."""
    try:
        yield
    except (PolyGPUError, MemoryError):
        raise
    except Exception as error:
        lost = isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError))
        if isinstance(error, OSError) and not lost:
            raise
        raise _damaged(path, f"is cut or damaged, or is not a {path.suffix} file of an array") from error


def _check_kind(path: Path, kind: Callable[[Path], bool]) -> None:
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if not kind(path):
        raise _damaged(
            path, f"is not a {path.suffix} file of an array: a folder, file, pipe or device instead"
        )


class _ZarrFile:
    """A .zarr folder as an array, with FileError for what is wrong with it."""

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
        """Return whether a chunk is missing, which zarr would read as zeros."""
        with _reading(self.path):
            # Before there was a format, save() left out chunks of zeros.
            return "format" in self.told and self._array.nchunks_initialized < self._array.nchunks


class _NpyFile:
    """A .npy file as an array in a shape. It is opened anew for each block: workers need only its name."""

    def __init__(self, path: Path, shape: tuple[int, ...] | None = None) -> None:
        _check_kind(path, Path.is_file)
        with _reading(path):
            found = np.load(path, mmap_mode="r", allow_pickle=False)
            self.path, self.dtype, self.shape = path, found.dtype, shape or found.shape
            self.ndim = len(self.shape)

    def reshape(self, *shape: int) -> _NpyFile:
        """Return the same file in another shape."""
        return _NpyFile(self.path, shape)

    def _opened(self, mode: Literal["r", "r+"]) -> Array:
        with _reading(self.path):
            mapped: Array = np.load(self.path, mmap_mode=mode, allow_pickle=False)
            return mapped.reshape(self.shape)

    def __getitem__(self, key: Any) -> Array:
        chosen = self._opened("r")[key]
        if not isinstance(chosen, np.memmap):  # an index array gave a copy
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
    """Yield the indices of parts that lie within _WINDOW bytes each.

    Each part is mapped alone. Dask counts the pages that a process has mapped as its memory, and columns of
    all rows would map the whole file.
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
    data = data.rechunk(tuple(max(sizes) for sizes in data.chunks))  # chunks of zarr are all of one size
    told = ring_entry(x.ring.__reduce__()[1])
    try:  # a file that load() would refuse is not written
        ring_of_entry(told, "its ring", x.domain == "eval")
    except Flaw as flaw:
        raise ParameterError(f"{flaw.reason}; {flaw.way}") from None
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
    """Return the ring and the domain that the attributes of a .zarr name."""
    try:
        if type(x) is not dict:
            raise Flaw("its attribute polygpu must be an object")
        told = dict(x)
        version, domain = told.pop("format", _FORMAT), told.pop("domain", None)
        if type(version) is int and version > _FORMAT:
            raise Flaw(f"format {version} is not known here, {_FORMAT} is", "install a newer polygpu")
        if type(version) is not int or version != _FORMAT:
            raise Flaw(f"its format must be {_FORMAT}")
        if domain not in ("coef", "eval"):
            raise Flaw("its domain must be 'coef' or 'eval'")
        for field in ("moduli", "root"):
            if type(told.get(field)) is list:
                told[field] = [_in_hexadecimal(number) for number in told[field]]
        ring = ring_of_entry(told, "its ring", domain == "eval")
        if domain == "eval" and not ring.has_eval:
            raise Flaw("its values are evaluated, and its ring has no transform")
    except Flaw as flaw:
        raise _damaged(path, flaw.reason, flaw.way) from None
    return ring, domain


def _in_hexadecimal(number: Any) -> Any:
    """Return a number above 2^64 as the format writes it; before there was a format it was decimal."""
    is_long = type(number) is str and re.fullmatch("[1-9][0-9]{19,4299}", number)
    return int_text(int(number)) if is_long else number


# ---- memory of workers ----


def _checked(graph: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments for Dask with which a worker's lack of memory becomes an error of polygpu."""
    scheduler = get_scheduler(scheduler=kwargs.get("scheduler"), cls=da.Array)
    client: Any = getattr(scheduler, "__self__", None)
    if not hasattr(client, "scheduler_info"):
        return kwargs
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        pass
    else:  # in a task: Dask's own get() gives the task's place to others while it waits
        return kwargs
    most = _largest_block(graph)
    limits = [worker["memory_limit"] for worker in client.sync(_workers, client)]
    if limits and all(limits) and most > max(limits):
        raise OutOfHostMemory(
            f"a block of {format_bytes(most)} is needed, workers have {format_bytes(max(limits))} each "
            f"(memory_limit); {_way_out(most, max(limits))}"
        )
    return {**kwargs, "scheduler": partial(_get, client, most)}


def _largest_block(graph: Any) -> int:
    """Return the bytes of the largest block in a graph, except arrays of which only slices are read."""
    largest, dependents = 0, graph.dependents
    for name, layer in graph.layers.items():
        about, users = layer.collection_annotations or {}, dependents[name]
        if "chunksize" in about and not (users and all(user.startswith("getitem") for user in users)):
            largest = max(largest, math.prod(about["chunksize"]) * np.dtype(about["dtype"]).itemsize)
    return largest


def _way_out(most: int, limit: int) -> str:
    """Return advice for an error. A worker can hold ten of the blocks: operands, results and tables."""
    size = min(limit // 10, most // 2)
    chunks = f"{size >> 20}MiB" if size >> 20 else f"{size}B"
    return f'cut the values into smaller blocks, as with chunks="{chunks}", or give workers more memory'


async def _workers(client: Any) -> list[dict[str, Any]]:
    """Return what the scheduler knows of each worker."""
    return list((await client.scheduler.identity())["workers"].values())


def _get(client: Any, most: int, graph: Any, keys: Any, **kwargs: Any) -> Any:
    """Compute a graph by Dask's distributed scheduler; most: bytes of the largest block, for errors."""
    from distributed import KilledWorker

    futures = client.get(graph, keys, sync=False, **kwargs)
    try:
        return client.sync(_gathered, client, most, futures, kwargs.get("direct"))
    except KilledWorker as error:
        if not _took_too_much(client, error.last_worker):
            raise
        limit = error.last_worker.memory_limit
        raise OutOfHostMemory(
            f"a task on blocks of up to {format_bytes(most)} took, with its tables and its result, more than "
            f"Dask allows of the {format_bytes(limit)} that a worker has (memory_limit), and Dask ended the "
            f"worker (attempts: {error.allowed_failures + 1}); {_way_out(most, limit)}"
        ) from error
    finally:
        _release(futures)


def _release(futures: Any) -> None:
    for future in flatten([futures]):
        future.release()


def _took_too_much(client: Any, worker: Any) -> bool:
    """Return whether Dask's nanny ended a worker for its memory, which it may report after the end."""
    for _ in range(10):
        if any(event["worker"] == worker.address for _, event in client.get_events("worker-restart-memory")):
            return True
        time.sleep(0.1)
    return False


async def _gathered(client: Any, most: int, futures: Any, direct: bool | None) -> Any:
    """Return the results; raise OutOfHostMemory if all workers would wait for ever.

    A worker starts no task while its process holds more than a share of its memory, 80 % by default. Dask
    spills blocks. It cannot spill tables, nor memory that was freed but not given back to the system.
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
                    f"all workers have stopped: their processes hold up to {format_bytes(held)} of the "
                    f"{format_bytes(limit)} that each has (memory_limit), and nothing more can be spilled; "
                    f"blocks are of up to {format_bytes(most)}; {_way_out(most, limit)}"
                )
        return gathering.result()
    finally:
        _release(futures)
        await asyncio.wait([gathering], timeout=_LOOK)  # it ends when its futures end
        if gathering.done() and not gathering.cancelled():
            gathering.exception()  # asyncio logs an exception that nobody asks for


def _waiting(worker: dict[str, Any]) -> Any:
    """Return what a worker holds if it has stopped for lack of memory, or None if it works."""
    metrics = worker["metrics"]
    at_work = ("executing", "long-running", "flight", "cancelled", "resumed")
    if worker["status"] != "paused" or any(metrics["task_counts"].get(state) for state in at_work):
        return None
    return metrics["managed_bytes"], metrics["spilled_bytes"]


# ---- how values are cut ----


def _sides(n: int) -> tuple[int, int]:
    """Return height and width of the matrix of n coefficients: 1 and n if n is not a power of two."""
    height = 1 << (n.bit_length() - 1) // 2 if n & (n - 1) == 0 else 1
    return height, n // height


def _checked_chunks(ring: Ring, batch: tuple[int, ...], chunks: Chunks) -> tuple[tuple[int, ...], ...]:
    """Return the chunks of (*batch, rows, n): rows whole, n whole or in equal parts."""
    shape, complete = (*batch, ring.rows, ring.n), ring._plan.has_four_steps
    largest = _sides(ring.n)[0] if complete else 1  # the most parts
    limit, given = None, chunks
    try:
        if isinstance(chunks, str):
            limit = None if chunks == "auto" else chunks
            size = parse_bytes(limit or dask.config.get("array.chunk-size"))
            parts, one = 1, ring.rows * ring.n * ring.dtype.itemsize
            while one > size * parts and parts < largest:
                parts *= 2
            chunks = *("auto",) * len(batch), ring.rows, ring.n // parts
        if 0 in batch:  # Dask divides by the size of the array to find sizes
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
            f"chunks: {shown(given)} do not fit the shape (*batch, rows, n) = {shape}; give a size or "
            'a tuple of sizes for each axis, such as (64, -1, -1), or one size in bytes, such as "64MiB"'
        ) from None
    if len(sizes[-2]) > 1:
        raise ParameterError(
            f"chunks: {shown(sizes[-2])} of the rows; they stay together, give {ring.rows} or -1"
        )
    parts = len(sizes[-1])
    if parts > 1 and (parts > largest or parts & (parts - 1) or len(set(sizes[-1])) > 1):
        rule = (
            f"into equal parts, a power of two of them and at most {largest}"
            if complete and largest > 1
            else "not at all in this ring, which has no complete transform of 2^k coefficients"
        )
        raise ParameterError(
            f"chunks: {shown(sizes[-1])} of the n = {ring.n} coefficients; they are divided {rule}; "
            "give -1 for one chunk"
        )
    return sizes


def _divided_poly(a: Poly, parts: int) -> BlockedPoly:
    return from_poly(a, chunks=(*("auto",) * a.ndim, -1, a.ring.n // parts))


def _meta(x: Any, more: int = 0, dtype: Any = None) -> Array:
    """Return an empty array by which Dask knows dtype and axes of blocks: those of x, and `more` axes."""
    return np.empty((0,) * (x.ndim + more), dtype or x.dtype)


def _axes_alike(values: Sequence[BlockedPoly]) -> tuple[int, ...]:
    """Return the batch axes, from the right, in which blocks must have equal lengths when they are computed.

    These are axes of several values whose lengths are unknown.

    Raises:
        ParameterError: the batch shapes do not broadcast, or that depends on lengths that are unknown.
    """
    shapes = [x.shape for x in values]
    try:
        np.broadcast_shapes(*(tuple(1 if math.isnan(size) else size for size in shape) for shape in shapes))
    except ValueError:
        raise ParameterError(
            f"batch shapes {', '.join(map(str, shapes))} do not broadcast; index the batch axes, with None "
            "for new ones"
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
    """Raise ParameterError if lengths that were unknown differ; in one block a length of 1 broadcasts."""
    for axis in axes:
        if len({x.shape[axis - tail] for x in blocks}) > 1:
            raise ParameterError(
                "Blocks of two values have different lengths, which were unknown because masks chose them. "
                "Index with the computed masks, x[mask.compute()]."
            )


def _of_blocks(f: Callable[..., Array], *arrays: Any) -> Any:
    """Apply f to the blocks of arrays that broadcast and are cut alike; it keeps the first array's dtype."""
    axes = max(x.ndim for x in arrays)
    pairs = [y for x in arrays for y in (x, range(axes - x.ndim, axes))]
    first = arrays[0]
    meta = np.empty((0,) * axes, first.dtype)
    return da.blockwise(f, range(axes), *pairs, dtype=first.dtype, meta=meta)


# ---- the exchange ----


def _divided_axis(x: Any) -> int:
    """Return the axis that is divided: -1 for blocks of columns, -2 for blocks of rows."""
    return -2 if x.numblocks[-2] > 1 else -1


def _in_columns(x: Any) -> Any:
    return x if _divided_axis(x) == -1 else _exchange(partial(_relaid, -2), -1, x)


def _in_rows(x: Any) -> Any:
    return x if _divided_axis(x) == -2 else _exchange(partial(_relaid, -1), -2, x)


def _exchange(step: Callable[..., Array], axis: int, *matrices: Any) -> Any:
    """Divide matrices along this axis, which are divided along the other, and do a step on the new blocks.

    Each old block is cut into pieces. The step gets the pieces of its new block, a list for each matrix, and
    the numbers of its rows or columns.

    Dask's rechunk(method="p2p") is slower. A product of 2^26 coefficients of 60 bits in 8 parts took 6.5 s
    with it through disk, 4.0 s with it in memory, and 2.2 to 3.0 s in this way, on 2 processes of one host.
    Each process held 0.8 to 1.1 GiB beside the operands in all three cases. It also needs Dask's distributed
    scheduler. The pieces of method="tasks" are views, which keep their blocks in memory.
    """
    pieces = [_cut(x, axis) for x in matrices]
    first = max(pieces, key=lambda x: x.ndim)
    axes = list(range(first.ndim))
    pairs = [y for x in pieces for y in (x, axes[-x.ndim :])]
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
    """Divide a matrix along `axis` as well; it is divided along its other axis already."""
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
    """Copy `size` neighbours along an axis, so that the block can be freed before the piece is used."""
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


# ---- what a task does: NumPy arrays in and out, computed on the worker's device ----


@lru_cache(maxsize=128)
def _kept(ring: Ring) -> Ring:
    """Return one object for equal rings, to keep its tables: each task brings a ring object without any."""
    return ring


@lru_cache(maxsize=128)
def _with_roots(ring: Ring) -> Ring:
    """Return the same ring with given roots: finding them would take each worker as long as a transform."""
    if ring.roots is None:
        return ring
    return Ring(ring.n, ring.moduli, kind=ring.kind, root=ring.roots, product=ring.product)


@lru_cache(maxsize=128)
def _ring_of_parts(ring: Ring, parts: int) -> Ring:
    """Return a ring whose elements are as long as one part, for operations entry by entry."""
    return _with_roots(ring) if parts == 1 else Ring(ring.n // parts, ring.moduli, kind=ring.kind)


@dataclass(frozen=True)
class _Number:
    """An int as an argument of a task. Dask prints arguments; Python prints no int of over 4300 digits."""

    value: int

    def __dask_tokenize__(self) -> Any:
        return "number", hex(self.value)


def _value(ring: Ring, x: Array, domain: Domain, tail: int) -> Poly:
    """Return a block as an element, on the current device."""
    return (
        _kept(ring).from_residues(x.reshape(*x.shape[: x.ndim - tail], ring.rows, ring.n), domain=domain).to()
    )


def _block(a: Poly, like: Array, tail: int) -> Array:
    """Return an element as a block, with the last axes of another."""
    data = a.cpu().data
    return data.reshape(*data.shape[:-2], *like.shape[like.ndim - tail :])


def _unmasked(x: Any) -> Any:
    check_unmasked(x, "x")
    return x


def _residues_of(path: Path, ring: Ring, x: Array) -> Array:
    """Return a block of a file, whose residues must be in [0, q)."""
    if at := first_wrong(ring._plan.basis, x):
        raise _damaged(path, f"in a block, {wrong_residue(ring._plan.basis, x, at)}")
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
    """Multiply evaluated parts, without the tables of their ring."""
    return a._with(pointwise(a.ring._plan.basis, "mul", a.data, b.data))


def _plus_constant(
    ring: Ring, domain: Domain, tail: int, constant: _Number, x: Array, block_id: tuple[int, ...] = ()
) -> Array:
    """Add a constant to a block. In coefficients only the first part changes."""
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
    """Return the ring of parts that are as long as this block's."""
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
    """Return the sums within blocks. Summed axes have length 1, since other blocks have more terms."""
    values = [_value(ring, x, domain, tail) for x, domain in zip(blocks, domains, strict=True)]
    found = _block(functions.einsum(subscripts, *values), blocks[0], tail)
    return found.reshape(*found.shape[:kept], *(1,) * summed, *found.shape[kept:])


def _product_of_blocks(q: int, a: Array, b: Array) -> Array:
    """Multiply a block by the rows of a matrix that it meets; an axis is for the sum over blocks."""
    compute = backend()
    found = linalg.matmul(compute.from_host(np.asarray(a)), compute.from_host(np.ascontiguousarray(b)), q=q)
    return compute.to_host(found)[:, None]


def _sum_of_blocks(q: int, parts: Array) -> Array:
    """Return the sum of residues (m, parts, n) over the parts."""
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
    """Draw a block from the stream. Its neighbouring coefficients are one polynomial of that degree."""
    where = block_info[None]["array-location"]
    shape = tuple(stop - first for first, stop in where)
    out = np.empty(shape, ring.dtype)
    count = shape[-1]  # neighbours
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
            # Not part.random: in the stream of parts numbers reach 2^48 before those of polynomials do.
            backend_for(part._plan.basis, drawn).uniform(part._plan.basis, key, place, drawn)
            out[entry] = compute.to_host(drawn)
    return out


def _number(batch: tuple[int, ...], at: tuple[int, ...], where: Any) -> int:
    """Return the number of a polynomial in the batch, from its place in a block."""
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
    """Transform rows of two operands, multiply them and transform back, in the memory of the larger one."""
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
    """Do one of the four steps, in place, on a block: of rows, or of columns that begin with `first`."""
    ring, compute = _kept(ring), backend()
    plan = _plan(ring, x.shape[-2] if first else ring.n // x.shape[-1])
    with compute.device_scope():
        moved = compute.from_host(x)
        step(plan, moved, *first)
    return compute.to_host(moved)


def _plan(ring: Ring, height: int) -> FourStepPlan:
    assert ring.roots is not None
    return plan_four_step(ring._plan.basis, ring._plan.quotient, ring.roots, height)


# ---- what a collection of Dask becomes ----


def _joined(
    blocks: Any, finish: Callable[..., Array], args: tuple[Any, ...], ring: Ring, domain: Domain, tail: int
) -> Poly:
    """Return the value that all blocks make up, as a Poly."""
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
    """Return the collection of blocks that are computed or under way."""
    return BlockedPoly(ring, rebuild(graph, *args, rename=rename), domain, divided)
