"""Poly: a batch of elements of a ring, in coefficients or in the evaluation domain.

The file is long because every operation is a method of the class, with its docstring. The functions in _ops/
compute the results.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from ._backends import Array, backend_of, checked_device, current_device, get_backend, same_device
from ._core.checks import Domain, Product, check_product, integer, shown
from ._core.ring_plan import RingPlan
from ._core.value import Value
from ._ops import integers, show
from ._ops.arrays import NotAnArray, contiguous, copied, layouts, refuse_array
from ._ops.batch import assign, index, reshape
from ._ops.einsum import matmul
from ._ops.inverse import inverse, try_inverse
from ._ops.multiply import multiply, multiply_limbs, power
from ._ops.permutation import automorphism, mul_monomial, to_slots
from ._ops.points import evaluate
from ._ops.pointwise import add_constant, equal, neg, pointwise, scale, scale_by, sum_over
from ._ops.rns import (
    Precision,
    Rounding,
    check_target,
    convert,
    digits,
    limbs_of,
    mod_down,
    mod_up,
    restrict,
    scale_up,
)
from ._ops.transform import intt, natural_order, ntt, to_domain
from .errors import DeviceError, OutputError, ParameterError, RingMismatch

if TYPE_CHECKING:
    from .ring import Ring

_AUTO = "auto"  # the default of `product`; an argument that is this object need not be checked
_new = object.__new__


class Poly(Value, NotAnArray):
    """A batch of elements of a ring: `ring`, `data` and `domain`.

    `data` is a C-contiguous array (*batch, rows, n) of canonical residues, with one row for each modulus
    (limb); `shape` is the batch shape. Make values with ring(integers), ring.from_residues(array) and
    ring.random(...).

    The operators are a + b, a - b, -a, a * b, a @ b (matrices over the batch axes), a ** k, a == b, and a[i]
    over the batch axes. An operand may be a Python int, which is a constant polynomial. Batch axes broadcast
    as in NumPy. The result is in the domain of the operands, or in "eval" if their domains differ.
    Operators return new values. Only `out=` and a[i] = b write in place.

    Args:
        ring: the ring.
        data: residues (*batch, rows, n), in a C-contiguous array of the ring's dtype. The value shares it.
        domain: "coef" or "eval".

    Raises:
        ParameterError: the shape of data does not end in (rows, n), or data would have to be copied.
            ring.from_residues copies it.
        NotNTTFriendly: domain is "eval", and the ring has no transform. DomainError: domain is another word.
        NotCanonical: a residue is outside [0, q). This is checked only inside `with polygpu.debug()`.

    Every method that makes a value raises OutOfHostMemory or OutOfDeviceMemory if the value does not fit. A
    method with `out=` raises OutputError if `out` does not have the ring, batch shape and device of the
    result, is read-only, or overlaps an operand in part.

    Cost: constant time. Nothing is copied, and no residue is read outside debug().

    >>> import polygpu as pg
    >>> R = pg.Ring(4, 17)
    >>> a, b = R([1, 2, 3, 4]), R([0, 1])
    >>> (a * b).to_bigints(centered=True).tolist()  # X^4 is -1
    [-4, 1, 2, 3]
    """

    __slots__ = ("__weakref__", "_ring")
    _forwarded = (*NotAnArray._forwarded, np.sum)
    __hash__ = None  # type: ignore[assignment]

    _ring: Ring

    def __init__(self, ring: Ring, data: Array, domain: Domain) -> None:
        plan_of(ring, "ring")
        value = ring.from_residues(data, domain=domain, copy=False)
        self._ring, self._plan, self._data, self._domain = ring, value._plan, value._data, value._domain

    @staticmethod
    def _make(ring: Ring, data: Array, domain: Domain) -> Poly:
        """Return a value of the ring without checks, for results of operations, which are always valid."""
        poly = _new(Poly)
        poly._ring, poly._plan, poly._data, poly._domain = ring, ring._plan, data, domain
        return poly

    def _with(self, data: Array, domain: Domain | None = None) -> Poly:
        """Return other elements of the same ring, by default in the same domain, without checks."""
        poly = _new(Poly)
        poly._ring, poly._plan, poly._data = self._ring, self._plan, data
        poly._domain = domain or self._domain
        return poly

    def _holding(self, data: Array, domain: Domain) -> Poly:
        """Return this value, into whose array an operation has written its result in the given domain."""
        self._data, self._domain = data, domain
        return self

    # ---- what it is ----

    @property
    def ring(self) -> Ring:
        """The ring of the elements.

        >>> from polygpu import Ring
        >>> Ring(4, 17)([1, 2]).ring
        Ring(4, 17)
        """
        return self._ring

    @property
    def data(self) -> Array:
        """Residues (*batch, rows, n) of the ring's dtype: the array itself, not a copy.

        Write only residues in [0, q) to it.

        >>> from polygpu import Ring
        >>> Ring(4, [17, 97])([20, -1]).data.tolist()
        [[3, 16, 0, 0], [20, 96, 0, 0]]
        """
        return self._data

    @property
    def domain(self) -> Domain:
        """ "coef" for coefficients, or "eval" for the evaluation domain.

        >>> from polygpu import Ring
        >>> Ring(4, 17)([1]).ntt().domain
        'eval'
        """
        return self._domain

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch shape; () for a single polynomial.

        >>> from polygpu import Ring
        >>> Ring(4, 17)([[1, 2], [3, 4]]).shape
        (2,)
        """
        return self._batch

    @property
    def ndim(self) -> int:
        """Number of batch axes; 0 for a single polynomial.

        >>> from polygpu import Ring
        >>> Ring(4, 17).zeros((2, 3)).ndim
        2
        """
        return self._data.ndim - 2

    @property
    def device(self) -> str:
        """The device that holds the value and computes with it: "cpu", "cuda:0", "reference".

        A value in host memory is on "cpu", or on "reference" inside `with polygpu.device("reference")`.

        >>> from polygpu import Ring
        >>> Ring(4, 17)([1]).cpu().device
        'cpu'
        """
        return backend_of(self._data).name

    def __repr__(self) -> str:
        return show.line(self)

    def _repr_html_(self) -> str:
        return show.table(self)

    def __reduce__(self) -> tuple[Any, ...]:
        data, domain = self.data, self.domain
        device = None if isinstance(data, np.ndarray) else self.device
        return _unpickled, (self._ring, backend_of(data).to_host(data), domain, device)

    # ---- the batch ----

    def __len__(self) -> int:
        """Length of the first batch axis. For a single polynomial, len() raises TypeError.

        >>> from polygpu import Ring
        >>> len(Ring(4, 17).zeros((2, 3)))
        2
        """
        if not self.shape:
            raise TypeError(
                "A single polynomial has no len(). Use poly.ring.n for the degree of its ring, or poly.shape "
                "for its batch shape."
            )
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError("The truth value of a Poly is ambiguous. Compare it, for example with poly == 0.")

    def __iter__(self) -> Iterator[Poly]:
        """Iterate over the entries of the first batch axis. The entries share this value's memory.

        >>> from polygpu import Ring
        >>> [a(1) for a in Ring(4, 17)([[1, 2], [3, 4]])]
        [3, 7]
        """
        len(self)  # raises TypeError for a single polynomial
        return map(self._with, self._data)

    def __getitem__(self, key: Any) -> Poly:
        """Return the polynomials at a key of the batch axes, by NumPy's rules, in this value's domain.

        Limbs and coefficients are not batch axes. Use a.data[..., limb, i] for residues, a.tolist() for
        coefficients, and a.restrict(ring[:k]) for some of the limbs.

        Args:
            key: ints, slices, None, Ellipsis, or arrays of ints or bools.

        Raises:
            IndexError: an index is out of range, or key has more entries than there are batch axes.

        Cost: nothing if the chosen polynomials lie one after the other in memory, which the result then
        shares. Otherwise a copy.

        >>> from polygpu import Ring
        >>> a = Ring(2, 17)([[1, 2], [3, 4], [5, 6]])
        >>> a[1:].to_bigints().tolist()
        [[3, 4], [5, 6]]
        """
        return self._with(index(self._data, key))

    def __setitem__(self, key: Any, value: Poly | int) -> None:
        """Write polynomials in place at a key of the batch axes, by NumPy's rules, in this value's domain.

        Args:
            key: see a[key].
            value: a Poly of the same ring and device, or an int, which is a constant polynomial. A Poly in
                the other domain is transformed first. Its batch axes broadcast to those of a[key], and it may
                share memory with a.

        Raises:
            ParameterError: the batch axes of value do not broadcast to those of a[key].
            IndexError: see a[key].
            RingMismatch: value is in another ring. NotAnInteger: value is neither a Poly nor an int.
            DeviceError: value is on another device. OutputError: the memory of a is read-only.

        Cost: a copy of the polynomials, and a transform if value is in the other domain.

        >>> from polygpu import Ring
        >>> a = Ring(2, 17)([[1, 2], [3, 4]])
        >>> a[1] = a[0]
        >>> a.to_bigints().tolist()
        [[1, 2], [1, 2]]
        """
        place = self
        assign(place._data, key, to_domain(self._operand(value), place._domain)._data)

    def reshape(self, *shape: int | tuple[int, ...]) -> Poly:
        """Return the same polynomials in another batch shape, in the same memory.

        Args:
            shape: sizes, or one tuple of them; one size may be -1.

        Raises:
            ParameterError: the product of the sizes is not the number of polynomials.

        Cost: nothing is copied.

        >>> from polygpu import Ring
        >>> Ring(4, 17).zeros(6).reshape(2, -1).shape
        (2, 3)
        """
        sizes = shape[0] if len(shape) == 1 else shape
        return self._with(reshape(self._data, sizes))

    def copy(self) -> Poly:
        """Return a copy in new memory on the same device. copy.copy and copy.deepcopy do the same.

        Raises:
            OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

        Cost: one pass.

        >>> from polygpu import Ring
        >>> a = Ring(4, 17)([1])
        >>> b = a.copy()
        >>> b.data[:] = 0
        >>> a == 1, b == 0
        (True, True)
        """
        return self._with(copied(self._data))

    def __copy__(self) -> Poly:
        return self.copy()

    def __deepcopy__(self, memo: object) -> Poly:
        return self.copy()

    def to(self, device: str | None = None) -> Poly:
        """Return the value on a device, or the value itself if it is there already.

        Args:
            device: "cpu", "cuda", "cuda:1". By default the current device (see polygpu.device).

        Raises:
            DeviceError: there is no such device. BackendUnavailable: the GPU cannot be used.
            OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

        Cost: a copy. A copy from a GPU waits until the value is computed.

        >>> from polygpu import Ring
        >>> a = Ring(4, 17)([1]).to("cpu")
        >>> a.to("cpu") is a
        True
        """
        target = get_backend(current_device() if device is None else checked_device(device))
        data = self._data
        if (target.xp is np and isinstance(data, np.ndarray)) or target.name == self.device:
            return self
        return self._with(target.from_host(backend_of(data).to_host(data)))

    def cpu(self) -> Poly:
        """Return the value in host memory, or the value itself if it is there already. See `to`.

        Raises:
            OutOfHostMemory: the result does not fit.

        Cost: nothing for a value in host memory. A copy from a GPU waits until the value is computed.

        >>> from polygpu import Ring
        >>> Ring(4, 17)([1, 2]).cpu().data.tolist()
        [[1, 2, 0, 0]]
        """
        return self.to("cpu")

    def sum(self, axis: int | tuple[int, ...] | None = None, *, out: Poly | None = None) -> Poly:
        """Return the sum over batch axes. The sum over an axis of length 0 is zero.

        Args:
            axis: index of a batch axis, or a tuple of indices. By default all axes are summed.
            out: a Poly of this ring and of the result's batch shape to write into.

        Raises:
            ParameterError: there is no such axis. OutputError: `out` cannot hold the result (see Poly).

        Cost: one addition per residue. An axis of length m takes log2 m passes, each over half as many
        residues as the pass before.

        >>> from polygpu import Ring
        >>> Ring(2, 17)([[1, 2], [3, 4], [5, 6]]).sum().to_bigints().tolist()
        [9, 12]
        """
        data = sum_over(self._plan.basis, self._data, axis, out=memory_of(self._plan, out))
        return held(self._with(data), out)

    # ---- domains ----

    def ntt(self, *, out: Poly | None = None) -> Poly:
        """Transform to the evaluation domain (bit-reversed order). A value that is already there is returned.

        Entry k of a limb is a(psi^(2 br(k) + 1)) (negacyclic) or a(omega^br(k)) (cyclic). Here br(k) is k
        with its log2 n bits in reverse order, and psi or omega is the limb's root in ring.roots.
        ring.eval_points() has the points of any ring. An incomplete transform gives the residues modulo the
        leaves (see Ring.leaf_size), with leaf_size coefficients for each leaf.

        Args:
            out: a Poly of this ring and batch shape to write the result into. It may be this value.

        Raises:
            NotNTTFriendly: the ring has no evaluation domain.
            TablesTooLarge: the tables of the transform do not fit in memory.
            OutputError: `out` cannot hold the result (see Poly).

        Cost: (n/2) log2 n multiplications per limb. At n = 4096 this is 1 to 2 ns per coefficient and limb
        on one core.
        Source: Longa & Naehrig 2016, algorithm 1; docs/math.md, "The transform".

        >>> from polygpu import Ring
        >>> Ring(4, 17)([0, 1]).ntt().data.tolist()
        [[2, 15, 8, 9]]
        """
        if out is None:
            return to_domain(self, "eval")
        return held(to_domain(self, "eval", memory_of(self._plan, out)), out)

    def intt(self, *, out: Poly | None = None) -> Poly:
        """Transform back to coefficients, the inverse of ntt(). A value in coefficients is returned as it is.

        Args:
            out: a Poly of this ring and batch shape to write the result into. It may be this value.

        Raises:
            OutputError: `out` cannot hold the result (see Poly).

        Cost: see ntt(). Source: Longa & Naehrig 2016, algorithm 2.

        >>> from polygpu import Ring
        >>> a = Ring(4, 17)([1, 2])
        >>> (a.ntt() * a.ntt()).intt().to_bigints().tolist()
        [1, 4, 4, 0]
        """
        if out is None:
            return to_domain(self, "coef")
        return held(to_domain(self, "coef", memory_of(self._plan, out)), out)

    def natural_order(self) -> Array:
        """Return the evaluated residues in natural order: entry k of a limb is a(psi^(2k + 1)) or a(omega^k).

        The root psi or omega is the limb's root in ring.roots. After an incomplete transform, the leaves are
        put in order, and the coefficients within each leaf keep theirs.

        Returns an array (*batch, rows, n) of the ring's dtype, a copy, on the value's device.

        Raises:
            NotNTTFriendly: the ring has no evaluation domain.

        Cost: a copy in another order, and a transform if the value is in coefficients.

        >>> from polygpu import Ring
        >>> Ring(4, 17)([0, 1]).natural_order().tolist()  # 2, 2^3, 2^5, 2^7 modulo 17
        [[2, 8, 15, 9]]
        """
        return natural_order(ntt(self))

    # ---- arithmetic ----

    def add(self, other: Poly | int, *, ring: Ring | None = None, out: Poly | None = None) -> Poly:
        """Return the sum, Poly.add(a, b) or a + b.

        Args:
            other: a Poly of the same ring and device, or an int, which is a constant polynomial. Batch axes
                broadcast.
            ring: see mul.
            out: see mul.

        Returns a value in the operands' domain, or in "eval" if their domains differ.

        Raises:
            RingMismatch, DeviceError: the operands are in different rings or on different devices.
            ParameterError: the batch axes do not broadcast.
            NotAnInteger: an operand is neither a Poly nor an int.
            OutputError: `out` cannot hold the result (see Poly).

        Cost: one pass. If the domains differ, the operand in coefficients is transformed first.

        >>> from polygpu import Ring
        >>> R = Ring(4, 17)
        >>> (R([1, 2]) + R([[3], [4]])).to_bigints().tolist()
        [[4, 2, 0, 0], [5, 2, 0, 0]]
        """
        return checked_poly(self, "a")._pointwise("add", other, ring, out)

    def sub(self, other: Poly | int, *, ring: Ring | None = None, out: Poly | None = None) -> Poly:
        """Return the difference, Poly.sub(a, b) or a - b.

        Args:
            other: see add.
            ring: see mul.
            out: see mul.

        Returns a value in the operands' domain, or in "eval" if their domains differ.

        Raises:
            RingMismatch, DeviceError, ParameterError, NotAnInteger, OutputError: see add.

        Cost: see add.

        >>> from polygpu import Ring
        >>> (Ring(4, 17)([1, 2]) - 3).to_bigints(centered=True).tolist()
        [-2, 2, 0, 0]
        """
        return checked_poly(self, "a")._pointwise("sub", other, ring, out)

    def neg(self, *, out: Poly | None = None) -> Poly:
        """Return the negative, a.neg() or -a, in this value's domain.

        Args:
            out: a Poly of this ring and batch shape to write the result into. It may be this value.

        Raises:
            OutputError: `out` cannot hold the result (see Poly).

        Cost: one pass.

        >>> from polygpu import Ring
        >>> (-Ring(4, 17)([1, 2])).to_bigints().tolist()
        [16, 15, 0, 0]
        """
        if out is None:
            return self._with(neg(self._plan.basis, self._data))
        return held(self._with(neg(self._plan.basis, self._data, memory_of(self._plan, out))), out)

    def mul(
        self,
        other: Poly | int,
        *,
        product: Product = "auto",
        ring: Ring | None = None,
        out: Poly | None = None,
    ) -> Poly:
        """Return the product in the ring, Poly.mul(a, b) or a * b. It is exact for every degree and modulus.

        If both operands are in coefficients, so is the product. Evaluated operands multiply point by point.
        If only one operand is evaluated, the other is transformed first.

        Args:
            other: a Poly of the same ring and device, or an int. Batch axes broadcast.
            ring: the ring of the result. It must be given if an operand has more limbs than the result. Every
                operand must have all moduli of `ring`, in any order, with the same roots. Other limbs of an
                operand are not read.
            out: a Poly of the result's ring and batch shape to write into. It may be an operand. Its domain
                becomes that of the result. Views of its memory (out[0], out.reshape) keep the domain that
                they had, and are not valid afterwards if `out` changed its domain. If the call is
                interrupted, the contents of `out` are undefined.
            product: how operands in coefficients are multiplied: "ntt", "fft", or "auto" for the choice of
                the ring (see Ring). An int as `other` multiplies each residue, whatever `product` is.

        Raises:
            RingMismatch: the operands are in different rings, or one of them lacks a modulus of `ring`.
            DeviceError: the operands are on different devices.
            BadRoot: an operand has another root for a modulus of `ring`.
            ParameterError: the batch axes do not broadcast, or product is another word.
            NotAnInteger: an operand is neither a Poly nor an int.
            OutputError: `out` cannot hold the result (see Poly).
            PrecisionError: product is "fft", and no transform in doubles is proven to be exact.
            DomainError: product is "fft", and an operand is evaluated.
            TablesTooLarge: the tables of the product do not fit in memory.

        Cost: three transforms per limb for operands in coefficients, while a row stays in cache.
        ring.explain() says which transforms. For evaluated operands one pass, with leaf_size products per
        residue. For an int one pass. Many short polynomials times a single one are computed as a matrix
        product where that was measured to be faster.
        With `ring`, evaluated operands are read in place if they have the dtype of `ring` and hold its limbs
        side by side in the order of `ring`, for example as their first limbs. Otherwise these limbs are
        copied first, as in restrict.
        Source: docs/math.md, "Products through auxiliary primes" and "Products by FFT".

        >>> from polygpu import Ring
        >>> R = Ring(4, 17)
        >>> (R([1, 1]) * R([[1, 1], [1, -1]])).to_bigints(centered=True).tolist()
        [[1, 2, 1, 0], [1, 0, -1, 0]]
        >>> Q = Ring(4, [17, 97])
        >>> (Q([1, 1]).mul(R([0, 1]), ring=R)) == R([0, 1, 1])
        True
        >>> T = Ring(1000, 2**64)  # no transform exists
        >>> T([1, 1]).mul(T([1, 1]), product="fft") == T([1, 1]).mul(T([1, 1]), product="ntt") == T([1, 2, 1])
        True
        """
        a = self
        if type(a) is not Poly:
            if not isinstance(a, Poly) and isinstance(other, Poly):
                return other.mul(a, ring=ring, out=out, product=product)  # Poly.mul(3, a)
            a = checked_poly(a, "a")
        if product is not _AUTO:
            check_product(product)
        if ring is not None:
            return a._mul_limbs(other, product, ring, out)
        memory = None if out is None else memory_of(a._plan, out)
        if isinstance(other, Poly):
            b = other
            if b._plan is not a._plan or not type(a._data) is type(b._data) is np.ndarray:
                b = a._operand(other)
            if a._domain != b._domain:
                a, b = ntt(a), ntt(b)
            made = multiply(a, b, product, memory)
        else:
            made = a._with(scale(a._plan.basis, a._data, integer(other, "operand"), memory))
        return made if out is None else out._holding(made._data, made._domain)

    def _mul_limbs(self, other: Poly | int, product: Product, ring: Ring, out: Poly | None) -> Poly:
        """Return the product modulo the moduli of `ring`, all of which the operands must have."""
        a, b = limbs_in_one_domain(ring, self, other)
        memory = memory_of(a._plan, out)
        if isinstance(b, Poly):
            return held(multiply_limbs(a, b, product, memory), out)
        data = scale(a._plan.basis, a._data, integer(b, "operand"), memory, layouts(a._data))
        return held(a._with(data), out)

    def scale_by(
        self, ints: Any = None, *, limbs: Sequence[int] | None = None, out: Poly | None = None
    ) -> Poly:
        """Multiply by one integer for each polynomial of the batch, or by one for each limb.

        The result is in this value's domain.

        Args:
            ints: an int, or integers of any size in an array or nested list that broadcasts to the batch
                shape.
            limbs: a list of one int for each modulus, given instead of ints.
            out: see mul.

        Raises:
            CoefficientError: a factor is not an integer.
            ParameterError: ints does not broadcast to the batch shape, limbs does not have one entry for each
                modulus, or not exactly one of ints and limbs is given.
            OutputError: `out` cannot hold the result (see Poly).

        Cost: one pass, and the reduction of the factors modulo each limb.

        >>> from polygpu import Ring
        >>> R = Ring(2, [17, 97])
        >>> R([[1, 2], [3, 4]]).scale_by([10, -1]).to_bigints(centered=True).tolist()
        [[10, 20], [-3, -4]]
        >>> R([1, 2]).scale_by(limbs=[2, 0]).to_residue_ints().tolist()
        [[2, 4], [0, 0]]
        """
        data = scale_by(self._plan.basis, self._data, ints, limbs, memory_of(self._plan, out))
        return held(self._with(data), out)

    def _pointwise(
        self, op: Literal["add", "sub"], other: object, ring: Ring | None, out: Poly | None
    ) -> Poly:
        a, strides = self, None
        if ring is not None:
            a, other = limbs_in_one_domain(ring, a, other)
            strides = layouts(*(x._data for x in (a, other) if isinstance(x, Poly)))
        memory = None if out is None else memory_of(a._plan, out)
        if isinstance(other, Poly):
            b = other
            if b._plan is not a._plan or not type(a._data) is type(b._data) is np.ndarray:
                b = a._operand(other)
            if a._domain != b._domain:
                a, b = ntt(a), ntt(b)
            data = pointwise(a._plan.basis, op, a._data, b._data, memory, strides)
        else:
            number = integer(other, "operand")
            number = number if op == "add" else -number
            data = add_constant(
                a._plan.basis, a._data, number, a._plan.constant_step(a._domain), memory, strides
            )
        return a._with(data) if out is None else out._holding(data, a._domain)

    def _operand(self, other: object) -> Poly:
        """Return the other operand as a Poly of this ring and device; an int becomes a constant."""
        if isinstance(other, Poly):
            plan, theirs = self._plan, other._plan
            if plan is not theirs and plan != theirs:
                raise RingMismatch(
                    f"The operands are in different rings: a in {plan!r} and b in {theirs!r}. "
                    f"{_way_between(plan, theirs)}"
                )
            if not type(self._data) is type(other._data) is np.ndarray:
                check_one_device(self, other)
            return other
        plan, number = self._plan, integer(other, "operand")
        home = backend_of(self._data)
        step = plan.constant_step(self._domain)
        return self._with(integers.constant(plan.basis, plan.n, number, step, home))

    def _factor(self, other: object) -> Poly | Array:
        """Return the other operand as _operand() does, except that an int becomes its residues (rows, 1)."""
        if isinstance(other, Poly):
            return self._operand(other)
        return integers.residues_on(backend_of(self._data), self._plan.basis, integer(other, "operand"))

    def __add__(self, other: Poly | int) -> Poly:
        return self.add(other) if type(other) is Poly else _operator(self.add, other)

    def __radd__(self, other: int) -> Poly:
        return _operator(self.add, other)

    def __sub__(self, other: Poly | int) -> Poly:
        return self.sub(other) if type(other) is Poly else _operator(self.sub, other)

    def __rsub__(self, other: int) -> Poly:
        return _operator(lambda x: _negated_plus(self, x), other)

    def __mul__(self, other: Poly | int) -> Poly:
        return self.mul(other) if type(other) is Poly else _operator(self.mul, other)

    def __rmul__(self, other: int) -> Poly:
        return _operator(self.mul, other)

    def __matmul__(self, other: Poly) -> Poly:
        return _operator(self._matmul, other)

    def __rmatmul__(self, other: Poly) -> Poly:
        return _operator(lambda x: checked_poly(x, "a")._matmul(self), other)

    def _matmul(self, other: object, out: Poly | None = None) -> Poly:
        a, b = self, self._operand(checked_poly(other, "b"))
        return held(matmul(a, b, out=memory_of(a._plan, out)), out)

    def __neg__(self) -> Poly:
        return self.neg()

    def __pos__(self) -> Poly:
        return self

    def __pow__(self, exponent: int) -> Poly:
        """Return the power a ** exponent, in this value's domain.

        Args:
            exponent: any int. If it is negative, the result is a power of the inverse.

        Raises:
            NotAnInteger: exponent is not an int.
            NotInvertible: exponent is negative, and some polynomial has no inverse.

        Cost: log2(exponent) squarings and at most as many other products. In a ring that multiplies by its
        own transform they are all pointwise, between one transform and one inverse transform.

        >>> from polygpu import Ring
        >>> R = Ring(4, 17)
        >>> (R([1, 1]) ** 3).to_bigints().tolist(), R([3, 1]) ** -1 * R([3, 1]) == 1
        ([1, 3, 3, 1], True)
        """
        k = integer(exponent, "exponent")
        base = self.inverse() if k < 0 else self
        return power(base, abs(k))

    def __eq__(self, other: object) -> bool:
        """Return one bool: whether two values have the same ring, batch shape and polynomials.

        Their domains may differ. polygpu.equal compares polynomial by polynomial.

        Args:
            other: a Poly, or an int, with which every polynomial is compared.

        Raises:
            CoefficientError: other is an array, list or other sequence.
            DeviceError: the values are on different devices.

        Cost: one pass, and a transform if the domains differ. The call waits for the GPU.

        >>> from polygpu import Ring
        >>> a = Ring(4, 17)([1, 2])
        >>> a == a.ntt(), a == 1
        (True, False)
        """
        if isinstance(other, Poly):
            if other._plan != self._plan or other.shape != self.shape:
                return False
        elif not isinstance(other, (int, np.integer)) or isinstance(other, bool):
            refuse_array(other)
            return NotImplemented
        return bool(self._equal(other).all())

    def _equal(self, other: object) -> np.ndarray[Any, np.dtype[np.bool_]]:
        a, b = self, self._operand(other)
        if a._domain != b._domain:
            a, b = ntt(a), ntt(b)
        return equal(a._data, b._data)

    # ---- structure ----

    def automorphism(self, g: int | Sequence[int] | Array, *, out: Poly | None = None) -> Poly:
        """Return a(X^g), in this value's domain, for g coprime to the order of X.

        The order is 2n (negacyclic), n (cyclic) or 3n (trinomial).

        Args:
            g: an int of any size or sign, which is reduced modulo the order of X; or integers that broadcast
                with the batch axes, one for each polynomial of the result. An array on a GPU is copied to the
                host.
            out: a Poly of this ring and of the result's batch shape to write into. It may be this value.

        Raises:
            ParameterError: g is not coprime to the order of X, so that X -> X^g is not an automorphism; or
                the shape of g does not broadcast with the batch axes.
            CoefficientError: g holds something other than integers.
            OutputError: `out` cannot hold the result (see Poly).
            DeviceError: polygpu.capture records the call on a GPU, and g is an array on a GPU or has more
                than 8192 integers.

        Cost: a permutation, in either domain. A value that was evaluated by an incomplete transform takes two
        transforms in addition. Source: docs/math.md, "Automorphisms".

        >>> from polygpu import Ring
        >>> Ring(4, 17)([1, 2, 3, 4]).automorphism([3, -1]).to_bigints(centered=True).tolist()
        [[1, 4, -3, 2], [1, -4, -3, -2]]
        """
        return held(automorphism(self, g, memory_of(self._plan, out)), out)

    def mul_monomial(self, k: int | Sequence[int] | Array, *, out: Poly | None = None) -> Poly:
        """Multiply by X^k, in this value's domain.

        Args:
            k: any int, or integers that broadcast with the batch axes, one for each polynomial of the result.
                An array on the value's GPU stays there.
            out: a Poly of this ring and of the result's batch shape to write into. It may be this value.

        Raises:
            ParameterError: the shape of k does not broadcast with the batch axes.
            CoefficientError: k holds something other than integers.
            OutputError: `out` cannot hold the result (see Poly).
            DeviceError: polygpu.capture records the call on a GPU, and k is an array on another device or has
                more than 8192 integers on the host.

        Cost: for a value in coefficients one pass, which rotates the coefficients. For an evaluated value one
        transform of X^k per entry of k, and a pointwise product.

        >>> from polygpu import Ring
        >>> Ring(4, 17)([1, 2, 3, 4]).mul_monomial([-1, 4]).to_bigints(centered=True).tolist()
        [[2, 3, 4, -1], [-1, -2, -3, -4]]
        """
        return held(mul_monomial(self, k, memory_of(self._plan, out)), out)

    def to_slots(self) -> Array:
        """Return the slots: the values at the n roots of X^n + 1 modulo a prime q, as two rows of n/2.

        Slot j of the first row is the value at psi^(5^j), and of the second row at psi^(-5^j), where
        psi = ring.roots[0] and j = 0 ... n/2 - 1. `automorphism(5)` rotates both rows left by one slot, and
        `automorphism(-1)` exchanges the rows.

        Returns:
            Residues (*batch, n) of the ring's dtype, first row first, on the value's device.

        Raises:
            NotNTTFriendly: the ring is not negacyclic, or its modulus is not a single prime q = 1 mod 2n
                below 2**64.

        Cost: one pass, and a transform if the value is in coefficients. Source: Smart, Vercauteren 2011/133.

        >>> from polygpu import Ring
        >>> a = Ring(8, 17).from_slots([1, 2, 3, 4, 5, 6, 7, 8])
        >>> a.automorphism(5).to_slots().tolist(), a.automorphism(-1).to_slots().tolist()
        ([2, 3, 4, 1, 6, 7, 8, 5], [5, 6, 7, 8, 1, 2, 3, 4])
        """
        return to_slots(self)

    def __call__(self, x: int | Sequence[int] | Array) -> Any:
        """Evaluate at the points x modulo Q, as polynomials of degree below n over the integers modulo Q.

        Args:
            x: the points: one integer of any size and sign, or an array of integers, of any shape.

        Returns:
            Python ints in [0, Q), in an object array (*batch, *x.shape). For a single polynomial and a single
            point the result is one int.

        Raises:
            ParameterError: a point is a Poly. NotAnInteger: a point is not an int.

        Cost: n products of words per limb, point and polynomial. For moduli up to 2**64 they are computed as
        matrix products on the value's device; for moduli up to 2**62, a point at n = 2**20 takes 0.3 ms on
        one core. A larger modulus takes log2 n passes, each over half as many coefficients as the one before,
        together 80 ns per coefficient. An evaluated value takes an inverse transform first.
        Source: Paterson & Stockmeyer 1973 (baby steps, giant steps).

        >>> from polygpu import Ring
        >>> Ring(4, 17)([1, 2, 3])(5)
        1
        """
        return evaluate(self._plan.basis, intt(self)._data, x)

    def inverse(self) -> Poly:
        """Return the multiplicative inverse, in this value's domain.

        If the ring has a complete transform, the inverse is computed pointwise. Otherwise it is computed limb
        by limb in host memory: modulo a prime p by the extended Euclidean algorithm, and modulo a power p^k
        by Hensel lifting of the inverse modulo p.

        Raises:
            NotInvertible: some polynomial has no inverse (the message says which), or a modulus is neither
                prime nor a power of a prime.

        Cost: with a complete transform 2 log2 q pointwise products; modulo a prime above 2^64 instead three
        products per value, and a single modular inverse for all values together. Otherwise about n^2
        products of words per limb (0.2 ms at n = 701, q = 3). Each of the log2 k lifting steps modulo p^k
        takes two products of polynomials.
        Source: docs/math.md, "Inverses" and "Inverses by the extended Euclid".

        >>> from polygpu import Ring
        >>> R = Ring(4, 17)
        >>> R([3, 1]).inverse() * R([3, 1]) == 1
        True
        """
        return inverse(self)

    def try_inverse(self) -> tuple[Poly, np.ndarray[Any, np.dtype[np.bool_]]]:
        """Return the inverses, and for each polynomial whether it has one.

        Returns (b, ok). b holds the inverses, in this value's shape and domain, and is zero where there is no
        inverse. ok is an array of bools in host memory, of the batch shape: True for those that have one.

        Raises:
            NotInvertible: a modulus is neither prime nor a power of a prime, so no inverse can be found.

        Cost: see `inverse`. The call waits for the GPU.

        >>> from polygpu import Ring
        >>> b, ok = Ring(2, 5)([[2, 0], [2, 1], [1, 1]]).try_inverse()  # X^2 + 1 = (X + 2) (X + 3) modulo 5
        >>> ok.tolist(), b.to_bigints(centered=True).tolist()
        ([True, False, True], [[-2, 0], [0, 0], [-2, 2]])
        """
        return try_inverse(self)

    # ---- between bases of moduli ----

    def restrict(self, ring: Ring, *, out: Poly | None = None) -> Poly:
        """Return the value modulo the moduli of `ring`, all of which it must have. Other limbs are dropped.

        Args:
            ring: a ring of the same degree and kind, such as ring[:k]; its moduli may be in any order.
            out: a Poly of `ring`, of this batch shape, to write the result into.

        Returns a copy, in this value's domain.

        Raises:
            RingMismatch: `ring` is of another degree or kind, or has a modulus that the value does not have.
            BadRoot: `ring` has another root for a prime that both rings have.
            ParameterError: `ring` is not a Ring.
            OutputError: `out` cannot hold the result (see Poly).

        Cost: a copy. An evaluated value is transformed back and forth if the transform of `ring` has
        leaves of another size.

        >>> import polygpu as pg
        >>> R = pg.Ring(4, [17, 97])
        >>> R([1700 + 5]).restrict(R[:1]).to_bigints().tolist()
        [5, 0, 0, 0]
        """
        return self._moved(restrict, ring, out=out)

    def convert(self, ring: Ring, *, conversion: Precision = "exact", out: Poly | None = None) -> Poly:
        """Return the value v, centred in [-Q/2, Q/2), modulo the moduli of `ring`, which may be any moduli.

        Args:
            ring: a ring of the same degree and kind. Either ring may have one modulus above 2**64.
            conversion: "exact" gives v for every input. "fast" gives v + u * Q for an integer u with |u| <=
                floor(k / 2), if this value has k limbs. The result is the sum of y_i * (Q/q_i) over the
                moduli q_i, where y_i = v * (Q/q_i)^-1 mod q_i is centred in [-q_i/2, q_i/2).
            out: a Poly of `ring`, of this batch shape, to write the result into.

        Returns a value in this value's domain if `ring` has that domain, else in coefficients.

        Raises:
            RingMismatch: `ring` is of another degree or kind.
            BadRoot: `ring` has another root for a prime that both rings have.
            ParameterError: conversion is another word, or `ring` is not a Ring.
            OutputError: `out` cannot hold the result (see Poly).

        Cost: k products for each coefficient and limb of `ring`. Limbs that both rings have are copied. An
        evaluated value also takes inverse transforms of its k limbs, and transforms of the limbs of `ring`
        that are new. "exact" computes the multiple of Q to subtract in doubles for nearly all coefficients;
        the others take up to 20 times as long. If a modulus is above 2**64, the coefficients become Python
        ints.
        Source: Halevi, Polyakov, Shoup 2018/117; docs/math.md, "Conversion between bases".

        >>> import polygpu as pg
        >>> R, S = pg.Ring(4, [17, 97]), pg.Ring(4, 193)
        >>> R([-5, 800]).convert(S).to_bigints(centered=True).tolist()
        [-5, 28, 0, 0]
        """
        return self._moved(convert, ring, conversion, out=out)

    def mod_up(self, ring: Ring, *, conversion: Precision = "exact", out: Poly | None = None) -> Poly:
        """Return the centred value modulo `ring`, which has all moduli of this value and more. See convert.

        Args:
            ring: a ring of the same degree and kind. Residues modulo the moduli of this value are copied.
            conversion: see convert.
            out: a Poly of `ring`, of this batch shape, to write the result into.

        Raises:
            RingMismatch: `ring` lacks a modulus of this value, or is of another degree or kind.
            ParameterError: a modulus is above 2**64, conversion is another word, or `ring` is not a Ring.
            BadRoot, OutputError: see convert.

        Cost: see convert. Only the limbs that are new have to be computed.
        Source: Cheon et al. 2018/931, "ModUp".

        >>> import polygpu as pg
        >>> R = pg.Ring(4, [17, 97])
        >>> R[:1]([3, -4]).mod_up(R).to_bigints(centered=True).tolist()
        [3, -4, 0, 0]
        """
        return self._moved(mod_up, ring, conversion, out=out)

    def scale_up(self, ring: Ring, *, out: Poly | None = None) -> Poly:
        """Return P times this value modulo `ring`; P is the product of the moduli that only `ring` has.

        The result is zero modulo these additional moduli. mod_down divides it by P without a remainder:
        a.scale_up(ring).mod_down(a.ring) equals a.

        Args:
            ring: a ring of the same degree and kind that has all of this value's moduli, in any order. If it
                has no others, P is 1.
            out: a Poly of `ring`, of this batch shape, to write the result into.

        Returns a value of this batch shape, in this value's domain if `ring` has that domain, else in
        coefficients.

        Raises:
            RingMismatch: `ring` lacks a modulus of this value, or is of another degree or kind.
            BadRoot: `ring` has another root for a prime that both rings have.
            ParameterError: a modulus is above 2**64, or `ring` is not a Ring.
            OutputError: `out` cannot hold the result (see Poly).

        Cost: one product for each residue of this value, and writing the zeros. An evaluated value is
        transformed back and forth if the transform of `ring` has leaves of another size.

        >>> import polygpu as pg
        >>> R = pg.Ring(4, [17, 97, 113])
        >>> a = R[:2]([1, -2])
        >>> a.scale_up(R).to_bigints(centered=True).tolist(), a.scale_up(R).mod_down(a.ring) == a
        ([113, -226, 0, 0], True)
        """
        return self._moved(scale_up, ring, out=out)

    def mod_down(
        self,
        ring: Ring,
        *,
        rounding: Rounding = "nearest",
        conversion: Precision = "exact",
        plaintext: int | None = None,
        out: Poly | None = None,
    ) -> Poly:
        """Divide the value a by P and round; P is the product of the moduli that `ring` does not have.

        Args:
            ring: the ring of the result. It has some of this value's moduli, in any order.
            rounding: "nearest" gives floor((2a + P) / (2P)), which rounds halves up; "floor" gives
                floor(a / P). Modulo `ring`, the result does not depend on which integer represents a
                modulo Q.
            conversion: "exact" divides as above. "fast" is off by a small integer if d moduli are dropped:
                with "nearest" by at most floor(d / 2), and with "floor" it gives floor(a / P) - u, where
                0 <= u < d.
            plaintext: t for BGV, from 2 to 2**64 and coprime to P. Then the result r is changed by at most
                t / 2, so that P * r is equal to a modulo t. None changes nothing.
            out: a Poly of `ring`, of this batch shape, to write the result into.

        Returns a value in this value's domain.

        Raises:
            RingMismatch: `ring` is of another degree or kind, or has a modulus that the value does not have.
            ParameterError: a modulus is above 2**64, rounding or conversion is another word, or plaintext is
                out of range or not coprime to P.
            BadRoot: `ring` has another root for a prime that both rings have.
            OutputError: `out` cannot hold the result (see Poly).

        Cost: d products for each coefficient and limb of `ring`. An evaluated value also takes inverse
        transforms of the d dropped limbs, and one transform for each limb of `ring`.
        Source: Cheon et al. 2018/931; Halevi, Polyakov, Shoup 2018/117; docs/math.md, "Conversion between
        bases". For plaintext: Brakerski, Gentry, Vaikuntanathan 2011/277, section 4.

        >>> import polygpu as pg
        >>> R = pg.Ring(4, [97, 17])
        >>> R([170, 171, 178, 179]).mod_down(R[:1]).to_bigints().tolist()
        [10, 10, 10, 11]
        """
        return self._moved(mod_down, ring, rounding, conversion, plaintext, out=out)

    def rescale(self, k: int = 1, *, out: Poly | None = None) -> Poly:
        """Return the value divided by the product of its last k moduli, rounded: mod_down(ring[:-k]).

        Args:
            k: number of limbs to drop. At least one limb must stay.
            out: a Poly of ring[:-k] with the same batch shape to write into.

        Raises:
            ParameterError: k is less than 1 or not less than the number of limbs. For other errors see
                mod_down.

        Cost: see mod_down.

        >>> import polygpu as pg
        >>> pg.Ring(4, [97, 17])([170, 178]).rescale().ring
        Ring(4, 97)
        """
        return self._moved(mod_down, without_last(self._ring, k, "k", least=1), out=out)

    def digits(
        self,
        ring: Ring,
        *,
        limbs_per_digit: int,
        conversion: Precision = "exact",
        out: Poly | None = None,
    ) -> Poly:
        """Return the digits modulo `ring`, one for each group of limbs_per_digit neighbouring limbs.

        Digit j is this value modulo the product of the moduli of group j, centred. The last group may be
        smaller. If g = polygpu.rns.gadget(a.ring, limbs_per_digit) for the value a, then the sum over j of
        digit j times g[j] is a.

        Args:
            ring: the ring of the digits, of the same degree and kind.
            limbs_per_digit: number of limbs in a group. A value of k limbs has ceil(k / limbs_per_digit)
                groups.
            conversion: see convert. It applies to each group.
            out: a Poly of `ring` and of the result's batch shape to write into.

        Returns a value of batch shape (*batch, ceil(k / limbs_per_digit)), in this value's domain if
        `ring` has that domain, else in coefficients.

        Raises:
            RingMismatch, BadRoot: see convert.
            ParameterError: limbs_per_digit is less than 1, or a modulus is above 2**64.
            OutputError: `out` cannot hold the result (see Poly).

        Cost: for each digit the cost of convert from its group to `ring`. An evaluated value also takes one
        inverse transform for each of its limbs, and for each digit transforms of the limbs of `ring` that
        are not in the digit's group.
        Source: Han, Ki 2019/688.

        >>> import polygpu as pg
        >>> R = pg.Ring(4, [17, 97, 193])
        >>> a, g = R([-70000]), pg.rns.gadget(R, limbs_per_digit=2)
        >>> d = a.digits(R, limbs_per_digit=2)
        >>> d.shape, d[0] * g[0] + d[1] * g[1] == a
        ((2,), True)
        """
        return self._moved(digits, ring, limbs_per_digit, conversion, out=out)

    def _moved(self, verb: Callable[..., Value], ring: Ring, *options: Any, out: Poly | None) -> Poly:
        """Apply `verb`, a function of _ops/rns.py, and return its result as a Poly of `ring`."""
        target = plan_of(ring, "ring")
        check_target(self._plan, target, "ring")
        value = verb(self, target, *options, out=memory_of(target, out))
        return as_poly(ring, value, out)

    # ---- integers ----

    def to_bigints(self, *, centered: bool = False) -> np.ndarray[Any, np.dtype[np.object_]]:
        """Return the coefficients as Python ints.

        Args:
            centered: True for coefficients in [-Q/2, Q/2), False for [0, Q).

        Returns an object array (*batch, n) in host memory, with the coefficient of X^0 first.

        Raises:
            OutOfHostMemory: the result does not fit.

        Cost: about 10 ns per coefficient and limb on one core, and 0.1 us for each int. An evaluated value
        takes an inverse transform first.

        >>> from polygpu import Ring
        >>> Ring(4, [17, 97])([-1, 2]).to_bigints().tolist()  # Q = 1649
        [1648, 2, 0, 0]
        """
        return integers.to_bigints(self._plan.basis, intt(self)._data, centered)

    def tolist(self) -> list[Any]:
        """Return the coefficients as nested lists (*batch, n) of Python ints in [0, Q), X^0 first.

        The result is equal to to_bigints().tolist(), for any number of limbs and in either domain.

        Raises:
            OutOfHostMemory: the result does not fit.

        Cost: for a single modulus of at most 2**64 the cost of ndarray.tolist, about 30 ns per coefficient on
        one core; otherwise see to_bigints. An evaluated value takes an inverse transform first.

        >>> from polygpu import Ring
        >>> Ring(4, [17, 97])([[-1, 2], [3, 4]]).tolist()  # Q = 1649
        [[1648, 2, 0, 0], [3, 4, 0, 0]]
        """
        return integers.tolist(self._plan.basis, intt(self)._data)

    def to_int64(self, *, centered: bool = True) -> Array:
        """Return the coefficients as machine integers.

        Args:
            centered: True for coefficients in [-Q/2, Q/2), the default, or False for [0, Q).

        Returns an int64 array (*batch, n) on the value's device.

        Raises:
            ParameterError: a coefficient is outside [-2**63, 2**63).

        Cost: about 0.5 ns per coefficient and limb on one core. The call waits for the GPU. An evaluated
        value takes an inverse transform first. Source: docs/math.md, "Integers".

        >>> from polygpu import Ring
        >>> Ring(2, [17, 97])([-3, 4]).to_int64()
        array([-3,  4])
        """
        return integers.to_int64(self._plan.basis, intt(self)._data, centered)

    def to_float64(self, *, centered: bool = True) -> Array:
        """Return the coefficients as doubles, each the double nearest to the integer, with ties to even.

        Integers beyond the largest double become infinite. They occur only if Q > 2**1023.

        Args:
            centered: True for coefficients in [-Q/2, Q/2), the default, or False for [0, Q).

        Returns a float64 array (*batch, n) on the value's device.

        Raises:
            OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

        Cost: about 10 ns per coefficient and limb on one core, and an inverse transform of evaluated values.
        Source: docs/math.md, "Integers".

        >>> from polygpu import Ring
        >>> Ring(2, [2**61 - 1, 2**64])([-(2**53) - 1, 4]).to_float64()
        array([-9.00719925e+15,  4.00000000e+00])
        """
        return integers.to_float64(self._plan.basis, intt(self)._data, centered)

    def to_residue_ints(self) -> np.ndarray[Any, np.dtype[np.object_]]:
        """Return the residues of `data` as Python ints, in this value's domain.

        Returns an object array (*batch, limbs, n) in host memory. For a single modulus above 2**64 its shape
        is (*batch, n), and each entry is a whole residue rather than one of its words.

        Raises:
            OutOfHostMemory: the result does not fit.

        Cost: 20 ns per residue on one core.

        >>> from polygpu import Ring
        >>> Ring(4, [17, 97])([-1, 2]).to_residue_ints().tolist()
        [[16, 2, 0, 0], [96, 2, 0, 0]]
        """
        return integers.to_residue_ints(self._plan.basis, self._data)

    def norm(self, p: float = 2) -> Any:
        """Compute the norm of each polynomial's centred coefficients.

        Args:
            p: 2 for the root of the sum of squares, 1 for the sum of absolute values, inf for the largest
                absolute value.

        Returns one number for a single polynomial, else an array of the batch shape. For p = 1 and p = inf
        the norms are exact ints. For p = 2 they are doubles, each the double nearest to the exact norm.

        Raises:
            ParameterError: p is another number, or a 2-norm is larger than any float.

        Cost: one pass, 3 to 20 ns per coefficient and limb on one core. The call waits for the GPU. An
        evaluated value takes an inverse transform first.

        >>> from polygpu import Ring
        >>> R = Ring(4, 17)
        >>> R([3, -4]).norm(), R([3, -4]).norm(1), R([3, -4]).norm(float("inf"))
        (5.0, 7, 4)
        """
        return integers.norm(self._plan.basis, intt(self)._data, p)

    # ---- exchange ----

    def _exits(self) -> str:
        here = isinstance(self._data, np.ndarray)
        there = "" if here else f" (poly.cpu() first, as it is on {self.device})"
        return (
            "Use the methods of Poly and the functions of polygpu (poly.sum, pg.stack, pg.einsum, pg.equal), "
            f"or take integers with poly.to_bigints() or residues with poly.data{there}"
        )

    def __dlpack__(self, **options: Any) -> Any:
        """Return the residues (*batch, rows, n) as a DLPack capsule, for numpy.from_dlpack(poly) and others.

        torch.from_dlpack(poly) is a tensor of uint32 or uint64, for which PyTorch has few operations. If
        every modulus is below 2^63, view(torch.int64) of a uint64 tensor has the same numbers. JAX cuts 64
        bits to 32 unless jax_enable_x64 is on; polygpu.interop.to_jax raises an error instead.

        Args:
            options: keyword arguments for __dlpack__ of the array, whose errors are passed on.

        Cost: nothing is copied unless the options ask for it.

        >>> import numpy as np
        >>> from polygpu import Ring
        >>> np.from_dlpack(Ring(4, 17)([1, -1]).cpu()).tolist()
        [[1, 16, 0, 0]]
        """
        return self._data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type and device index for the residues, such as (1, 0) for host memory.

        >>> from polygpu import Ring
        >>> Ring(4, 17)([1]).cpu().__dlpack_device__()
        (1, 0)
        """
        return self._data.__dlpack_device__()


def plan_of(ring: object, name: str) -> RingPlan:
    """Return the plan of a Ring; raise ParameterError for anything else."""
    plan = getattr(ring, "_plan", None)  # ring.py, which defines Ring, imports this module
    if not isinstance(plan, RingPlan) or isinstance(ring, NotAnArray):  # values have a plan too
        raise ParameterError(f"{name} must be a Ring, not {type(ring).__name__}.")
    return plan


def limbs_in(ring: Ring, *operands: Any) -> Any:
    """Return the operands modulo the moduli of `ring`, for operations that only read them; ints are kept.

    The arrays of the results may be views with gaps between the polynomials.
    """
    plan, found = plan_of(ring, "ring"), list(operands)
    first: Poly | None = None
    for i, x in enumerate(operands):
        if not isinstance(x, Poly):
            continue
        earlier = next((j for j in range(i) if operands[j] is x), None)
        if earlier is not None:  # one object stays one, since records of calls depend on this
            found[i] = found[earlier]
            continue
        found[i] = made = Poly._make(ring, *limbs_of(x, plan))
        if first is None:
            first = made
        elif not type(first._data) is type(made._data) is np.ndarray:
            check_one_device(first, made)
    return found


def limbs_in_one_domain(ring: Ring, *operands: Any) -> Any:
    """Return the operands as limbs_in() does, all of them evaluated if their domains differ."""
    found = limbs_in(ring, *operands)
    if len({x._domain for x in found if isinstance(x, Poly)}) < 2:
        return found
    return [
        ntt(x._with(contiguous(x._data))) if isinstance(x, Poly) and x._domain == "coef" else x for x in found
    ]


def memory_of(plan: RingPlan, out: Poly | None) -> Array | None:
    """Return the array of `out`, if given; raise OutputError unless it is a Poly of the ring.

    The operations themselves check the array (_ops/results.py).
    """
    if out is None:
        return None
    if not isinstance(out, Poly):
        raise OutputError(
            f"out must be a Poly, not {type(out).__name__}. Use ring.from_residues(array, copy=False) to "
            "wrap an array."
        )
    if out._plan is not plan and out._plan != plan:
        raise OutputError(
            f"out is in {out._plan!r} and the result is in {plan!r}. Give an out in the ring of the result."
        )
    return out._data


def as_poly(ring: Ring, value: Value, out: Poly | None) -> Poly:
    """Return `value` as a Poly of `ring`; or `out`, if given, into whose array `value` was written."""
    if out is None:
        return Poly._make(ring, value._data, value._domain)
    return out._holding(value._data, value._domain)


def held(made: Poly, out: Poly | None) -> Poly:
    """Return the result `made`; or `out`, if given, into whose array the result was written."""
    return made if out is None else out._holding(made._data, made._domain)


def without_last(ring: Ring, k: object, name: str, least: int) -> Ring:
    """Return the ring without its last k limbs; raise ParameterError if k < `least` or no limb is left."""
    count, limbs = integer(k, name), len(ring.moduli)
    if not least <= count < limbs:
        if limbs <= least:
            raise ParameterError(
                f"{name}={shown(count)} does not work for a ring of one limb, since at least one limb must "
                "stay."
            )
        raise ParameterError(
            f"{name}={shown(count)} must be from {least} to {limbs - 1}, since at least one limb must stay."
        )
    return ring[:-count] if count else ring


def _unpickled(ring: Ring, data: Array, domain: Domain, device: str | None) -> Poly:
    """Return the value from a pickle on its device; if the device is missing, warn and use host memory."""
    value = ring.from_residues(data, domain=domain, check=True)  # a pickle may come from anywhere
    if device is None:
        return value
    try:
        return value.to(device)
    except DeviceError as error:
        warnings.warn(f"polygpu: a value of {device} stays on the host: {error}", stacklevel=2)
        return value


def _operator(method: Callable[[Any], Poly], other: object) -> Poly:
    """Return method(other) if other is a Poly or int, or NotImplemented so that Python asks other's type.

    Raise an error for arrays, lists, tuples, bools, strings and other numbers.
    """
    if isinstance(other, Poly) or (isinstance(other, (int, np.integer)) and not isinstance(other, bool)):
        return method(other)
    refuse_array(other)
    if isinstance(other, (bool, float, complex, str, np.generic)):
        integer(other, "operand")
    return cast(Poly, NotImplemented)


def _negated_plus(a: Poly, x: int) -> Poly:
    """Return x - a."""
    negative = a.neg()
    return negative.add(x, out=negative)


def _way_between(first: RingPlan, second: RingPlan) -> str:
    """Return sentences for an error message: how to move one operand, a or b, into the other's ring."""
    p, q = set(first.moduli), set(second.moduli)
    if first.quotient != second.quotient:
        return "Use ring(poly.to_bigints(centered=True)) to move a value from one to the other."
    if first.moduli == second.moduli:  # only the roots or `product` differ: coefficients stay the same
        return "Use ring.from_residues(poly.intt().data) to move a value from one to the other."
    if p == q:
        return "Their limbs are in another order. Use a.restrict(b.ring) to put a's in the order of b's."
    if p > q:
        return "Use a.restrict(b.ring) to take a modulo b's moduli, or b.mod_up(a.ring) to extend b to a's."
    if p < q:
        return (
            "Use a.mod_up(b.ring) to extend a to all of b's moduli, or b.restrict(a.ring) for b modulo a's."
        )
    join = "" if p & q else ", or pg.rns.join(a, b) for the value that has the residues of both"
    return f"Use a.convert(b.ring) for a's centred value modulo b's moduli{join}."


def check_one_device(a: Poly, b: Poly) -> None:
    """Raise DeviceError if the two values are on different devices."""
    if not same_device(b._data, a._data):
        raise DeviceError(
            f"The operands are on {a.device} and {b.device}. Use poly.to({a.device!r}) to copy one of them."
        )


def checked_poly(x: object, name: str) -> Poly:
    """Return x if it is a Poly; raise RingMismatch otherwise."""
    if not isinstance(x, Poly):
        raise RingMismatch(
            f"{name} must be a Poly, not {type(x).__name__}. Use ring(x) to make one of integers."
        )
    return x
