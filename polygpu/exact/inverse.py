"""Inverses in F_q[X]/(X^n - c), where a ring has no transform to take them pointwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import NotInvertible


def inverse_mod_prime(a: list[int], q: int, constant: int) -> list[int]:
    """The inverse of a mod X^n - constant over the field of q elements, by the extended Euclid.

    Cost: O(n^2). Raises NotInvertible where a and X^n - constant have a common factor.
    """
    n = len(a)
    # One product of residues fits int64 below 2^31; Python integers above.
    dtype: Any = np.int64 if q < 1 << 31 else object
    divisor = np.array([-constant % q, *[0] * (n - 1), 1], dtype=dtype)
    rest = np.array([*a, 0], dtype=dtype)
    # Invariant: divisor = s (X^n - c) + cofactor * a and the same for rest, with some s not kept.
    cofactor, rest_cofactor = np.zeros(n + 1, dtype), np.zeros(n + 1, dtype)
    rest_cofactor[0] = 1
    degree, rest_degree = n, _degree(rest, n)
    while rest_degree > 0:
        lead_inverse = pow(int(rest[rest_degree]), -1, q)
        while degree >= rest_degree:
            factor, shift = int(divisor[degree]) * lead_inverse % q, degree - rest_degree
            divisor[shift : degree + 1] = (divisor[shift : degree + 1] - factor * rest[: rest_degree + 1]) % q
            cofactor[shift:] = (cofactor[shift:] - factor * rest_cofactor[: n + 1 - shift]) % q
            degree = _degree(divisor, degree)
        divisor, rest, cofactor, rest_cofactor = rest, divisor, rest_cofactor, cofactor
        degree, rest_degree = rest_degree, degree
    if rest_degree < 0:
        raise NotInvertible(
            f"inverse: the polynomial shares a factor of degree {degree} with "
            f"X^{n} {'+' if constant < 0 else '-'} 1 mod {q}"
        )
    scaled = rest_cofactor[:n] * pow(int(rest[0]), -1, q) % q
    return [int(x) for x in scaled]


def _degree(a: Any, start: int) -> int:
    """Degree of a, known to be at most start; -1 for zero."""
    while start >= 0 and not a[start]:
        start -= 1
    return start


def inverse_mod_two(a: list[int]) -> list[int]:
    """The inverse of a mod X^n + 1 over the field of two elements; polynomials are the bits of ints."""
    n = len(a)
    divisor, rest = 1 << n | 1, sum((x & 1) << i for i, x in enumerate(a))
    cofactor, rest_cofactor = 0, 1
    while rest.bit_length() > 1:
        while divisor.bit_length() >= rest.bit_length():
            shift = divisor.bit_length() - rest.bit_length()
            divisor ^= rest << shift
            cofactor ^= rest_cofactor << shift
        divisor, rest, cofactor, rest_cofactor = rest, divisor, rest_cofactor, cofactor
    if rest == 0:
        raise NotInvertible(f"inverse: the polynomial shares a factor with X^{n} + 1 mod 2")
    # deg(cofactor) < n holds for the last one, as in every extended Euclid
    return [rest_cofactor >> i & 1 for i in range(n)]
