"""Operators of PyTorch on tensors of residues: transforms, products, division, key switches and rotations.

Each function is a custom operator of PyTorch that knows the shape of its result, so torch.compile accepts it.
Make rings and keys outside the function that is compiled, and keep them: for an equal ring that is another
object, PyTorch compiles the function again. A tensor holds the residues of values of a ring,
(*batch, rows, n), as `Poly.data` does. The ring and the domain of the tensors are arguments. By default the
domain is "eval", in the bit-reversed order of `Poly.ntt`.

Dtypes are int64 and uint64; a ring whose moduli are at most 2**32 also takes int32 and uint32. Results have
the dtype and device of the first tensor. A contiguous tensor whose entries have as many bytes as `Ring.dtype`
is read in place; other tensors are converted in one pass. Residues must be in [0, q). They are checked only
inside `with polygpu.debug()`, which raises NotCanonical; `ring(x)` takes tensors with other integers.

On a GPU the work runs on PyTorch's current stream, and results and workspace lie in PyTorch's allocator.
The operators have no gradients: residues are integers, and tensors with gradients raise CoefficientError.

>>> import polygpu as pg, polygpu.torch as pt
>>> import torch
>>> R = pg.Ring(4, [17, 97])
>>> x = pt.from_poly(R([1, 2]))
>>> y = pt.mul(pt.ntt(x, R), pt.ntt(x, R), R)
>>> pt.to_poly(y, R) == R([1, 2]) ** 2
True
"""

from __future__ import annotations

import sys
from ast import literal_eval
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from . import lattice
from ._backends import Backend, backend_of, get_backend
from ._core.checks import Domain, debugging, integer, shown
from ._ops.rns import Precision, Rounding
from .errors import BackendUnavailable, CoefficientError, DeviceError, DomainError, ParameterError
from .functions import dot as dot_of
from .lattice import SwitchKey
from .lattice.switch import checked_key
from .poly import Poly, checked_poly, plan_of, without_last
from .ring import Ring

try:
    import torch
    from torch import Tensor
    from torch.library import custom_op
except ImportError as error:
    raise BackendUnavailable(f"PyTorch cannot be imported ({error}). Run pip install torch.") from None

__all__ = [
    "Key",
    "add",
    "dot",
    "from_key",
    "from_poly",
    "intt",
    "key_switch",
    "mod_down",
    "mul",
    "neg",
    "ntt",
    "rotate",
    "sub",
    "to_key",
    "to_poly",
]

_SIGNED = {np.dtype(np.uint32): torch.int32, np.dtype(np.uint64): torch.int64}
_UNSIGNED = {np.dtype(np.uint32): torch.uint32, np.dtype(np.uint64): torch.uint64}

# ---- values and keys ----


def to_poly(x: Tensor, ring: Ring, *, domain: Domain = "eval") -> Poly:
    """Return the value of a tensor of residues. It shares the tensor's memory if the dtype allows it.

    Args:
        x: residues (*batch, rows, n) in [0, q).
        ring: the ring of the value.
        domain: "eval" or "coef".

    Returns a Poly on the tensor's device.

    Raises:
        CoefficientError: the dtype of x is not one that the ring takes (see the module).
        ParameterError: the shape of x does not end in (rows, n).
        DeviceError: x is neither in host memory nor on a GPU of NVIDIA.
        NotCanonical: inside `with polygpu.debug()`, a residue is outside [0, q).

    Cost: nothing if the entries of x have as many bytes as ring.dtype and x is contiguous, else a copy.

    >>> R = Ring(4, 97)
    >>> to_poly(torch.tensor([[1, 2, 0, 96]]), R, domain="coef") == R([1, 2, 0, -1])
    True
    """
    if not isinstance(x, Tensor):
        raise ParameterError(f"x must be a tensor, not {type(x).__name__}. Use ring.from_residues(x).")
    plan_of(ring, "ring")
    _batch(x, ring, "x")
    return _value(x, ring, domain)


