"""Operations of proof systems on polynomials over a field: cosets, low-degree extensions, entrywise products.

A polynomial is evaluated at the points of a ring's transform, in bit-reversed order. For a cyclic ring the
points are the powers of omega, the root in ring.roots. They form a subgroup H of the field's multiplicative
group, and shift * H is a coset. In a ring of several limbs every operation acts modulo each prime. Results
are on the device of the operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from ._backends import Array, backend
from ._core.checks import integer, shown
from ._ops import points
from ._ops.integers import constants
from ._ops.pointwise import pointwise
from ._ops.transform import intt
from .errors import BadRoot, NotNTTFriendly, ParameterError, RingMismatch
from .poly import Poly, checked_poly, held, memory_of, plan_of
from .ring import Ring

__all__ = ["coset_intt", "coset_ntt", "hadamard", "interpolate", "low_degree_extension", "pad", "powers"]


def powers(ring: Ring, x: int | Sequence[int] | Array, *, count: int) -> Array:
    """Return x^0, x^1, ..., x^(count - 1) modulo each limb, on the current device.

    Args:
        ring: any ring. Only its moduli matter.
        x: one integer of any size and sign, or an array of integers, of any shape.
        count: number of powers, at least 0.

    Returns:
        Residues of the ring's dtype, in an array of shape (*x.shape, rows, count), where rows is the number
        of limbs. If count is the ring's degree, ring.from_residues turns the array into polynomials.

    Raises:
        ParameterError: ring is not a Ring, or count is negative. NotAnInteger: x or count is not an int.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Cost: at most about 2 * count products per x and limb, in about 2 log2(count) passes.

    >>> powers(Ring(4, [17, 97]), 3, count=5).tolist()
    [[1, 3, 9, 10, 13], [1, 3, 9, 27, 81]]
    """
    basis = plan_of(ring, "ring").basis
    length = integer(count, "count")
    if length < 0:
        raise ParameterError(f"count={shown(length)} must be at least 0.")
    numbers = points.checked_points(x)
    return points.powers(basis, constants(basis, numbers, backend()), length)


def hadamard(a: Poly, b: Poly, *, out: Poly | None = None) -> Poly:
    """Multiply two vectors of coefficients entry by entry (Hadamard product): c_j = a_j * b_j.

    This is not the product of the polynomials a and b. Use a * b for that.

    Args:
        a: values of any ring. An evaluated operand is transformed to coefficients first.
        b: values of a's ring and device. Batch axes broadcast.
        out: see Poly.mul.

    Returns:
        A value in coefficients.

    Raises:
        RingMismatch: the operands are in different rings, or one of them is not a Poly.
        ParameterError: the batch axes do not broadcast.
        DeviceError: the operands are on different devices.
        OutputError: `out` cannot hold the result (see Poly).

    Cost: one pass, and inverse transforms of evaluated operands.

    >>> R = Ring(4, 17)
    >>> hadamard(R([1, 2, 3, 4]), R([5, 6, 7, 8])).to_bigints().tolist()
    [5, 12, 4, 15]
    """
    y = intt(checked_poly(a, "a")._operand(checked_poly(b, "b")))
    x = intt(a)
    data = pointwise(x._plan.basis, "mul", x._data, y._data, memory_of(x._plan, out))
    return held(x._with(data), out)


def pad(a: Poly, n: int | Ring) -> Poly:
    """Return the polynomial in a ring of larger degree: the same coefficients, followed by zeros.

    Args:
        a: a value. If it is evaluated, it is transformed to coefficients first.
        n: the larger ring, or its degree. A ring must have a's moduli, and may have any kind and roots. A
            degree stands for the ring of this degree with the moduli, kind, `root` and `product` of a's ring.

    Returns:
        A value in coefficients. If a is in coefficients and the larger ring is a's ring, the result is a.

    Raises:
        ParameterError: the degree is smaller than that of a's ring.
        RingMismatch: n is a ring of other moduli.
        BadRoot: n is a degree, and the roots of a's ring were given as ints, which do not fit another degree.
            Give the larger ring instead.

    Cost: a copy, and an inverse transform if a is evaluated.

    >>> pad(Ring(2, 17)([1, 2]), 4).to_bigints().tolist()
    [1, 2, 0, 0]
    """
    a = checked_poly(a, "a").intt()
    ring = n if isinstance(n, Ring) else _of_degree(a.ring, integer(n, "n"), "zk.pad(a, larger_ring)")
    if ring.moduli != a.ring.moduli:
        raise RingMismatch(
            f"pad needs a ring with the moduli of {a.ring!r}, but {ring!r} has others. Use a.convert to "
            "change moduli."
        )
    if ring.n < a.ring.n:
        raise ParameterError(
            f"n={ring.n} must be at least {a.ring.n}, the degree of the ring of a. If a has degree below n, "
            "use zk.interpolate(a.ntt(), n) to bring a into the smaller ring."
        )
    if ring._plan is a._plan:
        return a
    data = points.padded(a.data, ring.n)
    return Poly._make(ring, data if data is not a.data else a.copy().data, "coef")


def _of_degree(ring: Ring, n: int, call: str = "") -> Ring:
    """Return the ring of degree n with the moduli, kind, `root` and `product` of `ring`.

    call: the call that the error text recommends, with larger_ring as an argument. If `call` is "", the text
        recommends coset_intt.

    Raises:
        BadRoot: n is not the degree of `ring`, and the roots of `ring` were given as ints.
    """
    if n == ring.n:
        return ring
    root = ring._plan.root
    if not isinstance(root, str):
        way = "Use zk.coset_intt(values, shift) to get all coefficients in the ring of values."
        if call:
            way = f"Make larger_ring, a ring of this degree with its own roots, and use {call}."
        raise BadRoot(
            f"The roots of {ring!r} were given as ints, and they do not fit a ring of degree "
            f"n={shown(n)}. {way}"
        )
    return Ring(n, ring.moduli, kind=ring.kind, root=root, product=ring.product)


def coset_ntt(a: Poly, shift: int) -> Poly:
    """Return the values of a polynomial at shift times the points of its ring.

    Args:
        a: the polynomial. If it is evaluated, it is transformed to coefficients first.
        shift: an int of any size and sign that is not 0 modulo any limb.

    Returns:
        An evaluated value of a's ring. Entry k is a(shift * omega^br(k)) if the ring is cyclic, and
        a(shift * psi^(2 * br(k) + 1)) if it is negacyclic. Here omega or psi is the root in ring.roots, and
        br(k) is k with its bits reversed.

    Raises:
        ParameterError: shift is 0 modulo a limb.
        NotNTTFriendly: the ring has no complete transform.

    Cost: one pass that multiplies coefficient j by shift^j, with two products per coefficient, and a
    transform.

    >>> R = Ring(4, 17, kind="cyclic")
    >>> a = R([1, 2, 3])
    >>> [int(x) for x in coset_ntt(a, 3).data[0]] == a([3 * int(x) for x in R.eval_points()]).tolist()
    True
    """
    a = checked_poly(a, "a")
    _check_complete(a.ring)
    return _scaled(a.intt(), _unit(a.ring, shift)).ntt()


def coset_intt(values: Poly, shift: int) -> Poly:
    """Return the polynomial with given values at shift times the points of its ring.

    This undoes coset_ntt.

    Args:
        values: the values, a Poly in "eval" as coset_ntt returns it.
        shift: see coset_ntt.

    Returns:
        A value in coefficients.

    Raises:
        ParameterError: shift is 0 modulo a limb.
        NotNTTFriendly: the ring has no complete transform.

    Cost: an inverse transform, and one pass with two products per coefficient.

    >>> a = Ring(4, 17, kind="cyclic")([1, 2, 3])
    >>> coset_intt(coset_ntt(a, 3), 3) == a
    True
    """
    values = checked_poly(values, "values")
    _check_complete(values.ring)
    unit = _unit(values.ring, shift)
    return _scaled(values.intt(), pow(unit, -1, values.ring.modulus))


def low_degree_extension(a: Poly, factor: int, *, shift: int = 1) -> Poly:
    """Return the values of a polynomial at factor * n points; n is its ring's degree (Reed-Solomon code).

    Args:
        a: the polynomial. If it is given by its values (evaluated), it is transformed to coefficients first.
        factor: a power of two, the inverse of the code's rate.
        shift: an int. The values are taken at shift times the points of the larger ring. If shift is a
            generator of the field's multiplicative group, none of these points is a point of a's ring.

    Returns:
        An evaluated value of the larger ring, which has degree factor * n and the moduli, kind, `root` and
        `product` of a's ring. In a cyclic ring entry k is a(shift * omega^br(k)), where omega, of order
        factor * n, is the root of the larger ring, and br(k) is k with its bits reversed. If a's ring was
        made with root="generator", omega^factor is the root of a's ring. If also shift is 1, the first n
        entries are those of a.ntt().

    Raises:
        ParameterError: factor is not a power of two, or shift is 0 modulo a limb.
        NotNTTFriendly: the larger ring has no complete transform.
        BadRoot: the roots of a's ring were given as ints. Use coset_ntt(pad(a, larger_ring), shift) with a
            larger ring that has the roots you want.

    Cost: a transform of factor * n points; if shift is not 1, a pass with two products per coefficient; if a
    is evaluated, an inverse transform of n points. Source: Reed & Solomon 1960.

    >>> a = Ring.preset("babybear", 4)([1, 2, 3])
    >>> extended = low_degree_extension(a, 2)
    >>> extended.ring.n, extended.data[0, :4].tolist() == a.ntt().data[0].tolist()
    (8, True)
    """
    a = checked_poly(a, "a")
    times = integer(factor, "factor")
    if times < 1 or times & (times - 1):
        raise ParameterError(f"factor={shown(times)} must be a power of two, at least 1.")
    ring = _of_degree(a.ring, times * a.ring.n, "zk.coset_ntt(zk.pad(a, larger_ring), shift)")
    _check_complete(ring)
    scaled = _scaled(a.intt(), _unit(ring, shift))
    return Poly._make(ring, points.padded(scaled.data, ring.n), "coef").ntt()


def interpolate(values: Poly, n: int, *, shift: int = 1) -> Poly:
    """Return the polynomial of degree below n with these values: the inverse of low_degree_extension.

    Args:
        values: the values at shift times the points of their ring, a Poly in "eval".
        n: degree of the smaller ring, at most the degree of values.ring.
        shift: see low_degree_extension.

    Returns:
        A value in coefficients, of the ring of degree n with the moduli, kind, `root` and `product` of
        values.ring.

    Raises:
        ParameterError: no polynomial of degree below n has these values (the message says for which batch
            element), n is outside its range, or shift is 0 modulo a limb.
        NotNTTFriendly: values.ring has no complete transform.
        BadRoot: the roots of values.ring were given as ints, and n is not the degree of values.ring.

    Cost: an inverse transform of all points, and one pass with two products per coefficient. The call waits
    for the GPU, to see whether the coefficients of X^n and above are 0.

    >>> a = Ring.preset("babybear", 4)([1, 2, 3])
    >>> interpolate(low_degree_extension(a, 4, shift=31), 4, shift=31) == a
    True
    """
    a = coset_intt(values, shift)
    degree = integer(n, "n")
    if not 1 <= degree <= a.ring.n:
        raise ParameterError(
            f"n={shown(degree)} must be from 1 to {a.ring.n}, the degree of the ring of values."
        )
    ring = _of_degree(a.ring, degree)
    data, item = points.truncated(a.data, degree)
    if item is not None:
        at = f" at batch element {item}" if item else ""
        raise ParameterError(
            f"The polynomial of values{at} must have degree below n={degree}, but it has coefficients at "
            f"X^{degree} or above that are not 0. Use zk.coset_intt(values, shift) to get all coefficients."
        )
    return Poly._make(ring, data, "coef")


def _scaled(a: Poly, unit: int) -> Poly:
    """Return the polynomial a(unit * X). Both a and the result are in coefficients."""
    return a if unit == 1 else a._with(points.scale_by_powers(a._plan.basis, a.data, unit))


def _unit(ring: Ring, shift: object) -> int:
    """Return `shift` modulo Q. Raise ParameterError if `shift` has no inverse modulo Q."""
    x = integer(shift, "shift") % ring.modulus
    if gcd(x, ring.modulus) != 1:
        q = next(q for q in ring.moduli if gcd(x, q) != 1)
        raise ParameterError(
            f"shift={shown(shift)} is 0 modulo {shown(q)}. Use a shift that is a unit for every modulus."
        )
    return x


def _check_complete(ring: Ring) -> None:
    ring._plan.check_eval()
    if ring.leaf_size != 1:
        raise NotNTTFriendly(
            f"The transform of {ring!r} stops at leaves of {ring.leaf_size} coefficients, but values at "
            f"points need a complete transform. {ring._plan.where_complete()}"
        )
