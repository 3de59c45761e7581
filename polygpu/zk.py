"""Operations of proof systems on polynomials over a field: cosets, low-degree extensions, entrywise products.

A polynomial is evaluated at the points of a ring's transform, in its bit-reversed order. For cyclic rings the
points are the powers of omega, a subgroup H of the field; a coset is shift * H. In a ring of several limbs
every operation acts modulo each prime. Results are on the device of the operands.
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
        ring: the ring whose moduli are used; any ring.
        x: integers of any size and sign, one or an array of any shape.
        count: how many powers; at least 0.

    Returns:
        Residues (*x.shape, rows, count) of the ring's dtype. With count = n, ring.from_residues makes
        polynomials of them.

    Raises:
        ParameterError: ring is not a Ring, or a count below 0. NotAnInteger: x or count is not an int.
        OutOfHostMemory, OutOfDeviceMemory: it does not fit.

    Cost: up to about 2 count products for each x and limb, in about 2 log2 count calls of a backend.

    >>> powers(Ring(4, [17, 97]), 3, count=5).tolist()
    [[1, 3, 9, 10, 13], [1, 3, 9, 27, 81]]
    """
    basis = plan_of(ring, "ring").basis
    length = integer(count, "count")
    if length < 0:
        raise ParameterError(f"count: {shown(length)} must be at least 0")
    numbers = points.checked_points(x)
    return points.powers(basis, constants(basis, numbers, backend()), length)


def hadamard(a: Poly, b: Poly, *, out: Poly | None = None) -> Poly:
    """Multiply two vectors of coefficients entry by entry (Hadamard product): c_j = a_j b_j.

    It is not the product of the polynomials, which is a * b.

    Args:
        a: values of any ring; evaluated ones are brought to coefficients.
        b: of a's ring and device; batch axes broadcast.
        out: see Poly.mul.

    Returns:
        A value in coefficients.

    Raises:
        RingMismatch: operands of different rings, or an operand that is not a Poly.
        ParameterError: batch axes that do not broadcast.
        DeviceError: operands on two devices. OutputError: `out` cannot take the result.

    Cost: one pass; inverse transforms of evaluated operands.

    >>> R = Ring(4, 17)
    >>> hadamard(R([1, 2, 3, 4]), R([5, 6, 7, 8])).to_bigints().tolist()
    [5, 12, 4, 15]
    """
    y = intt(checked_poly(a, "a")._operand(checked_poly(b, "b")))
    x = intt(a)
    data = pointwise(x._plan.basis, "mul", x._data, y._data, memory_of(x._plan, out))
    return held(x._with(data), out)


def pad(a: Poly, n: int | Ring) -> Poly:
    """Return the polynomial of degree below a.ring.n with the same coefficients, in a ring of larger degree.

    Args:
        a: a value; an evaluated one is brought to coefficients.
        n: the degree of the larger ring, which then has a's moduli, kind and rule for roots. Or that ring
            itself, of any kind and roots, with a's moduli.

    Returns:
        A value in coefficients; a itself if it is in coefficients and its ring is the one asked for.

    Raises:
        ParameterError: a smaller degree.
        RingMismatch: a ring of other moduli.
        BadRoot: n is a degree, and the roots of a's ring were given: they do not serve another degree. Give
            the larger ring.

    Cost: a copy; an inverse transform of an evaluated value.

    >>> pad(Ring(2, 17)([1, 2]), 4).to_bigints().tolist()
    [1, 2, 0, 0]
    """
    a = checked_poly(a, "a").intt()
    ring = n if isinstance(n, Ring) else _of_degree(a.ring, integer(n, "n"))
    if ring.moduli != a.ring.moduli:
        raise RingMismatch(f"pad: {ring!r} has other moduli than {a.ring!r}; a.convert(...) changes moduli")
    if ring.n < a.ring.n:
        raise ParameterError(
            f"n: {ring.n} must be at least {a.ring.n}, the degree of a's ring; zk.interpolate(values, n) "
            "gives polynomials of smaller degree"
        )
    if ring._plan is a._plan:
        return a
    data = points.padded(a.data, ring.n)
    return Poly._make(ring, data if data is not a.data else a.copy().data, "coef")


def _of_degree(ring: Ring, n: int) -> Ring:
    """Return the ring of degree n with the same moduli, kind and rule for roots.

    Raises:
        BadRoot: n is not the degree of `ring`, whose roots were given.
    """
    if n == ring.n:
        return ring
    root = ring._plan.root
    if not isinstance(root, str):
        raise BadRoot(
            f"n: {shown(n)} needs roots of its own, and those of {ring!r} were given; "
            "zk.pad(a, larger_ring) takes the ring, and zk.coset_ntt gives values there"
        )
    return Ring(n, ring.moduli, kind=ring.kind, root=root, product=ring.product)


def coset_ntt(a: Poly, shift: int) -> Poly:
    """Return the values of a polynomial of degree below n at shift times the points of its ring.

    Args:
        a: the polynomial; an evaluated value is brought to coefficients.
        shift: an int of any size and sign that is not 0 modulo any limb.

    Returns:
        A value of a's ring in "eval": entry k is a(shift omega^br(k)) (cyclic) or a(shift psi^(2 br(k) + 1))
        (negacyclic).

    Raises:
        ParameterError: shift is 0 modulo a limb.
        NotNTTFriendly: the ring has no complete transform.

    Cost: one pass that multiplies coefficient j by shift^j, two products each, and a transform.

    >>> R = Ring(4, 17, kind="cyclic")
    >>> a = R([1, 2, 3])
    >>> [int(x) for x in coset_ntt(a, 3).data[0]] == a([3 * int(x) for x in R.eval_points()]).tolist()
    True
    """
    a = checked_poly(a, "a")
    _check_complete(a.ring)
    return _scaled(a.intt(), _unit(a.ring, shift)).ntt()


