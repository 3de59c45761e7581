"""Gadgets: digits of a value to a base, products with GGSW ciphertexts, blind rotation."""

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
        ring: a ring of moduli of at most 2**64. Of several, q is the product.
        bits: of a digit.
        levels: how many digits; B**levels is at most q.

    Returns the ints g_1, ..., g_levels; halves are rounded up.

    Raises:
        ParameterError: `ring` is not a Ring or has a modulus above 2**64, or B**levels is above q.

    Cost: a few operations on Python ints for each level.
    Source: Chillotti et al. 2018/421, section 3.3; docs/math.md, "Gadget decomposition".

    >>> import polygpu as pg
    >>> pg.lattice.gadget(pg.Ring(4, 2**32), bits=8, levels=3)
    (16777216, 65536, 256)
    """
    return ops.gadget(plan_of(ring, "ring"), bits, levels)


def decompose(a: Poly, *, bits: int, levels: int, out: Poly | None = None) -> Poly:
    """Compute the digits of each coefficient to the base B = 2**bits, most significant first.

    A coefficient x in [0, q) is scaled to y = floor((2 x B**levels + q) / (2 q)). Its digits are the unique
    d_i in [-B/2, B/2) with sum d_i B**(levels - i) = y modulo B**levels. With the weights g of gadget(),
    |x - sum d_i g_i| <= q / (2 B**levels) + levels B / 4 modulo q.

    Args:
        a: a value. Of several moduli q is the product.
        bits: of a digit.
        levels: how many digits; B**levels is at most q, and 2**64 in a ring of several moduli.
        out: a Poly of the ring with batch shape (*batch, levels) to write into.

    Returns a value of a's ring, (*batch, levels), in coefficients.

    Raises:
        ParameterError: a modulus above 2**64, or too many or too long digits. OutputError: `out` cannot take
            the result.

    Cost: one pass; an inverse transform of an evaluated value. Of several moduli a conversion to one of
    B**levels, and of the digits to all moduli.
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
    """GGSW ciphertexts in the form that products read fastest, transforms in doubles; prepare() makes it.

    A key of groups of bits is held as residues, since it is combined before it is transformed.

    It has `ring`, `shape` (the batch shape of the ciphertexts), `bits` of the digits that it multiplies,
    `device`, `precision`, and the `error` of a coefficient of one product: `error.bound` is its largest size,
    which is proven, and `error.std` its standard deviation for uniform digits and ciphertexts, by a model
    within 10 %. Both count residues, and are 0 if products are exact. It is not a Poly and cannot be pickled,
    because its numbers are laid out for one device and, on the CPU, one instruction set.

    >>> import polygpu as pg
    >>> pg.lattice.prepare(pg.Ring(32, 2**32).random((2, 3, 2), seed=1), bits=7)
    Prepared(Ring(32, 4294967296), shape=(2, 3, 2), bits=7, device=cpu)
    """

    ring: Ring
    shape: tuple[int, ...]  # the batch shape, (k, levels, k) or (count, k, levels, k)
    bits: int  # of the digits that multiply it
    device: str
    precision: ops.Precision
    error: ProductError
    _data: Array
    _isa: str = field(default_factory=_cpu.isa)

    def __repr__(self) -> str:
        return f"Prepared({self.ring!r}, shape={self.shape}, bits={self.bits}, device={self.device})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a Prepared cannot be copied or pickled; keep the GGSW ciphertexts, and prepare again"
        )

    def _for(self, c: Poly, bits: int, name: str) -> ops.Matrices:
        """Return the matrices for products with c; raise if they are for another ring, device or bits."""
        if self.ring != c.ring:
            raise RingMismatch(f"{name}: of {self.ring!r}, the ciphertexts of {c.ring!r}")
        if self.device != c.device:
            raise DeviceError(
                f"{name}: prepared on {self.device}, the ciphertexts are on {c.device}; prepare it there"
            )
        if self.device == "cpu" and self._isa != _cpu.isa() and not ops.is_grouped(self.shape):
            raise DeviceError(f"{name}: prepared for {self._isa}, {_cpu.isa()} is in use; prepare it again")
        if integer(bits, "bits") != self.bits:
            raise ParameterError(f"{name}: prepared for digits of {self.bits} bits, bits is {bits}")
        return ops.Matrices(self._data, "prepared", self.shape, self.precision)


