"""A compiled graph: plans of morok's, and between them what torch has to do itself.

Where all nodes are known there is one plan. Else the graph is cut into levels: what morok computes from the
inputs, what torch computes from that, and so on. Everything that torch does is said once, with its line.

The graph is tried as it comes, with what torch says of its inputs. If all of it is morok's, and the arguments
are as torch has said, then what was tried is what is run.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from morok.caches import Cache
from morok.errors import MorokError
from morok.torch import stored
from morok.torch.layout import Layout, known_layout, layout_of, row_major, turned_results
from morok.torch.lower import is_plumbing, lower, show_line, values_of, why_not
from morok.torch.options import Options
from morok.torch.program import Bound, Program
from morok.torch.sizes import Sizes, Variables
from morok.torch.table import Unsupported
from morok.torch.traced import Traced
from morok.torch.types import DTYPES, device_of
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
    bound: dict[Any, Bound] = field(default_factory=dict)  # by sizes and strides of a call
    programs: list[Program] = field(default_factory=list)
    one_size: bool = False  # no plan for sizes that vary was to be had


@final
class Compiled:
    """What a graph has become. Calling it with the list of arguments runs it."""

    def __init__(self, gm: Any, example: Sequence[Any], options: Options, *, training: bool = False) -> None:
        self.gm = gm
        self.options = options
        self.training = training  # one of two passes
        nodes = list(gm.graph.nodes)
        self.placeholders = [n for n in nodes if n.op == "placeholder"]
        self.constants = {n: _attribute(gm, n.target) for n in nodes if n.op == "get_attr"}
        (output,) = [n for n in nodes if n.op == "output"]
        self.outputs: list[Any] = (
            list(output.args[0]) if isinstance(output.args[0], list | tuple) else [output.args[0]]
        )
        self.torch_device = _device(nodes)
        self.device = device_of(torch.empty(0, device=self.torch_device))
        self.dynamic = [n for n in self.placeholders if _is_symbolic(n.meta.get("val"))]
        self.fallbacks: dict[Any, str] = {}
        self._anywhere = values_from_nowhere(nodes, self.torch_device)
        self._key = None if self.dynamic or options.config else stored.graph_key(gm, self.device, options)
        self._stored = None if self._key is None else stored.find(self._key)
        self._tried: Traced | None = None if self._stored is not None else self._try(nodes)
        self.steps = self._cut([n for n in nodes if n.op == "call_function"])
        if self.fallbacks or self.dynamic or len(self.steps) != 1:
            self._tried = self._key = None
        for node, why in self.fallbacks.items():
            if is_plumbing(node) or (options.fallback_random and _is_random(node)):
                continue
            if not options.fallback:
                raise Unsupported(f"{node.target}: {why}", place=show_line(node) or None)
            said(node, why)
        tell(self)

    @property
    def plans(self) -> list[Any]:
        """The plans so far: one for each set of sizes that no other one serves, of each step."""
        return [p.plan for step in self.steps for p in step.programs if p.plan is not None]

    # --- what torch does itself

    def _try(self, nodes: list[Any]) -> Traced:
        """The graph as far as morok computes it; what it does not is noted among the fallbacks."""
        hints = Sizes(hints=True)
        traced = Traced(self.device, hints)
        traced.turned = self._turned(self.outputs, [*self.placeholders, *self.constants], hints)
        for node in self.placeholders:
            self._stand_in(traced, node, node.meta.get("val"))
        for node, value in self.constants.items():
            traced.take(node, value)
        unknown = {node for node, value in traced.env.items() if value is None and _has_value(node)}
        with traced.recording():
            for node in nodes:
                if node.op != "call_function":
                    continue
                why = why_not(node, self.torch_device, node in self._anywhere)
                if why is None and not unknown.isdisjoint(node.all_input_nodes):
                    why = "it starts from a size or a number that is known only when it runs"
                if why is None and self.options.fallback_random and _is_random(node):
                    why = "torch's own random numbers are asked for"
                if why is None:
                    try:
                        lower([node], traced.env, hints, traced.turned)
                        continue
                    except _REFUSALS as error:
                        why = str(error)
                self.fallbacks[node] = why
                self._stand_in(traced, node, node.meta.get("val"))
                if traced.env[node] is None and _has_value(node):
                    unknown.add(node)
        if any(n in self._anywhere for f in self.fallbacks for n in (f, *f.all_input_nodes)):
            self._anywhere = frozenset()  # torch wants them where they are
            self.fallbacks.clear()
            return self._try(nodes)
        return traced

    def _stand_in(self, traced: Traced, node: Any, val: Any) -> None:
        """A tensor that stands for one of torch's while the graph is tried."""
        try:
            if isinstance(val, list | tuple):
                traced.env[node] = [self._standing(traced, node, v) for v in val]
            elif node.op != "placeholder":
                traced.env[node] = self._standing(traced, node, val)
            elif not isinstance(val, torch.Tensor):
                traced.take(node, traced.known(val))
            elif val.dtype in DTYPES and val.layout is torch.strided:
                traced.take(node, val, known_layout(val, traced.known))
            else:
                traced.take(node, None)
        except Unsupported:
            traced.env[node] = None  # a size that is known only when it runs: whoever needs it is torch's

    def _standing(self, traced: Traced, node: Any, val: Any) -> Any:
        if not isinstance(val, torch.Tensor):
            return traced.known(val)
        if val.dtype not in DTYPES or val.layout is not torch.strided:
            return None
        sizes = tuple([traced.known(n) for n in val.shape])
        return traced.placed(val.dtype, Layout(sizes, row_major(sizes)), sizes)[0]

    def _turned(self, outputs: Sequence[Any], inputs: Sequence[Any], sizes: Sizes) -> dict[Any, Layout]:
        try:
            return turned_results(outputs, set(inputs), sizes, self.device)
        except Unsupported:  # sizes that are known only when it runs
            return {}

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
        if self._anywhere:
            self._move_constants()
        if len(self.steps) == 1 and not self.fallbacks:
            given: Any = args
            if self.constants:
                given = [*args, *self.constants.values()]
                if isinstance(args, list):
                    args.clear()  # who holds an argument keeps its memory
            return self.program(self.steps[0], given)(given)
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

    def _move_constants(self) -> None:
        """Those that may be anywhere go where the rest is, once."""
        for node in self.constants.keys() & self._anywhere:
            self.constants[node] = self.constants[node].to(self.torch_device)
        self._anywhere = frozenset()

    def program(self, step: Step, given: Sequence[Any], around: Sequence[tuple[Any, Any]] = ()) -> Bound:
        """The plan for arguments of these sizes and strides; `around` has sizes that come from elsewhere."""
        key = tuple([(v.shape, v.stride()) if isinstance(v, torch.Tensor) else v for v in given])
        if around:
            key = (*key, *[v if not isinstance(v, torch.Tensor) else v.shape for _, v in around])
        found = step.bound.get(key)
        if found is None:
            sizes = Sizes()
            for node, value in around:
                sizes.learn(node.meta.get("val"), value)
            for node, value in zip(step.inputs, given, strict=True):
                sizes.learn(node.meta.get("val"), value)
            found = self._bound(step, given, sizes)
            if len(step.bound) >= _MOST_PROGRAMS:
                del step.bound[next(iter(step.bound))]
            step.bound[key] = found
        return found

    def _bound(self, step: Step, given: Sequence[Any], sizes: Sizes) -> Bound:
        for program in step.programs:
            found = program.bind(sizes, given) if program.variables is not None else None
            if found is not None:
                return found
        made = self._from_disk(given)
        if made is None and sizes.known and not step.one_size:
            made = self._general(step, given, sizes)
        if made is None:
            tried, self._tried = self._tried, None
            keeps = self._key is not None and tried is not None and _as_said(tried, given)
            if tried is None or not keeps:
                tried = self._traced(step, given, sizes, sizes)
            made = Program.of(tried, step.outputs, sizes, self.options.config)
            if keeps and self._key is not None:
                stored.keep(self._key, self.gm, made)
            made.wanted = None
        made.owned, made.brief = _owned(step.inputs), self.training
        step.programs.append(made)
        found = made.bind(sizes, given)
        assert found is not None, "a program fits what it was made for"
        return found

    def _from_disk(self, given: Sequence[Any]) -> Program | None:
        """The program as another process has made it, if the arguments are as they were there."""
        record, self._stored = self._stored, None
        if record is None:
            return None
        found = Program(self.device, Traced(self.device, Sizes()).cell)
        dtypes = [value.dtype if isinstance(value, torch.Tensor) else None for value in given]
        if not stored.restore(found, record, self.gm, dtypes) or len(found.layouts) != len(given):
            return None
        for layout, value in zip(found.layouts, given, strict=True):
            own = layout_of(value) if isinstance(value, torch.Tensor) else None
            if own != layout or (own is not None and (value.is_neg() or value.is_conj())):
                return None
        return found

    def _general(self, step: Step, given: Sequence[Any], sizes: Sizes) -> Program | None:
        """A plan whose sizes vary; None, from now on, if an operator needs them as numbers."""
        try:
            variables = Variables(sizes, _shape_env(self.dynamic))
            if variables.of:
                traced = self._traced(step, given, variables, sizes)
                made = Program.of(traced, step.outputs, sizes, self.options.config)
                if made.bind(sizes, given) is not None:
                    return made
        except _REFUSALS:
            pass
        step.one_size = True
        return None

    def _traced(self, step: Step, given: Sequence[Any], known: Any, sizes: Sizes) -> Traced:
        traced = Traced(self.device, known)
        traced.turned = self._turned(step.outputs, step.inputs, sizes)
        for node, value in zip(step.inputs, given, strict=True):
            traced.take(node, value)
        traced.lower(step.nodes)
        return traced


