"""Functions of several polynomials: sums of products, equality, joining, and recorded calls."""

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
        b: values of a's ring and device, or an int. Batch axes broadcast.
        c: values of a's ring and device, or an int. Batch axes broadcast.
        ring: the ring of the result. It must be given if an operand has more limbs than the result, see
            Poly.mul.
        out: see Poly.mul.

    Returns:
        A value in coefficients if all operands are in coefficients, else in "eval".

    Raises:
        RingMismatch: the operands are in different rings, or a is not a Poly.
        DeviceError: the operands are on different devices.
        BadRoot: an operand has another root for a modulus of `ring`.
        ParameterError: the batch axes do not broadcast.
        NotAnInteger: b or c is neither a Poly nor an int.
        OutputError: `out` cannot hold the result (see Poly).

    Cost: one pass for evaluated operands of a complete transform. A product and then a sum in all other
    cases: for operands in coefficients, after an incomplete transform, and inside `with polygpu.verify()`.
    If the domains differ, the operands in coefficients are transformed first.

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
    """Return x evaluated if it is a Poly, else x itself, which holds the residues of an int."""
    return ntt(x) if isinstance(x, Poly) else x


def matmul(a: Poly, b: Poly, *, out: Poly | None = None) -> Poly:
    """Multiply matrices of polynomials, a @ b, by NumPy's rules.

    The last two batch axes are those of the matrices, and the others broadcast. A value with a single batch
    axis is a row if it is the left operand, and a column if it is the right one.

    Args:
        a: values with at least one batch axis.
        b: values of a's ring and device, with at least one batch axis.
        out: see Poly.mul.

    Returns:
        A value in coefficients if both operands are in coefficients, else in "eval".

    Raises:
        ParameterError: the shapes do not fit, or an operand is a single polynomial.
        RingMismatch: the operands are in different rings, or one of them is not a Poly.
        DeviceError: the operands are on different devices.
        OutputError: `out` cannot hold the result (see Poly).
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Cost: for an m x k and a k x p matrix, m * k * p products of residues per limb and point. Entries of
    operands in coefficients are transformed first, and entries of the result are transformed back. If the
    ring does not multiply by a complete transform (ML-KEM, product="fft", moduli without one), the call takes
    m * k * p products of polynomials.

    >>> from polygpu import Ring
    >>> x = Ring(4, 17)([[[0, 1], [2, 0]], [[3, 0], [1, 1]]])
    >>> (x @ x[:, 0]).to_bigints(centered=True).tolist()
    [[6, 0, 1, 0], [3, 6, 0, 0]]
    """
    return checked_poly(a, "a")._matmul(b, out)


