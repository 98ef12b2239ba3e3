"""A kernel as object code, with what is needed to call it."""

from __future__ import annotations

import json
from typing import final

from morok.dtype.records import record
from morok.ir.warp_roles import Box, Walk
from morok.render.program import Described, Extent


@final
@record(frozen=True)
class Compiled:
    """Made of plain values, so it can be stored."""

    name: str  # of the entry function
    code: bytes
    buffers: int = 0  # how many it takes
    variables: tuple[str, ...] = ()
    scratch: int = 0  # bytes of working memory per thread
    threaded: bool = False  # has an axis that workers share
    grid: tuple[Extent, ...] = ()  # blocks per dimension, where the device has a grid
    block: tuple[int, ...] = ()  # threads of a block per dimension
    shared: int = 0  # bytes that the threads of a block share, asked for at launch
    tensor_maps: tuple[Described, ...] = ()  # descriptions of buffers that it takes last

    @property
    def facts(self) -> str:
        """All but the code, as text."""
        facts = {
            "name": self.name,
            "buffers": self.buffers,
            "variables": self.variables,
            "scratch": self.scratch,
            "threaded": self.threaded,
            "grid": self.grid,
            "block": self.block,
            "shared": self.shared,
            "maps": [
                (n, dtype, box.sizes, box.strides, box.part, box.tf32, _walk_fields(box.walk))
                for n, dtype, box in self.tensor_maps
            ],
        }
        return json.dumps(facts)

    def pack(self) -> bytes:
        """All of it: the facts, a newline, the code."""
        return self.facts.encode() + b"\n" + self.code


def _walk_fields(walk: Walk | None) -> tuple[tuple[int, ...], ...]:
    return () if walk is None else (walk.lower, walk.upper, walk.steps)


def _walk(fields: list[list[int]]) -> Walk | None:
    return Walk(tuple(fields[0]), tuple(fields[1]), tuple(fields[2])) if fields else None


def with_facts(facts: str, code: bytes) -> Compiled:
    """A kernel from its two parts."""
    found = json.loads(facts)
    return Compiled(
        str(found["name"]),
        code,
        int(found["buffers"]),
        tuple(found["variables"]),
        int(found["scratch"]),
        bool(found["threaded"]),
        tuple(tuple(extent) for extent in found["grid"]),
        tuple(found["block"]),
        int(found["shared"]),
        tuple(
            (int(n), str(d), Box(tuple(a), tuple(b), tuple(c), t, _walk(w)))
            for n, d, a, b, c, t, w in found["maps"]
        ),
    )


def unpack(packed: bytes) -> Compiled:
    """What `pack` has written."""
    facts, _, code = packed.partition(b"\n")
    return with_facts(facts.decode(), code)
