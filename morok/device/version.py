"""Which compiler this is: a hash of every file that can shape machine code.

Kernels on disk are found by it, so whatever is edited makes new keys. The files are those that the entry
points of compilation import, directly or through others, at the top or inside of functions; there is no list.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path

import morok

# Where compiling begins: a graph becomes kernels, and kernels code of a device.
ENTRIES = ("morok.schedule.schedule", "morok.device.cpu.device", "morok.device.cuda.device")

# An import as it is written, perhaps over several lines in parentheses. Reading the text takes a fraction of
# the time of parsing it; what it finds too much (an example in a docstring) costs a rebuild and no result.
_IMPORT = re.compile(rb"\n *(?:from (morok[\w.]*) import (\([^)]*\)|[^\n]*)|import (morok[\w.]*))")
_ONLY_TYPES = re.compile(rb"\nif TYPE_CHECKING:[^\n]*(?:\n(?: [^\n]*)?)+")
_NAME = re.compile(rb"\w+")


def import_closure(root: Path, entries: tuple[str, ...] = ENTRIES) -> dict[str, bytes]:
    """The modules of the package at `root` that the entries need, with their source."""
    files = _files(str(root))
    found: dict[str, bytes] = {}
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        if name in found or name not in files:  # an imported name may be no module, but a name inside of one
            continue
        with open(files[name], "rb") as file:
            text = found[name] = file.read()
        if "." in name:
            waiting.append(name.rpartition(".")[0])  # a package is loaded before what is in it
        for origin, names, whole in _IMPORT.findall(_ONLY_TYPES.sub(b"", text)):
            module = (origin or whole).decode()
            waiting.append(module)
            waiting += [f"{module}.{part.decode()}" for part in _NAME.findall(names)]
    return found


def _files(root: str) -> dict[str, str]:
    """Every module of the package, and its file."""
    found = {}
    for folder, _, names in os.walk(root):
        room = ".".join(("morok", *os.path.relpath(folder, root).split(os.sep))).removesuffix("..")
        for name in names:
            stem, ending = os.path.splitext(name)
            if ending == ".py":
                found[room if stem == "__init__" else f"{room}.{stem}"] = os.path.join(folder, name)
    return found


def digest(sources: Mapping[str, bytes]) -> str:
    """A hash of modules by name."""
    state = blake2b(digest_size=12)
    for name in sorted(sources):
        for part in (name.encode(), sources[name]):
            state.update(len(part).to_bytes(8, "little"))
            state.update(part)
    return state.hexdigest()


@cache
def compiler_version() -> str:
    """The release and a hash of the compiler's own source."""
    return f"{morok.__version__}-{digest(import_closure(Path(morok.__file__).parent))}"
