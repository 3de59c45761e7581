"""CKKS ciphertexts with exact scales: encoding, sums, products, matrices, and polynomials of low depth.

A ciphertext encrypts its slots times its scale. Rescaling divides the scale by a prime that is only near a
power of two, so the scales of ciphertexts of different depth differ slightly. Here every constant is
encoded at a scale that cancels these differences exactly, so that they do not cause an error.

The other examples of CKKS, such as `ckks` and `bootstrapping`, use this module.

This is an example, not a product: it is not constant time, and nobody has reviewed it. Whoever sees a
ciphertext and its decrypted slots to full precision can compute the secret key (Li, Micciancio 2020/1533).
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
    """Ciphertexts (c_0, c_1) of CKKS.

    value: a Poly of batch shape (*batch, 2), evaluated, modulo the first limbs of Q. scale: the number by
    which the slots are multiplied in the phase c_0 + c_1 * s, where s is the secret.
    """

    value: pg.Poly
    scale: float

    @property
    def limbs(self) -> int:
        """The number of primes of Q that are left."""
        return len(self.value.ring.moduli)


# ---- slots ----


def encode(z: Any, ring: pg.Ring, scale: float | Fraction) -> pg.Poly:
    """Encode vectors (*batch, n/2), times the scale, as evaluated plaintexts of a ring.

    Raises:
        ParameterError: scale times a coefficient is too large for the ring.
        CoefficientError: z is not finite.
    """
    parts, exponent = _near_one(np.asarray(z, np.complex128))
    coefficients = fft.from_slots(parts)
    factor = Fraction(scale.item() if isinstance(scale, np.generic) else scale) * Fraction(2) ** exponent
    largest = abs(Fraction(np.max(abs(coefficients), initial=0)) * factor)
    # The noise of a fresh ciphertext, u * e + e_0 + e_1 * s, needs room too. u and s are ternary, and the
    # coefficients of e, e_0 and e_1 are at most 21. So the noise is at most 21 * (2 * N + 1).
    if 2 * (largest + 21 * (2 * ring.n + 1) + 1) >= ring.modulus:
        raise pg.ParameterError(
            f"A coefficient of z times the scale has {int(largest).bit_length()} bits, and the modulus of "
            f"{ring.modulus.bit_length()} bits does not hold it. Use a smaller scale or more limbs."
        )
    return ring.from_floats(coefficients, scale=factor).ntt()


def decode(m: pg.Poly, scale: float) -> Array:
    """Return the slots of plaintexts m, an array of shape (*batch, n/2)."""
    coefficients = m.cpu().to_float64()
    if np.isfinite(coefficients).all():
        parts, exponent = _near_one(coefficients / scale)
    else:  # too large for doubles; a quotient of Python ints is rounded once, even if the ints are large
        top, bottom = scale.as_integer_ratio()
        exact: Array = m.cpu().to_bigints(centered=True)
        quotients = [int(x) * bottom / top for x in exact.flat]
        parts, exponent = _near_one(np.array(quotients).reshape(exact.shape))
    return _times_power(fft.to_slots(parts), exponent)


def phase(secret: pg.Poly, c: Ciphertext) -> pg.Poly:
    """Return the phases c_0 + c_1 * s, of batch shape (*batch,). They encode scale * slots, plus noise."""
    return pg.fma(c.value[..., 1], secret, c.value[..., 0], ring=c.value.ring)


def decrypt(secret: pg.Poly, c: Ciphertext) -> Array:
    """Decrypt c to its slots, an array of shape (*batch, n/2)."""
    return decode(phase(secret, c), c.scale)


def _near_one(x: Array) -> tuple[Array, int]:
    """Return (x / 2^e, e) with an int e. A transform of x / 2^e does not overflow.

    Real and imaginary parts of x / 2^e are below 1 in absolute value.
    """
    largest = np.max(abs(np.ascontiguousarray(x).view(np.float64)), initial=0)
    if not np.isfinite(largest):
        raise pg.errors.CoefficientError("A number is infinite or NaN. Look for an overflow before it.")
    exponent = int(np.frexp(largest)[1])
    return _times_power(x, -exponent), exponent


def _times_power(x: Array, exponent: int) -> Array:
    """Return x times 2^exponent, even if 2^exponent itself is too large for a double."""
    return np.ldexp(np.ascontiguousarray(x).view(np.float64), exponent).view(x.dtype)


# ---- sums and products ----

_CLOSE = 2.0**-20  # scales with at most this relative difference count as equal


def rescale(c: Ciphertext) -> Ciphertext:
    """Divide the phase and the scale of c by the last prime of its ring, and drop this prime."""
    return Ciphertext(c.value.rescale(), c.scale / c.value.ring.moduli[-1])


def galois_element(n: int, k: int) -> int:
    """Return the g for which X -> X^g rotates the n/2 slots left by k. A negative k rotates them right."""
    return pow(5, operator.index(k), 2 * n)


def add(x: Ciphertext, y: Ciphertext) -> Ciphertext:
    """Return x + y modulo the limbs that both have; batches broadcast.

    If the scales differ, the operand with more limbs is multiplied by an integer and divided by one of its
    surplus primes. It then has the scale of the other operand.

    Raises:
        ParameterError: the scales differ by more than a factor 1 + 2^-20 and cannot be made equal. They
            cannot if x and y have the same number of limbs, or if no integer factor is close enough.
    """
    x, y = sorted((x, y), key=lambda c: c.limbs, reverse=True)
    if x.limbs > y.limbs and x.scale != y.scale:
        ring = x.value.ring[: y.limbs + 1]
        factor = _ratio(y.scale * ring.moduli[-1], x.scale)
        x = rescale(Ciphertext(pg.combine([factor], [x.value], ring=ring), factor * x.scale))
    if not math.isclose(x.scale, y.scale, rel_tol=_CLOSE):
        raise pg.ParameterError(
            f"The scales {x.scale} and {y.scale} differ. Rescale both operands, or encode one with the scale "
            "of the other."
        )
    return Ciphertext(x.value.add(y.value, ring=y.value.ring), y.scale)


def _ratio(scale: float, of: float) -> int:
    """Return scale / of, rounded. Raise ParameterError if its relative distance to an int exceeds 2^-20."""
    ratio = scale / of
    if not math.isclose(ratio, round(ratio), rel_tol=_CLOSE):
        raise pg.ParameterError(
            f"The scales {of} and {scale} differ by a factor that is not close to an integer. Rescale the "
            "operand with the larger scale."
        )
    return round(ratio)


def transform(
    c: Ciphertext, matrix: lattice.LinearTransform, rotations: Mapping[int, lattice.SwitchKey]
) -> Ciphertext:
    """Return the matrix times the slots of c, rescaled.

    rotations: a dict from Galois elements to keys that lattice.rotation_keys made with turned=True.
    """
    value = lattice.transform(c.value, matrix, rotations, rescale=1)
    return Ciphertext(value, c.scale * float(matrix.scale / matrix.ring.moduli[-1]))


class Sum(NamedTuple):
    """A sum that is not yet relinearised: products of two ciphertexts, plus one more ciphertext.

    products: the pairs of factors. rest: the ciphertext that is added, in the ring of the sum.
    """

    products: list[tuple[pg.Poly, pg.Poly]]
    rest: pg.Poly


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """Sums and products of ciphertexts modulo the first limbs of a ring Q.

    Operands may have different numbers of limbs. Surplus limbs are ignored. `relin` is a key that switches
    from s^2 to s, where s is the secret, and has at least as many limbs as every product.
    """

    ring: pg.Ring
    relin: lattice.SwitchKey

    def rescaled(self, total: Sum, scale: float) -> Ciphertext:
        """Relinearise a sum and divide it by the last prime of its ring. `scale` is the scale of the sum."""
        ring = total.rest.ring
        if not total.products:
            return rescale(Ciphertext(total.rest, scale))
        a, b = zip(*total.products, strict=True)
        value = lattice.inner_product(a, b, self.relin, add=total.rest, rescale=1, ring=ring)
        return Ciphertext(value, scale / ring.moduli[-1])

    def product(self, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        """Return x * y, relinearised and rescaled."""
        return self._product(x, y, min(x.limbs, y.limbs), x.scale * y.scale)

    def doubled_product(self, x: Ciphertext, y: Ciphertext, minus: Ciphertext | float) -> Ciphertext:
        """Return 2 * x * y - minus, relinearised and rescaled.

        `minus` is a number, or a ciphertext with the batch shape of the product. The factor 2 costs nothing:
        a ciphertext of x * y with some scale is also a ciphertext of 2 * x * y with half of this scale. Let q
        be the last prime. If x and y have scales near 2 q, the scale of x * y is near 4 q^2. So the scale of
        2 * x * y is near 2 q^2, and after division by q it is near 2 q again.

        Raises:
            ParameterError: the scale of the product is not close to an integer times that of `minus`.
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
        """Return x * y + add modulo the first `limbs` limbs, rescaled. `scale` is the scale of x * y."""
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
        """Return the sum of c_i * b_i(x) at the given scale, where b_i(x) is x^i or the Chebyshev T_i(x).

        A polynomial of degree d uses up bit_length(d) limbs of x, and at least one must be left. Chebyshev
        series need slots of x in [-1, 1]. The result has exactly the given scale, for any scale of x. It is
        most precise if the scale of x is near the primes of its ring, or, for a Chebyshev series, near twice
        these primes.

        The baby steps are b_1 ... b_(baby - 1), where `baby` is a power of two. The giant steps are b_j for
        j = baby, 2 * baby, 4 * baby, ... up to d. A series is split into quotient times b_j, plus rest, where
        j is the largest power of two up to its degree. The product of quotient and b_j is added to the rest,
        and only the sum is relinearised (Paterson, Stockmeyer 1973; Bossuat, Mouchet, Troncoso-Pastoriza,
        Hubaux 2020/1203, section 5).

        Raises:
            ParameterError: the list of coefficients is empty, x has too few limbs, `basis` is unknown, or
                `baby` is not a power of two of at least 2.
            CoefficientError: a coefficient is infinite or NaN.
        """
        series = _Series(self, x, basis, baby)
        given = np.asarray(coefficients, np.float64)
        if given.ndim != 1 or not given.size:
            raise pg.ParameterError(
                f"The shape of coefficients is {given.shape}. It must be a list of at least one number, such "
                "as [0] for the polynomial 0."
            )
        if not np.isfinite(given).all():
            raise pg.errors.CoefficientError(
                "coefficients contains a number that is infinite or NaN. Give finite numbers."
            )
        c = np.trim_zeros(given, "b")
        if len(c) < 2:
            constant = np.array([round(float(c.sum()) * scale), 0], object)
            return Ciphertext(pg.combine([0], [x.value], constant=constant), scale)
        degree = len(c) - 1
        depth = degree.bit_length()
        if x.limbs <= depth:
            raise pg.ParameterError(
                f"x has {x.limbs} limbs, but a polynomial of degree {degree} uses {depth} and must leave at "
                "least one. Use a smaller degree, or bootstrap x before."
            )
        limbs = x.limbs - depth + 1
        series.make_steps(degree)
        wide = scale * self.ring.moduli[limbs - 1]
        return self.rescaled(series.evaluate(c, limbs, wide), wide)


