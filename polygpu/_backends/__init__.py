"""Backends, which compute on a device: their protocol, and the choice of the device.

Callers have checked every argument of a backend: arrays (*batch, rows, degree) of the limbs' dtype,
canonical residues, and an `out` of the result's shape that may be an operand itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal, Protocol, cast

import numpy as np

from .._core.checks import unusual
from .._core.plans.basis import Basis
from .._core.plans.gadget import Gadget
from .._core.plans.ntt import NttPlan, TransformSize
from .._core.plans.product import AuxiliarySize, FftProductPlan, Plan
from .._core.plans.rns import Conversion
from .._core.plans.sampling import Sampler
from .._core.plans.switch import DigitProduct
from .._core.quotient import Quotient
from ..errors import BackendUnavailable, DeviceError
from .records import Array as Array
from .records import Record

Op = Literal["add", "sub", "neg", "mul", "mul_add"]
Mark = Any  # a moment in the work of a device


class Memory(Protocol):
    """The arrays of a device."""

    name: str  # "cpu", "reference", "cuda:0"
    xp: Any  # the module of its arrays: numpy or cupy

    def to_host(self, x: Array) -> Array:
        """The values in host memory; the array itself where it is there."""

    def from_host(self, x: Array) -> Array:
        """The values of a NumPy array on the device; the array itself on the host."""

    def constant(self, x: Array) -> Array:
        """As from_host, for operands that are used again: kept on the device where that saves time."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A new array of undefined values, in the device's memory."""

    def copy(self, x: Array, out: Array) -> None:
        """out[...] = x, for arrays of this device with any strides; axes of x broadcast to those of out.

        Their dtypes may be different ones of integers, where the values fit. They have no entries in common,
        unless they are the same entries.
        """

    def take(self, x: Array, index: Array, out: Array) -> None:
        """Entry j of each row of out is entry index[j] of the row of x; out is not x.

        x and out: words in C order. index: int64 where x lies, as long as the rows.
        """

    def gather(self, x: Array, index: Array, out: Array) -> None:
        """Item i of out is item index[i] of x, along the first axes of arrays in C order; out is not x.

        index: int64 where x lies.
        """

    def scatter(self, x: Array, index: Array, out: Array) -> None:
        """Item index[i] of out becomes item i of x, as in gather(); no number occurs twice."""

    def address(self, x: Array) -> int:
        """Where the array's first entry lies."""

    def device_scope(self, views: bool = False) -> AbstractContextManager[Any]:
        """Inside a `with`, functions of xp work on this device; a call that does so has no record.

        views: they only make views, which is no work.
        """

    def observe(
        self, work: Callable[[], Array], operands: Sequence[Array], out: Array | None
    ) -> tuple[Array, Record | None]:
        """Do the work of a call; return its result and, where it can be repeated, its record.

        operands: all arrays that the work reads and that may be others in another call. Of those that are one
        object here, the others are one object too. out: the memory for the result, if it is given.
        """

    def capture(self, f: Callable[[], Any], arrays: Mapping[int, Array] | None = None) -> Callable[..., Any]:
        """A function that repeats f, whose work is recorded once; f itself where nothing is gained.

        arrays: those on which f works, by the numbers that name them in errors. If given, the function
        takes other arrays in their place and returns nothing.
        """

    def mark(self) -> Mark:
        """The moment at which all work queued so far on the current stream is done."""

    def await_marks(self, marks: Iterable[Mark]) -> None:
        """Let work that is queued from now on begin after these moments, of any devices of this kind."""

    def send(self, x: Array, target: Array, after: Iterable[Mark]) -> Mark:
        """Copy x, which lies on this device, into an array of its shape on any device of this kind.

        The copy begins after the given moments and runs beside the current stream's work. Returns the moment
        at which it is done; until then the caller keeps both arrays alive and unchanged. Their last axis is
        dense. Copies to one device follow each other.
        """

    def is_recording(self) -> bool:
        """Whether work is being recorded, or about to be: repetitions leave out the host's work."""


