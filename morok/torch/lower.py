"""From a graph of torch's to tensors of morok's: every node by its row of the table, at the user's line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import Any

import torch

from morok import dtype as dt
from morok import knobs
from morok.caches import Cache
from morok.errors import MorokError
from morok.ir.infer import shape
from morok.ir.ops import Ops
from morok.tensor.tensor import Tensor
from morok.torch import operators as _operators  # noqa: F401 - enters all rows
from morok.torch.layout import Layout, channels_last, stored_in
from morok.torch.private import OpOverload
from morok.torch.table import Call, Unsupported, lookup
from morok.torch.types import DTYPES, from_torch

Env = dict[Any, Any]

# What says where and how a result lies, and not what it is.
_PLACES = frozenset(("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"))
# Functions of single numbers that torch does not mark as such.
_CONVERSIONS = frozenset(("aten._to_copy.default", "prims.convert_element_type.default"))
_CODE = compile("run(*given)", "model", "eval")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_codes: Cache[tuple[str, int], CodeType] = Cache("torch.lines", 4096)


def user_line(node: Any) -> tuple[str, int] | None:
    """The innermost line of the user's that a node comes from, or else one of those that it starts from."""
    for one in (node, *node.all_input_nodes):
        found = _FRAME.findall(one.meta.get("stack_trace") or "")
        if found:
            file, line = found[-1]
            return file, int(line)
    return None


def show_line(node: Any) -> str:
    """The user's line as people write it; empty if it is not known."""
    found = user_line(node)
    return "" if found is None else f"{found[0]}:{found[1]}"


def is_plumbing(node: Any) -> bool:
    """Whether a node is arithmetic of sizes, or takes one of several results: nothing to compute."""
    target = node.target
    if node.op != "call_function" or isinstance(target, OpOverload):
        return node.op == "call_function" and str(target) in _SIZES
    return getattr(target, "__module__", "") in ("_operator", "operator", "math") or _is_symbolic(target)


def _is_symbolic(target: Any) -> bool:
    return getattr(target, "__name__", "").startswith(("sym_", "_sym_"))


_SIZES: dict[str, Callable[..., Any]] = {
    "aten.sym_size.int": lambda x, dim: x.shape[dim],
    "aten.sym_size.default": lambda x: x.shape,
    "aten.sym_numel.default": lambda x: x.numel(),
    "aten._assert_tensor_metadata.default": lambda *args, **kwargs: None,
    "aten._assert_scalar.default": lambda *args, **kwargs: None,
    "aten._assert_async.msg": lambda *args, **kwargs: None,
    "aten.sym_constrain_range_for_size.default": lambda *args, **kwargs: None,
    "aten.sym_constrain_range.default": lambda *args, **kwargs: None,
}


def values_of(node: Any) -> list[Any]:
    """What torch says about the results of a node, one by one."""
    val = node.meta.get("val")
    return list(val) if isinstance(val, list | tuple) else [val]


def why_not(node: Any, device: Any, anywhere: bool = False) -> str | None:
    """Why morok does not compute a node; None if it does, as far as one sees from outside.

    `anywhere`: nobody asks where its results lie.
    """
    if node.op != "call_function" or is_plumbing(node):
        return None
    given = [v for n in node.all_input_nodes for v in values_of(n)]
    for value in (*values_of(node), *given):
        if not isinstance(value, torch.Tensor):
            continue
        if value.dtype not in DTYPES:
            return f"morok has no type for {value.dtype}"
        if value.layout != torch.strided:
            return f"the layout is {value.layout}"
    if lookup(node.target) is None:
        return "it is not in the table of operators"
    for value in values_of(node):
        if not anywhere and isinstance(value, torch.Tensor) and value.device != device:
            return f"the result lies on {value.device}, the rest on {device}"
    return None


def lower(
    nodes: Iterable[Any], env: Env, known: Callable[[Any], Any], turned: Mapping[Any, Layout] | None = None
) -> None:
    """Compute nodes, as tensors that nothing has run for yet; `env` has what they start from.

    Those that are `turned` are results, and lie in memory as torch says for everybody who reads them.
    """
    for node in nodes:
        if node.op != "call_function":
            continue
        args = torch.fx.node.map_arg(node.args, env.__getitem__)
        kwargs = torch.fx.node.map_arg(
            {k: v for k, v in node.kwargs.items() if k not in _PLACES}, env.__getitem__
        )
        args, kwargs = _plain(args, known), _plain(kwargs, known)
        if is_plumbing(node):
            special = _SIZES.get(str(node.target))
            env[node] = special(*args) if special is not None else node.target(*args, **kwargs)
        else:
            env[node] = at_line(node, _compute, (node, args, kwargs, known))
        if turned and node in turned and isinstance(env[node], Tensor):
            env[node] = at_line(node, stored_in, (env[node], turned[node]))


