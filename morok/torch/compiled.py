"""A compiled graph: plans of morok's, and between them what torch has to do itself.

Where all nodes are known there is one plan. Else the graph is cut into levels: what morok computes from the
inputs, what torch computes from that, and so on. Everything that torch does is said once, with its line.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from morok.caches import Cache
from morok.errors import MorokError
from morok.tensor.calls.tracing import tracing
from morok.tensor.random import drawing_from, new_cell
from morok.tensor.realize import new_buffer
from morok.torch.lower import is_plumbing, lower, show_line, why_not
from morok.torch.options import Options
from morok.torch.program import Layout, Program, input_tensor, row_major
from morok.torch.table import Unsupported
from morok.torch.types import device_of, from_torch
from morok.torch.watch import tell

# Whatever goes wrong while a node is tried: torch does it then, and says so.
_REFUSALS = (
    MorokError,
    NotImplementedError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    AssertionError,
)
_MOST_PROGRAMS = 256  # sets of sizes that a step remembers
_RANDOM = ("rand", "bernoulli", "dropout", "normal", "uniform")


@dataclass
class Step:
    """Nodes of one level, what they start from and what others want of them."""

    nodes: list[Any]
    by_torch: bool
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    programs: dict[Any, Program] = field(default_factory=dict)


@final
class Compiled:
    """What a graph has become. Calling it with the list of arguments runs it."""

    def __init__(self, gm: Any, example: Sequence[Any], options: Options) -> None:
        self.gm = gm
        self.options = options
        nodes = list(gm.graph.nodes)
        self.placeholders = [n for n in nodes if n.op == "placeholder"]
        self.constants = {n: _attribute(gm, n.target) for n in nodes if n.op == "get_attr"}
        (output,) = [n for n in nodes if n.op == "output"]
        self.outputs: list[Any] = (
            list(output.args[0]) if isinstance(output.args[0], list | tuple) else [output.args[0]]
        )
        self.torch_device = _device(nodes)
        self.device = device_of(torch.empty(0, device=self.torch_device))
        self.fallbacks = self._fallbacks(nodes)
        self.steps = self._cut([n for n in nodes if n.op == "call_function"])
        self.dynamic = [n for n in self.placeholders if isinstance(n.meta.get("val"), torch.SymInt)]
        for node, why in self.fallbacks.items():
            if is_plumbing(node) or (options.fallback_random and _is_random(node)):
                continue
            if not options.fallback:
                raise Unsupported(f"{node.target}: {why}", place=show_line(node) or None)
            said(node, why)
        tell(self)

    @property
    def plans(self) -> list[Any]:
        """The plans so far: one for each set of sizes, of each step."""
        programs = [p for step in self.steps for p in step.programs.values()]
        return [p.plan for p in programs if p.plan is not None]

    # --- what torch does itself

    def _fallbacks(self, nodes: list[Any]) -> dict[Any, str]:
        found: dict[Any, str] = {}
        env: dict[Any, Any] = {}
        values = _Sizes(nodes)
        with tracing(), drawing_from(new_cell(0, self.device)):
            for node in nodes:
                if node.op in ("placeholder", "get_attr"):
                    env[node] = self._stand_in(node.meta.get("val", self.constants.get(node)), values)
                if node.op != "call_function":
                    continue
                why = why_not(node, self.torch_device)
                if why is None and self.options.fallback_random and _is_random(node):
                    why = "torch's own random numbers are asked for"
                if why is None:
                    try:
                        lower([node], env, values)
                        continue
                    except _REFUSALS as error:
                        why = str(error)
                found[node] = why
                env[node] = self._stand_in(node.meta.get("val"), values)
        return found

    def _stand_in(self, val: Any, values: Callable[[Any], Any]) -> Any:
        """A tensor that stands for one of torch's while the graph is tried."""
        if isinstance(val, list | tuple):
            return [self._stand_in(v, values) for v in val]
        try:
            return self._standing(val, values)
        except Unsupported:
            return None  # a size that is known only when it runs: whoever needs it is torch's

    def _standing(self, val: Any, values: Callable[[Any], Any]) -> Any:
        if not isinstance(val, torch.Tensor):
            return values(val)
        if val.dtype not in _known_dtypes():
            return None
        sizes = tuple([values(n) for n in val.shape])
        count = 1
        for n in sizes:
            count *= n
        if not count:
            from morok.tensor.tensor import Tensor

            return Tensor.zeros(*sizes, dtype=from_torch(val.dtype))
        node = new_buffer(from_torch(val.dtype), count, self.device)
        return input_tensor(node, Layout(sizes, row_major(sizes)))

    def _cut(self, nodes: list[Any]) -> list[Step]:
        """Levels: even ones are morok's, odd ones torch's."""
        level: dict[Any, int] = {}
        steps: dict[int, Step] = {}
        for node in nodes:
            by_torch = node in self.fallbacks
            # plumbing goes with what it belongs to: sizes and parts of results
            if is_plumbing(node) and str(node.target).endswith("getitem>") and node.args[0] in level:
                at = level[node.args[0]]
            else:
                at = int(by_torch)
                for below in node.all_input_nodes:
                    if below in level:
                        at = max(at, level[below] + int((level[below] % 2 == 1) != by_torch))
            level[node] = at
            steps.setdefault(at, Step([], at % 2 == 1)).nodes.append(node)
        wanted = {n for n in self.outputs if isinstance(n, torch.fx.Node)}
        ordered = [steps[at] for at in sorted(steps)]
        for step in ordered:
            own = set(step.nodes)
            step.inputs = list(
                dict.fromkeys(i for n in step.nodes for i in n.all_input_nodes if i not in own)
            )
            step.outputs = [
                n
                for n in step.nodes
                if n in wanted or any(u not in own and u.op != "output" for u in n.users)
            ]
        if len(ordered) <= 1 and not self.fallbacks:  # all of it is one plan
            step = ordered[0] if ordered else Step([], False)
            step.inputs = [*self.placeholders, *self.constants]
            step.outputs = list(self.outputs)
            return [step]
        return ordered

    # --- running

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        if len(self.steps) == 1 and not self.fallbacks:
            given = [*args, *self.constants.values()]
            step = self.steps[0]
            return self.program(step, given)(given)
        env: dict[Any, Any] = dict(zip(self.placeholders, args, strict=True))
        env.update(self.constants)
        around = list(zip(self.placeholders, args, strict=True)) if self.dynamic else []
        for step in self.steps:
            if step.by_torch:
                for node in step.nodes:
                    env[node] = _by_torch(node, env)
                continue
            given = [env[n] for n in step.inputs]
            made = self.program(step, given, around)(given)
            env.update(zip(step.outputs, made, strict=True))
        return [env[n] if isinstance(n, torch.fx.Node) else n for n in self.outputs]

    def program(self, step: Step, given: Sequence[Any], around: Sequence[tuple[Any, Any]] = ()) -> Program:
        """The plan for arguments of these sizes and strides; `around` has sizes that come from elsewhere."""
        key = tuple([(tuple(v.shape), v.stride()) if isinstance(v, torch.Tensor) else v for v in given])
        if around:
            key = (*key, *[v if not isinstance(v, torch.Tensor) else tuple(v.shape) for _, v in around])
        found = step.programs.get(key)
        if found is None:
            sizes = _Sizes([])
            for node, value in around:
                sizes.learn(node.meta.get("val"), value)
            for node, value in zip(step.inputs, given, strict=True):
                sizes.learn(node.meta.get("val"), value)
            found = Program(
                step.nodes, step.inputs, step.outputs, given, sizes, self.device, self.options.config
            )
            if len(step.programs) >= _MOST_PROGRAMS:
                del step.programs[next(iter(step.programs))]
            step.programs[key] = found
        return found