def from_poly(poly: Poly, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return the residues of a value as a tensor (*batch, rows, n), in the value's domain, on its device.

    Args:
        poly: the value.
        dtype: one of int64, int32, uint64 and uint32. By default the signed one with as many bytes as
            poly.ring.dtype, or the unsigned one if residues may be too large for the signed one.

    Raises:
        ParameterError: dtype is not one of these four, or residues of the ring may be too large for it.

    Cost: nothing if the tensor can share the value's memory, else a copy.

    >>> from_poly(Ring(4, 97)([1, -2]), dtype=torch.int64)
    tensor([[ 1, 95,  0,  0]])
    """
    poly = checked_poly(poly, "poly")
    ring, data = poly.ring, poly.data
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ParameterError(f"dtype={shown(dtype)} must be a dtype of PyTorch, such as torch.int64.")
    if isinstance(data, np.ndarray) and not data.flags.writeable:  # DLPack has no read-only arrays
        data = data.copy()
    x = torch.from_dlpack(data)
    own = _UNSIGNED[ring.dtype]
    fits_signed = not ring._plan.basis.wide and max(ring.moduli) <= 1 << (8 * ring.dtype.itemsize - 1)
    if dtype is None:
        dtype = _SIGNED[ring.dtype] if fits_signed else own
    wide_enough = (own, torch.int64, torch.uint64) if ring.dtype.itemsize == 4 else (own,)
    if dtype not in wide_enough and not (fits_signed and dtype == _SIGNED[ring.dtype]):
        raise ParameterError(
            f"dtype={dtype} does not hold all residues of {ring!r}. Use dtype={own}, or leave dtype out."
        )
    return x.view(dtype) if dtype.itemsize == own.itemsize else x.to(dtype)


class Key(NamedTuple):
    """A key for key switching: `value`, a tensor of its residues, and `spec`, a text that states its rings.

    Make a Key with `from_key`. Both parts can be saved, and the tensor can be a buffer of a module:
    self.register_buffer("key", key.value) and Key(self.key, key.spec).

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=50, count=2))
    >>> s, of = T.ternary(seed=1), {"ring": T[:1], "special": T[1:], "limbs_per_digit": 1}
    >>> from_key(pg.lattice.switch_key(s, s * s, **of)).value.shape
    torch.Size([1, 2, 2, 8])
    """

    value: Tensor
    spec: str


def from_key(key: SwitchKey) -> Key:
    """Return a SwitchKey of polygpu.lattice as a Key, on the same device.

    Args:
        key: the key.

    Raises:
        ParameterError: key is not a SwitchKey.

    Cost: see from_poly.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=50, count=3))
    >>> Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    >>> of = {"ring": Q, "special": P, "limbs_per_digit": 1}
    >>> key = from_key(pg.lattice.rotation_keys(s, [5], **of)[5])
    >>> key.value.dtype, to_key(key)
    (torch.int64, SwitchKey(n=8, limbs=2, special=1, limbs_per_digit=1, galois_element=5, device=cpu))
    """
    key = checked_key(key, "key")
    rings = (_spec(ring) for ring in (key.value.ring, key.ring, key.special))
    return Key(from_poly(key.value), repr((*rings, key.limbs_per_digit, key.galois_element, key.turned)))


def to_key(key: Key) -> SwitchKey:
    """Return a Key as a SwitchKey of polygpu.lattice. Both share memory if possible.

    Args:
        key: made by from_key.

    Raises:
        ParameterError: key is not a Key, or key.spec was not made by from_key.

    Cost: see to_poly.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=50, count=3))
    >>> Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    >>> of = {"ring": Q, "special": P, "limbs_per_digit": 1}
    >>> to_key(from_key(pg.lattice.switch_key(s, s * s, **of)))
    SwitchKey(n=8, limbs=2, special=1, limbs_per_digit=1, galois_element=None, device=cpu)
    """
    return _switch_key(*_checked_key(key), _value)


# ---- operators ----


def ntt(x: Tensor, ring: Ring) -> Tensor:
    """Transform coefficients to evaluated values, as `Poly.ntt` does.

    Args:
        x: coefficients (*batch, rows, n).
        ring: the ring of x, which has a transform.

    Returns evaluated values of x's shape.

    Raises:
        NotNTTFriendly: the ring has no transform.
        CoefficientError, ParameterError, DeviceError: see to_poly.

    Cost: one transform per limb. A call costs about 20 us on the host.

    >>> R = Ring(4, 17)
    >>> x = from_poly(R([1, 2]))
    >>> to_poly(ntt(x, R), R) == R([1, 2]).ntt()
    True
    """
    return _ntt(x, _spec(ring))


def intt(x: Tensor, ring: Ring) -> Tensor:
    """Transform evaluated values back to coefficients, the inverse of ntt().

    Args:
        x: evaluated values (*batch, rows, n).
        ring: the ring of x, which has a transform.

    Returns coefficients of x's shape.

    Raises and Cost: see ntt.

    >>> R = Ring(4, 17)
    >>> x = from_poly(R([1, 2]))
    >>> bool((intt(ntt(x, R), R) == x).all())
    True
    """
    return _intt(x, _spec(ring))


def add(a: Tensor, b: Tensor, ring: Ring, *, domain: Domain = "eval") -> Tensor:
    """Return a + b in the ring.

    Args:
        a: residues (*batch, rows, n).
        b: residues on a's device. Batch axes broadcast.
        ring: the ring of both.
        domain: the domain of both and of the result.

    Raises:
        ParameterError: the batch axes do not broadcast.
        CoefficientError, ParameterError, DeviceError: see to_poly.

    Cost: one pass.

    >>> R = Ring(4, 17)
    >>> x = from_poly(R([1, 2]))
    >>> add(x, x, R, domain="coef").tolist()
    [[2, 4, 0, 0]]
    """
    return _add(a, b, _spec(ring), _domain(domain))


def sub(a: Tensor, b: Tensor, ring: Ring, *, domain: Domain = "eval") -> Tensor:
    """Return a - b in the ring.

    Args:
        a: residues (*batch, rows, n).
        b: residues on a's device. Batch axes broadcast.
        ring: the ring of both.
        domain: the domain of both and of the result.

    Raises and Cost: see add.

    >>> R = Ring(4, 17)
    >>> x = from_poly(R([1, 2]))
    >>> sub(x, add(x, x, R), R).tolist()
    [[16, 15, 0, 0]]
    """
    return _sub(a, b, _spec(ring), _domain(domain))


def mul(a: Tensor, b: Tensor, ring: Ring, *, domain: Domain = "eval") -> Tensor:
    """Return the product a * b in the ring, see `Poly.mul`.

    Args:
        a: residues (*batch, rows, n).
        b: residues on a's device. Batch axes broadcast.
        ring: the ring of both.
        domain: the domain of both and of the result.

    Raises: see add.

    Cost: one pass for evaluated values. For coefficients three transforms per limb; see ring.explain().

    >>> R = Ring(4, 17)
    >>> x = from_poly(R([1, 2]))
    >>> mul(x, x, R, domain="coef").tolist()
    [[1, 4, 4, 0]]
    """
    return _mul(a, b, _spec(ring), _domain(domain))


def neg(x: Tensor, ring: Ring) -> Tensor:
    """Return -x in the ring, for residues in either domain.

    Args:
        x: residues (*batch, rows, n).
        ring: the ring of x.

    Raises:
        CoefficientError, ParameterError, DeviceError: see to_poly.

    Cost: one pass.

    >>> R = Ring(4, 17)
    >>> x = from_poly(R([1, 2]))
    >>> neg(x, R).tolist()
    [[16, 15, 0, 0]]
    """
    return _neg(x, _spec(ring))


def dot(a: Tensor, b: Tensor, ring: Ring, *, dim: int = -1, domain: Domain = "eval") -> Tensor:
    """Return the inner product over a batch axis: the sum of a[i] * b[i], see `polygpu.dot`.

    Args:
        a: residues (*batch, rows, n) with at least one batch axis.
        b: residues on a's device. Batch axes broadcast.
        ring: the ring of both.
        dim: index of an axis of the broadcast batch shape, without rows and n; by default its last axis.
        domain: the domain of both and of the result.

    Raises:
        ParameterError: there is no such axis, or the batch axes do not broadcast.
        CoefficientError, ParameterError, DeviceError: see to_poly.

    Cost: see `polygpu.dot`.

    >>> R = Ring(4, 17)
    >>> x = from_poly(R([[1], [2], [3]]))
    >>> dot(x, x, R, domain="coef").tolist()
    [[14, 0, 0, 0]]
    """
    return _dot(a, b, _spec(ring), integer(dim, "dim"), _domain(domain))


def mod_down(
    x: Tensor,
    ring: Ring,
    to: Ring,
    *,
    rounding: Rounding = "nearest",
    conversion: Precision = "exact",
    domain: Domain = "eval",
) -> Tensor:
    """Divide by the product of the moduli that `to` does not have, and round, see `Poly.mod_down`.

    Args:
        x: residues (*batch, rows, n) modulo the moduli of `ring`.
        ring: the ring of x.
        to: the ring of the result, which has some of the moduli of `ring`. ring[:-1] rescales by one limb.
        rounding: "nearest" or "floor".
        conversion: "exact" or "fast".
        domain: the domain of x and of the result.

    Returns residues modulo the moduli of `to`, of x's batch shape.

    Raises:
        RingMismatch: `to` has a modulus that `ring` does not have, or differs in degree or kind.
        ParameterError: rounding or conversion is not one of these words, or a modulus is above 2**64.
        CoefficientError, ParameterError, DeviceError: see to_poly.

    Cost: see `Poly.mod_down`.

    >>> R = Ring(4, [97, 17])
    >>> mod_down(from_poly(R([170, 178])), R, R[:1], domain="coef").tolist()
    [[10, 10, 0, 0]]
    """
    options = _word(rounding, "rounding"), _word(conversion, "conversion"), _domain(domain)
    return _mod_down(x, _spec(ring), _spec(to), *options)


def key_switch(
    a: Tensor,
    key: Key,
    ring: Ring,
    *,
    add: Tensor | None = None,
    rescale: int = 0,
    conversion: Precision = "exact",
    domain: Domain = "eval",
) -> Tensor:
    """Switch values to another secret, see `polygpu.lattice.key_switch`.

    Args:
        a: residues (*batch, rows, n).
        key: made by from_key, on a's device.
        ring: the ring of a: the first limbs of the key's Q, or all of them.
        add: residues of `ring` that are added to the result, of batch shape (*batch, 2), or (*batch) to add
            them to the first component.
        rescale: how many of the last limbs the result drops.
        conversion: "exact" or "fast".
        domain: the domain of a, `add` and the result.

    Returns residues of batch shape (*batch, 2).

    Raises:
        RingMismatch: `ring` does not have the first limbs of the key's Q.
        ParameterError: the batch shape of `add` is another one; rescale is outside its range; conversion is
            another word; or key is not a Key.
        CoefficientError, ParameterError, DeviceError: see to_poly.

    Cost: see `polygpu.lattice.key_switch`. The checks of the key take about 20 us on the host.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=50, count=3))
    >>> Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    >>> of = {"ring": Q, "special": P, "limbs_per_digit": 1}
    >>> a, key = Q.random(seed=2).ntt(), pg.lattice.switch_key(s, s * s, **of)
    >>> d = key_switch(from_poly(a), from_key(key), Q)
    >>> to_poly(d, Q) == pg.lattice.key_switch(a, key)
    True
    """
    key = _checked_key(key)
    options = integer(rescale, "rescale"), _word(conversion, "conversion"), _domain(domain)
    return _key_switch(a, key.value, add, _spec(ring), key.spec, *options)


def rotate(
    c: Tensor, key: Key, ring: Ring, *, conversion: Precision = "exact", domain: Domain = "eval"
) -> Tensor:
    """Apply the automorphism of a key to ciphertexts, see `polygpu.lattice.rotate`.

    Args:
        c: ciphertexts (*batch, 2, rows, n).
        key: made by from_key from a key of polygpu.lattice.rotation_keys, on c's device.
        ring: the ring of c: the first limbs of the key's Q, or all of them.
        conversion: "exact" or "fast".
        domain: the domain of c and of the result.

    Returns ciphertexts of c's shape.

    Raises:
        ParameterError: the last batch axis of c does not have length 2, or the key has no galois_element. For
            other errors, see key_switch.

    Cost: see `polygpu.lattice.rotate`, and a copy of the result.

    >>> import polygpu as pg
    >>> T = pg.Ring(8, pg.ntt_primes(8, bits=50, count=3))
    >>> Q, P, s = T[:2], T[2:], T.ternary(seed=1)
    >>> of = {"ring": Q, "special": P, "limbs_per_digit": 1}
    >>> c, key = Q.random(2, seed=2).ntt(), pg.lattice.rotation_keys(s, [5], **of)[5]
    >>> to_poly(rotate(from_poly(c), from_key(key), Q), Q) == pg.lattice.rotate(c, key)
    True
    """
    key = _checked_key(key)
    return _rotate(c, key.value, _spec(ring), key.spec, _word(conversion, "conversion"), _domain(domain))


# ---- rings and keys as strings ----


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _spec(ring: Ring) -> str:
    """Return a text from which _ring makes an equal ring; raise ParameterError for anything but a Ring."""
    return plan_of(ring, "ring").text


@lru_cache(128)
def _ring(spec: str) -> Ring:
    """Return the ring for a text that _spec returned."""
    n, moduli, kind, root, product = literal_eval(spec)
    return Ring(n, moduli, kind=kind, root=root, product=product)


@lru_cache(128)
def _parts(spec: str) -> tuple[Ring, dict[str, Any]]:
    """Return the ring of a key's residues, and the other arguments of SwitchKey, from the key's text."""
    try:
        whole, ring, special, limbs_per_digit, galois_element, turned = literal_eval(spec)
        rings = {"ring": _ring(ring), "special": _ring(special)}
        options = {"limbs_per_digit": limbs_per_digit, "galois_element": galois_element, "turned": turned}
        return _ring(whole), {**rings, **options}
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise ParameterError(
            f"key.spec={shown(spec[:80])} was not made by from_key. Give a Key with the spec that from_key "
            "returned."
        ) from None


def _switch_key(value: Tensor, spec: str, value_of: Callable[[Tensor, Ring, Domain], Poly]) -> SwitchKey:
    """Return the key with residues `value` and text `spec`. value_of: _poly in an operator, else _value."""
    whole, options = _parts(spec)
    _batch(value, whole, "key")
    return SwitchKey(value_of(value, whole, "eval"), **options)


def _checked_key(key: object) -> Key:
    if not isinstance(key, Key):
        raise ParameterError(f"key must be a Key, not {type(key).__name__}. Use from_key(key) to make one.")
    for name, part, kind in (("value", key.value, Tensor), ("spec", key.spec, str)):
        if not isinstance(part, kind):
            raise ParameterError(
                f"key.{name} must be a {kind.__name__}, not {type(part).__name__}. Use from_key(key) to make "
                "a Key."
            )
    return key


def _domain(domain: object) -> str:
    """Return `domain`. Raise DomainError unless it is a string. The operator checks the string."""
    if not isinstance(domain, str):
        raise DomainError(f"domain={shown(domain)} must be 'coef' or 'eval'.")
    return domain


def _word(value: object, name: str) -> str:
    """Return `value`. Raise ParameterError unless it is a string. The operator checks the string."""
    if not isinstance(value, str):
        raise ParameterError(
            f"{name}={shown(value)} must be a string. The docstring of this function lists the strings."
        )
    return value


# ---- the operators as PyTorch knows them ----


def _operator(
    schema: str, result: Callable[..., tuple[Any, Ring]], compute: Callable[..., object]
) -> Callable[..., Tensor]:
    """Register an operator of PyTorch: its kernel, and the rule for the shape of its result.

    schema: name and arguments in PyTorch's syntax. Rings, domains and the `spec` of a Key have the type str.
    result(*arguments): check the arguments; return batch shape and ring of the result. compute(out,
    *arguments): write the result into the Poly `out`.
    """

    def empty(*arguments: Any) -> tuple[Tensor, Ring]:
        (batch, ring), first = result(*arguments), arguments[0]
        return torch.empty((*batch, ring.rows, ring.n), dtype=first.dtype, device=first.device), ring

    def kernel(*arguments: Any) -> Tensor:
        y, ring = empty(*arguments)
        word = _UNSIGNED[ring.dtype]
        with _scope(y):
            same = y.dtype.itemsize == word.itemsize
            words = y.view(word) if same else torch.empty(y.shape, dtype=word, device=y.device)
            compute(Poly._make(ring, _array(words), "coef"), *arguments)
            if not same:
                y.copy_(words)
        return y

    operator, _, arguments_text = schema.removesuffix(")").partition("(")
    made = custom_op(f"polygpu::{operator}", kernel, mutates_args=(), schema=f"({arguments_text}) -> Tensor")
    made.register_fake(lambda *arguments: empty(*arguments)[0])
    kinds = [argument.split() for argument in arguments_text.split(", ")]
    tensors = [(name, kind == "Tensor?") for kind, name in kinds if kind.startswith("Tensor")]

    def call(*arguments: Any) -> Tensor:
        for (name, may_be_none), x in zip(tensors, arguments, strict=False):
            if x is None and may_be_none:
                continue
            if not isinstance(x, Tensor):
                raise ParameterError(
                    f"{name} must be a tensor, not {type(x).__name__}. Use from_poly(poly) to make a "
                    "tensor from a Poly."
                )
            if x.device != arguments[0].device:
                raise DeviceError(
                    f"{name} is on {x.device}, and {tensors[0][0]} is on {arguments[0].device}. Copy one of "
                    "them to the other's device."
                )
        y: Tensor = made(*arguments)
        return y

    return call


def _same(x: Tensor, ring: str, *_: object) -> tuple[Any, Ring]:
    """Return the batch shape and the ring of x, which are also those of the operator's result."""
    found = _ring(ring)
    return _batch(x, found, "x"), found


