"""Which line of a kernel's text each instruction of the machine comes from.

LLVM and NVRTC keep that as debug information: `with_locations` gives every line of LLVM IR a place, which is
its own number, and `read_locations` takes assembly apart in which the compiler has noted them (`.loc`). This
is for people who look at code: what others run is compiled without it, and what these run is made of the
very assembly that they see (`without_locations`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_UNIT, _FLAGS, _FILE, _TYPE, _NONE, _FIRST = range(6)
_HEAD = f"""\
!llvm.dbg.cu = !{{!{_UNIT}}}
!llvm.module.flags = !{{!{_FLAGS}}}
!{_UNIT} = distinct !DICompileUnit(language: DW_LANG_C99, file: !{_FILE}, producer: "morok", \
isOptimized: true, runtimeVersion: 0, emissionKind: LineTablesOnly)
!{_FLAGS} = !{{i32 2, !"Debug Info Version", i32 3}}
!{_FILE} = !DIFile(filename: "kernel.ll", directory: "")
!{_TYPE} = !DISubroutineType(types: !{_NONE})
!{_NONE} = !{{}}"""


def with_locations(text: str) -> str:
    """LLVM IR in which every instruction has its line, from 1, as its place."""
    lines = text.split("\n")
    nodes: list[str] = []
    scope = 0
    inside = False
    for i, line in enumerate(lines):
        if line.startswith("define "):
            scope, inside = _FIRST + len(nodes), True
            nodes.append(
                f'distinct !DISubprogram(name: "kernel", scope: !{_FILE}, file: !{_FILE}, line: {i + 1}, '
                f"type: !{_TYPE}, scopeLine: {i + 1}, spFlags: DISPFlagDefinition | DISPFlagOptimized, "
                f"unit: !{_UNIT})"
            )
            lines[i] = f"{line.removesuffix('{')}!dbg !{scope} {{"
        elif line == "}":
            inside = False
        elif inside and line.startswith("  ") and not line.lstrip().startswith(";"):
            lines[i] = f"{line}, !dbg !{_FIRST + len(nodes)}"
            nodes.append(f"!DILocation(line: {i + 1}, column: 1, scope: !{scope})")
    lines += [_HEAD, *(f"!{_FIRST + n} = {node}" for n, node in enumerate(nodes)), ""]
    return "\n".join(lines)


_NOTE = re.compile(r"\s*\.(loc|file|cfi_\w+)\b")


def without_locations(assembly: str) -> str:
    """Assembly as it would be without notes for debuggers."""
    kept: list[str] = []
    is_note = False  # of a section
    for line in assembly.split("\n"):
        word = line.lstrip()
        if word.startswith((".section", ".text", ".data")):
            is_note = "debug_" in word
        if not is_note and not _NOTE.match(line):
            kept.append(line)
    return "\n".join(kept)


_LOC = re.compile(r"\s*\.loc\s+\d+\s+(\d+)")
_PTX = re.compile(r"\s*\.(visible|entry|reg|shared|param|local|global|maxntid|minnctapersm)\b")
_LABEL = re.compile(r"[^\s:]+:")
_USELESS = re.compile(r"\.?(Ltmp|Lfunc_|Lsec|Linfo|\$L__tmp|\$L__func)")


def read_locations(assembly: str) -> Iterator[tuple[str, int]]:
    """The lines of assembly that people read, each with the line, from 0, that it comes from; -1: none."""
    line = -1
    for text in assembly.split("\n"):
        found = _LOC.match(text)
        if found:
            line = int(found.group(1)) - 1
            continue
        stripped = text.strip()
        if stripped.startswith(".section") and "debug" in stripped:
            return
        if not stripped or stripped.startswith(("//", "#", "/*")) or _USELESS.match(stripped):
            continue
        if _LABEL.match(stripped):
            yield stripped, -1
        elif not stripped.startswith("."):
            yield text.rstrip(), line
        elif _PTX.match(text):
            yield text.rstrip(), -1
