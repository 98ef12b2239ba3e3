"""The node: an op, a type, sources and an argument. Equal constructions give the same object.

Nodes are immutable and hash-consed through weak references, so equality is identity, common subexpressions
are shared as soon as they are written down, and a graph that nobody holds is freed. Everything here is
iterative: a chain of 100,000 nodes is an ordinary graph.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from sys import _getframe
from typing import Any, final

from morok import knobs
from morok.caches import watch
from morok.dtype import DType, as_value, bool_
from morok.errors import DTypeError, IRError, VariableError
from morok.forks import at_fork
from morok.ir.args import LOOSE, arg_key
from morok.ir.arithmetic.alu import defined
from morok.ir.operators import Operators
from morok.ir.ops import Op, Ops
from morok.ir.provenance import RECENT, Origin, find, here_origin, place, recent, settle


class _Fields(Operators["UOp"]):
    """The slots of a node, still writable.

    `make` fills them in and then turns the object into an immutable UOp.
    """

    __slots__ = (
        "__weakref__",
        "arg",
        "bounds_",
        "digest_",
        "dtype",
        "memo_",
        "op",
        "origin",
        "ranges_",
        "shape_",
        "src",
    )

    op: Op
    dtype: DType
    src: tuple[UOp, ...]
    arg: Any
    origin: Origin | None
    # derived facts, filled in by the functions that infer them; a node never changes, so neither do they
    bounds_: tuple[Any, Any] | None
    shape_: Any
    ranges_: Any
    digest_: bytes | None
    memo_: tuple[Any, Any] | None  # (rule set, result): what the engine remembers


_show_size: Callable[[UOp], str | None] | None = None


def sizes_shown_by(show: Callable[[UOp], str | None]) -> None:
    """Says how sizes are printed: users meet them in shapes, where they are arithmetic (k, k+2)."""
    global _show_size
    _show_size = show


def _shown(truth: UOp) -> str:
    """A comparison of sizes that somebody asks for the truth of."""
    signs = {Ops.CMPLT: "<", Ops.CMPNE: "!=", Ops.CMPEQ: "=="}
    parts = [str(part.arg) if part.op is Ops.CONST else repr(part) for part in truth.src]
    return f" {signs[truth.op]} ".join(parts) if truth.op in signs else repr(truth)


@final
class UOp(_Fields):
    """One node of the graph.

    Build it with `make`, `const`, `alu` or a constructor of `build.py`, never by calling the class.
    """

    __slots__ = ()

    def __new__(cls, op: Op, dtype: DType, src: tuple[UOp, ...] = (), arg: Any = None) -> UOp:
        return make(op, dtype, src, arg)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a node is immutable; make a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a node is immutable; {name!r} cannot be deleted")

    def __bool__(self) -> bool:
        if self.dtype is bool_ and self.src and self.src[0].dtype.is_index:
            raise VariableError(f"whether {_shown(self)} is known when it runs, and not here")
        return True

    def __repr__(self) -> str:
        if _show_size is not None and self.dtype.is_index and self.op is not Ops.CONST:
            size = _show_size(self)
            if size is not None:
                return size
        sources = ", ".join(f"{s.op.name}:{s.dtype}" for s in self.src)
        arg = "" if self.arg is None else f" {self.arg!r}"
        return f"<{self.op.name}:{self.dtype}{arg}({sources})>"

    def __reduce__(self) -> Any:
        raise TypeError("nodes are not pickled; use morok.ir.text to write a graph and read it back")

    def __copy__(self) -> UOp:
        return self

    def __deepcopy__(self, memo: Any) -> UOp:
        return self

    def _combine(self, op: Op, *operands: Any) -> UOp:
        for x in operands:
            if x.__class__ is not UOp:
                return _arithmetic(op, _with_literals(self, op, operands), 4)
        return _arithmetic(op, operands, 4)

    def replace(self, src: tuple[UOp, ...]) -> UOp:
        """The same operation on other sources; keeps the origin."""
        if src == self.src:
            return self
        return make(self.op, self.dtype, src, self.arg, self.origin)


def _with_literals(self: UOp, op: Op, operands: tuple[Any, ...]) -> tuple[UOp, ...]:
    """Operands with numbers turned into constants; a number takes the type of its neighbour."""
    if op is not Ops.WHERE:
        return tuple([x if x.__class__ is UOp else _literal(self, x) for x in operands])
    like = next((x for x in operands[1:] if x.__class__ is UOp), self)
    return self, *(x if x.__class__ is UOp else _literal(like, x) for x in operands[1:])


_NUMBERS = frozenset((bool, int, float))


def _literal(like: UOp, value: Any) -> UOp:
    if not isinstance(value, (bool, int, float)):
        raise IRError(f"{value!r} is neither a node nor a number", place=place(like))
    if like.dtype.is_int and isinstance(value, float) and value != int(value):
        raise IRError(f"{value} is no {like.dtype}; cast the other operand", place=place(like))
    return const(like.dtype, value)


# The slots' own setters go around UOp.__setattr__. They are for derived facts only.
set_bounds: Callable[[UOp, tuple[Any, Any]], None] = _Fields.__dict__["bounds_"].__set__
set_shape: Callable[[UOp, Any], None] = _Fields.__dict__["shape_"].__set__
set_ranges: Callable[[UOp, Any], None] = _Fields.__dict__["ranges_"].__set__
set_digest: Callable[[UOp, bytes], None] = _Fields.__dict__["digest_"].__set__
set_memo: Callable[[UOp, tuple[Any, Any] | None], None] = _Fields.__dict__["memo_"].__set__
_set_origin: Callable[[UOp, Origin | None], None] = _Fields.__dict__["origin"].__set__


class _Ref(weakref.ref[Any]):
    """A weak reference that knows its key in the table."""

    __slots__ = ("key",)
    key: Any


@final
class Dormant(_Ref):
    """Of a node that does not answer until somebody makes it anew, who then is its origin (`renew.py`)."""

    __slots__ = ()

    def __call__(self) -> None:
        return None


_table: dict[Any, _Ref] = {}
_lock = threading.RLock()
_provenance = knobs.PROVENANCE


_process = os.getpid()


def _renew_lock() -> None:
    global _lock, _process
    _lock, _process = threading.RLock(), os.getpid()


at_fork(child=_renew_lock)


def _waited_for() -> Any:
    """The lock, as soon as it is free.

    A child that begins drops what the threads held that have not come along, nodes among it, before anything
    is renewed in it: if one of them held the lock, nobody will give it back.
    """
    if _process != os.getpid():
        _renew_lock()
    _lock.acquire()
    return _lock


def _forget(ref: _Ref) -> None:
    # Runs when a node dies, possibly in the middle of another node's construction in the same thread: the
    # lock is re-entrant, and the entry goes only if it is still ours. A `with` takes twice as long.
    lock = _lock
    if not lock.acquire(False):
        lock = _waited_for()
    try:
        if _table.get(ref.key) is ref:
            del _table[ref.key]
    finally:
        lock.release()


def make(
    op: Op,
    dtype: DType,
    src: tuple[UOp, ...] = (),
    arg: Any = None,
    origin: Origin | None = None,
    depth: int = 1,
) -> UOp:
    """The node with these fields: the one that exists already, or a new one.

    `depth` is a hint for provenance: so many frames, this one included, are surely not the user's.
    """
    kind = arg.__class__
    key = (op, dtype, src, arg_key(arg) if kind in LOOSE else arg, kind)
    try:
        ref = _table.get(key)
    except TypeError:  # something in it has no hash
        _complain(op, dtype, src, arg)
        raise
    if ref is not None:
        found = ref()
        if found is not None:
            return found  # type: ignore[no-any-return]
    field: Any = op  # the annotations promise what is checked here, but callers may be wrong
    right = field.__class__ is Op and (len(src) == op.arity or op.arity < 0)
    field = dtype
    if not right or not isinstance(field, DType):
        _complain(op, dtype, src, arg)
    for field in src:
        if field.__class__ is not UOp:
            _complain(op, dtype, src, arg)
    if origin is None and _provenance.value:
        made_by: Any = here_origin()
        origin = settle(made_by) if made_by.__class__ is tuple else made_by
        if origin is None:
            frame = _getframe(depth)
            at = frame.f_lasti
            origin = recent[at & RECENT]  # `find` for an instruction that made nodes before, written out
            if origin.lasti != at or origin.code is not frame.f_code:
                origin = find(frame)
    node = _Fields()
    node.op = op
    node.dtype = dtype
    node.src = src
    node.arg = arg
    node.origin = origin
    node.bounds_ = node.shape_ = node.ranges_ = node.digest_ = node.memo_ = None
    node.__class__ = UOp
    new = _Ref(node, _forget)
    new.key = key
    if _table.setdefault(key, new) is new:
        if _kept is not None:
            _kept.append(node)  # type: ignore[arg-type]
        return node  # type: ignore[return-value]
    return intern(new, node)  # type: ignore[arg-type]


_kept: deque[UOp] | None = None  # see `rewrite/keep.py`


def refer(node: UOp, key: Any, kind: type[_Ref] = _Ref) -> _Ref:
    """A reference for the table."""
    new = kind(node, _forget)
    new.key = key
    return new


def intern(new: _Ref, node: UOp) -> UOp:
    """A node that was just made, or the one that exists already under its key."""
    while True:
        ref = _table.setdefault(new.key, new)
        if ref is new:
            return node
        found = ref()
        if found is not None:  # another thread was faster
            return found  # type: ignore[no-any-return]
        with _lock:
            if _table.get(new.key) is not ref:
                continue
            found = _Ref.__call__(ref)
            if found is None:  # the old node is dead but its entry not yet gone
                del _table[new.key]
            else:  # it was there before anybody looked; what is asked for now says where it comes from
                if node.origin is not None:
                    _set_origin(found, node.origin)
                _table[new.key] = refer(found, new.key)
                return found  # type: ignore[no-any-return]


def _complain(op: Any, dtype: Any, src: Any, arg: Any) -> None:
    """One sentence about what is wrong with the fields of a node."""
    if op.__class__ is not Op:
        raise IRError(f"unknown op {op!r}; the table of ops is in morok/ir/ops.py")
    if not isinstance(dtype, DType):
        raise IRError(f"{op.name} needs a dtype, got {dtype!r}")
    if src.__class__ is not tuple:
        raise IRError(f"{op.name} needs its sources as a tuple, got {type(src).__name__}")
    if op.arity >= 0 and len(src) != op.arity:
        raise IRError(f"{op.name} takes {op.arity} source{'s' if op.arity != 1 else ''}, got {len(src)}")
    for s in src:
        if s.__class__ is not UOp:
            raise IRError(f"a source of {op.name} is {s!r}, which is not a node")
    raise IRError(f"the argument of {op.name} must not change, so {arg!r} cannot be one")


def live_nodes() -> int:
    """How many nodes exist now."""
    return len(_table)


watch("ir.nodes", live_nodes)


def const(dtype: DType, value: Any) -> UOp:
    """A constant of `dtype`; the value is brought to the type's own precision, integers wrap."""
    if value.__class__ is int and dtype.is_int:
        ref = _table.get(
            (Ops.CONST, dtype, (), value, int)
        )  # if it exists, it is a value of its type already
        found = ref() if ref is not None else None
        if found is not None:
            return found  # type: ignore[no-any-return]
    return make(Ops.CONST, dtype, (), as_value(value, dtype.scalar), None, 2)


