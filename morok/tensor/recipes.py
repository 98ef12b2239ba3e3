"""Methods that make a graph from their operands and nothing else are worked out once per form.

The form of a call is the method, the types and shapes of its tensors, and its other arguments. A call of a
form that has been seen follows a recipe instead of going through checks, broadcasting and shape inference
again: models repeat their layers, and programs their steps. The recipe is taken by calling the method with
stand-ins, so it cannot depend on what a tensor was computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from morok.caches import Cache
from morok.dtype import DType
from morok.errors import IRError
from morok.ir.infer import shape
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.ir.recipe import Recipe, stand_in, take
from morok.tensor.core import Core

_KEPT = 4096
# What is known of a form: its recipe, or whether one may be taken when it comes again.
_recipes: Cache[Any, Recipe | bool] = Cache("tensor.recipes", _KEPT)
_taking: ContextVar[bool] = ContextVar("morok.taking", default=False)
_PLAIN = frozenset((int, bool, str, type(None), type(...)))
_SCALARS = frozenset((Ops.CONST, Ops.DEFINE_VAR, Ops.BIND))  # these are treated as numbers, not as tensors


def form_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[UOp]] | None:
    """The form of a call and the nodes of its tensors; None if it has something without a form."""
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


def known_recipe(form: Any) -> Recipe | None:
    """The recipe of a form, if it has one already."""
    found = _recipes.recent.get(form)
    if found is None:
        found = _recipes.get(form)
    return found if found.__class__ is Recipe else None


def note(form: Any, nodes: list[UOp], function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """A call of this form has been made the long way; the second one leaves a recipe."""
    before = _recipes.get(form)
    if before is None:
        _recipes[form] = all(s.__class__ is int for node in nodes for s in shape(node) or ())
    elif before:
        _recipes[form] = _taken(nodes, function, args, kwargs) or False


def _taken(nodes: list[UOp], function: Callable[..., Any], args: Any, kwargs: Any) -> Recipe | None:
    places = {node: stand_in(n, node.dtype, shape(node) or ()) for n, node in enumerate(dict.fromkeys(nodes))}
    inputs = [places[node] for node in nodes]
    rest = iter(inputs)  # by order and not by node: the call may have computed its tensors
    token = _taking.set(True)
    try:
        own = _on(rest, args)
        result = function(*own, **dict(zip(kwargs, _on(rest, kwargs.values()), strict=True)))
    except Exception:
        return None  # the call itself went well, so it looked for more than types and shapes
    finally:
        _taking.reset(token)
    if not isinstance(result, Core):
        return None
    recipe = take(result._uop, inputs)
    if recipe is not None:
        if isinstance(own[0], Core) and result._storage is own[0]._storage:
            recipe.chain = result._chain
    return recipe


def _on(rest: Iterator[UOp], values: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments with stand-ins for their tensors, in the order in which a form lists them."""
    return tuple([_stand(rest, x) for x in values])


def _stand(rest: Iterator[UOp], x: Any) -> Any:
    if isinstance(x, Core):
        return x._new(next(rest))
    if x.__class__ is slice:
        return slice(*_on(rest, (x.start, x.stop, x.step)))
    return _on(rest, x) if x.__class__ is tuple else x


def refuse_recipe(what: str) -> None:
    """Called by whatever gives something else each time, so that no recipe is made of it."""
    if _taking.get():
        raise IRError(f"{what} cannot be part of a recipe")


def clear_recipes() -> None:
    """Forgets all recipes."""
    _recipes.clear()
