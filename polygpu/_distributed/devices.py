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
    """Several devices that compute on values together. polygpu.devices makes such an object.

    `names` holds the full names of the devices, in order, and len() returns the number of devices. Two
    Devices objects are equal if their names are equal.

    >>> import polygpu as pg
    >>> two = pg.devices("cpu", "cpu")
    >>> two.names, len(two)
    (('cpu', 'cpu'), 2)
    """

    def __repr__(self) -> str:
        return f"devices({', '.join(map(repr, self.names))})"

    def spread(self, x: Poly, axis: Axis | None = None) -> Spread:
        """Return x with its batch or its limbs divided among the devices, or with a copy on each device.

        Args:
            x: a value on any device.
            axis: "batch" divides the first batch axis into ranges whose lengths differ by at most one.
                "limbs" divides the moduli. "copies" gives all of x to each device. None means "limbs" for a
                single polynomial with several limbs, and "batch" for every other x.

        Raises:
            ParameterError: `axis` is not one of these names, or it is "batch" and x is a single polynomial,
                or it is "limbs" and the ring has fewer moduli than devices or a modulus above 2**64.
            RingMismatch: x is not a Poly.
            OutOfHostMemory, OutOfDeviceMemory: a part does not fit in the memory of its device.

        Cost: a copy of each part to its device. If x and the devices are on the host, the parts for "batch"
        and "copies" are not copied but share memory with x.

        >>> import polygpu as pg
        >>> two = pg.devices("cpu", "cpu")
        >>> R = pg.Ring(4, 17)
        >>> c = two.spread(R([[1, 2], [3, 4], [5, 6]])) * two.spread(R([0, 1]), axis="copies")
        >>> c.gather().to_bigints().tolist()
        [[0, 1, 2, 0], [0, 3, 4, 0], [0, 5, 6, 0]]
        """
        return spread.spread(self, x, axis)

    def divide(self, x: Poly, *, order: Order = "transposed", log_height: int | None = None) -> Divided:
        """Return x with its coefficients divided among the devices.

        This is for polynomials that are too large for one device.

        Args:
            x: a value on any device. Its ring must have a complete transform. The number of devices must be a
                power of two, and n must be at least the square of this number.
            order: how the coefficients are divided. "natural" gives each device a run of n / devices
                neighbouring coefficients. For "transposed" the coefficients are written into a matrix row by
                row, and each device gets neighbouring columns of this matrix. A transform then needs one
                exchange of coefficients between all devices; from "natural" it needs two. Evaluated values
                are always in the ring's order, and each device has a run of n / devices of them.
            log_height: log2 of the number of rows of the matrix. If it is None, it is chosen from n and the
                devices.

        Raises:
            NotNTTFriendly: the ring has no complete transform modulo primes below 2**64.
            ParameterError: `order` is not one of these names, the number of devices does not satisfy the
                conditions above, or log_height is outside its range.
            RingMismatch: x is not a Poly.
            OutOfHostMemory, OutOfDeviceMemory: a part does not fit in the memory of its device.

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

        The coefficients are the same as those of ring.random(seed=seed, start=start). Each device draws its
        own coefficients, so no device has to hold all of them.

        Args:
            ring: a ring that fulfils the conditions of divide.
            seed: see Ring.random.
            start: index of the polynomial in the stream of `seed`, below 2**40.
            order: see divide.
            log_height: see divide.

        Raises:
            ParameterError: `start` is outside [0, 2**40), or a condition of divide or Ring.random is not
                fulfilled. Other errors are those of divide and Ring.random.

        Cost: on each device the same as for Ring.random with n / devices coefficients. For "transposed",
        every device also sends a part of its coefficients to every other device.

        >>> import polygpu as pg
        >>> R = pg.Ring(64, 257)
        >>> pg.devices("cpu", "cpu").random(R, seed=1).gather() == R.random(seed=1)
        True
        """
        return divided.uniform(self, ring, seed, start, order, log_height)


def devices(*names: str) -> Devices:
    """Return a Devices object for several devices that compute on values together.

    Args:
        names: names such as "cuda:0", "cuda:1". Without names, all GPUs are used. A name may be repeated:
            devices("cpu", "cpu") lets you try a program without GPUs.

    Raises:
        DeviceError: a name is not the name of a device, or names of GPUs and of the host are mixed.
        BackendUnavailable: a GPU does not answer, or no name is given and the host does not have a GPU.

    Cost: none; nothing is allocated.

    >>> import polygpu as pg
    >>> two = pg.devices("cpu", "cpu")
    >>> a = two.spread(pg.Ring(4, 17).random(batch=8, seed=1))
    >>> (a * a).shape, [part.shape for part in a.parts]
    ((8,), [(4,), (4,)])
    """
    if any(not isinstance(name, str) for name in names):
        raise DeviceError(f"devices={names!r} must be names, as in devices('cuda:0', 'cuda:1').")
    return Devices(names or gpu_names())
