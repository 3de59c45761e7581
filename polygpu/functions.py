"""Functions of several polynomials: sums of products, equality, joining, recorded work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._backends import Array
from ._ops import batch
from ._ops import einsum as sums
from ._ops import multiply as products
from ._ops.arrays import layouts
from ._ops.combine import combine as combined
from ._ops.transform import aligned, ntt
from .errors import ParameterError
from .poly import Poly, checked_poly, held, limbs_in, limbs_in_one_domain, memory_of
from .recording import Recording

if TYPE_CHECKING:
    from .ring import Ring


def fma(a: Poly, b: Poly | int, c: Poly | int, *, ring: Ring | None = None, out: Poly | None = None) -> Poly:
    """Compute a * b + c, in one pass for evaluated operands.

    Args:
        a: values of any ring.
        b: of a's ring and device, or an int; batch axes broadcast.
        c: as b.
        ring: the ring of the result, if operands have more limbs than it; see Poly.mul.
        out: see Poly.mul.

    Returns:
        A value in coefficients if all operands are, else in "eval".

    Raises:
        RingMismatch, DeviceError: operands of different rings or devices; a is not a Poly.
        BadRoot: an operand has another root for a modulus of `ring`.
        ParameterError: batch axes that do not broadcast.
        NotAnInteger: b or c is neither a Poly nor an int.
        OutputError: `out` cannot take the result.

    Cost: of evaluated operands one pass. With an incomplete transform, inside `with polygpu.verify()`, and of
    coefficients, a product and a sum. Of mixed domains also transforms of the coefficients.

    >>> from polygpu import Ring
    >>> R = Ring(4, 17)
    >>> fma(R([1, 1]), R([2]), R([3])).to_bigints().tolist()
    [5, 2, 0, 0]
    """
    a, strides = checked_poly(a, "a"), None
    if ring is not None:
        a, b, c = limbs_in_one_domain(ring, a, b, c)
        strides = layouts(*(x._data for x in (a, b, c) if isinstance(x, Poly)))
    factor, addend = a._factor(b), a._factor(c)
    if any(isinstance(x, Poly) and x._domain != a._domain for x in (factor, addend)):
        a, factor, addend = ntt(a), _evaluated(factor), _evaluated(addend)
    if out is None:
        return products.fma(a, factor, addend, strides)
    return held(products.fma(a, factor, addend, strides, out=memory_of(a._plan, out)), out)


def _evaluated(x: Poly | Array) -> Poly | Array:
    """Return a value evaluated; residues of an int stay."""
    return ntt(x) if isinstance(x, Poly) else x


def matmul(a: Poly, b: Poly, *, out: Poly | None = None) -> Poly:
    """Multiply matrices of polynomials, a @ b, by NumPy's rules.

    The last two batch axes are matrices, the others broadcast. A value of one batch axis is a row on the left
    and a column on the right.

    Args:
        a: values of at least one batch axis.
        b: of a's ring and device.
        out: see Poly.mul.

    Returns:
        A value in coefficients if both operands are, else in "eval".

    Raises:
        ParameterError: shapes that do not fit, or a single polynomial.
        RingMismatch: operands of different rings, or an operand that is not a Poly.
        DeviceError: operands on two devices. OutputError: `out` cannot take the result.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Cost: of an m x k by a k x p matrix, m k p products of residues for each limb and point. Operands in
    coefficients take a transform for each entry, the result an inverse transform for each. Without a complete
    transform (ML-KEM, product="fft", other moduli) m k p products of polynomials.

    >>> from polygpu import Ring
    >>> x = Ring(4, 17)([[[0, 1], [2, 0]], [[3, 0], [1, 1]]])
    >>> (x @ x[:, 0]).to_bigints(centered=True).tolist()
    [[6, 0, 1, 0], [3, 6, 0, 0]]
    """
    return checked_poly(a, "a")._matmul(b, out)


def dot(a: Poly, b: Poly | int, axis: int = -1, *, ring: Ring | None = None, out: Poly | None = None) -> Poly:
    """Return the inner product over a batch axis: the sum of a[i] * b[i], with one inverse transform.

    Args:
        a: values of at least one batch axis.
        b: of a's ring and device, or an int; batch axes broadcast, as in a * b.
        axis: of the broadcast batch shape, the last by default.
        ring: see fma.
        out: see Poly.mul.

    Returns:
        A value without that axis, in coefficients if both operands are, else in "eval".

    Raises:
        ParameterError: there is no such axis, or batch axes that do not broadcast.
        RingMismatch, DeviceError, OutputError, OutOfHostMemory, OutOfDeviceMemory: see matmul.
        BadRoot: see fma.

    Cost: a product of residues for each pair of entries, limb and point, and the transforms of matmul.

    >>> from polygpu import Ring
    >>> R = Ring(4, 17)
    >>> dot(R([[1], [2]]), R([[0, 1, 0], [0, 0, 1]])).to_bigints().tolist()
    [0, 1, 2, 0]
    """
    x: Poly = checked_poly(a, "a")
    if ring is None:
        y = x._operand(b)
        return held(sums.dot(x, y, axis, out=memory_of(x._plan, out)), out)
    x, b = limbs_in(ring, x, b)
    y = x._operand(b)
    return held(sums.dot(x, y, axis, layouts(x._data, y._data), out=memory_of(x._plan, out)), out)


def einsum(subscripts: str, *operands: Poly, ring: Ring | None = None, out: Poly | None = None) -> Poly:
    """Return sums of products over labelled batch axes, by NumPy's rules: "ij,jk->ik" multiplies matrices.

    Args:
        subscripts: a letter for each batch axis of each operand, "..." for axes that broadcast, and "->" with
            the axes of the result. Without "->" the result has "...", then the letters that occur once, in
            alphabetical order. A letter twice in one operand takes its diagonal. Coefficients and limbs are
            not axes.
        operands: values of one ring and device. More than two are multiplied pairwise from the left.
        ring: see fma.
        out: see Poly.mul.

    Returns:
        A value in coefficients if all operands are, else in "eval".

    Raises:
        ParameterError: subscripts that cannot be read or do not fit the operands' shapes; no operands.
        RingMismatch, DeviceError, OutputError, OutOfHostMemory, OutOfDeviceMemory: see matmul.
        BadRoot: see fma.

    Cost: for two operands one batch of matrix products (see matmul). Axes that occur in one
    operand and not in the result are summed first, before any transform.

    >>> from polygpu import Ring
    >>> x = Ring(4, 17)([[[0, 1], [2, 0]], [[3, 0], [1, 1]]])
    >>> einsum("ii", x).to_bigints().tolist()
    [1, 2, 0, 0]
    >>> einsum("ij,kj->ik", x, x) == x @ einsum("ij->ji", x)
    True
    """
    if not operands:
        raise ParameterError("einsum: no operands; give a Poly for each term of the subscripts")
    values: list[Poly] = [checked_poly(x, f"operand {i}") for i, x in enumerate(operands)]
    if ring is not None:
        values = limbs_in(ring, *values)
    first = values[0]
    values = [first._operand(x) for x in values]
    return held(sums.einsum(subscripts, values, memory_of(first._plan, out)), out)


def combine(
    ints: Any,
    polys: Sequence[Poly],
    *,
    constant: Any = 0,
    ring: Ring | None = None,
    out: Poly | None = None,
) -> Poly:
    """Return the sum over i of ints[..., i] * polys[i]: linear combinations, one for each row of integers.

    Args:
        ints: integers of any size and sign, (..., len(polys)), in an array or nested list.
        polys: a list or tuple of values of one ring and device. Their batch shapes broadcast to a shape B.
        constant: an int, or integers that broadcast to the result's batch shape, added to each combination as
            a constant polynomial: in coefficients to that of X^0, of evaluated values to each entry, or with
            an incomplete transform to the first coefficient of each leaf. For ciphertexts whose components
            are the last batch axis, [c, 0] adds to the first one.
        ring: see fma.
        out: see Poly.mul.

    Returns:
        A value of batch shape ints.shape[:-1] + B, of the ring's dtype, in the domain of the values; of mixed
        domains in "eval".

    Raises:
        CoefficientError: ints or constant holds something other than integers; floats are not rounded.
        ParameterError: shapes that do not fit, no values, or a value that is not a Poly.
        RingMismatch, DeviceError: values of different rings or devices. BadRoot: see fma.
        OutputError: `out` cannot take the result.
        OutOfHostMemory, OutOfDeviceMemory: it does not fit.

    Cost: a product of residues for each value, combination, limb and entry, in one pass over the values; on a
    GPU one for eight of them. Of mixed domains also transforms of the coefficients. If `out` is one of the
    values, a copy.

    >>> import polygpu as pg
    >>> R = pg.Ring(4, 17)
    >>> a, b = R([1, 2]), R([0, 1])
    >>> pg.combine([[1, 10], [2**70, -1]], [a, b], constant=[0, 3]).to_bigints(centered=True).tolist()
    [[1, -5, 0, 0], [-1, 8, 0, 0]]
    """
    values = _in_one_domain(polys, ring)
    first = values[0]
    memory = memory_of(first._plan, out)
    return held(combined(values, ints, constant, first._plan.constant_step(first._domain), memory), out)


def equal(a: Poly | int, b: Poly | int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return whether two values are equal, polynomial by polynomial.

    Args:
        a: a Poly, or an int, a constant.
        b: a Poly or an int, one of the two a Poly; batch axes broadcast. The domains may differ.

    Returns:
        An array of bools of the broadcast batch shape, in host memory.

    Raises:
        RingMismatch, DeviceError: operands of different rings or devices, or none that is a Poly.
        ParameterError: batch axes that do not broadcast. NotAnInteger: neither a Poly nor an int.

    Cost: one pass, a transform if the domains differ; it waits for a GPU.

    >>> from polygpu import Ring
    >>> R = Ring(4, 17)
    >>> equal(R([[1], [2], [3]]), R([2])).tolist()
    [False, True, False]
    """
    if not isinstance(a, Poly):
        a, b = b, a
    return checked_poly(a, "a")._equal(b)


