"""CKKS ciphertexts with exact scales: encoding, sums, products, matrices, and polynomials of few levels.

A ciphertext holds `scale` times its slots. Rescaling divides the scale by a prime near a power of two, so
scales of different depth differ slightly. Here every constant is multiplied by the scale that its term needs,
so that no error comes from the difference.

The examples `ckks` and `bootstrapping` are written with this module.

An example, not a product: it is not constant time, and nobody has reviewed it. Whoever sees a ciphertext and
its decrypted slots to full precision computes the secret key (Li, Micciancio 2020/1533).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

import polygpu as pg
from polygpu import fft, lattice

Array = NDArray[Any]


class Ciphertext(NamedTuple):
    """value: (*batch, 2), evaluated, modulo the first limbs of Q. scale: of the phase over the slots."""

    value: pg.Poly
    scale: float

    @property
    def limbs(self) -> int:
        """How many primes of Q are left."""
        return len(self.value.ring.moduli)


# ---- slots ----


def encode(z: Any, ring: pg.Ring, scale: float | Fraction) -> pg.Poly:
    """Encode vectors (*batch, n/2) as an evaluated plaintext of a ring.

    Raises:
        ParameterError: scale times a coefficient is too large for the ring.
        CoefficientError: z is not finite.
    """
    parts, exponent = _near_one(np.asarray(z, np.complex128))
    coefficients = fft.from_slots(parts)
    factor = Fraction(scale.item() if isinstance(scale, np.generic) else scale) * Fraction(2) ** exponent
    largest = abs(Fraction(np.max(abs(coefficients), initial=0)) * factor)
    # The noise of a fresh ciphertext, u e + e_0 + e_1 s, has coefficients of at most 21 (2 N + 1).
    if 2 * (largest + 21 * (2 * ring.n + 1) + 1) >= ring.modulus:
        raise pg.ParameterError(
            f"z: a coefficient times the scale has {int(largest).bit_length()} bits, and the modulus, of "
            f"{ring.modulus.bit_length()} bits, does not hold it. Take a smaller scale or more limbs."
        )
    return ring.from_floats(coefficients, scale=factor).ntt()


def decode(m: pg.Poly, scale: float) -> Array:
    """Return the slots (*batch, n/2) of a plaintext."""
    coefficients = m.cpu().to_float64()
    if np.isfinite(coefficients).all():
        parts, exponent = _near_one(coefficients / scale)
    else:  # larger than doubles: a quotient of Python ints is rounded once, however large they are
        top, bottom = scale.as_integer_ratio()
        exact: Array = m.cpu().to_bigints(centered=True)
        quotients = [int(x) * bottom / top for x in exact.flat]
        parts, exponent = _near_one(np.array(quotients).reshape(exact.shape))
    return _times_power(fft.to_slots(parts), exponent)


def phase(secret: pg.Poly, c: Ciphertext) -> pg.Poly:
    """Return c_0 + c_1 s, (*batch): scale times the slots, plus noise."""
    return pg.fma(c.value[..., 1], secret, c.value[..., 0], ring=c.value.ring)


def decrypt(secret: pg.Poly, c: Ciphertext) -> Array:
    """Return the slots, (*batch, n/2)."""
    return decode(phase(secret, c), c.scale)


def _near_one(x: Array) -> tuple[Array, int]:
    """Return x divided by the power 2^e that makes its largest part less than 1, and e.

    No sum in a transform of such numbers overflows.
    """
    largest = np.max(abs(np.ascontiguousarray(x).view(np.float64)), initial=0)
    if not np.isfinite(largest):
        raise pg.errors.CoefficientError("a number is infinite or NaN. Look for an overflow before it.")
    exponent = int(np.frexp(largest)[1])
    return _times_power(x, -exponent), exponent


def _times_power(x: Array, exponent: int) -> Array:
    """Return x times 2^exponent, a factor that may be too large for a double."""
    return np.ldexp(np.ascontiguousarray(x).view(np.float64), exponent).view(x.dtype)


# ---- sums and products ----

_CLOSE = 2.0**-20  # relative difference of scales that are taken as equal


def rescale(c: Ciphertext) -> Ciphertext:
    """Divide phase and scale by the last prime."""
    return Ciphertext(c.value.rescale(), c.scale / c.value.ring.moduli[-1])


def galois_element(n: int, k: int) -> int:
    """Return the g for which X -> X^g turns the n/2 slots left by k, an int of either sign."""
    return pow(5, operator.index(k), 2 * n)


def add(x: Ciphertext, y: Ciphertext) -> Ciphertext:
    """Return x + y modulo the limbs of both; batches broadcast.

    If one operand has more limbs, its last surplus limb brings it to the scale of the other.

    Raises:
        ParameterError: The scales differ by more than 2^-20, and a surplus limb to mend it is missing.
    """
    x, y = sorted((x, y), key=lambda c: c.limbs, reverse=True)
    if x.limbs > y.limbs and x.scale != y.scale:
        ring = x.value.ring[: y.limbs + 1]
        factor = _ratio(y.scale * ring.moduli[-1], x.scale)
        x = rescale(Ciphertext(pg.combine([factor], [x.value], ring=ring), factor * x.scale))
    if not math.isclose(x.scale, y.scale, rel_tol=_CLOSE):
        raise pg.ParameterError(
            f"scales {x.scale} and {y.scale} differ. Rescale both, or encode with the other's scale."
        )
    return Ciphertext(x.value.add(y.value, ring=y.value.ring), y.scale)


def _ratio(scale: float, of: float) -> int:
    """Return scale / of, by which a value of scale `of` is multiplied. An integer must be close to it."""
    ratio = scale / of
    if not math.isclose(ratio, round(ratio), rel_tol=_CLOSE):
        raise pg.ParameterError(
            f"scales {of} and {scale} differ by a factor that is not close to an integer. Rescale the "
            "operand with the larger scale."
        )
    return round(ratio)


def transform(
    c: Ciphertext, matrix: lattice.LinearTransform, rotations: Mapping[int, lattice.SwitchKey]
) -> Ciphertext:
    """Return a matrix times the slots, rescaled. rotations: turned keys by their Galois elements."""
    value = lattice.transform(c.value, matrix, rotations, rescale=1)
    return Ciphertext(value, c.scale * float(matrix.scale / matrix.ring.moduli[-1]))


class Sum(NamedTuple):
    """A sum of products x y, not relinearised, and of a ciphertext, modulo the ring of that one."""

    products: list[tuple[pg.Poly, pg.Poly]]
    rest: pg.Poly


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """Sums and products of ciphertexts modulo the first limbs of a ring Q.

    Operands may have different numbers of limbs: surplus ones are not read. `relin` switches from s^2 to s,
    at the limbs of all products.
    """

    ring: pg.Ring
    relin: lattice.SwitchKey

    def rescaled(self, total: Sum, scale: float) -> Ciphertext:
        """Return a sum, relinearised and divided by its last prime; `scale` is that before."""
        ring = total.rest.ring
        if not total.products:
            return rescale(Ciphertext(total.rest, scale))
        a, b = zip(*total.products, strict=True)
        value = lattice.inner_product(a, b, self.relin, add=total.rest, rescale=1, ring=ring)
        return Ciphertext(value, scale / ring.moduli[-1])

    def product(self, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        """Return x y, relinearised and rescaled."""
        return self._product(x, y, min(x.limbs, y.limbs), x.scale * y.scale)

    def doubled_product(self, x: Ciphertext, y: Ciphertext, minus: Ciphertext | float) -> Ciphertext:
        """Return 2 x y - minus. A ciphertext `minus` has the batch shape of the product.

        If the scales allow it, the factor 2 costs nothing: it halves the scale. So scales of twice the primes
        stay what they are.

        Raises:
            ParameterError: The scale of `minus` is not small beside that of x y.
        """
        limbs, scale = min(x.limbs, y.limbs), x.scale * y.scale
        if isinstance(minus, Ciphertext):
            limbs = min(limbs, minus.limbs)
        if scale > self.ring.moduli[limbs - 1] ** 2 * 1.5:
            scale /= 2
        else:
            x = Ciphertext(x.value + x.value, x.scale)
        if isinstance(minus, Ciphertext):
            add = pg.combine([-_ratio(scale, minus.scale)], [minus.value], ring=self.ring[:limbs])
            return self._product(x, y, limbs, scale, add)
        return self.plus(self._product(x, y, limbs, scale), -minus)

    def _product(
        self, x: Ciphertext, y: Ciphertext, limbs: int, scale: float, add: pg.Poly | None = None
    ) -> Ciphertext:
        """Return x y + add modulo the first limbs, divided by the last one; `scale` is that before."""
        ring = self.ring[:limbs]
        value = lattice.multiply(x.value, y.value, self.relin, add=add, rescale=1, ring=ring)
        return Ciphertext(value, scale / ring.moduli[-1])

    def plus(self, x: Ciphertext, constant: float) -> Ciphertext:
        """Return x plus a real constant."""
        added = np.array([round(constant * x.scale), 0], object)
        return Ciphertext(pg.combine([1], [x.value], constant=added), x.scale)

    # ---- polynomials ----

    def polynomial(
        self,
        x: Ciphertext,
        coefficients: Any,
        scale: float,
        *,
        basis: Literal["power", "chebyshev"] = "power",
        baby: int = 8,
    ) -> Ciphertext:
        """Return the sum of c_i b_i(x) at the given scale, where b_i is x^i or the Chebyshev polynomial T_i.

        Degree d takes bit_length(d) limbs of x, and leaves at least one. Chebyshev series need slots of x in
        [-1, 1]. The scale of the result is exact, whatever that of x is. Steps are most precise if x has
        about the scale of its primes, or twice that for Chebyshev series.

        The baby steps are b_1 ... b_(baby - 1), where `baby` is a power of two; the giant steps are b_j for
        the powers of two above. A series of degree d is split by the giant step j into quotient b_j + rest.
        The quotient is multiplied before it is relinearised together with the rest (Paterson, Stockmeyer
        1973; Bossuat, Mouchet, Troncoso-Pastoriza, Hubaux 2020/1203, section 5).

        Raises:
            ParameterError: The list of coefficients is empty, x has too few limbs, or `basis` or `baby` is
                wrong.
            CoefficientError: A coefficient is infinite or NaN.
        """
        series = _Series(self, x, basis, baby)
        given = np.asarray(coefficients, np.float64)
        if given.ndim != 1 or not given.size:
            what = f"there are none (shape {given.shape})" if not given.size else f"shape {given.shape}"
            raise pg.ParameterError(f"coefficients: {what}. Pass a list, such as [0] for the polynomial 0.")
        if not np.isfinite(given).all():
            raise pg.errors.CoefficientError("coefficients: one is infinite or NaN. Pass finite numbers.")
        c = np.trim_zeros(given, "b")
        if len(c) < 2:
            constant = np.array([round(float(c.sum()) * scale), 0], object)
            return Ciphertext(pg.combine([0], [x.value], constant=constant), scale)
        degree = len(c) - 1
        depth = degree.bit_length()
        if x.limbs <= depth:
            raise pg.ParameterError(
                f"x: has {x.limbs} limbs, and degree {degree} takes {depth} and leaves at least one. Take a "
                "smaller degree, or bootstrap x before."
            )
        limbs = x.limbs - depth + 1
        series.make_steps(degree)
        wide = scale * self.ring.moduli[limbs - 1]
        return self.rescaled(series.evaluate(c, limbs, wide), wide)


class _Series:
    """The steps of one evaluation of a polynomial: b_i(x) by i."""

    def __init__(self, arithmetic: Arithmetic, x: Ciphertext, basis: str, baby: int) -> None:
        self.is_chebyshev = basis == "chebyshev"
        if basis not in ("power", "chebyshev"):
            raise pg.ParameterError(f"basis: {basis!r} must be 'power' or 'chebyshev'.")
        if baby < 2 or baby & (baby - 1):
            raise pg.ParameterError(f"baby: {baby} must be a power of two of at least 2, such as 8.")
        # Steps keep the scale q, or 2 q if products are doubled. From a smaller one, b_j would have that of
        # x to the power j. An integer factor brings x near, without a limb.
        q = x.value.ring.moduli[-1]
        factor = round((2 if self.is_chebyshev else 1) * q / x.scale)
        if factor > 1:
            x = Ciphertext(x.value * factor, x.scale * factor)
        self.arithmetic, self.steps, self.baby = arithmetic, {1: x}, baby

    def make_steps(self, degree: int) -> None:
        """Make the baby steps and giant steps of a degree."""
        for i in range(2, min(self.baby, degree + 1)):
            self._step(i)
        i = self.baby
        while i <= degree:
            self._step(i)
            i *= 2

    def _step(self, i: int) -> Ciphertext:
        if i not in self.steps:
            high = 1 << ((i - 1).bit_length() - 1)  # the largest power of two below i
            a, b = self._step(high), self._step(i - high)
            if not self.is_chebyshev:
                self.steps[i] = self.arithmetic.product(a, b)
            else:  # T_(a + b) = 2 T_a T_b - T_(a - b)
                difference = 2 * high - i
                minus = self._step(difference) if difference else 1.0
                self.steps[i] = self.arithmetic.doubled_product(a, b, minus)
        return self.steps[i]

    def evaluate(self, c: Array, limbs: int, scale: float) -> Sum:
        """Return the series modulo the first limbs and of a scale, not relinearised."""
        c = c[: max(1, len(np.trim_zeros(c, "b")))]
        degree, own, ring = len(c) - 1, self.arithmetic, self.arithmetic.ring[:limbs]
        if degree < self.baby and (degree == 0 or self.steps[degree].limbs >= limbs):
            return Sum([], self._combination(c, ring, scale))
        j = 1 << (degree.bit_length() - 1)
        rest, quotient = c[:j].copy(), c[j:].copy()
        if self.is_chebyshev:  # T_i = 2 T_j T_(i - j) - T_(2 j - i)
            quotient[1:] *= 2
            rest[2 * j - degree :] -= c[:j:-1]
        step = self.steps[j]
        inner = scale / step.scale * own.ring.moduli[limbs]
        high = own.rescaled(self.evaluate(quotient, limbs + 1, inner), inner)
        low = self.evaluate(rest, limbs, scale)
        return low._replace(products=[(high.value, step.value), *low.products])

    def _combination(self, c: Array, ring: pg.Ring, scale: float) -> pg.Poly:
        """Return c_0 + c_1 b_1 + ...: constants are integers, c_i times the scale over that of b_i."""
        terms = [i for i in range(1, len(c)) if c[i]] or [1]
        factors = [round(c[i] * (scale / self.steps[i].scale)) if i < len(c) else 0 for i in terms]
        values = [self.steps[i].value for i in terms]
        return pg.combine(factors, values, constant=np.array([round(c[0] * scale), 0], object), ring=ring)
