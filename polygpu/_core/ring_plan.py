"""The plan of a ring: the data about the ring that operations need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from math import prod
from typing import Any, Literal

import numpy as np

from ..errors import BadRoot, NotNTTFriendly, ParameterError, RingMismatch
from .checks import Domain, Product, check_product, checked_degree, checked_moduli, integer, sequence, shown
from .exact.primes import is_prime, ntt_primes
from .exact.roots import has_order, root_of_unity, same_root
from .locks import cached_property
from .memory import check_memory
from .plans.basis import Basis, basis_of
from .plans.cache import Calls, keep, keep_ring, known_ring
from .plans.ntt import NttPlan, least_leaf_size, plan_ntt, table_bytes
from .plans.product import Plan
from .quotient import Kind, Quotient, check_degree, check_kind

RootRule = Literal["minimal", "generator"]

_KEPT = 128  # a ring keeps at most this many results of `part`, and as many of `join`


class RingPlan:
    """The parameters of a ring as they were given, and all that is computed from them.

    While a plan is in use, `ring_plan` returns the same plan for equal arguments. So Rings with equal
    arguments share tables and records of calls.
    """

    quotient: Quotient
    moduli: tuple[int, ...]
    root: RootRule | tuple[int, ...]  # the rule, or the given root of each limb
    product: Product

    def __init__(
        self,
        quotient: Quotient,
        moduli: tuple[int, ...],
        root: RootRule | tuple[int, ...],
        product: Product,
    ) -> None:
        self.__dict__.update(quotient=quotient, moduli=moduli, root=root, product=product)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"{name} of a ring's plan cannot be set, because several rings can share a plan. Make another "
            "ring instead."
        )

    # ---- parameters ----

    @cached_property
    def n(self) -> int:
        """Return the degree."""
        return self.quotient.degree

    @cached_property
    def modulus(self) -> int:
        """Return the product of the moduli."""
        return prod(self.moduli)

    @cached_property
    def basis(self) -> Basis:
        """Return the Basis that operations pass to backends: the moduli, and how residues are stored."""
        return basis_of(self.moduli)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of residues."""
        return self.basis.dtype

    @cached_property
    def rows(self) -> int:
        """Return the length of the limb axis."""
        return self.basis.rows

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments that the plan was made from.

        Equal plans may have different arguments: `root` may be a rule, or the roots that the rule gives.
        """
        return self.n, self.moduli, self.quotient.kind, self.root, self.product

    @cached_property
    def text(self) -> str:
        """Return `arguments` as a literal of Python, with hexadecimal ints.

        Python limits the length of decimal ints, but not of hexadecimal ints.
        """
        return _literal(self.arguments)

    # ---- the evaluation domain ----

    @cached_property
    def leaf_size(self) -> int | None:
        """Return the number of coefficients of a leaf of the transform, or None without a transform."""
        return least_leaf_size(self.quotient, self.moduli)

    @property
    def has_eval(self) -> bool:
        """Whether there is an evaluation domain."""
        return self.leaf_size is not None

    @property
    def has_four_steps(self) -> bool:
        """Whether the ring has a four-step transform (_core/plans/four_step.py)."""
        return self.leaf_size == 1 and not self.basis.wide and self.quotient.is_binomial

    def constant_step(self, domain: Domain) -> int:
        """Return the distance between the entries that a constant polynomial fills.

        It is n in coefficients, where only entry 0 is filled, and the leaf size in the evaluation domain.
        """
        return self.n if domain == "coef" or self.leaf_size is None else self.leaf_size

    @property
    def root_order(self) -> int:
        """The order of the roots of unity. Read it only if the ring has a transform."""
        assert self.leaf_size is not None
        return self.quotient.with_degree(self.n // self.leaf_size).order

    @cached_property
    def roots(self) -> tuple[int, ...] | None:
        """Return the root of unity of each limb, or None if the ring has no transform.

        Raises:
            TablesTooLarge: the tables of the transform do not fit in memory. Then no root is searched for.
        """
        if self.leaf_size is None:
            return None
        if isinstance(self.root, tuple):
            return self.root
        if self.root == "minimal":  # check first: the search takes as many steps as the tables have entries
            check_memory(table_bytes(self.n, self.moduli, self.leaf_size), self.n, self.moduli)
        return tuple(root_of_unity(q, self.root_order, self.root) for q in self.moduli)

    @cached_property
    def transform(self) -> NttPlan:
        """Return the plan of the transform.

        Raises:
            NotNTTFriendly: the ring has no transform.
            TablesTooLarge: the tables of the transform do not fit in memory.
        """
        self.check_eval()
        assert self.leaf_size is not None and self.roots is not None
        return plan_ntt(self.quotient, self.moduli, self.leaf_size, self.roots)

    def check_binomial(self, name: str) -> None:
        """Raise ParameterError unless X^n is 1 or -1. name: what the error calls this ring."""
        if not self.quotient.is_binomial:
            raise ParameterError(
                f"{name} is {self!r}, but it must have kind='negacyclic' or kind='cyclic'. In such a ring, "
                "X^n is 1 or -1."
            )

    def check_eval(self) -> None:
        """Raise NotNTTFriendly if the ring has no evaluation domain."""
        if self.leaf_size is None:
            raise NotNTTFriendly(self.why_no_transform())

    def where_complete(self) -> str:
        """Return a sentence that says which moduli or degrees have a complete transform, for messages."""
        if self.quotient.leaf_sizes and self.quotient.leaf_sizes[0] > 1:
            return (
                f"No modulus gives a complete transform for n={self.n}. Use a degree that is a power of two."
            )
        return (
            f"Use ntt_primes({self.n}, bits=..., kind={self.quotient.kind!r}) to find moduli that have a "
            "complete transform."
        )

    def why_no_transform(self) -> str:
        """Return a message that says which condition for an evaluation domain fails and how to meet it."""
        n = self.n
        if not self.quotient.leaf_sizes:
            why = self.quotient.why_no_tree
            return f"n={n} is {why}, so the ring has no evaluation domain. Products still work."
        least = self.quotient.leaf_sizes[0]
        order = self.quotient.with_degree(n // least).order
        for q in self.moduli:
            if not is_prime(q):
                return (
                    f"q={shown(q)} is not prime, so the ring has no evaluation domain. Products still work."
                )
            if (q - 1) % order:
                return (
                    f"q={shown(q)} is {q % order} modulo {order}, but a complete transform needs moduli that "
                    f"are 1 modulo {order}. Use moduli from ntt_primes({n}, bits={self._friendly_bits()}, "
                    f"kind={self.quotient.kind!r}). Products still work."
                )
        raise AssertionError("Call this only if the ring has no transform.")

    def _friendly_bits(self) -> int:
        """Return a bit length for which there are primes with a transform for this ring.

        The result is the least such length that is at least min(62, bit length of the smallest modulus).
        """
        bits = max(self.quotient.order.bit_length() + 1, min(62, *(q.bit_length() for q in self.moduli)))
        while True:
            try:
                ntt_primes(self.n, bits=bits, kind=self.quotient.kind)
                return bits
            except ParameterError:
                bits += 1

    # ---- what is kept for later calls ----

    @cached_property
    def calls(self) -> Calls:
        """Return the cache of records of calls on values of this ring (_ops/calls.py)."""
        return Calls()

    @cached_property
    def products(self) -> dict[tuple[Product, str], Plan]:
        """Return a dict of plans of products. A key is (argument `product` of a call, name of the device)."""
        return {}

    @cached_property
    def plans(self) -> dict[tuple[Any, ...], Any]:
        """Return a dict of plans for values of this ring, for example of conversions and key switching."""
        return {}

    @cached_property
    def _parts(self) -> dict[tuple[int, ...], RingPlan]:
        return {}

    @cached_property
    def _joined(self) -> dict[tuple[Any, ...], RingPlan]:
        return {}

    # ---- other rings ----

    def part(self, limbs: tuple[int, ...]) -> RingPlan:
        """Return the plan of the ring with the limbs of these indices.

        Raises:
            BadRoot: this ring was made with given roots, and the transform modulo these limbs needs roots of
                another order.
        """
        part = self._parts.get(limbs)
        if part is None:
            if limbs == tuple(range(len(self.moduli))):
                return self
            moduli = tuple(self.moduli[i] for i in limbs)
            given = self.root if isinstance(self.root, str) else tuple(self.root[i] for i in limbs)
            part = keep(self._parts, limbs, self._derived(moduli, given, self.product), _KEPT)
        return part

    def join(self, other: RingPlan) -> RingPlan:
        """Return the plan of the ring with this ring's limbs, then those of `other`; see Ring.join."""
        # The key is not `other`, because two rings with different rules for roots may be equal.
        joined = self._joined.get(other.arguments)
        return keep(self._joined, other.arguments, self._join(other), _KEPT) if joined is None else joined

    def _join(self, other: RingPlan) -> RingPlan:
        if self.quotient != other.quotient:
            raise RingMismatch(
                f"join cannot join {self!r} and {other!r}, because they differ in degree or kind. Give "
                "rings of the same degree and kind."
            )
        if "auto" not in (self.product, other.product) and self.product != other.product:
            raise ParameterError(
                f"join cannot join a ring with product={self.product!r} and one with "
                f"product={other.product!r}. Make one of them with product='auto'."
            )
        moduli = checked_moduli(self.moduli + other.moduli)
        product = other.product if self.product == "auto" else self.product
        if isinstance(self.root, str) and self.root == other.root:
            return self._derived(moduli, self.root, product)
        if least_leaf_size(self.quotient, moduli) is None:
            return self._derived(moduli, "minimal", product)  # a ring without a transform has no roots
        if self.leaf_size != other.leaf_size:
            raise BadRoot(
                f"join cannot combine the roots of {self!r} and {other!r}, because their transforms end at "
                f"leaves of size {self.leaf_size} and {other.leaf_size}. Make both rings with "
                "root='minimal'."
            )
        assert self.roots is not None and other.roots is not None
        return self._derived(moduli, self.roots + other.roots, product)

    def _derived(
        self, moduli: tuple[int, ...], root: RootRule | tuple[int, ...], product: Product
    ) -> RingPlan:
        """Return the plan of a ring with this ring's degree and kind. Call this only with checked `moduli`.

        Raises:
            BadRoot: `root` contains roots, but not of the order that the transform with these moduli needs.
        """
        ring = RingPlan(self.quotient, moduli, root, product)
        known: RingPlan | None = known_ring(ring.arguments)
        if known is not None:
            return known
        if not isinstance(root, str) and ring.leaf_size != self.leaf_size:
            raise BadRoot(
                f"The roots of this ring were given for leaves of size {self.leaf_size}, but the transform "
                f"modulo {shown(list(moduli))} ends at leaves of size {ring.leaf_size}. Use Ring(n, moduli, "
                "root=...) with roots for these moduli."
            )
        return keep_ring(ring.arguments, ring)

    # ---- identity ----

    def __eq__(self, other: object) -> bool:
        """Return whether the parameters are equal. Roots are compared only if there is a transform."""
        if self is other:
            return True
        if not isinstance(other, RingPlan):
            return NotImplemented
        if (self.quotient, self.moduli, self.product) != (other.quotient, other.moduli, other.product):
            return False
        if self.root == other.root or self.leaf_size is None:
            return True
        pairs = zip(self.moduli, self._rules(), other._rules(), strict=True)
        return all(same_root(q, self.root_order, a, b) for q, a, b in pairs)

    def _rules(self) -> Iterable[RootRule | int]:
        """Yield, for each limb, the root that was given, or the rule "minimal" or "generator"."""
        return repeat(self.root, len(self.moduli)) if isinstance(self.root, str) else self.root

    @cached_property
    def _hash(self) -> int:
        return hash((self.quotient, self.moduli))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        moduli = shown(self.moduli[0]) if len(self.moduli) == 1 else str(list(self.moduli[:3]))
        if len(self.moduli) > 3:
            moduli = f"{moduli[:-1]}, ... {len(self.moduli)} moduli]"
        kind = "" if self.quotient.kind == "negacyclic" else f", kind={self.quotient.kind!r}"
        root = "" if self.root == "minimal" else f", root={shown(self.root)}"
        product = "" if self.product == "auto" else f", product={self.product!r}"
        return f"Ring({self.n}, {moduli}{kind}{root}{product})"