def alu(op: Op, *src: UOp) -> UOp:
    """An arithmetic node; the dtype follows from the sources, which must agree.

    Casts have their own constructor.
    """
    return _arithmetic(op, src, 3)


_meaningful: set[tuple[Op, DType]] = set()  # pairs that have been looked up in the table of meanings


def _arithmetic(op: Op, src: tuple[UOp, ...], depth: int) -> UOp:
    if not getattr(op, "is_alu", False):
        raise IRError(f"{getattr(op, 'name', op)!s} is not an arithmetic op")
    if len(src) != op.arity:
        raise IRError(f"{op.name} takes {op.arity} source{'s' if op.arity != 1 else ''}, got {len(src)}")
    for s in src:
        if s.__class__ is not UOp:
            raise IRError(f"a source of {op.name} is {s!r}, which is not a node")
    dtype = src[-1].dtype
    if (op, dtype) not in _meaningful:
        if not defined(op, dtype.scalar):
            raise DTypeError(f"{op.name} is not defined on {dtype}", place=place(src[0]))
        _meaningful.add((op, dtype))
    if len(src) > 1:
        for s in src[1:] if op is Ops.WHERE else src:
            if s.dtype is not dtype:
                raise IRError(_mismatch(op, src), place=place(src[0]))
        if op is Ops.WHERE and src[0].dtype is not bool_.vec(dtype.lanes):
            raise IRError(f"WHERE needs a condition of type {bool_.vec(dtype.lanes)}, got {src[0].dtype}")
    if op.is_compare:
        dtype = bool_.vec(dtype.lanes)
    return make(op, dtype, src, None, None, depth)