def coset_intt(values: Poly, shift: int) -> Poly:
    """Return the polynomial of degree below n with these values at shift times the points; undo coset_ntt.

    Args:
        values: of a ring with a complete transform, in "eval" as coset_ntt returns it.
        shift: see coset_ntt.

    Returns:
        A value in coefficients.

    Raises:
        ParameterError: shift is 0 modulo a limb.
        NotNTTFriendly: the ring has no complete transform.

    Cost: an inverse transform, and a pass of two products a coefficient.

    >>> a = Ring(4, 17, kind="cyclic")([1, 2, 3])
    >>> coset_intt(coset_ntt(a, 3), 3) == a
    True
    """
    values = checked_poly(values, "values")
    _check_complete(values.ring)
    unit = _unit(values.ring, shift)
    return _scaled(values.intt(), pow(unit, -1, values.ring.modulus))


def low_degree_extension(a: Poly, factor: int, *, shift: int = 1) -> Poly:
    """Return the values of a polynomial of degree below n at factor * n points: a Reed-Solomon code word.

    Args:
        a: the polynomial; an evaluated value, such as a's values on H, is brought to coefficients.
        factor: a power of two, the inverse of the code's rate.
        shift: the values are taken at shift times the points of the larger ring. A generator of the field's
            multiplicative group makes these points disjoint from H.

    Returns:
        A value in "eval" of the ring of degree factor * n with a's moduli, kind and rule for roots. In a
        cyclic ring entry k is a(shift omega^br(k)), omega of order factor * n. With root="generator",
        omega^factor is the root of a's ring, and for shift = 1 the first n entries are a's own values.

    Raises:
        ParameterError: factor is not a power of two; shift is 0 modulo a limb.
        NotNTTFriendly: the ring of degree factor * n has no complete transform.
        BadRoot: the roots of a's ring were given; coset_ntt(pad(a, larger_ring), shift) takes a ring with
            roots of your choice.

    Cost: a transform of factor * n points; for shift other than 1 a pass of two products a coefficient. An
    inverse transform of n points of an evaluated value. Source: Reed & Solomon 1960.

    >>> a = Ring.preset("babybear", 4)([1, 2, 3])
    >>> extended = low_degree_extension(a, 2)
    >>> extended.ring.n, extended.data[0, :4].tolist() == a.ntt().data[0].tolist()
    (8, True)
    """
    a = checked_poly(a, "a")
    times = integer(factor, "factor")
    if times < 1 or times & (times - 1):
        raise ParameterError(f"factor: {shown(times)} must be a power of two, from 1 on")
    ring = _of_degree(a.ring, times * a.ring.n)
    _check_complete(ring)
    scaled = _scaled(a.intt(), _unit(ring, shift))
    return Poly._make(ring, points.padded(scaled.data, ring.n), "coef").ntt()


def interpolate(values: Poly, n: int, *, shift: int = 1) -> Poly:
    """Return the polynomial of degree below n with these values: the inverse of low_degree_extension.

    Args:
        values: of a ring with a complete transform, in "eval": the values at shift times its points.
        n: degree of the smaller ring, at most that of values.
        shift: see low_degree_extension.

    Returns:
        A value in coefficients of the ring of degree n with the same moduli, kind and rule for roots.

    Raises:
        ParameterError: no polynomial of degree below n has these values (the message says for which batch
            element); n is outside its range; shift is 0 modulo a limb.
        NotNTTFriendly: the ring has no complete transform. BadRoot: its roots were given, and n is not its
            degree.

    Cost: an inverse transform of all points. It waits for a GPU, to see whether the coefficients from n on
    are 0.

    >>> a = Ring.preset("babybear", 4)([1, 2, 3])
    >>> interpolate(low_degree_extension(a, 4, shift=31), 4, shift=31) == a
    True
    """
    a = coset_intt(values, shift)
    degree = integer(n, "n")
    if not 1 <= degree <= a.ring.n:
        raise ParameterError(f"n: {shown(degree)} must be from 1 to {a.ring.n}, the degree of values' ring")
    ring = _of_degree(a.ring, degree)
    data, item = points.truncated(a.data, degree)
    if item is not None:
        at = f"batch element {item} has" if item else "they have"
        raise ParameterError(
            f"values: of no polynomial of degree below n = {degree}: {at} coefficients that are not 0 from "
            "there on; zk.coset_intt(values, shift) gives them all"
        )
    return Poly._make(ring, data, "coef")


def _scaled(a: Poly, unit: int) -> Poly:
    """Return the coefficients of a(unit X), from those of a."""
    return a if unit == 1 else a._with(points.scale_by_powers(a._plan.basis, a.data, unit))


def _unit(ring: Ring, shift: object) -> int:
    """Return the shift modulo Q; raise ParameterError if it has no inverse."""
    x = integer(shift, "shift") % ring.modulus
    if gcd(x, ring.modulus) != 1:
        q = next(q for q in ring.moduli if gcd(x, q) != 1)
        raise ParameterError(f"shift: {shown(shift)} is 0 modulo {shown(q)}; give one that is a unit")
    return x


def _check_complete(ring: Ring) -> None:
    ring._plan.check_eval()
    if ring.leaf_size != 1:
        raise NotNTTFriendly(
            f"{ring!r}: its transform stops at leaves of {ring.leaf_size} coefficients, which are no values "
            f"at points; ntt_primes({ring.n}, bits=..., kind={ring.kind!r}) lists moduli with a complete one"
        )
