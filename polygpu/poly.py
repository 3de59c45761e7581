"""The class Poly: a batch of elements of a ring, in coefficients or in the evaluation domain.

Every operation is a method of the class. The methods check their arguments and call functions of _ops/, which
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
    """A batch of elements of a ring, with the attributes `ring`, `data` and `domain`.

    `data` is a C-contiguous array (*batch, rows, n) of canonical residues. Each row holds the residues of one
    modulus (limb); for one modulus above 2**64, each row holds one word of the residues. `shape` is the batch
    shape. Make values with ring(integers), ring.from_residues(array) and ring.random(...).

    The operators are a + b, a - b, -a, a * b, a @ b, a ** k, a == b and a[i]. a @ b multiplies matrices whose
    rows and columns are batch axes, and i indexes the batch axes. Except in a @ b, one operand may be a
    Python int, which is a constant polynomial. Batch axes broadcast as in NumPy. The result is in the domain
    of the operands, or in "eval" if their domains differ. Operators return new values. Only calls
    with `out=` and assignments a[i] = b write in place.

    Args:
        ring: the ring.
        data: residues (*batch, rows, n), in a C-contiguous array of the ring's dtype. The value uses this
            array and does not copy it.
        domain: "coef" or "eval".

    Raises:
        ParameterError: the shape of data does not end in (rows, n), or data is not a C-contiguous array of
            the ring's dtype. Use ring.from_residues, which copies such data.
        NotNTTFriendly: domain is "eval", and the ring has no transform.
        DomainError: domain is neither "coef" nor "eval".
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
        """Return Poly(ring, data, domain) without its checks, for results of operations, which are valid."""
        poly = _new(Poly)
        poly._ring, poly._plan, poly._data, poly._domain = ring, ring._plan, data, domain
        return poly

    def _with(self, data: Array, domain: Domain | None = None) -> Poly:
        """Return Poly(self.ring, data, domain) without its checks. By default the domain is self.domain."""
        poly = _new(Poly)
        poly._ring, poly._plan, poly._data = self._ring, self._plan, data
        poly._domain = domain or self._domain
        return poly

    def _holding(self, data: Array, domain: Domain) -> Poly:
        """Replace this value's array by `data` and its domain by `domain`. Return this value."""
        self._data, self._domain = data, domain
        return self

    # ---- attributes ----

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
        """The residues, an array (*batch, rows, n) of the ring's dtype: the array itself, not a copy.

        If you write to this array, write only residues in [0, q), where q is the modulus of the row.

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
        """The device that holds the value and computes with it, such as "cpu" or "cuda:0".

        For a value in host memory it is "cpu", but inside `with polygpu.device("reference")` it is
        "reference".

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
        """Return the length of the first batch axis. For a single polynomial, len() raises TypeError.

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
        """Index the batch axes by NumPy's rules. Return the chosen polynomials, in this value's domain.

        Limbs and coefficients are not batch axes. For a value a of `ring`, use a.data[..., limb, i] for
        residues, a.tolist() for coefficients, and a.restrict(ring[:k]) for the first k limbs.

        Args:
            key: ints, slices, None, Ellipsis, or arrays of ints or bools.

        Raises:
            IndexError: an index is out of range, or key has more entries than there are batch axes.

        Cost: nothing is copied if the chosen polynomials are contiguous in memory and `key` has no arrays.
        Then the result shares memory with this value. Otherwise the result is a copy.

        >>> from polygpu import Ring
        >>> a = Ring(2, 17)([[1, 2], [3, 4], [5, 6]])
        >>> a[1:].to_bigints().tolist()
        [[3, 4], [5, 6]]
        """
        return self._with(index(self._data, key))

    def __setitem__(self, key: Any, value: Poly | int) -> None:
        """Assign a[key] = value in place, where `key` indexes the batch axes by NumPy's rules.

        Args:
            key: ints, slices, None, Ellipsis, or arrays of ints or bools.
            value: a Poly of the same ring and device, or an int, which is a constant polynomial. The batch
                axes of a Poly broadcast to those of a[key]. A Poly in the other domain is transformed first.
                A Poly may share memory with a.

        Raises:
            ParameterError: the batch axes of value do not broadcast to those of a[key].
            IndexError: an index is out of range, or key has more entries than there are batch axes.
            RingMismatch: value is in another ring. NotAnInteger: value is neither a Poly nor an int.
            DeviceError: value is on another device. OutputError: the memory of `a` is read-only.

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
        """Return the same polynomials with another batch shape. The result shares memory with this value.

        Args:
            shape: the sizes of the batch axes, as ints or as one tuple of ints. One size may be -1, and is
                then computed from the others.

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
        """Return the value on a device, or the value itself if it is already on that device.

        Args:
            device: a name such as "cpu", "cuda" or "cuda:1". By default the current device (see
                polygpu.device).

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
        """Return the value in host memory, or the value itself if it is already in host memory. See Poly.to.

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

    # ---- transforms between the domains ----

    def ntt(self, *, out: Poly | None = None) -> Poly:
        """Transform to the evaluation domain, in bit-reversed order. An evaluated value is returned as it is.

        Let this value be a. A complete transform gives a(psi^(2 br(k) + 1)) (negacyclic) or a(omega^br(k))
        (cyclic) as entry k of a limb. Here br(k) is k with its log2 n bits in reverse order, and psi or omega
        is the limb's root in ring.roots. For every kind of ring, ring.eval_points() returns these points. An
        incomplete transform gives the residues of `a` modulo polynomials called leaves (see Ring.leaf_size),
        with leaf_size coefficients for each leaf.

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
        """Return the residues of the evaluated value, in natural instead of bit-reversed order.

        Let this value be a. Entry k of a limb is a(psi^(2k + 1)) (negacyclic) or a(omega^k) (cyclic), where
        psi or omega is the limb's root in ring.roots. See Ring.natural_order for trinomial rings. After an
        incomplete transform, whole leaves (see Ring.leaf_size) are reordered. The coefficients of each leaf
        keep their order.

        Returns an array (*batch, rows, n) of the ring's dtype, a copy, on the value's device.

        Raises:
            NotNTTFriendly: the ring has no evaluation domain.

        Cost: a copy, and a transform if the value is in coefficients.

        >>> from polygpu import Ring
        >>> Ring(4, 17)([0, 1]).natural_order().tolist()  # 2, 2^3, 2^5, 2^7 modulo 17
        [[2, 8, 15, 9]]
        """
        return natural_order(ntt(self))

    # ---- arithmetic ----

    def add(self, other: Poly | int, *, ring: Ring | None = None, out: Poly | None = None) -> Poly:
        """Return the sum of this value and `other`: a.add(b) is a + b.

        Args:
            other: a Poly of the same ring and device, or an int, which is a constant polynomial. Batch axes
                broadcast.
            ring: the ring of the result, if it has fewer limbs than the operands (see Poly.mul).
            out: a Poly of the result's ring and batch shape to write into (see Poly.mul).

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
        """Return the difference of this value and `other`: a.sub(b) is a - b.

        Args:
            other: see Poly.add.
            ring: the ring of the result, if it has fewer limbs than the operands (see Poly.mul).
            out: a Poly of the result's ring and batch shape to write into (see Poly.mul).

        Returns a value in the operands' domain, or in "eval" if their domains differ.

        Raises:
            RingMismatch, DeviceError, ParameterError, NotAnInteger, OutputError: see Poly.add.

        Cost: see Poly.add.

        >>> from polygpu import Ring
        >>> (Ring(4, 17)([1, 2]) - 3).to_bigints(centered=True).tolist()
        [-2, 2, 0, 0]
        """
        return checked_poly(self, "a")._pointwise("sub", other, ring, out)

    def neg(self, *, out: Poly | None = None) -> Poly:
        """Return the negative of this value, in its domain: a.neg() is -a.

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
        """Return the product of this value and `other` in the ring: a.mul(b) is a * b.

        The product is exact for every degree and modulus. If both operands are in coefficients, so is the
        product. Otherwise the product is evaluated: it is computed point by point, and if only one operand is
        evaluated, the other one is transformed first.

        Args:
            other: a Poly of the same ring and device, or an int. Batch axes broadcast.
            ring: the ring of the result, by default that of the operands. Give it if an operand has more
                limbs than the result. Every operand must have all moduli of `ring`, in any order, with the
                same roots. Other limbs of an operand are not read.
            out: a Poly of the result's ring and batch shape to write into. It may be an operand. Its domain
                becomes that of the result. If this changes the domain of `out`, earlier views of `out` (such
                as out[0] or out.reshape(...)) must not be used any more, since a view keeps its old domain.
                If the call is interrupted, the contents of `out` are undefined.
            product: the method for operands in coefficients: "ntt", "fft", or "auto", which takes the
                method of the ring (see the argument `product` of Ring). If `other` is an int, each residue
                is multiplied by it, whatever `product` is.

        Raises:
            RingMismatch: the operands are in different rings, or one of them lacks a modulus of `ring`.
            DeviceError: the operands are on different devices.
            BadRoot: an operand has another root for a modulus of `ring`.
            ParameterError: the batch axes do not broadcast, or product is not "auto", "ntt" or "fft".
            NotAnInteger: an operand is neither a Poly nor an int.
            OutputError: `out` cannot hold the result (see Poly).
            PrecisionError: product is "fft", and no FFT in doubles is proven to give the exact product.
            DomainError: product is "fft", and an operand is evaluated.
            TablesTooLarge: the tables of the product do not fit in memory.

        Cost: for operands in coefficients, three transforms per limb, if a row fits the cache.
        ring.explain() says which kind of transform is used. For evaluated operands, one pass with
        ring.leaf_size products per residue. For an int, one pass. Many short polynomials times a single one
        are computed as a matrix product if that was measured to be faster.
        If `ring` is given, evaluated operands are read in place if they have the dtype of `ring`, and if the
        limbs of `ring` are neighbouring limbs of the operand in the same order, for example its first limbs.
        Otherwise these limbs are copied first, as Poly.restrict does.
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
                return other.mul(a, ring=ring, out=out, product=product)  # called as Poly.mul(3, a)
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
        """Return the product in `ring`. Each Poly must have all moduli of `ring`, and may have more."""
        a, b = limbs_in_one_domain(ring, self, other)
        memory = memory_of(a._plan, out)
        if isinstance(b, Poly):
            return held(multiply_limbs(a, b, product, memory), out)
        data = scale(a._plan.basis, a._data, integer(b, "operand"), memory, layouts(a._data))
        return held(a._with(data), out)

    def scale_by(
        self, ints: Any = None, *, limbs: Sequence[int] | None = None, out: Poly | None = None
    ) -> Poly:
        """Multiply each polynomial of the batch by its own integer, or each limb by its own integer.

        The result is in this value's domain.

        Args:
            ints: an int, or an array or nested list of integers of any size, which broadcasts to the batch
                shape.
            limbs: a list of ints, one for each modulus. Give either `ints` or `limbs`.
            out: a Poly of the result's ring and batch shape to write into (see Poly.mul).

        Raises:
            CoefficientError: a factor is not an integer.
            ParameterError: ints does not broadcast to the batch shape, limbs does not have one entry for each
                modulus, or ints and limbs are both given or both omitted.
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
        """Return `other` after checking its ring and device. An int becomes a constant polynomial."""
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
        """Return `other` after checking its ring and device. For an int, return its residues (rows, 1)."""
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

        Cost: log2(exponent) squarings and at most as many other products. If the ring has a transform, moduli
        of at most 2**64, and a `product` other than "fft", a value in coefficients is transformed only once:
        all products are computed in the evaluation domain, and only the result is transformed back.

        >>> from polygpu import Ring
        >>> R = Ring(4, 17)
        >>> (R([1, 1]) ** 3).to_bigints().tolist(), R([3, 1]) ** -1 * R([3, 1]) == 1
        ([1, 3, 3, 1], True)
        """
        k = integer(exponent, "exponent")
        base = self.inverse() if k < 0 else self
        return power(base, abs(k))

    def __eq__(self, other: object) -> bool:
        """Return True if two values have the same ring, batch shape and polynomials, else False.

        The domains may differ. polygpu.equal returns one bool for each polynomial instead.

        Args:
            other: a Poly or an int. With an int, the result is True if every polynomial is this constant.

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

    # ---- automorphisms, monomials, points and inverses ----

    def automorphism(self, g: int | Sequence[int] | Array, *, out: Poly | None = None) -> Poly:
        """Return a(X^g) for this value a, in its domain. g must be coprime to the order of X.

        The order of X is 2n (negacyclic), n (cyclic) or 3n (trinomial).

        Args:
            g: an int of any size or sign, which is reduced modulo the order of X; or an array or list of such
                integers, one for each polynomial of the result, which broadcasts with the batch axes. An
                array on a GPU is copied to the host.
            out: a Poly of this ring and of the result's batch shape to write into. It may be this value.

        Raises:
            ParameterError: g is not coprime to the order of X, so that X -> X^g is not an automorphism; or
                the shape of g does not broadcast with the batch axes.
            CoefficientError: g holds something other than integers.
            OutputError: `out` cannot hold the result (see Poly).
            DeviceError: the call is recorded by polygpu.capture on a GPU, and g is an array on a GPU or has
                more than 8192 integers.

        Cost: one pass, which permutes the residues, in either domain. A value that was evaluated by an
        incomplete transform is also transformed back and forth. Source: docs/math.md, "Automorphisms".

        >>> from polygpu import Ring
        >>> Ring(4, 17)([1, 2, 3, 4]).automorphism([3, -1]).to_bigints(centered=True).tolist()
        [[1, 4, -3, 2], [1, -4, -3, -2]]
        """
        return held(automorphism(self, g, memory_of(self._plan, out)), out)

    def mul_monomial(self, k: int | Sequence[int] | Array, *, out: Poly | None = None) -> Poly:
        """Multiply by X^k, in this value's domain.

        Args:
            k: any int; or an array or list of ints, whose shape broadcasts with the batch axes. Each
                polynomial of the result has its own k. An array on the value's GPU is not copied to the host.
            out: a Poly of this ring and of the result's batch shape to write into. It may be this value.

        Raises:
            ParameterError: the shape of k does not broadcast with the batch axes.
            CoefficientError: k holds something other than integers.
            OutputError: `out` cannot hold the result (see Poly).
            DeviceError: polygpu.capture records the call on a GPU, and k is either an array on another GPU or
                more than 8192 integers in host memory.

        Cost: for a value in coefficients, one pass, which rotates the coefficients. For an evaluated value,
        a transform of X^k for each exponent in k, and a pointwise product.

        >>> from polygpu import Ring
        >>> Ring(4, 17)([1, 2, 3, 4]).mul_monomial([-1, 4]).to_bigints(centered=True).tolist()
        [[2, 3, 4, -1], [-1, -2, -3, -4]]
        """
        return held(mul_monomial(self, k, memory_of(self._plan, out)), out)

    def to_slots(self) -> Array:
        """Return the slots: the values at the n roots of X^n + 1 modulo a prime q.

        The n slots are arranged in two rows of n/2 slots. Slot j of the first row is the value at psi^(5^j),
        and slot j of the second row is the value at psi^(-5^j). Here psi is ring.roots[0], and j runs
        from 0 to n/2 - 1. `automorphism(5)` rotates both rows left by one slot, and `automorphism(-1)`
        exchanges the rows.

        Returns:
            Residues (*batch, n) of the ring's dtype on the value's device. The last axis holds the n/2 slots
            of the first row, then those of the second row.

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
        """Evaluate the polynomials at the points x, modulo Q, the product of the ring's moduli.

        A ring element is evaluated as the polynomial of degree below n that represents it. So a point need
        not be a root of the ring's polynomial.

        Args:
            x: the points: one integer of any size and sign, or an array of such integers, of any shape.

        Returns:
            Python ints in [0, Q), in an object array (*batch, *x.shape). For a single polynomial and a single
            point the result is one int.

        Raises:
            ParameterError: a point is a Poly. NotAnInteger: a point is not an int.

        Cost: n products of words per limb, point and polynomial. Moduli up to 2**64 are handled by matrix
        products on the value's device. For moduli up to 2**62 and n = 2**20, one point takes 0.3 ms on one
        core. A modulus above 2**64 takes log2 n passes, each over half as many coefficients as the one
        before. All passes together take 80 ns per coefficient. An evaluated value is transformed back first.
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

        Cost: with a complete transform, 2 log2 q pointwise products. Modulo a prime above 2^64, the cost is
        instead three products per residue, and one modular inverse for all residues together. Without a
        complete transform, about n^2 products of words per limb (0.2 ms at n = 701, q = 3). Modulo p^k there
        are also log2 k lifting steps, each of two products of polynomials.
        Source: docs/math.md, "Inverses" and "Inverses by the extended Euclid".

        >>> from polygpu import Ring
        >>> R = Ring(4, 17)
        >>> R([3, 1]).inverse() * R([3, 1]) == 1
        True
        """
        return inverse(self)

    def try_inverse(self) -> tuple[Poly, np.ndarray[Any, np.dtype[np.bool_]]]:
        """Return the inverses of the polynomials that have one, and a bool for each polynomial.

        Returns (b, ok). b is a Poly of this value's batch shape and domain. It holds the inverse of each
        polynomial, or zero if the polynomial has no inverse. ok is an array of bools of the batch shape, in
        host memory. An entry is True if the polynomial has an inverse.

        Raises:
            NotInvertible: a modulus is neither prime nor a power of a prime, so no inverse can be found.

        Cost: see Poly.inverse. The call waits for the GPU.

        >>> from polygpu import Ring
        >>> b, ok = Ring(2, 5)([[2, 0], [2, 1], [1, 1]]).try_inverse()  # X^2 + 1 = (X + 2) (X + 3) modulo 5
        >>> ok.tolist(), b.to_bigints(centered=True).tolist()
        ([True, False, True], [[-2, 0], [0, 0], [-2, 2]])
        """
        return try_inverse(self)

    # ---- RNS: conversion between moduli ----

    def restrict(self, ring: Ring, *, out: Poly | None = None) -> Poly:
        """Return the value modulo the moduli of `ring`. The limbs that `ring` does not have are dropped.

        Args:
            ring: a ring of the same degree and kind, such as a.ring[:k] for a value a. Its moduli must be
                moduli of this value, in any order.
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
        """Return the value of `ring` whose coefficients are those of this value, centred in [-Q/2, Q/2).

        Q is the product of this value's moduli q_i, k is their number, and v is a centred coefficient.

        Args:
            ring: a ring of the same degree and kind, with any moduli. Either ring may have one modulus above
                2**64.
            conversion: "exact" gives v for every input. "fast" gives v + u * Q for an integer u with |u| <=
                floor(k / 2). It computes the sum of y_i * (Q/q_i) over the moduli q_i, where
                y_i = v * (Q/q_i)^-1 mod q_i is centred in [-q_i/2, q_i/2).
            out: a Poly of `ring`, of this batch shape, to write the result into.

        Returns a value in this value's domain if `ring` has that domain, else in coefficients.

        Raises:
            RingMismatch: `ring` is of another degree or kind.
            BadRoot: `ring` has another root for a prime that both rings have.
            ParameterError: conversion is neither "exact" nor "fast", or `ring` is not a Ring.
            OutputError: `out` cannot hold the result (see Poly).

        Cost: k products for each coefficient and limb of `ring`. Limbs that both rings have are copied. An
        evaluated value also takes inverse transforms of its k limbs, and transforms of those
        limbs of `ring` that the value does not have. "exact" must subtract a multiple of Q. For nearly all
        coefficients this multiple is found by arithmetic in doubles; the other coefficients take up to 20
        times as long. If a modulus is above 2**64, the call computes with Python ints.
        Source: Halevi, Polyakov, Shoup 2018/117; docs/math.md, "Conversion between bases".

        >>> import polygpu as pg
        >>> R, S = pg.Ring(4, [17, 97]), pg.Ring(4, 193)
        >>> R([-5, 800]).convert(S).to_bigints(centered=True).tolist()
        [-5, 28, 0, 0]
        """
        return self._moved(convert, ring, conversion, out=out)

    def mod_up(self, ring: Ring, *, conversion: Precision = "exact", out: Poly | None = None) -> Poly:
        """Return this value, with coefficients centred in [-Q/2, Q/2), in a ring with additional moduli.

        Q is the product of this value's moduli.

        Args:
            ring: a ring of the same degree and kind. It must have all moduli of this value. The residues
                modulo these moduli are copied.
            conversion: see Poly.convert.
            out: a Poly of `ring`, of this batch shape, to write the result into.

        Raises:
            RingMismatch: `ring` lacks a modulus of this value, or is of another degree or kind.
            ParameterError: a modulus is above 2**64, conversion is neither "exact" nor "fast", or `ring` is
                not a Ring.
            BadRoot, OutputError: see Poly.convert.

        Cost: see Poly.convert. Only the limbs that this value does not have are computed.
        Source: Cheon et al. 2018/931, "ModUp".

        >>> import polygpu as pg
        >>> R = pg.Ring(4, [17, 97])
        >>> R[:1]([3, -4]).mod_up(R).to_bigints(centered=True).tolist()
        [3, -4, 0, 0]
        """
        return self._moved(mod_up, ring, conversion, out=out)

    def scale_up(self, ring: Ring, *, out: Poly | None = None) -> Poly:
        """Return P times this value in `ring`. P is the product of the moduli that only `ring` has.

        The result is zero modulo these additional moduli. Poly.mod_down divides by P without a remainder, so
        a.scale_up(ring).mod_down(a.ring) is equal to a.

        Args:
            ring: a ring of the same degree and kind that has all of this value's moduli, in any order. If
                `ring` has no other moduli, P is 1.
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
        """Divide by P and round, where P is the product of this value's moduli that `ring` does not have.

        Let a be a coefficient of this value, and d the number of moduli that are dropped.

        Args:
            ring: the ring of the result. All its moduli must be moduli of this value, in any order.
            rounding: "nearest" gives floor((2a + P) / (2P)), which rounds halves up; "floor" gives
                floor(a / P). Since `a` is known only modulo Q, the product of this value's moduli, many
                integers represent a. All of them give the same result modulo `ring`.
            conversion: "exact" gives exactly these quotients. With "fast" and rounding="nearest",
                the result differs from the quotient by at most floor(d / 2). With "fast" and
                rounding="floor", the result is floor(a / P) - u for an integer u, 0 <= u < d.
            plaintext: the plaintext modulus t of BGV, from 2 to 2**64 and coprime to P. The result r is then
                changed by at most t / 2, so that P * r is equal to `a` modulo t. By default r is not changed.
            out: a Poly of `ring`, of this batch shape, to write the result into.

        Returns a value in this value's domain.

        Raises:
            RingMismatch: `ring` is of another degree or kind, or has a modulus that the value does not have.
            ParameterError: a modulus is above 2**64, rounding or conversion is not one of the words above, or
                plaintext is out of range or not coprime to P.
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
        """Divide by the product of the last k moduli and round to nearest: a.mod_down(a.ring[:-k]).

        Args:
            k: number of limbs to drop. At least one limb must stay.
            out: a Poly of the ring without the last k limbs, of this batch shape, to write the result into.

        Returns a value of the ring without the last k limbs, in this value's domain.

        Raises:
            ParameterError: k is less than 1 or not less than the number of limbs. For other errors see
                Poly.mod_down.

        Cost: see Poly.mod_down.

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
        """Split the value into digits, one for each group of limbs_per_digit neighbouring limbs.

        Digit j is this value modulo the product D of the moduli of group j, with coefficients centred in
        [-D/2, D/2). The last group may be smaller. Let a be this value and g =
        polygpu.rns.gadget(a.ring, limbs_per_digit). Then the sum over j of digit j times g[j] is `a`.

        Args:
            ring: the ring of the digits, of the same degree and kind.
            limbs_per_digit: number of limbs in a group. A value of k limbs has ceil(k / limbs_per_digit)
                groups.
            conversion: "exact" or "fast", the conversion of each digit to `ring`, see Poly.convert.
            out: a Poly of `ring` and of the result's batch shape to write into.

        Returns a value of batch shape (*batch, ceil(k / limbs_per_digit)), in this value's domain if
        `ring` has that domain, else in coefficients.

        Raises:
            RingMismatch, BadRoot: see Poly.convert.
            ParameterError: limbs_per_digit is less than 1, or a modulus is above 2**64.
            OutputError: `out` cannot hold the result (see Poly).

        Cost: for each digit, one Poly.convert from the moduli of its group to `ring`. An evaluated value also
        takes one inverse transform for each of its limbs, and then for each digit one transform for each limb
        of `ring` that is not in the digit's group.
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
        """Return the result of `verb`, a function of _ops/rns.py such as mod_down, as a Poly of `ring`."""
        target = plan_of(ring, "ring")
        check_target(self._plan, target, "ring")
        value = verb(self, target, *options, out=memory_of(target, out))
        return as_poly(ring, value, out)

    # ---- integers and floats ----

    def to_bigints(self, *, centered: bool = False) -> np.ndarray[Any, np.dtype[np.object_]]:
        """Return the coefficients as Python ints.

        Args:
            centered: True for coefficients in [-Q/2, Q/2), where Q is the product of the ring's moduli.
                False, the default, for coefficients in [0, Q).

        Returns an object array (*batch, n) in host memory, with the coefficient of X^0 first.

        Raises:
            OutOfHostMemory: the result does not fit.

        Cost: about 10 ns per coefficient and limb on one core, and 0.1 us for each int. An evaluated value
        is transformed back first.

        >>> from polygpu import Ring
        >>> Ring(4, [17, 97])([-1, 2]).to_bigints().tolist()  # Q = 1649
        [1648, 2, 0, 0]
        """
        return integers.to_bigints(self._plan.basis, intt(self)._data, centered)

    def tolist(self) -> list[Any]:
        """Return the coefficients as nested lists (*batch, n) of Python ints in [0, Q), constant term first.

        Q is the product of the ring's moduli. The result is equal to to_bigints().tolist(), for any number of
        limbs and in either domain.

        Raises:
            OutOfHostMemory: the result does not fit.

        Cost: for a single modulus of at most 2**64, the cost of ndarray.tolist, about 30 ns per coefficient
        on one core. Otherwise see Poly.to_bigints. An evaluated value is transformed back first.

        >>> from polygpu import Ring
        >>> Ring(4, [17, 97])([[-1, 2], [3, 4]]).tolist()  # Q = 1649
        [[1648, 2, 0, 0], [3, 4, 0, 0]]
        """
        return integers.tolist(self._plan.basis, intt(self)._data)

    def to_int64(self, *, centered: bool = True) -> Array:
        """Return the coefficients as machine integers.

        Args:
            centered: True, the default, for coefficients in [-Q/2, Q/2), where Q is the product of the ring's
                moduli. False for coefficients in [0, Q).

        Returns an int64 array (*batch, n) on the value's device.

        Raises:
            ParameterError: a coefficient is outside [-2**63, 2**63).

        Cost: about 0.5 ns per coefficient and limb on one core. The call waits for the GPU. An evaluated
        value is transformed back first. Source: docs/math.md, "Integers".

        >>> from polygpu import Ring
        >>> Ring(2, [17, 97])([-3, 4]).to_int64()
        array([-3,  4])
        """
        return integers.to_int64(self._plan.basis, intt(self)._data, centered)

    def to_float64(self, *, centered: bool = True) -> Array:
        """Return the coefficients as doubles. Each is the double nearest to the integer, with ties to even.

        An integer beyond the largest double becomes infinite. This can happen only if Q > 2**1023.

        Args:
            centered: True, the default, for coefficients in [-Q/2, Q/2), where Q is the product of the ring's
                moduli. False for coefficients in [0, Q).

        Returns a float64 array (*batch, n) on the value's device.

        Raises:
            OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

        Cost: about 10 ns per coefficient and limb on one core. An evaluated value is transformed back first.
        Source: docs/math.md, "Integers".

        >>> from polygpu import Ring
        >>> Ring(2, [2**61 - 1, 2**64])([-(2**53) - 1, 4]).to_float64()
        array([-9.00719925e+15,  4.00000000e+00])
        """
        return integers.to_float64(self._plan.basis, intt(self)._data, centered)

    def to_residue_ints(self) -> np.ndarray[Any, np.dtype[np.object_]]:
        """Return the residues as Python ints, in this value's domain.

        Returns an object array (*batch, limbs, n) in host memory. For a single modulus above 2**64, its shape
        is (*batch, n), and each entry is a whole residue, while Poly.data has its words.

        Raises:
            OutOfHostMemory: the result does not fit.

        Cost: 20 ns per residue on one core.

        >>> from polygpu import Ring
        >>> Ring(4, [17, 97])([-1, 2]).to_residue_ints().tolist()
        [[16, 2, 0, 0], [96, 2, 0, 0]]
        """
        return integers.to_residue_ints(self._plan.basis, self._data)

    def norm(self, p: float = 2) -> Any:
        """Return the p-norm of each polynomial's centred coefficients.

        Args:
            p: 2 for the root of the sum of squares, 1 for the sum of absolute values, or float("inf") for the
                largest absolute value.

        Returns one number for a single polynomial, else an array of the batch shape. For p = 1 and p = inf
        the norms are exact ints. For p = 2 each norm is the double nearest to the exact norm.

        Raises:
            ParameterError: p is another number, or a 2-norm is larger than any float.

        Cost: one pass, 3 to 20 ns per coefficient and limb on one core. The call waits for the GPU. An
        evaluated value is transformed back first.

        >>> from polygpu import Ring
        >>> R = Ring(4, 17)
        >>> R([3, -4]).norm(), R([3, -4]).norm(1), R([3, -4]).norm(float("inf"))
        (5.0, 7, 4)
        """
        return integers.norm(self._plan.basis, intt(self)._data, p)

    # ---- exchange with other libraries ----

    def _exits(self) -> str:
        here = isinstance(self._data, np.ndarray)
        there = "" if here else f" (use poly.cpu() first, because poly is on {self.device})"
        return (
            "Use the methods of Poly and the functions of polygpu (poly.sum, pg.stack, pg.einsum, pg.equal), "
            f"or take integers with poly.to_bigints() or residues with poly.data{there}"
        )

    def __dlpack__(self, **options: Any) -> Any:
        """Return the residues (*batch, rows, n) as a DLPack capsule, as numpy.from_dlpack(poly) needs it.

        torch.from_dlpack(poly) is a tensor of uint32 or uint64, for which PyTorch has few operations. If
        every modulus is below 2^63, a uint64 tensor can be read as int64 by tensor.view(torch.int64), with
        the same numbers. JAX truncates 64-bit integers to 32 bits unless jax_enable_x64 is on. Use
        polygpu.interop.to_jax, which raises an error instead of truncating.

        Args:
            options: keyword arguments, which are passed to the method __dlpack__ of the array. Errors of that
                method are not caught.

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
    if not isinstance(plan, RingPlan) or isinstance(ring, NotAnArray):  # a Poly has a _plan too
        raise ParameterError(f"{name} must be a Ring, not {type(ring).__name__}.")
    return plan


def limbs_in(ring: Ring, *operands: Any) -> Any:
    """Return the operands with only the limbs of `ring`. Operands that are not a Poly are returned unchanged.

    The results must only be read: their arrays may be views of the operands, with gaps between polynomials.
    """
    plan, found = plan_of(ring, "ring"), list(operands)
    first: Poly | None = None
    for i, x in enumerate(operands):
        if not isinstance(x, Poly):
            continue
        earlier = next((j for j in range(i) if operands[j] is x), None)
        if earlier is not None:  # the same operand twice: recorded calls distinguish x * x from x * y
            found[i] = found[earlier]
            continue
        found[i] = made = Poly._make(ring, *limbs_of(x, plan))
        if first is None:
            first = made
        elif not type(first._data) is type(made._data) is np.ndarray:
            check_one_device(first, made)
    return found


def limbs_in_one_domain(ring: Ring, *operands: Any) -> Any:
    """Return limbs_in(ring, *operands). If the domains of the Polys differ, all of them are evaluated."""
    found = limbs_in(ring, *operands)
    if len({x._domain for x in found if isinstance(x, Poly)}) < 2:
        return found
    return [
        ntt(x._with(contiguous(x._data))) if isinstance(x, Poly) and x._domain == "coef" else x for x in found
    ]


def memory_of(plan: RingPlan, out: Poly | None) -> Array | None:
    """Return the array of `out`, or None if `out` is None. Raise OutputError if `out` is in another ring.

    The operation that writes to the array checks its shape, device and overlap (_ops/results.py).
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
    """Return `value` as a Poly of `ring`. If `out` is given, return `out`, whose array already holds it."""
    if out is None:
        return Poly._make(ring, value._data, value._domain)
    return out._holding(value._data, value._domain)


