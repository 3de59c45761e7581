"""Spread: values whose batch or limbs are divided among devices, or of which each device has a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from .._backends import current_device
from .._core.checks import Domain, integer
from .._ops.arrays import NotAnArray, refuse_array
from ..errors import DeviceError, ParameterError, RingMismatch
from ..functions import concatenate
from ..poly import Poly, checked_poly
from ..ring import Ring
from ..rns import join
from .group import Group

Axis = Literal["batch", "limbs", "copies"]


class Spread(NotAnArray):
    """Polynomials on several devices: `parts[i]` is a Poly on device i. Devices.spread makes them.

    With axis "batch" the first batch axis is divided, with "limbs" the moduli; with "copies" each device has
    all polynomials. The operators +, -, * and == follow the rules of Poly. Each device computes on its parts,
    and nothing moves between devices. Both operands are divided in the same way. One operand may be an int
    or, if the other is a divided batch, "copies" that broadcast.

    Raises:
        DeviceError: from operators, operands on other devices, or a Poly.
        ParameterError: from operators, operands that are divided in different ways. All else as Poly.

    Cost: of an operator, that of Poly for each part; GPUs work at the same time.

    >>> import polygpu as pg
    >>> two = pg.devices("cpu", "cpu")
    >>> a = two.spread(pg.Ring(4, 17)([[1, 2], [3, 4], [5, 6]]))
    >>> (a * 2 + a).gather().to_bigints().tolist()
    [[3, 6, 0, 0], [9, 12, 0, 0], [15, 1, 0, 0]]
    """

    __slots__ = ("_axis", "_group", "_parts", "_ring")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, group: Group, ring: Ring, axis: Axis, parts: tuple[Poly, ...]) -> None:
        self._group, self._ring, self._axis, self._parts = group, ring, axis, parts

    @property
    def ring(self) -> Ring:
        """The ring of the whole value; of divided limbs it has the limbs of all parts.

        >>> import polygpu as pg
        >>> pg.devices("cpu", "cpu").spread(pg.Ring(4, [17, 97])([5])).ring
        Ring(4, [17, 97])
        """
        return self._ring

    @property
    def axis(self) -> Axis:
        """What is divided: "batch", "limbs", or with "copies" nothing.

        >>> import polygpu as pg
        >>> pg.devices("cpu", "cpu").spread(pg.Ring(4, 17)([[1], [2]])).axis
        'batch'
        """
        return self._axis

    @property
    def parts(self) -> tuple[Poly, ...]:
        """The part of each device, a Poly there; a part of divided limbs is in the ring of its limbs.

        >>> import polygpu as pg
        >>> a = pg.devices("cpu", "cpu").spread(pg.Ring(4, [17, 97])([20]))
        >>> [part.ring for part in a.parts], [part.data[0, 0].item() for part in a.parts]
        ([Ring(4, 17), Ring(4, 97)], [3, 20])
        """
        return self._parts

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices, one for each part.

        >>> import polygpu as pg
        >>> pg.devices("cpu", "cpu").spread(pg.Ring(4, 17)([[1], [2]])).devices
        ('cpu', 'cpu')
        """
        return self._group.names

    @property
    def domain(self) -> Domain:
        """ "coef" or "eval", of all parts.

        >>> import polygpu as pg
        >>> pg.devices("cpu", "cpu").spread(pg.Ring(4, 17)([[1], [2]])).ntt().domain
        'eval'
        """
        return self._parts[0].domain

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch shape of the whole value.

        >>> import polygpu as pg
        >>> a = pg.devices("cpu", "cpu").spread(pg.Ring(4, 17).zeros((3, 2)))
        >>> a.shape, [part.shape for part in a.parts]
        ((3, 2), [(1, 2), (2, 2)])
        """
        first, *rest = (part.shape for part in self._parts)
        if self._axis != "batch":
            return first
        return (first[0] + sum(shape[0] for shape in rest), *first[1:])

    def __repr__(self) -> str:
        return (
            f"Spread(n={self._ring.n}, domain={self.domain}, shape={self.shape}, axis={self._axis}, "
            f"devices={list(self.devices)})"
        )

    def _exits(self) -> str:
        return "Use the methods of Spread, or take the whole value as a Poly with x.gather()"

    def __copy__(self) -> Spread:
        return self.map(Poly.copy)

    def __deepcopy__(self, memo: object) -> Spread:
        return self.map(Poly.copy)

    # ---- arithmetic ----

    def ntt(self) -> Spread:
        """Return the value in the evaluation domain: Poly.ntt of each part.

        Raises:
            NotNTTFriendly, TablesTooLarge, OutOfHostMemory, OutOfDeviceMemory: as Poly.ntt.

        Cost: that of Poly.ntt for each part; GPUs work at the same time.

        >>> import polygpu as pg
        >>> R = pg.Ring(4, 17)
        >>> pg.devices("cpu", "cpu").spread(R([[1], [2]])).ntt().gather() == R([[1], [2]])
        True
        """
        return self.map(Poly.ntt)

    def intt(self) -> Spread:
        """Return the value in coefficients: Poly.intt of each part. This is the inverse of ntt().

        Raises:
            OutOfHostMemory, OutOfDeviceMemory: it does not fit.

        Cost: that of Poly.intt for each part; GPUs work at the same time.

        >>> import polygpu as pg
        >>> a = pg.devices("cpu", "cpu").spread(pg.Ring(4, 17)([[1], [2]]))
        >>> a.ntt().intt().domain
        'coef'
        """
        return self.map(Poly.intt)

    def __add__(self, other: Spread | int) -> Spread:
        return self._with("__add__", other)

    def __sub__(self, other: Spread | int) -> Spread:
        return self._with("__sub__", other)

    def __mul__(self, other: Spread | int) -> Spread:
        return self._with("__mul__", other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: int) -> Spread:
        return -self + other

    def __neg__(self) -> Spread:
        return self.map(Poly.neg)

    def __eq__(self, other: object) -> bool:
        """Whether two values have the same ring, batch shape and polynomials, in one bool.

        Args:
            other: divided as this value is, or copies, in any domain; or an int, to which every polynomial is
                compared.

        Raises:
            DeviceError, ParameterError: as of other operators. CoefficientError: an array or list.

        Cost: that of Poly's == for each part; it waits for the GPUs.

        >>> import polygpu as pg
        >>> a = pg.devices("cpu", "cpu").spread(pg.Ring(4, 17)([[1], [2]]))
        >>> a == a.ntt(), a == 1
        (True, False)
        """
        if isinstance(other, Poly):
            self._operand(other)  # raises: a Poly has to be spread before it is compared
        if isinstance(other, Spread):
            if other._ring != self._ring or other.shape != self.shape:
                return False
        elif not isinstance(other, (int, np.integer)) or isinstance(other, bool):
            refuse_array(other)
            return NotImplemented
        (parts, others), _ = self._paired(other)
        return all(self._group.each(lambda i: bool(parts[i] == others[i])))

    def _with(self, method: str, other: Any) -> Spread:
        return self.map(lambda a, b: getattr(a, method)(b), other)

    def map(self, f: Callable[..., Poly], *others: Spread | int) -> Spread:
        """Return the value whose part on each device is f(part, *parts of the others) there.

        Args:
            f: a function of values on one device, which returns a Poly there. If a batch is divided, f keeps
                the length of its first axis; if limbs are divided, f keeps the ring of its operand.
            *others: ints, or values that are divided as this one or are copies. f gets their parts.

        Returns a value that is divided as its operands are.

        Raises:
            DeviceError: values on other devices, or a Poly among the others.
            ParameterError: f is not a function, values are divided in another way, or a result of f cannot be
                a part of one value.
            RingMismatch: a result of f is not a Poly.

        Cost: one call of f for each device; GPUs work at the same time, and nothing moves between them.

        >>> import polygpu as pg
        >>> two = pg.devices("cpu", "cpu")
        >>> a = two.spread(pg.Ring(4, [17, 97])([[1], [2], [3]]))
        >>> a.map(lambda x: x.rescale()).gather().ring
        Ring(4, 17)
        """
        if not callable(f):
            raise ParameterError(f"f: {type(f).__name__}, must be a function of the parts")
        columns, main = self._paired(*others)

        def compute(i: int) -> Poly:
            part, name = (
                checked_poly(f(*(column[i] for column in columns)), "f's result"),
                self._group.names[i],
            )
            if part.device != name:
                raise ParameterError(f"f: its result is on {part.device}, its operands are on {name}")
            return part

        parts = self._group.each(compute)
        if main._axis == "limbs":
            if any(part.ring != own.ring for part, own in zip(parts, main._parts, strict=True)):
                raise ParameterError("f: its result has other limbs than its operand; divide a batch instead")
            return Spread(self._group, main._ring, "limbs", tuple(parts))
        if any(part.ring != parts[0].ring for part in parts):
            raise ParameterError("f: its results are of several rings; they are parts of one value")
        if main._axis == "batch" and any(
            part.shape[:1] != own.shape[:1] for part, own in zip(parts, main._parts, strict=True)
        ):
            raise ParameterError(
                f"f: results of batch shapes {[part.shape for part in parts]} are no parts of a batch that "
                f"is divided as {[own.shape for own in main._parts]}; the first axis must stay"
            )
        return Spread(self._group, parts[0].ring, main._axis, tuple(parts))

    def _paired(self, *others: object) -> tuple[list[Sequence[Any]], Spread]:
        """Return what each device uses of each operand, and the operand whose axis the result has.

        This value is the first operand. Of a value a device uses its part, of an int the int itself.
        """
        operands = [self, *map(self._operand, others)]
        values = [x for x in operands if isinstance(x, Spread)]
        main = next((x for x in values if x._axis != "copies"), self)
        for value in values:
            main._check_with(value)
        columns: list[Sequence[Any]] = [
            x._parts if isinstance(x, Spread) else (x,) * len(self._group) for x in operands
        ]
        return columns, main

    def _operand(self, other: object) -> Spread | int:
        if isinstance(other, Poly):
            raise DeviceError(
                "operand: a Poly lies on one device; spread it before: devices.spread(x), or with "
                "axis='copies' where each device is to have all of it"
            )
        if isinstance(other, Spread):
            return other
        if isinstance(other, NotAnArray):
            raise ParameterError("operand: its coefficients are divided, the other's batch or limbs are")
        return integer(other, "operand")

    def _check_with(self, other: Spread) -> None:
        """Raise if a device's parts of this value and the other cannot be operands of one operation."""
        if other._group != self._group:
            raise DeviceError(f"operand: on {list(other.devices)}, must be on {list(self.devices)}")
        if other._axis != self._axis and (self._axis, other._axis) != ("batch", "copies"):
            raise ParameterError(
                f"operand: divided by {other._axis}, the other by {self._axis}; spread both in one way"
            )
        if self._axis == "limbs" and other._ring != self._ring:
            raise RingMismatch(f"operands of different rings: {self._ring!r} and {other._ring!r}")
        if self._axis != "batch":
            return
        if other._axis == "batch":
            fits = [part.shape[0] for part in self._parts] == [part.shape[0] for part in other._parts]
            fits = fits and len(self.shape) == len(other.shape)
        else:
            depth = len(other.shape)
            fits = depth < len(self.shape) or (depth == len(self.shape) and other.shape[0] == 1)
        if not fits:
            raise ParameterError(
                f"operands of batch shapes {self.shape} and {other.shape}: the first axis is divided; both "
                "need it alike, copies (axis='copies') fewer axes or 1 there"
            )

    # ---- back on one device ----

    def gather(self, device: str | None = None) -> Poly:
        """Return the whole value on one device, as a Poly.

        Args:
            device: its name, such as "cpu" or "cuda:0"; by default the current one.

        Raises:
            DeviceError: there is no such device. BackendUnavailable: a GPU that does not answer.
            OutOfHostMemory, OutOfDeviceMemory: it does not fit.

        Cost: a copy of each part to the device, and one that joins them.

        >>> import polygpu as pg
        >>> R = pg.Ring(4, [17, 97])
        >>> pg.devices("cpu", "cpu").spread(R([20])).gather() == R([20])
        True
        """
        target = Group([current_device() if device is None else device])
        parts = self._parts[:1] if self._axis == "copies" else self._parts
        moved = [p._with(target.place(p.data, 0)) for p in parts]
        with target.on(0):
            if self._axis == "batch":
                return moved[0] if len(moved) == 1 else concatenate(moved)
            return reduce(join, moved)


