"""LWE vectors, body first: extraction from ciphertexts, digits, key switching and modulus switching."""

from __future__ import annotations

import numpy as np

from .._backends import Array, Backend, backend_of
from .._core.checks import integer, shown
from .._core.plans.basis import Basis, basis_of
from .._core.plans.gadget import Gadget
from .._core.value import Value
from ..errors import DeviceError, ParameterError
from .arrays import as_integers, contiguous, empty
from .calls import repeated
from .gadget import digits_plan
from .integers import from_integers
from .pointwise import neg
from .results import check_apart, result
from .transform import intt


@repeated
def extract(c: Value, index: object, *, out: None = None) -> Array:
    """Return LWE vectors whose phase is coefficient `index` of the phase of c.

    c has batch shape (*batch, k). The vectors have shape (*batch, 1 + (k - 1) n), the body first.

    Let a be a mask and s its secret. Coefficient i of a*s is the sum over j of a_(i - j) * s_j. If j > i,
    a_(i - j) means a_(n + i - j) * X^n. X^n is 1 or -1.
    """
    ring, i = c._plan, integer(index, "i")
    if not 0 <= i < ring.n:
        raise ParameterError(f"i={shown(i)} must be in [0, {ring.n}). It is the index of a coefficient.")
    ring.check_binomial("The ring of c")
    if len(ring.moduli) != 1 or ring.basis.wide:
        raise ParameterError(
            f"c is in {ring!r}, and LWE vectors need one modulus of at most 2**64. Bring c to such a ring "
            "first."
        )
    if not c._batch or c._batch[-1] < 2:
        raise ParameterError(
            f"The batch shape of c is {c._batch}. Its last axis must have at least 2 entries, the components "
            "of a ciphertext."
        )
    x, compute = intt(c)._data, backend_of(c._data)
    batch, k, n = c._batch[:-1], c._batch[-1] - 1, ring.n
    wrapped = x if ring.quotient.wrap == 1 else neg(ring.basis, x)
    vectors = empty(compute, (*batch, 1 + k * n), x.dtype)
    of_masks = vectors[..., 1:].reshape(*batch, k, n)
    compute.copy(x[..., 0, 0, i : i + 1], vectors[..., :1])
    compute.copy(x[..., 1:, 0, : i + 1][..., ::-1], of_masks[..., : i + 1])
    compute.copy(wrapped[..., 1:, 0, i + 1 :][..., ::-1], of_masks[..., i + 1 :])
    return vectors


def decompose_integers(x: object, q: object, bits: object, levels: object) -> Array:
    """Return the digits of integers modulo q as int64, along a new last axis."""
    basis = _modulus(q)
    gadget, words = digits_plan(basis, bits, levels), _words(basis, x, "x")
    return _signed_digits(backend_of(words), gadget, words)


def _signed_digits(compute: Backend, gadget: Gadget, words: Array) -> Array:
    """Return the digits of C-contiguous residues as int64, along a new last axis."""
    digits = empty(compute, (1, words.size, gadget.levels), np.dtype(np.int64))
    compute.signed_digits(gadget, words.reshape(1, words.size), digits)
    return digits.reshape(*words.shape, gadget.levels)


def _words(basis: Basis, x: object, name: str) -> Array:
    """Return integers as residues in [0, q), a C-contiguous array in the dtype of the basis."""
    integers = as_integers(x, name)
    if integers.dtype == basis.dtype and basis.moduli[0] == 1 << 8 * basis.dtype.itemsize:
        return contiguous(integers)
    compute = backend_of(integers)
    return from_integers(basis, integers.size, integers.reshape(-1), compute).reshape(integers.shape)


def _modulus(q: object) -> Basis:
    modulus = integer(q, "q")
    if not 2 <= modulus <= 1 << 64:
        raise ParameterError(f"q={shown(modulus)} must be from 2 to 2**64.")
    return basis_of((modulus,))


