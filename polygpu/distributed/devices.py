"""Devices: several GPUs of one host that compute on values together."""

from __future__ import annotations

from ..backends import gpu_names
from ..errors import DeviceError
from ..ops.sampling import Seed
from ..poly import Poly
from ..ring import Ring
from . import divided, spread
from .divided import Divided, Order
from .group import Group
from .spread import Axis, Spread


class Devices(Group):
    """Several devices that compute on values together; polygpu.devices makes one."""

    def __repr__(self) -> str:
        return f"devices({', '.join(map(repr, self.names))})"

    def spread(self, x: Poly, axis: Axis | None = None) -> Spread:
        """A value whose batch or limbs are divided among the devices.

        Args:
            x: on any device.
            axis: "batch" divides the first batch axis in runs that differ by one at most; "limbs" the moduli;
                "copies" gives all of x to each device. By default the batch, or of a single polynomial the
                limbs.

        Raises:
            ParameterError: no such axis, or fewer limbs than devices.
            OutOfHostMemory, OutOfDeviceMemory: it does not fit.

        Cost: a copy to each device. On the host parts share x's memory.

        >>> import polygpu as pg
        >>> two = pg.devices("cpu", "cpu")
        >>> R = pg.Ring(4, 17)
        >>> c = two.spread(R([[1, 2], [3, 4], [5, 6]])) * two.spread(R([0, 1]), axis="copies")
        >>> c.gather().to_bigints().tolist()
        [[0, 1, 2, 0], [0, 3, 4, 0], [0, 5, 6, 0]]
        """
        return spread.spread(self, x, axis)

    def divide(self, x: Poly, order: Order = "transposed", *, log_height: int | None = None) -> Divided:
        """A value whose coefficients are divided: for transforms that outgrow one device.

        Args:
            x: on any device; its ring has a complete transform, n is at least the square of the number of
                devices, which is a power of two.
            order: of coefficients. "transposed" spares each transform one of two exchanges; "natural" keeps a
                run of n / devices of them on each device. Evaluated values are in the ring's order.
            log_height: log2 of the points of a column; by default a choice by n.

        Raises:
            NotNTTFriendly: no complete transform. ParameterError: sizes that do not divide, another order.
            OutOfHostMemory, OutOfDeviceMemory: it does not fit.

        Cost: a copy to each device; on the host natural coefficients share x's memory. Batches are for few
        polynomials of large degree: items are transformed one after the other.

        >>> import polygpu as pg
        >>> two = pg.devices("cpu", "cpu")
        >>> R = pg.Ring(64, 257)
        >>> a, b = R.random(seed=1), R.random(seed=2)
        >>> (two.divide(a) * two.divide(b)).gather() == a * b
        True
        """
        return divided.divide(self, x, order, log_height)

    def random(
        self, ring: Ring, seed: Seed = None, *, start: int = 0, order: Order = "transposed",
        log_height: int | None = None,
    ) -> Divided:  # fmt: skip
        """One uniform polynomial, divided: the value of ring.random(seed=seed, start=start).

        Each device draws its own coefficients, so that no memory has to hold all. Arguments, errors and cost
        are those of Ring.random and divide.

        >>> import polygpu as pg
        >>> R = pg.Ring(64, 257)
        >>> pg.devices("cpu", "cpu").random(R, seed=1).gather() == R.random(seed=1)
        True
        """
        return divided.uniform(self, ring, seed, start, order, log_height)


def devices(*names: str) -> Devices:
    """Several devices that compute on values together, by default all GPUs.

    Args:
        names: "cuda:0", "cuda:1", ...; or devices of the host, such as "cpu" twice, for trying a program
            without GPUs.

    Raises:
        DeviceError: no such device, or GPUs and the host together.
        BackendUnavailable: a GPU does not answer, or there is none.

    >>> import polygpu as pg
    >>> two = pg.devices("cpu", "cpu")
    >>> a = two.spread(pg.Ring(4, 17).random(batch=8, seed=1))
    >>> (a * a).shape, [part.shape for part in a.parts]
    ((8,), [(4,), (4,)])
    """
    if any(not isinstance(name, str) for name in names):
        raise DeviceError(f"devices: {names!r} must be names: devices('cuda:0', 'cuda:1')")
    return Devices(names or gpu_names())
