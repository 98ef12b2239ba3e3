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
from typing import Any, final

from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.ir.provenance import history as rewrites_of
from morok.ir.provenance import place
from morok.ir.text import expr
from morok.rewrite.record import Change, differences, size
from morok.rewrite.rules import Rule
from morok.runtime.history import KernelHistory

Data = dict[str, Any]
Verdicts = Callable[[Iterable[Rule]], dict[str, tuple[str, str]]]
_WIDTH = 72  # of an expression
_DEPTH = 5


def history_data(kernels: Iterable[KernelHistory], ab_results: Verdicts, details: bool = True) -> Data:
    """Everything that happened to kernels; `verdicts` says what the prover thinks of rules.

    Without details there is as much of everything, but no expressions.
    """
    writer = _Writer(details)
    fired = writer.fired
    written = [writer.kernel(kernel) for kernel in kernels]
    found = ab_results(fired.values())
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
    return {"kernels": written, "rules": rules}


def source_of(kernel: KernelHistory) -> str:
    """The text of the user's line."""
    origin = kernel.origin
    if origin is None or origin.file is None or origin.line is None:
        return ""
    return linecache.getline(origin.file, origin.line).strip()


def brief(node: UOp) -> str:
    """A node as a short expression."""
    if node.op is Ops.RANGE:
        return f"r{node.arg[0]}<{expr(node.src[0], 20)} {node.arg[1].name}"
    if node.op in (Ops.SINK, Ops.LINEAR):
        what = "effect" if node.op is Ops.SINK else "instruction"
        return f"{node.op.name} of {len(node.src)} {what}{'s' if len(node.src) != 1 else ''}"
    return expr(node, _WIDTH, _DEPTH)


@final
class _Writer:
    """Writes kernels; a node that comes up again and again is written once."""

    def __init__(self, details: bool) -> None:
        self.details = details
        self.fired: dict[str, Rule] = {}
        self._texts: dict[UOp, str] = {}

    def brief(self, node: UOp) -> str:
        found = self._texts.get(node)
        if found is None:
            found = self._texts[node] = brief(node)
        return found

    def kernel(self, kernel: KernelHistory) -> Data:
        return {
            "number": kernel.number,
            "name": kernel.name,
            "target": kernel.target,
            "place": kernel.place,
            "source": source_of(kernel),
            "stages": [self.stage(stage) for stage in kernel.stages],
            "instructions": self.instructions(kernel.instructions),
            "code": [{"language": language, "text": text} for language, text in kernel.codes],
        }

    def stage(self, stage: Change) -> Data:
        after = stage.before if stage.after is None else stage.after
        return {
            "number": stage.by.number,
            "name": stage.by.name,
            "place": stage.by.place,
            "seconds": round(stage.seconds, 6),
            "nodes": [size(stage.before), size(after)],
            "tried": sum(c.by.kind == "action" for c in stage.inner),
            "steps": [self.step(step) for step in stage.steps()] if stage.changed else [],
        }

    def step(self, step: Change) -> Data:
        by = step.by
        kind = "function" if by.kind == "stage" else by.kind
        assert step.after is not None
        changes: list[Data]
        if kind == "rules":
            self.fired.update({rule.name: rule for rule, _, _ in step.matches})
            changes = [{"rule": rule.name, **self.pair(old, new)} for rule, old, new in step.matches]
        elif kind == "action":
            changes = [self.loops(step.before, step.after)]
        else:
            changes = [self.pair(old, new) for old, new in differences(step.before, step.after)]
        return {"kind": kind, "name": by.name, "place": by.place, "changes": changes}

    def pair(self, old: UOp, new: UOp) -> Data:
        """Before and after; what reads the same is told apart by op and type."""
        if not self.details:
            return {}
        before, after = self.brief(old), self.brief(new)
        if before == after and (old.op, old.dtype) != (new.op, new.dtype):
            before, after = (f"{n.op.name} {n.dtype} {text}" for n, text in ((old, before), (new, after)))
        return {"before": before, "after": after, "place": place(old) or place(new) or ""}

    def loops(self, before: UOp, after: UOp) -> Data:
        """What an action did to the loops; to memory, if they are the same."""
        if not self.details:
            return {}
        for wanted in (Ops.RANGE, Ops.BUFFERIZE):
            old, new = (dict.fromkeys(n for n in toposort(g) if n.op is wanted) for g in (before, after))
            gone, come = [n for n in old if n not in new], [n for n in new if n not in old]
            if gone or come:
                break
        show = [", ".join(map(self.brief, nodes)) for nodes in (gone, come)]
        return {"before": show[0] or "–", "after": show[1] or "–", "place": ""}

    def instructions(self, linear: UOp) -> list[Data]:
        if not self.details:
            return [{}] * len(linear.src)
        numbers = {node: i for i, node in enumerate(linear.src)}
        lines, depth = [], 0
        for node in linear.src:
            depth -= node.op in (Ops.END, Ops.ENDIF)
            sources = ", ".join(str(numbers.get(s, s.op.name)) for s in node.src)
            arg = "" if node.arg is None else f" {node.arg!r}"
            text = f"{node.op.name} {node.dtype}{arg} ({sources})"
            rewrites = [{"rule": str(rule), "before": self.brief(old)} for rule, old in rewrites_of(node)]
            lines.append(
                {"text": text, "depth": max(0, depth), "place": place(node) or "", "history": rewrites}
            )
            depth += node.op in (Ops.RANGE, Ops.IF)
        return lines