def capture(f: Callable[..., Any], *args: Any) -> Recording:
    """Record f(*args) once, to repeat it with little work of the host: on a GPU as a CUDA graph.

    Returns g. A call g() launches the recorded kernels with one small call. It reads what the arguments hold
    at that time, overwrites the results of the call before, and returns the same objects. g(*values) writes
    these values into the arguments before. Shapes and domains are fixed. `g.nbytes` tells how many bytes of
    the GPU's memory the record holds, and `g.launches` how many kernels it launches. On the CPU, g() calls
    f(*args), and both are 0.

    Args:
        f: the function to record. On a GPU it is called twice, the second time for the record, and must do
            the same both times. Afterwards the arguments hold what they held before; other values that f
            writes have been written once. Python code of f does not run again in g(). So f must not read
            values back (norm, ==, verify(), a modulus above 2^64), draw random values without a seed, or copy
            from the host. It must leave each argument in its domain: an argument that f uses as out= is given
            in the domain of the result.
        args: the arguments of f, at least one of them a Poly, all on one device. g compares their domains
            with the recorded ones at each call. Of g(*values), a Poly has the ring, shape, domain and device
            of the argument in its place; numbers, strings and tuples of them are equal to it, and all else is
            the same object. One recording is used by one thread and stream at a time.

    Raises:
        ParameterError: no Poly among the arguments; random values without a seed; values that do not fit the
            arguments of g; values for arguments that share memory.
        DomainError: f changes the domain of an argument (on the CPU found when g is called), or an argument
            or value is in another domain than the recorded one.
        RingMismatch, DeviceError: a value of another ring or device.
        DeviceError: f reads values back, f does in its second run what it has not done in its first, or the
            driver refuses the record.
        OutOfDeviceMemory: no room for the results of f, for the graph, or for the copies of the arguments
            that recording makes.

    Cost: recording takes two calls of f and a copy of each argument. g() is one launch of a graph, and
    g(*values) a copy of each Poly more.

    >>> from polygpu import Ring
    >>> R = Ring(4, 17)
    >>> square = capture(lambda x: x * x, R([1, 1]))
    >>> square().to_bigints().tolist()
    [1, 2, 1, 0]
    >>> square(R([0, 1])).to_bigints().tolist()
    [0, 0, 1, 0]
    """
    if not any(isinstance(x, Poly) for x in args):
        raise ParameterError("capture: no Poly among the arguments; pass those that f works on")
    return Recording(f, args)


