"""Ring: Z_Q[X]/(X^n ± 1), Q one modulus of any size or a product of coprime words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from math import gcd, prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from .arrays import as_integers, check_unmasked, empty
from .backends import Array, backend, current_device, host, is_device_array, of
from .checks import Kind, Product, check_kind, check_product, checked_degree, integer, shown
from .errors import (
    BadRoot,
    CoefficientError,
    DomainError,
    NotCanonical,
    NotNTTFriendly,
    ParameterError,
    RingMismatch,
    TablesTooLarge,
)
from .exact.crt import residues_of_ints
from .exact.primes import is_prime, ntt_primes, root_order
from .exact.roots import has_order, root_of_unity
from .memory import check_memory
from .ops.multiply import choose, plan_product
from .ops.sampling import Seed, uniform
from .plans.basis import Basis, basis_of
from .plans.ntt import NttPlan, plan_ntt, table_bytes, transform_base
from .plans.permutation import bit_reversal
from .plans.product import (
    AUXILIARY_BITS,
    Plan,
    auxiliary_bytes,
    auxiliary_size,
    coarsest_fft,
)

if TYPE_CHECKING:
    from .poly import Poly

Domain = Literal["coef", "eval"]
RootRule = Literal["minimal", "generator"]

_KEPT = 128  # rings of some limbs, or joined ones, that a ring keeps

_debug: ContextVar[bool] = ContextVar("polygpu_debug", default=False)


@contextmanager
def debug() -> Iterator[None]:
    """Check inside a `with` that residues given to Ring.from_residues are canonical, 0 <= x < q.

    >>> import polygpu as pg
    >>> with pg.debug():
    ...     pg.Ring(2, 17).from_residues([[16, 17]])
    Traceback (most recent call last):
        ...
    polygpu.errors.NotCanonical: data: 17 at (0, 1) is not a residue mod 17; ring(x) takes any integers
    """
    token = _debug.set(True)
    try:
        yield
    finally:
        _debug.reset(token)


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

    #: The class of the elements; poly.py, which stands above this module, sets it.
    _element: ClassVar[type[Poly]]

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
        parameters.update(_n=checked_degree(n), _kind=kind, _moduli=_checked_moduli(moduli), _product=product)
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
    def base_degree(self) -> int | None:
        """Coefficients of a leaf of the transform: 1 complete, 2 for ML-KEM, None without a transform."""
        return transform_base(self._n, self._moduli, self._kind)

    @property
    def has_eval(self) -> bool:
        """Whether there is an evaluation domain, complete or not."""
        return self.base_degree is not None

    @cached_property
    def roots(self) -> tuple[int, ...] | None:
        """The root of unity of each limb: psi of order 2N or omega of order N, N = n / base_degree."""
        if self.base_degree is None:
            return None
        if isinstance(self._root, tuple):
            return self._root
        # The search for the smallest root takes as many steps as the tables have entries.
        check_memory(table_bytes(self._n, self._moduli, self.base_degree), self._n, self._moduli)
        order = root_order(self._n // self.base_degree, self._kind)
        return tuple(root_of_unity(q, order, self._root) for q in self._moduli)

    @cached_property
    def transform(self) -> NttPlan:
        """The plan of the transform; built at first use.

        Raises:
            NotNTTFriendly: there is none.
            TablesTooLarge: its tables do not fit in memory.
        """
        if self.base_degree is None:
            raise NotNTTFriendly(self._why_no_transform())
        assert self.roots is not None
        return plan_ntt(self._n, self._moduli, self._kind, self.base_degree, self.roots)

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
            plan = plan_product(self, choose(self, product, device).way)
            self._products[product, device] = plan
        return plan

    @cached_property
    def _products(self) -> dict[tuple[Product, str], Plan]:
        return {}

    @property
    def multiplies_evaluated(self) -> bool:
        """Whether products go through the ring's own transform; a wide modulus takes auxiliary primes."""
        return not self.basis.wide and self.has_eval and self._product != "fft"

    def _why_no_transform(self) -> str:
        n, kind = self._n, self._kind
        if n & (n - 1):
            return f"n = {n} is no power of two, so there is no evaluation domain; products work without"
        order = root_order(n, kind)
        for q in self._moduli:
            if not is_prime(q):
                return f"{shown(q)} is not prime, so there is no evaluation domain; products work without"
            if (q - 1) % order:
                return (
                    f"q = {shown(q)}: q mod {order} is {q % order}, must be 1; "
                    f"ntt_primes({n}, bits={self._friendly_bits()}, kind={kind!r}) lists "
                    "moduli that do; products work without"
                )
        raise AssertionError("the ring has a transform")

    def _friendly_bits(self) -> int:
        """The least size from the smallest modulus (or 62 bits) on in which there are moduli that fit."""
        order = root_order(self._n, self._kind)
        bits = max(order.bit_length() + 1, min(62, *(q.bit_length() for q in self._moduli)))
        while True:
            try:
                ntt_primes(self._n, bits, kind=self._kind)
                return bits
            except ParameterError:
                bits += 1

    def _checked_roots(self, root: Any) -> tuple[int, ...]:
        if isinstance(root, str):
            raise BadRoot(f"root: {root!r} must be 'minimal', 'generator', an int or one int a modulus")
        given = tuple(integer(x, "root") for x in _sequence(root))
        if len(given) != len(self._moduli):
            raise BadRoot(f"root: {len(given)} roots for {len(self._moduli)} moduli; give one a modulus")
        if self.base_degree is None:
            raise BadRoot(f"root: {shown(root)} means nothing here: {self._why_no_transform()}")
        order = root_order(self._n // self.base_degree, self._kind)
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
        chosen = self._chosen(key)
        part = self._parts.get(chosen)
        if part is None:
            if chosen == tuple(range(len(self._moduli))):
                return self
            moduli = tuple(self._moduli[i] for i in chosen)
            given = self._root if isinstance(self._root, str) else tuple(self._root[i] for i in chosen)
            part = self._kept(self._parts, chosen, self._derived(moduli, given, self._product))
        return part

    __iter__ = None  # limbs are chosen by slices and lists alone

    def _chosen(self, key: Any) -> tuple[int, ...]:
        count = len(self._moduli)
        if isinstance(key, slice):
            chosen = tuple(range(count)[key])
        elif isinstance(key, (str, bytes)) or not isinstance(key, Iterable):
            raise ParameterError(
                f"limbs: {shown(key)} must be a slice or a list of limbs: ring[:1], ring[[0]]"
            )
        else:
            chosen = tuple(integer(i, "limbs") for i in key)
            for i in chosen:
                if not -count <= i < count:
                    raise IndexError(f"limbs: {shown(i)} must be in [{-count}, {count}), there are {count}")
            chosen = tuple(i % count for i in chosen)
            if len(set(chosen)) < len(chosen):
                raise ParameterError(f"limbs: {list(chosen)} has a limb twice; moduli must be coprime")
        if not chosen:
            raise ParameterError(f"limbs: none of {count} chosen; a ring has at least one")
        return chosen

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
        return self._kept(self._joined, other, self._join(other)) if joined is None else joined

    def _join(self, other: Ring) -> Ring:
        if (self._n, self._kind) != (other._n, other._kind):
            raise RingMismatch(f"join: {self!r} and {other!r} differ in degree or kind")
        if "auto" not in (self._product, other._product) and self._product != other._product:
            raise ParameterError(
                f"join: product={self._product!r} and product={other._product!r}; make one of them 'auto'"
            )
        moduli = _checked_moduli(self._moduli + other._moduli)
        product = other._product if self._product == "auto" else self._product
        if isinstance(self._root, str) and self._root == other._root:
            return self._derived(moduli, self._root, product)
        if transform_base(self._n, moduli, self._kind) is None:
            return self._derived(moduli, "minimal", product)  # there roots mean nothing
        if self.base_degree != other.base_degree:
            raise BadRoot(
                f"join: transforms of {self!r} and {other!r} end at leaves of {self.base_degree} and "
                f"{other.base_degree} coefficients; roots given for one do not serve the other"
            )
        assert self.roots is not None and other.roots is not None
        return self._derived(moduli, self.roots + other.roots, product)

    def _derived(self, moduli: tuple[int, ...], root: RootRule | tuple[int, ...], product: Product) -> Ring:
        """A ring of checked moduli, of this ring's degree and kind; given roots must fit."""
        ring = Ring.__new__(Ring)
        ring.__dict__.update(_n=self._n, _kind=self._kind, _moduli=moduli, _product=product, _root=root)
        if not isinstance(root, str) and ring.base_degree != self.base_degree:
            raise BadRoot(
                f"root: given for leaves of {self.base_degree} coefficients, but the transform modulo "
                f"{shown(list(moduli))} ends at {ring.base_degree}; Ring(n, moduli, root=...) takes others"
            )
        return ring

    @cached_property
    def _parts(self) -> dict[tuple[int, ...], Ring]:
        return {}

    @cached_property
    def _joined(self) -> dict[Ring, Ring]:
        return {}

    @staticmethod
    def _kept(known: dict[Any, Ring], key: Any, ring: Ring) -> Ring:
        """The ring, found by its key from now on; the oldest of many is forgotten."""
        while len(known) >= _KEPT:
            known.pop(next(iter(known)), None)
        return known.setdefault(key, ring)

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
        n, base, size = self._n, self.base_degree, self.rows * self._n * self.dtype.itemsize
        sign = "+" if self._kind == "negacyclic" else "-"
        lines = {
            "storage": f"{self.dtype.name}, (*batch, {self.rows}, {n}), {size / 1024:.1f} KiB a polynomial",
            "word": self._word(),
        }
        tables = needed = 0 if base is None else table_bytes(n, self._moduli, base)
        choice = choose(self, "auto", current_device())
        if choice.way == "fft":
            lines["product"], table, memory = self._explain_fft()
            tables, needed = tables + table, needed + memory
        elif choice.way == "auxiliary":
            length, count = auxiliary_size(n, self._moduli)
            primes = f"{count} auxiliary prime{'s' * (count > 1)} of {AUXILIARY_BITS} bits"
            lines["product"] = f"{primes}, transforms of {length} points, CRT"
            tables, needed = 4 * 8 * length * count, auxiliary_bytes(n, self._moduli)
        if base is not None:
            points, layers = n // base, base.bit_length() - 1
            early = (
                f", stopped {layers} layer{'s' * (layers > 1)} early: {points} leaves of {base} coefficients"
            )
            transform = f"transform of {points} points" + (early if layers else "")
            lines["eval" if "product" in lines else "product"] = transform
        lines["because"] = choice.reason
        try:
            check_memory(needed, n, self._moduli)
            if base is None:
                lines["eval"] = f"none: {self._why_no_transform()}"
            else:
                assert self.roots is not None
                shown_roots = ", ".join(map(shown, self.roots[:3])) + ", ..." * (len(self.roots) > 3)
                lines["root"] = f"{shown_roots}, of order {root_order(n // base, self._kind)}"
            lines["tables"] = f"{tables / 1024:.1f} KiB"
        except TablesTooLarge as error:
            lines["tables"] = f"too large: {error}"
        head = f"{self!r}: Z_Q[X]/(X^{n} {sign} 1), Q of {self.modulus.bit_length()} bits"
        return "\n".join([head, *(f"{name:<10}{text}" for name, text in lines.items())])

    def _explain_fft(self) -> tuple[str, int, int]:
        """The line of a product by FFT, the bytes of its table, and of all that it needs."""
        try:
            plan = coarsest_fft(self._n, self._moduli, self._kind)
        except ParameterError as error:
            return f"none: {error}", 0, 0
        digits = f"{plan.digits} digit{'s' * (plan.digits > 1)} of {plan.width} bits"
        return (
            f"FFT of {plan.points} complex points, {digits}, error below {plan.error_bound:.2g} by proof, "
            "0.5 allowed",
            16 * plan.points,
            plan.bytes,
        )

    def _word(self) -> str:
        """The bound of the kernels that serve the largest modulus; smaller limbs may do better."""
        if self.basis.wide:
            return f"{self.basis.words} words of 64 bits"
        limits = (30, 31) if self.dtype == np.uint32 else (50, 62)
        top = 32 if self.dtype == np.uint32 else 64
        bits = next((b for b in limits if max(self._moduli) < 1 << b), None)
        return f"q < 2^{bits}" if bits else f"q <= 2^{top}"

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
        integers = as_integers(x)
        if integers.ndim == 0:
            integers = integers.reshape(1)
        if integers.shape[-1] > self._n:
            raise ParameterError(
                f"x: {integers.shape[-1]} coefficients, at most n = {self._n} fit; "
                "reduce it mod X^n ± 1 first, or reshape it to (*batch, n)"
            )
        shape = (*integers.shape[:-1], self.rows, self._n)
        if is_device_array(integers):
            data = empty(of(integers), shape, self.dtype)
            of(integers).reduce_integers(self.basis, integers, data)
            return self._element._wrap(self, data, "coef")
        data = empty(host(), shape, self.dtype)
        if integers.dtype == object:
            residues_of_ints(self._moduli, integers, data)
        else:
            of(data).reduce_integers(self.basis, integers, data)
        return self._element._wrap(self, backend().from_host(data), "coef")

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
        check_unmasked(data, "data")
        is_array = isinstance(data, np.ndarray) or is_device_array(data)
        array = as_integers(data, "data") if not is_array or data.dtype == object else data
        if array.ndim < 2 or array.shape[-2:] != (self.rows, self._n):
            raise ParameterError(
                f"data: shape {array.shape} must end in (rows, n) = ({self.rows}, {self._n}); "
                "ring(x) takes integers (*batch, n)"
            )
        if array.dtype.kind not in "iuO":
            raise CoefficientError(f"data: dtype {array.dtype} must be an integer dtype, best {self.dtype}")
        flaw = self._flaw(data) if is_array else f"{type(data).__name__}, no array"
        if flaw and copy is False:
            raise ParameterError(
                f"data: {flaw}; with copy=False, as in Poly(ring, data, domain), it must be a C-contiguous, "
                f"aligned array of {self.dtype}: ring.from_residues(data, domain) copies where it must"
            )
        if array.dtype != self.dtype or _debug.get():
            self._check_canonical(array)
        if flaw or copy:
            with of(array).here():
                array = of(array).xp.array(array, dtype=self.dtype, order="C", copy=True)
        return self._element._wrap(self, array, domain)

    def _flaw(self, array: Array) -> str | None:
        """Why an element cannot hold the array as it is; None where it can."""
        if isinstance(array, np.ndarray) and type(array) is not np.ndarray:
            return f"{type(array).__name__}, a subclass of ndarray"
        if array.dtype != self.dtype:
            return f"dtype {array.dtype}" + ("" if array.dtype.isnative else " in the other byte order")
        if not array.flags.c_contiguous:
            return f"not C-contiguous (strides {array.strides})"
        return "not aligned" if of(array).address(array) % self.dtype.itemsize else None

    def _check_canonical(self, array: Array) -> None:
        """Raise NotCanonical for the first residue outside [0, q), the words of a wide one together."""
        values = of(array).to_host(array)
        if self.basis.wide:
            words = values.astype(object)
            values = np.zeros_like(words[..., :1, :])
            for w in range(self.rows):
                values += words[..., w : w + 1, :] << 64 * w
            values[..., 0, :][((words < 0) | (words >= 1 << 64)).any(axis=-2)] = -1
        limits = np.array(self._moduli, dtype=object)[:, None]
        if values.dtype.kind == "u":  # without Python ints where words can tell
            wrong = values > (limits - 1).astype(np.uint64)
        else:
            wrong = (values.astype(object) < 0) | (values.astype(object) >= limits)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise NotCanonical(
                f"data: {values[at]} at {at} is not a residue mod {shown(self._moduli[at[-2]])}; "
                "ring(x) takes any integers"
            )

    def _checked_domain(self, domain: object) -> Domain:
        if not isinstance(domain, str) or domain not in ("coef", "eval"):
            raise DomainError(f"domain: {domain!r} must be 'coef' or 'eval'")
        if domain == "eval":
            if not self.has_eval:
                raise NotNTTFriendly(self._why_no_transform())
            return "eval"
        return "coef"

    def zeros(self, batch: int | tuple[int, ...] = ()) -> Poly:
        """A batch of zeros."""
        shape = (*_batch(batch), self.rows, self._n)
        return self._element._wrap(self, empty(backend(), shape, self.dtype, zero=True), "coef")

    def ones(self, batch: int | tuple[int, ...] = ()) -> Poly:
        """A batch of the ring's one."""
        poly = self.zeros(batch)
        with of(poly.data).here():
            poly.data[..., : 1 if self.basis.wide else self.rows, 0] = 1
        return poly

    def monomial(self, k: int, coefficient: int = 1) -> Poly:
        """coefficient * X^k for any int k: X^n is -1 or 1.

        >>> Ring(4, 17).monomial(-1).to_bigints(centered=True).tolist()
        [0, 0, 0, -1]
        """
        turns, at = divmod(integer(k, "k"), self._n)
        sign = -1 if self._kind == "negacyclic" and turns % 2 else 1
        x = np.zeros(self._n, dtype=object)
        x[at] = sign * integer(coefficient, "coefficient")
        return self(x)

    def random(self, batch: int | tuple[int, ...] = (), seed: Seed = None, *, start: int = 0) -> Poly:
        """Elements uniform in the ring, from a ChaCha20 stream.

        Args:
            batch: batch shape.
            seed: int, bytes or str: the same values on every device, however the batch is cut;
                None: from the operating system.
            start: number of the first polynomial: a batch of 8 equals two of 4 with start 0 and 4.

        Cost: 8 (W + 1) bytes of stream a coefficient and limb, W words of a residue.
        Source: ops/sampling.py fixes the stream.

        >>> R = Ring(4, 97)
        >>> R.random(2, seed=1)[1] == R.random(seed=1, start=1)
        True
        """
        if integer(start, "start") < 0:
            raise ParameterError(f"start: {shown(start)} must be at least 0")
        if start >> 48:
            raise ParameterError(f"start: {shown(start)} must be below 2**48")
        shape = _batch(batch)
        data = empty(host(), (*shape, self.rows, self._n), self.dtype)
        uniform(host(), self.basis, self._n, shape, seed, start, data)
        return self._element._wrap(self, backend().from_host(data), "coef")

    # ---- the evaluation domain ----

    def eval_points(self, limb: int = 0) -> np.ndarray[Any, np.dtype[Any]]:
        """The points of the evaluation domain: entry k of a transformed row is a(x_k).

        x_k = psi^(2 br(k) + 1) or omega^br(k). For an incomplete transform the constants c_k of its
        leaves X^base - c_k. Python ints for a modulus above 2**64.

        >>> Ring(4, 17).eval_points().tolist()
        [2, 15, 8, 9]
        """
        if not 0 <= integer(limb, "limb") < len(self._moduli):
            raise ParameterError(f"limb: {shown(limb)} must be in [0, {len(self._moduli)})")
        base = self.transform.base
        x = self.monomial(base).ntt() if base < self._n else self([1 if self._kind == "cyclic" else -1]).ntt()
        points = x.to_residue_ints() if self.basis.wide else x.cpu().data[limb]
        return points[..., ::base].copy()

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
        generator: "babybear", "koalabear", "goldilocks".

        Args:
            name: the preset.
            n: degree, for the fields alone (2**16 unless given).
            product: as Ring's.

        >>> Ring.preset("ml-kem").roots
        (17,)
        """
        if not isinstance(name, str) or name not in {**_SCHEMES, **_FIELDS}:
            raise ParameterError(f"name: {shown(name)} must be one of {', '.join([*_SCHEMES, *_FIELDS])}")
        if name in _SCHEMES:
            degree, q = _SCHEMES[name]
            if n not in (None, degree):
                raise ParameterError(f"n: {shown(n)} does not fit {name!r}, whose degree is {degree}")
            return cls(degree, q, product=product)
        degree = 1 << 16 if n is None else n
        return cls(degree, _FIELDS[name], kind="cyclic", root="generator", product=product)


_SCHEMES = {  # FIPS 203, FIPS 204, Falcon specification 1.2
    "ml-kem": (256, 3329),
    "ml-dsa": (256, 8380417),
    "falcon-512": (512, 12289),
    "falcon-1024": (1024, 12289),
}
_FIELDS = {
    "babybear": 15 * 2**27 + 1,
    "koalabear": 127 * 2**24 + 1,
    "goldilocks": 2**64 - 2**32 + 1,
}


def _make_ring(
    n: int, moduli: tuple[int, ...], kind: Kind, root: RootRule | tuple[int, ...], product: Product = "auto"
) -> Ring:
    return Ring(n, moduli, kind=kind, root=root, product=product)


def _sequence(x: Any) -> tuple[Any, ...]:
    """The entries of a list or array; a single value, 0-d arrays and text included, alone."""
    single = isinstance(x, (str, bytes)) or not isinstance(x, Iterable) or getattr(x, "ndim", 1) == 0
    return (x,) if single else tuple(x)


def _batch(batch: object) -> tuple[int, ...]:
    shape = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    sizes = tuple(integer(size, "batch") for size in shape)
    if any(size < 0 for size in sizes):
        raise ParameterError(f"batch: {shown(batch)} must not have negative sizes")
    return sizes


def _checked_moduli(moduli: object) -> tuple[int, ...]:
    values = tuple(integer(q, "moduli") for q in _sequence(moduli))
    if not values:
        raise ParameterError("moduli: an empty list; give at least one modulus")
    product = 1
    for q in values:
        if q < 2:
            raise ParameterError(f"moduli: {shown(q)} must be at least 2")
        if len(values) > 1 and q > 1 << 64:
            raise ParameterError(
                f"moduli: {shown(q)} is above 2**64 and must stand alone; pass the product as one modulus"
            )
        if gcd(q, product) > 1:
            other = next(p for p in values if gcd(p, q) > 1)
            raise ParameterError(
                f"moduli: {other} and {q} share the factor {gcd(other, q)}; they must be coprime"
            )
        product *= q
    return values
