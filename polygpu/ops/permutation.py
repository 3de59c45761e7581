"""Automorphisms and products with powers of X: coefficients or evaluated residues in another order."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from ..arrays import empty
from ..backends import Array, backend_for, backend_of
from ..checks import Domain, integer, shown
from ..errors import ParameterError
from ..plans.basis import Basis
from ..plans.permutation import Permutation, monomial_product
from ..plans.permutation import automorphism as automorphism_order
from .integers import from_integers
from .multiply import multiply
from .transform import to_domain

if TYPE_CHECKING:
    from ..ring import Ring


def automorphism(ring: Ring, x: Array, domain: Domain, g: int) -> Array:
    """a(X^g) in a's domain, for g coprime to the order of X."""
    g = checked_automorphism(ring, g)
    if domain == "eval" and ring.transform.leaf_size > 1:  # leaves of several coefficients do not just move
        value = automorphism(ring, to_domain(ring, x, "eval", "coef"), "coef", g)
        return to_domain(ring, value, "coef", "eval")
    return _permuted(ring.basis, x, automorphism_order(ring.n, ring.kind, g, domain == "eval"))


def checked_automorphism(ring: Ring, g: object) -> int:
    """g modulo the order of X, for g coprime to it."""
    order = 2 * ring.n if ring.kind == "negacyclic" else ring.n
    if gcd(integer(g, "g"), order) != 1:
        raise ParameterError(
            f"g: {shown(g)} has a common factor with {order}; X -> X^g is an automorphism for g coprime to it"
        )
    return integer(g, "g") % order


def multiply_by_monomial(ring: Ring, x: Array, domain: Domain, k: int) -> Array:
    """X^k a in a's domain, for any k."""
    turn = monomial_product(ring.n, ring.kind, integer(k, "k"))
    if domain == "coef":
        return _permuted(ring.basis, x, turn)
    one = from_integers(ring.basis, ring.n, 1, backend_of(x))
    monomial = to_domain(ring, _permuted(ring.basis, one, turn), "coef", "eval")
    return multiply(ring, x, monomial, "eval")


def _permuted(basis: Basis, x: Array, permutation: Permutation) -> Array:
    compute = backend_for(basis, x)
    data = empty(compute, x.shape, x.dtype)
    compute.permute(basis, x, permutation, data)
    return data