def _broadcast(a: Tensor, b: Tensor, ring: str, *_: object) -> tuple[Any, Ring]:
    """Return the batch shape that a and b broadcast to, and their ring."""
    found = _ring(ring)
    shapes = _batch(a, found, "a"), _batch(b, found, "b")
    try:
        return torch.broadcast_shapes(*shapes), found
    except RuntimeError:
        raise ParameterError(
            f"The batch shapes {tuple(shapes[0])} of a and {tuple(shapes[1])} of b do not broadcast. Reshape "
            "one of them."
        ) from None


def _pointwise(name: str) -> Callable[..., Tensor]:
    """Register the operator of the method `name` of Poly: add, sub or mul."""
    method = getattr(Poly, name)

    def compute(out: Poly, a: Tensor, b: Tensor, ring: str, domain: Domain) -> None:
        R = _ring(ring)
        method(_poly(a, R, domain), _poly(b, R, domain), out=out)

    return _operator(f"{name}(Tensor a, Tensor b, str ring, str domain)", _broadcast, compute)


_ntt = _operator(
    "ntt(Tensor x, str ring)", _same, lambda out, x, ring: _poly(x, _ring(ring), "coef").ntt(out=out)
)
_intt = _operator(
    "intt(Tensor x, str ring)", _same, lambda out, x, ring: _poly(x, _ring(ring), "eval").intt(out=out)
)
_neg = _operator(
    "neg(Tensor x, str ring)", _same, lambda out, x, ring: _poly(x, _ring(ring), "coef").neg(out=out)
)
_add, _sub, _mul = map(_pointwise, ("add", "sub", "mul"))


