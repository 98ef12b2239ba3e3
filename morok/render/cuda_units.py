"""Hardware ops in CUDA C: matrix units, fragments, asynchronous copies, barriers with phases.

`UNITS` has a function per op that writes it: it gets the writer and the node, puts lines with `writer.put`,
and enters the lanes of the result in `writer.values`. Operands are `writer.lanes(source)`; an address is
`writer.addresses[index]`. What the same op means is in `device/emulator_units.py`.

Elements narrower than 32 bits travel in words, as PTX wants them. A lane of such a word has a text that says
which part of which word it is, so that whole words are found again without packing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from morok.dtype import DType
from morok.errors import CompileError
from morok.ir.matrix import MatrixUnit, Rows
from morok.ir.node import UOp
from morok.ir.ops import Op, Ops
from morok.ir.provenance import place
from morok.render.cuda_types import type_name

if TYPE_CHECKING:
    from morok.render.cuda import Writer

_PART = re.compile(r"^\(unsigned (?:short|char)\)\((w\d+) >> (\d+)\)$")


# --- lanes in words


def _parts(words: list[str], dtype: DType) -> list[str]:
    """The lanes of words, as texts."""
    bits = dtype.scalar.bits
    if bits == 32:
        as_float = dtype.scalar.is_float
        return [f"__uint_as_float({w})" if as_float else f"({type_name(dtype)}){w}" for w in words]
    name = "unsigned short" if bits == 16 else "unsigned char"
    return [f"({name})({w} >> {k * bits})" for w in words for k in range(32 // bits)]


def _words(lanes: list[str], dtype: DType) -> list[str]:
    """The words that lanes fill; whole words are taken as they are."""
    bits = dtype.scalar.bits
    if bits == 32:
        bare = r"^__uint_as_float\((w\d+)\)$"
        whole = [re.match(bare, x) for x in lanes]
        kind = "__float_as_uint({})" if dtype.scalar.is_float else "(unsigned){}"
        return [m.group(1) if m else kind.format(x) for m, x in zip(whole, lanes, strict=True)]
    per_word = 32 // bits
    unsigned = "unsigned short" if bits == 16 else "unsigned char"
    out = []
    for start in range(0, len(lanes), per_word):
        part = lanes[start : start + per_word]
        found = [m.groups() for x in part if (m := _PART.match(x))]
        if found == [(found[0][0], str(k * bits)) for k in range(per_word)] if found else False:
            out.append(found[0][0])
        else:
            shifted = [f"((unsigned)({unsigned})({x}) << {k * bits})" for k, x in enumerate(part)]
            out.append(f"({' | '.join(shifted)})")
    return out


def _fresh_words(writer: Writer, count: int) -> list[str]:
    names = []
    for _ in range(count):
        writer.count += 1
        names.append(f"w{writer.count}")
    writer.put(f"unsigned {', '.join(names)};")
    return names


def _shared_address(writer: Writer, address: UOp) -> str:
    memory, where = writer.addresses[address]
    return f"(unsigned)__cvta_generic_to_shared({memory} + {where})"


# --- the ops


def write_rows(writer: Writer, node: UOp) -> None:
    """LDMATRIX: 8×8 matrices of 16-bit elements out of shared memory."""
    rows: Rows = node.arg
    names = _fresh_words(writer, rows.count)
    outputs = ", ".join(f'"=r"({n})' for n in names)
    holes = ", ".join(f"%{i}" for i in range(rows.count))
    turned = ".trans" if rows.turned else ""
    writer.put(
        f'asm volatile("ldmatrix.sync.aligned.m8n8.x{rows.count}{turned}.shared.b16 {{{holes}}}, '
        f'[%{rows.count}];" : {outputs} : "r"({_shared_address(writer, node.src[0])}) : "memory");'
    )
    writer.values[node] = _parts(names, node.dtype)


def write_product(writer: Writer, node: UOp) -> None:
    """WMMA: one instruction of the warp."""
    unit = node.arg
    if not isinstance(unit, MatrixUnit):
        raise CompileError(f"CUDA C knows no matrix unit {unit}", place=place(node))
    kind = unit.name.split(".")[1]
    wide, letter = ("s32", "r") if unit.output.is_int else ("f32", "f")
    a = _words(writer.lanes(node.src[0]), unit.inputs)
    b = _words(writer.lanes(node.src[1]), unit.inputs)
    c = writer.lanes(node.src[2])
    names = [writer.fresh() for _ in c]
    writer.put(f"{type_name(unit.output)} {', '.join(names)};")
    holes, start = [], 0
    for count in (len(c), len(a), len(b), len(c)):
        holes.append("{" + ", ".join(f"%{start + i}" for i in range(count)) + "}")
        start += count
    outputs = ", ".join(f'"={letter}"({n})' for n in names)
    inputs = ", ".join([*(f'"r"({w})' for w in (*a, *b)), *(f'"{letter}"({x})' for x in c)])
    shape = f"m{unit.m}n{unit.n}k{unit.k}"
    writer.put(
        f'asm("mma.sync.aligned.{shape}.row.col.{wide}.{kind}.{kind}.{wide} {", ".join(holes)};" '
        f": {outputs} : {inputs});"
    )
    writer.values[node] = names


def write_copy(writer: Writer, node: UOp) -> None:
    """ASYNC_COPY: a chunk from global to shared memory; zeros where the gate is false."""
    target, source = node.src
    memory, where = writer.addresses[source]
    nbytes = node.arg
    cache = "cg" if nbytes == 16 else "ca"
    given = f'"r"({_shared_address(writer, target)}), "l"({memory} + {where})'
    if len(source.src) > 2:
        gate = writer.scalar(source.src[2])
        writer.put(
            f'asm volatile("cp.async.{cache}.shared.global [%0], [%1], {nbytes}, %2;" '
            f': : {given}, "r"({gate} ? {nbytes} : 0) : "memory");'
        )
    else:
        writer.put(
            f'asm volatile("cp.async.{cache}.shared.global [%0], [%1], {nbytes};" : : {given} : "memory");'
        )


def write_commit(writer: Writer, node: UOp) -> None:
    """ASYNC_COMMIT."""
    writer.put('asm volatile("cp.async.commit_group;" : : : "memory");')


def write_wait(writer: Writer, node: UOp) -> None:
    """ASYNC_WAIT."""
    writer.put(f'asm volatile("cp.async.wait_group {node.arg};" : : : "memory");')


UNITS: dict[Op, Callable[[Writer, UOp], None]] = {
    Ops.LDMATRIX: write_rows,
    Ops.WMMA: write_product,
    Ops.ASYNC_COPY: write_copy,
    Ops.ASYNC_COMMIT: write_commit,
    Ops.ASYNC_WAIT: write_wait,
}
