"""Ring: Z_Q[X]/(X^n ± 1), Q one modulus of any size or a product of coprime words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np

from .arrays import empty
from .backends import backend, current_device
from .checks import (
    Domain,
    Kind,
    Product,
    check_kind,
    check_product,
    checked_batch,
    checked_degree,
    checked_limbs,
    checked_moduli,
    integer,
    sequence,
    shown,
)
from .errors import BadRoot, DomainError, NotNTTFriendly, ParameterError, RingMismatch
from .exact.primes import root_order
from .exact.roots import has_order, root_of_unity
from .memory import check_memory
from .ops import sampling
from .ops.integers import from_integers, from_residues, monomial, ones
from .ops.multiply import choose, plan_product
from .ops.permutation import from_slots
from .ops.sampling import Batch, Seed
from .ops.transform import eval_points
from .plans.basis import Basis, Calls, basis_of
from .plans.cache import keep
from .plans.ntt import NttPlan, least_leaf_size, plan_ntt, table_bytes
from .plans.permutation import bit_reversal
from .plans.product import Plan
from .poly import Poly
from .presets import parameters

RootRule = Literal["minimal", "generator"]

_KEPT = 128  # how many rings of some of its limbs a ring keeps, and how many joined rings


class Ring:
    """The ring Z_Q[X]/(X^n + 1) ("negacyclic") or Z_Q[X]/(X^n - 1) ("cyclic").

    A ring makes its elements: ring(integers), ring.from_residues(array), ring.random(). It is frozen and
    hashable, and rings of equal parameters are equal. Tables are built when first needed; all rings that have
    a prime and its root share them.

    Args:
        n: degree, any int from 1 to 2**62.
        moduli: one int of any size from 2, or several pairwise coprime ints, each at most 2**64. Several are
            the limbs of an RNS ring, whose Q is their product.
        kind: "negacyclic" or "cyclic".
        root: which root of unity the evaluation domain uses, for prime moduli. "minimal" is the smallest of
            its order, as in SEAL, OpenFHE, ML-KEM and ML-DSA; "generator" is a power of the least primitive
            root. Or an int, or one int a limb.
        product: how coefficients are multiplied; the result is the same. "ntt" takes transforms modulo
            primes, the ring's own or auxiliary ones. "fft" takes transforms in doubles, exact by a proven
            bound, for moduli up to 2**64. "auto" takes the way for which the estimate of the device is
            shorter; a complete transform of the ring's own gives way only to a clearly faster FFT.

    Raises:
        ParameterError: n, a modulus, kind or product is outside its rule.
        NotAnInteger: n, a modulus or a root is no int.
        BadRoot: a given root has not the exact order that the transform needs.

    Cost: nothing of a transform, no tables.

    >>> ring = Ring(8, 17)
    >>> (ring([0, 1]) * ring([0] * 7 + [1])).to_bigints().tolist()  # X * X^7 = X^8 = -1
    [16, 0, 0, 0, 0, 0, 0, 0]
    """

    _n: int
    _kind: Kind
    _moduli: tuple[int, ...]
    _root: RootRule | tuple[int, ...]
    _product: Product

    def __init__(
        self,
        n: int,
        moduli: int | Iterable[int],
        *,
        kind: Kind = "negacyclic",
        root: RootRule | int | Sequence[int] = "minimal",
        product: Product = "auto",
    ) -> None:
        check_kind(kind)
        check_product(product)
        # Into __dict__, as cached_property writes, because __setattr__ refuses assignment.
        parameters: dict[str, Any] = self.__dict__
        parameters.update(_n=checked_degree(n), _kind=kind, _moduli=checked_moduli(moduli), _product=product)
        if product == "fft" and self.basis.wide:
            raise ParameterError(
                f"product: 'fft' takes moduli up to 2**64, and q = {shown(self._moduli[0])}; leave it out"
            )
        rule = isinstance(root, str) and root in ("minimal", "generator")
        parameters["_root"] = root if rule else self._checked_roots(root)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: a Ring is frozen; make another: Ring(n, moduli, kind=, root=, ...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name}: a Ring is frozen")

    # ---- parameters ----

    @property
    def n(self) -> int:
        """Degree of the modulus polynomial X^n ± 1, which is the number of coefficients of an element.

        >>> Ring.preset("ml-kem").n
        256
        """
        return self._n

    @property
    def kind(self) -> Kind:
        """ "negacyclic" for X^n + 1, or "cyclic" for X^n - 1.

        >>> Ring(8, 17).kind
        'negacyclic'
        """
        return self._kind

    @property
    def moduli(self) -> tuple[int, ...]:
        """The moduli, one a limb.

        >>> Ring(8, [17, 97]).moduli
        (17, 97)
        """
        return self._moduli

    @cached_property
    def modulus(self) -> int:
        """Q, the product of the moduli.

        >>> Ring(8, [17, 97]).modulus
        1649
        """
        return prod(self._moduli)

    @cached_property
    def basis(self) -> Basis:
        """The moduli and how residues are stored, as the backends take them.

        >>> Ring(8, 2**100).basis.words  # of 64 bits for a residue
        2
        """
        return basis_of(self._moduli)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of residues: uint32 where every modulus is at most 2**32, else uint64.

        >>> Ring(8, [17, 97]).dtype, Ring(8, 2**64).dtype
        (dtype('uint32'), dtype('uint64'))
        """
        return self.basis.dtype

    @property
    def rows(self) -> int:
        """Length of the limb axis of data: the number of moduli, or the words of one modulus above 2**64.

        >>> Ring(8, [17, 97, 113]).rows, Ring(8, 2**100).rows
        (3, 2)
        """
        return self.basis.rows

    @cached_property
    def leaf_size(self) -> int | None:
        """Number of coefficients at which the transform stops: 1 if it is complete; None without a transform.

        Evaluated values of a complete transform are values at points. Of an incomplete one they are residues
        modulo X^leaf_size - c, the leaves of the tree of factors of X^n ± 1.
        Source: docs/math.md, "Incomplete transforms".

        >>> Ring(256, 12289).leaf_size, Ring.preset("ml-kem").leaf_size, Ring(256, 2**32).leaf_size
        (1, 2, None)
        """
        return least_leaf_size(self._n, self._moduli, self._kind)

    @property
    def has_eval(self) -> bool:
        """Whether there is an evaluation domain, of a complete or an incomplete transform.

        >>> Ring(8, 17).has_eval, Ring(8, 2**32).has_eval
        (True, False)
        """
        return self.leaf_size is not None

    @cached_property
    def roots(self) -> tuple[int, ...] | None:
        """The root of unity of each limb: psi of order 2N (negacyclic) or omega of order N (cyclic).

        N = n / leaf_size. None for a ring without a transform.

        Raises:
            TablesTooLarge: the tables of the transform do not fit in memory, so no root is searched for.

        Cost: on first use N steps a limb for "minimal" roots, and a primitive root of each prime, which a
        file keeps (half a second to import SymPy for a new one); then a look-up.

        >>> Ring(4, [17, 97]).roots
        (2, 33)
        """
        if self.leaf_size is None:
            return None
        if isinstance(self._root, tuple):
            return self._root
        if self._root == "minimal":  # the search takes as many steps as tables have entries
            check_memory(table_bytes(self._n, self._moduli, self.leaf_size), self._n, self._moduli)
        order = root_order(self._n // self.leaf_size, self._kind)
        return tuple(root_of_unity(q, order, self._root) for q in self._moduli)

    @cached_property
    def transform(self) -> NttPlan:
        """The plan of the transform, built on first use: its tables are those of the limbs' primes.

        Raises:
            NotNTTFriendly: the ring has no transform.
            TablesTooLarge: its tables do not fit in memory.

        >>> Ring.preset("ml-kem").transform.points
        128
        """
        if self.leaf_size is None:
            raise NotNTTFriendly(self._why_no_transform())
        assert self.roots is not None
        return plan_ntt(self._n, self._moduli, self._kind, self.leaf_size, self.roots)

    @property
    def product(self) -> Product:
        """How coefficients are multiplied: "auto", "fft" or "ntt", as given to Ring.

        >>> Ring(8, 17).product
        'auto'
        """
        return self._product

    def product_plan(self, product: Product = "auto", device: str | None = None) -> Plan:
        """The plan by which coefficients are multiplied on a device.

        Args:
            product: "ntt" or "fft" for the plan of that way, "auto" for the ring's.
            device: its full name, such as "cuda:0"; by default the current one.

        Raises:
            ParameterError: product is another word, or "fft" with a modulus above 2**64.
            PrecisionError: "fft", and no transform in doubles is proven to be exact.
            TablesTooLarge: its tables do not fit in memory.

        Cost: on first use the tables are built; then a look-up.

        >>> R = Ring(8, 2**32)
        >>> [type(R.product_plan(product)).__name__ for product in ("ntt", "fft")]
        ['AuxiliaryPlan', 'FftProductPlan']
        """
        device = current_device() if device is None else device
        plan = self._products.get((product, device))
        if plan is None:
            check_product(product)
            way, _ = choose(self, product, device)
            plan = plan_product(self, way)
            self._products[product, device] = plan
        return plan

    @cached_property
    def calls(self) -> Calls:
        """Functions that repeat a call quickly, by operation and shapes of operands (ops/calls.py)."""
        return {}

    @cached_property
    def conversions(self) -> dict[tuple[Any, ...], Any]:
        """Plans that values of this ring have used: for conversions, key switches and four steps."""
        return {}

    @cached_property
    def _products(self) -> dict[tuple[Product, str], Plan]:
        return {}

    @property
    def multiplies_evaluated(self) -> bool:
        """Whether matmul, dot, einsum and powers of coefficients go through the ring's own transform.

        They do not with product="fft", nor for a modulus above 2**64, which takes auxiliary primes.

        >>> Ring(8, 17).multiplies_evaluated, Ring(8, 17, product="fft").multiplies_evaluated
        (True, False)
        """
        return not self.basis.wide and self.has_eval and self._product != "fft"

    def _why_no_transform(self) -> str:
        from .ops.explain import why_no_transform  # here: see explain

        return why_no_transform(self._n, self._moduli, self._kind)

    def _checked_roots(self, root: Any) -> tuple[int, ...]:
        if isinstance(root, str):
            raise BadRoot(f"root: {root!r} must be 'minimal', 'generator', an int or one int a modulus")
        given = tuple(integer(x, "root") for x in sequence(root))
        if len(given) != len(self._moduli):
            raise BadRoot(f"root: {len(given)} roots for {len(self._moduli)} moduli; give one a modulus")
        if self.leaf_size is None:
            raise BadRoot(f"root: {shown(root)} means nothing here: {self._why_no_transform()}")
        order = root_order(self._n // self.leaf_size, self._kind)
        for x, q in zip(given, self._moduli, strict=True):
            if not 0 < x < q:
                raise BadRoot(f"root: {shown(x)} must be in [1, q) for q = {shown(q)}; reduce it mod q")
            if not has_order(x, order, q):
                raise BadRoot(
                    f"root: {shown(x)} has not the order {order} mod {shown(q)}; "
                    "root='minimal' finds one that does"
                )
        return given

    # ---- limbs ----

    def __getitem__(self, key: slice | Iterable[int]) -> Ring:
        """The ring of some of the limbs, in the order given; it shares the tables of their primes.

        Args:
            key: a slice, or a list of the limbs' numbers: R[:k], R[a:b], R[[2, 0]].

        Raises:
            ParameterError: the key is no slice or list, chooses no limb, or one twice.
            IndexError: there is no such limb.
            BadRoot: the roots of this ring were given, and the transform modulo the chosen limbs alone has
                smaller leaves, which need other roots.

        Cost: 1 us, no tables; the same key gives the same object.

        >>> R = Ring(8, [17, 97, 113])
        >>> R[:2], R[[2, 0]].moduli
        (Ring(8, [17, 97]), (113, 17))
        """
        chosen = checked_limbs(key, len(self._moduli))
        part = self._parts.get(chosen)
        if part is None:
            if chosen == tuple(range(len(self._moduli))):
                return self
            moduli = tuple(self._moduli[i] for i in chosen)
            given = self._root if isinstance(self._root, str) else tuple(self._root[i] for i in chosen)
            part = keep(self._parts, chosen, self._derived(moduli, given, self._product), _KEPT)
        return part

    __iter__ = None  # without this, Python would iterate by __getitem__ of ints, which chooses no limbs

    def join(self, other: Ring) -> Ring:
        """The ring of this ring's limbs, then the other's; it shares the tables of their primes.

        Args:
            other: a ring of the same degree and kind, with moduli coprime to this one's.

        Raises:
            RingMismatch: another degree or kind.
            ParameterError: moduli with a common factor or above 2**64, one ring with product="ntt" and one
                with "fft", or other is no Ring.
            BadRoot: roots of one ring were given, and the joined ring's transform has leaves of another size,
                which need other roots.

        Cost: 3 us, no tables; the same ring gives the same object.

        >>> Ring(8, [17, 97]).join(Ring(8, 113))
        Ring(8, [17, 97, 113])
        """
        if not isinstance(other, Ring):
            raise ParameterError(f"other: {type(other).__name__}, must be a Ring")
        joined = self._joined.get(other)
        return keep(self._joined, other, self._join(other), _KEPT) if joined is None else joined

    def _join(self, other: Ring) -> Ring:
        if (self._n, self._kind) != (other._n, other._kind):
            raise RingMismatch(f"join: {self!r} and {other!r} differ in degree or kind")
        if "auto" not in (self._product, other._product) and self._product != other._product:
            raise ParameterError(
                f"join: product={self._product!r} and product={other._product!r}; make one of them 'auto'"
            )
        moduli = checked_moduli(self._moduli + other._moduli)
        product = other._product if self._product == "auto" else self._product
        if isinstance(self._root, str) and self._root == other._root:
            return self._derived(moduli, self._root, product)
        if least_leaf_size(self._n, moduli, self._kind) is None:
            return self._derived(moduli, "minimal", product)  # without a transform there are no roots
        if self.leaf_size != other.leaf_size:
            raise BadRoot(
                f"join: transforms of {self!r} and {other!r} end at leaves of {self.leaf_size} and "
                f"{other.leaf_size} coefficients; roots given for one do not serve the other"
            )
        assert self.roots is not None and other.roots is not None
        return self._derived(moduli, self.roots + other.roots, product)

    def _derived(self, moduli: tuple[int, ...], root: RootRule | tuple[int, ...], product: Product) -> Ring:
        """A ring of checked moduli, of this ring's degree and kind; BadRoot where given roots do not fit."""
        ring = Ring.__new__(Ring)
        ring.__dict__.update(_n=self._n, _kind=self._kind, _moduli=moduli, _product=product, _root=root)
        if not isinstance(root, str) and ring.leaf_size != self.leaf_size:
            raise BadRoot(
                f"root: given for leaves of {self.leaf_size} coefficients, but the transform modulo "
                f"{shown(list(moduli))} ends at {ring.leaf_size}; Ring(n, moduli, root=...) takes others"
            )
        return ring

    @cached_property
    def _parts(self) -> dict[tuple[int, ...], Ring]:
        return {}

    @cached_property
    def _joined(self) -> dict[Ring, Ring]:
        return {}

    # ---- identity ----

    def __eq__(self, other: object) -> bool:
        """Whether two rings have the same degree, kind, moduli in their order, `product` and roots.

        Cost: a few comparisons; for different rules for roots, on first use what `roots` costs.

        >>> Ring(4, 17) == Ring(4, [17], root=2), Ring(4, 17) == Ring(4, 17, kind="cyclic")
        (True, False)
        """
        if self is other:
            return True
        if not isinstance(other, Ring):
            return NotImplemented
        if (self._n, self._moduli, self._kind) != (other._n, other._moduli, other._kind):
            return False
        if self._product != other._product:
            return False
        return self._root == other._root or self.roots == other.roots

    def __hash__(self) -> int:
        return hash((self._n, self._moduli, self._kind))

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_ring, (self._n, self._moduli, self._kind, self._root, self._product)

    def __repr__(self) -> str:
        moduli = shown(self._moduli[0]) if len(self._moduli) == 1 else str(list(self._moduli[:3]))
        if len(self._moduli) > 3:
            moduli = f"{moduli[:-1]}, ... {len(self._moduli)} moduli]"
        kind = "" if self._kind == "negacyclic" else ", kind='cyclic'"
        root = "" if self._root == "minimal" else f", root={shown(self._root)}"
        product = "" if self._product == "auto" else f", product={self._product!r}"
        return f"Ring({self._n}, {moduli}{kind}{root}{product})"

    def _repr_html_(self) -> str:
        from .ops.show import ring_table  # here: see explain

        return ring_table(self)

    def _repr_latex_(self) -> str:
        q = shown(self._moduli[0]) if len(self._moduli) == 1 else "Q"
        return rf"$\mathbb{{Z}}_{{{q}}}[X]/(X^{{{self._n}}} {'+' if self._kind == 'negacyclic' else '-'} 1)$"

    def explain(self) -> str:
        """How this ring multiplies on the current device, as text: way, word, root, tables and memory.

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
        from .ops.explain import explain  # here, so that importing polygpu stays fast

        return explain(self)

    # ---- elements ----

    def __call__(self, x: Any) -> Poly:
        """The elements with these integers as coefficients, reduced modulo every limb.

        Args:
            x: ints of any size and sign, as nested lists or an array of integers or Python ints, with axes
                (*batch, at most n). Coefficient of X^0 first; missing ones are zero. A single int is a
                constant. Arrays of PyTorch, JAX and others with `__dlpack__` are read where they lie. An
                array on a GPU stays there, all else goes to the current device.

        Returns a Poly in coefficients.

        Raises:
            CoefficientError: floats, bools, strings, None, complex: nothing is rounded or guessed.
            ParameterError: more than n coefficients.
            OutOfHostMemory, OutOfDeviceMemory: it does not fit.

        Cost: one pass for machine integers; about 0.1 us a coefficient and limb for Python ints.

        >>> Ring(4, 17)([-1, 2**70]).to_bigints().tolist()
        [16, 13, 0, 0]
        >>> Ring(4, 17)([[1, 2], [3, 4], [5, 6]]).shape
        (3,)
        """
        return Poly._wrap(self, from_integers(self.basis, self._n, x, backend()), "coef")

    def from_residues(self, data: Any, domain: Domain = "coef", *, copy: bool | None = None) -> Poly:
        """The elements with these residues; shares the array where it can.

        Args:
            data: integers (*batch, rows, n), canonical, that is in [0, q). For one modulus above 2**64 its
                rows are the words of the residues, the lowest first. The memory of arrays of PyTorch, JAX and
                others with `__dlpack__` is shared as that of NumPy's and CuPy's.
            domain: "coef", or "eval" in the ring's bit-reversed order.
            copy: None copies only where dtype or layout make it necessary, True always, False never.

        Raises:
            ParameterError: a wrong shape, or copy=False where a copy is necessary.
            CoefficientError: no integers.
            DomainError: another domain. NotNTTFriendly: "eval", and the ring has no transform.
            NotCanonical: a residue is outside [0, q). Values are looked at when they are converted from
                another dtype, and inside `with polygpu.debug()`.

        Cost: nothing for a C-contiguous array of the ring's dtype, else one pass.

        >>> Ring(2, [5, 7]).from_residues([[4, 0], [6, 0]]).to_bigints(centered=True).tolist()
        [-1, 0]
        """
        domain = self._checked_domain(domain)
        return Poly._wrap(self, from_residues(self.basis, self._n, data, copy), domain)

    def _checked_domain(self, domain: object) -> Domain:
        if not isinstance(domain, str) or domain not in ("coef", "eval"):
            raise DomainError(f"domain: {domain!r} must be 'coef' or 'eval'")
        if domain == "eval":
            if not self.has_eval:
                raise NotNTTFriendly(self._why_no_transform())
            return "eval"
        return "coef"

    def from_slots(self, values: Any) -> Poly:
        """The evaluated elements whose slots are these integers, the inverse of Poly.to_slots.

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
        return Poly._wrap(self, from_slots(self, values, backend()), "eval")

    def zeros(self, batch: int | tuple[int, ...] = ()) -> Poly:
        """A batch of zeros, in coefficients, on the current device.

        Args:
            batch: batch shape, an int or several; a single polynomial by default.

        Raises:
            ParameterError: a negative size.
            OutOfHostMemory, OutOfDeviceMemory: it does not fit.

        Cost: one pass.

        >>> Ring(4, 17).zeros((2, 3)).shape
        (2, 3)
        """
        shape = (*checked_batch(batch), self.rows, self._n)
        return Poly._wrap(self, empty(backend(), shape, self.dtype, zero=True), "coef")

    def ones(self, batch: int | tuple[int, ...] = ()) -> Poly:
        """A batch of the ring's one, in coefficients, on the current device.

        Args:
            batch: as of zeros.

        Raises:
            ParameterError, OutOfHostMemory, OutOfDeviceMemory: as zeros.

        Cost: one pass.

        >>> Ring(4, 17).ones(2).to_bigints().tolist()
        [[1, 0, 0, 0], [1, 0, 0, 0]]
        """
        return Poly._wrap(self, ones(self.basis, self._n, checked_batch(batch), backend()), "coef")

    def monomial(self, k: int, coefficient: int = 1) -> Poly:
        """coefficient * X^k, in coefficients, on the current device.

        Args:
            k: any int; X^n is -1 (negacyclic) or 1 (cyclic).
            coefficient: any int.

        Raises:
            NotAnInteger: k or coefficient is no int.

        Cost: one pass over n coefficients.

        >>> Ring(4, 17).monomial(-1).to_bigints(centered=True).tolist()
        [0, 0, 0, -1]
        """
        turns, at = divmod(integer(k, "k"), self._n)
        sign = -1 if self._kind == "negacyclic" and turns % 2 else 1
        x = sign * integer(coefficient, "coefficient")
        return Poly._wrap(self, monomial(self.basis, self._n, x, at, backend()), "coef")

    def random(self, batch: Batch = (), seed: Seed = None, *, start: int = 0) -> Poly:
        """Elements uniform in the ring, in coefficients, from a ChaCha20 stream, on the current device.

        A residue is at a statistical distance of at most 2^-64 from uniform. All rings draw from the one
        stream of a seed: independent values need different seeds or, in one ring, a different `start`.

        The samplers ternary, binomial, gaussian and tuniform take the same batch, seed and start. They draw
        one integer for a coefficient and reduce it modulo every limb, so that it does not depend on the
        moduli. Each sampler, with its parameter and degree, has a stream of its own for a seed.

        Args:
            batch: batch shape, an int or several; a single polynomial by default.
            seed: an int, bytes or str gives the same values on every device and in every run, however the
                batch is cut. None takes a key from the operating system.
            start: number of the first polynomial in the stream: a batch of 8 is two of 4 with start 0 and 4.

        Raises:
            ParameterError: a negative size, a start outside [0, 2**48), more polynomials than the stream has,
                or seed=None in a call that polygpu.capture records.
            NotAnInteger: a seed of another type.
            OutOfHostMemory, OutOfDeviceMemory: it does not fit.

        Cost: 8 (W + 1) bytes of stream a coefficient and limb, where a residue has W words; 5 ns on a core
        for W = 1.
        Source: Bernstein 2008, "ChaCha, a variant of Salsa20"; ops/sampling.py fixes the stream, and
        docs/math.md, "Random elements", has the distance.

        >>> R = Ring(4, 97)
        >>> R.random(2, seed=1)[1] == R.random(seed=1, start=1)
        True
        """
        return Poly._wrap(self, sampling.uniform(self.basis, self._n, batch, seed, start), "coef")

    def ternary(
        self, batch: Batch = (), weight: int | None = None, seed: Seed = None, *, start: int = 0
    ) -> Poly:
        """Elements with coefficients uniform in {-1, 0, 1}, or with exactly `weight` of them not 0.

        Args:
            batch: batch shape.
            weight: how many coefficients are 1 or -1, with uniform signs and places; None for independent
                uniform coefficients.
            seed: as of random.
            start: as of random.

        Raises:
            ParameterError: a weight outside [0, n]; all else as random.

        Statistical distance from this distribution: at most 2^-64 a coefficient; with a weight n 2^-63 a
        polynomial.
        Cost: 8 bytes of stream a coefficient. With a weight the time depends on the values drawn.
        Source: docs/math.md, "Small random elements".

        >>> Ring(4, [17, 97]).ternary(weight=2, seed=1).to_bigints(centered=True).tolist()
        [-1, 0, 1, 0]
        """
        return Poly._wrap(self, sampling.ternary(self.basis, self._n, batch, weight, seed, start), "coef")

    def binomial(self, eta: int, batch: Batch = (), seed: Seed = None, *, start: int = 0) -> Poly:
        """Elements with centred binomial coefficients: the sum of eta random bits minus that of eta others.

        Their variance sigma^2 is eta / 2. The distribution is exact.

        Args:
            eta: from 1 to 32; ML-KEM takes 2 and 3.
            batch: batch shape.
            seed: as of random.
            start: as of random.

        Raises:
            ParameterError: eta outside [1, 32]; all else as random.

        Cost: 1, 2, 4 or 8 bytes of stream a coefficient, the least that hold 2 eta bits.
        Source: Alkim et al. 2016, "Post-quantum key exchange".

        >>> Ring(4, 17).binomial(2, seed=1).to_bigints(centered=True).tolist()
        [-1, 1, -1, -1]
        """
        return Poly._wrap(self, sampling.binomial(self.basis, self._n, batch, eta, seed, start), "coef")

    def gaussian(self, sigma: float, batch: Batch = (), seed: Seed = None, *, start: int = 0) -> Poly:
        """Elements with discrete Gaussian coefficients: P(z) is proportional to exp(-z^2 / (2 sigma^2)).

        Args:
            sigma: an int, float or Fraction from 0.5 to 2**20, taken exactly.
            batch: batch shape.
            seed: as of random.
            start: as of random.

        Raises:
            ParameterError: sigma is no number or outside [0.5, 2**20]; all else as random.

        Statistical distance from this distribution, a coefficient: at most 2^-58 for sigma up to 4, 2^-56 up
        to 16, 2^-53 for every sigma.
        Cost: 8 bytes of stream a coefficient for sigma up to 16, 16 bytes up to 1024, else 32. No branch or
        address depends on a value.
        Source: docs/math.md, "Small random elements"; Micciancio & Walter 2017 for sigma above 16.

        >>> Ring(4, 97).gaussian(3.2, seed=1).to_bigints(centered=True).tolist()
        [0, -4, -3, 5]
        """
        return Poly._wrap(self, sampling.gaussian(self.basis, self._n, batch, sigma, seed, start), "coef")

    def tuniform(self, b: int, batch: Batch = (), seed: Seed = None, *, start: int = 0) -> Poly:
        """Elements with coefficients in [-2^b, 2^b], nearly uniform, as the noise of TFHE.

        The two ends have probability 2^-(b + 2), all integers between them 2^-(b + 1). The distribution is
        exact.

        Args:
            b: from 0 to 62.
            batch: batch shape.
            seed: as of random.
            start: as of random.

        Raises:
            ParameterError: b outside [0, 62]; all else as random.

        Cost: 1, 2, 4 or 8 bytes of stream a coefficient, the least that hold b + 2 bits.
        Source: TFHE-rs, Zama.

        >>> Ring(4, 97).tuniform(3, seed=1).to_bigints(centered=True).tolist()
        [2, -3, 5, 1]
        """
        return Poly._wrap(self, sampling.tuniform(self.basis, self._n, batch, b, seed, start), "coef")

    # ---- the evaluation domain ----

    def eval_points(self, limb: int = 0) -> np.ndarray[Any, np.dtype[Any]]:
        """The points x_k of the evaluation domain: entry k of an evaluated row is a(x_k).

        x_k = psi^(2 br(k) + 1) (negacyclic) or omega^br(k) (cyclic), br the reversal of log2 N bits. For an
        incomplete transform they are the constants c_k of its leaves X^leaf_size - c_k.

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
        return eval_points(self, limb)

    def natural_order(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Indices that put an evaluated row, or its leaves, in natural order: index = ring.natural_order().

        Entry k of row[index] is then a(psi^(2k + 1)) (negacyclic) or a(omega^k) (cyclic).

        Returns int64 (n / leaf_size,) in host memory, the bit reversal.

        Raises:
            NotNTTFriendly: the ring has no transform. TablesTooLarge: its tables do not fit in memory.

        Cost: the table of the bit reversal, which is kept.

        >>> Ring(8, 17).natural_order().tolist()
        [0, 4, 2, 6, 1, 5, 3, 7]
        """
        return bit_reversal(self.transform.points)

    # ---- named rings ----

    @classmethod
    def preset(cls, name: str, n: int | None = None, *, product: Product = "auto") -> Ring:
        """A ring of a standard, or over a field of proof systems.

        Args:
            name: of standards "ml-kem", "ml-dsa", "falcon-512" and "falcon-1024". Of fields "babybear",
                "koalabear" and "goldilocks": these rings are cyclic, with roots that are powers of the
                field's least generator.
            n: degree, which only rings over fields let you choose; 2**16 by default.
            product: as of Ring.

        Raises:
            ParameterError: no such preset, and the message names the closest; or a degree other than the
                standard's.

        Cost: nothing of a transform, no tables.
        Source: FIPS 203, FIPS 204, Falcon specification 1.2.

        >>> Ring.preset("ml-kem").roots
        (17,)
        >>> Ring.preset("babybear", 2**10)
        Ring(1024, 2013265921, kind='cyclic', root='generator')
        """
        return cls(**parameters(name, n), product=product)


def _make_ring(
    n: int, moduli: tuple[int, ...], kind: Kind, root: RootRule | tuple[int, ...], product: Product = "auto"
) -> Ring:
    return Ring(n, moduli, kind=kind, root=root, product=product)
