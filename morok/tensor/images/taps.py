"""Weighted elements at known places along an axis: what resizing, folding and adaptive pools are made of.

    y[…, i, …] = Σ_k  weights[i, k] · x[…, places[i, k], …]

Places and weights are arrays, known when the graph is made. So it is a product with a sparse matrix, and its
gradient is one with the transposed matrix, whose places are known as well: both only read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from morok import dtype as dt
from morok.caches import Cache
from morok.dtype.records import record
from morok.ir import movement as move
from morok.ir.cached_graph import CachedGraph, capture, instantiate, placeholder
from morok.ir.call import attributes, call
from morok.ir.infer import Shape
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.ir.provenance import here_origin, settle
from morok.tensor.core import expand_to, iota, require_shape
from morok.tensor.creation.constructors import from_data
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.floats import floating
from morok.tensor.elementwise.operators import T
from morok.tensor.gradient.walk import CALLS

_WRITTEN_OUT = 8  # places of an element up to which their sum is written out rather than being a loop
_HALVINGS = 8  # of a weight: exact, but for the smallest numbers


@record(frozen=True)
class Taps:
    """A sparse matrix as tables (k, rows): which elements each row is the sum of."""

    places: Any
    weights: Any
    kind: str = ""  # "equal": all weights are 1; "masked": some are 0, and what is there does not count


_EQUAL, _MASKED = "equal", "masked"

# Tables and what is made of them alone: whoever resizes one picture after the other makes them once.
_tables_of: Cache[tuple[Any, ...], tuple[tuple[UOp, UOp, UOp, UOp], tuple[str, str]]] = Cache(
    "taps.tables", 64
)
_sums: Cache[tuple[Any, ...], CachedGraph] = Cache("taps.sums", 256)
_arrays_of: Cache[tuple[Any, ...], UOp] = Cache("taps.arrays", 64)


def weighted(t: T, axis: int, places: Any, weights: Any) -> T:
    """The sums above. `places` and `weights` have the shape (new, k)."""
    x = floating(t)
    size = x.shape[axis]
    assert isinstance(size, int)
    places, weights = np.ascontiguousarray(places), np.ascontiguousarray(weights)
    key = (size, x.dtype, x.device, places.shape, places.dtype, places.tobytes(), weights.tobytes())
    found = _tables_of.get(key)
    if found is None:
        rows, k = np.nonzero(weights)
        at, by = places[rows, k], weights[rows, k]
        there, back = taps_of(rows, at, by, len(places)), taps_of(at, rows, by, size)
        found = (*_tables(x, there), *_tables(x, back)), (there.kind, back.kind)
        _tables_of[key] = found
    return x._new(_called(x.uop, axis, *found))


def kept_array(x: T, array: Any) -> T:
    """A small array on the device of x, that nobody will change: the same one whenever it is asked for."""
    key = (x.device, array.shape, array.dtype, array.tobytes())
    found = _arrays_of.get(key)
    if found is None:
        found = _arrays_of[key] = from_data(x, array).uop
    return x._new(found)


def _called(x: UOp, axis: int, tables: tuple[UOp, UOp, UOp, UOp], kinds: tuple[str, str]) -> UOp:
    """The sums under their name. If they are kept, they lie in the order in which x lies."""
    if x.op is Ops.PERMUTE:
        return move.permute(_called(x.src[0], x.arg[axis], tables, kinds), x.arg)
    return call(
        "taps", _named_sums(x, axis, tables[0], tables[1], kinds[0]), x, *tables, axis=axis, kinds=kinds
    )


def taps_of(rows: Any, columns: Any, weights: Any, count: int) -> Taps:
    """The tables of a matrix with `count` rows, from its elements that are not 0."""
    width = int(columns.max(initial=0)) + 1
    cells, of = np.unique(rows * width + columns, return_inverse=True)
    weights = np.bincount(of.reshape(-1), weights, minlength=len(cells))
    rows, columns = cells // width, cells % width
    counts = np.bincount(rows, minlength=count)
    most = max(int(counts.max(initial=0)), 1)
    k = np.arange(len(cells)) - np.repeat(np.cumsum(counts) - counts, counts)
    lacking = most - counts
    is_masked = bool((lacking > min(_HALVINGS, most - 1)).any())
    k = k if is_masked else np.where(k > 0, k + lacking[rows], 0)
    places, found = np.zeros((most, count), np.uint32), np.zeros((most, count))
    places[k, rows], found[k, rows] = columns, weights
    if is_masked:
        return Taps(places, found, _MASKED)
    # Rows of fewer elements have the first several times, by halves: w/4 + w/4 + w/2 is w to the last bit.
    step = np.arange(most)[:, None]
    again = step <= lacking
    halves = found[0] * 0.5 ** np.where(again, lacking - np.maximum(step, 1) + 1, 0)
    found = np.where(again, halves, found)
    return Taps(np.where(again, places[0], places), found, _EQUAL if (found == 1.0).all() else "")


def _tables(x: T, taps: Taps) -> tuple[UOp, UOp]:
    weights = taps.weights if x.dtype is dt.float64 else taps.weights.astype(np.float32)
    return from_data(x, taps.places).uop, cast(from_data(x, weights), x.dtype).uop


def _named_sums(x: UOp, axis: int, places: UOp, weights: UOp, kind: str) -> UOp:
    """The sums. How they are made depends on shapes alone, so it is found out once for them."""
    inputs = [x, places, weights]
    key = axis, kind, *((n.dtype, require_shape(n)) for n in inputs)
    if not all(n.__class__ is int for n in require_shape(x)):
        return _summed(x, axis, places, weights, kind)
    graph = _sums.get(key)
    if graph is None:
        holes = [placeholder(n, t.dtype, require_shape(t)) for n, t in enumerate(inputs)]
        found = capture([_summed(holes[0], axis, holes[1], holes[2], kind)], holes)
        if found is None:
            return _summed(x, axis, places, weights, kind)
        graph = _sums[key] = found[0]
    origin = here_origin()
    return instantiate(graph, inputs, settle(origin) if isinstance(origin, tuple) else origin)


def _summed(x: UOp, axis: int, places: UOp, weights: UOp, kind: str) -> UOp:
    """The sums, of tables (k, new)."""
    sizes = require_shape(x)
    count, new = require_shape(places)
    size = sizes[axis]
    assert isinstance(count, int) and isinstance(size, int)
    # Places are known to be there, but not to a kernel: the lesser of two costs less than asking.
    places = alu(Ops.MIN, places, expand_to(const(places.dtype, max(size - 1, 0)), (count, new)))
    shape = (*sizes[:axis], new, *sizes[axis + 1 :])

    def part(first: int, last: int) -> UOp:
        """Terms of some rows of the tables, (k, …, new, …)."""
        k = last - first
        spread = tuple([k if i == 0 else new if i == axis + 1 else 1 for i in range(len(sizes) + 1)])
        at, by = (move.reshape(move.shrink(t, [(first, last), (0, new)]), spread) for t in (places, weights))
        here = (k, *shape)
        term = _looked_up(x, axis, at, here)
        term = term if kind == _EQUAL else alu(Ops.MUL, term, expand_to(by, here))
        if kind != _MASKED:
            return term
        has_weight = alu(Ops.CMPNE, by, expand_to(const(by.dtype, 0.0), spread))
        return alu(Ops.WHERE, expand_to(has_weight, here), term, expand_to(const(term.dtype, 0.0), here))

    if count > _WRITTEN_OUT:
        return move.reshape(move.reduce_axis(part(0, count), Ops.ADD, (0,)), shape)
    terms = [move.reshape(part(k, k + 1), shape) for k in range(count)]
    total = terms[0]
    for term in terms[1:]:
        total = alu(Ops.ADD, total, term)
    return total


def _looked_up(x: UOp, axis: int, places: UOp, sizes: Shape) -> UOp:
    """The elements of an axis at places, in (k, …, new, …). What is kept in memory of it lies in order."""
    own = require_shape(x)
    wide = (*sizes, own[axis])
    last = len(own)
    table = move.reshape(x, (1, *own, 1))
    table = move.permute(
        table, [axis + 1 if i == last + 1 else last + 1 if i == axis + 1 else i for i in range(last + 2)]
    )
    at = move.reshape(places, (*require_shape(places), 1))
    hit = alu(
        Ops.CMPEQ,
        expand_to(at, wide),
        expand_to(iota((1,) * (last + 1) + (own[axis],), last + 1, at.dtype), wide),
    )
    value = alu(Ops.WHERE, hit, expand_to(table, wide), expand_to(const(x.dtype, 0.0), wide))
    return move.reshape(move.reduce_axis(value, Ops.ADD, (last + 1,)), sizes)


def pull_taps(node: UOp, g: UOp, source: int) -> UOp | None:
    """The gradient: with the other tables."""
    if source != 1:
        return None
    places, weights, back_places, back_weights = node.src[2:]
    given = attributes(node)
    axis, (kind, back) = given["axis"], given["kinds"]
    return _called(g, axis, (back_places, back_weights, places, weights), (back, kind))


CALLS["taps"] = pull_taps


def trimmed(places: Any, weights: Any) -> tuple[Any, Any]:
    """Places without weight are taken out as far as all rows have them."""
    count = int((weights != 0).sum(1).max(initial=1))
    if count == weights.shape[1]:
        return places, weights
    order = np.argsort(weights == 0, axis=1, kind="stable")[:, : max(count, 1)]
    return np.take_along_axis(places, order, 1), np.take_along_axis(weights, order, 1)


def overlap_taps(
    size: int, kernel: int, count: int, edge: int, stride: int, dilation: int = 1
) -> tuple[Any, Any]:
    """For each element of an axis that windows cover, where in (kernel, count) its parts are."""
    offset = np.arange(size)[:, None] + edge - dilation * np.arange(kernel)[None, :]
    place, rest = offset // stride, offset % stride
    there = (rest == 0) & (place >= 0) & (place < count)
    places = np.arange(kernel)[None, :] * count + np.where(there, place, 0)
    return trimmed(places, there.astype(np.float64))
