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
    """Return a * b + c. For evaluated operands this takes one pass.

    Args:
        a: a Poly of any ring.
        b: a Poly of a's ring and device, or an int. Batch axes broadcast.
        c: a Poly of a's ring and device, or an int. Batch axes broadcast.
        ring: the ring of the result, by default that of the operands. Give it if an operand has more limbs
            than the result, see Poly.mul.
        out: a Poly of the result's ring and batch shape to write into (see Poly.mul).

    Returns:
        A value in coefficients if all operands are in coefficients, else in "eval".

    Raises:
        RingMismatch: the operands are in different rings, or a is not a Poly.
        DeviceError: the operands are on different devices.
        BadRoot: an operand has another root for a modulus of `ring`.
        ParameterError: the batch axes do not broadcast.
        NotAnInteger: b or c is neither a Poly nor an int.
        OutputError: `out` cannot hold the result (see Poly).

    Cost: one pass for evaluated operands, if the transform is complete. The call computes a product and then
    a sum if operands are in coefficients, if the transform is incomplete, or inside `with polygpu.verify()`.
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
    """Return x, evaluated if it is a Poly. An array x (the residues of an int) is returned unchanged."""
    return ntt(x) if isinstance(x, Poly) else x


def matmul(a: Poly, b: Poly, *, out: Poly | None = None) -> Poly:
    """Multiply matrices of polynomials: a @ b by NumPy's rules.

    The last two batch axes are the rows and columns of the matrices. The other batch axes broadcast. A value
    with a single batch axis is a row vector if it is the left operand, and a column vector if it is the right
    operand.

    Args:
        a: a Poly with at least one batch axis.
        b: a Poly of a's ring and device, with at least one batch axis.
        out: a Poly of the result's ring and batch shape to write into (see Poly.mul).

    Returns:
        A value in coefficients if both operands are in coefficients, else in "eval".

    Raises:
        ParameterError: the shapes do not fit, or an operand is a single polynomial.
        RingMismatch: the operands are in different rings, or one of them is not a Poly.
        DeviceError: the operands are on different devices.
        OutputError: `out` cannot hold the result (see Poly).
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Cost: for an m x k and a k x p matrix, m * k * p products of residues per limb and point. Operands in
    coefficients are transformed first. If both operands are in coefficients, the result is transformed back.
    If the ring has no complete transform (for example the ring of ML-KEM), or if it multiplies by FFT
    (product="fft"), the call takes m * k * p products of polynomials instead.

    >>> from polygpu import Ring
    >>> x = Ring(4, 17)([[[0, 1], [2, 0]], [[3, 0], [1, 1]]])
    >>> (x @ x[:, 0]).to_bigints(centered=True).tolist()
    [[6, 0, 1, 0], [3, 6, 0, 0]]
    """
    return checked_poly(a, "a")._matmul(b, out)


def dot(a: Poly, b: Poly | int, axis: int = -1, *, ring: Ring | None = None, out: Poly | None = None) -> Poly:
    """Return the inner product over a batch axis: the sum over i of a[i] * b[i], if i indexes this axis.

    Only the sum is transformed back to coefficients, not each product.

    Args:
        a: a Poly with at least one batch axis.
        b: a Poly of a's ring and device, or an int. Batch axes broadcast, as in a * b.
        axis: index of the axis over which to sum, in the broadcast batch shape. By default the last axis.
        ring: the ring of the result, if it has fewer limbs than the operands (see Poly.mul).
        out: a Poly of the result's ring and batch shape to write into (see Poly.mul).

    Returns:
        A value without the summed axis, in coefficients if both operands are in coefficients, else in "eval".

    Raises:
        ParameterError: there is no such axis, or the batch axes do not broadcast.
        RingMismatch, DeviceError, OutputError, OutOfHostMemory, OutOfDeviceMemory: see matmul.
        BadRoot: see fma.

    Cost: one product of residues per pair of polynomials, limb and point. Transforms are the same as in
    matmul.

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
    """Return sums of products over labelled batch axes, by the rules of numpy.einsum.

    For example, "ij,jk->ik" multiplies matrices of polynomials.

    Args:
        subscripts: one letter for each batch axis of each operand, with a comma between operands, and "..."
            for axes that broadcast. After "->" come the axes of the result. Without "->" the result has the
            axes of "...", then the letters that occur once, in alphabetical order. A letter that occurs twice
            in one operand selects the diagonal. The axes of limbs and coefficients have no letters.
        operands: one or more Polys of the same ring and device. More than two are multiplied two at a time,
            from left to right.
        ring: the ring of the result, if it has fewer limbs than the operands (see Poly.mul).
        out: a Poly of the result's ring and batch shape to write into (see Poly.mul).

    Returns:
        A value in coefficients if all operands are in coefficients, else in "eval".

    Raises:
        ParameterError: subscripts breaks these rules or does not fit the shapes of the operands, or there are
            no operands.
        RingMismatch, DeviceError, OutputError, OutOfHostMemory, OutOfDeviceMemory: see matmul.
        BadRoot: see fma.

    Cost: for two operands, one batch of matrix products (see matmul). Axes that occur in only one operand and
    not in the result are summed first, before any transform.

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
    """Return linear combinations of polys: the sum over i of ints[..., i] * polys[i].

    There is one linear combination for each row of ints.

    Args:
        ints: an array or nested list of integers of any size and sign, of shape (..., len(polys)).
        polys: a list or tuple of Polys of the same ring and device. Their batch shapes broadcast to B.
        constant: constant polynomials to add: an int, or integers that broadcast to the result's batch shape.
            For example, if the last batch axis of ciphertexts holds their two components, [c, 0] adds c to
            the first component.
        ring: the ring of the result, if it has fewer limbs than the operands (see Poly.mul).
        out: a Poly of the result's ring and batch shape to write into (see Poly.mul).

    Returns:
        A value of batch shape ints.shape[:-1] + B, in the domain of polys. If their domains differ, it is in
        "eval".

    Raises:
        CoefficientError: ints or constant holds something other than integers. Floats are not rounded.
        ParameterError: the shapes do not fit, polys is empty, or it holds something other than Polys.
        RingMismatch, DeviceError: the values are in different rings or on different devices.
        BadRoot: see fma.
        OutputError: `out` cannot hold the result (see Poly).
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Cost: one product of residues per value, combination, limb and coefficient. The CPU makes one pass over
    all values. A GPU makes one pass for every eight values. If the domains differ, the values in coefficients
    are transformed first. If `out` is one of polys, the result is copied once more.

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
    """Compare two values polynomial by polynomial, and return one bool for each.

    Args:
        a: a Poly, or an int, which is a constant polynomial.
        b: a Poly or an int, as for a. At least one of a and b must be a Poly. Batch axes broadcast, and the
            domains may differ.

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
    """Record the call f(*args), so that it can be repeated without its work on the host.

    Returns a function g that repeats the call. On a GPU, g() launches all recorded kernels at once, as a CUDA
    graph. The kernels read what the Polys in args hold when g is called, and write the results over those of
    the previous call of g. So g always returns the same objects. g(*values) first copies the values into the
    Polys in args. Shapes and domains are fixed. `g.nbytes` is the number of bytes of GPU memory that the
    recording holds, and `g.launches` is the number of kernels that g() launches. On the CPU, g() simply calls
    f(*args), and both numbers are 0.

    Args:
        f: the function to record. On a GPU it is called twice, and the second call is recorded. f must do
            the same work both times. After the recording, the Polys in args hold what they held before, but
            other values that f writes stay changed. g() does not run the Python code of f again. So f must
            not copy values between GPU and host (as norm, ==, verify() and rings with a modulus above 2^64
            do), and must not draw random values without a seed. f must leave each Poly in args in the domain
            in which it was given. So if f uses an argument as out=, give it in the domain of the result.
        args: the arguments of f. At least one must be a Poly, and all Polys must be on one device. When g is
            called, each of these Polys must be in its recorded domain. In g(*values), a value for a Poly must
            have the ring, shape, domain and device of that Poly. A number, a string, or a tuple of these must
            be equal to the recorded argument. Anything else must be the same object. Only one thread and
            stream may use g at a time.

    Raises:
        ParameterError: no argument is a Poly; f draws random values without a seed; the values given to g do
            not fit the arguments; or values are given for arguments that share memory.
        DomainError: f changes the domain of an argument (on the CPU this is found when g is called), or an
            argument or value is not in the recorded domain.
        RingMismatch, DeviceError: a value is in another ring or on another device.
        DeviceError: f copies values between GPU and host, the second call of f does work that the first call
            did not do, or the driver refuses the recording.
        OutOfDeviceMemory: the results of f, the graph, or the temporary copies of the arguments do not fit.

    Cost: recording takes two calls of f and a copy of each Poly in args. g() is one launch of a graph.
    g(*values) also copies each Poly in values.

    >>> from polygpu import Ring
    >>> R = Ring(4, 17)
    >>> square = capture(lambda x: x * x, R([1, 1]))
    >>> square().to_bigints().tolist()
    [1, 2, 1, 0]
    >>> square(R([0, 1])).to_bigints().tolist()
    [0, 0, 1, 0]
    """
    if not any(isinstance(x, Poly) for x in args):
        raise ParameterError(
            "capture has no Poly among the arguments after f. Pass the values on which f works."
        )
    return Recording(f, args)


def stack(polys: Sequence[Poly], axis: int = 0) -> Poly:
    """Join values of the same batch shape along a new batch axis.

    Args:
        polys: a list or tuple of Polys of the same ring and device.
        axis: index of the new axis in the result.

    Returns:
        A copy, in the domain of the values. If their domains differ, it is in "eval".

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
    """Join values along an existing batch axis.

    Args:
        polys: a list or tuple of Polys of the same ring and device. Their batch shapes may differ only in the
            length of the axis along which they are joined.
        axis: index of the axis along which the values are joined.

    Returns:
        A copy, in the domain of the values. If their domains differ, it is in "eval".

    Raises:
        ParameterError: the batch shapes differ in another axis, there is no such axis, polys is empty, or it
            holds something other than Polys.
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
    """Return `polys`, all in "eval" if their domains differ. If `ring` is given, keep only its limbs."""
    if not isinstance(polys, Iterable):
        raise ParameterError(f"polys must be a list or tuple of Poly, not {type(polys).__name__}.")
    values = list(polys)
    if not values or not all(isinstance(p, Poly) for p in values):
        raise ParameterError(
            f"polys has {len(values)} values. It must have at least one Poly, and every value must be a Poly."
        )
    if ring is not None:
        values = limbs_in_one_domain(ring, *values)
    return aligned(*(values[0]._operand(p) for p in values))
