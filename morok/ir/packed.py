"""Graphs as plain lists, for files: what is alike is written once, and reading makes the very same nodes.

    ops, types, args    texts, each once; arguments and types are written as in `python_form.py`
    nodes               [op, type, arg, *sources] by number, sources first
    roots               numbers of nodes

Nothing is run to read them, and a form that is not understood is a ParseError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok.ir.args import write_arg, write_dtype
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import op_by_name
from morok.ir.provenance import Origin
from morok.ir.python_form import parse_values


def pack(roots: Sequence[UOp]) -> dict[str, Any]:
    """The graphs under some nodes as plain values."""
    ops: dict[str, int] = {}
    types: dict[str, int] = {}
    args: dict[str, int] = {}
    number: dict[UOp, int] = {}
    nodes: list[list[int]] = []
    for node in toposort(*roots):
        number[node] = len(nodes)
        nodes.append(
            [
                ops.setdefault(node.op.name, len(ops)),
                types.setdefault(write_dtype(node.dtype), len(types)),
                args.setdefault(write_arg(node.arg), len(args)),
                *[number[s] for s in node.src],
            ]
        )
    return {
        "ops": list(ops),
        "types": list(types),
        "args": list(args),
        "nodes": nodes,
        "roots": [number[root] for root in roots],
    }


def unpack(packed: dict[str, Any], origin: Origin | None = None) -> list[UOp]:
    """The roots of what `pack` has written. Nodes that did not exist come from `origin`."""
    ops = [op_by_name(name) for name in packed["ops"]]
    values = parse_values((*packed["types"], *packed["args"]))
    types, args = values[: len(packed["types"])], values[len(packed["types"]) :]
    nodes: list[UOp] = []
    for op, dtype, arg, *sources in packed["nodes"]:
        nodes.append(make(ops[op], types[dtype], tuple([nodes[s] for s in sources]), args[arg], origin))
    return [nodes[root] for root in packed["roots"]]
