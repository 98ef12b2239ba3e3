"""Which memory gradients are wanted for, and what depends on it.

A tensor with `requires_grad` is a leaf: memory of its own, whose BUFFER is marked here. Of the arguments of a
function that is differentiated it is the IDENTITY that each has meanwhile. Everything computed from marked
nodes is tracked. When a tracked tensor is realised it keeps its node instead of becoming plain memory: the
node is the history that a later `backward` walks, and the scheduler takes the stored value of it all the
same. What is not tracked lets go of its past at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from morok.ir.node import UOp, make
from morok.ir.ops import Ops

_marked: weakref.WeakSet[UOp] = weakref.WeakSet()
_known: weakref.WeakKeyDictionary[UOp, bool] = weakref.WeakKeyDictionary()
_changes = 0
_paused: ContextVar[bool] = ContextVar("morok.no_grad", default=False)
is_paused = _paused.get  # whether what is computed now has no gradient


def mark(memory: UOp, fresh: bool = False) -> None:
    """Gradients are wanted for a BUFFER or an IDENTITY.

    A fresh one is in no graph yet, so nothing that is known changes.
    """
    _marked.add(memory)
    if not fresh:
        _forget()


def unmark(memory: UOp) -> None:
    """Gradients are not wanted for a BUFFER any more."""
    _marked.discard(memory)
    _forget()


def _forget() -> None:
    global _changes
    _known.clear()
    _changes += 1


def changes() -> int:
    """Counts marks on memory that graphs may hold: who has looked may wait until it moves on."""
    return _changes


def is_marked(memory: UOp) -> bool:
    """Whether gradients are wanted for a BUFFER."""
    return memory in _marked


def carries_gradient(node: UOp) -> bool:
    """Whether a gradient can flow through a node at all: floats, and not detached."""
    return node.dtype.is_float and node.op is not Ops.DETACH


def is_tracked(root: UOp) -> bool:
    """Whether a node is computed from memory that gradients are wanted for."""
    if not _marked:
        return False
    if root.op is Ops.RESHAPE and root.src[0].op is Ops.BUFFER:  # most tensors: not worth remembering
        return root.dtype.is_float and root.src[0] in _marked
    known = _known
    found = known.get(root)
    if found is not None:
        return found
    stack = [root]
    while stack:
        node = stack[-1]
        if node in known:
            stack.pop()
            continue
        if node.op is Ops.BUFFER:
            known[node] = node in _marked
        elif not carries_gradient(node):
            known[node] = False
        elif node.op is Ops.IDENTITY and node in _marked:
            known[node] = True
        else:
            pending = [s for s in node.src if s not in known]
            if pending:
                stack += pending
                continue
            known[node] = any(known[s] for s in node.src)
        stack.pop()
    return known[root]


@contextmanager
def no_grad() -> Iterator[None]:
    """What is computed inside has no gradient; as a decorator, what the function computes.

    >>> w = Tensor([1.0], requires_grad=True)
    >>> with no_grad():
    ...     y = w * 2
    >>> y.requires_grad
    False
    """
    token = _paused.set(True)
    try:
        yield
    finally:
        _paused.reset(token)


@contextmanager
def enable_grad() -> Iterator[None]:
    """Inside, `no_grad` around it does not count: who differentiates a function there wants its gradient."""
    token = _paused.set(False)
    try:
        yield
    finally:
        _paused.reset(token)


def cut(node: UOp) -> UOp:
    """The node as a new tensor holds it: inside `no_grad` gradients end here."""
    if not _paused.get() or not is_tracked(node):
        return node
    return make(Ops.DETACH, node.dtype, (node,))