class _Series:
    """The evaluation of a series, the sum of c_i * b_i(x) where b_i(x) is x^i or the Chebyshev T_i(x).

    steps: a dict from i to the ciphertext of b_i(x).
    """

    def __init__(self, arithmetic: Arithmetic, x: Ciphertext, basis: str, baby: int) -> None:
        self.is_chebyshev = basis == "chebyshev"
        if basis not in ("power", "chebyshev"):
            raise pg.ParameterError(f"basis={basis!r} must be 'power' or 'chebyshev'.")
        if baby < 2 or baby & (baby - 1):
            raise pg.ParameterError(f"baby={baby} must be a power of two of at least 2, such as 8.")
        # Let q be the last prime, and S = q, or S = 2 q in a Chebyshev series. If b_i and b_j have the scale
        # S, their rescaled product has the scale S. If the scale of x = b_1 were smaller than S, the scales
        # of b_2, b_4, ... would become smaller and smaller. So x is multiplied by an integer that brings its
        # scale near S. The multiplication does not use up a limb.
        q = x.value.ring.moduli[-1]
        factor = round((2 if self.is_chebyshev else 1) * q / x.scale)
        if factor > 1:
            x = Ciphertext(x.value * factor, x.scale * factor)
        self.arithmetic, self.steps, self.baby = arithmetic, {1: x}, baby

    def make_steps(self, degree: int) -> None:
        """Compute the baby steps and giant steps for polynomials of degree `degree`."""
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
            else:  # T_(a + b) = 2 * T_a * T_b - T_(a - b)
                difference = 2 * high - i
                minus = self._step(difference) if difference else 1.0
                self.steps[i] = self.arithmetic.doubled_product(a, b, minus)
        return self.steps[i]

    def evaluate(self, c: Array, limbs: int, scale: float) -> Sum:
        """Return the value of the series with coefficients c.

        The result has the given scale, and the first `limbs` limbs.
        """
        c = c[: max(1, len(np.trim_zeros(c, "b")))]
        degree, own, ring = len(c) - 1, self.arithmetic, self.arithmetic.ring[:limbs]
        # Low degree: multiply baby steps by constants, if the baby steps have at least `limbs` limbs.
        if degree < self.baby and (degree == 0 or self.steps[degree].limbs >= limbs):
            return Sum([], self._combination(c, ring, scale))
        j = 1 << (degree.bit_length() - 1)
        rest, quotient = c[:j].copy(), c[j:].copy()
        if self.is_chebyshev:  # T_i = 2 * T_j * T_(i - j) - T_(2 * j - i) for i > j
            quotient[1:] *= 2
            rest[2 * j - degree :] -= c[:j:-1]
        # The quotient has one limb more than the result, and the scale `inner`. The rescaled quotient times
        # b_j has the scale of the result.
        step = self.steps[j]
        inner = scale / step.scale * own.ring.moduli[limbs]
        high = own.rescaled(self.evaluate(quotient, limbs + 1, inner), inner)
        low = self.evaluate(rest, limbs, scale)
        return low._replace(products=[(high.value, step.value), *low.products])

    def _combination(self, c: Array, ring: pg.Ring, scale: float) -> pg.Poly:
        """Return c_0 + c_1 * b_1 + ... at `scale`.

        Each b_i is multiplied by the integer nearest to c_i * scale / s_i, where s_i is the scale of b_i.
        """
        terms = [i for i in range(1, len(c)) if c[i]] or [1]
        factors = [round(c[i] * (scale / self.steps[i].scale)) if i < len(c) else 0 for i in terms]
        values = [self.steps[i].value for i in terms]
        return pg.combine(factors, values, constant=np.array([round(c[0] * scale), 0], object), ring=ring)
