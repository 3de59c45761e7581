"""Sums of products over batch axes: matmul, dot and einsum of elements.

A sum of products of evaluated elements is a product of small matrices at each point of each limb. This method
needs a complete transform and moduli of at most 2^64. Without them, polynomials are multiplied, and the
products are added.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from .._backends import Array, Backend, Memory, backend_of
from .._core.checks import Domain, verifying
from .._core.ring_plan import RingPlan
from .._core.value import V, Value
from .._core.ways import way_of_sums
from ..errors import ParameterError
from .arrays import contiguous, empty, fill, layouts, overlap
from .batch import checked_axis
from .calls import repeated
from .multiply import multiply
from .pointwise import Layouts, pointwise, sum_over
from .results import result_array, result_shape
from .transform import intt, to_domain
from .verify import check_matrices_of_points

# The label of a batch axis: a letter, or -1, -2, ... for axes that broadcast, counted from the right.
Label = str | int

_CHUNK_BYTES = 1 << 26  # compute about this many bytes of products of polynomials, then add them to the sum


# Axes that occur in only one operand, and not in the result, are summed over first, before any transform.


@repeated
def matmul(a: V, b: V, *, out: Array | None = None) -> V:
    """Return the product of two matrices of elements by NumPy's rules.

    The product is evaluated if a or b is evaluated.
    """
    return _contract((a, b), *matmul_labels(a._batch, b._batch), out)


def matmul_labels(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[list[list[Label]], list[Label]]:
    """Return the labels of the axes of each operand, and those of the result, for `matmul`.

    a, b: the batch shapes of the operands.
    """
    for name, batch in (("a", a), ("b", b)):
        if not batch:
            raise ParameterError(f"{name} is a single polynomial, which is not a matrix. Use a * b.")
    k = b[-2] if len(b) > 1 else b[-1]
    if a[-1] != k:
        raise ParameterError(
            f"a has batch shape {a} and b has batch shape {b}. The last axis of a, of length {a[-1]}, must "
            f"be as long as the {'second last' if len(b) > 1 else 'only'} axis of b, of length {k}. Reshape "
            "or index one of them."
        )
    batches: list[list[Label]] = [list(range(2 - len(batch), 0)) for batch in (a, b)]
    rows: list[Label] = ["m"] if len(a) > 1 else []
    columns: list[Label] = ["n"] if len(b) > 1 else []
    output = max(batches, key=len) + rows + columns
    return [[*batches[0], *rows, "k"], [*batches[1], "k", *columns]], output


@repeated
def dot(a: V, b: V, axis: object, strides: Layouts = None, *, out: Array | None = None) -> V:
    """Return the sum of a * b over an axis of their broadcast batch shape.

    The sum is evaluated if a or b is evaluated.

    strides: the result of layouts(a, b), for the key of the call (calls.py).
    """
    ndim = len(result_shape(a._data, b._data)) - 2
    if not ndim:
        raise ParameterError(
            "a and b are single polynomials, so dot has no batch axis to sum over. Use a * b."
        )
    summed = checked_axis(axis, ndim) - ndim
    output: list[Label] = [label for label in range(-ndim, 0) if label != summed]
    labels: list[list[Label]] = [list(range(-len(x._batch), 0)) for x in (a, b)]
    return _contract((a, b), labels, output, out)


def einsum(subscripts: object, values: Sequence[V], out: Array | None = None) -> V:
    """Return the einsum of values over batch axes by NumPy's rules.

    The result is evaluated if one of the values is evaluated.
    """
    strides = layouts(*(x._data for x in values))
    return _einsum(*values, subscripts, strides, out=out)  # type: ignore[no-any-return]


@repeated
def _einsum(*values_and_subscripts: Any, out: Array | None = None) -> Any:
    *values, subscripts, _ = values_and_subscripts
    return _contract(values, *parsed_subscripts(subscripts, [len(x._batch) for x in values]), out)


# ---- subscripts ----


def parsed_subscripts(subscripts: object, ndims: Sequence[int]) -> tuple[list[list[Label]], list[Label]]:
    """Return the labels of each operand's axes, and those of the result's axes.

    ndims: the number of batch axes of each operand.
    """
    if not isinstance(subscripts, str):
        raise ParameterError(
            f"subscripts must be a str such as 'ij,jk->ik', not {type(subscripts).__name__}."
        )
    inputs, arrow, result = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    for term in [*terms, result]:
        if not re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", term):
            raise ParameterError(
                f"The term {term!r} of subscripts={subscripts!r} must consist of letters, with '...' at most "
                "once. An example is 'ij,jk->ik'."
            )
    if len(terms) != len(ndims):
        raise ParameterError(
            f"subscripts={subscripts!r} has terms for {len(terms)} operands, but the number of operands is "
            f"{len(ndims)}. Give one term for each operand, separated by commas."
        )
    labels = [_labels(term, ndim, i) for i, (term, ndim) in enumerate(zip(terms, ndims, strict=True))]
    widest = max((-x for names in labels for x in names if isinstance(x, int)), default=0)
    letters = sorted(re.sub(r"[^A-Za-z]", "", inputs))
    if not arrow:
        once: list[Label] = [x for x in letters if letters.count(x) == 1]
        return labels, [*range(-widest, 0), *once]
    for x in result.replace("...", ""):
        if x not in letters:
            raise ParameterError(
                f"subscripts={subscripts!r} has the label {x!r} in the result, but no operand has this "
                "label. Remove the label from the result, or label an axis of an operand with it."
            )
        if result.count(x) > 1:
            raise ParameterError(
                f"The label {x!r} occurs twice in the result {result!r} of subscripts. Name it once."
            )
    if widest and "..." not in result:
        raise ParameterError(
            f"The result {result!r} of subscripts must have '...', because an operand has axes for '...'. "
            "Use letters for the axes to sum over."
        )
    return labels, _split(result, widest)


def _labels(term: str, ndim: int, operand: int) -> list[Label]:
    """Return the labels of an operand's axes."""
    letters = len(term.replace("...", ""))
    if letters > ndim or (letters < ndim and "..." not in term):
        raise ParameterError(
            f"In subscripts, {term!r} has {letters} labels, and operand {operand} has {ndim} batch axes. "
            "Give one label for each axis. Coefficients and limbs are not batch axes."
        )
    return _split(term, ndim - letters)


