"""Poly: a batch of elements of a ring, in coefficients or in the evaluation domain."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np

from .arrays import check_writable, empty, holds_poly
from .backends import Array, Backend, Op, checked_device, current_device, load, of, together
from .checks import Product, check_product, integer, shown
from .errors import (
    CoefficientError,
    DeviceError,
    DomainError,
    NotInvertible,
    OutputError,
    ParameterError,
    RingMismatch,
)
from .exact.crt import compose, words_to_ints
from .exact.inverse import inverse_mod_prime, inverse_mod_two
from .exact.primes import is_prime
from .ops.multiply import multiply
from .plans.permutation import Permutation, automorphism, monomial_product
from .ring import Domain, Ring, debug

_OF_VIEWS = {int, slice, type(None), type(Ellipsis)}  # types of indices that copy nothing


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

    #: The operator @; contract.py, which stands above this module, sets it.
    _matmul: ClassVar[Callable[[Poly, Poly], Poly]]

    def __init__(self, ring: Ring, data: Array, domain: Domain) -> None:
        if not isinstance(ring, Ring):
            raise ParameterError(f"ring: {type(ring).__name__}, must be a Ring")
        checked = ring.from_residues(data, domain, copy=False)
        self._ring, self._data, self._domain = ring, checked._data, checked._domain

    @staticmethod
    def _wrap(ring: Ring, data: Array, domain: Domain) -> Poly:
        """A value whose parts fit by construction: unchecked, for the library's own results."""
        poly = Poly.__new__(Poly)
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
        return self._backend.name

    @property
    def _backend(self) -> Backend:
        return of(self._data)

    def __repr__(self) -> str:
        ring = self._ring
        q = (
            f"q={shown(ring.moduli[0])}"
            if len(ring.moduli) == 1
            else f"limbs={len(ring.moduli)}, bits={ring.modulus.bit_length()}"
        )
        kind = "" if ring.kind == "negacyclic" else ", kind=cyclic"
        return f"Poly(n={ring.n}, {q}{kind}, domain={self._domain}, shape={self.shape}, device={self.device})"

    def _repr_html_(self) -> str:
        ring = self._ring
        cells = {
            "ring": ring._repr_latex_(),
            "limbs": len(ring.moduli),
            "bits": ring.modulus.bit_length(),
            "domain": self._domain,
            "shape": self.shape,
            "device": self.device,
        }
        if self._data.size:
            few = self._backend.to_host(self._data[(0,) * self.ndim][:, :6])
            first = words_to_ints(few).tolist() if ring.basis.wide else few[0].tolist()
            cells["first residues"] = ", ".join(map(shown, first)) + (", ..." if ring.n > 6 else "")
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in cells.items())
        return f"<table>{rows}</table>"

    def __reduce__(self) -> tuple[Any, ...]:
        device = None if isinstance(self._data, np.ndarray) else self.device
        return _unpickled, (self._ring, self._backend.to_host(self._data), self._domain, device)

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
        keys = key if isinstance(key, tuple) else (key,)
        kinds = set(map(type, keys))
        if type(Ellipsis) not in kinds:
            keys = (*keys, Ellipsis)
        at = (*keys, slice(None), slice(None))
        try:
            if kinds <= _OF_VIEWS:
                data = self._data[at]
            else:
                with self._backend.here():
                    data = self._data[at]
        except IndexError as error:
            raise IndexError(
                f"{error}; the batch shape is {self.shape}, coefficients are in poly.data"
            ) from None
        if not data.flags.c_contiguous:
            with self._backend.here():
                data = self._backend.xp.ascontiguousarray(data)
        return Poly._wrap(self._ring, data, self._domain)

    def reshape(self, *shape: int | tuple[int, ...]) -> Poly:
        """The same polynomials in another batch shape; one size may be -1. Shares the data."""
        sizes: Any = shape[0] if len(shape) == 1 else shape
        try:
            batch = np.empty(self.shape, np.bool_).reshape(sizes).shape
        except (ValueError, TypeError, OverflowError):
            raise ParameterError(
                f"shape: the batch shape {self.shape} does not reshape to {shown(sizes)}"
            ) from None
        return Poly._wrap(self._ring, self._data.reshape(*batch, *self._data.shape[-2:]), self._domain)

    def copy(self) -> Poly:
        """The same value in memory of its own."""
        with self._backend.here():
            return Poly._wrap(self._ring, self._data.copy(), self._domain)

    def to(self, device: str | None = None) -> Poly:
        """The value on a device, by default the current one; itself where it already is there.

        Raises:
            BackendUnavailable: a GPU was asked for and none answers.
        """
        target = load(current_device() if device is None else checked_device(device))
        if (target.xp is np and isinstance(self._data, np.ndarray)) or target.name == self.device:
            return self
        data = target.from_host(self._backend.to_host(self._data))
        return Poly._wrap(self._ring, data, self._domain)

    def cpu(self) -> Poly:
        """The value in host memory; waits for the GPU where it was there."""
        return self.to("cpu")

    def sum(self, axis: int | tuple[int, ...] | None = None, out: Poly | None = None) -> Poly:
        """Sum over batch axes, all of them by default; an empty sum is zero.

        >>> Ring(2, 17)([[1, 2], [3, 4], [5, 6]]).sum().to_bigints().tolist()
        [9, 12]
        """
        axes = range(self.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        wanted = sorted({checked_axis(a, self.ndim) for a in axes}, reverse=True)
        data = self._data
        with self._backend.here():
            for a in wanted:
                data = self._sum_first(self._backend.xp.moveaxis(data, a, 0))
            if out is not None:
                result_data(self._backend, data.shape, out, self)[...] = data
            elif data is self._data:
                data = data.copy()
        return finish(self._ring, data, self._domain, out)

    def _sum_first(self, data: Array) -> Array:
        """Sum over the first axis by halves: log2 calls."""
        xp = self._backend.xp
        if not len(data):
            return xp.zeros(data.shape[1:], data.dtype)  # type: ignore[no-any-return]
        data = xp.ascontiguousarray(data)
        while len(data) > 1:
            half = len(data) // 2
            rest = data[2 * half :]
            total = xp.empty_like(data[:half])
            self._backend.pointwise(self._ring.basis, "add", data[:half], data[half : 2 * half], None, total)
            data = xp.concatenate([total, rest]) if len(rest) else total
        first: Array = data[0].copy()
        return first

    # ---- domains ----

    def ntt(self, out: Poly | None = None) -> Poly:
        """The value in the evaluation domain, in bit-reversed order; itself where it is there already.

        Entry k of a limb is a(psi^(2 br(k) + 1)) (negacyclic) or a(omega^br(k)) (cyclic); of an
        incomplete transform, the residue modulo leaf k / base.

        Raises:
            NotNTTFriendly: the ring has no evaluation domain.

        Cost: (n/2) log2 n products a limb. Source: Longa & Naehrig 2016, algorithm 1.

        >>> Ring(4, 17)([0, 1]).ntt().data.tolist()
        [[2, 15, 8, 9]]
        """
        return self._in_domain("eval", out)

    def intt(self, out: Poly | None = None) -> Poly:
        """The value in coefficients; itself where it is there already. The inverse of ntt()."""
        return self._in_domain("coef", out)

    def _in_domain(self, domain: Domain, out: Poly | None = None) -> Poly:
        if self._domain == domain:
            if out is None:
                return self
            compute = self._backend
            data = result_data(compute, self._data.shape, out, self)
            with compute.here():
                data[...] = self._data
        else:
            plan, compute = self._ring.transform, self._backend
            data = result_data(compute, self._data.shape, out, self)
            (compute.ntt if domain == "eval" else compute.intt)(plan, self._data, data)
        return finish(self._ring, data, domain, out)

    def natural_order(self) -> Array:
        """Evaluated residues in natural order, a copy: [..., k] == a(psi^(2k+1)) or a(omega^k).

        Leaves of an incomplete transform keep their coefficients together.
        """
        data, base = self.ntt()._data, self._ring.transform.base
        leaves = data.reshape(*data.shape[:-1], self._ring.n // base, base)
        order = self._backend.constant(self._ring.natural_order())
        with self._backend.here():
            return leaves[..., order, :].reshape(data.shape)

    # ---- arithmetic ----

    def add(self, other: Poly | int, out: Poly | None = None) -> Poly:
        """Sum; see Poly for domains and broadcasting."""
        a = checked_poly(self, "a")
        return _pointwise("add", a, a._operand(other), out)

    def sub(self, other: Poly | int, out: Poly | None = None) -> Poly:
        """Difference."""
        a = checked_poly(self, "a")
        return _pointwise("sub", a, a._operand(other), out)

    def neg(self, out: Poly | None = None) -> Poly:
        """The negative."""
        compute = self._backend
        data = result_data(compute, self._data.shape, out, self)
        compute.pointwise(self._ring.basis, "neg", self._data, None, None, data)
        return finish(self._ring, data, self._domain, out)

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
        if not isinstance(self, Poly) and isinstance(other, Poly):
            return other.mul(self, out, product=product)  # Poly.mul(3, a)
        check_product(product)
        ring = checked_poly(self, "a")._ring
        if not isinstance(other, Poly):
            if not ring.basis.wide:
                return self._scaled(integer(other, "operand"), out)
            product = "auto"
        b = self._operand(other)
        if self._domain == "eval" or b._domain == "eval":
            if product == "fft":
                raise DomainError("product: 'fft' multiplies coefficients; use intt() first, or leave it out")
            return _product_of_leaves(self.ntt(), b.ntt(), out)
        data = result_data(self._backend, result_shape(self, b), out, self, b)
        multiply(ring, self._data, b._data, data, product)
        return finish(ring, data, "coef", out)

    def _scaled(self, factor: int, out: Poly | None) -> Poly:
        ring = self._ring
        scalars = np.array([[factor % q] for q in ring.moduli], dtype=ring.dtype)
        compute = self._backend
        data = result_data(compute, self._data.shape, out, self)
        compute.pointwise(ring.basis, "mul", self._data, compute.constant(scalars), None, data)
        return finish(ring, data, self._domain, out)

    def _operand(self, other: object) -> Poly:
        """The other operand as a Poly of this ring."""
        if isinstance(other, Poly):
            if other._ring is not self._ring and other._ring != self._ring:
                raise RingMismatch(
                    f"operands of different rings: {self._ring!r} and {other._ring!r}; "
                    "ring(poly.to_bigints(centered=True)) moves a value from one to another"
                )
            if not together(other._data, self._data):
                raise DeviceError(
                    f"operands on {self.device} and {other.device}; poly.to({self.device!r}) moves one"
                )
            return other
        return self._ring(integer(other, "operand")).to(self.device)

    def __add__(self, other: Poly | int) -> Poly:
        return _operator(self.add, other)

    def __radd__(self, other: int) -> Poly:
        return _operator(self.add, other)

    def __sub__(self, other: Poly | int) -> Poly:
        return _operator(self.sub, other)

    def __rsub__(self, other: int) -> Poly:
        return _operator(lambda x: self._operand(x).sub(self), other)

    def __mul__(self, other: Poly | int) -> Poly:
        return _operator(self.mul, other)

    def __rmul__(self, other: int) -> Poly:
        return _operator(self.mul, other)

    def __matmul__(self, other: Poly) -> Poly:
        return _operator(lambda x: Poly._matmul(self, x), other)

    def __rmatmul__(self, other: Poly) -> Poly:
        return _operator(lambda x: Poly._matmul(x, self), other)

    def __neg__(self) -> Poly:
        return self.neg()

    def __pos__(self) -> Poly:
        return self

    def __pow__(self, exponent: int) -> Poly:
        """Power by squaring, in the evaluation domain where there is one; a negative one inverts."""
        k = integer(exponent, "exponent")
        base = self.inverse() if k < 0 else self
        if k == 0:
            return self._ring.ones(self.shape).to(self.device)._in_domain(self._domain)
        if base._domain == "coef" and self._ring.multiplies_evaluated and abs(k) > 1:
            return (base.ntt() ** abs(k)).intt()
        result = base.copy() if abs(k) == 1 else base
        for bit in bin(abs(k))[3:]:
            result = result * result
            if bit == "1":
                result = result * base
        return result

    def __eq__(self, other: object) -> bool:
        """Whether both are the same values: same ring, same batch shape, whatever the domains."""
        if isinstance(other, Poly):
            if other._ring != self._ring or other.shape != self.shape:
                return False
        elif isinstance(other, (int, np.integer)) and not isinstance(other, bool):
            other = self._operand(other)
        else:
            return NotImplemented
        return bool(equal(self, other).all())

    # ---- structure ----

    def automorphism(self, g: int) -> Poly:
        """a(X^g), for g coprime to 2n (negacyclic) or n (cyclic); keeps the domain.

        Raises:
            ParameterError: X -> X^g is no automorphism.

        Cost: a permutation; two transforms more where an incomplete transform holds the value.

        >>> Ring(4, 17)([1, 2, 3, 4]).automorphism(3).to_bigints(centered=True).tolist()
        [1, 4, -3, 2]
        """
        ring = self._ring
        order = 2 * ring.n if ring.kind == "negacyclic" else ring.n
        if math.gcd(integer(g, "g"), order) != 1:
            raise ParameterError(
                f"g: {shown(g)} has a common factor with {order}; "
                "X -> X^g is an automorphism for g coprime to it"
            )
        if self._domain == "eval" and ring.transform.base > 1:
            return self.intt().automorphism(g).ntt()
        return self._permuted(automorphism(ring.n, ring.kind, g, self._domain == "eval"))

    def mul_monomial(self, k: int) -> Poly:
        """X^k times the value, for any int k; keeps the domain. Cost: a rotation of coefficients.

        >>> Ring(4, 17)([1, 2, 3, 4]).mul_monomial(-1).to_bigints(centered=True).tolist()
        [2, 3, 4, -1]
        """
        ring, exponent = self._ring, integer(k, "k")
        if self._domain == "eval":
            return self * ring.monomial(exponent).to(self.device).ntt()
        return self._permuted(monomial_product(ring.n, ring.kind, exponent))

    def _permuted(self, permutation: Permutation) -> Poly:
        data = empty(self._backend, self._data.shape, self._data.dtype)
        self._backend.permute(self._ring.basis, self._data, permutation, data)
        return Poly._wrap(self._ring, data, self._domain)

    def __call__(self, x: int | Sequence[int] | Array) -> Any:
        """a(x) mod Q by Horner's rule: Python ints in an object array (*batch, *x.shape), or one int.

        x are integers, each reduced mod Q. Cost: n products of Python ints a point and polynomial.

        >>> Ring(4, 17)([1, 2, 3])(5)
        1
        """
        if holds_poly(x):
            raise ParameterError("x: a Poly; values are taken at integers")
        points, modulus = np.array(x, dtype=object), self._ring.modulus
        at = np.array([integer(v, "x") % modulus for v in points.flat], dtype=object)
        coefficients = self.to_bigints()[..., None]
        total = np.zeros((*self.shape, len(at)), dtype=object)
        for j in reversed(range(self._ring.n)):
            total = (total * at + coefficients[..., j, :]) % modulus
        total = total.reshape((*self.shape, *points.shape))
        return total if total.ndim else total.item()

    def inverse(self) -> Poly:
        """The multiplicative inverse, in the value's domain.

        Pointwise where the transform is complete; else limb by limb, by the extended Euclid for a
        prime and by Hensel lifting for a power of two.

        Raises:
            NotInvertible: some element has none (the message says where), or a modulus is neither
                prime nor a power of two.

        >>> R = Ring(4, 17)
        >>> R([3, 1]).inverse() * R([3, 1]) == 1
        True
        """
        ring = self._ring
        if ring.base_degree == 1:
            return self._inverse_pointwise()._in_domain(self._domain)
        value = self.intt()
        if len(ring.moduli) > 1:
            return value._inverse_by_limbs()._in_domain(self._domain)
        q, n = ring.modulus, ring.n
        constant = -1 if ring.kind == "negacyclic" else 1
        if is_prime(q):
            invert: Callable[[list[int]], list[int]] = partial(inverse_mod_prime, q=q, constant=constant)
        elif q & (q - 1) == 0:
            invert = inverse_mod_two
        else:
            raise NotInvertible(
                f"inverse: {shown(q)} is neither prime nor a power of two; give its coprime factors as moduli"
            )
        rows = value.to_bigints().reshape(-1, n)
        found = np.zeros(rows.shape, dtype=object)
        for i, row in enumerate(rows):
            try:
                found[i] = invert([int(x) for x in row])
            except NotInvertible as error:
                at = tuple(int(k) for k in np.unravel_index(i, self.shape)) if self.shape else ()
                raise NotInvertible(f"{error}" + (f" (batch element {at})" if at else "")) from None
        x = ring(found.reshape(*self.shape, n)).to(self.device)
        if q & (q - 1) == 0:  # Newton: right mod 2^k becomes right mod 2^2k
            for _ in range((q.bit_length() - 2).bit_length()):
                x = x * (2 - value * x)
        return x._in_domain(self._domain)

    def _inverse_pointwise(self) -> Poly:
        x = self.ntt()
        with x._backend.here():
            return x._fermat_inverse()

    def _fermat_inverse(self) -> Poly:
        """x^(q-2) of evaluated values, each limb with its own exponent."""
        ring, x, compute, xp = self._ring, self, self._backend, self._backend.xp
        zero = ~x._data.any(axis=-2, keepdims=True) if ring.basis.wide else x._data == 0
        if zero.any():
            *batch, limb, k = (int(i) for i in xp.argwhere(zero)[0])
            at = f" of limb {limb}" if len(ring.moduli) > 1 else ""
            raise NotInvertible(
                f"inverse: the value is 0 at evaluation index {k}{at}, q = {shown(ring.moduli[limb])}"
                + (f", batch element {tuple(batch)}" if batch else "")
            )
        exponents = [q - 2 for q in ring.moduli]
        y = one = ring.ones(self.shape).to(x.device).ntt()
        for bit in reversed(range(max(e.bit_length() for e in exponents))):
            y = y * y
            taken = np.array([e >> bit & 1 for e in exponents], np.bool_)
            rows = compute.from_host(np.resize(taken, ring.rows)[:, None])
            y = y * Poly._wrap(ring, xp.where(rows, x._data, one._data), "eval")
        return y

    def _inverse_by_limbs(self) -> Poly:
        data = empty(self._backend, self._data.shape, self._data.dtype)
        for i, q in enumerate(self._ring.moduli):
            limb = Ring(self._ring.n, q, kind=self._ring.kind, product=self._ring.product)
            try:
                inverse = limb.from_residues(self._data[..., i : i + 1, :]).inverse()
            except NotInvertible as error:
                raise NotInvertible(f"limb {i}: {error}") from None
            data[..., i : i + 1, :] = inverse.data
        return Poly._wrap(self._ring, data, "coef")

    # ---- integers ----

    def to_bigints(self, centered: bool = False) -> np.ndarray[Any, np.dtype[np.object_]]:
        """Coefficients as Python ints, an object array (*batch, n): in [0, Q), or in (-Q/2, Q/2].

        Cost: CRT in Python ints, about 0.2 us a coefficient and limb.
        """
        return compose(self._ring.moduli, self._backend.to_host(self.intt()._data), centered)

    def to_residue_ints(self) -> np.ndarray[Any, np.dtype[np.object_]]:
        """`data` as Python ints, an object array (*batch, limbs, n).

        Of one modulus above 2**64 (*batch, n): the numbers, not their words.
        """
        data = self._backend.to_host(self._data)
        return words_to_ints(data) if self._ring.basis.wide else data.astype(object)

    def norm(self, p: float = 2) -> Any:
        """Norm of the centred coefficients, a batch element: p = 1 or inf exact ints, p = 2 a float.

        Returns one number for a single polynomial, else an array of the batch shape. Raises
        ParameterError where a 2-norm exceeds what a float holds.

        >>> R = Ring(4, 17)
        >>> R([3, -4]).norm(), R([3, -4]).norm(1), R([3, -4]).norm(float("inf"))
        (5.0, 7, 4)
        """
        size = np.abs(self.to_bigints(centered=True))
        if p == 1:
            value = np.asarray(size.sum(axis=-1), object)
        elif p == math.inf:
            value = np.asarray(size.max(axis=-1), object)
        elif p == 2:
            squares = np.asarray((size * size).sum(axis=-1), object)
            roots = [_square_root(x) for x in squares.flat]
            value = np.array(roots, np.float64).reshape(squares.shape)
        else:
            raise ParameterError(f"p: {shown(p)} must be 1, 2 or inf")
        return value if value.ndim else value.item()

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


Ring._element = Poly


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


# ---- functions of several polynomials ----


def fma(a: Poly, b: Poly | int, c: Poly | int, out: Poly | None = None) -> Poly:
    """a * b + c, in one pass over evaluated operands; domains and broadcasting as for operators.

    >>> R = Ring(4, 17)
    >>> fma(R([1, 1]), R([2]), R([3])).to_bigints().tolist()
    [5, 2, 0, 0]
    """
    a = checked_poly(a, "a")
    b, c = a._operand(b), a._operand(c)
    ring = a._ring
    evaluated = "eval" in (a._domain, b._domain, c._domain)
    if not evaluated or ring.transform.base > 1:
        shape = result_shape(a, b, c)
        if out is not None:
            result_data(a._backend, shape, out, a, b, c)  # refuse before anything is computed
        return a.mul(b).add(c, out=out)
    x, y, z = a.ntt(), b.ntt(), c.ntt()
    compute = x._backend
    data = result_data(compute, result_shape(x, y, z), out, x, y, z)
    compute.pointwise(ring.basis, "mul_add", x._data, y._data, z._data, data)
    return finish(ring, data, "eval", out)


def equal(a: Poly | int, b: Poly | int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether values are equal, for each batch element: bools of the broadcast batch shape."""
    if not isinstance(a, Poly):
        a, b = b, a
    a = checked_poly(a, "a")
    b = a._operand(b)
    result_shape(a, b)
    if a._domain != b._domain:
        a, b = a.ntt(), b.ntt()
    with a._backend.here():
        same = (a._data == b._data).all(axis=(-2, -1))
        return np.asarray(a._backend.to_host(same))


def capture(f: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Record f(*args) once, for repeated calls on values that change in place.

    On a GPU the work becomes a CUDA graph: calling the result launches it with one small call, reads what
    the arguments hold then (write them with out=) and returns the same objects, overwritten. Shapes are
    fixed; f must not read values back. On the CPU the result calls f(*args).

    >>> R = Ring(4, 17)
    >>> a = R([1, 1])
    >>> square = capture(lambda x: x * x, a)
    >>> square().to_bigints().tolist()
    [1, 2, 1, 0]
    """
    polys = [x for x in args if isinstance(x, Poly)]
    if not polys:
        raise ParameterError("capture: no Poly among the arguments; pass those that f works on")
    return polys[0]._backend.capture(partial(f, *args))


def stack(polys: Sequence[Poly], axis: int = 0) -> Poly:
    """Join polynomials of one batch shape along a new batch axis."""
    first, arrays = _joined(polys)
    at = checked_axis(axis, first.ndim + 1)
    if any(x.shape != arrays[0].shape for x in arrays):
        raise ParameterError(f"polys: batch shapes {_shapes(arrays)} must be equal to be stacked")
    with first._backend.here():
        return Poly._wrap(first._ring, first._backend.xp.stack(arrays, at), first._domain)


def concatenate(polys: Sequence[Poly], axis: int = 0) -> Poly:
    """Join polynomials along a batch axis that they have."""
    first, arrays = _joined(polys)
    at = checked_axis(axis, first.ndim)
    if any(
        x.ndim != arrays[0].ndim or np.delete(x.shape, at).tolist() != np.delete(arrays[0].shape, at).tolist()
        for x in arrays
    ):
        raise ParameterError(f"polys: batch shapes {_shapes(arrays)} must be equal but for axis {at}")
    with first._backend.here():
        return Poly._wrap(first._ring, first._backend.xp.concatenate(arrays, at), first._domain)


def _joined(polys: Sequence[Poly]) -> tuple[Poly, list[Array]]:
    """The first of them, and the data of all in one domain: eval where they differ."""
    values = list(polys)
    if not values or not all(isinstance(p, Poly) for p in values):
        raise ParameterError(f"polys: {len(values)} values; give at least one Poly, and nothing else")
    values = [values[0]._operand(p) for p in values]
    if any(p._domain != values[0]._domain for p in values):
        values = [p.ntt() for p in values]
    return values[0], [p._data for p in values]


# ---- shared by the operations ----


def _operator(method: Callable[[Any], Poly], other: object) -> Poly:
    """An operator's method; foreign types give their own a chance, arrays are refused by name."""
    if isinstance(other, Poly) or (isinstance(other, (int, np.integer)) and not isinstance(other, bool)):
        return method(other)
    if isinstance(other, (np.ndarray, list, tuple)):
        raise CoefficientError(
            "operand: a list or array is no constant; ring(values) makes a polynomial of it, "
            "ring(array[..., None]) a batch of constants"
        )
    if isinstance(other, (bool, float, complex, str, np.generic)):
        integer(other, "operand")
    return cast(Poly, NotImplemented)


def checked_poly(x: object, name: str) -> Poly:
    """The value itself, where it is a Poly."""
    if not isinstance(x, Poly):
        raise RingMismatch(f"{name}: {type(x).__name__}, must be a Poly; ring(x) makes one of integers")
    return x


def checked_axis(axis: object, ndim: int) -> int:
    """The batch axis, counted from the left."""
    a = integer(axis, "axis")
    if not -ndim <= a < ndim:
        raise ParameterError(f"axis: {shown(a)} is outside the {ndim} batch axes")
    return a % ndim


def result_shape(a: Poly, *others: Poly) -> tuple[int, ...]:
    """The shape of a result's data: the batch shape of operands together, rows and coefficients."""
    shape: tuple[int, ...] = a._data.shape
    for p in others:
        if p._data.shape != shape:
            break
    else:
        return shape
    try:
        return np.broadcast_shapes(shape, *(p._data.shape for p in others))
    except ValueError:
        shapes = _shapes([p._data for p in (a, *others)])
        raise ParameterError(
            f"batch shapes {shapes} do not broadcast; reshape or index the batch axes"
        ) from None


def _shapes(arrays: Sequence[Array]) -> str:
    return ", ".join(str(x.shape[:-2]) for x in arrays)


def result_data(compute: Backend, shape: tuple[int, ...], out: Poly | None, *operands: Poly) -> Array:
    """The array to write, of this shape: a new one, or out's after all checks."""
    first = operands[0]
    if out is None:
        return empty(compute, shape, first._data.dtype)
    if not isinstance(out, Poly):
        raise OutputError(
            f"out: {type(out).__name__}, must be a Poly; ring.from_residues(array, copy=False) wraps an array"
        )
    if out._ring != first._ring:
        raise OutputError(f"out: of {out._ring!r}, the result is of {first._ring!r}")
    data = out._data
    if data.shape != shape:
        raise OutputError(f"out: batch shape {out.shape}, the result has {shape[:-2]}")
    if not together(data, first._data):
        raise OutputError(f"out: on {out.device}, the operands are on {first.device}")
    check_writable(compute, data, *(x._data for x in operands))
    return data


def finish(ring: Ring, data: Array, domain: Domain, out: Poly | None) -> Poly:
    """The result in the memory of result_data."""
    if out is None:
        return Poly._wrap(ring, data, domain)
    out._domain = domain
    return out


def _pointwise(op: Op, a: Poly, b: Poly, out: Poly | None) -> Poly:
    if a._domain != b._domain:
        a, b = a.ntt(), b.ntt()
    ring, compute = a._ring, a._backend
    data = result_data(compute, result_shape(a, b), out, a, b)
    compute.pointwise(ring.basis, op, a._data, b._data, None, data)
    return finish(ring, data, a._domain, out)


def _product_of_leaves(a: Poly, b: Poly, out: Poly | None) -> Poly:
    ring, compute = a._ring, a._backend
    data = result_data(compute, result_shape(a, b), out, a, b)
    compute.multiply_leaves(ring.transform, a._data, b._data, data)
    return finish(ring, data, "eval", out)


def _square_root(x: int) -> float:
    """The root of an int of any size."""
    try:
        return math.sqrt(x) if x.bit_length() < 1000 else float(math.isqrt(x))
    except OverflowError:
        raise ParameterError("norm: larger than any float; p = 1 and p = inf give exact ints") from None
