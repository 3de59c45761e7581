"""Random polynomials from a seed: ChaCha20 streams. Values do not depend on how a batch is split into calls.

The streams, fixed by test vectors (tests/test_sampling.py):
  key      SHA-256(label || tag || seed). Tag and seed are "int:" and Python's hex(seed), "str:" and the
           seed in UTF-8, or "bytes:" and the bytes. The label of uniform values is "polygpu uniform 1". The
           labels of other values name sampler, degree and parameter: "polygpu gaussian 1 n=1024 sigma=16/5 "
  nonce    8 bytes: the limb's index as uint32, then 0 as uint32, little-endian; the block counter has 64 bits
  uniform  coefficient j of polynomial i is the little-endian integer of the W + 1 words of 64 bits at
           byte 8 * (W + 1) * (i * n + j), reduced modulo q, where n is the degree and W is the number of
           words of a residue. The bias of a coefficient is at most 2^-64
  others   a coefficient is one integer for all limbs, made from the stream of limb 0 as written in
           _core/plans/sampling.py
Source of the cipher: Bernstein 2008, "ChaCha, a variant of Salsa20".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from .._backends import Array, Memory, backend, backend_for
from .._core.checks import checked_batch, exact_number, integer, shown
from .._core.plans import sampling as plans
from .._core.plans.basis import Basis
from .._core.plans.sampling import Sampler
from .._core.reporting import LONG, Work, counted
from ..errors import NotAnInteger, ParameterError
from .arrays import empty

_STREAM = 64 << 64  # bytes in the stream of one key and one limb

Seed = int | bytes | str | None
Batch = int | tuple[int, ...]


def key_of(seed: Seed, label: str = "polygpu uniform 1") -> bytes:
    """Return the cipher's key for the seed, an int, bytes or str. If the seed is None, the key is random."""
    import hashlib
    import secrets

    if seed is None:
        tagged = b"os:" + secrets.token_bytes(32)
    elif isinstance(seed, (bytes, str)):
        tagged = b"bytes:" + seed if isinstance(seed, bytes) else b"str:" + _utf8(seed)
    else:
        try:
            tagged = b"int:" + hex(integer(seed, "seed")).encode()
        except NotAnInteger:
            raise NotAnInteger(f"seed={shown(seed)} must be an int, bytes, str or None.") from None
    return hashlib.sha256(label.encode() + tagged).digest()


def _key(compute: Memory, seed: Seed, *label: str) -> bytes:
    """Return key_of(seed, *label). Raise ParameterError if seed is None inside polygpu.capture."""
    if seed is None and compute.is_recording():
        raise ParameterError(
            "seed=None cannot be used in a function that capture records, because each replay would give the "
            "same random values. Draw the values before you call capture and pass them as an argument, or "
            "give a seed."
        )
    return key_of(seed, *label)


def _utf8(seed: str) -> bytes:
    try:
        return seed.encode()
    except UnicodeEncodeError:
        raise ParameterError(f"seed={seed!r} cannot be encoded as UTF-8. Give bytes or an int.") from None


def _result(basis: Basis, n: int, batch: Batch, size: int, start: int) -> Array:
    """Check batch and start, and return a new array for the polynomials.

    size: the number of bytes of the stream for one coefficient.
    """
    shape = checked_batch(batch)
    out = empty(backend(), (*shape, basis.rows, n), basis.dtype)
    check_stream(n, size, start, prod(shape))
    return out


def check_stream(n: int, size: int, start: object, items: int) -> None:
    """Raise ParameterError unless the stream has the polynomials start ... start + items - 1.

    size: the number of bytes of the stream for one coefficient.
    """
    first = integer(start, "start")
    if first < 0:
        raise ParameterError(f"start={shown(start)} must be at least 0.")
    if first >> 48:
        raise ParameterError(f"start={shown(start)} must be below 2**48.")
    last = _STREAM // (size * n)
    if first + items > last:
        raise ParameterError(
            f"start={first} with {shown(items)} polynomials goes beyond the end of the stream, which has "
            f"{last} polynomials for n={n}. Use a smaller start, or another seed."
        )