def _dot_result(a: Tensor, b: Tensor, ring: str, dim: int, domain: str) -> tuple[Any, Ring]:
    batch, found = _broadcast(a, b, ring)
    if not -len(batch) <= dim < len(batch):
        raise ParameterError(
            f"dim={dim} is not an axis of the batch shape {tuple(batch)}. Rows and n are not batch axes. "
            f"Use a dim from {-len(batch)} to {len(batch) - 1}."
            if batch
            else "a and b are single polynomials. Give batches of them, with an axis to sum over."
        )
    dim %= len(batch)
    return (*batch[:dim], *batch[dim + 1 :]), found


def _dot_into(out: Poly, a: Tensor, b: Tensor, ring: str, dim: int, domain: Domain) -> None:
    R = _ring(ring)
    dot_of(_poly(a, R, domain), _poly(b, R, domain), dim, out=out)


_dot = _operator("dot(Tensor a, Tensor b, str ring, int dim, str domain)", _dot_result, _dot_into)


def _mod_down_result(x: Tensor, ring: str, to: str, *_: object) -> tuple[Any, Ring]:
    return _batch(x, _ring(ring), "x"), _ring(to)


def _mod_down_into(
    out: Poly, x: Tensor, ring: str, to: str, rounding: Rounding, conversion: Precision, domain: Domain
) -> None:
    value = _poly(x, _ring(ring), domain)
    value.mod_down(_ring(to), rounding=rounding, conversion=conversion, out=out)


