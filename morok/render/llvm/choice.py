"""Several codes of one kernel in a module, of which the value of a variable chooses one at every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from morok.render.program import Program

Values = tuple[int, int]  # of a variable: the first and the last one
_SHARED = ("declare ", "attributes ")  # lines that a module has once


def chosen(name: str, otherwise: Program, variable: str, cases: Mapping[Values, Program]) -> Program:
    """One program: that of the variable's value, if it has one, else the other. All read the same table."""
    place = otherwise.buffers + otherwise.variables.index(variable)
    programs = (otherwise, *cases.values())
    lines = otherwise.text.splitlines()
    known = {line for line in lines if line.startswith(_SHARED)}
    for program in cases.values():
        for line in program.text.splitlines():
            if line not in known:
                lines.append(line)
            if line.startswith(_SHARED):
                known.add(line)
    given = "ptr %args, i64 %lo, i64 %hi, ptr %scratch"
    labels = {"any": otherwise.name, **{f"n{first}": p.name for (first, _), p in cases.items()}}
    switch = _switch(place, list(cases))
    lines += [f"define void @{name}({given}) #0 {{", *switch]
    for label, to in labels.items():
        lines += [f"{label}:", f"  tail call void @{to}({given})", "  ret void"]
    lines += ["}", "", f"define i64 @{name}.extent(ptr %args) #0 {{", *switch]
    for label, to in labels.items():
        lines += [f"{label}:", f"  %{label}.e = call i64 @{to}.extent(ptr %args)", f"  ret i64 %{label}.e"]
    return replace(
        otherwise,
        name=name,
        text="\n".join([*lines, "}", ""]),
        scratch=max(p.scratch for p in programs),
        threaded=any(p.threaded for p in programs),
    )


def _switch(place: int, cases: Sequence[Values]) -> list[str]:
    """To the label of the variable's value."""
    ways = " ".join(f"i64 {n}, label %n{first}" for first, last in cases for n in range(first, last + 1))
    return [
        "entry:",
        f"  %p = getelementptr i64, ptr %args, i64 {place}",
        "  %n = load i64, ptr %p, align 8",
        f"  switch i64 %n, label %any [ {ways} ]",
    ]