def spread(group: Group, x: Poly, axis: Axis | None) -> Spread:
    """See Devices.spread."""
    checked_poly(x, "x")
    if axis is None:
        axis = "batch" if x.ndim or len(x.ring.moduli) == 1 else "limbs"
    count = len(group)
    if axis == "copies":
        parts = [x] * count
    elif axis == "batch":
        if not x.ndim:
            raise ParameterError(
                "axis: 'batch' divides the first batch axis, and x has none; 'limbs' divides moduli, "
                "devices.divide(x) the coefficients of one polynomial"
            )
        bounds = [len(x) * i // count for i in range(count + 1)]
        parts = [x[a:b] for a, b in pairwise(bounds)]
    elif axis == "limbs":
        limbs = len(x.ring.moduli)
        if limbs < count or x.ring._plan.basis.wide:
            raise ParameterError(
                f"x: a single polynomial of {limbs} moduli for {count} devices, each must get one of at most "
                "2**64; spread a batch, or divide its coefficients: devices.divide(x)"
            )
        bounds = [limbs * i // count for i in range(count + 1)]
        parts = [x.restrict(x.ring[a:b]) for a, b in pairwise(bounds)]
    else:
        raise ParameterError(f"axis: {axis!r} must be 'batch', 'limbs' or 'copies'")
    placed = tuple(p._with(group.place(p.data, i)) for i, p in enumerate(parts))
    return Spread(group, x.ring, axis, placed)