def _split(term: str, axes: int) -> list[Label]:
    """Return the labels in a term such as 'ij...': its letters, and the numbers -axes to -1 for '...'."""
    before, dots, after = term.partition("...")
    return [*before, *range(-axes if dots else 0, 0), *after]


# ---- sums of products ----


class _Term:
    """An operand or a result: an array (*batch, rows, points), and the labels of its batch axes."""

    __slots__ = ("data", "labels")

    def __init__(self, data: Array, labels: list[Label]) -> None:
        self.data, self.labels = data, labels

    @property
    def sizes(self) -> dict[Label, int]:
        """The length of each batch axis."""
        return dict(zip(self.labels, self.data.shape, strict=False))

    def axes(self, order: Sequence[Label]) -> Array:
        """Return a view whose batch axes have the labels `order`. Axes that the term lacks have length 1."""
        kept = [self.labels.index(x) for x in order if x in self.labels]
        data = self.data.transpose(*kept, self.data.ndim - 2, self.data.ndim - 1)
        return data[tuple(slice(None) if x in self.labels else None for x in order)]


def _contract(
    values: Sequence[V],
    labels: list[list[Label]],
    output: list[Label],
    out: Array | None,
) -> V:
    """Return the products of the values, summed over all labels that `output` does not have."""
    ring, arrays = values[0]._plan, [x._data for x in values]
    sizes = label_sizes([x._batch for x in values], labels)
    compute = backend_of(arrays[0])
    shape = (*(sizes[x] for x in output), ring.rows, ring.n)
    data = result_array(compute, shape, out, *arrays)
    evaluated, way = any(x._domain == "eval" for x in values), way_of_sums(ring)
    domain: Domain = "eval" if evaluated or (len(values) > 1 and way == "transform") else "coef"
    terms = [_squeezed(compute, x, names) for x, names in zip(arrays, labels, strict=True)]
    for i, x in enumerate(values):
        needed = {*output, *(name for term in terms[:i] + terms[i + 1 :] for name in term.labels)}
        _prepare(ring, terms[i], needed, x._domain, domain)
    taken = out is not None and any(overlap(compute, term.data, data) for term in terms)
    target = empty(compute, data.shape, data.dtype) if taken else data
    # Terms have no axes of length 1. `kept` leaves out the labels of such axes.
    kept = [x for x in output if any(x in term.labels for term in terms)]
    final = _Term(target.reshape(*(sizes[x] for x in kept), *data.shape[-2:]), kept)
    total = terms[0]
    for i, term in enumerate(terms[1:], 1):
        later = {x for other in terms[i + 1 :] for x in other.labels}
        result = final if i == len(terms) - 1 else _between(compute, total, term, {*output, *later})
        if domain == "eval" and ring.leaf_size == 1 and not ring.basis.wide:  # matmul_points needs this
            _multiply_points(ring, compute, total, term, result)
        else:
            _add_products(ring, domain, total, term, result)
        total = result
    if total is not final:
        compute.copy(total.axes(kept), final.data)
    if domain == "eval" and not evaluated:
        return intt(values[0]._with(target, "eval"), data)
    if taken:
        compute.copy(target, data)
    return values[0]._with(data, domain)