def dot(a: Poly, b: Poly | int, axis: int = -1, *, ring: Ring | None = None, out: Poly | None = None) -> Poly:
    """Return the inner product over a batch axis: the sum of a[i] * b[i], with one inverse transform.

    Args:
        a: values with at least one batch axis.
        b: values of a's ring and device, or an int. Batch axes broadcast, as in a * b.
        axis: index of an axis of the broadcast batch shape, by default the last axis.
        ring: see fma.
        out: see Poly.mul.

    Returns:
        A value without that axis, in coefficients if both operands are in coefficients, else in "eval".

    Raises:
        ParameterError: there is no such axis, or the batch axes do not broadcast.
        RingMismatch, DeviceError, OutputError, OutOfHostMemory, OutOfDeviceMemory: see matmul.
        BadRoot: see fma.

    Cost: one product of residues per pair of polynomials, limb and point, and the transforms as in matmul.

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
        subscripts: for each operand a letter for each of its batch axes, with "..." for axes that broadcast;
            then "->" and the axes of the result. Without "->" the result has the axes of "...", then those of
            the letters that occur once, in alphabetical order. A letter that occurs twice in one operand
            takes the diagonal. Coefficients and limbs are not axes.
        operands: values of one ring and device. More than two operands are multiplied from the left, two at a
            time.
        ring: see fma.
        out: see Poly.mul.

    Returns:
        A value in coefficients if all operands are in coefficients, else in "eval".

    Raises:
        ParameterError: subscripts cannot be read or do not fit the shapes of the operands, or there are no
            operands.
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
        raise ParameterError("einsum has no operands. Give a Poly for each term of subscripts.")
    values: list[Poly] = [checked_poly(x, f"Operand {i}") for i, x in enumerate(operands)]
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
    """Return the sum over i of ints[..., i] * polys[i]: linear combinations, one for each row of ints.

    Args:
        ints: integers of any size and sign, of shape (..., len(polys)), in an array or nested list.
        polys: a list or tuple of values of one ring and device. Their batch shapes broadcast to a shape B.
        constant: constant polynomials to add: an int, or integers that broadcast to the result's batch shape.
            They are added in either domain. For example, if the last batch axis of ciphertexts holds their
            two components, [c, 0] adds c to the first component.
        ring: see fma.
        out: see Poly.mul.

    Returns:
        A value of batch shape ints.shape[:-1] + B, in the domain of polys, or in "eval" if their domains
        differ.

    Raises:
        CoefficientError: ints or constant holds something other than integers. Floats are not rounded.
        ParameterError: the shapes do not fit, polys is empty, or it holds something other than Polys.
        RingMismatch, DeviceError: the values are in different rings or on different devices.
        BadRoot: see fma.
        OutputError: `out` cannot hold the result (see Poly).
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Cost: one product of residues per value, combination, limb and coefficient. The CPU makes one pass, a GPU
    one for every eight values. If the domains differ, the values in coefficients are transformed first. If
    `out` is one of polys, the result is copied once more.

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
        a: a Poly, or an int, which is a constant polynomial.
        b: a Poly or an int. At least one of a and b must be a Poly. Batch axes broadcast, and the domains may
            differ.

    Returns:
        An array of bools of the broadcast batch shape, in host memory.

    Raises:
        RingMismatch: the operands are in different rings, or neither is a Poly.
        DeviceError: the operands are on different devices. ParameterError: the batch axes do not broadcast.
        NotAnInteger: an operand is neither a Poly nor an int.

    Cost: one pass, and a transform if the domains differ. The call waits for the GPU.

    >>> from polygpu import Ring
    >>> R = Ring(4, 17)
    >>> equal(R([[1], [2], [3]]), R([2])).tolist()
    [False, True, False]
    """
    if not isinstance(a, Poly):
        a, b = b, a
    return checked_poly(a, "a")._equal(b)


def capture(f: Callable[..., Any], *args: Any) -> Recording:
    """Record the call f(*args), so that it can be repeated without its host work: on a GPU as a CUDA graph.

    Returns a function g. On a GPU, g() launches all recorded kernels at once. They read what the arguments
    hold at that time and overwrite the results of the previous call, so g() always returns the same objects.
    g(*values) first copies the values into the arguments. Shapes and domains are fixed. `g.nbytes` is the
    number of bytes of GPU memory that the recording holds, and `g.launches` the number of kernels that it
    launches. On the CPU, g() simply calls f(*args), and both numbers are 0.

    Args:
        f: the function to record. On a GPU it is called twice, the second time for the recording, and must do
            the same work both times. Afterwards the arguments hold what they held before, but other values
            that f writes stay changed. g() does not run the Python code of f again. So f must not read values
            back (norm, ==, verify(), a modulus above 2^64), draw random values without a seed, or copy from
            the host. It must leave each argument in the domain in which it was given. So an argument that f
            uses as out= must be given in the domain of the result.
        args: the arguments of f, all on one device. At least one must be a Poly. When g is called, each Poly
            must be in the domain that was recorded. In g(*values), a value for a Poly must have its ring,
            shape, domain and device; a number, string or tuple of these must be equal to the recorded one;
            and anything else must be the same object. Only one thread and stream may use a recording at a
            time.

    Raises:
        ParameterError: no argument is a Poly; f draws random values without a seed; the values given to g do
            not fit the arguments; or values are given for arguments that share memory.
        DomainError: f changes the domain of an argument (on the CPU this is found when g is called), or an
            argument or value is not in the recorded domain.
        RingMismatch, DeviceError: a value is in another ring or on another device.
        DeviceError: f reads values back, f does work in its second run that it did not do in its first, or
            the driver refuses the recording.
        OutOfDeviceMemory: the results of f, the graph, or the copies of the arguments that recording makes do
            not fit.

    Cost: recording takes two calls of f and a copy of each argument. g() is one launch of a graph.
    g(*values) also copies each Poly.

    >>> from polygpu import Ring
    >>> R = Ring(4, 17)
    >>> square = capture(lambda x: x * x, R([1, 1]))
    >>> square().to_bigints().tolist()
    [1, 2, 1, 0]
    >>> square(R([0, 1])).to_bigints().tolist()
    [0, 0, 1, 0]
    """
    if not any(isinstance(x, Poly) for x in args):
        raise ParameterError("capture has no Poly among its arguments. Pass the values that f works on.")
    return Recording(f, args)


def stack(polys: Sequence[Poly], axis: int = 0) -> Poly:
    """Join values of the same batch shape along a new batch axis.

    Args:
        polys: a list or tuple of values of one ring and device.
        axis: index of the new axis in the result.

    Returns:
        A copy, in the domain of the values, or in "eval" if their domains differ.

    Raises:
        ParameterError: the batch shapes differ, there is no such axis, polys is empty, or it holds something
            other than Polys.
        RingMismatch, DeviceError: the values are in different rings or on different devices.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Cost: a copy. If the domains differ, the values in coefficients are transformed first.

    >>> from polygpu import Ring
    >>> R = Ring(2, 17)
    >>> stack([R([1, 2]), R([3, 4])]).to_bigints().tolist()
    [[1, 2], [3, 4]]
    """
    values = _in_one_domain(polys)
    return values[0]._with(batch.stack([x._data for x in values], axis))


def concatenate(polys: Sequence[Poly], axis: int = 0) -> Poly:
    """Join values along one of their batch axes.

    Args:
        polys: a list or tuple of values of one ring and device, whose batch shapes differ at most in this
            axis.
        axis: index of the axis.

    Returns:
        A copy, in the domain of the values, or in "eval" if their domains differ.

    Raises:
        ParameterError: the batch shapes do not fit, there is no such axis, polys is empty, or it holds
            something other than Polys.
        RingMismatch, DeviceError: the values are in different rings or on different devices.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Cost: a copy. If the domains differ, the values in coefficients are transformed first.

    >>> from polygpu import Ring
    >>> R = Ring(2, 17)
    >>> concatenate([R([[1, 2]]), R([[3, 4], [5, 6]])]).to_bigints().tolist()
    [[1, 2], [3, 4], [5, 6]]
    """
    values = _in_one_domain(polys)
    return values[0]._with(batch.concatenate([x._data for x in values], axis))


def _in_one_domain(polys: Sequence[Poly], ring: Ring | None = None) -> Sequence[Poly]:
    """Return the values in one domain, which is "eval" if their domains differ. ring: see fma."""
    if not isinstance(polys, Iterable):
        raise ParameterError(f"polys must be a list or tuple of Poly, not {type(polys).__name__}.")
    values = list(polys)
    if not values or not all(isinstance(p, Poly) for p in values):
        raise ParameterError(f"polys has {len(values)} values. Give at least one Poly, and nothing else.")
    if ring is not None:
        values = limbs_in_one_domain(ring, *values)
    return aligned(*(values[0]._operand(p) for p in values))
