"""The polynomials modulo which rings are defined: X^n + 1, X^n - 1 and X^n - X^(n/2) + 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from .. import _cpu
from ..errors import ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind = Literal["negacyclic", "cyclic", "trinomial"]

KINDS: tuple[Kind, ...] = get_args(Kind)

MAX_SKIPPED_LAYERS = 3  # an incomplete transform stops at leaves of at most 2^3 coefficients


def check_kind(kind: object) -> None:
    """Raise ParameterError unless kind is one of KINDS."""
    if kind not in KINDS:
        raise ParameterError(
            f"kind={kind!r} must be 'negacyclic' (modulo X^n + 1), 'cyclic' (modulo X^n - 1) or 'trinomial' "
            "(modulo X^n - X^(n/2) + 1)."
        )


def check_degree(kind: Kind, n: int) -> None:
    """Raise ParameterError if no polynomial of this kind has the degree n."""
    if kind == "trinomial" and n % 2:
        raise ParameterError(f"n={n} must be even for kind='trinomial', which is modulo X^n - X^(n/2) + 1.")


class Quotient(NamedTuple):
    """The polynomial modulo which a ring is defined: X^n + 1, X^n - 1 or X^n - X^(n/2) + 1, n = degree.

    All code that depends on the kind of the polynomial calls this class. Its counterparts in C++ and CUDA are
    in cpu/quotient.hpp and cuda/quotient.cuh. Source: docs/math.md, "The tree of factors".

    >>> Quotient("negacyclic", 8).order, Quotient("cyclic", 8).order
    (16, 8)
    """

    kind: Kind
    degree: int

    @property
    def terms(self) -> tuple[tuple[int, int], ...]:
        """The exponent and the coefficient (1 or -1) of each term, from the highest exponent down."""
        if self.kind == "trinomial":
            return (self.degree, 1), (self.degree // 2, -1), (0, 1)
        return (self.degree, 1), (0, 1 if self.kind == "negacyclic" else -1)

    @property
    def is_binomial(self) -> bool:
        """Whether X^degree is 1 or -1 in the ring."""
        return len(self.terms) == 2

    @property
    def wrap(self) -> int:
        """The constant to which X^degree reduces, -1 or 1, or 0 if the polynomial has three terms."""
        return -self.terms[-1][1] if self.is_binomial else 0

    @property
    def native(self) -> _cpu.Quotient:
        """The kind as the C++ core names it. The degree is passed to the core separately."""
        return getattr(_cpu.Quotient, self.kind)  # type: ignore[no-any-return]

    @property
    def number(self) -> int:
        """The number that stands for the kind in CUDA kernels (cuda/quotient.cuh)."""
        return self.native.value

    @property
    def order(self) -> int:
        """The order of X in the ring: the least e > 0 with X^e = 1.

        The roots of the polynomial are powers of one root of unity of this order.
        """
        return self.degree * {"cyclic": 1, "negacyclic": 2, "trinomial": 3}[self.kind]

    # ---- the tree of factors (docs/math.md): all its leaves are polynomials X^m - c with the same m ----

    @property
    def leaf_sizes(self) -> tuple[int, ...]:
        """The sizes that leaves of the tree of factors may have, ascending; () if there is no such tree."""
        odd = self.degree // (self.degree & -self.degree)
        if self.kind == "trinomial":
            return (odd,) if odd in (1, 3) and self.degree % 2 == 0 else ()
        sizes = (1 << layers for layers in range(MAX_SKIPPED_LAYERS + 1))
        return tuple(size for size in sizes if size <= self.degree) if odd == 1 else ()

    @property
    def why_no_tree(self) -> str:
        """The end of an error message: why a polynomial of this degree has no tree of factors."""
        return "neither 2**a nor 3 * 2**a with a > 0" if self.kind == "trinomial" else "not a power of two"

    def has_points(self, q: int) -> bool:
        """Whether the polynomial has `degree` different roots modulo the prime q."""
        return (q - 1) % self.order == 0

    def exponents(self, reversed_nodes: Any) -> Any:
        """Return e for the nodes X^m - w^(m * e) of a level of the tree of factors; w is the root of unity.

        reversed_nodes: the indices of the nodes in their level, with their bits reversed; an int or an array.
        The result may be negative.
        """
        if self.kind == "trinomial":  # 1, -1, 7, 5, 13, 11, ...
            return 1 + 3 * reversed_nodes - 5 * (reversed_nodes & 1)
        return 2 * reversed_nodes + 1 if self.kind == "negacyclic" else reversed_nodes

    def reversed_nodes(self, exponents: Any) -> Any:
        """Return the bit-reversed index of the leaf X - w^e for each e of `exponents`, 0 <= e < order."""
        if self.kind == "trinomial":
            return (exponents - 1 + 5 * (exponents % 6 // 5)) // 3 % self.degree
        return exponents // 2 if self.kind == "negacyclic" else exponents

    def ascending(self, k: Any) -> Any:
        """Return the bit-reversed index of the leaf X - w^e with the k-th least e, counted from k = 0."""
        return (k + 2 * (k & 1)) % self.degree if self.kind == "trinomial" else k

    def exponent_of_node(self, node: int) -> int:
        """Return the exponent e of the twiddle w^e of `node`.

        The node's first child is X^m - w^e, where m is the degree of the child.
        """
        position = f"{node:b}"[1:]
        level = len(position)
        exponent: int = self.exponents(int("0" + position[::-1], 2))
        return exponent * (self.degree >> (level + 1)) % self.order

    def inverse_root_twiddle(self, w: int, q: int) -> int:
        """Return the twiddle of node 1 for the inverse transform, without the factor 1/degree.

        w: the twiddle of node 1 for the forward transform, modulo q. The result is 1 / (2 * w - 1) for the
        trinomial, else 1 / w.
        """
        if self.kind == "trinomial":  # (2w - 1)^2 = 4 (w^2 - w + 1) - 3 = -3
            return (1 - 2 * w) * pow(3, -1, q) % q
        return w * self.wrap % q  # 1 / w, because w^2 = wrap

    def leaf_constants(self, twiddles: NDArray[Any], q: int) -> NDArray[Any]:
        """Return the constants c of the leaves X^k - c. Entry i of `twiddles` is the twiddle of node i."""
        constants = np.empty(self.degree, twiddles.dtype)
        if self.degree == 1:
            constants[0] = self.wrap % q
        else:
            constants[::2] = w = twiddles[self.degree // 2 :]
            constants[1::2] = w.dtype.type(q) - w  # a node with twiddle w has leaves with constants w, -w
            if self.kind == "trinomial" and self.degree == 2:
                constants[1] = (1 - int(w[0])) % q  # a trinomial of degree 2 has leaves with w and 1 - w
        return constants

    def with_degree(self, degree: int) -> Quotient:
        """Return the polynomial of the same kind and another degree."""
        return Quotient(self.kind, degree)

    # ---- reduction ----

    def power_of_x(self, k: int) -> tuple[tuple[int, int], ...]:
        """Return X^k reduced, for any int k, as the exponent and the sign of each term."""
        period, half = self.cover.degree, self.degree // 2
        turns, exponent = divmod(k, period)
        sign = self.cover.wrap ** (turns % 2)
        if exponent < self.degree:
            return ((exponent, sign),)
        # The polynomial is a trinomial: X^degree = X^half - 1. Multiply this by X^(exponent - degree).
        return (exponent - half, sign), (exponent - self.degree, -sign)

    @property
    def cover(self) -> Quotient:
        """The binomial of least degree that is a multiple of the polynomial."""
        if self.kind == "trinomial":  # times X^(degree/2) + 1
            return Quotient("negacyclic", self.degree // 2 * 3)
        return self

    @property
    def multiple(self) -> int:
        """A number m >= 2 * degree for which X^m - 1 is a multiple of the polynomial."""
        return 2 * self.cover.degree

    def folding(self, length: int) -> list[tuple[int, int, int, int]]:
        """Return how to reduce a polynomial of `length` coefficients modulo this one.

        Call this only if `length` is at most `multiple`. Each tuple (first, to, count, sign) of the result
        says: for i < count, add coefficient first + i, times sign, to coefficient to + i.
        """
        n, half = self.degree, self.degree // 2
        if self.is_binomial:
            runs = [(n, 0, n, self.wrap)]
        else:
            runs = [(n, half, half, 1), (n, 0, half, -1), (n + half, 0, n, -1)]
            runs += [(2 * n + half, half, half, -1), (2 * n + half, 0, half, 1)]
        return [
            (first, to, min(count, length - first), sign) for first, to, count, sign in runs if length > first
        ]

    # ---- texts ----

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