def label_sizes(batches: Sequence[tuple[int, ...]], labels: list[list[Label]]) -> dict[Label, int]:
    """Return the length of the axes with each label, after axes of length 1 are broadcast.

    batches: the batch shape of each operand. labels: the labels of the axes of each operand.
    """
    sizes: dict[Label, int] = {}
    for i, (batch, names) in enumerate(zip(batches, labels, strict=True)):
        for label, size in zip(names, batch, strict=True):
            diagonal = [x for name, x in zip(names, batch, strict=True) if name == label]
            if min(diagonal) != max(diagonal):
                raise ParameterError(
                    f"The label {label!r} of subscripts occurs twice in an operand of batch shape {batch}. "
                    f"The axes with this label must have equal lengths, not {diagonal[0]} and {diagonal[1]}. "
                    "Index one of these axes."
                )
            known = sizes.setdefault(label, size)
            if known == 1:
                sizes[label] = size
            elif size not in (1, known):
                name = (
                    f"axis {label!r}" if isinstance(label, str) else f"axis {label} of those that broadcast"
                )
                raise ParameterError(
                    f"Operand {i} has batch shape {batch}, with length {size} in {name}, and an earlier "
                    f"operand has length {known} there. The two lengths must be equal, or one of them must "
                    "be 1. Index or reshape one of the operands."
                )
    return sizes


def _squeezed(compute: Memory, data: Array, labels: list[Label]) -> _Term:
    """Return a view of an operand.

    Axes with the same label are replaced by one axis, their diagonal. Axes of length 1 are removed.
    """
    names, xp = list(labels), compute.xp
    for label in labels:
        while names.count(label) > 1:
            i = names.index(label)
            j = names.index(label, i + 1)
            with compute.device_scope(views=True):
                data = xp.moveaxis(xp.diagonal(data, 0, i, j), -1, i)
            del names[j]
    long = [size != 1 for size in data.shape[: len(names)]]
    data = data[tuple(slice(None) if x else 0 for x in long)]
    return _Term(data, [name for name, x in zip(names, long, strict=True) if x])


def _prepare(ring: RingPlan, term: _Term, needed: set[Label], source: Domain, target: Domain) -> None:
    """Sum a term over the axes whose labels are not in `needed`, then bring it to the domain `target`."""
    own = tuple(i for i, x in enumerate(term.labels) if x not in needed)
    if own:
        term.data = sum_over(ring.basis, term.data, own)
        term.labels = [x for x in term.labels if x in needed]
    if source != target:
        term.data = to_domain(Value(ring, contiguous(term.data), source), target)._data


def _between(compute: Memory, left: _Term, right: _Term, needed: set[Label]) -> _Term:
    """Return a new term for the product of two terms. Its axes are those with labels in `needed`."""
    sizes = left.sizes | right.sizes
    labels = [x for x in sizes if x in needed]
    shape = (*(sizes[x] for x in labels), *left.data.shape[-2:])
    return _Term(empty(compute, shape, left.data.dtype), labels)