_mod_down = _operator(
    "mod_down(Tensor x, str ring, str to, str rounding, str conversion, str domain)",
    _mod_down_result,
    _mod_down_into,
)


def _key_switch_result(
    a: Tensor, key: Tensor, add: Tensor | None, ring: str, spec: str, rescale: int, *_: object
) -> tuple[Any, Ring]:
    found = _ring(ring)
    batch = (*_batch(a, found, "a"), 2)
    if add is not None:
        _batch(add, found, "add")
    return batch, without_last(found, rescale, "rescale", least=0)


# After `out` come all arguments of the operator, in the order of its schema.
def _key_switch_into(
    out: Poly,
    a: Tensor,
    key: Tensor,
    add: Tensor | None,
    ring: str,
    spec: str,
    rescale: int,
    conversion: Precision,
    domain: Domain,
) -> None:
    R = _ring(ring)
    more = None if add is None else _poly(add, R, domain)
    options: Any = {"add": more, "rescale": rescale, "conversion": conversion}
    lattice.key_switch(_poly(a, R, domain), _switch_key(key, spec, _poly), **options, out=out)


_key_switch = _operator(
    "key_switch(Tensor a, Tensor key, Tensor? add, str ring, str spec, int rescale, str conversion, "
    "str domain)",
    _key_switch_result,
    _key_switch_into,
)


