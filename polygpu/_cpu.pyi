"""The native CPU core (cpu/bindings/module.cpp). Arrays are C-contiguous; batch axes broadcast to out's."""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

OPS: list[str]  # of Basis.pointwise, by code
SHAPES: list[str]  # of Sampler, by code

class Quotient:
    """An enum: the polynomial by which a ring is reduced. Its members have the names in cpu/quotient.hpp."""

    name: str
    value: int

class Basis:
    """Moduli: uint64 words (limbs, words), little-endian; a modulus 2**(64 words) has words of 0."""

    def __init__(self, moduli: Array, storage_bits: int) -> None: ...
    def pointwise(self, op: int, a: Array, b: Array | None, c: Array | None, out: Array) -> None: ...
    def combine(
        self, factors: Array, constant: Array | None, step: int, out: Array, *operands: Array
    ) -> None: ...
    def permute(self, x: Array, index: Array, out: Array) -> None: ...
    def mul_monomial(self, x: Array, exponents: Array, quotient: Quotient, out: Array) -> None: ...
    def scale_by_powers(self, x: Array, first: Array, step: Array, out: Array) -> None: ...
    def reduce_integers(self, x: Array, out: Array) -> None: ...
    def reduce_large_integers(self, x: Array, out: Array) -> None: ...
    def reduce_words(self, words: Array, limb: int, first: int, out: Array) -> None: ...
    def matmul(self, a: Array, b: Array, out: Array) -> None: ...
    def matmul_bytes(self, a: Array, is_signed: bool, b: Array, out: Array) -> None: ...
    def matmul_points(self, a: Array, b: Array, out: Array) -> PointsProduct: ...
    def invert(self, x: Array, quotient: Quotient, out: Array, degrees: Array) -> None: ...
    def find_wrong_product(self, a: Array, b: Array, c: Array, points: Array, quotient: Quotient) -> int: ...
    def ns_by_transform(self, points: int, leaf_size: int) -> float: ...
    def ns_by_fft(self, reals: float) -> float: ...
    def ns_by_primes(self, points: int, primes: int) -> float: ...

class PointsProduct:
    """Basis.matmul_points again: of C-contiguous arrays of any shape that lie as those of that call."""

    def run(self, a: Array, b: Array, out: Array) -> None: ...

class Residues:
    """Rows of residues in an array (*batch, total, n); a modulus 2**64 is 0."""

    def __init__(self, moduli: list[int], at: list[int], total: int) -> None: ...

class Quotients:
    """floor(sum of z_i / q_i + half): "none", "floor", "nearest" or "counted"."""

    def __init__(self, way: str, moduli: list[int], words: Array) -> None: ...

class Conversion:
    """Rows of residues from other rows, by a matrix uint64 (target, terms)."""

    def __init__(
        self,
        source: Residues,
        inverses: list[int],
        quotients: Quotients,
        target: Residues,
        accumulates: bool,
        transform: Transform | None,
        own: Residues,
        matrix: Array,
    ) -> None: ...
    def scale(self, rows: list[int], remainders: list[int], fractions: Quotients) -> None: ...
    def run(self, x: Array | None, own: Array | None, out: Array) -> None: ...

class Sampler:
    """A distribution of small integers; weights int64, thresholds uint64."""

    def __init__(
        self, shape: int, bytes: int, parameter: int, bound: int, weights: Array, thresholds: Array
    ) -> None: ...
    def draw(self, basis: Basis, stream: Array, first: int, count: int, out: Array) -> None: ...

class Composition:
    """Integers of residues, words in two's complement (_core/plans/crt.py has the tables)."""

    def __init__(
        self,
        basis: Basis,
        words: int,
        inverse: Array,
        terms: Array,
        modulus: Array,
        prefix_inverse: Array,
        bounds: Array,
    ) -> None: ...
    def to_words(self, x: Array, centered: bool, out: Array) -> None: ...
    def to_int64(self, x: Array, centered: bool, out: Array) -> int: ...
    def to_float64(self, x: Array, centered: bool, out: Array) -> None: ...
    def norm(self, x: Array, p: int, out: Array) -> None: ...

