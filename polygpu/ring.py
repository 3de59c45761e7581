"""The class Ring: Z_Q[X]/(X^n ± 1) or Z_Q[X]/(X^n - X^(n/2) + 1), where Q is the product of the moduli."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._backends import backend
from ._core.checks import Domain, Product, checked_batch, checked_limbs, integer, shown
from ._core.plans.permutation import natural_order
from ._core.presets import parameters
from ._core.quotient import Kind
from ._core.ring_plan import RingPlan, RootRule, ring_plan
from ._ops import sampling, show
from ._ops.arrays import empty
from ._ops.explain import explain
from ._ops.integers import from_floats, from_integers, from_residues, monomial, ones
from ._ops.permutation import from_slots
from ._ops.sampling import Batch, Seed
from ._ops.transform import eval_points
from .errors import DomainError
from .poly import Poly, plan_of

if TYPE_CHECKING:
    from fractions import Fraction


_new = object.__new__


class Ring:
    """The ring Z_Q[X] modulo X^n + 1 ("negacyclic"), X^n - 1 ("cyclic") or X^n - X^(n/2) + 1 ("trinomial").

    Make elements of a ring by ring(integers), ring.from_residues(array) or ring.random(). A ring is immutable
    and hashable. Rings with equal parameters are equal (see `__eq__`). The tables of a limb, such as its
    twiddle factors, are built when they are first needed. Rings with the same prime and root share these
    tables.

    Args:
        n: degree, any int from 1 to 2**62. The degree of a trinomial ring must be even.
        moduli: one int of at least 2, of any size; or several pairwise coprime ints of at least 2 and at most
            2**64, one for each limb of an RNS ring. Q is the product of the moduli.
        kind: "negacyclic", "cyclic" or "trinomial". In a trinomial ring X has order 3n. If n = 2^a 3^b with
            a > 0, the trinomial is the cyclotomic polynomial of index 3n. For suitable primes, the transform
            is complete if n = 2^a, and incomplete, with leaves of 3 coefficients, if n = 3 * 2^a.
        root: which root of unity the transform modulo a prime uses. "minimal" is the smallest root of the
            needed order, as in SEAL, OpenFHE, ML-KEM and ML-DSA. "generator" is a power of the least
            primitive root. You can also give the root itself: an int, or a list of one int for each limb.
        product: the method by which values in coefficients are multiplied. The result is always the same.
            "ntt" uses transforms modulo primes, which are the moduli of the ring or auxiliary primes. "fft"
            uses an FFT in doubles, for moduli up to 2**64. Its error is proven to be so small that rounding
            gives the exact product. "auto" takes the method with the shorter estimated time on the device.
            But if the ring has a complete transform, "auto" takes an FFT only if the estimate for the FFT is
            below 80 % of the estimate for the transform.

    Raises:
        ParameterError: n, a modulus, kind or product is not as described above.
        NotAnInteger: n, a modulus or a root is not an int.
        BadRoot: a given root does not have the exact order that the transform needs.

    Cost: no tables are made. If a ring with the same arguments is still in use, or if it is small and was
    made recently, the new ring shares its tables and plans, and the call takes 2 us.

    >>> ring = Ring(8, 17)
    >>> (ring([0, 1]) * ring([0] * 7 + [1])).to_bigints().tolist()  # X * X^7 = X^8 = -1
    [16, 0, 0, 0, 0, 0, 0, 0]
    >>> ring = Ring(4, 13, kind="trinomial")
    >>> (ring([0, 1]) * ring([0, 0, 0, 1])).to_bigints().tolist()  # X * X^3 = X^4 = X^2 - 1
    [12, 0, 1, 0]
    """

    __slots__ = ("__weakref__", "_plan")

    _plan: RingPlan

    def __new__(
        cls,
        n: int,
        moduli: int | Iterable[int],
        *,
        kind: Kind = "negacyclic",
        root: RootRule | int | Sequence[int] = "minimal",
        product: Product = "auto",
    ) -> Ring:
        """Return a ring. Reuse the plan of an earlier ring with equal arguments if that plan still exists."""
        ring = _new(cls)
        _set_plan(ring, ring_plan(n, moduli, kind, root, product))
        return ring

    @staticmethod
    def _of(plan: RingPlan) -> Ring:
        ring = _new(Ring)
        _set_plan(ring, plan)
        return ring

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"A Ring is frozen, so {name} cannot be set. Make another one with Ring(n, moduli, kind=..., "
            "root=...)."
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"A Ring is frozen, so {name} cannot be deleted.")

    # ---- parameters of the ring ----

    @property
    def n(self) -> int:
        """Degree of the modulus polynomial, which is the number of coefficients of an element.

        >>> Ring.preset("ml-kem").n
        256
        """
        return self._plan.n

    @property
    def kind(self) -> Kind:
        """ "negacyclic" for X^n + 1, "cyclic" for X^n - 1, or "trinomial" for X^n - X^(n/2) + 1.

        >>> Ring(8, 17).kind
        'negacyclic'
        """
        return self._plan.quotient.kind

    @property
    def moduli(self) -> tuple[int, ...]:
        """The moduli as a tuple of ints, one for each limb.

        >>> Ring(8, [17, 97]).moduli
        (17, 97)
        """
        return self._plan.moduli

    @property
    def modulus(self) -> int:
        """The product Q of the moduli.

        >>> Ring(8, [17, 97]).modulus
        1649
        """
        return self._plan.modulus

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the residues: uint32 if every modulus is at most 2**32, else uint64.

        >>> Ring(8, [17, 97]).dtype, Ring(8, 2**64).dtype
        (dtype('uint32'), dtype('uint64'))
        """
        return self._plan.dtype

    @property
    def rows(self) -> int:
        """Number of rows in the data of one polynomial, an array (rows, n): one row for each modulus.

        A single modulus above 2**64 has one row for each 64-bit word of its residues instead.

        >>> Ring(8, [17, 97, 113]).rows, Ring(8, 2**100).rows
        (3, 2)
        """
        return self._plan.rows

    @property
    def leaf_size(self) -> int | None:
        """Size of the leaves of the transform: 1 if it is complete, None if the ring has no transform.

        A complete transform evaluates a polynomial at points. An incomplete transform computes the
        polynomial's residues modulo factors X^leaf_size - c of the ring's polynomial. These factors are the
        leaves of the binary tree by which the transform factors the ring's polynomial. A residue modulo a
        leaf has leaf_size coefficients.
        Source: docs/math.md, "Incomplete transforms".

        >>> Ring(256, 12289).leaf_size, Ring.preset("ml-kem").leaf_size, Ring(256, 2**32).leaf_size
        (1, 2, None)
        """
        return self._plan.leaf_size

    @property
    def has_eval(self) -> bool:
        """Whether the ring has an evaluation domain, that is, a complete or an incomplete transform.

        >>> Ring(8, 17).has_eval, Ring(8, 2**32).has_eval
        (True, False)
        """
        return self._plan.has_eval

    @property
    def roots(self) -> tuple[int, ...] | None:
        """The root of unity of each limb: psi (negacyclic or trinomial) or omega (cyclic).

        With N = n / leaf_size, psi has order 2N (negacyclic) or 3N (trinomial), and omega has order N. The
        result is None if the ring has no transform.

        Raises:
            TablesTooLarge: the tables of the transform do not fit in memory, so no root is searched for.

        Cost: on first use, a primitive root is found for each prime, and root="minimal" takes N more steps
        per limb. After that the roots are kept. A cache on disk stores primitive roots. If it does not have
        the root of a prime, SymPy is imported to find this root. The import takes about 0.3 s.

        >>> Ring(4, [17, 97]).roots
        (2, 33)
        """
        return self._plan.roots

    @property
    def product(self) -> Product:
        """Method by which values in coefficients are multiplied: "auto", "fft" or "ntt", as given to Ring.

        >>> Ring(8, 17).product
        'auto'
        """
        return self._plan.product

    # ---- rings with fewer or more limbs ----

    def __getitem__(self, key: slice | Iterable[int]) -> Ring:
        """Return the ring that has only the chosen limbs, in the given order. The rings share their tables.

        Args:
            key: a slice, or a list of limb indices: R[:k], R[a:b], R[[2, 0]].

        Raises:
            ParameterError: the key is not a slice or list, chooses no limb, or chooses a limb twice.
            IndexError: a limb index is out of range.
            BadRoot: the roots of this ring were given as ints, but the ring of the chosen limbs needs roots
                of another order, because its transform has smaller leaves (see Ring.leaf_size).

        Cost: 1 us. No tables are made.

        >>> R = Ring(8, [17, 97, 113])
        >>> R[:2], R[[2, 0]].moduli
        (Ring(8, [17, 97]), (113, 17))
        """
        return Ring._of(self._plan.part(checked_limbs(key, len(self._plan.moduli))))

    __iter__ = None  # otherwise Python would iterate by ring[0], ring[1], ..., which raise an error

    def join(self, other: Ring) -> Ring:
        """Return the ring that has this ring's limbs, then those of `other`. It shares the tables of both.

        Args:
            other: a ring of the same degree and kind, with moduli coprime to those of this ring.

        Raises:
            RingMismatch: other has another degree or kind.
            ParameterError: two moduli have a common factor, a modulus is above 2**64, one ring has
                product="ntt" and the other has "fft", or other is not a Ring.
            BadRoot: the roots of one ring were given as ints, but the joined ring needs roots of another
                order, because its transform has leaves of another size (see Ring.leaf_size).

        Cost: 1 us, or 3 us for rings that are joined for the first time. No tables are made.

        >>> Ring(8, [17, 97]).join(Ring(8, 113))
        Ring(8, [17, 97, 113])
        """
        return Ring._of(self._plan.join(plan_of(other, "other")))

    # ---- comparison and description ----

    def __eq__(self, other: object) -> bool:
        """Return whether two rings have the same degree, kind, moduli, roots and `product`.

        The order of the moduli counts. The roots are compared as numbers: Ring(..., root="minimal") is equal
        to the ring to which the minimal root was given as an int. Equal rings have the same values, tables
        and transforms. An operation on values of two equal rings returns a value of the left operand's ring.
        Equal rings can behave differently only in ring[...], ring.join, zk.pad, zk.low_degree_extension and
        zk.interpolate. These make a ring of other moduli or of another degree, and choose its roots by the
        `root` argument of the ring that they are given.

        Cost: a few comparisons. If the `root` arguments differ, the roots of both rings are needed, see
        Ring.roots. No tables are needed, so rings whose tables do not fit in memory can be compared.

        >>> Ring(4, 17) == Ring(4, [17], root=2), Ring(4, 17) == Ring(4, 17, kind="cyclic")
        (True, False)
        """
        return self._plan == other._plan if isinstance(other, Ring) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._plan)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_ring, self._plan.arguments

    def __repr__(self) -> str:
        return repr(self._plan)

    def _repr_html_(self) -> str:
        return show.ring_table(self._plan)

    def _repr_latex_(self) -> str:
        q = shown(self.moduli[0]) if len(self.moduli) == 1 else "Q"
        return rf"$\mathbb{{Z}}_{{{q}}}[X]/({self._plan.quotient.latex})$"

    def explain(self) -> str:
        """Return a text that says how this ring stores and multiplies values on the current device.

        Cost: about 0.3 ms, and on first use the cost of Ring.roots. No tables are made.

        >>> print(Ring(256, 3329).explain())  # doctest: +ELLIPSIS
        Ring(256, 3329): Z_Q[X]/(X^256 + 1), Q of 12 bits
        storage   uint32, (*batch, 1, 256), 1.0 KiB a polynomial
        word      q < 2^30
        product   FFT of 128 complex points, 1 digit of 12 bits, error below 1.1e-05 by proof, 0.5 allowed
        eval      transform of 128 points, stopped 1 layer early: 128 leaves of 2 coefficients
        because   estimates on cpu: FFT ... us, transform ... us
        root      17, of order 256
        tables    4.0 KiB
        """
        return explain(self._plan)

    # ---- elements of the ring ----

    def __call__(self, x: Any) -> Poly:
        """Return the elements whose coefficients are the integers x, reduced modulo every limb.

        Args:
            x: ints of any size and sign, as nested lists or as an array of integers or Python ints. The shape
                is the batch shape, followed by at most n coefficients. The coefficient of X^0 comes first,
                and missing coefficients are zero. A single int is a constant polynomial. Arrays of PyTorch,
                JAX and others with `__dlpack__` are read in place. If x is an array on a GPU, the result is
                on that GPU, else on the current device.

        Returns a Poly in coefficients.

        Raises:
            CoefficientError: x contains floats, bools, strings, None or complex numbers. Use `from_floats`
                for floats.
            ParameterError: x has more than n coefficients.
            OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

        Cost: one pass for an array of machine integers. A list of ints of at most 64 bits takes about half
        the time of numpy.array(list). An int of more than 64 bits takes about 0.2 us, and 1 ns per limb for
        each of its 64-bit words.

        >>> Ring(4, 17)([-1, 2**70]).to_bigints().tolist()
        [16, 13, 0, 0]
        >>> Ring(4, 17)([[1, 2], [3, 4], [5, 6]]).shape
        (3,)
        """
        plan = self._plan
        return Poly._make(self, from_integers(plan.basis, plan.n, x, backend()), "coef")

    def from_residues(
        self,
        data: Any,
        *,
        domain: Domain = "coef",
        copy: bool | None = None,
        check: bool | None = None,
    ) -> Poly:
        """Return the elements whose residues are `data`. The result shares the memory of `data` if possible.

        Args:
            data: integers (*batch, rows, n). Each is a canonical residue: it is in [0, q) for the modulus q
                of its row. For one modulus above 2**64 the rows are the words of the residues, lowest word
                first. Memory can be shared with arrays of NumPy, CuPy, PyTorch, JAX and other libraries whose
                arrays have `__dlpack__`.
            domain: "coef" if data holds coefficients, or "eval" if data holds the residues of an evaluated
                value, in bit-reversed order.
            copy: None copies only if the dtype or the layout makes it necessary, True always copies, and
                False never copies.
            check: True checks that all residues are canonical. False checks them only if they are converted
                from another dtype, or inside `with polygpu.debug()`.

        Raises:
            ParameterError: the shape of data does not end in (rows, n), or copy is False although a copy is
                necessary.
            CoefficientError: data holds something other than integers.
            DomainError: domain is neither "coef" nor "eval".
            NotNTTFriendly: domain is "eval", and the ring has no transform.
            NotCanonical: a residue that is checked is outside [0, q).

        Cost: constant time for a C-contiguous array of the ring's dtype, else one pass. A check takes one
        more pass on the device of the residues, and waits for the GPU.

        >>> Ring(2, [5, 7]).from_residues([[4, 0], [6, 0]]).to_bigints(centered=True).tolist()
        [-1, 0]
        """
        domain, plan = self._checked_domain(domain), self._plan
        return Poly._make(self, from_residues(plan.basis, plan.n, data, copy, check), domain)

    def from_floats(self, x: Any, *, scale: float | Fraction = 1) -> Poly:
        """Return the elements whose coefficients are the integers nearest to x times scale.

        The exact real product of each entry and `scale` is rounded once (halves to the even integer) and then
        reduced modulo every limb. There is no other rounding error, however large the product is. To encode
        slots z as CKKS does, call `ring.from_floats(polygpu.fft.from_slots(z), scale=scale)`.

        Args:
            x: an array of floats of 16, 32 or 64 bits or of integers, or nested lists of Python's floats and
                ints. The shape is the batch shape, followed by at most n coefficients, as in ring(x).
            scale: an int, a finite float or a Fraction, of any sign.

        Returns a Poly in coefficients. If x is an array on a GPU, the result is on that GPU, else on the
        current device. If scale is not a power of two, or if a product is at least 2**63 in absolute value,
        the host computes the coefficients.

        Raises:
            CoefficientError: x has NaN, an infinity, complex numbers, bools, long doubles or anything else
                that is not a real number.
            ParameterError: there are more than n coefficients, or scale is not a finite number.
            OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

        Cost: the cost of ring(integers), and an additional time for each coefficient on one core. If scale is
        a power of two, this time is about 10 ns, or 0.2 us if products are at least 2**63 in absolute value.
        For other scales it is about 20 ns, or 1 to 4 us if products are that large. For lists that mix floats
        and ints it is 1 to 4 us.

        >>> Ring(4, 97).from_floats([0.5, 1.5, -0.25, 1e-3], scale=1000).to_int64().tolist()
        [15, 45, 41, 1]
        >>> Ring(2, 2**128).from_floats([0.5, -1.0], scale=2**100) == Ring(2, 2**128)([2**99, -(2**100)])
        True
        """
        return Poly._make(self, from_floats(self._plan.basis, self._plan.n, x, scale, backend()), "coef")

    def _checked_domain(self, domain: object) -> Domain:
        if not isinstance(domain, str) or domain not in ("coef", "eval"):
            raise DomainError(f"domain={domain!r} must be 'coef' or 'eval'.")
        if domain == "eval":
            self._plan.check_eval()
            return "eval"
        return "coef"

    def from_slots(self, values: Any) -> Poly:
        """Return the evaluated elements whose slots are `values`. This is the inverse of Poly.to_slots.

        The slots of an element are its values at the n roots of X^n + 1 modulo the prime q. The slots
        of a sum or product of two elements are the sums or products of their slots. The BFV scheme encrypts
        elements of this form; its papers call this batching.

        Args:
            values: integers (*batch, n) of any size, which are reduced modulo q.

        Raises:
            NotNTTFriendly: the ring is not negacyclic, or its modulus is not a single prime q = 1 mod 2n
                below 2**64.
            ParameterError: the length of the last axis is not n.
            CoefficientError: values holds something other than integers.

        Cost: one pass. Source: Smart, Vercauteren 2011/133.

        >>> R = Ring(4, 17)
        >>> (R.from_slots([1, 2, 3, 4]) * R.from_slots([5, 6, 7, 8])).to_slots().tolist()
        [5, 12, 4, 15]
        """
        return Poly._make(self, from_slots(self._plan, values, backend())._data, "eval")

    def zeros(self, batch: int | tuple[int, ...] = (), *, domain: Domain = "coef") -> Poly:
        """Return a batch of zero polynomials on the current device.

        Args:
            batch: batch shape, an int or a tuple of ints. By default the result is a single polynomial.
            domain: "coef" for a value in coefficients, or "eval" for an evaluated value.

        Raises:
            ParameterError: a size is negative.
            DomainError: domain is neither "coef" nor "eval".
            NotNTTFriendly: domain is "eval", and the ring has no transform.
            OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

        Cost: one pass.

        >>> Ring(4, 17).zeros((2, 3)).shape, Ring(4, 17).zeros(domain="eval").domain
        ((2, 3), 'eval')
        """
        chosen, shape = self._checked_domain(domain), (*checked_batch(batch), self.rows, self.n)
        return Poly._make(self, empty(backend(), shape, self.dtype, zero=True), chosen)

    def ones(self, batch: int | tuple[int, ...] = (), *, domain: Domain = "coef") -> Poly:
        """Return a batch of constant polynomials 1 on the current device.

        Args:
            batch: see Ring.zeros.
            domain: see Ring.zeros. With "eval", every residue of the result is 1 if the transform is
                complete. If it is incomplete, each leaf holds the coefficients 1, 0, ..., 0 (see
                Ring.leaf_size).

        Raises:
            ParameterError, DomainError, NotNTTFriendly, OutOfHostMemory, OutOfDeviceMemory: see Ring.zeros.

        Cost: one pass, and no transform.

        >>> Ring(4, 17).ones(2).to_bigints().tolist()
        [[1, 0, 0, 0], [1, 0, 0, 0]]
        >>> Ring(4, 17).ones(domain="eval").data.tolist(), Ring(4, 5).ones(domain="eval").data.tolist()
        ([[1, 1, 1, 1]], [[1, 0, 1, 0]])
        """
        chosen = self._checked_domain(domain)
        return Poly._make(self, ones(self._plan, chosen, checked_batch(batch), backend()), chosen)

    def monomial(self, k: int, *, coefficient: int = 1) -> Poly:
        """Return the polynomial coefficient * X^k on the current device, in the domain "coef".

        Args:
            k: any int. The result is reduced by the rule of the ring: X^n = -1 (negacyclic), X^n = 1 (cyclic)
                or X^n = X^(n/2) - 1 (trinomial).
            coefficient: any int.

        Raises:
            NotAnInteger: k or coefficient is not an int.

        Cost: one pass over n coefficients.

        >>> Ring(4, 17).monomial(-1).to_bigints(centered=True).tolist()
        [0, 0, 0, -1]
        """
        terms, x = self._plan.quotient.power_of_x(integer(k, "k")), integer(coefficient, "coefficient")
        return Poly._make(self, monomial(self._plan.basis, self._plan.n, x, terms, backend()), "coef")

    def random(
        self, batch: Batch = (), *, domain: Domain = "coef", seed: Seed = None, start: int = 0
    ) -> Poly:
        """Return uniform elements of the ring on the current device, drawn from a ChaCha20 stream.

        The statistical distance of a residue from uniform is at most 2^-64. The stream of this method depends
        only on the seed, not on the ring. So draw independent values with different seeds. Within one ring
        you can also use one seed with different `start`, if the batches do not overlap in the stream.

        The methods ternary, binomial, gaussian and tuniform also have the arguments batch, seed and start.
        They draw one integer for each coefficient and reduce it modulo every limb, so the integer does not
        depend on the moduli. Their streams depend on the method, on the ring's degree and on parameters such
        as sigma, as well as on the seed.

        Args:
            batch: batch shape, an int or a tuple of ints. By default the result is a single polynomial.
            domain: "coef" takes the residues of the stream as coefficients, and "eval" takes the same
                residues as those of an evaluated value. Both results are uniform, but the second is not the
                transform of the first. No transform is computed.
            seed: an int, bytes or str. The same seed gives the same values on every device and in every run.
                None, the default, takes a new random key from the operating system.
            start: index of the first polynomial in the stream. A batch of 8 with start=0 has the same values
                as a batch of 4 with start=0 followed by a batch of 4 with start=4.

        Raises:
            ParameterError: a size is negative, start is outside [0, 2**48), the stream does not have enough
                polynomials, or seed is None in a call that polygpu.capture records.
            NotAnInteger: seed is not an int, bytes, str or None, or a size or start is not an int.
            DomainError: domain is neither "coef" nor "eval".
            NotNTTFriendly: domain is "eval", and the ring has no transform.
            OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

        Cost: 8 * (W + 1) bytes of stream per coefficient and limb if a residue has W 64-bit words. For W = 1
        this takes 5 ns on one core.
        Source: Bernstein 2008, "ChaCha, a variant of Salsa20". _ops/sampling.py defines the stream, and
        docs/math.md, "Random elements", proves the statistical distance.

        >>> R = Ring(4, 97)
        >>> R.random(2, seed=1)[1] == R.random(seed=1, start=1)
        True
        >>> a, b = R.random(seed=1), R.random(domain="eval", seed=1)
        >>> a.data.tolist() == b.data.tolist(), a == b
        (True, False)
        """
        chosen, basis, n = self._checked_domain(domain), self._plan.basis, self._plan.n
        return Poly._make(self, sampling.uniform(basis, n, batch, seed, start), chosen)

    def ternary(
        self, batch: Batch = (), *, weight: int | None = None, seed: Seed = None, start: int = 0
    ) -> Poly:
        """Return elements with coefficients in {-1, 0, 1}, by default uniform and independent.

        Args:
            batch: see Ring.random.
            weight: number of coefficients in each polynomial that are 1 or -1. Their positions and signs are
                uniform. None, the default, means uniform and independent coefficients.
            seed: see Ring.random.
            start: see Ring.random.

        Raises:
            ParameterError: weight is outside [0, n]. For other errors see Ring.random.

        The statistical distance from the exact distribution is at most 2^-64 per coefficient without a
        weight, and at most n * 2^-63 per polynomial with a weight.
        Cost: 8 bytes of stream per coefficient. With a weight, the time depends on the values drawn.
        Source: docs/math.md, "Small random elements".

        >>> Ring(4, [17, 97]).ternary(weight=2, seed=1).to_bigints(centered=True).tolist()
        [-1, 0, 1, 0]
        """
        return Poly._make(
            self, sampling.ternary(self._plan.basis, self._plan.n, batch, weight, seed, start), "coef"
        )

    def binomial(self, eta: int, *, batch: Batch = (), seed: Seed = None, start: int = 0) -> Poly:
        """Return elements with centred binomial coefficients.

        Each coefficient is the sum of eta random bits minus the sum of eta other random bits. Its variance is
        eta / 2. The distribution is exact.

        Args:
            eta: an int from 1 to 32. ML-KEM uses 2 and 3.
            batch: see Ring.random.
            seed: see Ring.random.
            start: see Ring.random.

        Raises:
            ParameterError: eta is outside [1, 32]. For other errors see Ring.random.

        Cost: 1, 2, 4 or 8 bytes of stream per coefficient, the fewest that hold 2 * eta bits.
        Source: Alkim et al. 2016, "Post-quantum key exchange".

        >>> Ring(4, 17).binomial(2, seed=1).to_bigints(centered=True).tolist()
        [-1, 1, -1, -1]
        """
        return Poly._make(
            self, sampling.binomial(self._plan.basis, self._plan.n, batch, eta, seed, start), "coef"
        )

    def gaussian(self, sigma: float, *, batch: Batch = (), seed: Seed = None, start: int = 0) -> Poly:
        """Return elements with discrete Gaussian coefficients.

        The probability of the integer z is proportional to exp(-z^2 / (2 sigma^2)).

        Args:
            sigma: an int, float or Fraction from 0.5 to 2**20. Its exact value is used.
            batch: see Ring.random.
            seed: see Ring.random.
            start: see Ring.random.

        Raises:
            ParameterError: sigma is not a number or is outside [0.5, 2**20]. For other errors see
                Ring.random.

        The statistical distance of a coefficient from the exact distribution is at most 2^-58 for sigma up to
        4, at most 2^-56 for sigma up to 16, and at most 2^-53 for larger sigma.
        Cost: 8 bytes of stream per coefficient for sigma up to 16, 16 bytes for sigma up to 1024, else 32
        bytes. No branch or memory address depends on a value that is drawn.
        Source: docs/math.md, "Small random elements"; Micciancio & Walter 2017 for sigma above 16.

        >>> Ring(4, 97).gaussian(3.2, seed=1).to_bigints(centered=True).tolist()
        [0, -4, -3, 5]
        """
        return Poly._make(
            self, sampling.gaussian(self._plan.basis, self._plan.n, batch, sigma, seed, start), "coef"
        )

    def tuniform(self, b: int, *, batch: Batch = (), seed: Seed = None, start: int = 0) -> Poly:
        """Return elements with coefficients in [-2^b, 2^b], distributed like the noise of TFHE.

        The two ends -2^b and 2^b have probability 2^-(b + 2) each, and each integer between them has
        probability 2^-(b + 1). The distribution is exact.

        Args:
            b: an int from 0 to 62.
            batch: see Ring.random.
            seed: see Ring.random.
            start: see Ring.random.

        Raises:
            ParameterError: b is outside [0, 62]. For other errors see Ring.random.

        Cost: 1, 2, 4 or 8 bytes of stream per coefficient, the fewest that hold b + 2 bits.
        Source: TFHE-rs, Zama.

        >>> Ring(4, 97).tuniform(3, seed=1).to_bigints(centered=True).tolist()
        [2, -3, 5, 1]
        """
        return Poly._make(
            self, sampling.tuniform(self._plan.basis, self._plan.n, batch, b, seed, start), "coef"
        )

    # ---- points of the evaluation domain ----

    def eval_points(self, limb: int = 0) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the points of the evaluation domain for one limb, in the order of evaluated values.

        Let a be a value, and let x_k be entry k of the result. If the transform is complete, entry k of this
        limb of a.ntt() is a(x_k). If it is incomplete, leaf k is X^leaf_size - x_k (see Ring.leaf_size).
        x_k is psi^(2 br(k) + 1) (negacyclic) or omega^br(k) (cyclic), where psi or omega is the limb's root
        in ring.roots, and br(k) is k with its log2 N bits in reverse order, N = n / leaf_size. In a trinomial
        ring x_k is psi^(1 + 3 br(k)) if br(k) is even, else psi^(3 br(k) - 4).

        Args:
            limb: index of the limb.

        Returns an array (N,) of the ring's dtype in host memory. Its entries are Python ints for a modulus
        above 2**64.

        Raises:
            NotNTTFriendly: the ring has no transform.
            ParameterError: the ring has no limb of this index.

        Cost: one transform.

        >>> Ring(4, 17).eval_points().tolist()
        [2, 15, 8, 9]
        """
        return eval_points(self._plan, limb)

    def natural_order(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the indices that put the entries of an evaluated row in natural order.

        Let index = ring.natural_order(), and let row be one limb of an evaluated value a. If the transform is
        complete, entry k of row[index] is a(psi^(2k + 1)) (negacyclic) or a(omega^k) (cyclic), with the root
        psi or omega of the limb. In a trinomial ring entry k is a(psi^e), where e is the k-th positive
        integer coprime to 6, counted from k = 0. If the transform is incomplete, index reorders the leaves of
        the row (see Ring.leaf_size).

        Returns an int64 array (n / leaf_size,) in host memory. It is the bit-reversal permutation, except in
        a trinomial ring.

        Raises:
            NotNTTFriendly: the ring has no transform. TablesTooLarge: its tables do not fit in memory.

        Cost: one pass at the first call. The result is kept for later calls.

        >>> Ring(8, 17).natural_order().tolist()
        [0, 4, 2, 6, 1, 5, 3, 7]
        """
        return natural_order(self._plan.transform.leaves)

    # ---- named rings ----

    @classmethod
    def preset(cls, name: str, n: int | None = None, *, product: Product = "auto") -> Ring:
        """Return the ring of a lattice scheme, or a ring over a prime field that proof systems use.

        Args:
            name: a scheme ("ml-kem", "ml-dsa", "falcon-512", "falcon-1024" or "nttru") or a field
                ("babybear", "koalabear" or "goldilocks"). The ring of "nttru" is trinomial; those of the
                other schemes are negacyclic. Rings over fields are cyclic, and their roots are powers of the
                field's least generator.
            n: degree. For a field it is 2**16 by default. For a scheme omit it: the scheme fixes the degree.
            product: see Ring.

        Raises:
            ParameterError: there is no such preset, or n is not the degree of the scheme.

        Cost: no tables are made.
        Source: FIPS 203, FIPS 204, Falcon specification 1.2, Lyubashevsky & Seiler 2019 (eprint 2019/040).

        >>> Ring.preset("ml-kem").roots
        (17,)
        >>> Ring.preset("babybear", 2**10)
        Ring(1024, 2013265921, kind='cyclic', root='generator')
        """
        return cls(**parameters(name, n), product=product)


_set_plan = vars(Ring)["_plan"].__set__  # sets ring._plan in spite of Ring.__setattr__, which raises


def _make_ring(
    n: int, moduli: tuple[int, ...], kind: Kind, root: RootRule | tuple[int, ...], product: Product = "auto"
) -> Ring:
    return Ring(n, moduli, kind=kind, root=root, product=product)
