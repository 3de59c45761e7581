"""Poly: a batch of elements of a ring, in coefficients or in the evaluation domain.

The file is long because the class has every operation as a method: a docstring, and one call of ops/.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from . import backends
from .backends import Array, backend_of, get_backend, is_device_array, same_device
from .checks import Domain, Product, check_product, debug, integer, shown
from .errors import CoefficientError, DeviceError, OutputError, ParameterError, RingMismatch
from .ops import integers, show
from .ops.batch import assign, index, reshape
from .ops.einsum import matmul
from .ops.multiply import multiply, power
from .ops.permutation import automorphism, multiply_by_monomial, to_slots
from .ops.points import evaluate
from .ops.pointwise import add_constant, add_up, equal, negate, pointwise, scale, scale_by
from .ops.rns import (
    Precision,
    Rounding,
    checked_ring,
    convert,
    digits,
    mod_down,
    mod_up,
    restrict,
)
from .ops.transform import natural_order, to_domain

if TYPE_CHECKING:
    from .ring import Ring

_AUTO = "auto"  # the default, which needs no check
_new = object.__new__


class Poly:
    """A batch of elements of a ring: `ring`, `data` and `domain`.

    `data` is a C-contiguous array (*batch, rows, n) of canonical residues; `shape` is the batch shape.
    Make one with ring(integers), ring.from_residues(array), ring.random(...). Poly(ring, data, domain) shares
    an array that needs no copy and refuses others, in constant time; inside `with polygpu.debug()` it looks
    at the residues too.

    Operators return new values; `out=` is the one way to write in place. Operands of one domain give
    that domain, mixed ones "eval". Python ints are constants of the ring.

    >>> import polygpu as pg
    >>> R = pg.Ring(4, 17)
    >>> a, b = R([1, 2, 3, 4]), R([0, 1])
    >>> pg.Poly.mul(a, b).to_bigints(centered=True).tolist()
    [-4, 1, 2, 3]
    """

    __slots__ = ("__weakref__", "_data", "_domain", "_ring")
    __array_ufunc__ = None  # ndarray * poly comes to Poly.__rmul__
    __hash__ = None  # type: ignore[assignment]

    _ring: Ring
    _data: Array
    _domain: Domain

    def __init__(self, ring: Ring, data: Array, domain: Domain) -> None:
        if not hasattr(type(ring), "from_residues"):  # ring.py, which makes elements, imports this module
            raise ParameterError(f"ring: {type(ring).__name__}, must be a Ring")
        checked = ring.from_residues(data, domain, copy=False)
        self._ring, self._data, self._domain = ring, checked._data, checked._domain

    @staticmethod
    def _wrap(ring: Ring, data: Array, domain: Domain) -> Poly:
        """A value whose parts fit by construction: unchecked, for the library's own results."""
        poly = _new(Poly)
        poly._ring, poly._data, poly._domain = ring, data, domain
        return poly

    # ---- what it is ----

    @property
    def ring(self) -> Ring:
        """The ring."""
        return self._ring

    @property
    def data(self) -> Array:
        """Residues (*batch, rows, n), shared, not copied."""
        return self._data

    @property
    def domain(self) -> Domain:
        """ "coef" or "eval"."""
        return self._domain

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch shape."""
        shape: tuple[int, ...] = self._data.shape[:-2]
        return shape

    @property
    def ndim(self) -> int:
        """Number of batch axes."""
        return self._data.ndim - 2

    @property
    def device(self) -> str:
        """Where it lives and is computed on."""
        return backend_of(self._data).name

    def __repr__(self) -> str:
        return show.line(self._ring, self._data, self._domain)

    def _repr_html_(self) -> str:
        return show.table(self._ring, self._data, self._domain)

    def __reduce__(self) -> tuple[Any, ...]:
        device = None if isinstance(self._data, np.ndarray) else self.device
        return _unpickled, (self._ring, backend_of(self._data).to_host(self._data), self._domain, device)

    # ---- the batch ----

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(
                "len() of a single polynomial; poly.ring.n is its degree, poly.shape its batch shape"
            )
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError("the truth of a Poly is ambiguous; compare it, for instance with poly == 0")

    def __iter__(self) -> Iterator[Poly]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Poly:
        """Index the batch axes by NumPy's rules; shares memory where the parts lie together, else a copy.

        Residues and coefficients are reached through `data`.
        """
        return self._result(index(self._data, key), self._domain)

    def __setitem__(self, key: Any, value: Poly | int) -> None:
        """Write in place at a key of the batch axes, by NumPy's rules; keeps the domain.

        Args:
            key: as of value[key].
            value: of the same ring and device, converted to this domain where it is in the other; batch axes
                broadcast to those of the place. It may share memory with it. An int is a constant.

        Raises:
            ParameterError: batch axes that do not broadcast.
            IndexError: no such place.
            RingMismatch, DeviceError, OutputError: another ring or device, or read-only memory.

        >>> from polygpu import Ring
        >>> a = Ring(2, 17)([[1, 2], [3, 4]])
        >>> a[1] = a[0]
        >>> a.to_bigints().tolist()
        [[1, 2], [1, 2]]
        """
        assign(self._data, key, self._operand(value)._in_domain(self._domain)._data)

    def reshape(self, *shape: int | tuple[int, ...]) -> Poly:
        """The same polynomials in another batch shape; one size may be -1. Shares the data."""
        sizes = shape[0] if len(shape) == 1 else shape
        return self._result(reshape(self._data, sizes), self._domain)

    def copy(self) -> Poly:
        """The same value in memory of its own."""
        with backend_of(self._data).device_scope():
            return self._result(self._data.copy(), self._domain)

    def to(self, device: str | None = None) -> Poly:
        """The value on a device, by default the current one; itself where it already is there.

        Raises:
            BackendUnavailable: a GPU was asked for and none answers.
        """
        target = get_backend(backends.current_device() if device is None else backends.checked_device(device))
        if (target.xp is np and isinstance(self._data, np.ndarray)) or target.name == self.device:
            return self
        data = target.from_host(backend_of(self._data).to_host(self._data))
        return self._result(data, self._domain)

    def cpu(self) -> Poly:
        """The value in host memory; waits for the GPU where it was there."""
        return self.to("cpu")

    def sum(self, axis: int | tuple[int, ...] | None = None, out: Poly | None = None) -> Poly:
        """Sum over batch axes, all of them by default; an empty sum is zero.

        >>> from polygpu import Ring
        >>> Ring(2, 17)([[1, 2], [3, 4], [5, 6]]).sum().to_bigints().tolist()
        [9, 12]
        """
        memory = None if out is None else self._memory(out)
        data = add_up(self._ring.basis, self._data, axis, memory)
        return self._result(data, self._domain, out)

    # ---- domains ----

    def ntt(self, out: Poly | None = None) -> Poly:
        """The value in the evaluation domain, in bit-reversed order; itself where it is there already.

        Entry k of a limb is a(psi^(2 br(k) + 1)) (negacyclic) or a(omega^br(k)) (cyclic); of an
        incomplete transform, the residue modulo leaf k / leaf_size.

        Raises:
            NotNTTFriendly: the ring has no evaluation domain.

        Cost: (n/2) log2 n products a limb. Source: Longa & Naehrig 2016, algorithm 1.

        >>> from polygpu import Ring
        >>> Ring(4, 17)([0, 1]).ntt().data.tolist()
        [[2, 15, 8, 9]]
        """
        return self._in_domain("eval", out)

    def intt(self, out: Poly | None = None) -> Poly:
        """The value in coefficients; itself where it is there already. The inverse of ntt()."""
        return self._in_domain("coef", out)

    def _in_domain(self, domain: Domain, out: Poly | None = None) -> Poly:
        if out is None and self._domain == domain:
            return self
        memory = None if out is None else self._memory(out)
        data = to_domain(self._ring, self._data, self._domain, domain, memory)
        return self._result(data, domain, out)

    def natural_order(self) -> Array:
        """Evaluated residues in natural order, a copy: [..., k] == a(psi^(2k+1)) or a(omega^k).

        Leaves of an incomplete transform keep their coefficients together.
        """
        return natural_order(self._ring, self.ntt()._data)

    # ---- arithmetic ----

    def add(self, other: Poly | int, out: Poly | None = None) -> Poly:
        """Sum; see Poly for domains and broadcasting."""
        return checked_poly(self, "a")._pointwise("add", other, out)

    def sub(self, other: Poly | int, out: Poly | None = None) -> Poly:
        """Difference."""
        return checked_poly(self, "a")._pointwise("sub", other, out)

    def neg(self, out: Poly | None = None) -> Poly:
        """The negative."""
        memory = None if out is None else self._memory(out)
        data = negate(self._ring.basis, self._data, memory)
        return self._result(data, self._domain, out)

    def mul(self, other: Poly | int, out: Poly | None = None, *, product: Product = "auto") -> Poly:
        """Product in the ring: Poly.mul(a, b) is a * b, right for every degree and modulus.

        Coefficients give coefficients, in one call that holds a row in cache through all transforms;
        evaluated operands multiply point by point.

        Args:
            other: a Poly of the same ring or an int; batch axes broadcast.
            out: a Poly of the ring with the result's batch shape to write into; may be an operand.
                Its domain becomes the result's: views of the same memory (out[0], out.reshape) keep
                theirs and are no longer valid if that differs. An interrupted call leaves it undefined.
            product: "ntt" or "fft" multiplies coefficients in that way, "auto" in the ring's (see Ring). An
                int is a factor of each coefficient, however polynomials are multiplied.

        Raises:
            RingMismatch: the operands are of different rings.
            OutputError: `out` cannot take the result.
            PrecisionError: product="fft", and the degree is too large for it to be exact.
            DomainError: product="fft" with an evaluated Poly.

        Cost: three transforms a limb; ring.explain() says which. Many short polynomials times one are a
        product of matrices where that was measured to be faster.
        """
        a = self
        if type(a) is not Poly:
            if not isinstance(a, Poly) and isinstance(other, Poly):
                return other.mul(a, out, product=product)  # Poly.mul(3, a)
            a = checked_poly(a, "a")
        if product is not _AUTO:
            check_product(product)
        memory = None if out is None else a._memory(out)
        if isinstance(other, Poly):
            b = a._operand(other)
            if a._domain != b._domain:
                a, b = a.ntt(), b.ntt()
            data = multiply(a._ring, a._data, b._data, a._domain, product, memory)
        else:
            factor = integer(other, "operand")
            data = scale(a._ring.basis, a._data, factor, memory)
        return a._result(data, a._domain, out)

    def scale_by(
        self, ints: Any = None, *, limbs: Sequence[int] | None = None, out: Poly | None = None
    ) -> Poly:
        """The product with an integer of its own for each batch element, or for each limb; keeps the domain.

        Args:
            ints: an int, or integers of any size in an array or nested list that broadcasts to the batch
                shape.
            limbs: instead, one int for each modulus.
            out: as of mul.

        Raises:
            CoefficientError: no integers.
            ParameterError: shapes that do not fit; both of them or neither.
            OutputError: `out` cannot take the result.

        Cost: one pass, and the factors' residues.

        >>> from polygpu import Ring
        >>> R = Ring(2, [17, 97])
        >>> R([[1, 2], [3, 4]]).scale_by([10, -1]).to_bigints(centered=True).tolist()
        [[10, 20], [-3, -4]]
        >>> R([1, 2]).scale_by(limbs=[2, 0]).to_residue_ints().tolist()
        [[2, 4], [0, 0]]
        """
        memory = None if out is None else self._memory(out)
        return self._result(scale_by(self._ring.basis, self._data, ints, limbs, memory), self._domain, out)

    def _constant_step(self) -> int:
        """A constant stands in every so many entries of the domain."""
        return self._ring.n if self._domain == "coef" else cast(int, self._ring.leaf_size)

    def _pointwise(self, op: Literal["add", "sub"], other: object, out: Poly | None) -> Poly:
        if not isinstance(other, Poly):
            x, step = integer(other, "operand"), self._constant_step()
            memory = None if out is None else self._memory(out)
            data = add_constant(self._ring.basis, self._data, x if op == "add" else -x, step, memory)
            return self._result(data, self._domain, out)
        a, b = self, self._operand(other)
        if a._domain != b._domain:
            a, b = a.ntt(), b.ntt()
        memory = None if out is None else a._memory(out)
        data = pointwise(a._ring.basis, op, a._data, b._data, memory)
        return a._result(data, a._domain, out)

    def _operand(self, other: object) -> Poly:
        """The other operand as a Poly of this ring."""
        if isinstance(other, Poly):
            if other._ring is not self._ring and other._ring != self._ring:
                raise RingMismatch(
                    f"operands of different rings: {self._ring!r} and {other._ring!r}; "
                    f"{_way_between(self._ring, other._ring)}"
                )
            if not type(self._data) is type(other._data) is np.ndarray:
                check_one_device(self, other)
            return other
        ring, x = self._ring, integer(other, "operand")
        data = integers.constant(ring.basis, ring.n, x, self._constant_step(), backend_of(self._data))
        return self._result(data, self._domain)

    def _memory(self, out: Poly) -> Array:
        """The array of `out`, where it is a Poly of this ring."""
        return memory_of(self._ring, out)

    def _result(self, data: Array, domain: Domain, out: Poly | None = None) -> Poly:
        """A value of this ring, unchecked as by _wrap; it is `out` where that holds the data already."""
        if out is None:
            out = _new(Poly)
            out._ring, out._data = self._ring, data
        out._domain = domain
        return out

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
        b = self._operand(checked_poly(other, "b"))
        memory = None if out is None else self._memory(out)
        arrays, domains = (self._data, b._data), (self._domain, b._domain)
        return self._result(*matmul(self._ring, arrays, domains, memory), out)

    def __neg__(self) -> Poly:
        return self.neg()

    def __pos__(self) -> Poly:
        return self

    def __pow__(self, exponent: int) -> Poly:
        """Power by squaring, in the evaluation domain where there is one; a negative one inverts."""
        k = integer(exponent, "exponent")
        base = self.inverse() if k < 0 else self
        return self._result(power(self._ring, base._data, self._domain, abs(k)), self._domain)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same values: same ring, same batch shape, whatever the domains."""
        if isinstance(other, Poly):
            if other._ring != self._ring or other.shape != self.shape:
                return False
        elif not isinstance(other, (int, np.integer)) or isinstance(other, bool):
            _refuse_array(other)  # its own == would be entry by entry
            return NotImplemented
        return bool(self._equal(other).all())

    def _equal(self, other: object) -> np.ndarray[Any, np.dtype[np.bool_]]:
        a, b = self, self._operand(other)
        if a._domain != b._domain:
            a, b = a.ntt(), b.ntt()
        return equal(a._data, b._data)

    # ---- structure ----

    def automorphism(self, g: int | Sequence[int] | Array, out: Poly | None = None) -> Poly:
        """a(X^g), for g coprime to 2n (negacyclic) or n (cyclic); keeps the domain.

        Args:
            g: an int, or integers that broadcast with the batch axes, one for each polynomial of the result;
                an array is read on the host.
            out: a Poly of the ring and of the result's batch shape to write into; may be this one.

        Raises:
            ParameterError: X -> X^g is no automorphism, or shapes that do not broadcast.
            CoefficientError: an array of no integers. OutputError: an `out` that does not fit.
            DeviceError: an array while a graph is recorded.

        Cost: a permutation for each g that occurs; two transforms more where an incomplete transform holds
        the value.

        >>> from polygpu import Ring
        >>> Ring(4, 17)([1, 2, 3, 4]).automorphism([3, -1]).to_bigints(centered=True).tolist()
        [[1, 4, -3, 2], [1, -4, -3, -2]]
        """
        memory = None if out is None else self._memory(out)
        data = automorphism(self._ring, self._data, self._domain, g, memory)
        return self._result(data, self._domain, out)

    def mul_monomial(self, k: int | Sequence[int] | Array, out: Poly | None = None) -> Poly:
        """X^k times the value; keeps the domain.

        Args:
            k: any int, or integers that broadcast with the batch axes, one for each polynomial of the result;
                an array is read on the host.
            out: a Poly of the ring and of the result's batch shape to write into; may be this one.

        Raises:
            ParameterError: k is no int, or shapes that do not broadcast.
            CoefficientError: an array of no integers. OutputError: an `out` that does not fit.
            DeviceError: an array while a graph is recorded.

        Cost: a rotation of coefficients; for evaluated values the transform of X^k for each k, and a product.

        >>> from polygpu import Ring
        >>> Ring(4, 17)([1, 2, 3, 4]).mul_monomial([-1, 4]).to_bigints(centered=True).tolist()
        [[2, 3, 4, -1], [-1, -2, -3, -4]]
        """
        memory = None if out is None else self._memory(out)
        data = multiply_by_monomial(self._ring, self._data, self._domain, k, memory)
        return self._result(data, self._domain, out)

    def to_slots(self) -> Array:
        """The values at psi^(5^j), then at psi^(-5^j), j = 0 ... n/2 - 1: two rows of slots, of a prime q.

        psi is ring.roots[0]. `automorphism(5)` turns both rows left by one, `automorphism(-1)` exchanges
        them.

        Returns:
            Residues (*batch, n) of the ring's dtype, on the value's device.

        Raises:
            NotNTTFriendly: several moduli, or none of 1 mod 2n.

        Cost: one pass, and a transform where the value is in coefficients. Source: as Ring.from_slots.

        >>> from polygpu import Ring
        >>> a = Ring(8, 17).from_slots([1, 2, 3, 4, 5, 6, 7, 8])
        >>> a.automorphism(5).to_slots().tolist(), a.automorphism(-1).to_slots().tolist()
        ([2, 3, 4, 1, 6, 7, 8, 5], [5, 6, 7, 8, 1, 2, 3, 4])
        """
        return to_slots(self._ring, self._data, self._domain)

    def __call__(self, x: int | Sequence[int] | Array) -> Any:
        """a(x) mod Q of the polynomial of degree below n: Python ints (*batch, *x.shape), or one int.

        Args:
            x: integers of any size and sign, one or an array of any shape; each is reduced modulo each limb.

        Raises:
            ParameterError: a point that is no int, or a Poly.

        Cost: n products of words a limb, point and polynomial, as products of matrices on the value's device,
        for moduli up to 2**64: 0.3 ms for a point at n = 2**20 on a core up to 2**62. Above by halves, in
        log2 n passes: 80 ns a coefficient. An evaluated value takes an inverse transform first.
        Source: Paterson & Stockmeyer 1973 (baby steps, giant steps).

        >>> from polygpu import Ring
        >>> Ring(4, 17)([1, 2, 3])(5)
        1
        """
        return evaluate(self._ring.basis, self.intt()._data, x)

    def inverse(self) -> Poly:
        """The multiplicative inverse, in the value's domain.

        Pointwise where the transform is complete; else limb by limb in host memory, by the extended Euclid
        for a prime, and by Hensel lifting for a power of one.

        Raises:
            NotInvertible: some element has none (the message says where), or a modulus is no power of a
                prime.

        Cost: 2 log2 q products of evaluated values; or about n^2 products of words a limb (0.2 ms at n = 701,
        q = 3), and two products of polynomials for each doubling of the exponent.

        >>> from polygpu import Ring
        >>> R = Ring(4, 17)
        >>> R([3, 1]).inverse() * R([3, 1]) == 1
        True
        """
        from .ops.inverse import inverse  # here: the import of polygpu is to be light

        return self._result(inverse(self._ring, self._data, self._domain), self._domain)

    # ---- between bases of moduli ----

    def restrict(self, S: Ring, out: Poly | None = None) -> Poly:
        """The value modulo the moduli of S, which are among its own: other limbs are left out.

        Args:
            S: a ring of the same degree and kind, such as ring[:k]; any order of its moduli.
            out: a Poly of S with the same batch shape to write into.

        Returns a copy, in this value's domain; in coefficients where S has no evaluation domain.

        Raises:
            RingMismatch: another degree or kind, or a modulus that the value has not.
            BadRoot: S has another root for a prime that both have.

        Cost: a copy; transforms where S is transformed to leaves of another size.

        >>> import polygpu as pg
        >>> R = pg.Ring(4, [17, 97])
        >>> R([1700 + 5]).restrict(R[:1]).to_bigints().tolist()
        [5, 0, 0, 0]
        """
        return self._moved(restrict, S, out=out)

    def convert(self, S: Ring, conversion: Precision = "exact", out: Poly | None = None) -> Poly:
        """The value v, centred in [-Q/2, Q/2), modulo the moduli of S, whatever they are.

        Args:
            S: a ring of the same degree and kind. One modulus above 2**64 is allowed on either side.
            conversion: "exact", for every input; or "fast": v + uQ with |u| <= floor(k / 2) for k limbs, the
                sum of y_i (Q/q_i) with y_i = a (Q/q_i)^-1 mod q_i centred in [-q_i/2, q_i/2).
            out: a Poly of S with the same batch shape to write into.

        Returns the domain of this value where S has it, else coefficients. Limbs that both have are copied.

        Raises:
            RingMismatch: another degree or kind. BadRoot: another root for the same prime.

        Cost: k products for each coefficient and limb of S; of evaluated values the inverse transforms of all
        limbs and the transforms of new ones. Coefficients that doubles cannot decide take up to 20 times as
        long. Source: Halevi, Polyakov, Shoup 2018/117; docs/math.md.

        >>> import polygpu as pg
        >>> R, S = pg.Ring(4, [17, 97]), pg.Ring(4, 193)
        >>> R([-5, 800]).convert(S).to_bigints(centered=True).tolist()
        [-5, 28, 0, 0]
        """
        return self._moved(convert, S, conversion, out=out)

    def mod_up(self, S: Ring, conversion: Precision = "exact", out: Poly | None = None) -> Poly:
        """As convert(), to a ring that has all of this one's moduli: own residues are kept.

        Raises:
            RingMismatch: S lacks a modulus. ParameterError: a modulus above 2**64.

        >>> import polygpu as pg
        >>> R = pg.Ring(4, [17, 97])
        >>> R[:1]([3, -4]).mod_up(R).to_bigints(centered=True).tolist()
        [3, -4, 0, 0]
        """
        return self._moved(mod_up, S, conversion, out=out)

    def mod_down(
        self,
        S: Ring,
        rounding: Rounding = "nearest",
        conversion: Precision = "exact",
        plaintext: int | None = None,
        out: Poly | None = None,
    ) -> Poly:
        """The value a divided by P, the product of the moduli that S lacks, modulo the others.

        Args:
            S: a ring of some of the moduli, in any order.
            rounding: "nearest" is floor((2a + P) / (2P)), halves up; "floor" is floor(a / P); both whatever
                multiple of Q is added to a, as long as S is what the result is taken modulo.
            conversion: "exact"; or "fast", which is off by at most floor(dropped / 2) for "nearest" and gives
                floor(a / P) - u with 0 <= u < dropped for "floor".
            plaintext: t, coprime to P: P times the result is a mod t, as BGV wants it.
            out: a Poly of S with the same batch shape to write into.

        Raises:
            RingMismatch: S has a modulus that the value has not. ParameterError: a modulus above 2**64.

        Cost: of evaluated values the inverse transforms of the limbs that fall away and the transforms of
        those that stay. Source: Cheon et al. 2018/931; Halevi, Polyakov, Shoup 2018/117.

        >>> import polygpu as pg
        >>> R = pg.Ring(4, [97, 17])
        >>> R([170, 171, 178, 179]).mod_down(R[:1]).to_bigints().tolist()
        [10, 10, 10, 11]
        """
        return self._moved(mod_down, S, rounding, conversion, plaintext, out=out)

    def rescale(self, k: int = 1, out: Poly | None = None) -> Poly:
        """mod_down() by the last k moduli, to ring[:-k], rounded to the nearest.

        >>> import polygpu as pg
        >>> pg.Ring(4, [97, 17])([170, 178]).rescale().ring
        Ring(4, 97)
        """
        return self.mod_down(without_last(self._ring, k, "k", least=1), out=out)

    def digits(self, S: Ring, size: int, conversion: Precision = "exact", out: Poly | None = None) -> Poly:
        """The digits of a decomposition by limbs, modulo S: (*batch, ceil(k / size)).

        Digit j is the value modulo group j of `size` neighbouring limbs, centred; the last group may be
        smaller. With g = polygpu.rns.gadget(ring, size) the sum of digit_j g_j is this value.

        Args:
            S: a ring of the same degree and kind; its limbs that belong to the group are copied.
            size: limbs of a group.
            conversion: as convert()'s, for each group.
            out: a Poly of S with the result's batch shape to write into.

        Raises:
            RingMismatch, BadRoot: as convert(). ParameterError: size < 1, or a modulus above 2**64.

        Cost: inverse transforms of all limbs, once, and a transform for each limb of a digit that is new.
        Source: Han, Ki 2019/688.

        >>> import polygpu as pg
        >>> R = pg.Ring(4, [17, 97, 193])
        >>> a, g = R([-70000]), pg.rns.gadget(R, 2)
        >>> d = a.digits(R, 2)
        >>> d.shape, d[0] * g[0] + d[1] * g[1] == a
        ((2,), True)
        """
        return self._moved(digits, S, size, conversion, out=out)

    def _moved(
        self, verb: Callable[..., tuple[Array, Domain]], S: Ring, *options: Any, out: Poly | None
    ) -> Poly:
        """What a verb of ops/rns.py gives, as a value of S."""
        S = checked_ring(self._ring, S, "S")
        memory = None if out is None else memory_of(S, out)
        data, domain = verb(self._ring, self._data, self._domain, S, *options, out=memory)
        return Poly._wrap(S, data, domain) if out is None else out._result(data, domain, out)

    # ---- integers ----

    def to_bigints(self, centered: bool = False) -> np.ndarray[Any, np.dtype[np.object_]]:
        """Coefficients as Python ints, an object array (*batch, n): in [0, Q), or centred, in [-Q/2, Q/2).

        Cost: about 10 ns a coefficient and limb, and 0.1 us for each int.
        """
        return integers.big_integers(self._ring.basis, self.intt()._data, centered)

    def to_int64(self, centered: bool = True) -> Array:
        """Coefficients as int64 (*batch, n), on the value's device: in [-Q/2, Q/2), or in [0, Q).

        Raises:
            ParameterError: one is outside [-2**63, 2**63).

        Cost: on a core about 0.5 ns a coefficient and limb; waits for a GPU.

        >>> from polygpu import Ring
        >>> Ring(2, [17, 97])([-3, 4]).to_int64()
        array([-3,  4])
        """
        return integers.machine_integers(self._ring.basis, self.intt()._data, centered)

    def to_float64(self, centered: bool = True) -> Array:
        """Coefficients as doubles (*batch, n), on the value's device: in [-Q/2, Q/2), or in [0, Q).

        Each is the double nearest to the integer, halves to even. Integers that no finite double is near to
        are infinite, which takes Q > 2**1023.

        Cost: on a core about 10 ns a coefficient and limb.

        >>> from polygpu import Ring
        >>> Ring(2, [2**61 - 1, 2**64])([-(2**53) - 1, 4]).to_float64()
        array([-9.00719925e+15,  4.00000000e+00])
        """
        return integers.doubles(self._ring.basis, self.intt()._data, centered)

    def to_residue_ints(self) -> np.ndarray[Any, np.dtype[np.object_]]:
        """`data` as Python ints, an object array (*batch, limbs, n).

        Of one modulus above 2**64 (*batch, n): the numbers, not their words.
        """
        return integers.residue_ints(self._ring.basis, self._data)

    def norm(self, p: float = 2) -> Any:
        """Norm of the centred coefficients, a batch element: p = 1 or inf exact ints, p = 2 a float.

        The 2-norm is the double nearest to the root of the exact sum.

        Returns one number for a single polynomial, else an array of the batch shape. Raises
        ParameterError where a 2-norm exceeds what a float holds.

        >>> from polygpu import Ring
        >>> R = Ring(4, 17)
        >>> R([3, -4]).norm(), R([3, -4]).norm(1), R([3, -4]).norm(float("inf"))
        (5.0, 7, 4)
        """
        return integers.norm(self._ring.basis, self.intt()._data, p)

    # ---- exchange ----

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """The residues, as NumPy wants them; a value on a GPU raises: copy it with poly.cpu()."""
        if not isinstance(self._data, np.ndarray):
            raise TypeError(f"the value is on {self.device}; poly.cpu() copies it to the host")
        if dtype is not None and np.dtype(dtype) != self._data.dtype:
            if copy is False:
                raise ValueError(f"copy=False: residues are {self._data.dtype}, not {np.dtype(dtype)}")
            return self._data.astype(dtype)
        return self._data.copy() if copy else self._data

    def __dlpack__(self, **options: Any) -> Any:
        """The residues as a DLPack capsule, without a copy."""
        return self._data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device of the residues."""
        return self._data.__dlpack_device__()


def memory_of(ring: Ring, out: Poly) -> Array:
    """The array of `out`, where it is a Poly of the ring."""
    if not isinstance(out, Poly):
        raise OutputError(
            f"out: {type(out).__name__}, must be a Poly; ring.from_residues(array, copy=False) wraps an array"
        )
    if out._ring is not ring and out._ring != ring:
        raise OutputError(f"out: of {out._ring!r}, the result is of {ring!r}")
    return out._data


def without_last(ring: Ring, k: object, name: str, least: int) -> Ring:
    """The ring without its last k limbs."""
    count, limbs = integer(k, name), len(ring.moduli)
    if not least <= count < limbs:
        raise ParameterError(
            f"{name}: {shown(count)} must be from {least} to {limbs - 1}: one limb at least stays"
        )
    return ring[:-count] if count else ring


def _unpickled(ring: Ring, data: Array, domain: Domain, device: str | None) -> Poly:
    """On the device of the original where it answers, else, with a warning, on the host."""
    with debug():  # a pickle may come from anywhere: its residues are looked at
        value = ring.from_residues(data, domain)
    if device is None:
        return value
    try:
        return value.to(device)
    except DeviceError as error:
        warnings.warn(f"polygpu: a value of {device} stays on the host: {error}", stacklevel=2)
        return value


def _operator(method: Callable[[Any], Poly], other: object) -> Poly:
    """An operator's method; foreign types give their own a chance, arrays are refused by name."""
    if isinstance(other, Poly) or (isinstance(other, (int, np.integer)) and not isinstance(other, bool)):
        return method(other)
    _refuse_array(other, (list, tuple))
    if isinstance(other, (bool, float, complex, str, np.generic)):
        integer(other, "operand")
    return cast(Poly, NotImplemented)