class PrimeTables:
    """Twiddles and their Shoup quotients of one prime, (2, points) words by node."""

    def __init__(self, modulus: int, forward: Array, inverse: Array) -> None: ...

class Transform:
    """One transform of all limbs."""

    def __init__(
        self,
        basis: Basis,
        degree: int,
        leaf_size: int,
        block: int,
        quotient: Quotient,
        tables: tuple[PrimeTables, ...],
    ) -> None: ...
    def ntt(self, x: Array, out: Array, first: int = 0) -> None: ...
    def intt(self, x: Array, out: Array, first: int = 0) -> None: ...
    def multiply(self, a: Array, b: Array, out: Array) -> None: ...
    def multiply_eval(self, a: Array, b: Array, out: Array) -> None: ...

class DigitProduct:
    """Sums over digits of products with a key; an own digit of `digits` is none."""

    def __init__(
        self,
        transform: Transform,
        digits: int,
        own_digits: list[int],
        own_rows: list[int],
        own_total: int,
        key_rows: list[int],
        key_total: int,
        transformed: bool,
    ) -> None: ...
    def run(self, digits: Array, own: Array | None, key: Array, out: Array) -> None: ...

class Order:
    """The order in which an automorphism reads the entries of evaluated rows."""

    def __init__(self, index: Array) -> None: ...

class RotatedSums:
    """Sums over rotations of products of digits and keys; a term without a key has no rows of one."""

    def __init__(
        self,
        transform: Transform,
        digits: int,
        orders: tuple[Order, ...],
        key_rows: list[list[int]],
        key_totals: list[int],
        factors: list[int],
        more_rows: list[int],
        more_total: int,
        turned: bool,
        split: bool,
        places: list[list[int]],
    ) -> None: ...
    def run(
        self, digits: Array | None, more: Array, weights: Array | None, out: Array, *keys: Array
    ) -> None: ...

class GadgetProduct:
    """Digits to a base modulo one q, and products of ciphertexts with matrices through them."""

    def __init__(
        self,
        basis: Basis,
        transform: Transform | None,
        product: FftProduct | None,
        bits: int,
        levels: int,
    ) -> None: ...
    def decompose(self, x: Array, out: Array) -> None: ...
    def prepare(self, x: Array, out: Array) -> None: ...
    def multiply(self, ggsw: Array, c: Array, out: Array) -> None: ...
    def rotate(self, ggsws: Array, c: Array, exponents: Array, out: Array) -> None: ...

class TorusProduct:
    """Products of ciphertexts with matrices modulo 2**modulus_bits in doubles, for n = 2 len(twiddles).

    roots: exp(2 pi i k / (4 len(twiddles))).
    """

    def __init__(self, modulus_bits: int, bits: int, levels: int, twiddles: Array, roots: Array) -> None: ...
    def arrange(self, leaves: Array, out: Array) -> None: ...
    def multiply(self, ggsw: Array, c: Array, out: Array) -> None: ...
    def rotate(self, ggsws: Array, c: Array, exponents: Array, out: Array) -> None: ...
    def rotate_by_groups(self, keys: Array, c: Array, exponents: Array, out: Array) -> None: ...

class Auxiliary:
    """Exact products modulo `limbs` through the primes of `transform`."""

    def __init__(self, basis: Basis, transform: Transform, degree: int, quotient: Quotient) -> None: ...
    def multiply(self, a: Array, b: Array, out: Array) -> None: ...

class FftProduct:
    """Exact products modulo `limbs` by complex transforms of `digits` digits of `width` bits.

    table: complex128 (length // 2,), entry k the twiddle of node k of the tree of X**(length/2) - i.
    """

    def __init__(
        self,
        basis: Basis,
        degree: int,
        length: int,
        quotient: Quotient,
        digits: int,
        width: int,
        sums: int,
        table: Array,
        terms: int = 0,
        bits: int = 0,
    ) -> None: ...
    def multiply(self, a: Array, b: Array, out: Array) -> None: ...

