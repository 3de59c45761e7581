"""Divided: polynomials whose coefficients are divided among devices, and their transform in four steps.

The n = height * width coefficients form a matrix, row by row (_core/plans/four_step.py). Of D devices, device
number d holds

    natural      height / D rows, beginning with row d * height / D: an array (*batch, limbs, n / D), which is
                 a run of neighbouring coefficients or values
    transposed   width / D columns, cut into slices: an array (slices, *batch, limbs, height, count), whose
                 slice s has `count` columns, beginning with column (d * slices + s) * count

A transform works on columns, then exchanges entries, then works on rows. In an exchange, every device sends a
part of its entries to every other device. For coefficients in natural order, another exchange comes first.
While one slice is copied, the next slice is computed. Source: Bailey 1990, "FFTs in external or hierarchical
memory".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from .._backends import Array, Mark, Op, current_device
from .._core.checks import Domain, integer, shown
from .._core.plans.cache import keep
from .._core.plans.four_step import FourStepPlan, plan_four_step
from .._ops import four_step, sampling
from .._ops.arrays import NotAnArray, refuse_array
from .._ops.pointwise import add_constant, neg, pointwise, scale
from .._ops.results import result_shape
from .._ops.sampling import Seed, key_of
from ..errors import DeviceError, DomainError, NotNTTFriendly, ParameterError, RingMismatch
from ..poly import Poly, checked_poly
from ..ring import Ring
from .group import Group, Transfers, copy
from .spread import Spread

Order = Literal["natural", "transposed"]

_BUFFERS = 3  # number of a device's slices that are computed or copied at the same time
# Largest number of slices of a device's columns. With 16, copies begin when 1/16 of the columns is computed.
_SLICES = 16
# Largest number of slices of a device's columns if coefficients are in natural order. With more slices, the
# exchange before the transform would copy runs that are too short.
_NATURAL_SLICES = 8
# Largest number of slices of a device's rows. In intt() the number of copies is the number of slices of rows
# times the number of slices of columns.
_ROW_SLICES = 4
# If a device's columns are cut into slices, a slice has at least _SLICE * (number of devices) residues. With
# smaller slices, the devices would compute faster than the host queues their work.
_SLICE = 2**24
_LOG_HEIGHT = 14  # largest log2 of the height that layout_of chooses if rows are multiplied by twiddles
_LOG_WIDTH = 12  # largest log2 of the width if each row has its own table; such rows need only one pass


@dataclass(frozen=True)
class Layout:
    """Layout of the coefficients of a polynomial on devices: a matrix of height x width, cut into slices.

    >>> layout = layout_of(64, devices=2, log_height=3)
    >>> layout.rows, layout.slices, layout.count, layout.column(device=1, part=0)
    (4, 1, 4, 4)
    """

    devices: int
    height: int
    width: int
    slices: int  # number of slices into which a device's columns are cut

    @property
    def count(self) -> int:
        """Number of columns in a slice."""
        return self.width // (self.devices * self.slices)

    @property
    def rows(self) -> int:
        """Number of rows on a device."""
        return self.height // self.devices

    @property
    def row_slices(self) -> int:
        """Number of slices of a device's rows."""
        return min(_ROW_SLICES, self.slices, self.rows)

    def column(self, device: int, part: int) -> int:
        """Return the index of the first column in slice `part` of a device."""
        return (device * self.slices + part) * self.count

    def rows_of(self, columns: Array, device: int) -> Array:
        """Return a view of the entries of `columns` (..., height, count) that are in the rows of `device`."""
        return columns[..., device * self.rows : (device + 1) * self.rows, :]

    def shared(
        self, columns: Array, rows: Sequence[Array], device: int, part: int
    ) -> list[tuple[Array, Array]]:
        """Return views of the entries that slice `part` of a device has in common with each device's rows.

        columns: the slice, (..., height, count). rows: for each device, an array of the device's rows. The
        result has a pair of views for each device: a view of `columns`, and a view of the device's rows.
        """
        at = self.column(device, part)
        return [(self.rows_of(columns, e), x[..., at : at + self.count]) for e, x in enumerate(rows)]

    def in_order(self, order: Order) -> Layout:
        """Return this layout, with the number of slices that ntt() uses for coefficients in order `order`."""
        return replace(self, slices=min(_NATURAL_SLICES, self.slices)) if order == "natural" else self

    def slices_of(self, x: Array) -> Array:
        """Return a view (slices, ..., rows, count) of x, (..., rows, width / devices).

        x: some rows of a device's columns. A slice has `count` columns.
        """
        split = x.reshape(*x.shape[:-1], self.slices, self.count)
        return split.transpose(split.ndim - 2, *range(split.ndim - 2), split.ndim - 1)