@final
class _Sizes:
    """torch's symbolic numbers as numbers: those of a call, or, while a graph is tried, its hints."""

    def __init__(self, nodes: list[Any]) -> None:
        self.known: dict[Any, Any] = {}
        self.hints = bool(nodes)

    def learn(self, val: Any, value: Any) -> None:
        """What a placeholder's sizes are in this call."""
        if isinstance(val, torch.SymInt | torch.SymFloat):
            self._note(val, value)
        elif isinstance(val, torch.Tensor) and isinstance(value, torch.Tensor):
            for size, n in zip((*val.shape, *val.stride()), (*value.shape, *value.stride()), strict=False):
                if isinstance(size, torch.SymInt):
                    self._note(size, n)

    def _note(self, size: Any, value: Any) -> None:
        expr = size.node.expr
        if expr.is_Symbol:
            self.known[expr] = value

    def __call__(self, size: Any) -> Any:
        if not isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
            return size
        expr = size.node.expr
        if self.hints and not self.known:
            hint = size.node.hint
            if hint is None:
                raise Unsupported(f"the size {expr} is known only when it runs")
            return hint
        found = expr.xreplace(self.known) if hasattr(expr, "xreplace") else expr
        found = found.doit() if hasattr(found, "doit") else found
        if getattr(found, "free_symbols", None):
            raise Unsupported(f"the size {expr} is known only when it runs")
        if isinstance(size, torch.SymBool):
            return bool(found)
        return int(found) if isinstance(size, torch.SymInt) else float(found)


def _known_dtypes() -> Any:
    from morok.torch.types import DTYPES

    return DTYPES


def _is_random(node: Any) -> bool:
    name = str(node.target)
    return name.startswith("aten.") and any(word in name for word in _RANDOM)


def _attribute(gm: Any, path: str) -> Any:
    found = gm
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _device(nodes: list[Any]) -> Any:
    """Where the graph's tensors lie; where some lie on a GPU, there."""
    found = {
        v.device
        for n in nodes
        for v in (n.meta.get("val") if isinstance(n.meta.get("val"), list | tuple) else [n.meta.get("val")])
        if isinstance(v, torch.Tensor)
    }
    return next((d for d in found if d.type != "cpu"), torch.device("cpu"))


def _by_torch(node: Any, env: dict[Any, Any]) -> Any:
    args = torch.fx.node.map_arg(node.args, env.__getitem__)
    kwargs = torch.fx.node.map_arg(node.kwargs, env.__getitem__)
    return node.target(*args, **kwargs)


_SAID: Cache[tuple[str, str], bool] = Cache("torch.warnings", 4096)


class Fallback(UserWarning):
    """torch computes a node, because morok cannot."""


def said(node: Any, why: str) -> None:
    """Says, once for each line, that torch computes a node."""
    line = show_line(node)
    key = (str(node.target), line)
    if _SAID.get(key):
        return
    _SAID[key] = True
    where = f" ({line})" if line else ""
    warnings.warn(f"morok leaves {node.target} to torch{where}: {why}", Fallback, stacklevel=2)
