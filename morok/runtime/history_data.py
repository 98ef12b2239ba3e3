"""The history of kernels as plain data: what `morok trace` prints, `--json` writes and a viewer can show.

    {"kernels": [{"name", "place", "source",
                  "stages": [{"number", "name", "steps": [{"kind", "name", "changes": [
                      {"rule", "before", "after", "place"}]}]}],
                  "instructions": [{"text", "place", "history"}]}],
     "rules": {NAME: {"formula", "place", "class", "verdict", "note"}}}

Nodes are written as short expressions.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable
from typing import Any

from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.ir.provenance import history as rewrites_of
from morok.ir.provenance import place
from morok.ir.text import expr
from morok.rewrite.record import Change, differences, size
from morok.rewrite.rules import Rule
from morok.runtime.history import History, KernelHistory

Data = dict[str, Any]
Verdicts = Callable[[Iterable[Rule]], dict[str, tuple[str, str]]]
_WIDTH = 72  # of an expression
_DEPTH = 5


def history_data(history: History, verdicts: Verdicts) -> Data:
    """Everything that happened to every kernel; `verdicts` says what the prover thinks of rules."""
    fired: dict[str, Rule] = {}
    kernels = [_kernel(kernel, fired) for kernel in history.kernels]
    found = verdicts(fired.values())
    rules = {
        name: {
            "formula": rule.formula(),
            "place": rule.place,
            "class": rule.numeric.value,
            "verdict": found[name][0],
            "note": found[name][1],
        }
        for name, rule in sorted(fired.items())
    }
    return {"kernels": kernels, "rules": rules}


def _kernel(kernel: KernelHistory, fired: dict[str, Rule]) -> Data:
    return {
        "number": kernel.number,
        "name": kernel.name,
        "target": kernel.target,
        "place": kernel.place,
        "source": source_of(kernel),
        "stages": [_stage(stage, fired) for stage in kernel.stages],
        "instructions": _instructions(kernel.instructions),
        "code": [{"language": language, "text": text} for language, text in kernel.codes],
    }


def source_of(kernel: KernelHistory) -> str:
    """The text of the user's line."""
    origin = kernel.origin
    if origin is None or origin.file is None or origin.line is None:
        return ""
    return linecache.getline(origin.file, origin.line).strip()


def _stage(stage: Change, fired: dict[str, Rule]) -> Data:
    after = stage.before if stage.after is None else stage.after
    return {
        "number": stage.by.number,
        "name": stage.by.name,
        "place": stage.by.place,
        "seconds": round(stage.seconds, 6),
        "nodes": [size(stage.before), size(after)],
        "tried": sum(c.by.kind == "action" for c in stage.inner),
        "steps": [_step(step, fired) for step in stage.steps()] if stage.changed else [],
    }


def _step(step: Change, fired: dict[str, Rule]) -> Data:
    by = step.by
    kind = "function" if by.kind == "stage" else by.kind
    data: Data = {"kind": kind, "name": by.name, "place": by.place}
    if kind == "rules":
        fired.update({rule.name: rule for rule, _, _ in step.matches})
        data["changes"] = [{"rule": rule.name, **_pair(old, new)} for rule, old, new in step.matches]
    elif step.after is None:
        data["changes"] = []
    elif kind == "action":
        data["changes"] = [_loops(step.before, step.after)]
    else:
        data["changes"] = [_pair(old, new) for old, new in differences(step.before, step.after)]
    return data


def _pair(old: UOp, new: UOp) -> Data:
    """Before and after; what reads the same is told apart by op and type."""
    before, after = brief(old), brief(new)
    if before == after and (old.op, old.dtype) != (new.op, new.dtype):
        before, after = (f"{n.op.name} {n.dtype} {text}" for n, text in ((old, before), (new, after)))
    return {"before": before, "after": after, "place": place(old) or place(new) or ""}


def brief(node: UOp) -> str:
    """A node as a short expression."""
    if node.op is Ops.RANGE:
        return _loop(node)
    if node.op in (Ops.SINK, Ops.LINEAR):
        what = "effect" if node.op is Ops.SINK else "instruction"
        return f"{node.op.name} of {len(node.src)} {what}{'s' if len(node.src) != 1 else ''}"
    return expr(node, _WIDTH, _DEPTH)


def _loop(r: UOp) -> str:
    return f"r{r.arg[0]}<{expr(r.src[0], 20)} {r.arg[1].name}" if r.src else f"r{r.arg[0]}"


def _loops(before: UOp, after: UOp) -> Data:
    """What an action did to the loops; to memory, if they are the same."""
    for wanted in ({Ops.RANGE}, {Ops.BUFFERIZE}):
        old, new = (dict.fromkeys(n for n in toposort(g) if n.op in wanted) for g in (before, after))
        gone, come = [n for n in old if n not in new], [n for n in new if n not in old]
        if gone or come:
            break
    show = [", ".join(map(brief, nodes)) for nodes in (gone, come)]
    return {"before": show[0] or "–", "after": show[1] or "–", "place": ""}


def _instructions(linear: UOp) -> list[Data]:
    numbers = {node: i for i, node in enumerate(linear.src)}
    lines, depth = [], 0
    for node in linear.src:
        depth -= node.op in (Ops.END, Ops.ENDIF)
        sources = ", ".join(str(numbers.get(s, s.op.name)) for s in node.src)
        arg = "" if node.arg is None else f" {node.arg!r}"
        text = f"{node.op.name} {node.dtype}{arg} ({sources})"
        rewrites = [{"rule": rule, "before": brief(old)} for rule, old in rewrites_of(node)]
        lines.append({"text": text, "depth": max(0, depth), "place": place(node) or "", "history": rewrites})
        depth += node.op in (Ops.RANGE, Ops.IF)
    return lines
