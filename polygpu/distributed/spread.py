"""Spread: values whose batch or limbs are divided among devices, or of which each device has a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, Literal

from ..backends import current_device
from ..checks import Domain, integer
from ..errors import DeviceError, ParameterError, RingMismatch
from ..functions import concatenate
from ..poly import Poly, checked_poly
from ..ring import Ring
from ..rns import join
from .group import Group

Axis = Literal["batch", "limbs", "copies"]


class Spread:
    """Polynomials on several devices: `parts[i]` is a Poly on device i.

    axis "batch": the first batch axis is divided; "limbs": the moduli are; "copies": each device has all.
    Devices.spread makes them. Operators act on the parts where these lie, with the rules of Poly; nothing is
    moved. Operands are divided alike; those of a divided batch may be copies.
    """

    __slots__ = ("_axis", "_group", "_parts", "_ring")
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, group: Group, ring: Ring, axis: Axis, parts: tuple[Poly, ...]) -> None:
        self._group, self._ring, self._axis, self._parts = group, ring, axis, parts

    @property
    def ring(self) -> Ring:
        """The ring of the whole."""
        return self._ring

    @property
    def axis(self) -> Axis:
        """What is divided: "batch", "limbs" or "copies" (nothing)."""
        return self._axis

    @property
    def parts(self) -> tuple[Poly, ...]:
        """The part of each device; of divided limbs in the ring of its limbs."""
        return self._parts

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices."""
        return self._group.names

    @property
    def domain(self) -> Domain:
        """ "coef" or "eval"."""
        return self._parts[0].domain

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch shape of the whole."""
        first, *rest = (part.shape for part in self._parts)
        if self._axis != "batch":
            return first
        return (first[0] + sum(shape[0] for shape in rest), *first[1:])

    def __repr__(self) -> str:
        return (
            f"Spread(n={self._ring.n}, domain={self.domain}, shape={self.shape}, axis={self._axis}, "
            f"devices={list(self.devices)})"
        )

    # ---- arithmetic ----

    def ntt(self) -> Spread:
        """In the evaluation domain; see Poly.ntt."""
        return self.map(Poly.ntt)

    def intt(self) -> Spread:
        """In coefficients."""
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
        if isinstance(other, Poly):
            self._operand(other)  # raises: one of both has to be moved
        if isinstance(other, Spread):
            if other._ring != self._ring or other.shape != self.shape:
                return False
        elif not isinstance(other, int) or isinstance(other, bool):
            return NotImplemented
        (parts, others), _ = self._paired(other)
        return all(self._group.each(lambda i: bool(parts[i] == others[i])))

    def _with(self, method: str, other: Any) -> Spread:
        return self.map(lambda a, b: getattr(a, method)(b), other)

    def map(self, f: Callable[..., Poly], *others: Spread | int) -> Spread:
        """What f makes of the parts on each device, of this value's and the others'.

        Args:
            f: a function of values on one device. It keeps the length of the first batch axis where that is
                divided, and the limbs where these are.
            *others: ints, or values that are divided as this one or are copies; f gets their parts.

        Raises:
            DeviceError: values of other devices. ParameterError: values that are divided in another way, or a
                result that cannot be part of a whole. RingMismatch: results that are no Poly.

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
        """What meets on each device, this value's parts first; the operand whose division the result has."""
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
        if hasattr(other, "gather"):
            raise ParameterError("operand: its coefficients are divided, the other's batch or limbs are")
        return integer(other, "operand")

    def _check_with(self, other: Spread) -> None:
        """Raise where the parts of a divided value and another's do not meet."""
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
        """The whole on one device, by default the current one.

        Raises:
            DeviceError, BackendUnavailable: no such device.
            OutOfHostMemory, OutOfDeviceMemory: it does not fit.
        """
        target = Group([current_device() if device is None else device])
        parts = self._parts[:1] if self._axis == "copies" else self._parts
        moved = [Poly._wrap(p.ring, target.place(p.data, 0), p.domain) for p in parts]
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
        if limbs < count or x.ring.basis.wide:
            raise ParameterError(
                f"x: a single polynomial of {limbs} moduli for {count} devices, each must get one of at most "
                "2**64; spread a batch, or divide its coefficients: devices.divide(x)"
            )
        bounds = [limbs * i // count for i in range(count + 1)]
        parts = [x.restrict(x.ring[a:b]) for a, b in pairwise(bounds)]
    else:
        raise ParameterError(f"axis: {axis!r} must be 'batch', 'limbs' or 'copies'")
    placed = tuple(Poly._wrap(p.ring, group.place(p.data, i), p.domain) for i, p in enumerate(parts))
    return Spread(group, x.ring, axis, placed)