class Arithmetic(Memory, Protocol):
    """The operations that exist modulo every basis, wide ones too. They write into `out`."""

    def pointwise(self, basis: Basis, op: Op, a: Array, b: Array | None, c: Array | None, out: Array) -> None:
        """out = a + b, a - b, -a, a * b or a * b + c, entry by entry; b may be (*batch, rows, 1)."""

    # Numbers for items are int64, in an array where x lies, whose axes are the last ones of the batch. It is
    # repeated over the others, so that one number, an array without axes, serves all items.

    def automorphism(
        self, basis: Basis, quotient: Quotient, x: Array, multipliers: Array, evaluated: bool, out: Array
    ) -> None:
        """Each item of x after X -> X^g, in coefficients or evaluated; out is not x.

        multipliers: multiplier_of g, for each item (_core/plans/permutation.py).
        """

    def mul_monomial(self, basis: Basis, quotient: Quotient, x: Array, exponents: Array, out: Array) -> None:
        """X^e times each item of x, in coefficients; out is not x.

        exponents: for each item, int64 in [0, order of X); on a card of any size if the order is a power
            of two.
        """

    def reduce_integers(self, basis: Basis, x: Array, out: Array) -> None:
        """Residues of machine integers of any dtype (*batch, count <= n); the rest of each row is 0.

        In host memory x may be an object array of Python ints of any size too.
        """

    # Integers composed of residues by the Chinese remainder theorem, exactly: in [0, Q), or centered, in
    # [-Q/2, Q/2).

    def to_words(self, basis: Basis, x: Array, centered: bool, out: Array) -> None:
        """Each as uint64 words in two's complement, (*batch, n, words); see _core/plans/crt.py."""

    def to_int64(self, basis: Basis, x: Array, centered: bool, out: Array) -> int:
        """Each as int64, (*batch, n); returns the flat index of the first that does not fit, or -1.

        Waits for the result. Where one does not fit, out holds nothing of use.
        """

    def to_float64(self, basis: Basis, x: Array, centered: bool, out: Array) -> None:
        """Each as the nearest double, halves to even, (*batch, n); those beyond all doubles are infinite."""

    def norm(self, basis: Basis, x: Array, p: float, out: Array) -> None:
        """The largest size (p = inf), the sum of sizes (1) or of squares (2) of the centered integers.

        As uint64 words (*batch, words); see _core/plans/crt.py.
        """

    def uniform(self, basis: Basis, key: bytes, start: int, out: Array) -> None:
        """Uniform residues of the polynomials start, start + 1, ... of a key's stream (_ops/sampling.py)."""

    def sample(self, basis: Basis, sampler: Sampler, key: bytes, start: int, out: Array) -> None:
        """Residues of small integers, of the polynomials start, start + 1, ... of a key's stream."""

    def ntt(self, plan: NttPlan, x: Array, out: Array, first: int = 0) -> None:
        """Coefficients to the evaluation domain, in its bit-reversed order.

        Where the arrays have more rows than the plan has limbs, the plan's limbs are the rows from `first`
        on; the other rows stay as they are.
        """

    def intt(self, plan: NttPlan, x: Array, out: Array, first: int = 0) -> None:
        """The evaluation domain to coefficients, in rows as ntt()."""

    def multiply(self, plan: Plan, a: Array, b: Array, out: Array) -> None:
        """Product in the ring, coefficients to coefficients."""

    def multiply_eval(self, plan: NttPlan, a: Array, b: Array, out: Array) -> None:
        """Product in the evaluation domain, complete or not."""


