"""Provenance of tensor methods: one look at the call stack per call of the user's.

All nodes that a method makes, and those of the methods it calls in turn, come from the user's line. An error
on the way gets the same line, unless it knows a better one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from morok.errors import MorokError, OutOfMemory
from morok.ir.cached_graph import instantiate
from morok.ir.node import UOp
from morok.ir.provenance import capture, here, here_origin
from morok.knobs import default_device
from morok.machine.devices import machine_of
from morok.tensor.calls.trace_cache import cached_graph, first_of, note_call, signature_of
from morok.tensor.core import Core
from morok.tensor.memory.storage import graph_device, identified
from morok.tensor.memory.strides import Chain

K = TypeVar("K", bound=type)

# Python calls these for the user; the rest of the special methods are plumbing.
_OPERATORS = frozenset((
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__",
    "__floordiv__", "__rfloordiv__", "__mod__", "__rmod__", "__pow__", "__rpow__", "__matmul__",
    "__rmatmul__", "__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__", "__lshift__",
    "__rlshift__", "__rshift__", "__rrshift__", "__neg__", "__pos__", "__abs__", "__invert__", "__round__",
    "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__iadd__", "__isub__", "__imul__",
    "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__", "__imatmul__", "__iand__", "__ior__", "__ixor__",
    "__ilshift__", "__irshift__", "__getitem__", "__setitem__", "__init__", "__bool__", "__int__",
    "__float__", "__index__", "__iter__", "__array__", "__dlpack__", "__divmod__",
))  # fmt: skip


F = TypeVar("F", bound=Callable[..., Any])


def frozen(reason: str) -> Callable[[F], F]:
    """A method whose result is a value and no place: who writes to it is told why that goes nowhere."""

    def note_reason(function: F) -> F:
        function.frozen = reason  # type: ignore[attr-defined]
        return function

    return note_reason


def makes_constant(function: F) -> F:
    """A method whose result, if the user calls it, is told apart from equal ones."""
    function.makes_constant = True  # type: ignore[attr-defined]
    return function


def methods(pure: Iterable[ModuleType]) -> Callable[[K], K]:
    """A class decorator: every public method of its table remembers the user's line.

    `pure`: the modules whose functions do nothing but make a graph from their operands; see `trace_cache.py`.
    """
    names = frozenset([module.__name__ for module in pure])

    def decorate(cls: K) -> K:
        known: dict[Any, Any] = {}  # a function under two names is one method
        for name, member in list(vars(cls).items()):
            if name.startswith("_") and name not in _OPERATORS:
                continue
            if isinstance(member, classmethod | staticmethod):
                setattr(cls, name, type(member)(_recording(member.__func__)))
            elif isinstance(member, FunctionType):
                if member not in known:
                    wrap = _repeating if member.__module__ in names else _recording
                    known[member] = method = wrap(member)
                    method.__module__ = cls.__module__  # it is found, and pickled, by way of the class
                    method.__qualname__ = f"{cls.__qualname__}.{name}"
                setattr(cls, name, known[member])
        return cls

    return decorate


def recorded(function: F) -> F:
    """A function that is no method, as the public has it: it remembers the user's line as methods do."""
    return _recording(function)  # type: ignore[return-value]


def repeated(place: int) -> Callable[[F], F]:
    """A function that is no method and does nothing but make a graph from its operands, of which the first is
    a tensor: it is traced once per signature, as methods are (see `trace_cache.py`). All of them are on the
    device of the one at that place, for which it may ask, and for its machine."""

    def decorate(function: F) -> F:
        @wraps(function)
        def call(*args: Any) -> Any:
            found = signature_of(function, args, {}) if here_origin() is None else None
            if found is None:
                return function(*args)
            device, nodes = graph_device(args[place]._uop), found[1]
            signature = device, machine_of(device).key, default_device(), *found[0]
            cached = cached_graph(signature, nodes)
            if cached is not None and cached.chain is None and cached.several is None:
                return args[0]._new(instantiate(cached, nodes, capture(2)))
            result = function(*args)
            note_call(signature, nodes, function, args, {}, device)
            return result

        return call  # type: ignore[return-value]

    return decorate


if TYPE_CHECKING:
    P = ParamSpec("P")
    R = TypeVar("R")

    class constructor(Generic[P]):  # noqa: N801 - used as a decorator is
        """How a table attaches a function of a class: called on a class, it makes one of its tensors."""

        def __init__(self, function: Callable[Concatenate[type[Any], P], Any]) -> None: ...

        def __get__(self, instance: object, owner: type[R]) -> Callable[P, R]: ...

else:
    constructor = classmethod


def _recording(function: Callable[..., Any], at_once: bool = False) -> Callable[..., Any]:
    """`at_once`: whatever goes wrong is wrong with this very call, and not with what was computed before."""
    reason = getattr(function, "frozen", None)
    constant = hasattr(function, "makes_constant")

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if here_origin() is not None:  # called by another method: the line is known
            return function(*args, **kwargs)
        here.origin = origin = capture(2)
        try:
            result = function(*args, **kwargs)
            if reason is not None and result._storage is not args[0]._storage:
                result._frozen = reason
            if constant:
                # the gradient of an equal constant is another gradient
                result._storage.node = identified(result._storage.node)
            return result
        except MorokError as error:
            if (at_once or error.place is None) and origin is not None:
                error.place = repr(origin)
            raise
        except MemoryError as error:  # of Python or NumPy
            where = None if origin is None else repr(origin)
            raise OutOfMemory(f"the host has no room left: {error}".rstrip(": "), place=where) from None
        finally:
            here.origin = None

    return call


def _one_of(first: Core, node: UOp, chain: Chain | None) -> Core:
    return first._new(node) if chain is None else first._moved(node, chain)


def _repeating(function: Callable[..., Any]) -> Callable[..., Any]:
    slow = _recording(function, at_once=True)
    reason = getattr(function, "frozen", None)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if here_origin() is not None:
            return function(*args, **kwargs)
        found = signature_of(function, args, kwargs)
        first = first_of(args)
        if found is None or first is None:
            return slow(*args, **kwargs)
        signature, nodes = found
        cached = cached_graph(signature, nodes)
        if cached is not None:
            node = instantiate(cached, nodes, capture(2))
            if cached.several is not None:
                several, places = cached.several
                return several([_one_of(first, nodes[n], chain) for n, chain in places])
            if cached.chain is not None:
                return first._moved(node, cached.chain)
            made = first._new(node)
            if reason is not None:
                made._frozen = reason
            return made
        result = slow(*args, **kwargs)
        note_call(signature, nodes, slow, args, kwargs)
        return result

    return call