def _mismatch(op: Op, src: tuple[UOp, ...]) -> str:
    types = " and ".join(str(s.dtype) for s in src)
    return f"{op.name} needs operands of one type, got {types}; cast one of them"


def toposort(*roots: UOp, stop: Callable[[UOp], bool] | None = None) -> list[UOp]:
    """All nodes that the roots reach, sources before users.

    Nodes for which `stop` holds are listed but not entered.
    """
    if _large.kept and stop is None and len(roots) == 1:
        return _large.order_of(roots[0])
    order: dict[UOp, None] = {}
    extend_order(order, roots, stop)
    return list(order)


@final
class LargeGraph(threading.local):
    """A `with` block in which the orders of a large graph and of a smaller one are kept, for whoever is next.

    Stages that find nothing to do leave the graph as it is, and each has walked through it.
    """

    kept = 0  # blocks that this thread is in
    # sources of the root, and what they reach: a root with another argument has the same
    large: tuple[tuple[UOp, ...], tuple[UOp, ...]] = ((), ())
    small: tuple[tuple[UOp, ...], tuple[UOp, ...]] = ((), ())

    def order_of(self, root: UOp) -> list[UOp]:
        src = root.src
        found = self.small
        if src != found[0]:
            found = self.large
        if src != found[0]:
            order: dict[UOp, None] = {}
            _extend_order(order, src)
            found = (src, tuple(order))
            if len(order) < _LARGE:
                self.small = found
            else:
                self.large = found
        return [*found[1], root]

    def __enter__(self) -> None:
        self.kept += 1

    def __exit__(self, *_: object) -> None:
        self.kept -= 1
        if not self.kept:
            self.large = self.small = ((), ())


