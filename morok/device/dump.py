"""Looking into compilation: every stage of every kernel as files.

    with dump("folder"):
        model(x).realize()

writes, per kernel, the graph before codegen, after each stage, and the code: LLVM IR and assembly, or CUDA C.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from morok import knobs
from morok.caches import clear_all
from morok.ir.node import UOp
from morok.ir.renew import renewed_origins
from morok.ir.text import tree
from morok.rewrite.observe import observing
from morok.rewrite.observer import By, Observer

_FILES = {"LLVM IR": "23-llvm.ll", "assembly": "24-assembly.s", "CUDA C": "23-cuda.cu"}


@final
class Dump(Observer):
    """Writes what it is shown into a folder, one subfolder per kernel."""

    wants_code = True

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.kernels: list[Path] = []
        self._inside = False  # of a kernel

    def begin(self, by: By, before: UOp) -> None:
        if by.kind == "kernel":
            name = re.sub(r"[^\w.-]+", "_", by.name) or "kernel"
            self.kernels.append(self.folder / f"{len(self.kernels):03d}-{name}")
            self.kernels[-1].mkdir(parents=True, exist_ok=True)
            self.write("00-kernel.txt", tree(before, places=True))
            self._inside = True

    def end(self, by: By, before: UOp, after: UOp | None) -> None:
        if by.kind == "kernel":
            self._inside = False
        elif by.kind == "stage" and self._inside and after is not None:
            number = re.sub(r"\d+", lambda m: m.group().zfill(2), by.number)
            name = re.sub(r"[^\w]+", "-", by.name)
            self.write(f"{number}-{name}.txt", graph_text(after))

    def code(self, language: str, text: str) -> None:
        self.write(_FILES.get(language, f"23-{language}.txt"), text)

    def write(self, name: str, text: str) -> None:
        (self.kernels[-1] / name).write_text(text + "\n", encoding="utf-8")


def graph_text(root: UOp) -> str:
    """A graph as a tree, or a list of instructions as lines."""
    return listing(root) if root.op.name == "LINEAR" else tree(root, places=True)


def listing(linear: UOp) -> str:
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


@contextmanager
def watching(observer: Observer) -> Iterator[None]:
    """Tells an observer of everything that is compiled inside, by all threads.

    Nothing is taken from the disk or from memory meanwhile: there would be nothing to see. Nodes that are
    made again come from the lines that ask for them now.
    """
    clear_all()
    with renewed_origins(), knobs.override(CACHE=False), observing(observer, everywhere=True):
        yield


@contextmanager
def dump(folder: str | Path) -> Iterator[Dump]:
    """Writes everything that is compiled inside into a folder."""
    found = Dump(folder)
    with watching(found):
        yield found
