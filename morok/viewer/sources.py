"""The user's files: which lines of them made a node, and their text."""

from __future__ import annotations

import linecache
import os
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

    def place(self, origin: Origin | None) -> tuple[int, int] | None:
        """The file and line that something comes from."""
        if origin is None or origin.code is None:
            return None
        key = (origin.code, origin.lasti)
        if key not in self._places:
            file, line = origin.file, origin.line
            known = file and line and not file.startswith("<frozen")  # what Python itself is made of
            self._places[key] = (self.file(file), line) if known and file and line else None
        return self._places[key]

    def of(self, node: UOp) -> tuple[int, int] | None:
        """A node's place. Constants have none: the compiler keeps some, with the line of who was first."""
        return None if node.op is Ops.CONST else self.place(node.origin)

    def named(self, place: str) -> tuple[int, int] | None:
        """The place behind `file.py:12`, if a file of that name is known."""
        name, _, line = place.rpartition(":")
        for number, path in enumerate(self.files):
            if os.path.basename(path) == name and line.isdigit():
                return number, int(line)
        return None

    def file(self, path: str) -> int:
        if path not in self._number:
            self._number[path] = len(self.files)
            self.files.append(path)
        return self._number[path]

    def data(self) -> list[dict[str, Any]]:
        """The files with their text, long lines cut."""
        return [
            {"name": os.path.basename(path), "path": self.shown(path), "lines": self.lines(path)}
            for path in self.files
        ]

    def lines(self, path: str) -> list[str]:
        """The text of a file, as it was named from the folder in which the program was started."""
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