def prepare(ggsw: Poly, *, bits: int, precision: ops.Precision = "exact") -> Poly | Prepared:
    """Prepare GGSW ciphertexts once for many products, which otherwise prepare them in each call.

    In a ring with a complete transform they are evaluated. In other rings, such as modulo 2**32 and 2**64,
    they are transformed in doubles. Products with digits are then exact, by a proven bound on the error, or
    with precision="double" some times as fast and wrong by a stated error, which adds to the noise.

    Args:
        ggsw: of batch shape (k, levels, k); for blind_rotate also (count, k, levels, k), for ternary secrets
            (count, 2, k, levels, k), for groups of g bits (groups, 2**g, k, levels, k). In any domain.
        bits: of the digits that will multiply them.
        precision: "exact", or "double" for rings modulo X**n + 1 and 2**32 or 2**64, n a power of two from 32
            on, and bits up to 31: one transform for each polynomial, whatever its residues. blind_rotate
            then holds ciphertexts modulo 2**64 as multiples of 2**32, if bits * levels is below 32.

    Returns:
        The matrices for external_product, cmux and blind_rotate with these bits, on the device of ggsw: with
        a complete transform an evaluated Poly, else a Prepared. Without one it is ggsw itself if the ring has
        product="ntt", or if no transform in doubles is proven exact (bits above 30, or moduli of 64 bits and
        long digits). A Prepared splits each residue in L digits, 16 L bytes for each point; for 7 bits, 6
        products in a sum and n = 1024, L is 2 modulo 2**32 and 3 modulo 2**64. There are n/2 points, for
        cyclic rings and other n than powers of two between n and 2n. Keys of groups are combined as integers
        before they are transformed. Of them a Prepared holds a copy of the residues with "double"; without,
        the result is ggsw.intt() in each ring.

    Raises:
        ParameterError: another shape, 2**(bits * levels) above q, a Prepared, or a ring or digits that
            precision="double" does not serve.
        PrecisionError: "double", and NumPy has no extended precision on this machine.
        OutOfHostMemory, OutOfDeviceMemory: it does not fit.

    Cost: a transform for each digit of each polynomial; with "double" one in extended precision on the host,
    about 0.2 ms for n = 2048; a copy of a key of groups.
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
        raise ParameterError(f"ggsw: is prepared already, for digits of {ggsw.bits} bits")
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
    """Multiply by a GGSW ciphertext of m: the phase is m times that of c, plus noise.

    It is the sum over components i and levels l of digit_l(c_i) ggsw[i, l]. There are two kinds of digits.
    With `bits` they are those of decompose. With `limbs_per_digit` and `special` they are groups of limbs, as
    of Poly.digits, modulo T = c.ring.join(special), and the sum is divided by the product P of the special
    primes and rounded to the nearest. So digits of any size add little noise, if P is about as large as one.

    Args:
        ggsw: of batch shape (k, levels, k), for the weights that gadget() lists. In a ring with a
            complete transform it is evaluated. Or the result of prepare(). With `special` it is of T, for the
            weights P g_j of rns.gadget().
        c: ciphertexts, (*batch, k); with `bits` of the same ring.
        bits: of a digit.
        limbs_per_digit: limbs of a digit, instead of bits.
        special: the ring of P, with limbs_per_digit.
        out: a Poly of the ring with c's batch shape to write into; may be c.

    Returns a value of c's shape, in c's domain.

    Raises:
        ParameterError: shapes or a ring that do not fit, matrices in coefficients where they must be
            evaluated, or prepared for other bits; digits that are given twice or not at all.
        RingMismatch: other rings. DeviceError: two devices, or prepared on another device or instruction set.
        OutputError: `out` cannot take the result, or overlaps ggsw.

    Cost: for each ciphertext k levels transforms of digits, k inverse transforms, and k^2 levels products for
    each point. Without a complete transform, as modulo 2**32, the transforms are in doubles; a ggsw that is
    not prepared takes k^2 levels transforms more in each call. Where prepare() returns ggsw itself, it is a
    product of matrices of polynomials, which takes 10 times as long. Of L limbs there are k levels L
    transforms of digits and k L inverse ones; with p special limbs L + p stands for L.
    Source: Chillotti et al. 2018/421, definition 3.12; Joye 2021/1402, section 4; for groups of limbs Han, Ki
    2019/688, section 3.

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
    """Choose by a hidden bit: c0 if the GGSW ciphertext is one of 0, c1 if it is one of 1, plus noise.

    It is c0 + external_product(ggsw, c1 - c0).

    Args:
        ggsw: as in external_product.
        c0: ciphertexts, (*batch, k).
        c1: ciphertexts of the same shape; in the other domain they are transformed.
        bits: of a digit.
        limbs_per_digit: as in external_product.
        special: as in external_product.

    Returns a value of c0's shape, in c0's domain.

    Raises:
        ParameterError: c1 is of another shape. All else as external_product.

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
        raise ParameterError(f"c1: batch shape {other._batch}, that of c0 is {c0.shape}")
    return ops.cmux(matrices, c0, other, way)


# Seven parameters: three operands, the three of digits, and the memory of the result.
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
    """Multiply ciphertexts by X^(e_0 + sum e_i s_i), for a secret s that the key hides.

    It starts from X^e_0 acc. With a key (count, k, levels, k) of single bits acc becomes, for each i from 1
    on, cmux(bsk[i - 1], acc, X^e_i acc). One of a ternary secret, (count, 2, k, levels, k), has matrices of
    [s_i = 1] and [s_i = -1]: two such steps, with e_i and -e_i. With one (groups, 2**g, k, levels, k) of
    multi_bit_key, g at least 2, acc becomes, for each group j, the external product of acc with the sum over
    S of X^(sum of e_i, i in S) bsk[j, S].

    Args:
        acc: ciphertexts, (*batch, k).
        bsk: the bootstrapping key: matrices as in external_product; a key of groups in any domain. Modulo
            2**32 or 2**64 prepare() it once; otherwise each call takes about twice as long. A key of groups
            is fast with precision="double", and takes 5 to 25 times as long without on a core.
        exponents: integers (*batch, 1 + count), e_0 first, or a shape that broadcasts to that; taken modulo
            the order of X. For a key of groups there is one for each bit: the last group may be shorter. An
            array on acc's GPU stays there, and a recorded call reads it at each launch; other arrays are
            copied to acc's device.
        bits: of a digit.
        limbs_per_digit: as in external_product.
        special: as in external_product.
        out: a Poly of the ring with acc's batch shape to write into; it must not be an operand.

    Returns a value of acc's shape, in coefficients.

    Raises:
        ParameterError: exponents of another shape. CoefficientError: exponents that are not integers.
            All else as external_product.

    Cost: an external product for each exponent from e_1 on; on the CPU none for those that are 0. There a
    ciphertext stays in the cache throughout. On a GPU it stays in the shared memory of one multiprocessor, or
    of k, in one kernel: for k up to 3 and n from 2**8 to 2**12 (2**11 for 64-bit integers), and prepared with
    precision="double" for k from 2 to 5, n from 2**9 to 2**12, up to 3 levels and, modulo 2**64, digits of
    less than 32 bits together. Elsewhere, in rings of several moduli, and in those for which prepare()
    returns its operand, each step takes several calls. A group saves g - 1 external products for each
    ciphertext, and adds k^2 levels transforms and 2**g times as many sums of polynomials. On a GPU the
    transforms of 512 MiB, or of one group of all ciphertexts if that is more, are in memory at a time; groups
    of more than 8 bits are slow there.
    Source: Chillotti et al. 2018/421, algorithm 3; Zhou et al. 2017/735 for groups.

    >>> import polygpu as pg
    >>> R = pg.Ring(8, 2**12)
    >>> weights = pg.lattice.gadget(R, bits=4, levels=3)
    >>> def ggsw(bit):  # without noise
    ...     return R([[[[bit * w], [0]] for w in weights], [[[0], [bit * w]] for w in weights]])
    >>> bsk = pg.stack([ggsw(1), ggsw(0), ggsw(1)])
    >>> acc = R([[1000], [0]])
    >>> pg.lattice.blind_rotate(acc, bsk, [1, 2, 5, -1], bits=4)[0].to_bigints().tolist()  # X^(1 + 2 - 1)
    [0, 0, 1000, 0, 0, 0, 0, 0]
    """
    acc, matrices, way = _of_one_ring(acc, "acc", bsk, "bsk", bits, limbs_per_digit, special)
    return held(ops.blind_rotate(acc, matrices, exponents, way, memory_of(acc._plan, out)), out)


# Seven parameters: two operands with their names, and the three of digits.
def _of_one_ring(
    c: Poly,
    c_name: str,
    matrices: Poly | Prepared,
    name: str,
    bits: int | None,
    limbs_per_digit: int | None,
    special: Ring | None,
) -> tuple[Poly, ops.Matrices, int | KeySwitch]:
    """Return ciphertexts, matrices that fit them, and the kind of digits; raise if they do not fit."""
    c = checked_poly(c, c_name)
    if (bits is None) == (limbs_per_digit is None) or (limbs_per_digit is None) != (special is None):
        raise ParameterError(
            "bits, limbs_per_digit, special: give bits, for digits to a base, or the other two, for digits "
            "that are groups of limbs"
        )
    if limbs_per_digit is not None and special is not None:
        if isinstance(matrices, Prepared):
            raise ParameterError(f"{name}: is prepared for digits of {matrices.bits} bits; give bits instead")
        value, P = checked_poly(matrices, name), plan_of(special, "special")
        T = c.ring.join(special)
        way = key_switch_plan(c._plan, P, T._plan, limbs_per_digit)
        if value.ring != T:
            raise RingMismatch(
                f"{name}: of {value.ring!r}, must be of {T!r}, which is {c_name}.ring.join(special); "
                f"restrict drops limbs, and {name}[..., :, :d, :] keeps the first d digits"
            )
        check_one_device(c, value)
        return c, ops.Matrices(value.data, value.domain, value.shape), way
    assert bits is not None
    if isinstance(matrices, Prepared):
        return c, matrices._for(c, bits, name), bits
    given = checked_poly(matrices, name)
    if set(given.ring.moduli) > set(c.ring.moduli):
        raise RingMismatch(
            f"{name}: of {given.ring!r}, {c_name} of {c.ring!r}. If it was made with special primes, give "
            "limbs_per_digit and special instead of bits"
        )
    value = c._operand(given)
    return c, ops.Matrices(value.data, value.domain, value.shape), bits
