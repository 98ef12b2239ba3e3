"""Cached graphs: the nodes between some inputs and a result, as steps that can be followed quickly.

It is captured from a graph over placeholders, which nothing else contains. Instantiating it on other nodes
makes exactly the nodes that the constructors would make, without their checks and without inferring shapes
again; both have been done for the placeholders, and depend on nothing but types and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, final

from morok.dtype import DType
from morok.ir.args import LOOSE, arg_key
from morok.ir.infer import Shape, shape
from morok.ir.node import UOp, _Fields, _forget, _Ref, _table, intern, make, set_shape, toposort
from morok.ir.ops import Op, Ops
from morok.ir.provenance import Origin

# op, type, number of the only source or how to pick several, argument, its key, its class, shape
_Step = tuple[Op, DType, int, Callable[[list[UOp]], tuple[UOp, ...]] | None, Any, Any, type, Any]
_PLACEHOLDER = "placeholder"
# What belongs to one place and not to a signature.
_PARTICULAR = frozenset((Ops.BUFFER, Ops.UNIQUE, Ops.DEVICE, Ops.COPY, Ops.BIND, Ops.DEFINE_VAR))


def placeholder(
    number: int,
    dtype: DType,
    sizes: Shape,
    device: str | None = None,
    before: tuple[Shape | None] | None = None,
) -> UOp:
    """A node that has a type and a shape, perhaps a device, and is nothing. `before` tells the shape of what
    it repeats, if that is known."""
    node = make(Ops.PARAM, dtype, (), (_PLACEHOLDER, number, sizes, device, before))
    set_shape(node, sizes)
    return node


def is_placeholder(node: UOp) -> bool:
    """Whether a node is no value, but the place of one in a cached graph."""
    return node.op is Ops.PARAM and node.arg[0] == _PLACEHOLDER


@final
class CachedGraph:
    """How results are made of inputs."""

    __slots__ = ("chain", "fixed", "several", "steps")

    def __init__(self, fixed: tuple[UOp, ...], steps: tuple[_Step, ...]) -> None:
        self.fixed = fixed  # what does not depend on the inputs
        self.steps = steps
        self.chain: Any = None  # if the result is a view of the first input, of what lies in order at least
        # of several results: what makes one of them all, and where each is found, with a chain like that
        self.several: tuple[Callable[[list[Any]], Any], tuple[tuple[int, Any], ...]] | None = None


def capture(results: Sequence[UOp], inputs: Sequence[UOp]) -> tuple[CachedGraph, list[int]] | None:
    """The cached form of a graph over placeholders, and where `instantiate` leaves each of its results; None
    if there is nothing to make, or something particular."""
    order = toposort(*results)
    if any(node in inputs for node in results) or any(node.op in _PARTICULAR for node in order):
        return None
    depends = set(inputs)
    for node in order:
        if not depends.isdisjoint(node.src):
            depends.add(node)
    made = [node for node in order if node in depends and node not in inputs]
    fixed = tuple(dict.fromkeys(s for node in made for s in node.src if s not in depends))
    if any(node not in depends for node in results):
        return None
    number = {node: n for n, node in enumerate((*inputs, *fixed, *made))}
    return CachedGraph(fixed, tuple([_step(node, number) for node in made])), [number[n] for n in results]


def _step(node: UOp, number: dict[UOp, int]) -> _Step:
    places = [number[s] for s in node.src]
    pick = None if len(places) == 1 else itemgetter(*places)
    kind = node.arg.__class__
    key = arg_key(node.arg) if kind in LOOSE else node.arg
    return node.op, node.dtype, places[0], pick, node.arg, key, kind, shape(node)


def instantiate(graph: CachedGraph, inputs: list[UOp], origin: Origin | None) -> UOp:
    """The result on other inputs of the same types and shapes, the last one if there are several. `inputs`
    goes on with all nodes that are met: that is where results are found."""
    values = inputs
    values += graph.fixed
    table = _table
    node: Any = None
    for op, dtype, first, pick, arg, arg_id, kind, sizes in graph.steps:
        src = (values[first],) if pick is None else pick(values)
        key = (op, dtype, src, arg_id, kind)
        ref = table.get(key)
        node = ref() if ref is not None else None
        if node is None:
            node = _Fields()
            node.op = op
            node.dtype = dtype
            node.src = src
            node.arg = arg
            node.origin = origin
            node.shape_ = sizes
            node.bounds_ = node.ranges_ = node.digest_ = node.memo_ = None
            node.__class__ = UOp
            new = _Ref(node, _forget)
            new.key = key
            if table.setdefault(key, new) is not new:
                node = intern(new, node)
        values.append(node)
    return node  # type: ignore[no-any-return]