# The labels of the axes that become the batch axis, the rows and the columns of an array of matrices.
Groups = tuple[list[Label], list[Label], list[Label]]


def _multiply_points(ring: RingPlan, compute: Backend, left: _Term, right: _Term, out: _Term) -> None:
    """Multiply two terms as one batch of matrices at each point.

    Axes that `right` lacks become rows, and axes that `left` lacks become columns. Several row axes are
    merged into one. If their strides do not allow this, all row axes but the last become batch axes, and
    `right` is repeated along these axes by strides of 0. Column axes are treated in the same way, with `left`
    repeated. If every choice needs a copy, all row axes and all column axes are merged in copies.
    """
    sizes = left.sizes | right.sizes
    summed = [x for x in left.labels if x not in out.labels]
    choices = []
    for repeat_right, repeat_left in product((False, True), repeat=2):
        rows = [x for x in out.labels if x not in right.labels][-1 if repeat_right else 0 :]
        columns = [x for x in out.labels if x not in left.labels][-1 if repeat_left else 0 :]
        batch = [x for x in out.labels if x not in rows and x not in columns]
        groups: tuple[Groups, ...] = (batch, rows, summed), (batch, summed, columns), (batch, rows, columns)
        views = [_view(compute, *x, sizes) for x in zip((left, right, out), groups, strict=True)]
        fits = [_merges(*x) for x in zip(views, groups, strict=True)]
        choices.append((views, groups, fits))
        if all(fits):
            break
    else:
        views, groups, fits = choices[0]
    shapes = [(*(prod(sizes[x] for x in group) for group in three), *out.data.shape[-2:]) for three in groups]
    a, b = (_reshaped(x, fit, shape) for x, fit, shape in zip(views[:2], fits, shapes, strict=False))
    c = views[2].reshape(shapes[2]) if fits[2] else empty(compute, shapes[2], ring.dtype)
    compute.matmul_points(ring.basis, a, b, c)
    if verifying() and c.size:
        check_matrices_of_points(compute, ring.basis, a, b, c)
    if not fits[2]:
        compute.copy(c.reshape(views[2].shape), views[2])


def _view(compute: Memory, term: _Term, groups: Groups, sizes: dict[Label, int]) -> Array:
    """Return a view of the term, with axes in the order of `groups`.

    Along an axis that the term does not have, the view repeats the term.
    """
    order = [x for group in groups for x in group]
    view = term.axes(order)
    shape = (*(sizes[x] for x in order), *view.shape[-2:])
    return view if view.shape == shape else compute.xp.broadcast_to(view, shape)


def _merges(view: Array, groups: Groups) -> bool:
    """Return whether the axes of each group can become one axis without a copy."""
    at = 0
    for group in groups:
        for i in range(at, at + len(group) - 1):
            if view.strides[i] != view.shape[i + 1] * view.strides[i + 1]:
                return False
        at += len(group)
    return True


def _reshaped(view: Array, fits: bool, shape: tuple[int, ...]) -> Array:
    """Return the array with the axes of each group merged: a view if `fits`, else a copy."""
    return (view if fits else contiguous(view)).reshape(shape)


def _add_products(ring: RingPlan, domain: Domain, left: _Term, right: _Term, out: _Term) -> None:
    """Multiply the polynomials of two terms and sum the products into `out`.

    About _CHUNK_BYTES bytes of products are in memory at a time.
    """
    summed = [x for x in left.labels if x not in out.labels]
    count = prod(left.sizes[x] for x in summed)
    compute = backend_of(out.data)
    a, b = (x.axes([*summed, *out.labels]) for x in (left, right))
    a, b = (_reshaped(x, _merges(x, (summed, [], [])), (count, *x.shape[len(summed) :])) for x in (a, b))
    if not count:
        fill(compute, out.data, 0)
    step = max(1, _CHUNK_BYTES // max(1, out.data.nbytes))
    for i in range(0, count, step):
        x, y = (Value(ring, contiguous(x[i : i + step]), domain) for x in (a, b))
        part = sum_over(ring.basis, multiply(x, y)._data, 0)
        if i:
            pointwise(ring.basis, "add", out.data, part, out.data)
        else:
            compute.copy(part, out.data)
