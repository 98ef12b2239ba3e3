"""Verdicts as lines of a file, and as the table that is printed at the end."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

from tests.mutation.kill import EQUIVALENT, KILLED, LAW, SURVIVED, Found
from tests.mutation.reasons import SURVIVORS

ENOUGH = 98.0  # per cent


def settled(name: str, found: Found) -> Found:
    """A survivor with a written argument is one that may."""
    if found.status == SURVIVED and name in SURVIVORS:
        return Found(EQUIVALENT, "written", SURVIVORS[name], found.seconds)
    return found


def line(name: str, found: Found) -> str:
    words = {"id": name, "status": found.status, "by": found.by, "note": found.note,
             "seconds": round(found.seconds, 2)}  # fmt: skip
    return json.dumps(words, ensure_ascii=False)


def read(path: str) -> dict[str, Found]:
    """The verdicts of a file, the later ones of those on the same mutant; a last line may be cut off."""
    found: dict[str, Found] = {}
    if not path or not os.path.exists(path):
        return found
    with open(path, encoding="utf-8") as file:
        for text in file:
            if text.endswith("\n"):
                entry: dict[str, Any] = json.loads(text)
                name = entry.pop("id")
                found[name] = settled(name, Found(**entry))
    return found


def report(results: dict[str, Found], seconds: float) -> int:
    """Prints it; not 0 if too many have survived."""
    for name, found in results.items():
        if found.status == SURVIVED:
            print(f"survived: {name}  ({found.note})")
    for name, found in results.items():
        if found.status == EQUIVALENT and found.by == "written":
            print(f"may survive: {name}  ({found.note})")
    counts = Counter(found.status for found in results.values())
    by = Counter(found.by for found in results.values() if found.status == KILLED)
    counted = counts[KILLED] + counts[SURVIVED]
    score = 100 * counts[KILLED] / counted if counted else 100.0
    how = "; ".join(f"{who} {n}" for who, n in by.most_common())
    written = sum(found.by == "written" for found in results.values())
    print(
        f"{len(results)} mutants: {counts[KILLED]} killed ({how}), {counts[SURVIVED]} survived: {score:.1f} %"
    )
    print(f"beside these {counts[LAW]} still a law with a wider condition, {counts[EQUIVALENT]} equivalent "
          f"({counts[EQUIVALENT] - written} by Z3, {written} with a written argument)")  # fmt: skip
    spent = sum(found.seconds for found in results.values())
    print(f"{spent:.0f} s of the processor, {seconds:.0f} s on the clock")
    return int(score < ENOUGH)
