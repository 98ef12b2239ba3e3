"""Programs from disk, by the hash of torch's graph: a second process neither traces nor schedules.

The key holds all that lowering can see of a graph: operators, arguments, what torch says about every result
(types, sizes, strides, whose memory it shows), options, the machine, torch's version, and the source of this
package. The user's lines are no part of it: an entry names nodes of the graph by number, and lines are those
of the graph at hand.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

import morok
from morok import knobs
from morok.device.store import plan_store
from morok.device.version import digest, import_closure
from morok.dtype import index
from morok.errors import MorokError
from morok.ir.memory import base_of
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.ir.provenance import line_of
from morok.machine.devices import machine_of
from morok.runtime.plan import ExecutionPlan
from morok.schedule.normalise import normalise
from morok.schedule.plan.stored import from_bytes, to_bytes
from morok.schedule.schedule import _fill_in, find_template
from morok.tensor.memory.names import new_buffer
from morok.torch.layout import Layout
from morok.torch.lower import at_line, user_line
from morok.torch.results import Made, Planned, Shown, Twin
from morok.torch.types import from_torch

_MARK = "a result of a stored program"
_PLAIN = (type(None), bool, int, float)


@cache
def _source() -> str:
    """The source of what turns graphs into tensors; what turns those into kernels the store knows itself."""
    return digest(import_closure(Path(morok.__file__).parent, ("morok.torch.compiled",)))


def graph_key(gm: Any, device: str, options: Any) -> str | None:
    """The hash of a graph; None if it has sizes that vary, or arguments that have no plain form."""
    numbers: dict[Any, int] = {}
    storages: dict[int, int] = {}
    try:
        rows = []
        for number, node in enumerate(gm.graph.nodes):
            numbers[node] = number
            target = node.target if node.op == "call_function" else ""
            args = _shown((node.args, node.kwargs), numbers)
            rows.append((node.op, str(target), args, _val(node.meta.get("val"), storages)))
    except TypeError:
        return None
    given = (torch.__version__, _source(), device, machine_of(device).key, knobs.default_device(),
             sorted(knobs.cache_key()), repr(options), rows)  # fmt: skip
    return "torch|" + blake2b(repr(given).encode(), digest_size=24).hexdigest()


def _shown(value: Any, numbers: dict[Any, int]) -> Any:
    if isinstance(value, torch.fx.Node):
        return f"%{numbers[value]}"
    if isinstance(value, tuple | list):
        return [_shown(v, numbers) for v in value]
    if isinstance(value, dict):
        return {str(k): _shown(v, numbers) for k, v in value.items()}
    if isinstance(value, slice):
        return ["slice", *[_shown(v, numbers) for v in (value.start, value.stop, value.step)]]
    plain = (*_PLAIN, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(...))
    if isinstance(value, plain):
        return repr(value)
    raise TypeError(f"{value!r} has no plain form")


def _val(val: Any, storages: dict[int, int]) -> Any:
    if isinstance(val, tuple | list):
        return [_val(v, storages) for v in val]
    if isinstance(val, _PLAIN):
        return repr(val)
    if not isinstance(val, torch.Tensor) or val.layout is not torch.strided:
        raise TypeError("neither a tensor nor a number")
    where = storages.setdefault(val.untyped_storage()._cdata, len(storages))
    sizes = (*val.shape, *val.stride(), val.storage_offset())
    if not all(isinstance(n, int) for n in sizes):
        raise TypeError("sizes that vary")
    return (str(val.dtype), str(val.device), tuple(val.shape), val.stride(), val.storage_offset(), where,
            val.is_neg(), val.is_conj())  # fmt: skip


def _marks(gm: Any) -> list[UOp]:
    """A node for each line of the user's that the graph comes from."""
    lines = {user_line(node): node for node in gm.graph.nodes}
    return [
        at_line(node, make, (Ops.DEFINE_VAR, index, (), (f"{line[0]}:{line[1]}", 0, 1)))
        for line, node in lines.items()
        if line is not None
    ]


# --- writing