class Backend(Arithmetic, Protocol):
    """The operations of a device; arithmetic modulo moduli up to 2^64."""

    def scale_by_powers(self, basis: Basis, x: Array, first: Array, step: Array, out: Array) -> None:
        """Entry j of each row times first step^j; out may be x.

        first, step: arrays (*, rows, 1) of residues, whose number of items divides that of x: item i of x
        takes item i modulo that number. Where items have one row, the items need not be contiguous, and out
        may be (items, 1, runs, n / runs), whose runs, of a power of two of entries, need not be either.
        """

    def prefers_tables(self, residues: int, itemsize: int) -> bool:
        """Whether the rows of a transform in steps are to have tables of their own.

        residues: the number of residues in these rows. With such tables ntt() and intt() take parts of a
        transform (_core/plans/ntt.py), and ntt() of one polynomial writes rows that lie apart, (points,
        leaf_size). Without them rows are multiplied by powers.
        """

    def product_ns(self, basis: Basis, way: FftProductPlan | TransformSize | AuxiliarySize) -> float:
        """Estimated nanoseconds of a product of two polynomials in a large batch, on one core or a GPU."""

    def prefers_matrix(self, plan: Plan, count: int) -> bool:
        """Whether products of `count` polynomials with one are faster by matmul than by the plan."""

    def matmul(self, basis: Basis, a: Array, b: Array, out: Array) -> None:
        """Products of matrices modulo the one modulus of limbs, at most 2^64.

        (batch or 1, m, k) by (batch or 1, k, n), C-contiguous. Entries are any words of the limbs' dtype,
        canonical or not; out is canonical, C-contiguous and no operand.
        """

    def matmul_points(self, basis: Basis, a: Array, b: Array, out: Array) -> None:
        """Products of matrices, point by point.

        out[s, i, j, r, x] = sum over k of a[s, i, k, r, x] b[s, k, j, r, x] mod q_r.
        Arrays (batch, m, k, rows, points), (batch, k, p, rows, points) and (batch, m, p, rows, points) of
        canonical residues; the last two axes are dense, the first three may be strided (transposed or
        broadcast views, with step 0), out's too but without step 0. out is no operand. Moduli are at most
        2^64.
        """

    def convert_all(self, conversions: Sequence[Conversion], x: Array, out: Array) -> None:
        """Conversions of x into one array, each into rows of its own; no conversion has own rows."""

    def convert(self, conversion: Conversion, x: Array | None, own: Array | None, out: Array) -> None:
        """Rows of out from rows of x and own (_core/plans/rns.py).

        Words hold the moduli of their rows. out may be neither operand. Batch axes broadcast to out's.
        """

    def digit_product(
        self,
        plan: DigitProduct,
        value: tuple[Array, Array] | None,
        digits: Array,
        key: Array,
        out: Array,
        more: Array | None = None,
        multiplier: Array | None = None,
    ) -> None:
        """Sums of products of digits and a key (_core/plans/switch.py).

        out: (*batch, 2, limbs, n), evaluated. value: in coefficients, and evaluated. digits: (*batch, digits,
        limbs, n), scratch memory for the digits of the value; without a value, the evaluated digits
        themselves. more: another value, whose multiple is added to the sums. multiplier: of an automorphism,
        as in automorphism(), which is applied to digits that are given evaluated. Rows of the limbs of
        `plan.inverse` are left in coefficients.
        """

    def decompose(self, gadget: Gadget, x: Array, out: Array) -> None:
        """Residues of the digits of (*batch, 1, n), (*batch, levels, 1, n)."""

    def prepare(self, gadget: Gadget, matrices: Array, out: Array) -> None:
        """Matrices (*batch, 1, n) in coefficients, in the form that products by FFT take on this device.

        out: complex128, (*batch, digits, points) of the product's plan.
        """

    def gadget_product(self, gadget: Gadget, ggsw: Array, c: Array, out: Array) -> None:
        """out_j = sum of digit_l(c_i) ggsw[i, l, j] of coefficients c and out, (*batch, k, 1, n).

        ggsw (k, levels, k, 1, n) is evaluated, or without a transform prepared; out may be c.
        """

    def gadget_rotation(self, gadget: Gadget, ggsws: Array, c: Array, exponents: Array, out: Array) -> None:
        """c times X^e_0, then for each i from 1 on c + ggsws[i - 1] (X^e_i c - c); out is not c.

        Exponents are as of mul_monomial, (*batch, 1 + count), on the host or where c is.
        """

    def fft(self, x: Array, out: Array, inverse: bool) -> None:
        """Fourier transforms of rows of complex numbers, (rows, n); the inverse is 1/n times the sums."""

    def convolve(self, a: Array, b: Array, out: Array) -> None:
        """Cyclic convolutions of rows of 64 complex numbers; b may be one row for all."""


class HostBackend(Backend, Protocol):
    """A backend of NumPy arrays, with the operations that always run on the host."""

    def invert(self, basis: Basis, x: Array, quotient: Quotient, out: Array) -> Array:
        """Inverses modulo the quotient and the one modulus of a basis, a prime of any size.

        Returns an int64 for each item: the degree of the factor that it shares with the quotient, 0 where it
        has an inverse; `out` holds any values where it has none.
        """

    def find_wrong_product(
        self, basis: Basis, a: Array, b: Array, c: Array, points: Array, quotient: Quotient
    ) -> int:
        """The first row of c that differs from a b at one of the points (rows, count), or -1.

        Rows are counted over all items and limbs. Coefficients of any basis of primes; batch axes of a and b
        broadcast to c's.
        """


# ---- devices ----

_HOST_DEVICES = ("cpu", "reference")
_device: ContextVar[str | None] = ContextVar("polygpu_device", default=None)


def current_device() -> str:
    """The device of new values: of the innermost `device(...)`, else $POLYGPU_DEVICE, else "cpu"."""
    return _device.get() or _default_device()


@cache
def _default_device() -> str:
    return checked_device(os.environ.get("POLYGPU_DEVICE") or "cpu", "POLYGPU_DEVICE")


