"""Gradients: `loss.backward()`, `loss.gradient(x)`, and tensors that require them.

A tensor that requires gradients has memory of its own, even if its value is not computed yet: two weights
that both start as zeros are two weights. Gradients are lazy like everything else.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from morok.device.registry import default_device
from morok.errors import DTypeError, MorokError, ShapeError
from morok.ir.build import cast
from morok.ir.infer import show_shape
from morok.ir.memory import base_of
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from morok.rewrite.gc_pause import gc_paused
from morok.tensor.assign import own_state, write_to_new_memory
from morok.tensor.core import Core, expand_to, require_shape
from morok.tensor.creation.constructors import as_operand
from morok.tensor.creation.sources import on_device
from morok.tensor.elementwise.operators import T
from morok.tensor.export import is_realized
from morok.tensor.gradient.walk import pull_back
from morok.tensor.gradient_track import is_tracked, mark, unmark
from morok.tensor.memory.states import later_name
from morok.tensor.memory.storage import Storage, has_device, place_of


def requires_grad(x: Core) -> bool:
    """Whether gradients are wanted for this tensor, or for something that it is computed from."""
    return x._leaf or is_tracked(x._uop)


def requires_grad_(x: T, wanted: bool = True) -> T:
    """Ask for gradients of this tensor, or stop asking; returns the tensor.

    >>> x = Tensor([1.0, 2.0]).requires_grad_()
    >>> (x * x).sum().backward()
    >>> x.grad.tolist()
    [2.0, 4.0]
    """
    if not wanted:
        if not x._leaf and requires_grad(x):
            raise MorokError(
                "this tensor is computed from tensors that require gradients; detach() it instead"
            )
        if x._leaf:
            unmark(base_of(x.uop))
            x._storage.leaf = x._leaf = False
            _leaves.pop(id(x), None)
        return x
    if not x.dtype.is_float:
        raise DTypeError(f"only floats have gradients, not {x.dtype}; cast the tensor first")
    if x._leaf or is_tracked(x._uop):
        return x
    if x._chain:  # parameters are storages of their own, not parts of others
        x._storage, x._chain = Storage(x.uop), ()
    storage = x._storage
    node = own_state(storage)
    storage.become(write_to_new_memory(storage) if node is None else node)
    mark(base_of(storage.node))
    become_leaf(x)
    return x


def become_leaf(x: T) -> None:
    x._storage.leaf = x._leaf = True
    _leaves[id(x)] = x


def zero_grad(x: T) -> None:
    """Forget the gradient.

    >>> w = Tensor([3.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> w.zero_grad()
    >>> w.grad is None
    True
    """
    x._grad = None


# --- reverse mode


def backward(x: T, gradient: Any = None, *, create_graph: bool = False) -> None:
    """Add the gradient of this tensor to `grad` of every tensor it depends on that requires one.

    `gradient` is the gradient of the tensor itself, 1 for a scalar. With `create_graph` the results can
    be differentiated again.

    >>> w = Tensor([3.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> w.grad.tolist()
    [6.0]
    """
    leaves = {leaf._uop: leaf for leaf in _living_leaves()}
    found = _pulled(x, seed_gradient(x, gradient), set(leaves))
    if not found:
        raise MorokError(
            "no tensor that requires gradients leads to this one; "
            "call requires_grad_() on the parameters before they are used"
        )
    for node, g in found.items():
        leaf = leaves[node]
        g = _at_home(g, leaf)
        new = x._new(g if create_graph else make(Ops.DETACH, g.dtype, (g,)))
        leaf._grad = new if leaf._grad is None else leaf._grad + new


def gradient(x: T, *targets: Any, gradient: Any = None, allow_unused: bool = False) -> tuple[T, ...]:
    """The gradients of this tensor with respect to others, which need not require them.

    A target that the tensor does not depend on is an error, or, with `allow_unused`, gets zeros. What
    was realised on the way has forgotten how it was computed, unless a tensor that requires gradients
    leads to it; `morok.grad` of a function knows all of its way.

    >>> x = Tensor([1.0, 2.0])
    >>> (g,) = (x * x).sum().gradient(x)
    >>> g.tolist()
    [2.0, 4.0]
    """
    for target in targets:
        if not isinstance(target, Core):
            raise DTypeError(f"gradients are with respect to tensors, not to a {type(target).__name__}")
        if not target.dtype.is_float:
            raise DTypeError(f"a tensor of {target.dtype} has no gradient; only floats do")
    nodes = [realized_view(target.uop) for target in targets]
    _refuse_equal(targets, nodes)
    found = _pulled(x, seed_gradient(x, gradient), set(nodes))
    for number, node in enumerate(nodes):
        if node in found:
            continue
        if not allow_unused:
            raise MorokError(_unused(x, number, node))
        found[node] = expand_to(const(node.dtype, 0.0), require_shape(node))
    return tuple([x._new(_at_home(found[node], target)) for node, target in zip(nodes, targets, strict=True)])


def _at_home(g: UOp, target: Core) -> UOp:
    """A gradient where its target is; one that is a constant would be wherever tensors are by default."""
    home = target.device
    return g if home == default_device() or has_device(g) else on_device(g, home)


def seed_gradient(x: T, gradient: Any) -> UOp:
    """The gradient that everything starts from."""
    if not x.dtype.is_float:
        raise DTypeError(f"only floats have gradients, and this is a tensor of {x.dtype}")
    if gradient is None:
        if x.numel() != 1:
            raise ShapeError(
                f"the gradient of a tensor of shape {show_shape(x.shape)} is not one number's; "
                "reduce it with sum() or mean(), or give backward its gradient"
            )
        return expand_to(const(x.dtype, 1.0), x.shape)
    value = as_operand(x, gradient)
    if value.shape != x.shape:
        raise ShapeError(
            f"a tensor of shape {show_shape(x.shape)} needs a gradient of that shape, "
            f"not {show_shape(value.shape)}"
        )
    return cast(value.uop, x.dtype)


def _refuse_equal(targets: tuple[Any, ...], nodes: list[UOp]) -> None:
    """Values have no identity: two tensors that were computed in the same way are one value."""
    first: dict[UOp, int] = {}
    for number, (target, node) in enumerate(zip(targets, nodes, strict=True)):
        other = first.setdefault(node, number)
        if other == number or target._storage is targets[other]._storage:
            continue
        raise MorokError(
            f"targets {other} and {number} are computed in the same way, so they are one value and their "
            "gradients cannot be told apart; give them memory of their own with requires_grad_()"
        )


def _unused(result: Core, number: int, target: UOp) -> str:
    shape = show_shape(require_shape(target))
    if is_realized(result) and not requires_grad(result):
        return (
            f"the result was computed before its gradient with respect to target {number} of shape {shape} "
            "was asked for, and has let go of its past; ask first, or call requires_grad_() on the target"
        )
    return (
        f"the result does not depend on target {number} of shape {shape}, so there is no gradient; "
        "allow_unused=True gives zeros"
    )


def realized_view(node: UOp) -> UOp:
    """What became of a node: the memory that holds it, by its current name, under the same view."""
    chain: list[UOp] = []
    while True:
        view = place_of(node)
        view = later_name(node) if view is None else view
        if view is not None and view is not node:
            node = view
        elif node.op.is_movement:
            chain.append(node)
            node = node.src[0]
        else:
            break
    for step in reversed(chain):
        node = step.replace((node, *step.src[1:]))
    return node


_leaves: weakref.WeakValueDictionary[int, Core] = weakref.WeakValueDictionary()


def _living_leaves() -> Iterator[Core]:
    for leaf in list(_leaves.values()):
        leaf.uop  # noqa: B018 - bring it up to date
        yield leaf


def _pulled(result: Core, seed: UOp, targets: set[UOp]) -> dict[UOp, UOp]:
    """Gradients by what the targets' nodes are now; a leaf may be in the graph under an older name too."""
    current = {leaf._uop for leaf in _living_leaves()}
    known: dict[UOp, UOp] = {}

    def now(node: UOp) -> UOp:
        found = known.get(node)
        if found is None:
            found = known[node] = realized_view(node)
        return found

    with gc_paused:
        parts = pull_back(result._uop, seed, lambda n: now(n) in targets, lambda n: now(n) in current)
        found: dict[UOp, UOp] = {}
        for node, g in parts.items():
            key = now(node)
            found[key] = g if key not in found else alu(Ops.ADD, found[key], g)
    return found
