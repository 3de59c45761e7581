"""Lattice cryptography above the ring: key switching, gadgets, products with gadget ciphertexts.

A ciphertext (RLWE) is a value of batch shape (*batch, k). Its phase is c_0 + c_1 s_1 + ... + c_(k-1) s_(k-1),
where s_i are the secrets. A ciphertext hides m if its phase is m plus a small noise.

A key that switches from s' to s consists of ciphertexts under s that hide multiples of s'. A GGSW ciphertext
of m has batch shape (k, levels, k): row (i, l) is a ciphertext that hides 0, with m g_l added to its
component i, where g_l are the weights of a gadget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _cpu
from .backends import Array
from .checks import integer
from .errors import DeviceError, DomainError, ParameterError, RingMismatch
from .ops import gadget as gadgets
from .ops import lattice as ops
from .ops.rns import Precision
from .poly import Poly, check_one_device, checked_poly, memory_of, without_last
from .ring import Ring

__all__ = [
    "Prepared",
    "blind_rotate",
    "cmux",
    "decompose",
    "decompose_integers",
    "external_product",
    "extract",
    "gadget",
    "key_switch",
    "prepare",
    "rotate_many",
]


def key_switch(
    a: Poly,
    key: Poly,
    size: int,
    special: Ring,
    conversion: Precision = "exact",
    out: Poly | None = None,
    add: Poly | None = None,
    rescale: int = 0,
) -> Poly:
    """A ciphertext (d_0, d_1) under s that hides a s': d_0 + d_1 s is a s' plus noise. Hybrid key switching.

    A ciphertext c_0 + c_1 s + c_2 s^2 is relinearised by key_switch(c_2, ..., add=(c_0, c_1)) with s' = s^2.
    A rotation X -> X^g takes s' = s(X^g).

    The result is, bit for bit, that of these steps: a.digits(T, size) with T = a.ring.join(special); the sum
    of digit_j key[j] in T; with `add`, P times that is added; mod_down to the ring of the result.

    Args:
        a: a value modulo q_0 ... q_(l-1), of any batch shape. Its moduli and the special ones are primes
            1 mod 2n (cyclic: 1 mod n).
        key: of batch shape (ceil(k / size), 2), evaluated, of the ring Q.join(special). Q has k limbs: those
            of a, and perhaps more after them. key[j] = (b_j, a_j) with b_j + a_j s = P g_j s' + e_j, where
            P = special.modulus, g = polygpu.rns.gadget(Q, size) and e_j is small. Limbs and digits of the key
            that a has not are skipped.
        size: limbs of a digit.
        special: the ring of P, coprime to Q. The noise stays small if P is about as large as the largest
            digit.
        conversion: "exact" or "fast", as of Poly.convert, for the digits and for the division by P.
        out: a Poly of the result's ring with batch shape (*batch, 2) to write into.
        add: a value of a's ring and domain, (*batch, 2), to add to the result; it costs less than a sum
            afterwards.
        rescale: how many limbs at the end of a's ring are divided away with P. The result, with what is
            added, is rounded once; `.rescale()` afterwards would round a second time and divide once more.

    Returns:
        A value of a.ring, or of a.ring[:-rescale], (*batch, 2), in a's domain. Its noise is about (sum over j
        of digit_j e_j) / P in size.

    Raises:
        NotNTTFriendly: the joined ring has no complete transform.
        RingMismatch: rings that do not fit, or digits of a that are not digits of the key.
        BadRoot: another root for a prime that two of the rings have.
        ParameterError: a key or `add` of another shape, moduli with a common factor, size < 1, rescale
            outside its range, or another word for conversion.
        DomainError: a key in coefficients, or `add` in another domain than a.
        DeviceError, OutputError: operands on two devices; `out` cannot take the result.

    Cost: with d digits, l limbs and p special ones: l + 2p inverse and d (l + p) + l forward transforms of an
    evaluated value. The key, 2 d (l + p) rows, is read once.
    Source: Han, Ki 2019/688, section 3.

    >>> import polygpu as pg
    >>> primes = pg.ntt_primes(8, 30, 3)
    >>> Q, P = pg.Ring(8, primes[:2]), pg.Ring(8, primes[2:])
    >>> T = Q.join(P)
    >>> s, t = T.ternary(seed=1).ntt(), T.ternary(seed=2).ntt()  # from t to s
    >>> mask, noise = T.random(2, seed=3).ntt(), T.binomial(4, 2, seed=4).ntt()
    >>> hidden = pg.stack([t.scale_by(g * P.modulus) for g in pg.rns.gadget(Q, 1)])
    >>> key = pg.stack([noise - mask * s + hidden, mask], axis=1)
    >>> a = Q.random(seed=5).ntt()
    >>> d = pg.lattice.key_switch(a, key, 1, P)
    >>> (d[0] + d[1] * s.restrict(Q) - a * t.restrict(Q)).norm(float("inf")) < 50
    True
    """
    a, key = _operands(a, key)
    ring = without_last(a.ring, rescale, "rescale", least=0)
    memory = None if out is None else memory_of(ring, out)
    more = None if add is None else _addend(a, add)
    where = a.ring, a.data, a.domain, _ring(special), key.ring, key.data, key.domain
    data, domain = ops.key_switch(*where, size, conversion, memory, more, ring)
    return Poly._wrap(ring, data, domain) if out is None else out._result(data, domain, out)


def rotate_many(
    c: Poly,
    gs: Sequence[int],
    keys: Sequence[Poly] | Poly,
    size: int,
    special: Ring,
    conversion: Precision = "exact",
) -> Poly:
    """A ciphertext under several automorphisms X -> X^g, from digits that are computed once (hoisting).

    For each g the result is (c_0(X^g), 0) + key_switch(c_1(X^g), keys[i], ...), bit for bit.

    Args:
        c: ciphertexts, (*batch, 2).
        gs: integers coprime to 2n (cyclic: to n). 5^k turns the slots of CKKS and BFV left by k.
        keys: for each g a key as of key_switch, with s' = s(X^g); all of one ring.
        size: as of key_switch.
        special: as of key_switch.
        conversion: as of key_switch.

    Returns:
        A value of c's ring, (len(gs), *batch, 2), in c's domain.

    Raises:
        ParameterError: c is of another batch shape, a g is not coprime, or there is not one key for each g.
            All else as key_switch.

    Cost: with d digits, l limbs and p special ones: digits and their transforms once, as in key_switch. For
    each g the key is read once, and there are 2p inverse and 2l forward transforms.
    Source: Halevi, Shoup 2018/244, section 4.2.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, 30, 3))
    >>> Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    >>> def key(g):  # from s(X^g) to s
    ...     mask, noise = T.random(2, seed=g).ntt(), T.binomial(4, 2, seed=g)
    ...     hidden = [s.automorphism(g).scale_by(x * P.modulus) for x in pg.rns.gadget(Q, 1)]
    ...     return pg.stack([noise - mask * s + pg.stack(hidden), mask], axis=1)
    >>> message, mask = Q([0, 10**6]), Q.random(seed=2)
    >>> c = pg.stack([message - mask * s.restrict(Q), mask])
    >>> rotated = pg.lattice.rotate_many(c, [3, 5], [key(3), key(5)], 1, P)
    >>> phases = rotated[:, 0] + rotated[:, 1] * s.restrict(Q)
    >>> (phases - message.automorphism([3, 5])).norm(float("inf")).max() < 50
    True
    """
    c = checked_poly(c, "c")
    for name, of in (("gs", gs), ("keys", keys)):
        if not (isinstance(of, (Sequence, np.ndarray)) or (isinstance(of, Poly) and of.shape)):
            raise ParameterError(
                f"{name}: {type(of).__name__}, must be a sequence, one for each automorphism"
            )
    pairs = [checked_poly(key, f"keys[{i}]") for i, key in enumerate(keys)]
    for key in pairs:
        check_one_device(c, key)
    if not pairs:
        raise ParameterError("keys: none; give a key for each of gs")
    rings = {key.ring for key in pairs}
    if len(rings) != 1:
        raise ParameterError(f"keys: of {len(rings)} rings; restrict them to one")
    arrays = [(key.data, key.domain) for key in pairs]
    data, domain = ops.rotate_many(
        c.ring, c.data, c.domain, list(gs), _ring(special), pairs[0].ring, arrays, size, conversion
    )
    return c._result(data, domain)


# ---- gadgets ----


def gadget(R: Ring, bits: int, levels: int) -> tuple[int, ...]:
    """The weights of digits to the base B = 2**bits: g_i is the integer nearest to q / B**i.

    Args:
        R: a ring of one modulus q of at most 2**64.
        bits: of a digit.
        levels: how many digits; B**levels is at most q.

    Returns the ints g_1, ..., g_levels; halves are rounded up.

    Raises:
        ParameterError: R is no Ring or has several moduli, or B**levels is above q.

    Cost: a few operations on Python ints for each level.
    Source: Chillotti et al. 2018/421, section 3.3; docs/math.md, "Gadget decomposition".

    >>> import polygpu as pg
    >>> pg.lattice.gadget(pg.Ring(4, 2**32), 8, 3)
    (16777216, 65536, 256)
    """
    return gadgets.weights(_ring(R, "R"), bits, levels)


def decompose(a: Poly, bits: int, levels: int, out: Poly | None = None) -> Poly:
    """The digits of each coefficient to the base B = 2**bits, most significant first.

    A coefficient x in [0, q) is scaled to y = floor((2 x B**levels + q) / (2 q)). Its digits are the unique
    d_i in [-B/2, B/2) with sum d_i B**(levels - i) = y modulo B**levels. With g = gadget(ring, bits, levels),
    |x - sum d_i g_i| <= q / (2 B**levels) + levels B / 4 modulo q.

    Args:
        a: a value modulo one q of at most 2**64.
        bits: of a digit.
        levels: how many digits; B**levels is at most q.
        out: a Poly of the ring with batch shape (*batch, levels) to write into.

    Returns a value of a's ring, (*batch, levels), in coefficients.

    Raises:
        ParameterError: several moduli, or B**levels is above q. OutputError: `out` cannot take the result.

    Cost: one pass; an inverse transform of an evaluated value.
    Source: Chillotti et al. 2018/421, section 3.3; Joye 2021/1402, section 3; docs/math.md, "Gadget
    decomposition".

    >>> import polygpu as pg
    >>> pg.lattice.decompose(pg.Ring(2, 2**16)([0x1234, -1]), 4, 2).to_bigints(centered=True).tolist()
    [[1, 0], [2, 0]]
    """
    a = checked_poly(a, "a")
    memory = None if out is None else a._memory(out)
    return a._result(gadgets.decompose(a.ring, a.data, a.domain, bits, levels, memory), "coef", out)


def decompose_integers(x: Any, q: int, bits: int, levels: int) -> Array:
    """The digits of integers modulo q to the base B = 2**bits, as of decompose: for LWE vectors.

    linalg.matmul of the digits switches the key of LWE vectors. With one level the modulus is switched to B:
    the digit is x B / q, rounded, modulo B.

    Args:
        x: integers of any dtype and size, of NumPy or CuPy, or nested lists; taken modulo q.
        q: a modulus from 2 to 2**64.
        bits: of a digit.
        levels: how many digits; B**levels is at most q.

    Returns int64, (*x.shape, levels), in [-B/2, B/2), on x's device.

    Raises:
        ParameterError: q outside its range, or B**levels is above q. CoefficientError: no integers.

    Cost: a pass to reduce x, one for the digits, and a copy to int64.
    Source: as of decompose.

    >>> decompose_integers([0x12345678, -1], 2**32, 8, 2).tolist()
    [[18, 52], [0, 0]]
    """
    return gadgets.decompose_integers(x, q, bits, levels)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Prepared:
    """GGSW ciphertexts as transforms in doubles, the form that products read fastest; prepare() makes it.

    It has `ring`, `shape` (the batch shape of the ciphertexts), `bits` of the digits that it multiplies, and
    `device`. It is no Poly and cannot be pickled, because its numbers are laid out for one device and, on the
    CPU, one instruction set.

    >>> import polygpu as pg
    >>> pg.lattice.prepare(pg.Ring(32, 2**32).random((2, 3, 2), seed=1), 7)
    Prepared(Ring(32, 4294967296), shape=(2, 3, 2), bits=7, device=cpu)
    """

    ring: Ring
    shape: tuple[int, ...]  # the batch shape, (k, levels, k) or (count, k, levels, k)
    bits: int  # of the digits that multiply it
    device: str
    _data: Array
    _isa: str = field(default_factory=_cpu.isa)

    def __repr__(self) -> str:
        return f"Prepared({self.ring!r}, shape={self.shape}, bits={self.bits}, device={self.device})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a Prepared cannot be copied or pickled; keep the GGSW ciphertexts, and prepare again"
        )

    def _for(self, c: Poly, bits: int, name: str) -> gadgets.Matrices:
        """The matrices for products with c; raises if prepared for another ring, device or number of bits."""
        if self.ring != c.ring:
            raise RingMismatch(f"{name}: of {self.ring!r}, the ciphertexts of {c.ring!r}")
        if self.device != c.device:
            raise DeviceError(
                f"{name}: prepared on {self.device}, the ciphertexts are on {c.device}; prepare it there"
            )
        if self.device == "cpu" and self._isa != _cpu.isa():
            raise DeviceError(f"{name}: prepared for {self._isa}, {_cpu.isa()} is in use; prepare it again")
        if integer(bits, "bits") != self.bits:
            raise ParameterError(f"{name}: prepared for digits of {self.bits} bits, bits is {bits}")
        return gadgets.Matrices(self._data, "prepared", self.shape)


def prepare(ggsw: Poly, bits: int) -> Poly | Prepared:
    """GGSW ciphertexts prepared once for many products, which otherwise prepare them in each call.

    In a ring with a complete transform they are evaluated. In other rings, such as modulo 2**32 and 2**64,
    they are transformed in doubles. Products with digits are then exact, by a proven bound on the error.

    Args:
        ggsw: of batch shape (k, levels, k), or (count, k, levels, k) for blind_rotate; in any domain.
        bits: of the digits that will multiply them.

    Returns:
        The matrices for external_product, cmux and blind_rotate with these bits, on the device of ggsw: with
        a complete transform an evaluated Poly, else a Prepared. Without one it is ggsw itself where the ring
        has product="ntt", or no transform in doubles is proven exact (bits above 30, or moduli of 64 bits and
        long digits). A Prepared splits each residue in L digits, 16 L bytes for each point; for 7 bits, 6
        products in a sum and n = 1024, L is 2 modulo 2**32 and 3 modulo 2**64. There are n/2 points, for
        cyclic rings and other n than powers of two between n and 2n.

    Raises:
        ParameterError: another shape, several moduli, 2**(bits * levels) above q, or a Prepared.
        OutOfHostMemory, OutOfDeviceMemory: it does not fit.

    Cost: a transform for each digit of each polynomial. Source: docs/math.md, "Products by FFT".

    >>> import polygpu as pg
    >>> R = pg.Ring(32, 2**32)
    >>> ggsw, c = R.random((2, 3, 2), seed=1), R.random((5, 2), seed=2)
    >>> prepared = pg.lattice.prepare(ggsw, 7)
    >>> pg.lattice.external_product(prepared, c, 7) == pg.lattice.external_product(ggsw, c, 7)
    True
    """
    if isinstance(ggsw, Prepared):
        raise ParameterError(f"ggsw: is prepared already, for digits of {ggsw.bits} bits")
    ggsw = checked_poly(ggsw, "ggsw")
    data = gadgets.prepare(ggsw.ring, ggsw.data, ggsw.domain, bits)
    if data is not None:
        return Prepared(ggsw.ring, ggsw.shape, int(bits), ggsw.device, data)
    return ggsw.ntt() if ggsw.ring.leaf_size == 1 else ggsw


def external_product(ggsw: Poly | Prepared, c: Poly, bits: int, out: Poly | None = None) -> Poly:
    """The external product with a GGSW ciphertext of m: the phase is m times that of c, plus noise.

    It is the sum over components i and levels l of digit_l(c_i) ggsw[i, l].

    Args:
        ggsw: of batch shape (k, levels, k), for the weights gadget(ring, bits, levels). In a ring with a
            complete transform it is evaluated. Or the result of prepare().
        c: ciphertexts, (*batch, k), of the same ring, which has one modulus of at most 2**64.
        bits: of a digit.
        out: a Poly of the ring with c's batch shape to write into; may be c.

    Returns a value of c's shape, in c's domain.

    Raises:
        ParameterError: shapes or a ring that do not fit, matrices in coefficients where they must be
            evaluated, or prepared for other bits.
        RingMismatch: other rings. DeviceError: two devices, or prepared on another device or instruction set.
        OutputError: `out` cannot take the result, or overlaps ggsw.

    Cost: for each ciphertext k levels transforms of digits, k inverse transforms, and k^2 levels products for
    each point. Without a complete transform, as modulo 2**32, the transforms are in doubles; a ggsw that is
    not prepared takes k^2 levels transforms more in each call. Where prepare() returns ggsw itself, it is a
    product of matrices of polynomials, which takes 10 times as long.
    Source: Chillotti et al. 2018/421, definition 3.12; Joye 2021/1402, section 4.

    >>> import polygpu as pg
    >>> R = pg.Ring(4, 12289)
    >>> weights = pg.lattice.gadget(R, 4, 3)
    >>> one = R([[[[w], [0]] for w in weights], [[[0], [w]] for w in weights]]).ntt()  # hides 1, no noise
    >>> c = R([[1000, 20], [-300, 4000]])
    >>> (pg.lattice.external_product(one, c, 4) - c).norm(float("inf")).max() < 12
    True
    """
    c, matrices = _of_one_ring(c, "c", ggsw, bits, "ggsw")
    memory = None if out is None else c._memory(out)
    data = gadgets.external_product(c.ring, matrices, c.data, c.domain, bits, memory)
    return c._result(data, c.domain, out)


def cmux(ggsw: Poly | Prepared, c0: Poly, c1: Poly, bits: int) -> Poly:
    """A choice by a hidden bit: c0 if the GGSW ciphertext is one of 0, c1 if it is one of 1, plus noise.

    It is c0 + external_product(ggsw, c1 - c0).

    Args:
        ggsw: as of external_product.
        c0: ciphertexts, (*batch, k).
        c1: ciphertexts of the same shape; in the other domain they are transformed.
        bits: of a digit.

    Returns a value of c0's shape, in c0's domain.

    Raises:
        ParameterError: c1 is of another shape. All else as external_product.

    Cost: an external product, and two passes over the ciphertexts.
    Source: Chillotti et al. 2018/421, CMux.

    >>> import polygpu as pg
    >>> R = pg.Ring(4, 2**12)
    >>> weights = pg.lattice.gadget(R, 4, 3)
    >>> one = R([[[[w], [0]] for w in weights], [[[0], [w]] for w in weights]])  # hides 1, no noise
    >>> c0, c1 = R([[100], [0]]), R([[200], [0]])
    >>> pg.lattice.cmux(one, c0, c1, 4).to_bigints().tolist()
    [[200, 0, 0, 0], [0, 0, 0, 0]]
    """
    c0, matrices = _of_one_ring(c0, "c0", ggsw, bits, "ggsw")
    other = c0._operand(checked_poly(c1, "c1"))._in_domain(c0.domain)
    if other.shape != c0.shape:
        raise ParameterError(f"c1: batch shape {other.shape}, that of c0 is {c0.shape}")
    arrays = c0.data, other.data
    data = gadgets.cmux(c0.ring, matrices, arrays, c0.domain, bits)
    return c0._result(data, c0.domain)


def blind_rotate(acc: Poly, bsk: Poly | Prepared, exponents: Any, bits: int, out: Poly | None = None) -> Poly:
    """Ciphertexts times X^(e_0 + sum e_i s_i), where the key has a GGSW ciphertext of each bit s_i.

    It starts from X^e_0 acc. For each i from 1 on, acc becomes cmux(bsk[i - 1], acc, X^e_i acc).

    Args:
        acc: ciphertexts, (*batch, k), of a ring with one modulus of at most 2**64.
        bsk: the bootstrapping key, (count, k, levels, k): matrices as of external_product. Modulo 2**32 or
            2**64 prepare() it once; otherwise each call takes about twice as long.
        exponents: integers (*batch, 1 + count), e_0 first, or a shape that broadcasts to that; taken modulo
            the order of X. An array on acc's GPU stays there, and a recorded call reads it at each launch;
            other arrays are copied to acc's device.
        bits: of a digit.
        out: a Poly of the ring with acc's batch shape to write into; it must not be an operand.

    Returns a value of acc's shape, in coefficients.

    Raises:
        ParameterError: exponents of another shape. CoefficientError: exponents that are no integers.
            All else as external_product.

    Cost: an external product for each exponent from e_1 on that is not 0. On the CPU a ciphertext stays in
    the cache throughout. On a GPU it stays in the shared memory of a multiprocessor, in one kernel, for k up
    to 3 and n from 2**8 to 2**12 (2**11 for 64-bit integers). In rings for which prepare() returns its
    operand each step takes several calls.
    Source: Chillotti et al. 2018/421, algorithm 3.

    >>> import polygpu as pg
    >>> R = pg.Ring(8, 2**12)
    >>> weights = pg.lattice.gadget(R, 4, 3)
    >>> def ggsw(bit):  # without noise
    ...     return R([[[[bit * w], [0]] for w in weights], [[[0], [bit * w]] for w in weights]])
    >>> bsk = pg.stack([ggsw(1), ggsw(0), ggsw(1)])
    >>> acc = R([[1000], [0]])
    >>> pg.lattice.blind_rotate(acc, bsk, [1, 2, 5, -1], 4)[0].to_bigints().tolist()  # X^(1 + 2 - 1)
    [0, 0, 1000, 0, 0, 0, 0, 0]
    """
    acc, matrices = _of_one_ring(acc, "acc", bsk, bits, "bsk")
    memory = None if out is None else acc._memory(out)
    data = gadgets.blind_rotate(acc.ring, acc.data, acc.domain, matrices, exponents, bits, memory)
    return acc._result(data, "coef", out)


def extract(c: Poly, i: int) -> Array:
    """LWE vectors that hide coefficient i of what the ciphertexts hide: the body first, then the mask.

    Their phase is body + <mask, s>, with s the coefficients of the secrets, one secret after the other. It is
    coefficient i of c's phase.

    Args:
        c: ciphertexts, (*batch, k), k at least 2, modulo one q of at most 2**64.
        i: the number of a coefficient.

    Returns residues (*batch, 1 + (k - 1) n) of the ring's dtype, on c's device.

    Raises:
        ParameterError: c is of another batch shape or has several moduli, or there is no such coefficient.

    Cost: a copy; an inverse transform of evaluated values. Source: Chillotti et al. 2018/421, SampleExtract.

    >>> import polygpu as pg
    >>> pg.lattice.extract(pg.Ring(4, 17)([[9, 8, 0, 0], [1, 2, 3, 4]]), 1).tolist()
    [8, 2, 1, 13, 14]
    """
    c = checked_poly(c, "c")
    return gadgets.extract(c.ring, c.data, c.domain, i)


def _operands(a: Poly, key: Poly) -> tuple[Poly, Poly]:
    """A value and a key of a larger ring, on one device."""
    a, key = checked_poly(a, "a"), checked_poly(key, "key")
    check_one_device(a, key)
    return a, key


def _addend(a: Poly, add: object) -> Array:
    """The array of `add`, checked against a: of its ring and domain, with batch shape (*batch, 2)."""
    add = a._operand(checked_poly(add, "add"))
    if add.domain != a.domain:
        raise DomainError(f"add: in {add.domain!r}, a in {a.domain!r}; evaluate one by .ntt()")
    if add.shape != (*a.shape, 2):
        raise ParameterError(f"add: batch shape {add.shape}, must be {(*a.shape, 2)}, as the result")
    return add.data


def _of_one_ring(
    c: Poly, c_name: str, matrices: Poly | Prepared, bits: int, name: str
) -> tuple[Poly, gadgets.Matrices]:
    """Ciphertexts, and matrices of the same ring and device for products with them."""
    c = checked_poly(c, c_name)
    if isinstance(matrices, Prepared):
        return c, matrices._for(c, bits, name)
    value = c._operand(checked_poly(matrices, name))
    return c, gadgets.Matrices(value.data, value.domain, value.shape)


def _ring(ring: object, name: str = "special") -> Ring:
    if not isinstance(ring, Ring):
        raise ParameterError(f"{name}: {type(ring).__name__}, must be a Ring")
    return ring
