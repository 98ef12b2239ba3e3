"""Templates of schedules as bytes, for the next process.

A template follows from the normalised graph, the machine and the options alone, so it is found by their
hashes, and nothing that a program does can make it stale: the graph is made anew every time. What the hash of
a graph does not cover, the user's lines, is taken from the graph at hand: a template names nodes by number.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

from morok import knobs
from morok.errors import MorokError
from morok.ir.args import write_dtype
from morok.ir.checks import Complaint
from morok.ir.digest import digest_all, hexdigest
from morok.ir.node import UOp, set_digest, toposort
from morok.ir.ops import Ops
from morok.ir.packed import pack, unpack
from morok.ir.provenance import Origin, instruction_of, numbers_by_instruction
from morok.ir.python_form import parse_values
from morok.machine.devices import machine_key
from morok.schedule.plan.steps import Check, MemoryTemplate, Step, Template

INTERNAL = Origin(None, 0, "stored schedule")


class PlanStore(Protocol):
    """Where schedules are kept between processes."""

    def get_plan(self, key: str) -> bytes | None:
        """What was kept under a key, whole and unchanged."""

    def put_plan(self, key: str, packed: bytes) -> None:
        """Keeps something."""


def plan_key(sink: UOp, nodes: Sequence[UOp] | None = None) -> str:
    """Everything besides the compiler itself that decides about the schedule of a normalised graph.

    `nodes` is its `toposort`, where it is known already.
    """
    order = toposort(sink) if nodes is None else nodes
    digest_all(order)
    devices = {str(n.arg[2]) for n in order if n.op is Ops.PARAM}
    devices |= {str(n.arg) for n in order if n.op is Ops.DEVICE}
    names = sorted({*devices, knobs.default_device()})
    machines = ",".join(f"{name}={machine_key(name)}" for name in names)
    options = ";".join(f"{name}={value}" for name, value in knobs.cache_key())
    return f"{hexdigest(sink)}|{machines}|{knobs.default_device()}|{options}"


def to_bytes(template: Template, sink: UOp) -> bytes:
    """A template of a normalised graph."""
    nodes = toposort(sink)
    lines = numbers_by_instruction(nodes)
    asts = list(dict.fromkeys(step.ast for step in template.steps))
    number = {ast: n for n, ast in enumerate(asts)}
    memory = template.memory
    checked = [n for n, node in enumerate(nodes) if node.op is Ops.CHECK]
    found = {
        "graphs": pack([*asts, *template.results, *(check.limit for check in template.checks)]),
        "asts": [hexdigest(ast) for ast in asts],  # by which their code is found
        "steps": [
            [
                number[s.ast],
                s.buffers,
                s.variables,
                s.name,
                lines.get(instruction_of(s.origin), -1),
                s.flops,
                s.bytes,
                s.group,
                s.starts,
            ]
            for s in template.steps
        ],
        "made": [[write_dtype(dtype), size, device] for dtype, size, device in template.made],
        "outputs": template.output_buffers,
        "notes": template.notes,
        "memory": [memory.places, memory.arenas, memory.output_bytes, memory.live_bytes],
        "checks": [
            [
                check.buffer,
                check.slot,
                check.complaint.text,
                check.complaint.from_the_end,
                write_dtype(check.dtype),
                next(
                    (
                        n
                        for n in checked
                        if nodes[n].origin is check.origin and nodes[n].arg == check.complaint
                    ),
                    -1,
                ),
            ]
            for check in template.checks
        ],
    }
    return zlib.compress(json.dumps(found).encode(), 1)


def from_bytes(packed: bytes, sink: UOp, nodes: Sequence[UOp] | None = None) -> Template | None:
    """The template, with the lines of the graph at hand; None if this is none."""
    try:
        return _read(json.loads(zlib.decompress(packed)), toposort(sink) if nodes is None else nodes)
    except (zlib.error, ValueError, TypeError, LookupError, MorokError):
        return None


def _read(found: dict[str, Any], nodes: Sequence[UOp]) -> Template:
    graphs = unpack(found["graphs"], INTERNAL)
    count, steps = len(found["asts"]), found["steps"]
    for ast, known in zip(graphs, found["asts"], strict=False):
        if ast.digest_ is None:
            set_digest(ast, bytes.fromhex(known))
    results = graphs[count : len(graphs) - len(found["checks"])]
    limits = graphs[count + len(results) :]
    places, arenas, output_bytes, live_bytes = found["memory"]
    names = {row[0] for row in found["made"]} | {row[4] for row in found["checks"]}
    dtypes = dict(zip(sorted(names), parse_values(sorted(names)), strict=True))
    return Template(
        tuple(
            Step(
                graphs[ast],
                tuple(buffers),
                tuple(variables),
                name,
                _origin(nodes, line),
                flops,
                size,
                group,
                tuple(starts),
            )
            for ast, buffers, variables, name, line, flops, size, group, starts in steps
        ),
        tuple(results),
        tuple((dtypes[name], size, device) for name, size, device in found["made"]),
        tuple(found["outputs"]),
        MemoryTemplate(tuple((n, d, o, b) for n, d, o, b in places), arenas, output_bytes, live_bytes),
        tuple(
            Check(
                buffer,
                slot,
                Complaint(text, from_the_end),
                limit,
                dtypes[dtype],
                _origin(nodes, line),
            )
            for (buffer, slot, text, from_the_end, dtype, line), limit in zip(
                found["checks"], limits, strict=True
            )
        ),
        tuple(found["notes"]),
    )


def _origin(nodes: Sequence[UOp], line: int) -> Origin | None:
    return nodes[line].origin if line >= 0 else None
