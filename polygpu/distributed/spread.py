"""Spread: values whose batch or limbs are divided among devices, or of which each device has a copy."""

from __future__ import annotations

from collections.abc import Callable
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
    moved. Operands are divided alike, or one of them is of copies.
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
        if not isinstance(other, (Spread, int)) or isinstance(other, bool):
            return NotImplemented
        pairs = self._paired(other)
        found = []
        for i in self._group.each():
            found.append(self._parts[i] == pairs[i])
        return all(found)

    def _with(self, method: str, other: Any) -> Spread:
        if not isinstance(other, Spread):
            if isinstance(other, Poly):
                raise DeviceError(
                    "operand: a Poly lies on one device; spread it before: devices.spread(x), or with "
                    "axis='copies' where each device is to have all of it"
                )
            integer(other, "operand")
        return self.map(lambda a, b: getattr(a, method)(b), other)

    def map(self, f: Callable[..., Poly], *others: Spread | int) -> Spread:
        """What f makes of the parts on each device, of this value's and the others', divided alike.

        Args:
            f: a function of values on one device. It keeps the length of the first batch axis where that is
                divided, and the limbs where these are.
            *others: ints, or values that are divided as this one or are copies; f gets their parts.

        Raises:
            DeviceError: values of other devices. ParameterError: values that are divided in another way, or a
                result that cannot be part of a whole.

        >>> import polygpu as pg
        >>> two = pg.devices("cpu", "cpu")
        >>> a = two.spread(pg.Ring(4, [17, 97])([[1], [2], [3]]))
        >>> a.map(lambda x: x.rescale()).gather().ring
        Ring(4, 17)
        """
        columns = [self._paired(other) for other in others]
        parts = []
        for i in self._group.each():
            parts.append(checked_poly(f(self._parts[i], *(column[i] for column in columns)), "f's result"))
        spread = [other for other in (self, *others) if isinstance(other, Spread)]
        main = next((value for value in spread if value._axis != "copies"), self)
        if main._axis == "limbs":
            if any(part.ring != own.ring for part, own in zip(parts, main._parts, strict=True)):
                raise ParameterError(
                    "f: its result has other limbs than its operand; divide the batch instead"
                )
            return Spread(self._group, main._ring, "limbs", tuple(parts))
        if main._axis == "batch" and any(
            part.shape[:1] != own.shape[:1] for part, own in zip(parts, main._parts, strict=True)
        ):
            raise ParameterError(
                f"f: results of batch shapes {[part.shape for part in parts]} are no parts of a batch that "
                f"is divided as {[own.shape for own in main._parts]}; the first axis must stay"
            )
        return Spread(self._group, parts[0].ring, main._axis, tuple(parts))

    def _paired(self, other: Any) -> list[Any]:
        """What meets each part."""
        if not isinstance(other, Spread):
            return [other] * len(self._group)
        if other._group != self._group:
            raise DeviceError(f"operand: on {list(other.devices)}, must be on {list(self.devices)}")
        if other._axis != self._axis and {self._axis, other._axis} != {"batch", "copies"}:
            raise ParameterError(
                f"operand: divided by {other._axis}, the other by {self._axis}; spread both in one way"
            )
        if self._axis == "limbs" and other._ring != self._ring:
            raise RingMismatch(f"operands of different rings: {self._ring!r} and {other._ring!r}")
        if "batch" in (self._axis, other._axis):
            self._check_first_axes(other)
        return list(other._parts)

    def _check_first_axes(self, other: Spread) -> None:
        """Raise where broadcasting would not lay the divided axes on each other."""
        depth = max(len(self.shape), len(other.shape))
        firsts = []
        for value in (self, other):
            if value._axis == "batch":
                firsts.append([part.shape[0] for part in value._parts] if len(value.shape) == depth else None)
            elif len(value.shape) == depth and value.shape[0] != 1:
                firsts.append(None)
        if None in firsts or firsts[0] != firsts[-1]:
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
                f"axis: 'limbs' of {limbs} moduli for {count} devices; each must get one of at most 2**64"
            )
        bounds = [limbs * i // count for i in range(count + 1)]
        parts = [x.restrict(x.ring[a:b]) for a, b in pairwise(bounds)]
    else:
        raise ParameterError(f"axis: {axis!r} must be 'batch', 'limbs' or 'copies'")
    placed = tuple(Poly._wrap(p.ring, group.place(p.data, i), p.domain) for i, p in enumerate(parts))
    return Spread(group, x.ring, axis, placed)