def stack(polys: Sequence[Poly], axis: int = 0) -> Poly:
    """Join values of one batch shape along a new batch axis.

    Args:
        polys: a list or tuple of values of one ring and device.
        axis: the number of the new axis in the result.

    Returns:
        A copy, in the domain of the values; of mixed domains in "eval".

    Raises:
        ParameterError: batch shapes that differ, no such axis, no values, or a value that is not a Poly.
        RingMismatch, DeviceError: values of different rings or devices.
        OutOfHostMemory, OutOfDeviceMemory: it does not fit.

    Cost: a copy; of mixed domains, transforms of the coefficients.

    >>> from polygpu import Ring
    >>> R = Ring(2, 17)
    >>> stack([R([1, 2]), R([3, 4])]).to_bigints().tolist()
    [[1, 2], [3, 4]]
    """
    values = _in_one_domain(polys)
    return values[0]._with(batch.stack([x._data for x in values], axis))


def concatenate(polys: Sequence[Poly], axis: int = 0) -> Poly:
    """Join values along a batch axis that they have.

    Args:
        polys: a list or tuple of values of one ring and device, whose batch shapes differ in this axis alone.
        axis: the number of the axis.

    Returns:
        A copy, in the domain of the values; of mixed domains in "eval".

    Raises:
        ParameterError: batch shapes that do not fit, no such axis, no values, or a value that is not a Poly.
        RingMismatch, DeviceError: values of different rings or devices.
        OutOfHostMemory, OutOfDeviceMemory: it does not fit.

    Cost: a copy; of mixed domains, transforms of the coefficients.

    >>> from polygpu import Ring
    >>> R = Ring(2, 17)
    >>> concatenate([R([[1, 2]]), R([[3, 4], [5, 6]])]).to_bigints().tolist()
    [[1, 2], [3, 4], [5, 6]]
    """
    values = _in_one_domain(polys)
    return values[0]._with(batch.concatenate([x._data for x in values], axis))


def _in_one_domain(polys: Sequence[Poly], ring: Ring | None = None) -> Sequence[Poly]:
    """Return the values in one domain: "eval" if their domains differ. ring: see fma."""
    if not isinstance(polys, Iterable):
        raise ParameterError(f"polys: {type(polys).__name__}, must be a list or tuple of Poly")
    values = list(polys)
    if not values or not all(isinstance(p, Poly) for p in values):
        raise ParameterError(f"polys: {len(values)} values; give at least one Poly, and nothing else")
    if ring is not None:
        values = limbs_in_one_domain(ring, *values)
    return aligned(*(values[0]._operand(p) for p in values))
