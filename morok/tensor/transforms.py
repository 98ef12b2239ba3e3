"""Gradients of functions: `grad`, `value_and_grad`, gradients of one's own, and recomputing.

    slope = morok.grad(lambda x: (x * x).sum())
    slope(Tensor([3.0]))                        # 6
    morok.grad(lambda x: slope(x).sum())        # and again

The arguments of a differentiated function stand behind marks while it runs, so two equal arguments are two;
the marks are taken out of the results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from morok.errors import DTypeError, MorokError, ShapeError
from morok.ir.call import CustomRule, call
from morok.ir.infer import shape, show_shape
from morok.ir.node import UOp, const, make, toposort
from morok.ir.ops import Ops
from morok.rewrite.engine import substitute
from morok.tensor.core import expand_to, require_shape
from morok.tensor.gradient.backward import realized_view, seed_gradient
from morok.tensor.gradient.walk import CUSTOM, pull_back
from morok.tensor.gradient_track import enable_grad, is_marked, mark
from morok.tensor.memory.storage import identified
from morok.tensor.tensor import Tensor

_numbers = itertools.count(1)


# --- nested structures of tensors


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors of nested lists, tuples and dictionaries, in order."""
    found: list[Tensor] = []
    stack = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, dict):
            stack += reversed(item.values())
        elif isinstance(item, list | tuple):
            stack += reversed(item)
    return found


