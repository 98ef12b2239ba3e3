"""`docs/ops.md`, generated from the op table; a test fails when the two differ."""

from __future__ import annotations

from morok.dtype import ALL_SCALARS, DType
from morok.ir.arithmetic.alu import defined
from morok.ir.ops import ALL_OPS, VARIADIC, Op, ops_by_group

_HEAD = """\
# Ops

Generated from `morok/ir/ops.py` and `morok/ir/arithmetic/alu.py` by `python -m morok docs`; edit those files
instead.

A node is an op, a dtype, sources and an argument (`arg`). There are {count} ops. The exact meaning of the
arithmetic ones, with wrap-around, division by zero, shifts, rounding and casts, is written at the top of
`morok/ir/arithmetic/alu.py`.
"""
_FAMILIES: tuple[tuple[str, tuple[DType, ...]], ...] = (
    ("bool", tuple(t for t in ALL_SCALARS if t.is_bool)),
    ("index", tuple(t for t in ALL_SCALARS if t.is_index)),
    ("int", tuple(t for t in ALL_SCALARS if t.is_bounded_int)),
    ("float", tuple(t for t in ALL_SCALARS if t.is_float)),
)


def ops_page() -> str:
    """The page as Markdown."""
    lines = [_HEAD.format(count=len(ALL_OPS))]
    for group, ops in ops_by_group():
        arithmetic = ops[0].is_alu
        lines.append(f"## {group.value}\n")
        lines.append("| op | sources | on | meaning |" if arithmetic else "| op | sources | meaning |")
        lines.append("|---|---|---|---|" if arithmetic else "|---|---|---|")
        lines += (_row(op) for op in ops)
        lines.append("")
    return "\n".join(lines)


def _row(op: Op) -> str:
    sources = "any" if op.arity == VARIADIC else str(op.arity)
    meaning = op.meaning.replace("|", "\\|") + (" *(commutative)*" if op.commutative else "")
    cells = [f"`{op.name}`", sources, *([_families(op)] if op.is_alu else []), meaning]
    return f"| {' | '.join(cells)} |"


def _families(op: Op) -> str:
    """The families of types that an op is defined on; single types where it is not the whole family."""
    words = []
    for name, members in _FAMILIES:
        on = [t for t in members if defined(op, t)]
        words += [name] if len(on) == len(members) else [str(t) for t in on]
    return ", ".join(words)