def uniform(basis: Basis, n: int, batch: Batch, seed: Seed, start: int) -> Array:
    """Return uniform residues in [0, q), (*batch, rows, n): polynomials start, start + 1, ... of a stream."""
    out = _result(basis, n, batch, 8 * (basis.words + 1), start)
    compute = backend_for(basis, out)
    key = _key(compute, seed)
    if out.size < LONG:
        compute.uniform(basis, key, int(start), out)
    else:
        _draw(partial(compute.uniform, basis, key), int(start), out, compute)
    return out


def _small(basis: Basis, n: int, batch: Batch, sampler: Sampler, label: str, seed: Seed, start: int) -> Array:
    """Return residues (*batch, rows, n) of small random integers.

    label: the name of the sampler and its parameter, as text.
    """
    out = _result(basis, n, batch, sampler.size, start)
    name, _, parameter = label.partition(" ")
    compute = backend_for(basis, out)
    key = _key(compute, seed, f"polygpu {name} 1 n={n} {parameter} ")
    if out.size < LONG:
        compute.sample(basis, sampler, key, int(start), out)
    else:
        _draw(partial(compute.sample, basis, sampler, key), int(start), out, compute)
    return out


def _draw(draw: Callable[[int, Array], None], start: int, out: Array, compute: Memory) -> None:
    """Call draw(start, out). On the host, call it for pieces of the batch if progress is reported."""
    items = prod(out.shape[:-2])
    rows = out.reshape(items, *out.shape[-2:])
    with Work(items, "random values of {}", counted(items, "polynomial"), when=compute.xp is np) as work:
        for piece in work.pieces():
            draw(start + piece.start, rows[piece])


def ternary(basis: Basis, n: int, batch: Batch, weight: int | None, seed: Seed, start: int) -> Array:
    """Return residues of coefficients in {-1, 0, 1}; see Ring.ternary."""
    if weight is None:
        return _small(basis, n, batch, plans.TERNARY, "ternary weight=None", seed, start)
    h = integer(weight, "weight")
    if not 0 <= h <= n:
        raise ParameterError(
            f"weight={shown(weight)} must be in [0, n] for n={n}. It is the number of nonzero coefficients. "
            "Omit weight for coefficients that are independent."
        )
    return _small(basis, n, batch, plans.sparse(h), f"ternary weight={h}", seed, start)


def binomial(basis: Basis, n: int, batch: Batch, eta: int, seed: Seed, start: int) -> Array:
    """Return residues of coefficients with the centred binomial distribution; see Ring.binomial."""
    bits = integer(eta, "eta")
    if not 1 <= bits <= plans.ETA_MAX:
        raise ParameterError(
            f"eta={shown(eta)} must be in [1, {plans.ETA_MAX}]. The standard deviation sigma of the "
            "coefficients is sqrt(eta / 2). Use gaussian(sigma) for a larger sigma."
        )
    return _small(basis, n, batch, plans.binomial(bits), f"binomial eta={bits}", seed, start)


def gaussian(basis: Basis, n: int, batch: Batch, sigma: Any, seed: Seed, start: int) -> Array:
    """Return residues of coefficients with the discrete Gaussian distribution; see Ring.gaussian."""
    exact = exact_number(sigma)
    if exact is None or not plans.SIGMA_MIN <= exact <= plans.SIGMA_MAX:
        raise ParameterError(
            f"sigma={shown(sigma)} must be an int, a float or a Fraction from 0.5 to 2**20. Use ternary() or "
            "binomial(1) for narrower distributions, and random() for uniform values."
        )
    return _small(basis, n, batch, plans.gaussian(exact), f"gaussian sigma={exact}", seed, start)


def tuniform(basis: Basis, n: int, batch: Batch, b: int, seed: Seed, start: int) -> Array:
    """Return residues of coefficients in [-2^b, 2^b]; see Ring.tuniform."""
    bits = integer(b, "b")
    if not 0 <= bits <= plans.B_MAX:
        raise ParameterError(
            f"b={shown(b)} must be in [0, {plans.B_MAX}], for values in [-2**b, 2**b]. Use random() for "
            "values that are uniform in the whole ring."
        )
    return _small(basis, n, batch, plans.tuniform(bits), f"tuniform b={bits}", seed, start)
