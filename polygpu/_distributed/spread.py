"""Spread: values whose batch or limbs are divided among devices, or that are copied to each device."""

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
    """Polynomials on several devices: `parts[i]` is a Poly on device i. Devices.spread makes a Spread.

    If `axis` is "batch", the first batch axis is divided; if it is "limbs", the moduli are divided; if it is
    "copies", each device has all polynomials. The operators +, -, * and == follow the rules of Poly. Each
    device computes on its own parts, and nothing is copied between devices. So both operands must be divided
    in the same way. There are two exceptions. One operand may be an int. If operand A has the axis "batch",
    operand B may have the axis "copies" and a batch shape that broadcasts to the batch shape of A.

    Raises:
        DeviceError: the other operand of an operator is on other devices, or it is a Poly.
        ParameterError: the operands of an operator are divided in different ways. Other errors are those of
            Poly.

    Cost: an operator costs the same as that of Poly on each part. GPUs work at the same time.

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
        """The ring of the whole value. If limbs are divided, it has the limbs of all parts.

        >>> import polygpu as pg
        >>> pg.devices("cpu", "cpu").spread(pg.Ring(4, [17, 97])([5])).ring
        Ring(4, [17, 97])
        """
        return self._ring

    @property
    def axis(self) -> Axis:
        """What is divided: "batch" or "limbs". "copies" means that nothing is divided.

        >>> import polygpu as pg
        >>> pg.devices("cpu", "cpu").spread(pg.Ring(4, 17)([[1], [2]])).axis
        'batch'
        """
        return self._axis

    @property
    def parts(self) -> tuple[Poly, ...]:
        """The parts, one Poly on each device. If limbs are divided, a part's ring has only that part's limbs.

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
        """Domain of all parts, "coef" or "eval".

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
        """Transform each part to the evaluation domain by Poly.ntt.

        Raises:
            NotNTTFriendly, TablesTooLarge, OutOfHostMemory, OutOfDeviceMemory: see Poly.ntt.

        Cost: the same as for Poly.ntt on each part. GPUs work at the same time.

        >>> import polygpu as pg
        >>> R = pg.Ring(4, 17)
        >>> pg.devices("cpu", "cpu").spread(R([[1], [2]])).ntt().gather() == R([[1], [2]])
        True
        """
        return self.map(Poly.ntt)

    def intt(self) -> Spread:
        """Transform each part back to coefficients by Poly.intt, the inverse of ntt().

        Raises:
            OutOfHostMemory, OutOfDeviceMemory: a part of the result does not fit in memory.

        Cost: the same as for Poly.intt on each part. GPUs work at the same time.

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
        """Return whether two values have the same ring, batch shape and polynomials, as one bool.

        Args:
            other: a Spread in any domain that is divided in the same way as this value or has the axis
                "copies"; or an int, with which every polynomial is compared.

        Raises:
            DeviceError, ParameterError: as in other operators, see Spread.
            CoefficientError: `other` is an array or a list.

        Cost: the same as for == of Poly on each part. The call waits for the GPUs.

        >>> import polygpu as pg
        >>> a = pg.devices("cpu", "cpu").spread(pg.Ring(4, 17)([[1], [2]]))
        >>> a == a.ntt(), a == 1
        (True, False)
        """
        if isinstance(other, Poly):
            self._operand(other)  # raises DeviceError for a Poly: it must be spread before it is compared
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
        """Apply f on each device to the parts of this value and of `others` on that device.

        Args:
            f: a function that takes one Poly for each operand, all on one device, and returns a Poly on this
                device. If a batch is divided, f must not change the length of the first axis. If limbs are
                divided, f must not change the ring.
            *others: further operands. Each is an int, or a Spread that is divided in the same way as this
                value or has the axis "copies". On each device, f gets the parts that lie on this device, and
                ints as they are.

        Returns a value that is divided in the same way as its operands and has the results of f as parts.

        Raises:
            DeviceError: a value of `others` is on other devices or is a Poly, or f returns a Poly on another
                device.
            ParameterError: f is not a function, a value of `others` is divided in another way, or the results
                of f cannot be parts of one value.
            RingMismatch: a result of f is not a Poly.

        Cost: one call of f for each device. GPUs work at the same time, and nothing is copied between them.

        >>> import polygpu as pg
        >>> two = pg.devices("cpu", "cpu")
        >>> a = two.spread(pg.Ring(4, [17, 97])([[1], [2], [3]]))
        >>> a.map(lambda x: x.rescale()).gather().ring
        Ring(4, 17)
        """
        if not callable(f):
            raise ParameterError(f"f must be a function of the parts, not {type(f).__name__}.")
        columns, main = self._paired(*others)

        def compute(i: int) -> Poly:
            part, name = (
                checked_poly(f(*(column[i] for column in columns)), "f's result"),
                self._group.names[i],
            )
            if part.device != name:
                raise ParameterError(
                    f"The result of f is on {part.device}, but its operands are on {name}. Return a value "
                    "on the device of the operands."
                )
            return part

        parts = self._group.each(compute)
        if main._axis == "limbs":
            if any(part.ring != own.ring for part, own in zip(parts, main._parts, strict=True)):
                raise ParameterError(
                    "The result of f has other limbs than the operand of f, but axis='limbs' needs the "
                    "same limbs. Use devices.spread(x, axis='batch') if f changes limbs."
                )
            return Spread(self._group, main._ring, "limbs", tuple(parts))
        if any(part.ring != parts[0].ring for part in parts):
            raise ParameterError(
                "The results of f on the devices are of different rings, but they must be parts of one "
                "value. Return values of the same ring on every device."
            )
        if main._axis == "batch" and any(
            part.shape[:1] != own.shape[:1] for part, own in zip(parts, main._parts, strict=True)
        ):
            raise ParameterError(
                f"The results of f have batch shapes {[part.shape for part in parts]}, and the parts that f "
                f"was given have {[own.shape for own in main._parts]}. f must keep the length of the first "
                "axis."
            )
        return Spread(self._group, parts[0].ring, main._axis, tuple(parts))

    def _paired(self, *others: object) -> tuple[list[Sequence[Any]], Spread]:
        """Return a list of sequences, one for each operand, and the main operand.

        The operands are this value, then `others`. A sequence has one entry for each device: the parts of a
        Spread, or copies of an int. The main operand is the first operand whose axis is not "copies", or this
        value if all have the axis "copies". Results are divided like the main operand.
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
                "The operand x is a Poly, which lies on one device. Use devices.spread(x) to divide x among "
                "the devices first, or devices.spread(x, axis='copies') to copy x to every device."
            )
        if isinstance(other, Spread):
            return other
        if isinstance(other, NotAnArray):
            raise ParameterError(
                "One operand is made by devices.divide, and the other one by devices.spread. Use "
                "devices.spread for both operands."
            )
        return integer(other, "operand")

    def _check_with(self, other: Spread) -> None:
        """Raise an error if the parts of this value and of `other` cannot be combined device by device."""
        if other._group != self._group:
            raise DeviceError(
                f"One operand is on {list(other.devices)}, and the other one is on {list(self.devices)}. "
                "Spread both operands on the same devices."
            )
        if other._axis != self._axis and (self._axis, other._axis) != ("batch", "copies"):
            raise ParameterError(
                f"One operand has axis={other._axis!r}, and the other one has axis={self._axis!r}. Spread "
                "both operands with the same axis."
            )
        if self._axis == "limbs" and other._ring != self._ring:
            raise RingMismatch(
                f"The operands are of different rings, {self._ring!r} and {other._ring!r}. Bring both into "
                "one ring before you call devices.spread."
            )
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
                f"The operands have batch shapes {self.shape} and {other.shape}, and the first axis is "
                "divided. Two divided batches need the same number of axes and the same first length. An "
                "operand spread with axis='copies' needs fewer axes than the divided one, or a first axis of "
                "length 1."
            )

    # ---- back on one device ----

    def gather(self, device: str | None = None) -> Poly:
        """Return the whole value on one device, as a Poly.

        Args:
            device: name of the device, such as "cpu" or "cuda:0". None means the current device.

        Raises:
            DeviceError: `device` is not the name of a device.
            BackendUnavailable: the GPU does not answer.
            OutOfHostMemory, OutOfDeviceMemory: the value does not fit in the memory of the device.

        Cost: a copy of each part to the device, and another copy that joins the parts.

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
    """Divide the batch or the limbs of x among the devices of a group, or copy x. See Devices.spread."""
    checked_poly(x, "x")
    if axis is None:
        axis = "batch" if x.ndim or len(x.ring.moduli) == 1 else "limbs"
    count = len(group)
    if axis == "copies":
        parts = [x] * count
    elif axis == "batch":
        if not x.ndim:
            raise ParameterError(
                "axis='batch' divides the first batch axis, and x has none. Use axis='limbs' to divide the "
                "moduli, or devices.divide(x) to divide the coefficients of one polynomial."
            )
        bounds = [len(x) * i // count for i in range(count + 1)]
        parts = [x[a:b] for a, b in pairwise(bounds)]
    elif axis == "limbs":
        limbs = len(x.ring.moduli)
        if limbs < count or x.ring._plan.basis.wide:
            raise ParameterError(
                f"The ring of x has {limbs} moduli for {count} devices. axis='limbs' needs at least one "
                "modulus for each device, and no modulus above 2**64. Use axis='batch' for a batch, or "
                "devices.divide(x) to divide the coefficients."
            )
        bounds = [limbs * i // count for i in range(count + 1)]
        parts = [x.restrict(x.ring[a:b]) for a, b in pairwise(bounds)]
    else:
        raise ParameterError(f"axis={axis!r} must be 'batch', 'limbs' or 'copies'.")
    placed = tuple(p._with(group.place(p.data, i)) for i, p in enumerate(parts))
    return Spread(group, x.ring, axis, placed)
