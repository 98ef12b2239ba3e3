"""Looking into compilation: every stage of every kernel as files.

    with dump("folder"):
        model(x).realize()

writes, per kernel, the graph before codegen, after each stage, and the code: LLVM IR and assembly, or CUDA C.
Finished kernels are not taken from the disk meanwhile: there would be nothing to see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from morok import knobs
from morok.ir.node import UOp
from morok.ir.text import tree
from morok.rewrite.stage import Stage


@final
class Dump:
    """Writes what it is shown into a folder, one subfolder per kernel."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.kernels: list[Path] = []
        self._place = self.folder

    def begin(self, ast: UOp, title: str) -> None:
        """A new kernel."""
        name = re.sub(r"[^\w.-]+", "_", title) or "kernel"
        self._place = self.folder / f"{len(self.kernels):03d}-{name}"
        self._place.mkdir(parents=True, exist_ok=True)
        self.kernels.append(self._place)
        self.write("00-kernel.txt", tree(ast, places=True))

    def stage(self, stage: Stage, root: UOp) -> None:
        """The graph after a stage."""
        number = re.sub(r"\d+", lambda m: m.group().zfill(2), stage.number)
        name = re.sub(r"[^\w]+", "-", stage.name)
        text = _listing(root) if root.op.name == "LINEAR" else tree(root, places=True)
        self.write(f"{number}-{name}.txt", text)

    def write(self, name: str, text: str) -> None:
        (self._place / name).write_text(text + "\n", encoding="utf-8")


def _listing(linear: UOp) -> str:
    """Instructions as numbered lines, indented by loop."""
    numbers = {node: i for i, node in enumerate(linear.src)}
    lines, depth = [], 0
    for i, node in enumerate(linear.src):
        depth -= node.op.name in ("END", "ENDIF")
        sources = ", ".join(str(numbers.get(s, s.op.name)) for s in node.src)
        arg = "" if node.arg is None else f" {node.arg!r}"
        lines.append(f"{i:>4} {'  ' * max(0, depth)}{node.op.name} {node.dtype}{arg} ({sources})")
        depth += node.op.name in ("RANGE", "IF")
    return "\n".join(lines)


_active: list[Dump] = []


def current_dump() -> Dump | None:
    """The dump that is being taken."""
    return _active[-1] if _active else None


@contextmanager
def dump(folder: str | Path) -> Iterator[Dump]:
    """Writes everything that is compiled inside into a folder."""
    found = Dump(folder)
    _active.append(found)
    try:
        with knobs.override(CACHE=False):
            yield found
    finally:
        _active.remove(found)