def _rotate_into(
    out: Poly, c: Tensor, key: Tensor, ring: str, spec: str, conversion: Precision, domain: Domain
) -> None:
    made = lattice.rotate(_poly(c, _ring(ring), domain), _switch_key(key, spec, _poly), conversion=conversion)
    backend_of(made.data).copy(made.data, out.data)


def _rotate_result(c: Tensor, key: Tensor, ring: str, *_: object) -> tuple[Any, Ring]:
    found = _ring(ring)
    return _batch(c, found, "c"), found


_rotate = _operator(
    "rotate(Tensor c, Tensor key, str ring, str spec, str conversion, str domain)",
    _rotate_result,
    _rotate_into,
)


# ---- tensors ----


def _batch(x: Tensor, ring: Ring, name: str) -> Any:
    """Return the batch shape of a tensor; raise an error unless it can hold residues of the ring."""
    narrow = (torch.int32, torch.uint32) if ring.dtype.itemsize == 4 else ()
    if x.dtype not in (torch.int64, torch.uint64, *narrow):
        raise CoefficientError(
            f"{name} has dtype {x.dtype}, and residues are integers without gradients. Use "
            f"{name}.detach().to(torch.int64) if its entries are residues."
        )
    if x.layout is not torch.strided:
        raise CoefficientError(f"{name} has layout {x.layout}. Use {name}.to_dense().")
    if x.ndim < 2 or x.shape[-2] != ring.rows or x.shape[-1] != ring.n:
        raise ParameterError(
            f"{name} has shape {tuple(x.shape)}, which must end in (rows, n) = ({ring.rows}, {ring.n}) for "
            f"{ring!r}."
        )
    return x.shape[:-2]