def held(made: Poly, out: Poly | None) -> Poly:
    """Return the result `made`. If `out` is given, return `out`, whose array already holds the result."""
    return made if out is None else out._holding(made._data, made._domain)


def without_last(ring: Ring, k: object, name: str, least: int) -> Ring:
    """Return the ring without its last k limbs. Raise ParameterError if k < `least` or no limb is left."""
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
    """Rebuild a pickled Poly on `device`. If `device` does not exist, warn and use host memory."""
    value = ring.from_residues(data, domain=domain, check=True)  # a pickle is not trusted
    if device is None:
        return value
    try:
        return value.to(device)
    except DeviceError as error:
        warnings.warn(f"polygpu: a value of {device} stays on the host: {error}", stacklevel=2)
        return value


def _operator(method: Callable[[Any], Poly], other: object) -> Poly:
    """Return method(other) if other is a Poly or int. Otherwise raise an error, or return NotImplemented.

    Arrays, lists, tuples, bools, strings and other numbers raise an error. For any other type, return
    NotImplemented. Python then tries the operator of that type.
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
    """Return advice for an error message: how to bring a (of `first`) and b (of `second`) into one ring."""
    p, q = set(first.moduli), set(second.moduli)
    if first.quotient != second.quotient:
        return "Use ring(poly.to_bigints(centered=True)) to bring one operand into the ring of the other."
    if first.moduli == second.moduli:  # only the roots or `product` differ: coefficients stay the same
        return "Use ring.from_residues(poly.intt().data) to bring one operand into the ring of the other."
    if p == q:
        return (
            "The limbs of a and b are in different orders. Use a.restrict(b.ring) to bring the limbs of a "
            "into the order of b's."
        )
    if p > q:
        return (
            "Use a.restrict(b.ring) to take a modulo b's moduli, or b.mod_up(a.ring) to extend b to all of "
            "a's moduli."
        )
    if p < q:
        return (
            "Use a.mod_up(b.ring) to extend a to all of b's moduli, or b.restrict(a.ring) to take b modulo "
            "a's moduli."
        )
    join = "" if p & q else ", or pg.rns.join(a, b) for the value that has the residues of both"
    return f"Use a.convert(b.ring) for a's centred value modulo b's moduli{join}."


def check_one_device(a: Poly, b: Poly) -> None:
    """Raise DeviceError if the two values are on different devices."""
    if not same_device(b._data, a._data):
        raise DeviceError(
            f"The operands are on {a.device} and {b.device}. Use poly.to({a.device!r}) to copy the operand "
            f"on {b.device}."
        )


def checked_poly(x: object, name: str) -> Poly:
    """Return x if it is a Poly; raise RingMismatch otherwise."""
    if not isinstance(x, Poly):
        raise RingMismatch(
            f"{name} must be a Poly, not {type(x).__name__}. Use ring(x) to make a Poly from integers."
        )
    return x
