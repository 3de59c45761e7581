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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..arrays import empty
from ..backends import Array, Mark, backend_of, current_device
from ..checks import Domain, integer, shown
from ..errors import DeviceError, DomainError, NotNTTFriendly, ParameterError, RingMismatch
from ..ops import four_step, sampling
from ..ops.pointwise import add_constant, negate, pointwise, scale
from ..ops.sampling import Seed, key_of
from ..plans.cache import keep
from ..plans.four_step import FourStepPlan, plan_four_step
from ..poly import Poly, checked_poly
from ..ring import Ring
from .group import Group, await_all, send

Order = Literal["natural", "transposed"]

_BUFFERS = 3  # slices of a device that are on their way at once
_SLICES = 16  # of the columns of a device: what is computed before the first one travels is a sixteenth
_ROW_SLICES = 4  # of the rows of a device, on the way back: each takes a copy for each slice of columns
_LOG_HEIGHT = 10  # of the columns where n is large: one pass over memory


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


def layout_of(n: int, devices: int, log_height: int | None = None) -> Layout:
    """The layout of degree n, a power of two as the number of devices.

    Raises:
        ParameterError: too few coefficients, or a number of devices that is no power of two.
    """
    if devices & (devices - 1):
        raise ParameterError(f"devices: {devices}, must be a power of two to divide coefficients")
    if n < devices**2:
        raise ParameterError(f"n: {n} coefficients on {devices} devices; divide at least {devices**2}")
    least = devices.bit_length() - 1
    wanted = min(_LOG_HEIGHT, (n.bit_length() - 1) // 2) if log_height is None else log_height
    log_height = min(max(wanted, least), n.bit_length() - 1 - least)
    width = n >> log_height
    return Layout(devices, 1 << log_height, width, min(_SLICES, width // devices))


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
        and the result a device holds three slices.
        """
        if self._domain == "eval":
            return self
        check_transform(self._ring)
        layout, group, plan, numbers = self._layout, self._group, self._plan, range(len(self._group))
        blocks = self._new((*self.shape, self._ring.rows, layout.rows, layout.width))
        slice_shape = (*self.shape, self._ring.rows, layout.height, layout.count)
        depth = min(_BUFFERS, layout.slices)
        buffers = [self._new(slice_shape) for _ in range(depth)]
        ready = [compute.mark() for compute in group.backends]
        free = {(i, k): [ready[i]] for i in numbers for k in range(depth)}
        arrived: dict[tuple[int, int], list[Mark]] = {}

        def bring(part: int) -> None:
            """Natural coefficients of the slices with this number, into free buffers."""
            for i in numbers:
                at, buffer = layout.column(i, part), buffers[part % depth][i]
                arrived[i, part] = [
                    sender.send(
                        self._rows_of(e)[..., at : at + layout.count],
                        layout.rows_of(buffer, e),
                        (ready[e], *free[i, part % depth]),
                    )
                    for e, sender in enumerate(group.backends)
                ]

        natural = self._order == "natural"
        for part in range(depth if natural else 0):
            bring(part)
        steps = self._twiddles(1)
        kept = []  # to the end: who gets this memory then comes after all that reads it
        for part in range(layout.slices):
            for i in group.each():
                compute, at, buffer = group.backends[i], layout.column(i, part), buffers[part % depth][i]
                compute.await_marks(arrived.pop((i, part)) if natural else free[i, part % depth])
                source = buffer if natural else self._data[i][part]
                four_step.transform_columns(plan, source, buffer, compute.ntt)
                starts = four_step.twiddles(plan, compute, at)
                kept.append(starts)
                moves = []
                for e in numbers:
                    x, place = layout.rows_of(buffer, e), blocks[e][..., at : at + layout.count]
                    near = group.names[e] == group.names[i]
                    four_step.twist(plan, x, e * layout.rows, starts, steps[i], place if near else x)
                    if not near:
                        moves.append((x, place, ready[e]))
                done = compute.mark()
                free[i, part % depth] = [done, *(compute.send(x, y, (done, mark)) for x, y, mark in moves)]
            if natural and part + depth < layout.slices:
                bring(part + depth)
        await_all(group.backends, (mark for marks in free.values() for mark in marks))
        for i in group.each():
            four_step.forward_rows(plan, blocks[i])
        return self._result(tuple(x.reshape(*x.shape[:-2], -1) for x in blocks), "eval", "natural")

    def intt(self, order: Order = "transposed") -> Divided:
        """In coefficients of this order; the inverse of ntt().

        Cost: as of ntt(), but for memory: beside operand and result a device holds as much as the operand.
        """
        check_order(order)
        if self._domain == "coef":
            return self.reorder(order)
        layout, group, plan, numbers = self._layout, self._group, self._plan, range(len(self._group))
        columns = self._new((layout.slices, *self.shape, self._ring.rows, layout.height, layout.count))
        ready = [compute.mark() for compute in group.backends]
        parts = min(_ROW_SLICES, layout.rows)
        size, own = layout.rows // parts, layout.width // layout.devices
        steps, starts = self._twiddles(-1), [self._twiddles(-e * own) for e in numbers]
        kept, sent = list[Array](), list[Mark]()
        for part in range(parts):
            for i in group.each():
                compute, rows = group.backends[i], self._rows_of(i)[..., part * size : (part + 1) * size, :]
                buffer, first = self._empty(i, rows.shape), i * layout.rows + part * size
                kept.append(buffer)
                four_step.transform_rows(plan, rows, buffer, compute.intt)
                moves = []
                for e in numbers:
                    x, place = buffer[..., e * own : (e + 1) * own], columns[e][..., first : first + size, :]
                    near = group.names[e] == group.names[i]
                    out = place.transpose(*range(1, place.ndim - 1), 0, place.ndim - 1) if near else x
                    four_step.twist(plan, x, first, starts[e][i], steps[i], out)
                    if not near:
                        moves.append((layout.slices_of(x), place, ready[e]))
                done = compute.mark()
                sent += [done, *(compute.send(x, y, (done, mark)) for x, y, mark in moves)]
        await_all(group.backends, sent)
        for s in range(layout.slices):
            for i in group.each():
                four_step.transform_columns(plan, columns[i][s], columns[i][s], group.backends[i].intt)
        return self._result(tuple(columns), "coef", "transposed").reorder(order)

    def _twiddles(self, power: int) -> list[list[Array]]:
        """Twiddles of all rows to a power, on each device."""
        found = []
        for i in self._group.each():
            found.append(four_step.twiddles(self._plan, self._group.backends[i], power))
        return found

    def reorder(self, order: Order) -> Divided:
        """The coefficients in natural or transposed order; itself where they are. One exchange.

        Raises: DomainError for evaluated values, whose order is the ring's.
        """
        check_order(order)
        if self._domain == "eval":
            raise DomainError("reorder: an evaluated value, which is in the ring's order; intt(order) first")
        if order == self._order:
            return self
        layout, pairs = self._layout, list[tuple[Array, Array]]()
        limbs = self._ring.rows
        if order == "natural":
            made = self._new((*self.shape, limbs, layout.rows, layout.width))
        else:
            made = self._new((layout.slices, *self.shape, limbs, layout.height, layout.count))
        for i in range(len(self._group)):
            for s in range(layout.slices):
                at = layout.column(i, s)
                columns = (self._data if order == "natural" else made)[i][s]
                for e in range(len(self._group)):
                    block = made[e] if order == "natural" else self._rows_of(e)
                    run = block[..., at : at + layout.count]
                    stack = layout.rows_of(columns, e)
                    pairs.append((stack, run) if order == "natural" else (run, stack))
        send(pairs)
        data = [x.reshape(*x.shape[:-2], -1) for x in made] if order == "natural" else made
        return self._result(tuple(data), "coef", order)

    def _rows_of(self, i: int) -> Array:
        """The run of device i as rows of the matrix, a view."""
        x = self._data[i]
        return x.reshape(*x.shape[:-1], self._layout.rows, self._layout.width)

    def _empty(self, i: int, shape: tuple[int, ...]) -> Array:
        with self._group.on(i) as compute:
            return empty(compute, shape, self._ring.dtype)

    def _new(self, shape: tuple[int, ...]) -> list[Array]:
        """An array of this shape on each device."""
        return [self._empty(i, shape) for i in range(len(self._group))]

    def _result(self, data: tuple[Array, ...], domain: Domain, order: Order) -> Divided:
        return Divided(self._group, self._ring, self._layout, data, domain, order)

    # ---- arithmetic ----

    def __add__(self, other: Divided | int) -> Divided:
        return self._constant(other, 1) if not isinstance(other, Divided) else self._with("add", other)

    def __sub__(self, other: Divided | int) -> Divided:
        return self._constant(other, -1) if not isinstance(other, Divided) else self._with("sub", other)

    def __mul__(self, other: Divided | int) -> Divided:
        if not isinstance(other, Divided):
            factor = self._int(other)
            return self._each(lambda x: scale(self._ring.basis, x, factor))
        self._check(other)
        a = self.ntt()
        product = a._with("mul", a if other is self else other.ntt())
        return product if "eval" in (self._domain, other._domain) else product.intt(self._order)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: int) -> Divided:
        return -self + other

    def __neg__(self) -> Divided:
        return self._each(lambda x: negate(self._ring.basis, x))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Divided):
            return NotImplemented
        a, b = self._alike(other)
        found = []
        for i in self._group.each():
            same = a._data[i].shape == b._data[i].shape and bool((a._data[i] == b._data[i]).all())
            found.append(same)
        return all(found)

    def _alike(self, other: Divided) -> tuple[Divided, Divided]:
        """Both in one domain and order."""
        self._check(other)
        if "eval" in (self._domain, other._domain):
            return self.ntt(), other.ntt()
        return self, other.reorder(self._order)

    def _check(self, other: Divided) -> None:
        if other._ring != self._ring:
            raise RingMismatch(f"operands of different rings: {self._ring!r} and {other._ring!r}")
        if other._group != self._group or other._layout != self._layout:
            raise DeviceError(f"operand: on {list(other.devices)}, must be on {list(self.devices)}")

    def _with(self, op: Any, other: Divided) -> Divided:
        a, b = self._alike(other)
        if len(a.shape) != len(b.shape):
            raise ParameterError(f"operands of batch shapes {a.shape} and {b.shape} must have as many axes")
        found = []
        for i in self._group.each():
            x, y = a._flat(a._data[i]), b._flat(b._data[i])
            found.append(a._unflat(pointwise(self._ring.basis, op, x, y)))
        return a._result(tuple(found), a._domain, a._order)

    def _each(self, f: Callable[[Array], Array]) -> Divided:
        found = []
        for i in self._group.each():
            found.append(self._unflat(f(self._flat(self._data[i]))))
        return self._result(tuple(found), self._domain, self._order)

    def _flat(self, x: Array) -> Array:
        """(..., limbs, entries): columns are laid behind each other."""
        return x if self._order == "natural" else x.reshape(*x.shape[:-2], -1)

    def _unflat(self, x: Array) -> Array:
        return x if self._order == "natural" else x.reshape(*x.shape[:-1], self._layout.height, -1)

    def _int(self, x: object) -> int:
        if isinstance(x, Poly):
            raise DeviceError("operand: a Poly lies on one device; divide it before: devices.divide(x)")
        return integer(x, "operand")

    def _constant(self, other: object, sign: int) -> Divided:
        """The value plus a constant of the ring."""
        value, basis = sign * self._int(other), self._ring.basis
        if self._domain == "eval":
            return self._each(lambda x: add_constant(basis, x, value, 1))
        data = list(self._data)
        with self._group.on(0):
            x = data[0].copy()
            first = x if self._order == "natural" else self._flat(x[:1])
            add_constant(basis, first, value, first.shape[-1], first)
        return self._result((x, *data[1:]), "coef", self._order)

    # ---- back on one device ----

    def gather(self, device: str | None = None) -> Poly:
        """The whole on one device, by default the current one.

        Raises:
            DeviceError, BackendUnavailable: no such device.
            OutOfHostMemory, OutOfDeviceMemory: it does not fit.
        """
        target = Group([current_device() if device is None else device])
        layout, limbs = self._layout, self._ring.rows
        with target.on(0) as compute:
            data = empty(compute, (*self.shape, limbs, self._ring.n), self._ring.dtype)
        whole, size = data.reshape(*self.shape, limbs, layout.height, layout.width), layout.rows
        for i in range(len(self._group)):
            if self._order == "natural":
                _copy(self._rows_of(i), whole[..., i * size : (i + 1) * size, :])
                continue
            for s in range(layout.slices):
                at = layout.column(i, s)
                _copy(self._data[i][s], whole[..., at : at + layout.count])
        return Poly._wrap(self._ring, data, self._domain)


def _copy(x: Array, target: Array) -> None:
    """The values of x into an array of any device."""
    source, to = backend_of(x), backend_of(target)
    if source.xp is to.xp:
        send([(x, target)])
        return
    values = source.to_host(x)
    with to.device_scope():
        target[...] = values if to.xp is np else to.from_host(np.ascontiguousarray(values))


def check_order(order: object) -> None:
    """Raise ParameterError for another word."""
    if order not in ("natural", "transposed"):
        raise ParameterError(f"order: {order!r} must be 'natural' or 'transposed'")


def check_transform(ring: Ring) -> None:
    """Raise NotNTTFriendly where a ring has no complete transform modulo words."""
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
    layout = layout_of(x.ring.n, len(group), log_height)
    if x.domain == "eval":
        order = "natural"
    whole = x.data.reshape(*x.data.shape[:-1], layout.height, layout.width)
    data = []
    for i in range(len(group)):
        if order == "natural":
            rows = whole[..., i * layout.rows : (i + 1) * layout.rows, :]
            data.append(group.place(rows, i).reshape(*x.data.shape[:-1], -1))
            continue
        shape = (layout.slices, *x.data.shape[:-1], layout.height, layout.count)
        with group.on(i) as compute:
            made = empty(compute, shape, x.ring.dtype)
        for s in range(layout.slices):
            at = layout.column(i, s)
            _copy(whole[..., at : at + layout.count], made[s])
        data.append(made)
    return Divided(group, x.ring, layout, tuple(data), x.domain, order)


def uniform(
    group: Group, ring: Ring, seed: Seed, start: int, order: Order, log_height: int | None
) -> Divided:
    """See Devices.random: each device draws its run of the stream."""
    check_order(order)
    check_transform(ring)
    count = len(group)
    layout = layout_of(ring.n, count, log_height)
    first = integer(start, "start")
    if first < 0 or first >> 40:
        raise ParameterError(f"start: {shown(first)} must be at least 0 and below 2**40")
    if seed is None:
        seed = key_of(None)
    data = []
    for i in group.each():
        data.append(sampling.uniform(ring.basis, ring.n // count, (), seed, first * count + i))
    return Divided(group, ring, layout, tuple(data), "coef", "natural").reorder(order)
