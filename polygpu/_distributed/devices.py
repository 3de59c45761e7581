"""Devices: several GPUs of one host that compute on values together."""

from __future__ import annotations

from .._backends import gpu_names
from .._ops.sampling import Seed
from ..errors import DeviceError
from ..poly import Poly
from ..ring import Ring
from . import divided, spread
from .divided import Divided, Order
from .group import Group
from .spread import Axis, Spread


class Devices(Group):
    """Several devices that compute on values together; polygpu.devices makes one.

    `names` are the devices' full names, in order; len() is their number. Devices with equal names are equal.

    >>> import polygpu as pg
    >>> two = pg.devices("cpu", "cpu")
    >>> two.names, len(two)
    (('cpu', 'cpu'), 2)
    """

    def __repr__(self) -> str:
        return f"devices({', '.join(map(repr, self.names))})"

    def spread(self, x: Poly, axis: Axis | None = None) -> Spread:
        """Return a value whose batch or limbs are divided among the devices, or which is copied to each.

        Args:
            x: a value on any device.
            axis: "batch" divides the first batch axis in runs whose lengths differ by one at most. "limbs"
                divides the moduli. "copies" gives all of x to each device. By default a batch is divided by
                "batch", a single polynomial by "limbs".

        Raises:
            ParameterError: another axis; "batch" for a single polynomial; fewer limbs than devices.
            RingMismatch: x is not a Poly.
            OutOfHostMemory, OutOfDeviceMemory: it does not fit.

        Cost: a copy of each part to its device. On the host the parts of a batch share x's memory.

        >>> import polygpu as pg
        >>> two = pg.devices("cpu", "cpu")
        >>> R = pg.Ring(4, 17)
        >>> c = two.spread(R([[1, 2], [3, 4], [5, 6]])) * two.spread(R([0, 1]), axis="copies")
        >>> c.gather().to_bigints().tolist()
        [[0, 1, 2, 0], [0, 3, 4, 0], [0, 5, 6, 0]]
        """
        return spread.spread(self, x, axis)

    def divide(self, x: Poly, *, order: Order = "transposed", log_height: int | None = None) -> Divided:
        """Return a value with its coefficients divided among the devices: for polynomials that outgrow one.

        Args:
            x: a value on any device. Its ring has a complete transform. The number of devices is a power of
                two, and n is at least the square of that number.
            order: how coefficients lie. "natural" gives each device a run of n / devices neighbouring
                coefficients. "transposed" gives it columns of the matrix of coefficients, which spares each
                transform one of its two exchanges. Evaluated values are in the ring's order, in runs.
            log_height: log2 of the number of rows of that matrix; by default it depends on n and the devices.

        Raises:
            NotNTTFriendly: the ring has no complete transform modulo primes below 2**64.
            ParameterError: another order; sizes that do not divide; log_height outside its range.
            RingMismatch: x is not a Poly.
            OutOfHostMemory, OutOfDeviceMemory: it does not fit.

        Cost: a copy of each part to its device. Divided values are meant for few polynomials of large degree:
        the polynomials of a batch are transformed one after the other.
        Source: Bailey 1990, "FFTs in external or hierarchical memory"; docs/math.md, "Four steps".

        >>> import polygpu as pg
        >>> two = pg.devices("cpu", "cpu")
        >>> R = pg.Ring(64, 257)
        >>> a, b = R.random(seed=1), R.random(seed=2)
        >>> (two.divide(a) * two.divide(b)).gather() == a * b
        True
        """
        return divided.divide(self, x, order, log_height)

    def random(
        self, ring: Ring, *, seed: Seed = None, start: int = 0, order: Order = "transposed",
        log_height: int | None = None,
    ) -> Divided:  # fmt: skip
        """Return one uniform polynomial, with its coefficients divided among the devices.

        The coefficients are those of ring.random(seed=seed, start=start). Each device draws its own, so that
        no memory has to hold all of them.

        Args:
            ring: a ring that divide takes.
            seed: see Ring.random.
            start: number of the polynomial in the stream, below 2**40.
            order: see divide.
            log_height: see divide.

        Raises:
            ParameterError: a start outside [0, 2**40). All else is as in divide and Ring.random.

        Cost: on each device that of Ring.random for n / devices coefficients. Transposed order takes an
        exchange.

        >>> import polygpu as pg
        >>> R = pg.Ring(64, 257)
        >>> pg.devices("cpu", "cpu").random(R, seed=1).gather() == R.random(seed=1)
        True
        """
        return divided.uniform(self, ring, seed, start, order, log_height)


def devices(*names: str) -> Devices:
    """Several devices that compute on values together.

    Args:
        names: "cuda:0", "cuda:1", ...; all GPUs by default. With "cpu" given twice a program can be tried
            without GPUs.

    Raises:
        DeviceError: there is no such device, or names of GPUs and of the host are mixed.
        BackendUnavailable: a GPU does not answer, or there is none.

    Cost: none; nothing is allocated.

    >>> import polygpu as pg
    >>> two = pg.devices("cpu", "cpu")
    >>> a = two.spread(pg.Ring(4, 17).random(batch=8, seed=1))
    >>> (a * a).shape, [part.shape for part in a.parts]
    ((8,), [(4,), (4,)])
    """
    if any(not isinstance(name, str) for name in names):
        raise DeviceError(f"devices: {names!r} must be names: devices('cuda:0', 'cuda:1')")
    return Devices(names or gpu_names())
