"""Functions of several polynomials: sums of products, equality, joining, recorded work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .backends import Array
from .errors import ParameterError
from .ops import batch
from .ops import einsum as sums
from .ops.multiply import multiply_add
from .poly import Poly, checked_poly
from .recording import Recording


def fma(a: Poly, b: Poly | int, c: Poly | int, out: Poly | None = None) -> Poly:
    """a * b + c, in one pass over evaluated operands; domains and broadcasting as for operators.

    >>> from polygpu import Ring
    >>> R = Ring(4, 17)
    >>> fma(R([1, 1]), R([2]), R([3])).to_bigints().tolist()
    [5, 2, 0, 0]
    """
    a = checked_poly(a, "a")
    b, c = a._operand(b), a._operand(c)
    if "eval" in (a._domain, b._domain, c._domain):
        a, b, c = a.ntt(), b.ntt(), c.ntt()
    memory = None if out is None else a._memory(out)
    data = multiply_add(a._ring, a._data, b._data, c._data, a._domain, memory)
    return a._result(data, a._domain, out)


def matmul(a: Poly, b: Poly, out: Poly | None = None) -> Poly:
    """The product of matrices of polynomials, a @ b, by NumPy's rules.

    The last two batch axes are matrices, the others broadcast; a value of one batch axis is a row on the
    left, a column on the right.

    Args:
        a: values of at least one batch axis.
        b: of a's ring and device.
        out: as of Poly.mul.

    Returns:
        Coefficients of coefficients, with one inverse transform; "eval" where an operand is.

    Raises:
        ParameterError: shapes that do not fit.
        RingMismatch, DeviceError, OutputError: as of Poly.mul; also an operand that is no Poly.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Cost: a transform for each entry of operands and result, and m k n products of residues for each limb and
    point. Without a complete transform (ML-KEM, product="fft", unfriendly moduli) m k n products of
    polynomials.

    >>> from polygpu import Ring
    >>> x = Ring(4, 17)([[[0, 1], [2, 0]], [[3, 0], [1, 1]]])
    >>> (x @ x[:, 0]).to_bigints(centered=True).tolist()
    [[6, 0, 1, 0], [3, 6, 0, 0]]
    """
    return checked_poly(a, "a")._matmul(b, out)


def dot(a: Poly, b: Poly | int, axis: int = -1, out: Poly | None = None) -> Poly:
    """Inner product over a batch axis: the sum of a[i] * b[i], with one inverse transform.

    As matmul in all else: domains, errors, cost.

    Args:
        a: values of at least one batch axis.
        b: of a's ring and device, or an int; batch axes broadcast, as of a * b.
        axis: of the broadcast batch shape, the last by default.
        out: as of Poly.mul.

    >>> from polygpu import Ring
    >>> R = Ring(4, 17)
    >>> dot(R([[1], [2]]), R([[0, 1, 0], [0, 0, 1]])).to_bigints().tolist()
    [0, 1, 2, 0]
    """
    b = checked_poly(a, "a")._operand(b)
    memory = None if out is None else a._memory(out)
    arrays, domains = (a._data, b._data), (a._domain, b._domain)
    return a._result(*sums.dot(a._ring, arrays, domains, axis, memory), out)


def einsum(subscripts: str, *operands: Poly, out: Poly | None = None) -> Poly:
    """Sums of products over labelled batch axes, by NumPy's rules: "ij,jk->ik" is the product of matrices.

    Args:
        subscripts: a letter for each batch axis of each operand, "..." for axes that broadcast. Without "->"
            the result has "...", then the letters that occur once, in alphabetical order. A letter twice in
            one operand takes its diagonal. Coefficients and limbs are no axes.
        operands: values of one ring and device. More than two are multiplied pairwise from the left.
        out: as of Poly.mul.

    Returns:
        Coefficients of coefficients; "eval" where an operand is.

    Raises:
        ParameterError: subscripts that say nothing, or do not fit the operands' shapes.
        RingMismatch, DeviceError, OutputError, OutOfHostMemory, OutOfDeviceMemory: as matmul.

    Cost: of two operands a batch of matrix products (see matmul); axes that only one has are summed first.

    >>> from polygpu import Ring
    >>> x = Ring(4, 17)([[[0, 1], [2, 0]], [[3, 0], [1, 1]]])
    >>> einsum("ii", x).to_bigints().tolist()
    [1, 2, 0, 0]
    >>> einsum("ij,kj->ik", x, x) == x @ einsum("ij->ji", x)
    True
    """
    if not operands:
        raise ParameterError("einsum: no operands; give a Poly for each term of the subscripts")
    first = checked_poly(operands[0], "operand 0")
    polys = [first._operand(checked_poly(x, f"operand {i}")) for i, x in enumerate(operands)]
    memory = None if out is None else first._memory(out)
    arrays, domains = [x._data for x in polys], [x._domain for x in polys]
    return first._result(*sums.einsum(first._ring, subscripts, arrays, domains, memory), out)


def equal(a: Poly | int, b: Poly | int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether values are equal, for each batch element: bools of the broadcast batch shape."""
    if not isinstance(a, Poly):
        a, b = b, a
    return checked_poly(a, "a")._equal(b)


