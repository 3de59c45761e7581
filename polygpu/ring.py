"""Ring: Z_Q[X]/(X^n ± 1) or Z_Q[X]/(X^n - X^(n/2) + 1), Q one modulus or a product of coprime words."""

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

    A ring makes its elements: ring(integers), ring.from_residues(array), ring.random(). It is frozen and
    hashable, and rings of equal parameters are equal (see `__eq__`). Tables are built when first needed; all
    rings that have a prime and its root share them.

    Args:
        n: degree, any int from 1 to 2**62; even for a trinomial.
        moduli: one int of any size from 2, or several pairwise coprime ints, each at most 2**64. Several are
            the limbs of an RNS ring, whose Q is their product.
        kind: "negacyclic", "cyclic" or "trinomial". In a trinomial ring X has the order 3n; for n = 2^a 3^b,
            a > 0, the polynomial is the cyclotomic one of index 3n. It has a transform for n = 2^a, down to
            values at points, and for n = 3 2^a, down to leaves of 3 coefficients.
        root: which root of unity the evaluation domain uses, for prime moduli. "minimal" is the smallest of
            its order, as in SEAL, OpenFHE, ML-KEM and ML-DSA; "generator" is a power of the least primitive
            root. Or an int, or one int a limb.
        product: how coefficients are multiplied; the result is the same. "ntt" takes transforms modulo
            primes, the ring's own or auxiliary ones. "fft" takes transforms in doubles, exact by a proven
            bound, for moduli up to 2**64. "auto" takes the way for which the estimate of the device is
            shorter. A complete transform of this ring gives way only to an FFT with an estimate below 80 % of
            its own.

    Raises:
        ParameterError: n, a modulus, kind or product is outside its rule.
        NotAnInteger: n, a modulus or a root is not an int.
        BadRoot: a given root does not have the exact order that the transform needs.

    Cost: nothing of a transform, no tables. Arguments of a ring that is in use or small give a ring with that
    one's tables and plans, in 2 us.

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
        """Return a ring over the plan that was made from these arguments before, or over a new one."""
        ring = _new(cls)
        _set_plan(ring, ring_plan(n, moduli, kind, root, product))
        return ring

    @staticmethod
    def _of(plan: RingPlan) -> Ring:
        ring = _new(Ring)
        _set_plan(ring, plan)
        return ring

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: a Ring is frozen; make another: Ring(n, moduli, kind=, root=, ...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name}: a Ring is frozen")

    # ---- parameters ----

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
        """The moduli, one a limb.

        >>> Ring(8, [17, 97]).moduli
        (17, 97)
        """
        return self._plan.moduli

    @property
    def modulus(self) -> int:
        """Q, the product of the moduli.

        >>> Ring(8, [17, 97]).modulus
        1649
        """
        return self._plan.modulus

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of residues: uint32 if every modulus is at most 2**32, else uint64.

        >>> Ring(8, [17, 97]).dtype, Ring(8, 2**64).dtype
        (dtype('uint32'), dtype('uint64'))
        """
        return self._plan.dtype

    @property
    def rows(self) -> int:
        """Length of the limb axis of data: the number of moduli, or the words of one modulus above 2**64.

        >>> Ring(8, [17, 97, 113]).rows, Ring(8, 2**100).rows
        (3, 2)
        """
        return self._plan.rows

    @property
    def leaf_size(self) -> int | None:
        """Number of coefficients at which the transform stops: 1 if it is complete; None without a transform.

        Evaluated values of a complete transform are values at points. Of an incomplete one they are residues
        modulo X^leaf_size - c, the leaves of the tree of factors of the modulus polynomial.
        Source: docs/math.md, "Incomplete transforms".

        >>> Ring(256, 12289).leaf_size, Ring.preset("ml-kem").leaf_size, Ring(256, 2**32).leaf_size
        (1, 2, None)
        """
        return self._plan.leaf_size

    @property
    def has_eval(self) -> bool:
        """Whether there is an evaluation domain, of a complete or an incomplete transform.

        >>> Ring(8, 17).has_eval, Ring(8, 2**32).has_eval
        (True, False)
        """
        return self._plan.has_eval

    @property
    def roots(self) -> tuple[int, ...] | None:
        """The root of unity of each limb: psi of order 2N (negacyclic) or 3N (trinomial), omega of order N.

        N = n / leaf_size. None for a ring without a transform.

        Raises:
            TablesTooLarge: the tables of the transform do not fit in memory, so no root is searched for.

        Cost: on first use N steps a limb for "minimal" roots, and a primitive root of each prime, which a
        file keeps (half a second to import SymPy for a new one); then a look-up.

        >>> Ring(4, [17, 97]).roots
        (2, 33)
        """
        return self._plan.roots

    @property
    def product(self) -> Product:
        """How coefficients are multiplied: "auto", "fft" or "ntt", as given to Ring.

        >>> Ring(8, 17).product
        'auto'
        """
        return self._plan.product

    # ---- limbs ----

    def __getitem__(self, key: slice | Iterable[int]) -> Ring:
        """Return the ring of some of the limbs, in the order given; it shares the tables of their primes.

        Args:
            key: a slice, or a list of the limbs' numbers: R[:k], R[a:b], R[[2, 0]].

        Raises:
            ParameterError: the key is not a slice or list, chooses no limb, or chooses one twice.
            IndexError: there is no such limb.
            BadRoot: the roots of this ring were given, and the transform modulo the chosen limbs alone has
                smaller leaves, which need other roots.

        Cost: 1 us, no tables.

        >>> R = Ring(8, [17, 97, 113])
        >>> R[:2], R[[2, 0]].moduli
        (Ring(8, [17, 97]), (113, 17))
        """
        return Ring._of(self._plan.part(checked_limbs(key, len(self._plan.moduli))))

    __iter__ = None  # without this, Python would iterate by __getitem__ of ints, which chooses no limbs

    def join(self, other: Ring) -> Ring:
        """Return the ring of this ring's limbs, then the other's; it shares the tables of their primes.

        Args:
            other: a ring of the same degree and kind, with moduli coprime to this one's.

        Raises:
            RingMismatch: another degree or kind.
            ParameterError: moduli with a common factor or above 2**64, one ring with product="ntt" and one
                with "fft", or other is not a Ring.
            BadRoot: roots of one ring were given, and the joined ring's transform has leaves of another size,
                which need other roots.

        Cost: 1 us, no tables; 3 us for rings that are joined for the first time.

        >>> Ring(8, [17, 97]).join(Ring(8, 113))
        Ring(8, [17, 97, 113])
        """
        return Ring._of(self._plan.join(plan_of(other, "other")))

    # ---- identity ----

    def __eq__(self, other: object) -> bool:
        """Return whether two rings have the same degree, kind, moduli in their order, `product` and roots.

        Roots are compared as they are resolved: a ring whose root was given is equal to the ring whose rule
        finds the same root. Equal rings have the same values, tables and transforms; an operation on values
        of two equal rings returns a value of the left one's ring. The rule itself decides the roots of other
        degrees and moduli: ring[...], ring.join, zk.pad and zk.low_degree_extension read it from the ring
        that they are given. Rings made from the same arguments are one object while it is in use.

        Cost: a few comparisons; for different rules for roots, on first use at most what `roots` costs. It
        needs no tables, so that rings whose tables do not fit in memory can be compared.

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
        """Describe how this ring multiplies on the current device: way, word, root, tables and memory.

        Cost: about 0.3 ms and no tables; on first use what `roots` costs.

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

    # ---- elements ----

    def __call__(self, x: Any) -> Poly:
        """Return the elements with these integers as coefficients, reduced modulo every limb.

        Args:
            x: ints of any size and sign, as nested lists or an array of integers or Python ints, with axes
                (*batch, at most n). Coefficient of X^0 first; missing ones are zero. A single int is a
                constant. Arrays of PyTorch, JAX and others with `__dlpack__` are read where they lie. An
                array on a GPU stays there, all else goes to the current device.

        Returns a Poly in coefficients.

        Raises:
            CoefficientError: floats, bools, strings, None, complex: nothing is rounded or guessed. See
                `from_floats` for floats.
            ParameterError: more than n coefficients.
            OutOfHostMemory, OutOfDeviceMemory: it does not fit.

        Cost: one pass for machine integers. A list of ints that fit 64 bits takes about half of what
        numpy.array takes for it. Of larger ints, about 0.2 us a coefficient and 1 ns for each of its words
        and limb.

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
        """Return the elements with these residues; they share the array if they can.

        Args:
            data: integers (*batch, rows, n), canonical, that is in [0, q). For one modulus above 2**64 its
                rows are the words of the residues, the lowest first. The memory of arrays of PyTorch, JAX and
                others with `__dlpack__` is shared as that of NumPy's and CuPy's.
            domain: "coef", or "eval" in the ring's bit-reversed order.
            copy: None copies only if dtype or layout make it necessary, True always, False never.
            check: True checks that all residues are canonical. Without it they are checked when they are
                converted from another dtype, and inside `with polygpu.debug()`.

        Raises:
            ParameterError: a wrong shape, or copy=False although a copy is necessary.
            CoefficientError: no integers.
            DomainError: another domain. NotNTTFriendly: "eval", and the ring has no transform.
            NotCanonical: a residue that is checked is outside [0, q).

        Cost: nothing for a C-contiguous array of the ring's dtype, else one pass. A check is one pass more;
        residues on a GPU are copied to the host for it.

        >>> Ring(2, [5, 7]).from_residues([[4, 0], [6, 0]]).to_bigints(centered=True).tolist()
        [-1, 0]
        """
        domain, plan = self._checked_domain(domain), self._plan
        return Poly._make(self, from_residues(plan.basis, plan.n, data, copy, check), domain)

    def from_floats(self, x: Any, *, scale: float | Fraction = 1) -> Poly:
        """Return the elements whose coefficients are the integers nearest to x times scale.

        The product is that of real numbers. It is rounded once, halves to the even integer, and then reduced
        modulo every limb, so it is exact at any size. CKKS encodes slots z by
        `ring.from_floats(polygpu.fft.from_slots(z), scale=scale)`.

        Args:
            x: floats of 16, 32 or 64 bits, integers, or nested lists of Python's floats and ints, with axes
                (*batch, at most n) as in ring(x).
            scale: an int, a finite float or a Fraction, of any sign.

        Returns a Poly in coefficients. If x is an array on a GPU, the result lies there. Scales that are not
        powers of two, and products of 2**63 and more, are computed on the host.

        Raises:
            CoefficientError: x has NaN, an infinity, complex numbers, bools, long doubles or anything else
                that is not a real number.
            ParameterError: there are more than n coefficients, or scale is not a finite number.
            OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

        Cost: on a core about 10 ns a coefficient more than ring(integers) for floats if scale is a power of
        two, and about 20 ns for other scales, if products are below 2**63. For larger ones it is 0.2 us if
        scale is a power of two, else 1 to 4 us, as for mixed lists.

        >>> Ring(4, 97).from_floats([0.5, 1.5, -0.25, 1e-3], scale=1000).to_int64().tolist()
        [15, 45, 41, 1]
        >>> Ring(2, 2**128).from_floats([0.5, -1.0], scale=2**100) == Ring(2, 2**128)([2**99, -(2**100)])
        True
        """
        return Poly._make(self, from_floats(self._plan.basis, self._plan.n, x, scale, backend()), "coef")

    def _checked_domain(self, domain: object) -> Domain:
        if not isinstance(domain, str) or domain not in ("coef", "eval"):
            raise DomainError(f"domain: {domain!r} must be 'coef' or 'eval'")
        if domain == "eval":
            self._plan.check_eval()
            return "eval"
        return "coef"

    def from_slots(self, values: Any) -> Poly:
        """Return the evaluated elements whose slots are these integers, the inverse of Poly.to_slots.

        To add or multiply two elements is to add or multiply their slots one by one. BFV encrypts such
        elements modulo t; its papers call this batching.

        Args:
            values: integers (*batch, n) of any size, taken modulo q.

        Raises:
            NotNTTFriendly: the ring is not negacyclic with one prime q = 1 mod 2n, q below 2**64.
            ParameterError: another length of the last axis. CoefficientError: no integers.

        Cost: one pass. Source: Smart, Vercauteren 2011/133.

        >>> R = Ring(4, 17)
        >>> (R.from_slots([1, 2, 3, 4]) * R.from_slots([5, 6, 7, 8])).to_slots().tolist()
        [5, 12, 4, 15]
        """
        return Poly._make(self, from_slots(self._plan, values, backend())._data, "eval")

    def zeros(self, batch: int | tuple[int, ...] = (), *, domain: Domain = "coef") -> Poly:
        """Return a batch of zeros on the current device.

        Args:
            batch: batch shape, an int or several; a single polynomial by default.
            domain: "coef" for a value in coefficients, or "eval" for an evaluated one.

        Raises:
            ParameterError: a size is negative.
            DomainError: domain is another word. NotNTTFriendly: it is "eval", and the ring has no transform.
            OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

        Cost: one pass.

        >>> Ring(4, 17).zeros((2, 3)).shape, Ring(4, 17).zeros(domain="eval").domain
        ((2, 3), 'eval')
        """
        chosen, shape = self._checked_domain(domain), (*checked_batch(batch), self.rows, self.n)
        return Poly._make(self, empty(backend(), shape, self.dtype, zero=True), chosen)

    def ones(self, batch: int | tuple[int, ...] = (), *, domain: Domain = "coef") -> Poly:
        """Return a batch of the ring's one on the current device.

        Args:
            batch: see `zeros`.
            domain: see `zeros`. The evaluated one is 1 at every point. Modulo the leaves of an incomplete
                transform it is the constant 1.

        Raises:
            ParameterError, DomainError, NotNTTFriendly, OutOfHostMemory, OutOfDeviceMemory: see `zeros`.

        Cost: one pass, and no transform.

        >>> Ring(4, 17).ones(2).to_bigints().tolist()
        [[1, 0, 0, 0], [1, 0, 0, 0]]
        >>> Ring(4, 17).ones(domain="eval").data.tolist(), Ring(4, 5).ones(domain="eval").data.tolist()
        ([[1, 1, 1, 1]], [[1, 0, 1, 0]])
        """
        chosen = self._checked_domain(domain)
        return Poly._make(self, ones(self._plan, chosen, checked_batch(batch), backend()), chosen)

    def monomial(self, k: int, *, coefficient: int = 1) -> Poly:
        """Return coefficient * X^k, in coefficients, on the current device.

        Args:
            k: any int; X^n is -1 (negacyclic), 1 (cyclic) or X^(n/2) - 1 (trinomial).
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
        """Return elements uniform in the ring, from a ChaCha20 stream, on the current device.

        A residue is at a statistical distance of at most 2^-64 from uniform. All rings draw from the one
        stream of a seed: independent values need different seeds or, in one ring, a different `start`.

        The samplers ternary, binomial, gaussian and tuniform take the same batch, seed and start. They draw
        one integer for a coefficient and reduce it modulo every limb, so that it does not depend on the
        moduli. Each sampler, with its parameter and degree, has a stream of its own for a seed.

        Args:
            batch: batch shape, an int or several; a single polynomial by default.
            domain: "coef" reads the residues of the stream as coefficients, "eval" reads the same residues as
                evaluated ones. These are two values, both uniform: the second is not the transform of the
                first, and takes none.
            seed: an int, bytes or str gives the same values on every device and in every run, however the
                batch is cut. None takes a key from the operating system.
            start: number of the first polynomial in the stream: a batch of 8 is two of 4 with start 0 and 4.

        Raises:
            ParameterError: a negative size, a start outside [0, 2**48), more polynomials than the stream has,
                or seed=None in a call that polygpu.capture records.
            NotAnInteger: a seed of another type.
            DomainError: domain is another word. NotNTTFriendly: it is "eval", and the ring has no transform.
            OutOfHostMemory, OutOfDeviceMemory: it does not fit.

        Cost: 8 (W + 1) bytes of stream a coefficient and limb if a residue has W words; 5 ns on a core for
        W = 1.
        Source: Bernstein 2008, "ChaCha, a variant of Salsa20"; _ops/sampling.py fixes the stream, and
        docs/math.md, "Random elements", has the distance.

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
        """Return elements with coefficients uniform in {-1, 0, 1}, or with exactly `weight` of them not 0.

        Args:
            batch: batch shape.
            weight: how many coefficients are 1 or -1, with uniform signs and places; None for independent
                uniform coefficients.
            seed: see random.
            start: see random.

        Raises:
            ParameterError: a weight outside [0, n]; for all else see random.

        Statistical distance from this distribution: at most 2^-64 a coefficient; with a weight n 2^-63 a
        polynomial.
        Cost: 8 bytes of stream a coefficient. With a weight the time depends on the values drawn.
        Source: docs/math.md, "Small random elements".

        >>> Ring(4, [17, 97]).ternary(weight=2, seed=1).to_bigints(centered=True).tolist()
        [-1, 0, 1, 0]
        """
        return Poly._make(
            self, sampling.ternary(self._plan.basis, self._plan.n, batch, weight, seed, start), "coef"
        )

    def binomial(self, eta: int, *, batch: Batch = (), seed: Seed = None, start: int = 0) -> Poly:
        """Return elements with centred binomial coefficients.

        Each is the sum of eta random bits minus the sum of eta others. The variance sigma^2 is eta / 2. The
        distribution is exact.

        Args:
            eta: from 1 to 32; ML-KEM takes 2 and 3.
            batch: batch shape.
            seed: see random.
            start: see random.

        Raises:
            ParameterError: eta outside [1, 32]; for all else see random.

        Cost: 1, 2, 4 or 8 bytes of stream a coefficient, the least that hold 2 eta bits.
        Source: Alkim et al. 2016, "Post-quantum key exchange".

        >>> Ring(4, 17).binomial(2, seed=1).to_bigints(centered=True).tolist()
        [-1, 1, -1, -1]
        """
        return Poly._make(
            self, sampling.binomial(self._plan.basis, self._plan.n, batch, eta, seed, start), "coef"
        )

    def gaussian(self, sigma: float, *, batch: Batch = (), seed: Seed = None, start: int = 0) -> Poly:
        """Return elements with discrete Gaussian coefficients, P(z) proportional to exp(-z^2 / (2 sigma^2)).

        Args:
            sigma: an int, float or Fraction from 0.5 to 2**20, taken exactly.
            batch: batch shape.
            seed: see random.
            start: see random.

        Raises:
            ParameterError: sigma is not a number or is outside [0.5, 2**20]; for all else see random.

        Statistical distance from this distribution, a coefficient: at most 2^-58 for sigma up to 4, 2^-56 up
        to 16, 2^-53 for every sigma.
        Cost: 8 bytes of stream a coefficient for sigma up to 16, 16 bytes up to 1024, else 32. No branch or
        address depends on a value.
        Source: docs/math.md, "Small random elements"; Micciancio & Walter 2017 for sigma above 16.

        >>> Ring(4, 97).gaussian(3.2, seed=1).to_bigints(centered=True).tolist()
        [0, -4, -3, 5]
        """
        return Poly._make(
            self, sampling.gaussian(self._plan.basis, self._plan.n, batch, sigma, seed, start), "coef"
        )

    def tuniform(self, b: int, *, batch: Batch = (), seed: Seed = None, start: int = 0) -> Poly:
        """Return elements with coefficients in [-2^b, 2^b], nearly uniform, as the noise of TFHE.

        The two ends have probability 2^-(b + 2), all integers between them 2^-(b + 1). The distribution is
        exact.

        Args:
            b: from 0 to 62.
            batch: batch shape.
            seed: see random.
            start: see random.

        Raises:
            ParameterError: b outside [0, 62]; for all else see random.

        Cost: 1, 2, 4 or 8 bytes of stream a coefficient, the least that hold b + 2 bits.
        Source: TFHE-rs, Zama.

        >>> Ring(4, 97).tuniform(3, seed=1).to_bigints(centered=True).tolist()
        [2, -3, 5, 1]
        """
        return Poly._make(
            self, sampling.tuniform(self._plan.basis, self._plan.n, batch, b, seed, start), "coef"
        )

    # ---- the evaluation domain ----

    def eval_points(self, limb: int = 0) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the points x_k of the evaluation domain: entry k of an evaluated row is a(x_k).

        x_k = psi^(2 br(k) + 1) (negacyclic) or omega^br(k) (cyclic), br the reversal of log2 N bits. In a
        trinomial ring it is psi^(1 + 3 br(k)) if br(k) is even, else psi^(3 br(k) - 4). For an incomplete
        transform they are the constants c_k of its leaves X^leaf_size - c_k.

        Args:
            limb: the number of a modulus.

        Returns an array (n / leaf_size,) of the ring's dtype in host memory; of Python ints for a modulus
        above 2**64.

        Raises:
            NotNTTFriendly: the ring has no transform. ParameterError: there is no such limb.

        Cost: one transform.

        >>> Ring(4, 17).eval_points().tolist()
        [2, 15, 8, 9]
        """
        return eval_points(self._plan, limb)

    def natural_order(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the indices that put an evaluated row, or its leaves, in natural order.

        With index = ring.natural_order(), entry k of row[index] is a(psi^(2k + 1)) (negacyclic), a(omega^k)
        (cyclic), or in a trinomial ring a(psi^e), e the k-th number that has no factor in common with 6.

        Returns int64 (n / leaf_size,) in host memory, the bit reversal; another order in a trinomial ring.

        Raises:
            NotNTTFriendly: the ring has no transform. TablesTooLarge: its tables do not fit in memory.

        Cost: a table, which is kept.

        >>> Ring(8, 17).natural_order().tolist()
        [0, 4, 2, 6, 1, 5, 3, 7]
        """
        return natural_order(self._plan.transform.leaves)

    # ---- named rings ----

    @classmethod
    def preset(cls, name: str, n: int | None = None, *, product: Product = "auto") -> Ring:
        """Return a ring of a scheme, or one over a field of proof systems.

        Args:
            name: of schemes "ml-kem", "ml-dsa", "falcon-512", "falcon-1024" and "nttru", which is trinomial.
                Of fields "babybear", "koalabear" and "goldilocks": these rings are cyclic. Their roots are
                powers of the field's least generator.
            n: degree, which only rings over fields let you choose; 2**16 by default.
            product: see Ring.

        Raises:
            ParameterError: no such preset, and the message names the closest; or a degree other than the
                scheme's.

        Cost: nothing of a transform, no tables.
        Source: FIPS 203, FIPS 204, Falcon specification 1.2, Lyubashevsky & Seiler 2019 (eprint 2019/040).

        >>> Ring.preset("ml-kem").roots
        (17,)
        >>> Ring.preset("babybear", 2**10)
        Ring(1024, 2013265921, kind='cyclic', root='generator')
        """
        return cls(**parameters(name, n), product=product)


_set_plan = vars(Ring)["_plan"].__set__  # Ring.__setattr__ refuses assignment


def _make_ring(
    n: int, moduli: tuple[int, ...], kind: Kind, root: RootRule | tuple[int, ...], product: Product = "auto"
) -> Ring:
    return Ring(n, moduli, kind=kind, root=root, product=product)