def _poly(x: Tensor, ring: Ring, domain: Domain) -> Poly:
    """Return a tensor as a Poly. Call this only inside _scope."""
    return ring.from_residues(_array(_residues(x, ring)), domain=domain)


def _value(x: Tensor, ring: Ring, domain: Domain) -> Poly:
    """Return a tensor as a Poly on polygpu's current stream. Inside _scope, call _poly instead."""
    gpu: Any = _backend(x)
    words = _residues(x, ring)
    value = ring.from_residues(_array(words), domain=domain)  # DLPack lets the current stream wait for x
    if words.is_cuda:  # PyTorch must not reuse the memory before polygpu's stream has read it
        handle = gpu.stream().ptr
        stream = (
            torch.cuda.ExternalStream(handle, words.device)
            if handle
            else torch.cuda.default_stream(words.device)
        )
        words.record_stream(stream)
    return value


def _residues(x: Tensor, ring: Ring) -> Tensor:
    """Return x as unsigned words of the size of the ring's residues. Copy x only if necessary."""
    word = _UNSIGNED[ring.dtype]
    if x.dtype.itemsize == word.itemsize:
        return x.contiguous().view(word)
    return x if debugging() else x.to(word)  # inside debug(), from_residues checks x and converts it


def _array(x: Tensor) -> Any:
    """Return the array of NumPy or CuPy that shares the tensor's memory."""
    return x.numpy() if x.device.type == "cpu" else _backend(x).xp.from_dlpack(x)