def _as_said(traced: Traced, given: Sequence[Any]) -> bool:
    """Whether arguments lie in memory as they did when the graph was tried."""
    for node, value in zip(traced.inputs, given, strict=True):
        if isinstance(value, torch.Tensor):
            if traced.layouts.get(node) != layout_of(value) or value.is_neg() or value.is_conj():
                return False
        elif traced.env.get(node) != value:
            return False
    return True


def _owned(inputs: Sequence[Any]) -> frozenset[int]:
    """Of a backward pass the numbers of what its forward pass has kept: it is over with it."""
    names = [node.name if node.op == "placeholder" else "" for node in inputs]
    if not any(name.startswith("tangents") for name in names):
        return frozenset()
    return frozenset(n for n, name in enumerate(names) if name and not name.startswith("primals"))


def _has_value(node: Any) -> bool:
    return node.meta.get("val") is not None


def _is_symbolic(val: Any) -> bool:
    if isinstance(val, torch.Tensor):
        return any(not isinstance(n, int) for n in (*val.shape, *val.stride()))
    return isinstance(val, torch.SymInt | torch.SymFloat)


def _shape_env(nodes: Sequence[Any]) -> Any:
    """Where torch knows the ranges of symbols."""
    for node in nodes:
        val = node.meta.get("val")
        for n in (*val.shape, *val.stride()) if isinstance(val, torch.Tensor) else (val,):
            if isinstance(n, torch.SymInt):
                return n.node.shape_env
    return None


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


def values_from_nowhere(nodes: list[Any], device: Any) -> frozenset[Any]:
    """What is computed on the host of constants alone, for a GPU: positions, masks, tables.

    No result of the graph is among them, and nobody on the host reads them: they may as well be on the GPU.
    """
    if device.type == "cpu":
        return frozenset()
    found: set[Any] = set()
    for node in nodes:
        if node.op not in ("call_function", "get_attr") or not _on_host(node):
            continue
        if _is_random(node) or is_plumbing(node):
            continue
        if all(n in found for n in node.all_input_nodes if _has_tensor(n)):
            found.add(node)
    for node in reversed(nodes):
        if node in found and any(_on_host(u) and u not in found for u in node.users):
            found.remove(node)
    return frozenset(found)


def _has_tensor(node: Any) -> bool:
    return any(isinstance(v, torch.Tensor) for v in values_of(node))


def _on_host(node: Any) -> bool:
    """Whether the results of a node lie on the host; numbers of torch's are there as well."""
    values = values_of(node)
    return all(v.device.type == "cpu" if isinstance(v, torch.Tensor) else True for v in values)


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