def ring_plan(
    n: int,
    moduli: int | Iterable[int],
    kind: Kind = "negacyclic",
    root: RootRule | int | Sequence[int] = "minimal",
    product: Product = "auto",
) -> RingPlan:
    """Return the plan of a ring, the same object for equal arguments; see Ring for the arguments."""
    # Check types first: True == 1 and 8.0 == 8, so n=True or n=8.0 could find a kept plan and raise no error.
    if type(n) is int and type(kind) is str and type(root) is str and type(product) is str:
        given: Any = (moduli,) if type(moduli) is int else moduli
        if type(given) in (tuple, list) and set(map(type, given)) == {int}:
            known: RingPlan | None = known_ring((n, tuple(given), kind, root, product))
            if known is not None:
                return known
    check_kind(kind)
    check_product(product)
    quotient, checked = Quotient(str(kind), checked_degree(n)), checked_moduli(moduli)  # type: ignore[arg-type]
    check_degree(quotient.kind, quotient.degree)
    if product == "fft" and basis_of(checked).wide:
        raise ParameterError(
            f"product='fft' needs moduli of at most 2**64, and q={shown(checked[0])} is larger. Use "
            "product='auto'."
        )
    rule: Any = str(root) if isinstance(root, str) and root in ("minimal", "generator") else None
    plan = RingPlan(quotient, checked, rule or "minimal", str(product))  # type: ignore[arg-type]
    if rule is None:
        plan = RingPlan(quotient, checked, _checked_roots(plan, root), plan.product)
    return keep_ring(plan.arguments, plan, plan.n * plan.rows)


