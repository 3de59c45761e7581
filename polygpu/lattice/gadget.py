"""Gadget decomposition (digits to a base 2**bits), products with GGSW ciphertexts, and blind rotation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .. import _cpu
from .._backends import Array
from .._core.checks import integer
from .._core.plans.torus import ProductError
from .._ops import gadget as ops
from .._ops.switch import KeySwitch, key_switch_plan
from .._ops.transform import to_domain
from ..errors import DeviceError, ParameterError, RingMismatch
from ..poly import Poly, check_one_device, checked_poly, held, memory_of, plan_of
from ..ring import Ring


def gadget(ring: Ring, *, bits: int, levels: int) -> tuple[int, ...]:
    """Return the weights of digits to the base B = 2**bits: g_i is the integer nearest to q / B**i.

    Args:
        ring: a ring whose moduli are at most 2**64; q is their product.
        bits: how many bits a digit has.
        levels: how many digits. B**levels must be at most q, and at most 2**64 if there are several moduli.

    Returns the ints g_1, ..., g_levels; halves are rounded up.

    Raises:
        ParameterError: `ring` is not a Ring or has a modulus above 2**64; or bits or levels is below 1 or too
            large.

    Cost: a few operations on Python ints for each level.
    Source: Chillotti et al. 2018/421, section 3.3; docs/math.md, "Gadget decomposition".

    >>> import polygpu as pg
    >>> pg.lattice.gadget(pg.Ring(4, 2**32), bits=8, levels=3)
    (16777216, 65536, 256)
    """
    return ops.gadget(plan_of(ring, "ring"), bits, levels)


def decompose(a: Poly, *, bits: int, levels: int, out: Poly | None = None) -> Poly:
    """Compute the digits of each coefficient to the base B = 2**bits, most significant first.

    A coefficient x in [0, q) is scaled to y = floor((2 * x * B**levels + q) / (2 * q)). Its digits are the
    unique integers d_1, ..., d_levels in [-B/2, B/2) for which the sum of d_i * B**(levels - i) is y modulo
    B**levels. The sum of d_i * g_i, with the weights g_i of gadget(), is close to x. The difference, taken
    modulo q in the centred range, is at most q / (2 * B**levels) + levels * B / 4 in absolute value.

    Args:
        a: a value of batch shape (*batch); q is the product of its moduli.
        bits: how many bits a digit has.
        levels: how many digits. B**levels must be at most q, and at most 2**64 if there are several moduli.
        out: a Poly of a's ring with batch shape (*batch, levels) to write into.

    Returns a value of a's ring, of batch shape (*batch, levels), in coefficients.

    Raises:
        ParameterError: a modulus is above 2**64, or bits or levels is below 1 or too large.
        OutputError: `out` cannot hold the result.

    Cost: one pass over the coefficients. An evaluated value first takes an inverse transform. If there are
    several moduli, y is computed by a basis conversion, and the digits are reduced modulo each modulus.
    Source: Chillotti et al. 2018/421, section 3.3; Joye 2021/1402, section 3; docs/math.md, "Gadget
    decomposition".

    >>> import polygpu as pg
    >>> digits = pg.lattice.decompose(pg.Ring(2, 2**16)([0x1234, -1]), bits=4, levels=2)
    >>> digits.to_bigints(centered=True).tolist()
    [[1, 0], [2, 0]]
    """
    x = checked_poly(a, "a")
    return held(ops.decompose(x, bits, levels, out=memory_of(x._plan, out)), out)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Prepared:
    """GGSW ciphertexts in the form that products read fastest: their FFTs. Made by prepare().

    A bootstrapping key for groups of bits (multi_bit_key) is kept as residues, without a transform, because
    the matrices of such a key are combined before they are transformed.

    The fields are: `ring`; `shape`, the batch shape of the ciphertexts; `bits`, the bit length of the digits
    in products; `device`; `precision`; and `error`, the rounding error of each coefficient of one product.
    `error.bound` is a proven bound on the absolute value of the error. `error.std` is the standard deviation
    of the error for uniform digits and ciphertexts, from a model that is right within 10 %. The unit of
    `bound` and `std` is the distance between neighbouring residues. Both are 0 if products are exact. A
    Prepared is not a Poly. It cannot be pickled, because its numbers are laid out for one device and, on the
    CPU, for one instruction set.

    >>> import polygpu as pg
    >>> pg.lattice.prepare(pg.Ring(32, 2**32).random((2, 3, 2), seed=1), bits=7)
    Prepared(Ring(32, 4294967296), shape=(2, 3, 2), bits=7, device=cpu)
    """

    ring: Ring
    shape: tuple[int, ...]  # the batch shape of the GGSW ciphertexts
    bits: int  # the bit length of the digits in products with these ciphertexts
    device: str
    precision: ops.Precision
    error: ProductError
    _data: Array
    _isa: str = field(default_factory=_cpu.isa)

    def __repr__(self) -> str:
        return f"Prepared({self.ring!r}, shape={self.shape}, bits={self.bits}, device={self.device})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "A Prepared cannot be copied or pickled. Keep the GGSW ciphertexts, and prepare them again."
        )

    def _for(self, c: Poly, bits: int, name: str) -> ops.Matrices:
        """Return the matrices for products with c. `name` is the name of the Prepared in error messages.

        Raise an error unless self has c's ring, c's device and the given `bits`. On the CPU, FFTs must also
        be laid out for the instruction set in use.
        """
        if self.ring != c.ring:
            raise RingMismatch(
                f"{name} is of {self.ring!r}, and the ciphertexts are of {c.ring!r}. Use ciphertexts and "
                "matrices of one ring."
            )
        if self.device != c.device:
            raise DeviceError(
                f"{name} was prepared on {self.device}, and the ciphertexts are on {c.device}. Prepare "
                f"{name} again on the device of the ciphertexts."
            )
        if self.device == "cpu" and self._isa != _cpu.isa() and not ops.is_grouped(self.shape):
            raise DeviceError(
                f"{name} was prepared for the instruction set {self._isa}, but {_cpu.isa()} is in use now. "
                f"Prepare {name} again."
            )
        if integer(bits, "bits") != self.bits:
            raise ParameterError(
                f"{name} was prepared for digits of {self.bits} bits, but bits={bits}. Use "
                f"bits={self.bits}, or prepare {name} for bits={bits}."
            )
        return ops.Matrices(self._data, "prepared", self.shape, self.precision)


def prepare(ggsw: Poly, *, bits: int, precision: ops.Precision = "exact") -> Poly | Prepared:
    """Prepare GGSW ciphertexts once for many products. Otherwise each product prepares them again.

    If the ring has a complete transform, the ciphertexts are evaluated. In other rings, such as those modulo
    2**32 and 2**64, they are transformed by an FFT in double precision. Products are still exact: a bound on
    the rounding errors is proven. With precision="double" products are several times as fast, but not exact.
    Their rounding error, which `Prepared.error` states, adds to the noise.

    Args:
        ggsw: GGSW ciphertexts in either domain, of batch shape (k, levels, k). For blind_rotate the batch
            shape is (count, k, levels, k), (count, 2, k, levels, k) for ternary secrets, or
            (groups, 2**g, k, levels, k) for groups of g bits.
        bits: how many bits a digit has in the products with these ciphertexts.
        precision: "exact" or "double". "double" needs bits <= 31, and a ring modulo X**n + 1 whose modulus
            q is 2**32 or 2**64 and whose n is a power of two, at least 32. "double" takes one transform for
            each polynomial, and "exact" takes several. With "double", if bits * levels is below 32,
            blind_rotate rounds ciphertexts modulo 2**64 to multiples of 2**32.

    Returns:
        What to pass to external_product, cmux and blind_rotate in place of ggsw, with the same `bits`. It is
        on ggsw's device, and is the first of these that applies:

        - For a key for groups of bits: ggsw.intt(), or with precision="double" a Prepared that holds a copy
          of the residues. The matrices of such a key are combined as integers before they are transformed.
        - If the ring has a complete transform: ggsw.ntt().
        - If the ring has several moduli or was made with product="ntt", or if no FFT in double precision is
          proven exact (for bits above 30, or for 64-bit moduli with long digits): ggsw itself.
        - In all other cases: a Prepared. It splits each residue into L parts, and takes 16 * L bytes for each
          point of the FFT. For bits=7, k * levels = 6 and n = 1024, L is 2 if q = 2**32, and 3 if q = 2**64.
          The FFT has n/2 points, or n to 2n points if the ring is cyclic or n is not a power of two.

    Raises:
        ParameterError: ggsw is a Prepared or has none of these batch shapes, 2**(bits * levels) is above q,
            or precision="double" does not support the ring or the digits.
        PrecisionError: precision is "double", and NumPy has no extended precision on this machine.
        OutOfHostMemory, OutOfDeviceMemory: the result does not fit.

    Cost: L transforms for each polynomial. With precision="double", one transform for each polynomial, in
    extended precision on the host (about 0.2 ms for n = 2048). A key for groups of bits is only copied.
    Source: docs/math.md, "Products by FFT" and "Products in doubles".

    >>> import polygpu as pg
    >>> R = pg.Ring(32, 2**32)
    >>> ggsw, c = R.random((2, 3, 2), seed=1), R.random((5, 2), seed=2)
    >>> prepared = pg.lattice.prepare(ggsw, bits=7)
    >>> exact = pg.lattice.external_product(ggsw, c, bits=7)
    >>> pg.lattice.external_product(prepared, c, bits=7) == exact
    True
    >>> fast = pg.lattice.prepare(ggsw, bits=7, precision="double")
    >>> error = (pg.lattice.external_product(fast, c, bits=7) - exact).norm(float("inf"))
    >>> bool(error.max() <= fast.error.bound)
    True
    """
    if isinstance(ggsw, Prepared):
        raise ParameterError(
            f"ggsw is already prepared, for digits of {ggsw.bits} bits. Give the GGSW ciphertexts from which "
            "it was made."
        )
    data, error = ops.prepare(checked_poly(ggsw, "ggsw"), bits, precision)
    if data is not None:
        return Prepared(ggsw.ring, ggsw.shape, int(bits), ggsw.device, precision, error, data)
    if ops.is_grouped(ggsw.shape):
        return ggsw.intt()
    return ggsw.ntt() if ggsw.ring.leaf_size == 1 else ggsw


def external_product(
    ggsw: Poly | Prepared,
    c: Poly,
    *,
    bits: int | None = None,
    limbs_per_digit: int | None = None,
    special: Ring | None = None,
    out: Poly | None = None,
) -> Poly:
    """Multiply ciphertexts by a GGSW ciphertext of m: the phases are multiplied by m, and gain noise.

    The result is the sum over components i and levels l of digit_l(c_i) * ggsw[i, l], where digit_l(c_i) is
    digit l of component i. There are two kinds of digits. If `bits` is given, they are the digits of
    `decompose`. If `limbs_per_digit` and `special` are given, each digit is a group of limbs, as in
    `Poly.digits`, and the sum is computed modulo T = c.ring.join(special). This sum is divided by P, the
    product of the special primes, and rounded to the nearest. If P is about as large as a digit, the noise
    stays small, however large the digits are.

    Args:
        ggsw: a GGSW ciphertext of batch shape (k, levels, k), or the result of prepare() for one. It must be
            evaluated if its ring has a complete transform. If `bits` is given, the weights of the GGSW
            ciphertext are those of gadget(). If `special` is given, the GGSW ciphertext is a value of T, and
            its weights are P times the factors of rns.gadget().
        c: ciphertexts of batch shape (*batch, k). If `bits` is given, they have the ring of ggsw.
        bits: how many bits a digit has.
        limbs_per_digit: how many limbs form a digit; given instead of `bits`.
        special: the ring of the special primes; given with limbs_per_digit.
        out: a Poly of c's ring with c's batch shape to write into; may be c.

    Returns a value of c's batch shape, in c's ring and domain.

    Raises:
        ParameterError: the batch shape of ggsw is not (k, levels, k), where k is the number of components of
            c; the digits do not fit the ring or the levels of ggsw; ggsw is in coefficients although it must
            be evaluated, or was prepared for another number of bits; or the arguments do not give exactly
            one kind of digits.
        RingMismatch: the ring of ggsw is not c's ring (if `bits` is given) or not T (if `special` is given).
        DeviceError: the operands are on two devices, or ggsw was prepared for another device or instruction
            set.
        OutputError: `out` cannot hold the result, or overlaps ggsw.

    Cost: for each ciphertext and limb (special primes included), k * levels transforms of digits, k inverse
    transforms, and k^2 * levels products for each point. If the ring has no complete transform, for example
    modulo 2**32, the transforms are FFTs in double precision, and a ggsw that is not prepared takes another
    k^2 * levels transforms in each call. If prepare() would return ggsw itself, the call multiplies matrices
    of polynomials, which takes 10 times as long.
    Source: Chillotti et al. 2018/421, definition 3.12; Joye 2021/1402, section 4; for groups of limbs: Han,
    Ki 2019/688, section 3.

    >>> import polygpu as pg
    >>> R = pg.Ring(4, 12289)
    >>> weights = pg.lattice.gadget(R, bits=4, levels=3)
    >>> one = R([[[[w], [0]] for w in weights], [[[0], [w]] for w in weights]]).ntt()  # hides 1, no noise
    >>> c = R([[1000, 20], [-300, 4000]])
    >>> (pg.lattice.external_product(one, c, bits=4) - c).norm(float("inf")).max() < 12
    True
    """
    c, matrices, way = _of_one_ring(c, "c", ggsw, "ggsw", bits, limbs_per_digit, special)
    return held(ops.external_product(matrices, c, way, out=memory_of(c._plan, out)), out)


def cmux(
    ggsw: Poly | Prepared,
    c0: Poly,
    c1: Poly,
    *,
    bits: int | None = None,
    limbs_per_digit: int | None = None,
    special: Ring | None = None,
) -> Poly:
    """Choose by a hidden bit: c0 if the GGSW ciphertext hides 0, c1 if it hides 1, plus noise.

    The result is c0 + external_product(ggsw, c1 - c0).

    Args:
        ggsw: see external_product.
        c0: ciphertexts of batch shape (*batch, k).
        c1: ciphertexts of c0's ring and batch shape. If they are not in c0's domain, they are transformed.
        bits: how many bits a digit has.
        limbs_per_digit: see external_product.
        special: see external_product.

    Returns a value of c0's batch shape, in c0's ring and domain.

    Raises:
        ParameterError: the batch shapes of c0 and c1 differ. For other errors, see external_product.

    Cost: an external product, and two passes over the ciphertexts.
    Source: Chillotti et al. 2018/421, CMux.

    >>> import polygpu as pg
    >>> R = pg.Ring(4, 2**12)
    >>> weights = pg.lattice.gadget(R, bits=4, levels=3)
    >>> one = R([[[[w], [0]] for w in weights], [[[0], [w]] for w in weights]])  # hides 1, no noise
    >>> c0, c1 = R([[100], [0]]), R([[200], [0]])
    >>> pg.lattice.cmux(one, c0, c1, bits=4).to_bigints().tolist()
    [[200, 0, 0, 0], [0, 0, 0, 0]]
    """
    c0, matrices, way = _of_one_ring(c0, "c0", ggsw, "ggsw", bits, limbs_per_digit, special)
    other = to_domain(c0._operand(checked_poly(c1, "c1")), c0.domain)
    if other._batch != c0.shape:
        raise ParameterError(
            f"The batch shape of c1 is {other._batch}, and that of c0 is {c0.shape}. Give ciphertexts of the "
            "same batch shape."
        )
    return ops.cmux(matrices, c0, other, way)


def blind_rotate(
    acc: Poly,
    bsk: Poly | Prepared,
    exponents: Any,
    *,
    bits: int | None = None,
    limbs_per_digit: int | None = None,
    special: Ring | None = None,
    out: Poly | None = None,
) -> Poly:
    """Multiply ciphertexts by X^(e_0 + sum of e_i * s_i). The key hides the s_i; the e_i are `exponents`.

    First acc is multiplied by X^e_0. The steps after that depend on the batch shape of the key:

      (count, k, levels, k)         if the secret consists of bits s_1, ..., s_count. For i = 1, 2, ...,
                                    count, acc becomes cmux(bsk[i - 1], acc, X^e_i * acc).
      (count, 2, k, levels, k)      if the secret is ternary. bsk[i - 1] hides two bits: whether s_i = 1,
                                    and whether s_i = -1. Each i takes two cmux steps, for e_i and -e_i.
      (groups, 2**g, k, levels, k)  if multi_bit_key made the key, for groups of g >= 2 bits. For each group
                                    j, acc is multiplied (external_product) by a sum over all subsets S of
                                    the group. The term of S is X^(sum of e_i for i in S) * bsk[j, S]. As an
                                    index, S is the number whose bit t is 1 if S contains bit t of the group.

    Args:
        acc: ciphertexts of batch shape (*batch, k).
        bsk: the bootstrapping key: GGSW ciphertexts as external_product takes them, except that a key for
            groups may be in either domain. If the modulus q is 2**32 or 2**64, call prepare() once; without
            prepare(), each call takes about twice as long. Prepare a key for groups with precision="double";
            without this, each call takes 5 to 25 times as long on a CPU core.
        exponents: integers of shape (*batch, 1 + count), e_0 first, taken modulo the order of X. Their batch
            axes broadcast to those of acc. For a key for groups, count is the number of bits; the last
            group may have fewer than g bits. An array on acc's GPU is read in place, and a call recorded by
            polygpu.capture reads it again at each launch. Other arrays are copied to acc's device.
        bits: how many bits a digit has.
        limbs_per_digit: see external_product.
        special: see external_product.
        out: a Poly of acc's ring with acc's batch shape to write into; it must not be an operand.

    Returns a value of acc's batch shape, in acc's ring and in coefficients.

    Raises:
        ParameterError: the last axis of exponents does not have length 1 + count, or the batch axes do not
            broadcast to acc's. CoefficientError: an exponent is not an integer. For other errors, see
            external_product.

    Cost: an external product for each cmux step; on the CPU, steps with exponent 0 are skipped. On the CPU a
    ciphertext stays in the cache throughout. On a GPU there are two cases in which one kernel does all steps
    and keeps a ciphertext in the shared memory of one multiprocessor, or of k multiprocessors. First: k is at
    most 3, and n is from 2**8 to 2**12 (2**11 for 64-bit integers). Second: the key is prepared with
    precision="double", k is from 2 to 5, n is from 2**9 to 2**12, levels is at most 3, and, if q = 2**64,
    bits * levels is below 32. Otherwise each step takes several launches, for example in rings of several
    moduli and in rings for which prepare() returns its argument. With a key for groups, each group takes one
    external product for each ciphertext, and in addition k^2 * levels transforms and 2**g * k^2 * levels sums
    of polynomials. On a GPU the transforms of several groups are in memory at a time, up to 512 MiB. If the
    transforms of one group for all ciphertexts need more, they take as much as they need. Groups of more than
    8 bits are slow on a GPU.
    Source: Chillotti et al. 2018/421, algorithm 3; for groups: Zhou et al. 2017/735.

    >>> import polygpu as pg
    >>> R = pg.Ring(8, 2**12)
    >>> weights = pg.lattice.gadget(R, bits=4, levels=3)
    >>> def ggsw(bit):  # hides `bit`, without noise
    ...     return R([[[[bit * w], [0]] for w in weights], [[[0], [bit * w]] for w in weights]])
    >>> bsk = pg.stack([ggsw(1), ggsw(0), ggsw(1)])
    >>> acc = R([[1000], [0]])
    >>> pg.lattice.blind_rotate(acc, bsk, [1, 2, 5, -1], bits=4)[0].to_bigints().tolist()  # X^(1 + 2 - 1)
    [0, 0, 1000, 0, 0, 0, 0, 0]
    """
    acc, matrices, way = _of_one_ring(acc, "acc", bsk, "bsk", bits, limbs_per_digit, special)
    return held(ops.blind_rotate(acc, matrices, exponents, way, memory_of(acc._plan, out)), out)


def _of_one_ring(
    c: Poly,
    c_name: str,
    matrices: Poly | Prepared,
    name: str,
    bits: int | None,
    limbs_per_digit: int | None,
    special: Ring | None,
) -> tuple[Poly, ops.Matrices, int | KeySwitch]:
    """Check the operands of a product. Return (c, GGSW matrices, kind of digits).

    c_name, name: the names of c and `matrices` in error messages. The kind of digits is the int `bits`, or a
    KeySwitch plan if digits are groups of limbs.
    """
    c = checked_poly(c, c_name)
    if (bits is None) == (limbs_per_digit is None) or (limbs_per_digit is None) != (special is None):
        raise ParameterError(
            "Give either bits, for digits in base 2**bits, or both limbs_per_digit and special, for digits "
            "that are groups of limbs."
        )
    if limbs_per_digit is not None and special is not None:
        if isinstance(matrices, Prepared):
            raise ParameterError(
                f"{name} was prepared for digits of {matrices.bits} bits. Give bits instead of "
                "limbs_per_digit and special."
            )
        value, P = checked_poly(matrices, name), plan_of(special, "special")
        T = c.ring.join(special)
        way = key_switch_plan(c._plan, P, T._plan, limbs_per_digit)
        if value.ring != T:
            raise RingMismatch(
                f"{name} is of {value.ring!r}, but it must be of {T!r}, which is "
                f"{c_name}.ring.join(special). Use {name}.restrict(ring) to drop limbs, and {name}[..., :, "
                ":d, :] to keep the first d digits."
            )
        check_one_device(c, value)
        return c, ops.Matrices(value.data, value.domain, value.shape), way
    assert bits is not None
    if isinstance(matrices, Prepared):
        return c, matrices._for(c, bits, name), bits
    given = checked_poly(matrices, name)
    if set(given.ring.moduli) > set(c.ring.moduli):
        raise RingMismatch(
            f"{name} is of {given.ring!r}, and {c_name} is of {c.ring!r}. Both must be in the same ring. "
            f"If {name} was made with special primes, give limbs_per_digit and special instead of bits."
        )
    value = c._operand(given)
    return c, ops.Matrices(value.data, value.domain, value.shape), bits