class DriverError(RuntimeError):
    """CUDA's driver refused a launch; the message has the kernel's name."""

class NoContext(DriverError):
    """It refused because this thread has no context of CUDA; nothing was launched."""

class Launches:
    """Launches of kernels on a GPU that are ready but for the addresses of their operands."""

    def __init__(self, driver: dict[str, int], launches: list[tuple[Any, ...]]) -> None:
        """Of (kernel, function, grid, threads, shared, counters, early, operands, offsets, parameters)."""
    def __call__(self, stream: int, *operands: int) -> None:
        """Launch on a stream, with the addresses of the operands."""
    def on(self, stream: int, operands: tuple[Any, ...], result: Any, room: int) -> bool:
        """Launch on CuPy's arrays, the result, address 0 and room; False, with nothing done, if unaligned."""

class Replay:
    """Calls of functions on arrays by number: operands, the result, then made, fixed and views."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        made: list[tuple[tuple[int, ...], np.dtype[Any]]],
        fixed: list[Any],
        views: list[tuple[int, tuple[int, ...], np.dtype[Any], int, tuple[int, ...]]],
        steps: list[tuple[Callable[..., Any], tuple[int, ...]]],
        operands: int,
        limit: int,
        unusual: Callable[[], bool],
        serves: Callable[[], bool],
    ) -> None:
        """Of the result's shape; arrays to make; other arguments; views; functions with what they take.

        Where `unusual` is true, `serves` is asked whether the calls may be made.
        """
    def __call__(self, operands: tuple[Array, ...], out: Array | None) -> Array | None:
        """Make the calls, into `out` or new memory.

        Return None, with nothing done, where they may not be made, memory is not at hand or `out` cannot
        take the result.
        """

def fill_twiddles(q: int, root: int, quotient: Quotient, forward: Array, inverse: Array) -> None:
    """Fill tables (2, points) of one limb."""

def smallest_generator(q: int, root: int, order: int) -> int:
    """Return the least element that generates what root generates, which has this order."""

def fft(x: Array, out: Array, inverse: bool) -> None:
    """Transform rows (rows, n) of one complex dtype, n = 2**k <= 4096, as numpy.fft does; out may be x."""

def convolve64(a: Array, b: Array, out: Array) -> None:
    """ifft(fft(a) * fft(b)) of rows of 64 points; b may be a single row; out may be a or b."""

RESULTS: object
"""NumPy's memory handler (NEP 49) of results: blocks that begin at a multiple of 64 bytes, used again."""

def set_memory_handler(handler: object) -> object:
    """Choose NumPy's handler for new arrays of this context; returns the one before, to be set again."""

def integers_of_list(x: object) -> Array | None: ...
def empty(shape: tuple[int, ...], dtype: np.dtype[Any], zero: bool, limit: int) -> Array | None:
    """Return a new array of RESULTS, of zeros if asked for.

    None if the system has no memory, or if it takes more than `limit` bytes that are not kept.
    """

def pool_kept() -> int:
    """Bytes kept for the next results."""

def pool_release() -> None:
    """Give the memory that is kept for results back to the system."""

def pool_set_bounds(bytes: int, idle: float = 10) -> None:
    """Keep at most so many bytes, and none that has not been used for `idle` seconds."""

def available_memory(proc: str = "/proc", cgroup: str = "/sys/fs/cgroup") -> int:
    """Bytes that the machine has left, or fewer where a container or this process has a lower limit."""

def all_isas() -> list[str]:
    """Return the instruction sets of all machines, the best first."""

def most_matrix_degree() -> int:
    """Return the largest degree for which products of many polynomials with one are matrices."""

def supported_isas() -> list[str]:
    """Instruction sets of this CPU, the best first."""

def isa() -> str:
    """Return the instruction set in use."""

def set_isa(name: str) -> None: ...
def set_num_threads(count: int) -> None: ...
def num_threads() -> int: ...
def clock_ghz() -> float:
    """Measure the clock by additions that wait for each other, in about 10 ms."""
