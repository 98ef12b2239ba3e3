"""The trace cache: methods that only make a graph of their operands are traced once per signature.

The signature of a call is the method, the types and shapes of its tensors, and its other arguments. A call of
a known signature instantiates a cached graph instead of going through checks, broadcasting and shape
inference again: models repeat their layers, and programs their steps. That graph is captured by calling the
method with placeholders, so it cannot depend on what a tensor was computed from.

Of a method that asks where its tensors are, or what they repeat, the device and its machine, and that, are
part of the signature, too. What returns several tensors is made of one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Final

from morok import knobs
from morok.caches import Cache
from morok.dtype import DType
from morok.errors import IRError
from morok.ir.cached_graph import CachedGraph, capture, placeholder
from morok.ir.infer import shape
from morok.ir.layout import is_mesh
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.machine.devices import machine_key
from morok.tensor.calls.tracing import is_tracing
from morok.tensor.core import Core
from morok.tensor.memory.storage import AnyDevice, Storage, before_expand, graph_device

_KEPT = 4096
_BY_DEVICE: Final = "by device"
# What is known of a signature: its graph, whether one may be captured when it comes again, or that there is
# one for each device.
_trace_cache: Cache[Any, CachedGraph | bool | str] = Cache("tensor.trace_cache", _KEPT)
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


def first_of(args: tuple[Any, ...]) -> Core | None:
    """The operand whose views results may be: the first one that is a tensor."""
    if args and isinstance(args[0], Core):
        return args[0]
    return next((x for x in args if isinstance(x, Core)), None)


def cached_graph(signature: Any, nodes: list[UOp]) -> CachedGraph | None:
    """The graph of a signature, and of the device of its tensors where it asks for that, if it is known."""
    found = _trace_cache.recent.get(signature)
    if found is None:
        found = _trace_cache.get(signature)
    if found.__class__ is CachedGraph:
        return found
    if found is not _BY_DEVICE:
        return None
    there = _on_device(signature, nodes)
    found = None if there is None else _trace_cache.get(there[1])
    return found if found.__class__ is CachedGraph else None


def _on_device(signature: Any, nodes: list[UOp]) -> tuple[str, Any] | None:
    """The only device of some tensors, and the signature there: with all that a method may find out of it,
    and of what the tensors repeat."""
    device = graph_device(nodes[0])
    if is_mesh(device) or any(graph_device(node) != device for node in nodes[1:]):
        return None
    before = tuple([before_expand(node) for node in nodes])
    return device, (device, machine_key(device), knobs.compile_environment(), is_tracing(), before, signature)


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
        return
    if before is True:
        try:
            found = _captured(nodes, function, args, kwargs, device)
        except AnyDevice:
            found = _BY_DEVICE
        before = _trace_cache[signature] = found or False
    if before is _BY_DEVICE:
        there = _on_device(signature, nodes)
        if there is not None and _trace_cache.get(there[1]) is None:
            _trace_cache[there[1]] = _captured(nodes, function, args, kwargs, there[0], True) or False


def _captured(
    nodes: list[UOp],
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    device: str | None,
    whole: bool = False,
) -> CachedGraph | str | None:
    """The graph of a call. It raises AnyDevice if the method asks for the device and that is not said, or for
    what its tensors repeat and that is not part of the signature, as it is of a `whole` one."""
    places = {
        node: placeholder(n, node.dtype, shape(node) or (), device, (before_expand(node),) if whole else None)
        for n, node in enumerate(dict.fromkeys(nodes))
    }
    inputs = [places[node] for node in nodes]
    rest = iter(inputs)  # by order and not by node: the call may have computed its tensors
    token = _capturing.set(True)
    try:
        own = _on(rest, args)
        others = _on(rest, kwargs.values())
        result = function(*own, **dict(zip(kwargs, others, strict=True)))
        several = None if isinstance(result, Core) else _maker(result)
        results = [result] if several is None else list(result)
    except AnyDevice:
        raise
    except Exception:
        return None  # the call itself went well, so it looked for more than types and shapes
    finally:
        _capturing.reset(token)
    if not results or not all(isinstance(t, Core) for t in results):
        return None
    found = capture([t._uop for t in results], inputs)
    if found is None:
        return None
    graph, at = found
    first = first_of(own)
    memory = None if first is None else first._storage
    chains = [t._chain if t._storage is memory else None for t in results]
    if several is None:
        graph.chain = chains[0]
    elif _are_apart(results, memory, (*own, *others)):
        graph.several = several, tuple(zip(at, chains, strict=True))
    else:
        return None
    return graph


def _maker(result: Any) -> Callable[[list[Any]], Any] | None:
    """What makes such a collection of several tensors; None of what is none."""
    kind = result.__class__
    if kind is tuple or kind is list:
        return kind
    if isinstance(result, tuple) and not getattr(result, "is_later", False):
        return getattr(kind, "_make", None)
    return None


def _are_apart(results: list[Core], memory: Storage | None, given: Iterable[Any]) -> bool:
    """Whether who writes to one of several results changes nothing but memory of the first operand."""
    others = [t._storage for t in results if t._storage is not memory]
    shared = {id(s) for s in _storages(given) if s is not memory}
    return len({id(s) for s in others}) == len(others) and shared.isdisjoint(id(s) for s in others)


def _storages(given: Iterable[Any]) -> Iterator[Storage]:
    for x in given:
        if isinstance(x, Core):
            yield x._storage
        elif x.__class__ is tuple:
            yield from _storages(x)


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
