"""Why a function is traced again: what of a call no trace has, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from morok.ir.infer import show_shape
from morok.tensor.jit.pytree import TENSOR, Value


def difference(new: Any, old: Any) -> str:
    """What the key of a call has that the one of a known trace has not."""
    structure, around, shared, *forms = new
    old_structure, old_around, old_shared, *old_forms = old
    for path, now, was in _differences(structure, old_structure, ""):
        if isinstance(now, Value) and isinstance(was, Value):
            hint = "; bind a Variable to it if it changes often" if type(now.value) is int else ""
            return f"{path} is {now.value!r:.40} and was {was.value!r:.40}{hint}"
        return f"{path} is {_kind(now)} and was {_kind(was)}"
    for n, (form, old_form) in enumerate(zip(forms, old_forms, strict=False)):
        if form[1] != old_form[1]:
            hint = "; a Variable as a size would serve both" if len(form[1]) == len(old_form[1]) else ""
            return f"tensor {n} has shape {show_shape(form[1])} and had {show_shape(old_form[1])}{hint}"
        if form[2] != old_form[2] or form[3] != old_form[3]:
            return f"tensor {n} is {form[2]} on {form[3]} and was {old_form[2]} on {old_form[3]}"
        if form != old_form:
            return f"tensor {n} requires gradients, or has one, and did not before, or the other way round"
    if shared != old_shared:
        return "arguments share memory in another way"
    return (
        "options or the mode of training have changed" if around != old_around else "nothing like it is known"
    )


def _kind(part: Any) -> str:
    if part is TENSOR:
        return "a tensor"
    if isinstance(part, Value):
        return f"{part.value!r:.40}"
    return f"a {part[0].__name__} of {len(part[1])}"


def _differences(new: Any, old: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The parts of two structures that differ, with the way to them."""
    if new == old:
        return
    containers = all(isinstance(part, tuple) and part is not TENSOR for part in (new, old))
    if not containers or new[0] is not old[0] or len(new[1]) != len(old[1]):
        yield path or "the list of arguments", new, old
        return
    for n, (part, was) in enumerate(zip(new[1], old[1], strict=True)):
        if new[0] is dict:
            name, part, was = part[0].value, part[1], was[1]
            yield from _differences(part, was, f"{path}[{name!r}]" if path else f"argument {name}")
        elif not path:  # positional arguments, then keywords
            yield from _differences(part, was, "" if n else "argument")
        elif path == "argument":
            yield from _differences(part, was, f"argument {n}")
        else:
            yield from _differences(part, was, f"{path}[{n}]")
