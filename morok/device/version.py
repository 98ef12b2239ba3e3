"""Which compiler this is: a hash of every file that can shape machine code.

Kernels on disk are found by it, so whatever is edited makes new keys. The files are those that the entry
points of compilation import, directly or through others, at the top or inside of functions; there is no list.
Reading them takes a tenth of a second of a short program, so the hash is kept beside the sizes and times that
the system notes of all files: what is written to a file changes these.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Protocol

import morok
from morok.ir.digest import blake2b

# Where compiling begins: a graph becomes kernels, and kernels code of a device.
ENTRIES = ("morok.schedule.schedule", "morok.device.cpu.device", "morok.device.cuda.device")
WRITERS = (
    "written_"  # how modules are named that write kernels by hand: a graph has no more of them than a name
)

# An import as it is written, perhaps over several lines in parentheses. Reading the text takes a fraction of
# the time of parsing it; what it finds too much (an example in a docstring) costs a rebuild and no result.
# Each begins with letters that are seldom, for which a search leaps over the rest.
_FROM = re.compile(rb"from (morok[\w.]*) import (\([^)]*\)|[^\n]*)")
_IMPORT = re.compile(rb"import (morok[\w.]*)")
_ONLY_TYPES = re.compile(rb"\nif TYPE_CHECKING:[^\n]*(?:\n(?: [^\n]*)?)+")
_NAME = re.compile(rb"\w+")


def import_closure(root: str | os.PathLike[str], entries: tuple[str, ...] = ENTRIES) -> dict[str, bytes]:
    """The modules of the package at `root` that the entries need, with their source."""
    files = _files(str(root))
    found: dict[str, bytes] = {}
    known: set[tuple[bytes, bytes]] = set()  # imports as they are written
    waiting = [*entries, *(name for name in files if name.rpartition(".")[2].startswith(WRITERS))]
    while waiting:
        name = waiting.pop()
        if name in found or name not in files:  # an imported name may be no module, but a name inside of one
            continue
        with open(files[name], "rb") as file:
            text = found[name] = file.read()
        if "." in name:
            waiting.append(name.rpartition(".")[0])  # a package is loaded before what is in it
        if b"\nif TYPE_CHECKING:" in text:
            text = _ONLY_TYPES.sub(b"", text)
        imports = {(module, names) for module, names in _FROM.findall(text)}
        imports.update((module, b"") for module in _IMPORT.findall(text))
        for pair in imports - known:
            module = pair[0].decode()
            waiting.append(module)
            waiting += [f"{module}.{part.decode()}" for part in _NAME.findall(pair[1])]
        known |= imports
    return found


def _files(root: str) -> dict[str, str]:
    """Every module of the package, and its file."""
    found = {}
    folders = [(root, "morok")]
    while folders:
        folder, room = folders.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:  # the package is no folder
            continue
        for entry in entries:
            name = entry.name
            if entry.is_dir(follow_symlinks=False):
                folders.append((entry.path, f"{room}.{name}"))
            elif name.endswith(".py"):
                found[room if name == "__init__.py" else f"{room}.{name[:-3]}"] = entry.path
    return found


def digest(sources: Mapping[str, bytes]) -> str:
    """A hash of modules by name."""
    state = blake2b(digest_size=12)
    for name in sorted(sources):
        for part in (name.encode(), sources[name]):
            state.update(len(part).to_bytes(8, "little"))
            state.update(part)
    return state.hexdigest()


class KeptVersions(Protocol):
    """Where a hash of the source is kept between processes."""

    def get_version(self, key: str) -> str | None:
        """What was kept under a key, whole and unchanged."""

    def put_version(self, key: str, version: str) -> None:
        """Keeps it."""


_kept: Callable[[], KeptVersions | None] | None = None
_SETTLED = 2.0  # seconds after which another write cannot have the time of the last one, on any file system


def kept_by(store: Callable[[], KeptVersions | None]) -> None:
    """Says where versions are kept."""
    global _kept
    _kept = store


def file_times(root: str) -> tuple[str, float]:
    """A hash of the names, sizes and times of all files of the package, and when the last one was changed.

    The time of a change of the file's entry is the system's own: no program can set it back.
    """
    state, last = blake2b(root.encode(), digest_size=12), 0.0
    folders = [root]
    while folders:
        for entry in sorted(os.scandir(folders.pop()), key=lambda e: e.name):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.name.endswith(".py"):
                found = entry.stat()
                times = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
                state.update(f"{entry.path}:{times}\n".encode())
                last = max(last, found.st_mtime, found.st_ctime)
    return state.hexdigest(), last


def is_settled(last: float) -> bool:
    """Whether files that were changed last at this time cannot change again without another time."""
    return last + _SETTLED < time.time()


def version_of(
    root: str | os.PathLike[str], kept: KeptVersions | None, entries: tuple[str, ...] = ENTRIES
) -> str:
    """The hash of the package's source: kept for files that nobody has changed since, or read now."""
    try:
        key, last = file_times(str(root))
    except OSError:  # the package is no folder
        return digest(import_closure(root, entries))
    if entries != ENTRIES:
        key = f"{key}|{','.join(entries)}"
    known = None if kept is None else kept.get_version(key)
    if known is not None:
        return known
    found = digest(import_closure(root, entries))
    if kept is not None and is_settled(last) and key.startswith(file_times(str(root))[0]):
        kept.put_version(key, found)
    return found


@cache
def compiler_version() -> str:
    """The release and a hash of the compiler's own source."""
    kept = None if _kept is None else _kept()
    return f"{morok.__version__}-{version_of(os.path.dirname(morok.__file__), kept)}"


@cache
def source_version(module: str) -> str:
    """A hash of the source of a module and of all that it imports."""
    kept = None if _kept is None else _kept()
    return version_of(os.path.dirname(morok.__file__), kept, (module,))
