"""The user's files: which lines of them made a node, and their text."""

from __future__ import annotations

import linecache
import os
from collections.abc import Container
from types import CodeType
from typing import Any, final

from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.ir.provenance import Origin

LONGEST_LINE = 2000  # characters of a line that are kept
MOST_LINES = 20_000  # of a file


@final
class Sources:
    """Numbers for files and places. A place is a pair of a file's number and a line, from 1."""

    def __init__(self, paths: bool = True, folder: str = "") -> None:
        self.paths = paths
        self.folder = folder or os.getcwd()  # in which the program was started
        self.files: list[str] = []
        self._number: dict[str, int] = {}
        self._places: dict[tuple[Any, int], tuple[int, int] | None] = {}
        self._nodes: dict[int, dict[int, str]] = {}  # of a model, which has no text: what each line says

    def place(self, origin: Origin | None) -> tuple[int, int] | None:
        """The file and line that something comes from."""
        if origin is None or origin.code is None:
            return None
        key = (origin.code, origin.lasti)
        if key not in self._places:
            file, line = origin.file, origin.line
            if not file or line is None or file.startswith("<frozen"):  # what Python itself is made of
                self._places[key] = None
            else:
                self._places[key] = self._node(file, line, origin.code) or (self.file(file), line)
        return self._places[key]

    def _node(self, file: str, number: int, code: CodeType) -> tuple[int, int] | None:
        """The place of a model's node, whose file is called MODEL:NODE; a model's nodes are its lines."""
        model, colon, name = file.partition(":")
        if not colon or os.path.isabs(file) or os.path.exists(file):
            return None
        place = self.file(model), number + 1
        lines = self._nodes.setdefault(place[0], {})
        text = code.co_name if code.co_name != "<module>" else name
        if text not in lines.get(place[1], ""):  # a branch or a loop counts its own nodes
            lines[place[1]] = f"{lines[place[1]]}; {text}" if place[1] in lines else text
        return place

    def of(self, node: UOp) -> tuple[int, int] | None:
        """A node's place. Constants have none: the compiler keeps some, with the line of who was first."""
        return None if node.op is Ops.CONST else self.place(node.origin)

    def named(self, place: str) -> tuple[int, int] | None:
        """The place behind `file.py:12`, if a file of that name is known."""
        name, _, line = place.rpartition(":")
        for number, path in enumerate(self.files):
            if os.path.basename(path) == name and line.isdigit():
                return number, int(line)
            if name.startswith(f"{path}:") and line.isdigit() and number in self._nodes:
                return number, int(line) + 1
        return None

    def file(self, path: str) -> int:
        if path not in self._number:
            self._number[path] = len(self.files)
            self.files.append(path)
        return self._number[path]

    def data(self, wanted: Container[int]) -> list[dict[str, Any]]:
        """The files, and the text of those that are wanted, long lines cut."""
        return [
            {
                "name": os.path.basename(path),
                "path": self.shown(path),
                "lines": self.lines(path) if number in wanted else [],
            }
            for number, path in enumerate(self.files)
        ]

    def lines(self, path: str) -> list[str]:
        """The text of a file, as it was named from the folder in which the program was started."""
        nodes = self._nodes.get(self._number.get(path, -1))
        if nodes is not None:
            return [clip(nodes.get(line, "")) for line in range(1, min(max(nodes), MOST_LINES) + 1)]
        found = linecache.getlines(path) or linecache.getlines(os.path.join(self.folder, path))
        return [clip(line.rstrip("\n")) for line in found[:MOST_LINES]]

    def shown(self, path: str) -> str:
        """A path as it may be shown: below the working folder, or only its name."""
        if not self.paths:
            return os.path.basename(path)
        near = os.path.relpath(path, self.folder) if os.path.isabs(path) else path
        return path if near.startswith("..") else near


def clip(text: str, most: int = LONGEST_LINE) -> str:
    """A text that is not longer than what anybody reads."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text):,} characters)"