def layout_of(
    n: int, devices: int, log_height: int | None = None, tables: bool = False, limbs: int = 1
) -> Layout:
    """Choose the layout of the coefficients of a polynomial.

    Args:
        n: degree, a power of two.
        devices: number of devices, a power of two.
        log_height: log2 of the height. If it is None, it is chosen here.
        tables: whether each row is transformed with its own table of twiddles (`has_tables`). If True,
            columns are long and rows are short. Long columns need two passes over memory. These passes take
            about as long as the exchange between devices that runs at the same time.
        limbs: number of limbs of the ring. With more limbs, a device's columns hold more residues and are
            cut into more slices. A slice is large enough that the devices need longer to compute it than the
            host needs to queue it.

    Raises:
        ParameterError: n < devices**2, the number of devices is not a power of two, or log_height is outside
            its range.
    """
    if devices & (devices - 1):
        raise ParameterError(
            f"The number of devices is {devices}, but it must be a power of two to divide coefficients."
        )
    if n < devices**2:
        raise ParameterError(
            f"n={n} must be at least {devices**2} to divide coefficients among {devices} devices. Use fewer "
            "devices."
        )
    least, most = devices.bit_length() - 1, n.bit_length() - devices.bit_length()
    if log_height is None:
        half = (n.bit_length() - 1) // 2
        chosen = max(half, n.bit_length() - 1 - _LOG_WIDTH) if tables else min(half, _LOG_HEIGHT)
        chosen = min(max(chosen, least), most)
    else:
        chosen = integer(log_height, "log_height")
        if not least <= chosen <= most:
            raise ParameterError(
                f"log_height={shown(chosen)} must be from {least} to {most} for n={n} coefficients on "
                f"{devices} devices."
            )
    width, large = n >> chosen, max(1, limbs * n // (devices**2 * _SLICE))
    slices = 1 << (large.bit_length() - 1)  # a power of two, for any number of limbs
    return Layout(devices, 1 << chosen, width, min(_SLICES, slices, width // devices))


def has_tables(group: Group, ring: Ring) -> bool:
    """Return whether each row is transformed with its own table of twiddles.

    If not, rows are first multiplied by twiddles, and then transformed with one table for all rows.
    """
    size, itemsize = ring.rows * ring.n // len(group), ring.dtype.itemsize
    return all(backend.prefers_tables(size, itemsize) for backend in group.backends)


class Divided(NotAnArray):
    """Polynomials of one ring whose coefficients are divided among devices; Devices.divide makes them.

    The operators +, -, * and == follow the rules of Poly. The other operand must be an int, or be divided
    among the same devices with the same log_height and have the same number of batch axes. Evaluated values
    are in the order of the ring. Coefficients are in natural or transposed order (see Devices.divide). The
    result of an operator has the order of its first operand.

    Raises:
        DeviceError: the other operand of an operator is on other devices, or it is a Poly or a Spread.
        ParameterError: the operands of an operator have different log_height, or their batch shapes do not
            broadcast or do not have the same number of axes.
        RingMismatch, NotAnInteger, OutOfHostMemory, OutOfDeviceMemory: as in the operators of Poly.

    Cost: a sum takes one pass on each device. If the orders differ, each device also sends a part of one
    operand to every other device. A product of coefficients takes three transforms, during which both
    evaluated operands are in memory. GPUs work at the same time.

    >>> import polygpu as pg
    >>> R = pg.Ring(64, 257)
    >>> a = pg.devices("cpu", "cpu").divide(R([1, 2]))
    >>> (a * a + 1).gather().to_bigints()[:4].tolist()
    [2, 4, 4, 0]
    """

    __slots__ = ("_data", "_domain", "_group", "_layout", "_order", "_ring")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, group: Group, ring: Ring, layout: Layout, data: tuple[Array, ...], domain: Domain, order: Order
    ) -> None:
        self._group, self._ring, self._layout = group, ring, layout
        self._data, self._domain, self._order = data, domain, order

    @property
    def ring(self) -> Ring:
        """The ring of the polynomials.

        >>> import polygpu as pg
        >>> pg.devices("cpu", "cpu").divide(pg.Ring(64, 257)([1])).ring
        Ring(64, 257)
        """
        return self._ring

    @property
    def domain(self) -> Domain:
        """Domain of the polynomials, "coef" or "eval".

        >>> import polygpu as pg
        >>> pg.devices("cpu", "cpu").divide(pg.Ring(64, 257)([1])).ntt().domain
        'eval'
        """
        return self._domain

    @property
    def order(self) -> Order:
        """Order of the coefficients, "natural" or "transposed". For evaluated values it is "natural".

        >>> import polygpu as pg
        >>> a = pg.devices("cpu", "cpu").divide(pg.Ring(64, 257)([1]))
        >>> a.order, a.ntt().order
        ('transposed', 'natural')
        """
        return self._order

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices.

        >>> import polygpu as pg
        >>> pg.devices("cpu", "cpu").divide(pg.Ring(64, 257)([1])).devices
        ('cpu', 'cpu')
        """
        return self._group.names

    @property
    def data(self) -> tuple[Array, ...]:
        """The arrays of residues, one for each device. They are the value's own arrays, not copies.

        In natural order on D devices the array of each device has the shape (*batch, limbs, n / D) and is a
        run of neighbouring coefficients or values. In transposed order its shape is
        (slices, *batch, limbs, height, count). The coefficients then form a matrix with `height` rows, row by
        row, and slice s of device d has `count` columns, beginning with column (d * slices + s) * count.

        >>> import polygpu as pg
        >>> two, a = pg.devices("cpu", "cpu"), pg.Ring(64, 257)([1, 2, 3])
        >>> [x.shape for x in two.divide(a, order="natural").data], [x.shape for x in two.divide(a).data]
        ([(1, 32), (1, 32)], [(1, 1, 8, 4), (1, 1, 8, 4)])
        """
        return self._data

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch shape; () for a single polynomial.

        >>> import polygpu as pg
        >>> pg.devices("cpu", "cpu").divide(pg.Ring(64, 257).zeros((2, 3))).shape
        (2, 3)
        """
        shape: tuple[int, ...] = self._data[0].shape
        return shape[:-2] if self._order == "natural" else shape[1:-3]

    def __repr__(self) -> str:
        return (
            f"Divided(n={self._ring.n}, domain={self._domain}, shape={self.shape}, order={self._order}, "
            f"devices={list(self.devices)})"
        )

    def _exits(self) -> str:
        return "Use the methods of Divided, or take the whole value as a Poly with x.gather()"

    def __copy__(self) -> Divided:
        return self._each(lambda x: x.copy())

    def __deepcopy__(self, memo: object) -> Divided:
        return self._each(lambda x: x.copy())

    # ---- transforms ----

    @property
    def _plan(self) -> FourStepPlan:
        ring, layout = self._ring, self._layout
        key = "four steps", layout.height
        plan = ring._plan.plans.get(key)
        if plan is None:
            assert ring.roots is not None
            made = plan_four_step(ring._plan.basis, ring._plan.quotient, ring.roots, layout.height)
            plan = keep(ring._plan.plans, key, made, 128)
        return plan  # type: ignore[no-any-return]

    def ntt(self) -> Divided:
        """Return the evaluated value, in the ring's order, or the value itself if it is evaluated already.

        Raises:
            OutOfHostMemory, OutOfDeviceMemory: the result or the buffers do not fit in memory.

        Cost: each device transforms n / devices coefficients, and, depending on the device, also multiplies
        them by twiddles. Coefficients in transposed order need one exchange, in which every device sends a
        part of its coefficients to every other device. Natural order needs two. A device's coefficients are
        cut into slices; while one slice is exchanged, the next is computed. In addition to the operand and
        the result, a device holds buffers for up to three slices. For large polynomials the buffers take
        3/16 of the operand's memory in transposed order and 3/8 in natural order. For small polynomials
        the buffers are as large as the operand. The polynomials of a batch are transformed one after the
        other.
        Source: Bailey 1990, "FFTs in external or hierarchical memory"; docs/math.md, "Four steps".

        >>> import polygpu as pg
        >>> a = pg.Ring(64, 257).random(seed=1)
        >>> pg.devices("cpu", "cpu").divide(a).ntt().gather() == a.ntt()
        True
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
        """Cut device i's rows into slices; yield pairs (index of the first row in the matrix, slice)."""
        size = self._layout.rows // self._layout.row_slices
        for part in range(self._layout.row_slices):
            at = part * size
            yield i * self._layout.rows + at, rows[..., at : at + size, :]

    def _forward_columns(self, tables: bool) -> list[Array]:
        """Transform the columns, and return the rows of each device, (*batch, limbs, rows, width).

        After each slice of columns, entries are sent to the devices of their rows.
        """
        layout, group, plan = self._layout.in_order(self._order), self._group, self._plan
        numbers, depth, natural = range(len(group)), min(_BUFFERS, layout.slices), self._order == "natural"
        runs = [self._rows_of(e) for e in numbers] if natural else []
        blocks = self._new_rows()
        buffers = [self._new((*self._items, layout.height, layout.count)) for _ in range(depth)]
        steps = [] if tables else self._twiddles(1)
        # If `apart` is true, the last pass over a slice writes the rows that stay on this device directly
        # into the result. Rows for other devices are always copied from the buffer.
        apart = tables and 1 << plan.levels_above >= max(2, layout.devices)
        with Transfers(group.backends) as transfers:
            free: dict[tuple[int, int], list[Mark]] = {(i, k): [] for i in numbers for k in range(depth)}
            arrived: dict[tuple[int, int], list[Mark]] = {}

            def bring(part: int) -> None:
                """Start to copy slice `part` of each device into a buffer, once the buffer is free."""
                for i, buffer in enumerate(buffers[part % depth]):
                    arrived[i, part] = [
                        transfers.send(run, place, free[i, part % depth])
                        for place, run in layout.shared(buffer, runs, i, part)
                    ]

            def transform(i: int, part: int) -> None:
                """Transform slice `part` of device i. Start to copy each entry to the device of its row."""
                compute, buffer = group.backends[i], buffers[part % depth][i]
                compute.await_marks(arrived.pop((i, part)) if natural else free[i, part % depth])
                source = buffer if natural else self._data[i][part]
                moves = layout.shared(buffer, blocks, i, part)
                near = [group.names[e] == group.names[i] for e in numbers]
                if apart:
                    ends = [place if is_near else x for (x, place), is_near in zip(moves, near, strict=True)]
                    four_step.transform_columns_apart(plan, source, buffer, ends, compute.ntt)
                else:
                    four_step.transform_columns(plan, source, buffer, compute.ntt, tables)
                if not tables:
                    starts = four_step.twiddles(plan, compute, layout.column(i, part))
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

    def intt(self, *, order: Order = "transposed") -> Divided:
        """Transform back to coefficients, the inverse of ntt().

        Args:
            order: order of the result's coefficients, "transposed" or "natural" (see Devices.divide).

        Raises:
            ParameterError: `order` is not one of these names.
            OutOfHostMemory, OutOfDeviceMemory: the result or the buffers do not fit in memory.

        Cost: the work of ntt(). Transposed order needs one exchange, in which every device sends a part of
        its residues to every other device. Natural order needs two. In addition to the operand and the
        result, a device holds buffers that are together as large as the operand.

        >>> import polygpu as pg
        >>> a = pg.Ring(64, 257).random(seed=1)
        >>> pg.devices("cpu", "cpu").divide(a.ntt()).intt(order="natural").gather() == a
        True
        """
        check_order(order)
        if self._domain == "coef":
            return self.reorder(order)
        layout, group, tables = self._layout, self._group, has_tables(self._group, self._ring)
        columns = self._inverse_rows(tables)
        rows = self._new_rows() if order == "natural" else None
        with Transfers(group.backends) as transfers:

            def transform(i: int, part: int) -> None:
                """Transform slice `part` of device i. Start to copy it to `rows`, if `rows` is not None."""
                compute, x = group.backends[i], columns[i][part]
                four_step.transform_columns(self._plan, x, x, compute.intt, tables)
                if rows is not None:
                    done = compute.mark()
                    for stack, run in layout.shared(x, rows, i, part):
                        transfers.send(stack, run, [done])

            for part in range(layout.slices):
                group.each(partial(transform, part=part))
        data = columns if rows is None else [self._run(x) for x in rows]
        return self._result(data, "coef", order)

    def _inverse_rows(self, tables: bool) -> list[Array]:
        """Transform the rows back, and return the columns of each device.

        The columns have the shape (slices, *batch, limbs, height, count). After each slice of rows, entries
        are sent to the devices of their columns.
        """
        layout, group, plan, numbers = self._layout, self._group, self._plan, range(len(self._group))
        columns = self._new_columns()
        parts, own = layout.row_slices, layout.width // layout.devices
        size = layout.rows // parts
        buffers = [self._new((*self._items, size, layout.width)) for _ in range(parts)]
        powers = [] if tables else [self._twiddles(-1), *(self._twiddles(-e * own) for e in numbers)]
        sources = [list(self._row_parts(self._rows_of(i), i)) for i in numbers]
        with Transfers(group.backends) as transfers:

            def transform(i: int, part: int) -> None:
                """Transform slice `part` of device i's rows. Start to copy the results to `columns`."""
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
        """Compute the twiddles of all rows, raised to `power`, on each device."""
        return self._group.each(lambda i: four_step.twiddles(self._plan, self._group.backends[i], power))

    def reorder(self, order: Order) -> Divided:
        """Return the value with its coefficients in this order, or the value itself if it has this order.

        Args:
            order: "natural" or "transposed" (see Devices.divide).

        Raises:
            DomainError: the value is evaluated. Evaluated values are always in the ring's order.
            ParameterError: `order` is not one of these names.
            OutOfHostMemory, OutOfDeviceMemory: the result does not fit in memory.

        Cost: one exchange, in which every device sends a part of its coefficients to every other device.

        >>> import polygpu as pg
        >>> a = pg.devices("cpu", "cpu").divide(pg.Ring(64, 257)([1, 2]))
        >>> a.reorder("natural").data[0][0, :3].tolist()
        [1, 2, 0]
        """
        check_order(order)
        if self._domain == "eval":
            raise DomainError(
                "reorder needs a value in coefficients, and this value is evaluated. Use intt(order=...) "
                "on the value instead, which also puts the coefficients in the given order."
            )
        if order == self._order:
            return self
        layout, numbers, natural = self._layout, range(len(self._group)), order == "natural"
        columns = self._data if natural else self._new_columns()
        rows = self._new_rows() if natural else [self._rows_of(e) for e in numbers]
        slices = [(i, s) for i in numbers for s in range(layout.slices)]
        pairs = [pair for i, s in slices for pair in layout.shared(columns[i][s], rows, i, s)]
        copy(pairs if natural else [(run, stack) for stack, run in pairs])
        return self._result([self._run(x) for x in rows] if natural else columns, "coef", order)

    @property
    def _items(self) -> tuple[int, ...]:
        """Lengths of the axes before the matrix: (*batch, limbs)."""
        return (*self.shape, self._ring.rows)

    def _rows_of(self, i: int) -> Array:
        """Return device i's array, which is in natural order, reshaped to rows of the matrix (a view)."""
        return self._data[i].reshape(*self._items, self._layout.rows, self._layout.width)

    def _run(self, x: Array) -> Array:
        """Reshape rows of the matrix, (*batch, limbs, rows, width), to (*batch, limbs, rows * width)."""
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
        """Return the product in the ring. For operands, errors and cost see the class Divided."""
        if not isinstance(other, Divided):
            factor = self._int(other)
            return self._each(lambda x: scale(self._ring._plan.basis, x, factor))
        self._check(other)
        a = self.ntt()
        product = a._with("mul", a if other is self else other.ntt())
        if "eval" in (self._domain, other._domain):
            return product
        del a
        return product.intt(order=self._order)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: int) -> Divided:
        return -self + other

    def __neg__(self) -> Divided:
        return self._each(lambda x: neg(self._ring._plan.basis, x))

    def __eq__(self, other: object) -> bool:
        """Return whether two values have the same ring, batch shape and polynomials, as one bool.

        Args:
            other: a Divided on the same devices, in any domain and order; or an int, with which every
                polynomial is compared.

        Raises:
            DeviceError, ParameterError: as in other operators, see Divided.
            CoefficientError: `other` is an array or a list.

        Cost: one pass on each device. If the domains differ, there is also a transform. If the orders differ,
        each device also sends a part of one operand to every other device.

        >>> import polygpu as pg
        >>> a = pg.devices("cpu", "cpu").divide(pg.Ring(64, 257)([1, 2]))
        >>> a == a.ntt(), a == 1
        (True, False)
        """
        if isinstance(other, (Poly, Spread)):
            self._int(other)  # raises DeviceError for a Poly: it must be divided before it is compared
        if isinstance(other, (int, np.integer)) and not isinstance(other, bool):
            rest = self - int(other)
            return not any(map(bool, self._group.each(lambda i: rest._data[i].any())))
        if not isinstance(other, Divided):
            refuse_array(other)
            return NotImplemented
        if other._ring != self._ring or other.shape != self.shape:
            return False
        a, b = self._alike(other)
        return all(map(bool, self._group.each(lambda i: (a._data[i] == b._data[i]).all())))

    def _alike(self, other: Divided) -> tuple[Divided, Divided]:
        """Return both operands in one domain and order."""
        self._check(other)
        if "eval" in (self._domain, other._domain):
            return self.ntt(), other.ntt()
        return self, other.reorder(self._order)

    def _check(self, other: Divided) -> None:
        if other._ring != self._ring:
            raise RingMismatch(
                f"The operands are of different rings, {self._ring!r} and {other._ring!r}. Bring both into "
                "one ring before you call devices.divide."
            )
        if other._group != self._group:
            raise DeviceError(
                f"One operand is on {list(other.devices)}, and the other one is on {list(self.devices)}. "
                "Divide both operands among the same devices."
            )
        if other._layout != self._layout:
            raise ParameterError(
                f"One operand is in columns of {other._layout.height} coefficients, and the other one is in "
                f"columns of {self._layout.height}. Divide both operands with the same log_height."
            )
        if len(other.shape) != len(self.shape):
            raise ParameterError(
                f"The operands have batch shapes {self.shape} and {other.shape}, but they must have the "
                "same number of axes. Reshape one of them before you call devices.divide."
            )
        result_shape(np.empty((*self.shape, 0, 0)), np.empty((*other.shape, 0, 0)))

    def _with(self, op: Op, other: Divided) -> Divided:
        a, b = self._alike(other)

        def compute(i: int) -> Array:
            x, y = a._flat(a._data[i]), b._flat(b._data[i])
            return a._unflat(pointwise(self._ring._plan.basis, op, x, y))

        return a._result(self._group.each(compute), a._domain, a._order)

    def _each(self, f: Callable[[Array], Array]) -> Divided:
        found = self._group.each(lambda i: self._unflat(f(self._flat(self._data[i]))))
        return self._result(found, self._domain, self._order)

    def _flat(self, x: Array) -> Array:
        """Return the residues x of a device in the shape (..., limbs, entries of a limb)."""
        if self._order == "natural":
            return x
        return x.reshape(*x.shape[:-2], self._layout.height * self._layout.count)

    def _unflat(self, x: Array) -> Array:
        if self._order == "natural":
            return x
        return x.reshape(*x.shape[:-1], self._layout.height, self._layout.count)

    def _int(self, x: object) -> int:
        if isinstance(x, (Poly, Spread)):
            how = "lies on one device" if isinstance(x, Poly) else f"has axis={x.axis!r}"
            raise DeviceError(
                f"The operand is a {type(x).__name__} that {how}. Give the result of devices.divide(poly) "
                "instead, whose coefficients are divided among the devices."
            )
        return integer(x, "operand")

    def _plus(self, constant: int) -> Divided:
        """Return the value plus a constant of the ring."""
        basis = self._ring._plan.basis
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
        """Return the whole value on one device, as a Poly.

        Args:
            device: name of the device, such as "cpu" or "cuda:0". None means the current device.

        Raises:
            DeviceError: `device` is not the name of a device.
            BackendUnavailable: the GPU does not answer.
            OutOfHostMemory, OutOfDeviceMemory: the value does not fit in the memory of the device.

        Cost: a copy of each part to the device.

        >>> import polygpu as pg
        >>> a = pg.Ring(64, 257).random(2, seed=1)
        >>> pg.devices("cpu", "cpu").divide(a).gather() == a
        True
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
        return Poly._make(self._ring, data, self._domain)


def check_order(order: object) -> None:
    """Raise ParameterError unless order is "natural" or "transposed"."""
    if order not in ("natural", "transposed"):
        raise ParameterError(f"order={order!r} must be 'natural' or 'transposed'.")


def check_transform(ring: object) -> None:
    """Raise NotNTTFriendly unless a ring has a complete transform and its moduli are primes below 2^64."""
    if not isinstance(ring, Ring):
        raise ParameterError(f"ring must be a Ring, not {type(ring).__name__}.")
    if not ring._plan.has_four_steps:
        raise NotNTTFriendly(
            f"The coefficients of values in {ring!r} cannot be divided. This needs kind='negacyclic' or "
            "kind='cyclic', a complete transform, and moduli below 2**64. Use devices.spread to divide a "
            "batch instead."
        )


def divide(group: Group, x: Poly, order: Order, log_height: int | None = None) -> Divided:
    """Divide the coefficients of x among the devices of a group; see Devices.divide."""
    checked_poly(x, "x")
    check_order(order)
    check_transform(x.ring)
    layout = layout_of(x.ring.n, len(group), log_height, has_tables(group, x.ring), x.ring.rows)
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
    """Draw one uniform polynomial: each device draws its own coefficients; see Devices.random."""
    check_order(order)
    check_transform(ring)
    count = len(group)
    layout = layout_of(ring.n, count, log_height, has_tables(group, ring), ring.rows)
    first = integer(start, "start")
    if first < 0 or first >> 40:
        raise ParameterError(f"start={shown(first)} must be at least 0 and below 2**40.")
    if seed is None:
        seed = key_of(None)
    size = ring.n // count
    data = group.each(lambda i: sampling.uniform(ring._plan.basis, size, (), seed, first * count + i))
    return Divided(group, ring, layout, tuple(data), "coef", "natural").reorder(order)