@contextmanager
def device(name: str) -> Iterator[str]:
    """Make and compute new values on the named device inside a `with`: "cpu", "cuda:0", "reference".

    "cuda" is the first GPU. "reference" computes every result from its definition in Python integers:
    slow, for checking. Values are computed on where they are; nothing is copied unasked.

    Args:
        name: "cpu", "reference", or a GPU by its number, "cuda:0"; "cuda" is the first.

    Raises:
        DeviceError: no such device.
        BackendUnavailable: a GPU was asked for and none answers.

    Cost: the first use of a GPU in a process imports CuPy; any other use takes microseconds.

    >>> import polygpu as pg
    >>> with pg.device("reference"):
    ...     print(pg.Ring(4, 17)([1, 2]) ** 2)
    Poly(n=4, q=17, domain=coef, shape=(), device=reference, centered=[1, 4, 4, 0])
    """
    checked = checked_device(name)
    tokens = _device.set(checked), unusual.set(True)
    try:
        yield checked
    finally:
        _device.reset(tokens[0])
        unusual.reset(tokens[1])


def checked_device(name: object, source: str = "device") -> str:
    """The full name of a device that answers; raises otherwise, naming where it came from."""
    if isinstance(name, str):
        if name in _HOST_DEVICES:
            return name
        kind, _, index = name.partition(":")
        if kind == "cuda" and (index.isdecimal() or name == "cuda"):
            try:
                check_gpu(int(index or 0))
            except BackendUnavailable as error:
                raise BackendUnavailable(f"{source}: {name!r} does not answer: {error}") from None
            return f"cuda:{int(index or 0)}"
    raise DeviceError(f"{source}: {name!r} must be 'cpu', 'cuda', 'cuda:1' ... or 'reference'")


@cache  # of success alone (an error is not kept): asking takes a millisecond
def check_gpu(index: int) -> None:
    """Raise where a GPU does not answer."""
    from .cuda import absence

    if reason := absence(index):
        raise BackendUnavailable(reason)


def gpu_names() -> list[str]:
    """The devices that are GPUs; BackendUnavailable where none answers."""
    from .cuda import count

    check_gpu(0)
    return [f"cuda:{i}" for i in range(count())]


@cache
def get_backend(name: str) -> Backend:
    """The backend of a device, by its full name."""
    if name == "reference":
        from .reference import ReferenceBackend

        return ReferenceBackend()
    if name == "cpu":
        from .cpu import CpuBackend

        return CpuBackend()
    from .cuda import CudaBackend

    return CudaBackend(int(name.partition(":")[2]))


def backend() -> Backend:
    """The backend on which new values are made."""
    return get_backend(current_device())


def host() -> HostBackend:
    """The backend of values in host memory: "reference" if that is chosen, else "cpu"."""
    return host_of(_device.get())


chosen_device = _device.get  # of the innermost `device(...)`


@cache
def host_of(device: str | None) -> HostBackend:
    """As host(), for a chosen device."""
    chosen = device or _default_device()
    return cast(HostBackend, get_backend(chosen if chosen in _HOST_DEVICES else "cpu"))


def backend_of(x: Array) -> Backend:
    """The backend that computes on an array: where it lies."""
    return host_of(_device.get()) if isinstance(x, np.ndarray) else get_backend(_gpu_name(x.data.device_id))


@cache
def _gpu_name(index: int) -> str:
    return f"cuda:{index}"


def backend_for(basis: Basis, x: Array) -> Arithmetic:
    """The backend that computes modulo a basis on an array: the array's, or the host's for a wide modulus."""
    return _wide(backend_of(x)) if basis.wide else backend_of(x)  # type: ignore[arg-type]


@cache
def _wide(home: Backend) -> Arithmetic:
    if home.name == "reference":  # it computes modulo every modulus from the definitions
        return home
    from .wide import WideArithmetic

    return WideArithmetic(home)


def same_device(x: Array, y: Array) -> bool:
    """Whether two arrays lie on one device."""
    if type(x) is not type(y):
        return False
    return isinstance(x, np.ndarray) or x.data.device_id == y.data.device_id


def is_device_array(x: object) -> bool:
    """Whether x is an array of a GPU that this library computes on, a CuPy array."""
    return hasattr(x, "__cuda_array_interface__") and type(x).__module__.split(".")[0] == "cupy"


def cuda_sources() -> str:
    """The folder of the CUDA sources, in an installed and in an editable package."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for folder in (os.path.join(package, "cuda"), os.path.join(os.path.dirname(package), "cuda")):
        if os.path.isdir(folder):
            return folder
    raise BackendUnavailable(f"the CUDA sources are missing beside {package}; reinstall polygpu")
