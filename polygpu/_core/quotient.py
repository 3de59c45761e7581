"""The polynomials by which rings are reduced: X^n + 1 and X^n - 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from .. import _cpu
from ..errors import ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind = Literal["negacyclic", "cyclic"]

KINDS: tuple[Kind, ...] = get_args(Kind)


def check_kind(kind: object) -> None:
    """Raise ParameterError unless kind is "negacyclic" or "cyclic"."""
    if kind not in KINDS:
        raise ParameterError(f"kind: {kind!r} must be 'negacyclic' (mod X^n + 1) or 'cyclic' (mod X^n - 1)")


class Quotient(NamedTuple):
    """The polynomial by which a ring is reduced: X^degree + 1 or X^degree - 1.

    Whatever depends on which polynomial it is asks this class, and in the core and the kernels its twins
    (cpu/quotient.hpp, cuda/quotient.cuh). Source: docs/math.md, "The tree of factors".

    >>> Quotient("negacyclic", 8).order, Quotient("cyclic", 8).order
    (16, 8)
    """

    kind: Kind
    degree: int

    @property
    def terms(self) -> tuple[tuple[int, int], ...]:
        """The exponent and the coefficient of each term, the highest first; coefficients are 1 and -1."""
        return (self.degree, 1), (0, 1 if self.kind == "negacyclic" else -1)

    @property
    def is_binomial(self) -> bool:
        """Whether X^degree is a number, so that a product with X moves coefficients and changes signs."""
        return len(self.terms) == 2

    @property
    def wrap(self) -> int:
        """The number that X^degree is, of a binomial: -1 or 1."""
        return -self.terms[-1][1]

    @property
    def native(self) -> _cpu.Quotient:
        """The polynomial in the native core, which is told the degree apart."""
        return getattr(_cpu.Quotient, self.kind)  # type: ignore[no-any-return]

    @property
    def number(self) -> int:
        """The number by which the kernels of a GPU know the polynomial (cuda/quotient.cuh)."""
        return self.native.value

    @property
    def order(self) -> int:
        """The order of X, the least e > 0 with X^e = 1.

        The roots of the polynomial are the powers of one root of unity of this order.
        """
        return self.degree if self.wrap == 1 else 2 * self.degree

    @property
    def points_apart(self) -> int:
        """The difference of the exponents of neighbouring points.

        In natural order, point k is the root of unity to the power first_point + k * points_apart.
        """
        return self.order // self.degree

    @property
    def first_point(self) -> int:
        """The exponent of point 0."""
        return self.points_apart - 1

    # Nodes of the tree of factors, whose leaves are the points: node i has the twiddle x^(br(p)), p =
    # power_of_node(i), br the reversal of node_bits bits, x the root of unity.

    @property
    def node_bits(self) -> int:
        """The number of bits of power_of_node."""
        return max(0, self.degree.bit_length() - 1 - (self.wrap == 1))

    def power_of_node(self, node: int) -> int:
        """Return the number p of a node: all its bits, or in a cyclic tree all but the top one."""
        return node if self.wrap == -1 else node - (1 << (node.bit_length() - 1))

    def exponent_of_node(self, node: int) -> int:
        """Return the exponent of a node's twiddle."""
        power = self.power_of_node(node)
        return sum(1 << (self.node_bits - 1 - bit) for bit in range(self.node_bits) if power >> bit & 1)

    def inverse_root_twiddle(self, w: int, q: int) -> int:
        """Return the twiddle of node 1 in the inverse, without the factor 1/degree.

        w: its twiddle, modulo q.
        """
        return w * self.wrap % q  # w^2 is X^degree

    def leaf_constants(self, twiddles: NDArray[Any], q: int) -> NDArray[Any]:
        """Return the constants c of the leaves X^k - c. twiddles: by node."""
        constants = np.empty(self.degree, twiddles.dtype)
        if self.degree == 1:
            constants[0] = self.wrap % q
        else:
            constants[::2] = w = twiddles[self.degree // 2 :]
            constants[1::2] = w.dtype.type(q) - w  # two leaves below w have the constants w and -w
        return constants

    def with_degree(self, degree: int) -> Quotient:
        """Return the polynomial of the same kind and another degree."""
        return Quotient(self.kind, degree)

    def power_of_x(self, k: int) -> tuple[tuple[int, int], ...]:
        """X^k, reduced, for any int k: the exponent and the sign of each term."""
        turns, exponent = divmod(k, self.degree)
        return ((exponent, self.wrap ** (turns % 2)),)

    def has_points(self, q: int) -> bool:
        """Whether the polynomial has `degree` different roots modulo the prime q."""
        return (q - 1) % self.order == 0

    @property
    def cover(self) -> Quotient:
        """The binomial of least degree that is a multiple of the polynomial."""
        return self

    @property
    def multiple(self) -> int:
        """A degree m, at least twice that of the polynomial, for which X^m - 1 is a multiple of it."""
        return 2 * self.degree

    def folding(self, length: int) -> list[tuple[int, int, int, int]]:
        """Say how a polynomial of up to 2 * degree coefficients is reduced.

        Returns runs of coefficients above the degree: the first one, the one that it is added to, how many
        there are, and the sign.
        """
        return [(self.degree, 0, length - self.degree, self.wrap)] if length > self.degree else []

    # ---- how it is shown ----

    def __str__(self) -> str:
        return self._shown("X^{}", "-")

    @property
    def html(self) -> str:
        """The polynomial in HTML."""
        return self._shown("<i>X</i><sup>{}</sup>", "−")

    @property
    def latex(self) -> str:
        """The polynomial in LaTeX."""
        return self._shown("X^{{{}}}", "-")

    def _shown(self, power: str, minus: str) -> str:
        (first, _), *rest = self.terms
        text = power.format(first)
        for exponent, sign in rest:
            text += f" {'+' if sign > 0 else minus} {power.format(exponent) if exponent else 1}"
        return text