def _checked_roots(ring: RingPlan, root: Any) -> tuple[int, ...]:
    """Return the given roots as a tuple, one for each limb of the ring; raise BadRoot if one is wrong."""
    if isinstance(root, str):
        raise BadRoot(
            f"root={root!r} must be 'minimal', 'generator', an int, or a list with one int for each modulus."
        )
    given = tuple(integer(x, "root") for x in sequence(root))
    if len(given) != len(ring.moduli):
        raise BadRoot(
            f"The number of roots in root is {len(given)}, and the number of moduli is {len(ring.moduli)}. "
            "Give one root for each modulus."
        )
    if ring.leaf_size is None:
        raise BadRoot(
            f"root={shown(root)} has no use in this ring. Do not give root. {ring.why_no_transform()}"
        )
    for x, q in zip(given, ring.moduli, strict=True):
        if not 0 < x < q:
            raise BadRoot(f"root={shown(x)} must be in [1, q) for q={shown(q)}. Reduce it modulo q.")
        if not has_order(x, ring.root_order, q):
            raise BadRoot(
                f"root={shown(x)} does not have order {ring.root_order} modulo {shown(q)}. Use "
                "root='minimal' to let polygpu find one."
            )
    return given


def _literal(x: object) -> str:
    """Return ints, strings and tuples of them as a literal of Python."""
    if isinstance(x, tuple):
        return f"({' '.join(f'{_literal(y)},' for y in x)})"
    return hex(x) if isinstance(x, int) else repr(x)
