"""Which machine this is: by what the processor says of itself, and by the knob MACHINE that names another.

A file has the facts and rates of a kind of processor; the system overrides what it knows better: cores, the
sizes of caches, shared memory.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from morok import knobs
from morok.errors import MachineError
from morok.machine.files import Source, data, load, source, sources
from morok.machine.machine import Machine
from morok.machine.processor import Processor, cache_bytes

if TYPE_CHECKING:
    from pathlib import Path

GENERIC = "generic"
EMULATED = "emulator"
FIRST_GPU = "sm_80"  # older ones have none of what kernels for GPUs are made of


def fitted_path(name: str) -> Path:
    """Where rates that were fitted on this very machine are looked for, by the processor's name."""
    from pathlib import Path

    return Path(knobs.CACHE_DIR.value) / "machines" / f"{name}.toml"


def source_of(processor: Processor) -> Source:
    """The file that describes a processor best: fitted here, by its name, by its features."""
    fitted = fitted_path(processor.cpu)
    if fitted.exists():
        try:
            source(str(fitted)).machine(processor.flags)
            return source(str(fitted))
        except MachineError as error:  # of another version, say: what is in a cache must not stop anybody
            warnings.warn(f"{error.message}; `morok tune --machine` writes it anew", stacklevel=2)
    return shipped_source(processor)


def shipped_source(processor: Processor) -> Source:
    """The same among the files that come along."""
    own = data() / "cpu" / f"{processor.cpu}.toml"
    if own.exists() and _describes(source(str(own)), processor) and "cpu" in source(str(own)).match:
        return source(str(own))  # the others need not be read
    fitting = [found for found in sources("cpu") if _describes(found, processor)]
    return max(fitting, key=_precision, default=source(GENERIC))


def _describes(found: Source, processor: Processor) -> bool:
    match = found.match
    named = processor.cpu in match.get("cpu", [processor.cpu])
    return named and processor.arch in match["arch"] and processor.flags >= set(match.get("features", ()))


def _precision(found: Source) -> tuple[bool, int]:
    return "cpu" in found.match, len(found.match.get("features", ()))


def machine_files(processor: Processor) -> tuple[str, float]:
    """All that `cpu_machine` reads: names, sizes and times of files, and what the system says of caches; and
    when the last of the files was changed."""
    found: list[object] = [cache_bytes(1, 0), cache_bytes(2, 0)]
    last = 0.0
    folders = [os.path.join(os.path.dirname(__file__), "data")]
    files = [os.path.join(knobs.CACHE_DIR.value, "machines", f"{processor.cpu}.toml")]
    while folders:
        for entry in os.scandir(folders.pop()):
            (folders if entry.is_dir() else files).append(entry.path)
    for path in sorted(files):
        try:
            said = os.stat(path)
        except OSError:
            continue
        found.append((path, said.st_size, said.st_mtime_ns, said.st_ctime_ns, said.st_ino))
        last = max(last, said.st_mtime, said.st_ctime)
    return repr(found), last


@cache
def cpu_machine(processor: Processor, cores: int = 1) -> Machine:
    """A processor of this system, of which a kernel may use so many cores."""
    found = source_of(processor)
    plain = found.machine(processor.flags)
    return replace(
        plain,
        name=f"{found.name}:{processor.cpu}",
        arch=processor.arch,
        l1_bytes=cache_bytes(1, plain.l1_bytes),
        l2_bytes=cache_bytes(2, plain.l2_bytes),
        cores=cores,
    )


@cache
def gpu_machine(arch: str, **known: Any) -> Machine:
    """A GPU by its architecture, with what its driver says: cores, caches, shared memory.

    One that has no file is taken for the nearest before it.
    """
    number = _number(arch)
    older = [s for s in sources("gpu") if _number(str(s.tables["arch"])) <= number]
    found = max(older, key=lambda s: _number(str(s.tables["arch"])), default=source(FIRST_GPU))
    return replace(found.machine(), name=arch, arch=arch, **known)


def _number(arch: str) -> int:
    return int("".join(c for c in arch if c.isdigit()) or 0)


def named(family: str) -> Machine | None:
    """The machine that the knob names, if it is of a family of devices."""
    name = knobs.MACHINE.value
    found = load(name) if name else None
    return found if found is not None and found.family == family else None


def named_processor() -> Processor | None:
    """The processor of the machine that the knob names, if it is one that LLVM makes code for."""
    return source(knobs.MACHINE.value).processor if named("cpu") is not None else None


def emulated() -> Machine:
    """What the emulator is: the GPU that the knob names, or its own."""
    return named("gpu") or load(EMULATED)