def with_tensors(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """The same structure with other tensors in it."""
    rest = iter(tensors)

    def rebuild(item: Any) -> Any:
        if isinstance(item, Tensor):
            return next(rest)
        if isinstance(item, dict):
            return {key: rebuild(value) for key, value in item.items()}
        if isinstance(item, tuple) and hasattr(item, "_fields"):
            return type(item)(*map(rebuild, item))
        return type(item)(map(rebuild, item)) if isinstance(item, list | tuple) else item

    return rebuild(tree)


# --- grad


def grad(function: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The function that computes the gradient of `function` with respect to some of its arguments.

    >>> grad(lambda x: (x * x).sum())(Tensor([3.0])).tolist()
    [6.0]
    """
    both = value_and_grad(function, argnums)

    @wraps(function)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return gradient


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """As `grad`, together with the value; with `has_aux` the function returns (loss, anything else).

    Arguments may be nested lists, tuples and dictionaries of tensors; the gradient has the same structure.

    >>> value, slope = value_and_grad(lambda x: (x * x).sum())(Tensor([3.0]))
    >>> value.item(), slope.tolist()
    (9.0, [6.0])
    """
    chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @wraps(function)
    def both(*args: Any, **kwargs: Any) -> Any:
        given = [args[number] for number in chosen]
        inputs = tensors_in(given)
        for x in inputs:
            if not x.dtype.is_float:
                raise DTypeError(f"a tensor of {x.dtype} has no gradient; only floats do")
        if not inputs:
            raise MorokError("there is no tensor among the arguments to differentiate with respect to")
        marks = [identified(x.uop) for x in inputs]
        with enable_grad():
            for m in marks:
                mark(m, fresh=True)
            marked = with_tensors(given, [Tensor._new(m) for m in marks])
            new = list(args)
            for number, value in zip(chosen, marked, strict=True):
                new[number] = value
            result = function(*new, **kwargs)
            loss, rest = result if has_aux else (result, None)
            if not isinstance(loss, Tensor):
                raise MorokError(f"a function to differentiate returns a tensor, not a {type(loss).__name__}")
            gradients = with_tensors(given, [Tensor._new(g) for g in _gradients(loss, marks)])
        plain = {m: x.uop for m, x in zip(marks, inputs, strict=True)}

        def free(tree: Any) -> Any:
            return with_tensors(tree, [Tensor._new(substitute(t.uop, plain)) for t in tensors_in(tree)])

        slopes = free(gradients)
        value = (free(loss), free(rest)) if has_aux else free(loss)
        return value, slopes[0] if isinstance(argnums, int) else tuple(slopes)

    return both


def _gradients(loss: Tensor, marks: list[UOp]) -> list[UOp]:
    """The gradient for every mark; zeros where the loss does not depend on it."""
    wanted = set(marks)
    found = pull_back(loss.uop, seed_gradient(loss, None), wanted.__contains__, lambda _: False)
    for missing in wanted - found.keys():
        found[missing] = expand_to(const(missing.dtype, 0.0), require_shape(missing))
    return [found[x] for x in marks]


# --- gradients of one's own


def custom_gradient(backward: Callable[..., Any]) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """A decorator for functions of tensors that says what their gradient is.

    `backward(gradient, result, *inputs)` returns the gradients of the inputs: one, or a tuple with None for
    inputs without. Arguments that are no tensors belong in a closure.

    >>> @custom_gradient(lambda gradient, result, x: gradient)
    ... def rounded(x):
    ...     return x.round()
    >>> grad(lambda x: rounded(x).sum())(Tensor([1.4])).tolist()
    [1.0]
    """
    rule = CustomRule(next(_numbers))

    def pull(g: UOp, node: UOp, inputs: tuple[UOp, ...]) -> list[UOp | None]:
        parts = backward(Tensor._new(g), Tensor._new(node), *map(Tensor._new, inputs))
        many = tuple(parts) if isinstance(parts, tuple | list) else (parts,)
        if len(many) != len(inputs):
            raise MorokError(
                f"the gradient of a function of {len(inputs)} tensors needs as many parts, got {len(many)}"
            )
        return [_checked(part, x) for part, x in zip(many, inputs, strict=True)]

    CUSTOM[rule] = pull

    def decorate(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @wraps(function)
        def named(*inputs: Tensor) -> Tensor:
            for x in inputs:
                if not isinstance(x, Tensor):
                    raise DTypeError(
                        f"{function.__name__} has a gradient of its own, so it takes tensors, "
                        f"not a {type(x).__name__}"
                    )
            result = function(*inputs)
            sources = [x.uop for x in inputs]
            return (
                Tensor._new(call(function.__name__, result.uop, *sources, gradient=rule))
                if sources
                else result
            )

        return named

    return decorate


def _checked(part: Any, x: UOp) -> UOp | None:
    if part is None:
        return None
    if not isinstance(part, Tensor) or part.shape != shape(x):
        what = show_shape(part.shape) if isinstance(part, Tensor) else type(part).__name__
        raise ShapeError(f"the gradient of an input of shape {show_shape(shape(x))} is a {what}")
    return part.cast(x.dtype).uop


# --- recomputing

_CHECKPOINT = CustomRule(0)


def checkpoint(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """function(*inputs), computed once more for the gradient instead of being kept until then.

    What the function computes on the way needs no memory between the two passes. Parameters that it takes
    from elsewhere get their gradients as usual.

    >>> x = Tensor([2.0], requires_grad=True)
    >>> checkpoint(lambda t: (t * t).exp(), x).sum().backward()
    >>> round(x.grad.item(), 3)
    218.393
    """
    result = function(*inputs)
    given = [x.uop for x in inputs]
    sources = [*given, *_parameters_of(result.uop, set(given))]
    return Tensor._new(call("checkpoint", result.uop, *sources, gradient=_CHECKPOINT)) if sources else result


def _parameters_of(root: UOp, inputs: set[UOp]) -> list[UOp]:
    """What gradients are wanted for, as far as it is not among the inputs."""
    order = toposort(root, stop=lambda n: n in inputs or _is_leaf(n))
    return [node for node in order if node not in inputs and _is_leaf(node)]


def _is_leaf(node: UOp) -> bool:
    if node.op is Ops.IDENTITY and is_marked(node):
        return True
    view = realized_view(node)
    while view.op is Ops.RESHAPE:
        view = view.src[0]
    memory = view.src[0] if view.op is Ops.AFTER else view
    while memory.op is Ops.RESHAPE:
        memory = memory.src[0]
    return memory.op is Ops.BUFFER and is_marked(memory)


def _recompute(g: UOp, node: UOp, inputs: tuple[UOp, ...]) -> list[UOp | None]:
    """The gradients of a function by way of a second computation, which begins when g is there."""
    again = {x: make(Ops.RECOMPUTE, x.dtype, (x, g)) for x in inputs}
    marks = set(again.values())
    found = pull_back(substitute(node.src[0], again), g, marks.__contains__, marks.__contains__)
    return [found.get(again[x]) for x in inputs]


CUSTOM[_CHECKPOINT] = _recompute
