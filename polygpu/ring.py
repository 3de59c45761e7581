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

_KEPT = 128  # rings of some limbs, or joined ones, that a ring keeps


class Ring:
    """The ring Z_Q[X]/(X^n + 1) ("negacyclic") or Z_Q[X]/(X^n - 1) ("cyclic").

    Frozen and hashable; equal parameters are the same ring. Tables are built when first needed and
    shared by equal rings.

    Args:
        n: degree, any int of at least 1.
        moduli: one int of any size from 2, or several pairwise coprime ints, each at most 2**64: the
            limbs of an RNS ring with Q their product.
        kind: "negacyclic" or "cyclic".
        root: which root of unity the evaluation domain uses, for prime moduli: "minimal" (the
            smallest of its order: what SEAL, OpenFHE, ML-KEM and ML-DSA use), "generator" (a power of
            the least primitive root), an int, or one int a limb.
        product: how coefficients are multiplied, with the same result: "ntt" through transforms modulo
            primes, the ring's own or auxiliary ones; "fft" through transforms in doubles, exact by a
            proven bound, for moduli up to 2**64; "auto" takes a complete transform of the ring's own, else
            what was measured to be faster on the device.

    Raises:
        ParameterError: n, a modulus, kind or product is outside its rule.
        BadRoot: a given root has not the exact order that the transform needs.

    >>> ring = Ring(8, 17)
    >>> (ring([0, 1]) * ring([0] * 7 + [1])).to_bigints().tolist()
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
        # Straight into __dict__, as cached_property writes: plain assignment is refused.
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
        """Degree of the modulus polynomial X^n ± 1; coefficients of an element."""
        return self._n

    @property
    def kind(self) -> Kind:
        """ "negacyclic" or "cyclic"."""
        return self._kind

    @property
    def moduli(self) -> tuple[int, ...]:
        """The moduli, one a limb."""
        return self._moduli

    @cached_property
    def modulus(self) -> int:
        """Q, the product of the moduli."""
        return prod(self._moduli)

    @cached_property
    def basis(self) -> Basis:
        """Moduli and storage, as the backends see them."""
        return basis_of(self._moduli)

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint32 where every modulus is at most 2**32, else uint64."""
        return self.basis.dtype

    @property
    def rows(self) -> int:
        """Length of the limb axis: the number of moduli, or the words of one modulus above 2**64."""
        return self.basis.rows

    @cached_property
    def leaf_size(self) -> int | None:
        """Coefficients of a leaf of the transform: 1 complete, 2 for ML-KEM, None without a transform."""
        return least_leaf_size(self._n, self._moduli, self._kind)

    @property
    def has_eval(self) -> bool:
        """Whether there is an evaluation domain, complete or not."""
        return self.leaf_size is not None

    @cached_property
    def roots(self) -> tuple[int, ...] | None:
        """The root of unity of each limb: psi of order 2N or omega of order N, N = n / leaf_size."""
        if self.leaf_size is None:
            return None
        if isinstance(self._root, tuple):
            return self._root
        if self._root == "minimal":  # the search takes as many steps as the tables have entries
            check_memory(table_bytes(self._n, self._moduli, self.leaf_size), self._n, self._moduli)
        order = root_order(self._n // self.leaf_size, self._kind)
        return tuple(root_of_unity(q, order, self._root) for q in self._moduli)

    @cached_property
    def transform(self) -> NttPlan:
        """The plan of the transform; built at first use.

        Raises:
            NotNTTFriendly: there is none.
            TablesTooLarge: its tables do not fit in memory.
        """
        if self.leaf_size is None:
            raise NotNTTFriendly(self._why_no_transform())
        assert self.roots is not None
        return plan_ntt(self._n, self._moduli, self._kind, self.leaf_size, self.roots)

    @property
    def product(self) -> Product:
        """How coefficients are multiplied: "auto", "fft" or "ntt"."""
        return self._product

    def product_plan(self, product: Product = "auto", device: str | None = None) -> Plan:
        """The plan by which coefficients are multiplied on a device, by default the current one.

        Raises:
            PrecisionError, ParameterError: no FFT is proven to be exact.
            TablesTooLarge: what it needs does not fit in memory.
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
        """What is ready for calls that come again (ops/calls.py)."""
        return {}

    @cached_property
    def conversions(self) -> dict[tuple[Any, ...], Any]:
        """Plans of conversions to other bases, key switches and steps that this ring's values have taken."""
        return {}

    @cached_property
    def _products(self) -> dict[tuple[Product, str], Plan]:
        return {}

    @property
    def multiplies_evaluated(self) -> bool:
        """Whether products go through the ring's own transform; a wide modulus takes auxiliary primes."""
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
            key: a slice, or the numbers of the limbs: R[:k], R[a:b], R[[2, 0]].

        Raises:
            ParameterError: no limb, or one twice.
            IndexError: no such limb.
            BadRoot: the chosen limbs have a more complete transform, for which the given roots do not serve.

        Cost: nothing of a transform; the same key gives the same object.

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

    __iter__ = None  # limbs are chosen by slices and lists alone

    def join(self, other: Ring) -> Ring:
        """The ring of this ring's limbs, then the other's; it shares the tables of their primes.

        Raises:
            RingMismatch: another degree or kind.
            ParameterError: moduli with a common factor or above 2**64; two rules for products.
            BadRoot: the joined ring's transform is less complete, and given roots do not serve it.

        Cost: nothing of a transform; the same ring gives the same object.

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
            return self._derived(moduli, "minimal", product)  # there roots mean nothing
        if self.leaf_size != other.leaf_size:
            raise BadRoot(
                f"join: transforms of {self!r} and {other!r} end at leaves of {self.leaf_size} and "
                f"{other.leaf_size} coefficients; roots given for one do not serve the other"
            )
        assert self.roots is not None and other.roots is not None
        return self._derived(moduli, self.roots + other.roots, product)

    def _derived(self, moduli: tuple[int, ...], root: RootRule | tuple[int, ...], product: Product) -> Ring:
        """A ring of checked moduli, of this ring's degree and kind; given roots must fit."""
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

    def _repr_latex_(self) -> str:
        q = shown(self._moduli[0]) if len(self._moduli) == 1 else "Q"
        return rf"$\mathbb{{Z}}_{{{q}}}[X]/(X^{{{self._n}}} {'+' if self._kind == 'negacyclic' else '-'} 1)$"

    def explain(self) -> str:
        """How this ring multiplies: path, word, root, tables and memory, as text.

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
        from .ops.explain import explain  # here: the import of polygpu is to be light

        return explain(self)

    # ---- elements ----

    def __call__(self, x: Any) -> Poly:
        """Integers to an element (coefficient domain), reduced modulo every limb.

        Args:
            x: ints of any size and sign, a nested list, or an integer or object array with axes
                (*batch, at most n); missing coefficients are zero. A single int is a constant.

        Raises:
            CoefficientError: floats, bools, strings, None, complex: nothing is rounded or guessed.
            ParameterError: more than n coefficients.

        Cost: one pass for machine integers; about 0.1 us a coefficient and limb for Python ints.

        >>> Ring(4, 17)([-1, 2**70]).to_bigints().tolist()
        [16, 13, 0, 0]
        """
        return Poly._wrap(self, from_integers(self.basis, self._n, x, backend()), "coef")

    def from_residues(self, data: Any, domain: Domain = "coef", *, copy: bool | None = None) -> Poly:
        """An element from its residues, sharing the array where it can.

        Args:
            data: integers (*batch, rows, n), canonical; for one modulus above 2**64 its
                little-endian words.
            domain: "coef", or "eval" in the ring's bit-reversed order.
            copy: None copies only where dtype or layout make it necessary, True always, False never.

        Raises:
            ParameterError: wrong shape, or copy=False where a copy is necessary.
            CoefficientError: no integers.
            NotCanonical: a residue outside [0, q), where values were looked at: when they are
                converted from another dtype, or inside `with polygpu.debug()`.

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
        """The evaluated element whose slots are these integers, the inverse of Poly.to_slots.

        Sums and products of elements are those of their slots: BFV encrypts such elements modulo t, which
        its papers call batching.

        Args:
            values: integers (*batch, n) of any size, taken modulo q.

        Raises:
            NotNTTFriendly: several moduli, or none of 1 mod 2n. ParameterError: another length.
            CoefficientError: no integers.

        Cost: one pass. Source: Smart, Vercauteren 2011/133.

        >>> R = Ring(4, 17)
        >>> (R.from_slots([1, 2, 3, 4]) * R.from_slots([5, 6, 7, 8])).to_slots().tolist()
        [5, 12, 4, 15]
        """
        return Poly._wrap(self, from_slots(self, values, backend()), "eval")

    def zeros(self, batch: int | tuple[int, ...] = ()) -> Poly:
        """A batch of zeros."""
        shape = (*checked_batch(batch), self.rows, self._n)
        return Poly._wrap(self, empty(backend(), shape, self.dtype, zero=True), "coef")

    def ones(self, batch: int | tuple[int, ...] = ()) -> Poly:
        """A batch of the ring's one."""
        return Poly._wrap(self, ones(self.basis, self._n, checked_batch(batch), backend()), "coef")

    def monomial(self, k: int, coefficient: int = 1) -> Poly:
        """coefficient * X^k for any int k: X^n is -1 or 1.

        >>> Ring(4, 17).monomial(-1).to_bigints(centered=True).tolist()
        [0, 0, 0, -1]
        """
        turns, at = divmod(integer(k, "k"), self._n)
        sign = -1 if self._kind == "negacyclic" and turns % 2 else 1
        x = sign * integer(coefficient, "coefficient")
        return Poly._wrap(self, monomial(self.basis, self._n, x, at, backend()), "coef")

    def random(self, batch: Batch = (), seed: Seed = None, *, start: int = 0) -> Poly:
        """Elements uniform in the ring, from a ChaCha20 stream; made on the current device.

        Args:
            batch: batch shape.
            seed: int, bytes or str: the same values on every device, however the batch is cut;
                None: from the operating system.
            start: number of the first polynomial: a batch of 8 equals two of 4 with start 0 and 4.

        Cost: 8 (W + 1) bytes of stream a coefficient and limb, W words of a residue.
        Source: ops/sampling.py fixes the stream. The samplers below take the same batch, seed and start,
        give coefficients, the same integer in all limbs, whatever the moduli, and share no stream.

        >>> R = Ring(4, 97)
        >>> R.random(2, seed=1)[1] == R.random(seed=1, start=1)
        True
        """
        return Poly._wrap(self, sampling.uniform(self.basis, self._n, batch, seed, start), "coef")

    def ternary(
        self, batch: Batch = (), weight: int | None = None, seed: Seed = None, *, start: int = 0
    ) -> Poly:
        """Coefficients uniform in {-1, 0, 1}, or exactly `weight` not 0, signs and places uniform.

        Raises: ParameterError for a weight outside [0, n]. Cost: 8 bytes of stream a coefficient; with a
        weight the time depends on the values. Distance from the ideal: 2^-64 a coefficient; with a weight
        n 2^-63 a polynomial. Source: docs/math.md, "Small random elements".

        >>> Ring(4, [17, 97]).ternary(weight=2, seed=1).to_bigints(centered=True).tolist()
        [-1, 0, 1, 0]
        """
        return Poly._wrap(self, sampling.ternary(self.basis, self._n, batch, weight, seed, start), "coef")

    def binomial(self, eta: int, batch: Batch = (), seed: Seed = None, *, start: int = 0) -> Poly:
        """Centred binomial coefficients, the sum of eta bits less that of eta others: sigma^2 = eta / 2.

        Raises: ParameterError for eta outside [1, 32]. Exact. Cost: 1, 2, 4 or 8 bytes of stream a
        coefficient, the least that hold 2 eta bits. Source: Alkim et al. 2016, "Post-quantum key exchange".

        >>> Ring(4, 17).binomial(2, seed=1).to_bigints(centered=True).tolist()
        [-1, 1, -1, -1]
        """
        return Poly._wrap(self, sampling.binomial(self.basis, self._n, batch, eta, seed, start), "coef")

    def gaussian(self, sigma: float, batch: Batch = (), seed: Seed = None, *, start: int = 0) -> Poly:
        """Discrete Gaussian coefficients: P(z) in proportion to exp(-z^2 / (2 sigma^2)).

        sigma: an int, float or Fraction, taken exactly. Raises: ParameterError outside [0.5, 2**20]. Distance
        from the ideal, a coefficient: 2^-58 to sigma = 4, 2^-56 to 16, 2^-53 for all. Cost: 8 bytes of stream
        to sigma = 16, 16 to 1024, else 32; no branch or address depends on a value.
        Source: docs/math.md, "Small random elements"; Micciancio & Walter 2017 for the wide ones.

        >>> Ring(4, 97).gaussian(3.2, seed=1).to_bigints(centered=True).tolist()
        [0, -4, -3, 5]
        """
        return Poly._wrap(self, sampling.gaussian(self.basis, self._n, batch, sigma, seed, start), "coef")

    def tuniform(self, b: int, batch: Batch = (), seed: Seed = None, *, start: int = 0) -> Poly:
        """Coefficients on [-2^b, 2^b]: the ends with probability 2^-(b + 2), all others with 2^-(b + 1).

        Raises: ParameterError for b outside [0, 62]. Exact. Cost: 1, 2, 4 or 8 bytes of stream a coefficient,
        the least that hold b + 2 bits. Source: the noise of TFHE-rs, Zama.

        >>> Ring(4, 97).tuniform(3, seed=1).to_bigints(centered=True).tolist()
        [2, -3, 5, 1]
        """
        return Poly._wrap(self, sampling.tuniform(self.basis, self._n, batch, b, seed, start), "coef")

    # ---- the evaluation domain ----

    def eval_points(self, limb: int = 0) -> np.ndarray[Any, np.dtype[Any]]:
        """The points of the evaluation domain: entry k of a transformed row is a(x_k).

        x_k = psi^(2 br(k) + 1) or omega^br(k). For an incomplete transform the constants c_k of its
        leaves X^leaf_size - c_k. Python ints for a modulus above 2**64.

        >>> Ring(4, 17).eval_points().tolist()
        [2, 15, 8, 9]
        """
        return eval_points(self, limb)

    def natural_order(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Indices that put a transformed row, or its leaves, in natural order.

        With them data[..., index][k] is a(psi^(2k+1)) (negacyclic) or a(omega^k) (cyclic).
        """
        return bit_reversal(self.transform.points)

    # ---- named rings ----

    @classmethod
    def preset(cls, name: str, n: int | None = None, *, product: Product = "auto") -> Ring:
        """A ring of a standard, or of a field of proof systems.

        "ml-kem", "ml-dsa", "falcon-512", "falcon-1024"; cyclic, with the root of the field's
        generator: "babybear", "koalabear", "goldilocks". Other names raise ParameterError, which names the
        closest of these.

        Args:
            name: the preset.
            n: degree, for the fields alone (2**16 unless given).
            product: as Ring's.

        >>> Ring.preset("ml-kem").roots
        (17,)
        """
        return cls(**parameters(name, n), product=product)


def _make_ring(
    n: int, moduli: tuple[int, ...], kind: Kind, root: RootRule | tuple[int, ...], product: Product = "auto"
) -> Ring:
    return Ring(n, moduli, kind=kind, root=root, product=product)