def keep(key: str, gm: Any, program: Any) -> None:
    """Keeps a program for the next process, if there is a place for it."""
    store = plan_store()
    if store is None or program.plan is None or program.wanted is None:
        return
    with knobs.override(DEVICE=program.device):
        form = normalise(program.wanted)
        template = find_template(form)
    marks = _marks(gm)
    sink = make(Ops.SINK, index, tuple(marks))
    lines = {line_of(mark.origin): n for n, mark in enumerate(marks)}
    memory = {node: n for n, (_, node, _) in enumerate(program.places)} | {program.cell: -1}
    if any(buffer not in memory for buffer in form.buffers):
        return
    results = {base_of(program.plan.schedule.results[w]): n for n, w in enumerate(program.wanted)}
    rows = [_written(result.of, results) for result in program.results]
    record = {
        "template": base64.b85encode(to_bytes(template, sink)).decode(),
        "buffers": [memory[buffer] for buffer in form.buffers],
        "places": [[n, node.arg, copied] for n, node, copied in program.places],
        "draws": program.draws,
        "count": program.count,
        "wanted": len(program.wanted),
        "layouts": [None if x is None else [x.sizes, x.strides] for x in program.layouts],
        "results": rows,
        "checks": [lines.get(line_of(check.origin), -1) for check in program.plan.schedule.checks],
    }
    if None not in rows:
        store.put_plan(key, json.dumps(record).encode())


def _written(of: Any, results: dict[UOp, int]) -> Any:
    if isinstance(of, Made):
        node = None if of.node is None else results[of.node]
        return ["made", str(of.dtype), of.layout.sizes, of.layout.strides, node, of.copied]
    if isinstance(of, Shown):
        return ["shown", of.of_input, of.number, of.layout.sizes, of.layout.strides, of.offset]
    if isinstance(of, Twin):
        return ["twin", of.first, _written(of.made, results)]
    return ["plain", of] if isinstance(of, _PLAIN) else None


# --- reading


def find(key: str) -> dict[str, Any] | None:
    """What was kept for a graph."""
    store = plan_store()
    packed = None if store is None else store.get_plan(key)
    return None if packed is None else json.loads(packed)


def restore(program: Any, record: dict[str, Any], gm: Any, dtypes: Sequence[Any]) -> bool:
    """Fills a program from what was kept; False if that is not understood."""
    marks = _marks(gm)
    sink = make(Ops.SINK, index, tuple(marks))
    template = from_bytes(base64.b85decode(record["template"]), sink)
    if template is None:
        return False
    try:
        program.places = [
            (n, new_buffer(from_torch(dtypes[n]), size, program.device), copied)
            for n, size, copied in record["places"]
        ]
        memory = {n: node for n, (_, node, _) in enumerate(program.places)} | {-1: program.cell}
        keys = [make(Ops.DEFINE_VAR, index, (), (f"{_MARK} {n}", 0, 1)) for n in range(record["wanted"])]
        origins = [marks[n].origin if 0 <= n < len(marks) else None for n in record["checks"]]
        lines = [line_of(step.origin) for step in template.steps]
        made = _fill_in(template, [memory[n] for n in record["buffers"]], {}, keys, origins, lines, {}, {})
    except (LookupError, MorokError, ValueError, TypeError):
        return False
    program.plan = ExecutionPlan(made)
    program.draws, program.count = record["draws"], record["count"]
    program.layouts = [None if x is None else Layout(tuple(x[0]), tuple(x[1])) for x in record["layouts"]]
    targets = [base_of(made.results[k]) for k in keys]
    program.results = [Planned(_read(row, targets), fixed=True) for row in record["results"]]
    return True


def _read(row: Sequence[Any], targets: list[UOp]) -> Any:
    kind, *rest = row
    if kind == "plain":
        return rest[0]
    if kind == "twin":
        return Twin(rest[0], _read(rest[1], targets))
    if kind == "shown":
        of_input, number, sizes, strides, offset = rest
        return Shown(of_input, number, Layout(tuple(sizes), tuple(strides)), offset)
    dtype, sizes, strides, node, copied = rest
    layout = Layout(tuple(sizes), tuple(strides))
    own = getattr(torch, dtype.removeprefix("torch."))
    return Made(layout, own, None if node is None else targets[node], copied)