def _refuse_array(other: object, more: tuple[type, ...] = ()) -> None:
    if isinstance(other, (np.ndarray, *more)) or is_device_array(other):
        raise CoefficientError(
            "operand: a list or array is no constant; ring(values) makes a polynomial of it, "
            "ring(array[..., None]) a batch of constants"
        )


def _negated_plus(a: Poly, x: int) -> Poly:
    """x - a."""
    negative = a.neg()
    return negative.add(x, out=negative)


def _way_between(first: Ring, second: Ring) -> str:
    """Which verb brings an operand into the other's ring, for a message."""
    p, q = set(first.moduli), set(second.moduli)
    if (first.n, first.kind) != (second.n, second.kind):
        return "ring(poly.to_bigints(centered=True)) moves a value from one to another"
    if first.moduli == second.moduli:  # another root or rule for products: coefficients are the same
        return "ring.from_residues(poly.intt().data) moves a value from one to another"
    if p == q:
        return "the limbs are in another order: a.restrict(b.ring) puts a's in b's"
    if p > q:
        return "a.restrict(b.ring) takes a modulo b's moduli, b.mod_up(a.ring) extends b to all of a's"
    if p < q:
        return "a.mod_up(b.ring) extends a to all of b's moduli, b.restrict(a.ring) takes b modulo a's"
    join = "" if p & q else "; pg.rns.join(a, b) is the value that has both their residues"
    return f"a.convert(b.ring) is a's centred value modulo b's moduli{join}"


def check_one_device(a: Poly, b: Poly) -> None:
    """Raise DeviceError for values on two devices."""
    if not same_device(b._data, a._data):
        raise DeviceError(f"operands on {a.device} and {b.device}; poly.to({a.device!r}) moves one")


def checked_poly(x: object, name: str) -> Poly:
    """The value itself, where it is a Poly."""
    if not isinstance(x, Poly):
        raise RingMismatch(f"{name}: {type(x).__name__}, must be a Poly; ring(x) makes one of integers")
    return x