def capture(f: Callable[..., Any], *args: Any, rebind: bool = False) -> Callable[..., Any]:
    """Record f(*args) once, for repeated calls on values that change in place, or on others.

    On a GPU the work becomes a CUDA graph: calling the result launches it with one small call, reads what
    the arguments hold then (write them with out=) and returns the same objects, overwritten. Shapes and
    domains are fixed. On the CPU the result calls f(*args).

    Args:
        f: is called twice on a GPU, the second time for the record, and must do the same both times. The
            arguments are then as before; other values that f writes have been written once. What it does on
            the host it does not do again: it must not read values back (norm, ==, verify(), a modulus above
            2^64), draw random ones without a seed, or copy from the host. It leaves each argument in its
            domain: an out= is given in that of the result.
        args: at least one Poly, all of one device. Their domains are compared at each call.
        rebind: the result g takes other arguments too. g(*others) sets the pointers of the recorded launches
            and launches them; g() goes on with the arguments used last. A Poly takes another one of its ring,
            shape, domain and device; numbers, strings and tuples of them are equal to the recorded ones, all
            else is the same object. The others share memory as the recorded ones do: the same value in the
            same places, or none in common. What f reaches by another name stays what it is, in the domain it
            has when it is recorded, and cannot be an argument too, nor a part of it. Launches already under
            way go on with the arguments that they were given, and overwrite the same results. As of every
            call, keep those alive until they are done where they were made on another stream.

    Raises:
        ParameterError: no Poly among the arguments; random values without a seed. With rebind: f works on
            an argument by anything but this library's kernels (CuPy's join, copy, sum and broadcast over
            batch axes), or returns a part of it; others that do not fit.
        DomainError: f changes the domain of an argument (on the CPU when it is called); one is in another
            domain than recorded.
        RingMismatch, DeviceError: others of another ring or device; f reads values back, or does in its
            second run what it has not done in its first; the driver refuses.
        OutOfDeviceMemory: of f, of the graph, or of copies of the arguments that recording takes.

    Cost: with rebind, a few us for each launch that reads or writes an argument, where one is another.

    >>> from polygpu import Ring
    >>> R = Ring(4, 17)
    >>> a = R([1, 1])
    >>> square = capture(lambda x: x * x, a)
    >>> square().to_bigints().tolist()
    [1, 2, 1, 0]
    >>> square = capture(lambda x: x * x, a, rebind=True)
    >>> square(R([0, 1])).to_bigints().tolist()
    [0, 0, 1, 0]
    """
    if not any(isinstance(x, Poly) for x in args):
        raise ParameterError("capture: no Poly among the arguments; pass those that f works on")
    return Recording(f, args, rebind)


def stack(polys: Sequence[Poly], axis: int = 0) -> Poly:
    """Join polynomials of one batch shape along a new batch axis."""
    first, arrays = _in_one_domain(polys)
    return first._result(batch.stack(arrays, axis), first._domain)


def concatenate(polys: Sequence[Poly], axis: int = 0) -> Poly:
    """Join polynomials along a batch axis that they have."""
    first, arrays = _in_one_domain(polys)
    return first._result(batch.concatenate(arrays, axis), first._domain)


def _in_one_domain(polys: Sequence[Poly]) -> tuple[Poly, list[Array]]:
    """The first of them, and the data of all in one domain: eval where they differ."""
    values = list(polys)
    if not values or not all(isinstance(p, Poly) for p in values):
        raise ParameterError(f"polys: {len(values)} values; give at least one Poly, and nothing else")
    values = [values[0]._operand(p) for p in values]
    if any(p._domain != values[0]._domain for p in values):
        values = [p.ntt() for p in values]
    return values[0], [p._data for p in values]