_LARGE = 500  # nodes; while kernels are scheduled, their graphs come and go in between, and have fewer
large_graph = _large = LargeGraph()


def extend_order(
    order: dict[UOp, None], roots: Iterable[UOp], stop: Callable[[UOp], bool] | None = None
) -> None:
    """Goes on with a `toposort`: nodes that more roots reach come after those that are there."""
    if stop is None:
        _extend_order(order, roots)
        return
    for root in roots:
        if root in order:
            continue
        # A node, what is left of its sources, and those that wait for it. Every edge is looked at once.
        node, rest = root, iter(() if stop(root) else root.src)
        waiting: list[tuple[UOp, Iterator[UOp]]] = []
        while True:
            for s in rest:
                if s not in order:
                    if not s.src or stop(s):
                        order[s] = None
                        continue
                    waiting.append((node, rest))
                    node, rest = s, iter(s.src)
                    break
            else:
                order[node] = None
                if not waiting:
                    break
                node, rest = waiting.pop()


def _extend_order(order: dict[UOp, None], roots: Iterable[UOp]) -> None:
    """`extend_order` that enters every node; whole graphs are walked so, many times."""
    for root in roots:
        if root in order:
            continue
        node, rest = root, iter(root.src)
        waiting: list[tuple[UOp, Iterator[UOp]]] = []
        push, pop = waiting.append, waiting.pop
        while True:
            for s in rest:
                if s not in order:
                    src = s.src
                    if src:
                        push((node, rest))
                        node, rest = s, iter(src)
                        break
                    order[s] = None
            else:
                order[node] = None
                if not waiting:
                    break
                node, rest = pop()


def users(nodes: Iterable[UOp]) -> dict[UOp, list[UOp]]:
    """For each node, the nodes of the collection that have it as a source, each once."""
    result: dict[UOp, list[UOp]] = {}
    for node in nodes:
        result.setdefault(node, [])
        for s in dict.fromkeys(node.src):
            result.setdefault(s, []).append(node)
    return result