def switch(x: object, key: object, q: object, bits: object, levels: object, out: Array | None) -> Array:
    """Return LWE vectors under another key: (x_0, 0, ..., 0) + (digits of x's masks) * `key`."""
    basis = _modulus(q)
    gadget = digits_plan(basis, bits, levels)
    vectors, rows = _words(basis, x, "x"), _words(basis, key, "key")
    compute = backend_of(vectors)
    if backend_of(rows).name != compute.name:
        raise DeviceError(
            f"key is on {backend_of(rows).name} and x is on {compute.name}. Copy one of them to the other's "
            "device."
        )
    m = vectors.shape[-1] - 1 if vectors.ndim else 0
    if vectors.ndim < 1 or m < 1 or rows.ndim != 2 or len(rows) != m * gadget.levels:
        raise ParameterError(
            f"x has shape {vectors.shape} and key has shape {rows.shape}. x must have shape (*batch, m + "
            f"1), and key must have shape (m * {gadget.levels}, n + 1), with m at least 1."
        )
    shape = (*vectors.shape[:-1], rows.shape[1])
    data = result(compute, shape, basis.dtype, out, vectors, rows)
    check_apart(out, rows)
    items = vectors.reshape(-1, m + 1)
    target, count = data.reshape(len(items), rows.shape[1]), len(items)
    if data.size:  # the bodies are copied first if the product overwrites x
        bodies = contiguous(items[:, 0]) if data is not vectors else items[:, 0].copy()
        digits = _digits(compute, gadget, items[:, 1:]).reshape(1, count, m * gadget.levels)
        compute.matmul(basis, digits, rows[None], target[None])
        _add_bodies(compute, basis, target, bodies)
    return data


def _digits(compute: Backend, gadget: Gadget, masks: Array) -> Array:
    """Return the digits of masks (rows, n), as an array (rows, n, levels).

    If digits have at most 16 bits and compute.prefers_bytes() is True, the dtype is int8 or int16. Otherwise
    the digits are residues.
    """
    rows, n = masks.shape
    if gadget.bits <= 16 and compute.prefers_bytes(gadget.basis, rows):
        small = empty(compute, (rows, n, gadget.levels), np.dtype(np.int8 if gadget.bits <= 8 else np.int16))
        compute.signed_digits(gadget, masks, small)
        return small
    words = empty(compute, (rows, gadget.levels, 1, n), masks.dtype)
    compute.decompose(gadget, contiguous(masks)[:, None], words)
    with compute.device_scope():
        turned: Array = compute.xp.moveaxis(words[:, :, 0], 1, 2)
        return contiguous(turned)


def _add_bodies(compute: Backend, basis: Basis, sums: Array, bodies: Array) -> None:
    """Add bodies[i] to the first entry of row i of `sums`, modulo q."""
    q, word = basis.moduli[0], basis.dtype.type
    with compute.device_scope():
        total = sums[:, 0] + bodies
        if q < 1 << 8 * basis.dtype.itemsize:  # otherwise q is 2^32 or 2^64, and words wrap modulo q
            wraps = (total < sums[:, 0]) | (total >= word(q))
            total = compute.xp.where(wraps, total - word(q), total)
        sums[:, 0] = total


def modulus_switch(x: object, q: object, to: object, centered_mean: object) -> Array:
    """Return x * to / q, rounded to the nearest integer modulo `to`, as int64 in [0, to).

    centered_mean: whether half the sum of a mask's rounding errors is added to the body before the body is
    rounded. If the secret has random bits, the addition cancels the mean error that the mask causes in the
    phase.
    """
    basis, target = _modulus(q), integer(to, "to")
    modulus = basis.moduli[0]
    if target < 2 or target & target - 1 or target > min(modulus, 1 << 32):
        raise ParameterError(f"to={shown(target)} must be a power of two from 2 to 2**32, and at most q.")
    if not isinstance(centered_mean, bool):
        raise ParameterError(f"centered_mean={shown(centered_mean)} must be True or False.")
    vectors, bits = _words(basis, x, "x"), target.bit_length() - 1
    if centered_mean and vectors.ndim < 1:
        raise ParameterError("x is a single number. With centered_mean=True, give vectors (*batch, n + 1).")
    compute = backend_of(vectors)
    nearest = _multiples(compute, basis, vectors, bits)
    with compute.device_scope():
        if centered_mean and vectors.size:
            # `rest` has the rounding errors of the masks, in units of (q / to) / 2^more.
            more = min(20, (modulus.bit_length() - 1) - bits)
            fine = _multiples(compute, basis, vectors, bits + more)
            mask = compute.xp.int64((1 << bits + more) - 1)
            half = compute.xp.int64(1 << bits + more >> 1)
            rest = (fine[..., 1:] - (nearest[..., 1:] << more) + half & mask) - half
            body = 2 * fine[..., 0] + rest.sum(-1) + (1 << more) >> more + 1
            nearest[..., 0] = body & compute.xp.int64(target - 1)
    return nearest


def _multiples(compute: Backend, basis: Basis, x: Array, bits: int) -> Array:
    """Return x * 2^bits / q, rounded as floor((2 * x * 2^bits + q) / (2 * q)), modulo 2^bits, as int64."""
    digits = _signed_digits(compute, digits_plan(basis, bits, 1), x)[..., 0]
    with compute.device_scope():
        multiples: Array = digits & compute.xp.int64((1 << bits) - 1)
        return multiples
