"""Divided: polynomials whose coefficients are divided among devices, and their transform in four steps.

The n = height * width coefficients are a matrix, row by row (plans/four_step.py). Device d of D holds

    natural      rows from d height / D on: (*batch, limbs, n / D), a run of coefficients or values
    transposed   columns: (slices, *batch, limbs, height, count); slice s has `count` columns, from number
                 (d slices + s) count on

A transform works on columns, then on rows, with one exchange between them. While a slice travels, the next
one is computed. Natural coefficients take one exchange more, before. Source: Bailey 1990, "FFTs in external
or hierarchical memory".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from ..backends import Array, Mark, Op, current_device
from ..checks import Domain, integer, shown
from ..errors import DeviceError, DomainError, NotNTTFriendly, ParameterError, RingMismatch
from ..ops import four_step, sampling
from ..ops.batch import result_shape
from ..ops.pointwise import add_constant, negate, pointwise, scale
from ..ops.sampling import Seed, key_of
from ..plans.cache import keep
from ..plans.four_step import FourStepPlan, plan_four_step
from ..poly import Poly, checked_poly
from ..ring import Ring
from .group import Group, Transfers, copy
from .spread import Spread

Order = Literal["natural", "transposed"]

_BUFFERS = 3  # slices of a device that are on their way at once
_SLICES = 16  # of the columns of a device: what is computed before the first one travels is a sixteenth
_ROW_SLICES = 4  # of the rows of a device: on the way back each takes a copy for each slice of columns
_LOG_HEIGHT = 14  # of the columns where n is large
_LOG_WIDTH = 12  # of rows with tables of their own: one pass over memory


@dataclass(frozen=True)
class Layout:
    """How the coefficients of a polynomial are divided among devices."""

    devices: int
    height: int
    width: int
    slices: int  # of the columns of a device

    @property
    def count(self) -> int:
        """Columns of a slice."""
        return self.width // (self.devices * self.slices)

    @property
    def rows(self) -> int:
        """Rows of a device."""
        return self.height // self.devices

    @property
    def row_slices(self) -> int:
        """Parts of the rows of a device."""
        return min(_ROW_SLICES, self.rows)

    def column(self, device: int, part: int) -> int:
        """The first column of a slice."""
        return (device * self.slices + part) * self.count

    def rows_of(self, columns: Array, device: int) -> Array:
        """The rows of a device in some columns, (..., height, count)."""
        return columns[..., device * self.rows : (device + 1) * self.rows, :]

    def slices_of(self, x: Array) -> Array:
        """(..., rows, width / devices), columns of a device, as slices (slices, ..., rows, count)."""
        split = x.reshape(*x.shape[:-1], self.slices, self.count)
        return split.transpose(split.ndim - 2, *range(split.ndim - 2), split.ndim - 1)


def layout_of(n: int, devices: int, log_height: int | None = None, tables: bool = False) -> Layout:
    """The layout of degree n, a power of two as the number of devices.

    tables: whether rows are transformed with tables of theirs. Then columns are long and rows short: nothing
    is multiplied between them, and the exchange takes as long as two passes over columns do.

    Raises:
        ParameterError: too few coefficients, or a number of devices that is no power of two.
    """
    if devices & (devices - 1):
        raise ParameterError(f"devices: {devices}, must be a power of two to divide coefficients")
    if n < devices**2:
        raise ParameterError(f"n: {n} coefficients on {devices} devices; divide at least {devices**2}")
    least, most = devices.bit_length() - 1, n.bit_length() - devices.bit_length()
    if log_height is None:
        half = (n.bit_length() - 1) // 2
        chosen = max(half, n.bit_length() - 1 - _LOG_WIDTH) if tables else min(half, _LOG_HEIGHT)
        chosen = min(max(chosen, least), most)
    else:
        chosen = integer(log_height, "log_height")
        if not least <= chosen <= most:
            raise ParameterError(
                f"log_height: {shown(chosen)} must be from {least} to {most} for {n} coefficients on "
                f"{devices} devices"
            )
    width = n >> chosen
    return Layout(devices, 1 << chosen, width, min(_SLICES, width // devices))


def has_tables(group: Group, ring: Ring) -> bool:
    """Whether rows are transformed with tables of their own; else twiddles lie between columns and rows."""
    size, itemsize = ring.rows * ring.n // len(group), ring.dtype.itemsize
    return all(backend.prefers_tables(size, itemsize) for backend in group.backends)


class Divided:
    """Polynomials of one ring whose coefficients are divided among devices; Devices.divide makes them.

    Operators have the rules of Poly: coefficients times coefficients give coefficients, mixed domains "eval".
    Evaluated values are in the order of the ring. Coefficients are in natural order, or transposed, which
    spares each transform an exchange. Results have the order of the first operand.
    """

    __slots__ = ("_data", "_domain", "_group", "_layout", "_order", "_ring")
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, group: Group, ring: Ring, layout: Layout, data: tuple[Array, ...], domain: Domain, order: Order
    ) -> None:
        self._group, self._ring, self._layout = group, ring, layout
        self._data, self._domain, self._order = data, domain, order

    @property
    def ring(self) -> Ring:
        """The ring."""
        return self._ring

    @property
    def domain(self) -> Domain:
        """ "coef" or "eval"."""
        return self._domain

    @property
    def order(self) -> Order:
        """ "natural" or "transposed"; of evaluated values "natural", each device has a run of them."""
        return self._order

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices."""
        return self._group.names

    @property
    def data(self) -> tuple[Array, ...]:
        """The residues of each device, shared: runs (*batch, rows, n / devices), or slices of columns."""
        return self._data

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch shape."""
        shape: tuple[int, ...] = self._data[0].shape
        return shape[:-2] if self._order == "natural" else shape[1:-3]

    def __repr__(self) -> str:
        return (
            f"Divided(n={self._ring.n}, domain={self._domain}, shape={self.shape}, order={self._order}, "
            f"devices={list(self.devices)})"
        )

    # ---- transforms ----

    @property
    def _plan(self) -> FourStepPlan:
        ring, layout = self._ring, self._layout
        key = "four steps", layout.height
        plan = ring.conversions.get(key)
        if plan is None:
            assert ring.roots is not None
            made = plan_four_step(ring.basis, ring.kind, ring.roots, layout.height, layout.width)
            plan = keep(ring.conversions, key, made, 128)
        return plan  # type: ignore[no-any-return]

    def ntt(self) -> Divided:
        """In the evaluation domain, in the ring's order; itself where it is there.

        Cost: a transform of n / devices coefficients and their twiddles on each device; one exchange of
        transposed coefficients, two of natural ones, while slices are computed. The operand stays. Beside it
        and the result a device holds three slices. Items of a batch are transformed one after the other.
        """
        if self._domain == "eval":
            return self
        check_transform(self._ring)
        tables = has_tables(self._group, self._ring)
        blocks = self._forward_columns(tables)

        def transform(i: int) -> None:
            if not tables:
                four_step.forward_rows(self._plan, blocks[i])
                return
            for first, rows in self._row_parts(blocks[i], i):
                four_step.transform_below(self._plan, rows, first, rows, self._group.backends[i].ntt)

        self._group.each(transform)
        return self._result([self._run(x) for x in blocks], "eval", "natural")

    def _row_parts(self, rows: Array, i: int) -> Iterator[tuple[int, Array]]:
        """Some of the rows of device i after the other, and the number of the first of them."""
        size = self._layout.rows // self._layout.row_slices
        for part in range(self._layout.row_slices):
            at = part * size
            yield i * self._layout.rows + at, rows[..., at : at + size, :]

    def _forward_columns(self, tables: bool) -> list[Array]:
        """What rows are transformed of, by device, (*batch, limbs, rows, width)."""
        layout, group, plan, numbers = self._layout, self._group, self._plan, range(len(self._group))
        natural, depth = self._order == "natural", min(_BUFFERS, self._layout.slices)
        blocks = self._new_rows()
        buffers = [self._new((*self._items, layout.height, layout.count)) for _ in range(depth)]
        steps = [] if tables else self._twiddles(1)
        apart = tables and 1 << plan.levels_above >= max(2, layout.devices)
        with Transfers(group.backends) as transfers:
            free: dict[tuple[int, int], list[Mark]] = {(i, k): [] for i in numbers for k in range(depth)}
            arrived: dict[tuple[int, int], list[Mark]] = {}

            def bring(part: int) -> None:
                """Natural coefficients of the slices with this number, into free buffers."""
                for i in numbers:
                    at, buffer = layout.column(i, part), buffers[part % depth][i]
                    arrived[i, part] = [
                        transfers.send(
                            self._rows_of(e)[..., at : at + layout.count],
                            layout.rows_of(buffer, e),
                            free[i, part % depth],
                        )
                        for e in numbers
                    ]

            def transform(i: int, part: int) -> None:
                """A slice of device i, and its rows on their way to their devices."""
                compute, at, buffer = group.backends[i], layout.column(i, part), buffers[part % depth][i]
                compute.await_marks(arrived.pop((i, part)) if natural else free[i, part % depth])
                source = buffer if natural else self._data[i][part]
                moves = [(layout.rows_of(buffer, e), blocks[e][..., at : at + layout.count]) for e in numbers]
                near = [group.names[e] == group.names[i] for e in numbers]
                if apart:
                    ends = [place if is_near else x for (x, place), is_near in zip(moves, near, strict=True)]
                    four_step.transform_columns_apart(plan, source, buffer, ends, compute.ntt)
                else:
                    four_step.transform_columns(plan, source, buffer, compute.ntt, tables)
                if not tables:
                    starts = four_step.twiddles(plan, compute, at)
                    for e, (x, place) in enumerate(moves):
                        four_step.twist(plan, x, e * layout.rows, starts, steps[i], place if near[e] else x)
                if apart or not tables:
                    moves = [move for move, is_near in zip(moves, near, strict=True) if not is_near]
                done = compute.mark()
                free[i, part % depth] = [done, *(transfers.send(x, place, [done]) for x, place in moves)]

            for part in range(depth if natural else 0):
                bring(part)
            for part in range(layout.slices):
                group.each(partial(transform, part=part))
                if natural and part + depth < layout.slices:
                    bring(part + depth)
        return blocks

    def intt(self, order: Order = "transposed") -> Divided:
        """In coefficients of this order; the inverse of ntt().

        Cost: as of ntt(), but for memory: beside operand and result a device holds as much as the operand.
        """
        check_order(order)
        if self._domain == "coef":
            return self.reorder(order)
        tables = has_tables(self._group, self._ring)
        columns = self._inverse_rows(tables)

        def transform(i: int) -> None:
            for x in columns[i]:
                four_step.transform_columns(self._plan, x, x, self._group.backends[i].intt, tables)

        self._group.each(transform)
        return self._result(columns, "coef", "transposed").reorder(order)

    def _inverse_rows(self, tables: bool) -> list[Array]:
        """What columns are transformed back of, by device, (slices, *batch, limbs, height, count)."""
        layout, group, plan, numbers = self._layout, self._group, self._plan, range(len(self._group))
        columns = self._new_columns()
        parts, own = layout.row_slices, layout.width // layout.devices
        size = layout.rows // parts
        buffers = [self._new((*self._items, size, layout.width)) for _ in range(parts)]
        powers = [] if tables else [self._twiddles(-1), *(self._twiddles(-e * own) for e in numbers)]
        sources = [list(self._row_parts(self._rows_of(i), i)) for i in numbers]
        with Transfers(group.backends) as transfers:

            def transform(i: int, part: int) -> None:
                """Some rows of device i, and their columns on their way to their devices."""
                compute, buffer, (first, rows) = group.backends[i], buffers[part][i], sources[i][part]
                if tables:
                    four_step.transform_below(plan, rows, first, buffer, compute.intt)
                else:
                    four_step.transform_rows(plan, rows, buffer, compute.intt)
                moves = []
                for e in numbers:
                    x, place = buffer[..., e * own : (e + 1) * own], columns[e][..., first : first + size, :]
                    near = group.names[e] == group.names[i]
                    if not tables:
                        out = place.transpose(*range(1, place.ndim - 1), 0, place.ndim - 1) if near else x
                        steps, *starts = powers
                        four_step.twist(plan, x, first, starts[e][i], steps[i], out)
                    if tables or not near:
                        moves.append((layout.slices_of(x), place))
                done = compute.mark()
                for x, place in moves:
                    transfers.send(x, place, [done])

            for part in range(parts):
                group.each(partial(transform, part=part))
        return columns

    def _twiddles(self, power: int) -> list[list[Array]]:
        """Twiddles of all rows to a power, on each device."""
        return self._group.each(lambda i: four_step.twiddles(self._plan, self._group.backends[i], power))

    def reorder(self, order: Order) -> Divided:
        """The coefficients in natural or transposed order; itself where they are. One exchange.

        Raises: DomainError for evaluated values, whose order is the ring's.
        """
        check_order(order)
        if self._domain == "eval":
            raise DomainError("reorder: an evaluated value, which is in the ring's order; intt(order) first")
        if order == self._order:
            return self
        layout, pairs, natural = self._layout, list[tuple[Array, Array]](), order == "natural"
        made = self._new_rows() if natural else self._new_columns()
        for i in range(len(self._group)):
            for s in range(layout.slices):
                at, columns = layout.column(i, s), (self._data if natural else made)[i][s]
                for e in range(len(self._group)):
                    run = (made[e] if natural else self._rows_of(e))[..., at : at + layout.count]
                    stack = layout.rows_of(columns, e)
                    pairs.append((stack, run) if natural else (run, stack))
        copy(pairs)
        return self._result([self._run(x) for x in made] if natural else made, "coef", order)

    @property
    def _items(self) -> tuple[int, ...]:
        """Shape of the axes before the matrix."""
        return (*self.shape, self._ring.rows)

    def _rows_of(self, i: int) -> Array:
        """The run of device i as rows of the matrix, a view."""
        return self._data[i].reshape(*self._items, self._layout.rows, self._layout.width)

    def _run(self, x: Array) -> Array:
        """Rows of the matrix, behind each other."""
        return x.reshape(*self._items, self._layout.rows * self._layout.width)

    def _new(self, shape: tuple[int, ...]) -> list[Array]:
        return self._group.empty(shape, self._ring.dtype)

    def _new_rows(self) -> list[Array]:
        return self._new((*self._items, self._layout.rows, self._layout.width))

    def _new_columns(self) -> list[Array]:
        return self._new((self._layout.slices, *self._items, self._layout.height, self._layout.count))

    def _result(self, data: Sequence[Array], domain: Domain, order: Order) -> Divided:
        return Divided(self._group, self._ring, self._layout, tuple(data), domain, order)

    # ---- arithmetic ----

    def __add__(self, other: Divided | int) -> Divided:
        return self._with("add", other) if isinstance(other, Divided) else self._plus(self._int(other))

    def __sub__(self, other: Divided | int) -> Divided:
        return self._with("sub", other) if isinstance(other, Divided) else self._plus(-self._int(other))

    def __mul__(self, other: Divided | int) -> Divided:
        """The product in the ring. Cost: three transforms, and the evaluated operands in memory."""
        if not isinstance(other, Divided):
            factor = self._int(other)
            return self._each(lambda x: scale(self._ring.basis, x, factor))
        self._check(other)
        a = self.ntt()
        product = a._with("mul", a if other is self else other.ntt())
        if "eval" in (self._domain, other._domain):
            return product
        del a
        return product.intt(self._order)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: int) -> Divided:
        return -self + other

    def __neg__(self) -> Divided:
        return self._each(lambda x: negate(self._ring.basis, x))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Poly):
            self._int(other)  # raises: one of both has to be moved
        if isinstance(other, int) and not isinstance(other, bool):
            rest = self - other
            return not any(map(bool, self._group.each(lambda i: rest._data[i].any())))
        if not isinstance(other, Divided):
            return NotImplemented
        if other._ring != self._ring or other.shape != self.shape:
            return False
        a, b = self._alike(other)
        return all(map(bool, self._group.each(lambda i: (a._data[i] == b._data[i]).all())))

    def _alike(self, other: Divided) -> tuple[Divided, Divided]:
        """Both in one domain and order."""
        self._check(other)
        if "eval" in (self._domain, other._domain):
            return self.ntt(), other.ntt()
        return self, other.reorder(self._order)

    def _check(self, other: Divided) -> None:
        if other._ring != self._ring:
            raise RingMismatch(f"operands of different rings: {self._ring!r} and {other._ring!r}")
        if other._group != self._group:
            raise DeviceError(f"operand: on {list(other.devices)}, must be on {list(self.devices)}")
        if other._layout != self._layout:
            raise ParameterError(
                f"operand: in columns of {other._layout.height} coefficients, the other in columns of "
                f"{self._layout.height}; divide both with one log_height"
            )
        if len(other.shape) != len(self.shape):
            raise ParameterError(
                f"operands of batch shapes {self.shape} and {other.shape} must have as many axes; reshape "
                "before dividing"
            )
        result_shape(np.empty((*self.shape, 0, 0)), np.empty((*other.shape, 0, 0)))

    def _with(self, op: Op, other: Divided) -> Divided:
        a, b = self._alike(other)

        def compute(i: int) -> Array:
            x, y = a._flat(a._data[i]), b._flat(b._data[i])
            return a._unflat(pointwise(self._ring.basis, op, x, y))

        return a._result(self._group.each(compute), a._domain, a._order)

    def _each(self, f: Callable[[Array], Array]) -> Divided:
        found = self._group.each(lambda i: self._unflat(f(self._flat(self._data[i]))))
        return self._result(found, self._domain, self._order)

    def _flat(self, x: Array) -> Array:
        """(..., limbs, entries): columns are laid behind each other."""
        if self._order == "natural":
            return x
        return x.reshape(*x.shape[:-2], self._layout.height * self._layout.count)

    def _unflat(self, x: Array) -> Array:
        if self._order == "natural":
            return x
        return x.reshape(*x.shape[:-1], self._layout.height, self._layout.count)

    def _int(self, x: object) -> int:
        if isinstance(x, (Poly, Spread)):
            how = "lies on one device" if isinstance(x, Poly) else f"is divided by {x.axis}"
            raise DeviceError(f"operand: a {type(x).__name__} {how}; divide it before: devices.divide(x)")
        return integer(x, "operand")

    def _plus(self, constant: int) -> Divided:
        """The value plus a constant of the ring."""
        basis = self._ring.basis
        if self._domain == "eval":
            return self._each(lambda x: add_constant(basis, x, constant, 1))
        data = list(self._data)
        with self._group.on(0):
            data[0] = data[0].copy()
            first = data[0] if self._order == "natural" else self._flat(data[0][:1])
            add_constant(basis, first, constant, first.shape[-1], first)
        return self._result(data, "coef", self._order)

    # ---- back on one device ----

    def gather(self, device: str | None = None) -> Poly:
        """The whole on one device, by default the current one.

        Raises:
            DeviceError, BackendUnavailable: no such device.
            OutOfHostMemory, OutOfDeviceMemory: it does not fit.
        """
        target = Group([current_device() if device is None else device])
        layout = self._layout
        (data,) = target.empty((*self._items, self._ring.n), self._ring.dtype)
        whole, pairs = data.reshape(*self._items, layout.height, layout.width), []
        for i in range(len(self._group)):
            if self._order == "natural":
                pairs.append((self._rows_of(i), whole[..., i * layout.rows : (i + 1) * layout.rows, :]))
                continue
            for s in range(layout.slices):
                at = layout.column(i, s)
                pairs.append((self._data[i][s], whole[..., at : at + layout.count]))
        copy(pairs)
        return Poly._wrap(self._ring, data, self._domain)


def check_order(order: object) -> None:
    """Raise ParameterError for another word."""
    if order not in ("natural", "transposed"):
        raise ParameterError(f"order: {order!r} must be 'natural' or 'transposed'")


def check_transform(ring: object) -> None:
    """Raise NotNTTFriendly where a ring has no complete transform modulo words."""
    if not isinstance(ring, Ring):
        raise ParameterError(f"ring: {type(ring).__name__}, must be a Ring")
    if ring.leaf_size != 1 or ring.basis.wide:
        raise NotNTTFriendly(
            f"{ring!r} has no complete transform modulo primes below 2**64, which divided coefficients need; "
            "divide a batch by devices.spread instead"
        )


def divide(group: Group, x: Poly, order: Order, log_height: int | None = None) -> Divided:
    """See Devices.divide."""
    checked_poly(x, "x")
    check_order(order)
    check_transform(x.ring)
    layout = layout_of(x.ring.n, len(group), log_height, has_tables(group, x.ring))
    items = x.data.shape[:-1]
    whole = x.data.reshape(*items, layout.height, layout.width)
    if order == "natural" or x.domain == "eval":
        runs = [
            group.place(whole[..., i * layout.rows : (i + 1) * layout.rows, :], i) for i in range(len(group))
        ]
        data = [run.reshape(*items, layout.rows * layout.width) for run in runs]
        return Divided(group, x.ring, layout, tuple(data), x.domain, "natural")
    data = group.empty((layout.slices, *items, layout.height, layout.count), x.ring.dtype)
    places = [(i, s) for i in range(len(group)) for s in range(layout.slices)]
    columns = [layout.column(i, s) for i, s in places]
    copy((whole[..., at : at + layout.count], data[i][s]) for at, (i, s) in zip(columns, places, strict=True))
    return Divided(group, x.ring, layout, tuple(data), x.domain, "transposed")


def uniform(
    group: Group, ring: Ring, seed: Seed, start: int, order: Order, log_height: int | None
) -> Divided:
    """See Devices.random: each device draws its run of the stream."""
    check_order(order)
    check_transform(ring)
    count = len(group)
    layout = layout_of(ring.n, count, log_height, has_tables(group, ring))
    first = integer(start, "start")
    if first < 0 or first >> 40:
        raise ParameterError(f"start: {shown(first)} must be at least 0 and below 2**40")
    if seed is None:
        seed = key_of(None)
    size = ring.n // count
    data = group.each(lambda i: sampling.uniform(ring.basis, size, (), seed, first * count + i))
    return Divided(group, ring, layout, tuple(data), "coef", "natural").reorder(order)