def _backend(x: Tensor) -> Backend:
    """Return the backend of the tensor's device; raise DeviceError if polygpu does not compute there."""
    if x.device.type == "cpu":
        return get_backend("cpu")
    if x.device.type == "cuda":
        return get_backend(f"cuda:{x.device.index}")
    raise DeviceError(
        f"A tensor is on {x.device}, and polygpu computes on 'cpu' and 'cuda'. Use x.to('cpu') or "
        "x.to('cuda')."
    )


def _scope(x: Tensor) -> AbstractContextManager[Any]:
    """Let polygpu use PyTorch's current stream and PyTorch's allocator if x is on a GPU."""
    stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
    return _backend(x).guest(stream, _allocate, _free)


def _allocate(size: int, index: int, stream: int) -> int:
    """Return the address of new memory from PyTorch's allocator, for work on a stream of GPU `index`.

    Raises:
        MemoryError: PyTorch has no memory left.
    """
    try:
        address: int = torch.cuda.caching_allocator_alloc(size, index, stream)
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error)) from error
    return address


def _free(
    address: int,
    is_ending: Callable[[], bool] = sys.is_finalizing,
    delete: Callable[[int], None] = torch.cuda.caching_allocator_delete,
) -> None:
    """Give memory back to PyTorch's allocator. Do nothing at the end of the process.

    `is_ending` and `delete` are default arguments, because Python clears this module's names at the end.
    """
    if not is_ending():
        delete(address)
