"""The one IR: ops, nodes, their meaning, what can be inferred about them, and how they are written down.

Functions that are called like their module (`bounds`, `digest`, `alu`) are imported from the module.
"""

from morok.ir.args import register_arg
from morok.ir.arithmetic.alu import MEANING, evaluate, evaluate_array
from morok.ir.bounds import vmax, vmin
from morok.ir.digest import hexdigest
from morok.ir.infer import numel, ranges, shape, sorted_ranges
from morok.ir.node import UOp, const, live_nodes, make, toposort, users
from morok.ir.ops import ALL_OPS, ALU, AxisKind, Group, Op, Ops
from morok.ir.provenance import Origin, history, place
from morok.ir.text import expr, parse, to_python, tree

__all__ = [
    "ALL_OPS", "ALU", "AxisKind", "Group", "Op", "Ops",
    "UOp", "const", "live_nodes", "make", "toposort", "users",
    "MEANING", "evaluate", "evaluate_array",
    "vmax", "vmin", "numel", "ranges", "shape", "sorted_ranges", "hexdigest",
    "expr", "parse", "register_arg", "to_python", "tree",
    "Origin", "history", "place",
]  # fmt: skip