def at_line(node: Any, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """Call a function so that what it makes comes from the user's line."""
    line = user_line(node)
    if line is None:
        return function(*given)
    code = _codes.get(line)
    if code is None:
        code = _codes[line] = _CODE.replace(co_filename=line[0], co_firstlineno=line[1])
    return eval(code, {"run": function, "given": given})


def _plain(value: Any, known: Callable[[Any], Any]) -> Any:
    """Arguments with torch's symbolic numbers replaced by numbers."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return known(value)
    if isinstance(value, list | tuple):
        return (
            type(value)([_plain(v, known) for v in value])
            if type(value) in (list, tuple)
            else [_plain(v, known) for v in value]
        )
    if isinstance(value, dict):
        return {k: _plain(v, known) for k, v in value.items()}
    return value


def _compute(node: Any, args: Any, kwargs: Any, known: Callable[[Any], Any]) -> Any:
    row = lookup(node.target)
    if row is None:
        raise Unsupported(f"{node.target} is not in the table of operators")
    order = (
        channels_last(node.meta.get("val"), knobs.default_device()) if _is_pointwise(node.target) else None
    )
    if order is not None and not _lie_in(order, (*args, *kwargs.values())):
        order = None
    call = Call(node, known, order)
    if order is not None:
        args = [_turned(value, order) for value in args]
        kwargs = {key: _turned(value, order) for key, value in kwargs.items()}
    try:
        made = row.function(*args, **kwargs, call=call) if row.takes_call else row.function(*args, **kwargs)
        if order is not None and isinstance(made, Tensor) and made.ndim:
            made = _in_type(made, from_torch(call.val.dtype)).permute(
                *sorted(range(len(order)), key=order.__getitem__)
            )
    except MorokError:
        raise
    except (NotImplementedError, TypeError, ValueError, AssertionError, AttributeError, IndexError) as error:
        raise Unsupported(f"{node.target}: {type(error).__name__}: {error}") from error
    return finished(made, node.meta.get("val"), str(node.target), known)


def _is_pointwise(target: Any) -> bool:
    tags = target.tags
    return str(target) in _CONVERSIONS or (
        torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
    )


def _lie_in(order: tuple[int, ...], operands: Iterable[Any]) -> bool:
    """Whether all operands of several axes are made of values whose axes are in an order."""
    images = [t._uop for t in operands if isinstance(t, Tensor) and t.ndim == len(order)]
    images = [t for t in images if sum(n != 1 for n in shape(t) or ()) > 1]
    back = tuple(sorted(range(len(order)), key=order.__getitem__))
    return bool(images) and all(t.op is Ops.PERMUTE and t.arg == back for t in images)


def _turned(value: Any, order: tuple[int, ...]) -> Any:
    """An operand with its axes in an order: what is kept of the result lies in memory like it."""
    if not isinstance(value, Tensor) or not value.ndim:
        return value
    return value.reshape(*(1,) * (len(order) - value.ndim), *value.shape).permute(*order)


def finished(made: Any, val: Any, what: str, known: Callable[[Any], Any]) -> Any:
    """A result in the type that torch expects. Another shape is a mistake of the table's, and refused."""
    if isinstance(val, list | tuple):
        if not isinstance(made, list | tuple) or len(made) < len(val):
            raise Unsupported(f"{what} gives {len(val)} results")
        return [finished(m, v, what, known) for m, v in zip(made, val, strict=False)]
    if not isinstance(val, torch.Tensor) or made is None:
        return made
    if not isinstance(made, Tensor):
        made = Tensor.full((), made, dtype=from_torch(val.dtype))
    expected = tuple([known(n) for n in val.shape])
    if made.shape != expected:
        raise Unsupported(f"{what}: morok's result has shape {made.shape}, torch's {expected}")
    return _in_type(made, from_torch(val.dtype))


def _in_type(made: Tensor, kind: dt.DType) -> Tensor:
    if made.dtype is kind:
        return made
    return made.ne(0) if kind is dt.bool_ else made.cast(kind)
