"""`docs/pipeline.svg`: the way of a program through the rooms, drawn from the tables of stages that run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from morok.rewrite.stage import Stage, count_rules

_GAP, _LINE, _LETTER, _CAPITAL = 16, 14, 6, 7.4  # a letter's width, as fonts without serifs have it
_STYLE = """
text { font-family: ui-sans-serif, system-ui, sans-serif; font-size: 11px; fill: #24292f }
.name { font-size: 14px; font-weight: 600 } .room { font-family: ui-monospace, monospace; fill: #57606a }
.count { fill: #57606a } .box { fill: #f6f8fa; stroke: #8c959f } .rules { fill: #1a7f37 }
.arrow { stroke: #8c959f; stroke-width: 1.5; fill: none; marker-end: url(#head) }
"""
_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" '
    'markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 8 4 0 8z" fill="#8c959f"/></marker></defs>'
)


def pipeline_picture() -> str:
    """The whole picture, as text."""
    columns = _columns()
    longest = max(len(lines) for _, _, _, lines in columns)
    height = 112 + _LINE * longest
    boxes = [_box(*column) for column in columns]
    width = sum(boxes) + _GAP * len(boxes)
    parts = [f'<rect width="{width}" height="{height}" fill="#fff"/>']
    note = "green: a set of rules; each change can be seen with morok trace"
    parts.append(f'<text class="rules" x="8" y="{height - 6}">{note}</text>')
    left = 8
    for box, column in zip(boxes, columns, strict=True):
        if left > 8:
            parts.append(f'<path class="arrow" d="M{left - _GAP} 40 H{left - 1}"/>')
        parts += _column(left, box, height, *column)
        left += box + _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="The stages of the compiler">'
    )
    return f"{head}\n<style>{_STYLE}</style>\n{_HEAD}\n" + "\n".join(parts) + "\n</svg>\n"


def _columns() -> list[tuple[str, str, str, list[tuple[str, str]]]]:
    """Title, room, what there is how often, and lines with the class that they are drawn in."""
    from morok.codegen.pipeline import STAGES
    from morok.device.registry import DEVICES
    from morok.ir.ops import ALL_OPS
    from morok.optimize.actions.table import ACTIONS
    from morok.schedule.graph.stages import GRAPH_STAGES
    from morok.schedule.kernel.stages import KERNEL_STAGES

    lines = (f"one graph of {len(ALL_OPS)} ops", "gradients", "jit")
    return [
        ("Tensor", "morok/tensor/", "nothing runs yet", _plain(lines)),
        ("Tensor graph", "morok/schedule/", _counted(GRAPH_STAGES), _stages(GRAPH_STAGES)),
        ("Kernels", "morok/schedule/", _counted(KERNEL_STAGES), _stages(KERNEL_STAGES)),
        ("Optimiser", "morok/optimize/", f"{len(ACTIONS)} actions", _plain(tuple(ACTIONS))),
        ("Codegen", "morok/codegen/", _counted(STAGES), _stages(STAGES)),
        ("Run", "morok/device/", "render, compile, call", _plain(("LLVM IR, CUDA C", *DEVICES))),
    ]


def _plain(lines: Sequence[str]) -> list[tuple[str, str]]:
    return [("line", line) for line in lines]


def _stages(stages: Sequence[Stage]) -> list[tuple[str, str]]:
    """One line per stage; those that are sets of rules stand out."""
    return [("rules" if count_rules((s,))[0] else "line", f"{s.number} {s.name}") for s in stages]


def _counted(stages: Sequence[Stage]) -> str:
    rules, functions = count_rules(stages)
    return f"{rules} rule sets, {functions} functions"


def _box(title: str, room: str, count: str, lines: list[tuple[str, str]]) -> int:
    """How wide a column is: its longest line, and some air."""
    texts = [title, room + " ", count, *[line for _, line in lines]]
    widths = [sum(_CAPITAL if c.isupper() or c == "_" else _LETTER for c in text) for text in texts]
    return int(max(widths)) + 20


def _column(
    left: int, box: int, height: int, title: str, room: str, count: str, lines: list[tuple[str, str]]
) -> list[str]:
    parts = [f'<rect class="box" x="{left}" y="8" width="{box}" height="{height - 32}" rx="6"/>']
    texts = [("name", 28, title), ("room", 44, room), ("count", 60, count)]
    texts += [(kind, 82 + _LINE * i, line) for i, (kind, line) in enumerate(lines)]
    parts += [
        f'<text class="{kind}" x="{left + 8}" y="{top}">{escape(line)}</text>' for kind, top, line in texts
    ]
    return parts
