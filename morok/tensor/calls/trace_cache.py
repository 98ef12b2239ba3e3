"""The trace cache: methods that only make a graph of their operands are traced once per signature.

The signature of a call is the method, the types and shapes of its tensors, and its other arguments. A call of
a known signature instantiates a cached graph instead of going through checks, broadcasting and shape
inference again: models repeat their layers, and programs their steps. That graph is captured by calling the
method with placeholders, so it cannot depend on what a tensor was computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from morok.caches import Cache
from morok.dtype import DType
from morok.errors import IRError
from morok.ir.cached_graph import CachedGraph, capture, placeholder
from morok.ir.infer import shape
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.tensor.core import Core

_KEPT = 4096
# What is known of a signature: its graph, or whether one may be captured when it comes again.
_trace_cache: Cache[Any, CachedGraph | bool] = Cache("tensor.trace_cache", _KEPT)
_capturing: ContextVar[bool] = ContextVar("morok.capturing", default=False)
_PLAIN = frozenset((int, bool, str, type(None), type(...)))
_SCALARS = frozenset((Ops.CONST, Ops.DEFINE_VAR, Ops.BIND))  # these are treated as numbers, not as tensors


def signature_of(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, list[UOp]] | None:
    """The signature of a call and the nodes of its tensors; None if it has something without one."""
    nodes: list[UOp] = []
    parts: list[Any] = [function]
    if not _describe(args, parts, nodes):
        return None
    if kwargs:
        parts.append(tuple(kwargs))
        if not _describe(kwargs.values(), parts, nodes):
            return None
    count = len(nodes)
    if count == 1:
        return tuple(parts), nodes
    if count == 0:
        return None
    parts += [nodes.index(node) for node in nodes]  # which of them are the same
    return tuple(parts), nodes


def _describe(values: Iterable[Any], parts: list[Any], nodes: list[UOp]) -> bool:
    for x in values:
        kind = x.__class__
        if kind in _PLAIN:
            parts += (kind, x)
        elif isinstance(x, Core):
            node = x.uop
            if node.op in _SCALARS:
                return False
            parts += (kind, node.dtype, node.shape_ or shape(node))
            nodes.append(node)
        elif kind is float:
            parts += (kind, x if x else repr(x))  # 0.0 and -0.0 are equal
        elif kind is tuple:
            parts += (kind, len(x))
            if not _describe(x, parts, nodes):
                return False
        elif kind is slice:
            parts.append(kind)
            if not _describe((x.start, x.stop, x.step), parts, nodes):
                return False
        elif isinstance(x, DType):
            parts += (DType, x)
        else:
            return False
    return True


def cached_graph(signature: Any) -> CachedGraph | None:
    """The graph of a signature, if it is known already."""
    found = _trace_cache.recent.get(signature)
    if found is None:
        found = _trace_cache.get(signature)
    return found if found.__class__ is CachedGraph else None


def note_call(
    signature: Any,
    nodes: list[UOp],
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    device: str | None = None,
) -> None:
    """A call of this signature has been made the long way; the second one is captured. A device is what its
    tensors say to have, if that is part of the signature."""
    before = _trace_cache.get(signature)
    if before is None:
        _trace_cache[signature] = all(s.__class__ is int for node in nodes for s in shape(node) or ())
    elif before:
        _trace_cache[signature] = _captured(nodes, function, args, kwargs, device) or False


def _captured(
    nodes: list[UOp], function: Callable[..., Any], args: Any, kwargs: Any, device: str | None
) -> CachedGraph | None:
    places = {
        node: placeholder(n, node.dtype, shape(node) or (), device)
        for n, node in enumerate(dict.fromkeys(nodes))
    }
    inputs = [places[node] for node in nodes]
    rest = iter(inputs)  # by order and not by node: the call may have computed its tensors
    token = _capturing.set(True)
    try:
        own = _on(rest, args)
        result = function(*own, **dict(zip(kwargs, _on(rest, kwargs.values()), strict=True)))
    except Exception:
        return None  # the call itself went well, so it looked for more than types and shapes
    finally:
        _capturing.reset(token)
    if not isinstance(result, Core):
        return None
    graph = capture(result._uop, inputs)
    if graph is not None:
        if isinstance(own[0], Core) and result._storage is own[0]._storage:
            graph.chain = result._chain
    return graph


def _on(rest: Iterator[UOp], values: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments with placeholders for their tensors, in the order in which a signature lists them."""
    return tuple([_with_placeholder(rest, x) for x in values])


def _with_placeholder(rest: Iterator[UOp], x: Any) -> Any:
    if isinstance(x, Core):
        return x._new(next(rest))
    if x.__class__ is slice:
        return slice(*_on(rest, (x.start, x.stop, x.step)))
    return _on(rest, x) if x.__class__ is tuple else x


def refuse_trace_cache(what: str) -> None:
    """Called by whatever gives something else each time, so that it is not cached."""
    if _capturing.get():
        raise IRError(f"{what} cannot be part of a cached graph")


def clear_trace_cache() -> None:
    """Forgets all cached graphs."""
    _trace_cache.clear()
