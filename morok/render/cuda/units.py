"""Hardware ops in CUDA C: matrix units, fragments, asynchronous copies, mbarriers.

`UNITS` has a function per op that writes it: it gets the writer and the node, puts lines with `writer.put`,
and enters the lanes of the result in `writer.values`. Operands are `writer.lanes(source)`; an address is
`writer.addresses[index]`. What the same op means is in `device/emulator/units.py`.

Elements narrower than 32 bits travel in words, as PTX wants them. A lane of such a word has a text that says
which part of which word it is, so that whole words are found again without packing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from morok.dtype import DType, PtrDType
from morok.errors import CompileError
from morok.ir.matrix import MatrixUnit, Panels, Products, Rows
from morok.ir.node import UOp
from morok.ir.ops import Op, Ops
from morok.ir.provenance import place
from morok.render.cuda.fused import write_fused
from morok.render.cuda.mbarriers import write_box
from morok.render.cuda.types import type_name
from morok.render.cuda.writer import Writer

UNIT_BYTES = 16  # of a step of an address in a description
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


def _words(writer: Writer, lanes: list[str], dtype: DType) -> list[str]:
    """The words that lanes fill; whole words are taken as they are."""
    bits = dtype.scalar.bits
    if bits == 32:
        bare = r"^__uint_as_float\((w\d+)\)$"
        whole = [re.match(bare, x) for x in lanes]
        kind = "__float_as_uint({})" if dtype.scalar.is_float else "(unsigned){}"
        return [m.group(1) if m else kind.format(x) for m, x in zip(whole, lanes, strict=True)]
    per_word = 32 // bits
    out = []
    for start in range(0, len(lanes), per_word):
        part = lanes[start : start + per_word]
        found = [m.groups() for x in part if (m := _PART.match(x))]
        if found == [(found[0][0], str(k * bits)) for k in range(per_word)] if found else False:
            out.append(found[0][0])
        else:
            out.append(f"({writer.word(part, dtype)})")
    return out


def _fresh_words(writer: Writer, count: int) -> list[str]:
    names = []
    for _ in range(count):
        writer.count += 1
        names.append(f"w{writer.count}")
    writer.put(f"unsigned {', '.join(names)};")
    return names


SHARED_BYTES = 1 << 18  # that the address in a tile's description can name


def _shared_address(writer: Writer, address: UOp) -> str:
    memory, where = writer.addresses[address]
    return f"(unsigned)__cvta_generic_to_shared({memory} + {where})"


# --- the ops


def write_rows(writer: Writer, node: UOp) -> None:
    """LDMATRIX: 8×8 matrices of 16-bit elements out of shared memory; or what a unit must know of a tile."""
    rows: Rows | Panels = node.arg
    if isinstance(rows, Panels) and rows.by_threads:
        writer.values[node] = ["({} + {})".format(*writer.addresses[node.src[0]])]
        return
    if isinstance(rows, Panels):
        writer.values[node] = [_description(writer, node, rows)]
        return
    names = _fresh_words(writer, rows.count)
    outputs = ", ".join(f'"=r"({n})' for n in names)
    holes = ", ".join(f"%{i}" for i in range(rows.count))
    transposed = ".trans" if rows.transposed else ""
    writer.put(
        f'asm volatile("ldmatrix.sync.aligned.m8n8.x{rows.count}{transposed}.shared.b16 {{{holes}}}, '
        f'[%{rows.count}];" : {outputs} : "r"({_shared_address(writer, node.src[0])}) : "memory");'
    )
    writer.values[node] = _parts(names, node.dtype)


def _description(writer: Writer, node: UOp, panels: Panels) -> str:
    """The 64 bits that describe a tile to a warp group's unit: address, distances, swizzle of 128 bytes.

    The address, in units of 16 bytes, is in the lower half, and never reaches what is above it there. So
    tiles that differ by a constant differ by one addition of 32 bits.
    """
    lead = panels.lead if panels.transposed else 16
    index = node.src[0]
    memory, where = writer.addresses[index]
    assert isinstance(index.src[0].dtype, PtrDType)
    low, offset, size = lead >> 4 << 16, index.src[1], index.src[0].dtype.elem.itemsize
    known = offset.src[1] if offset.op is Ops.ADD else offset
    if known.op is Ops.CONST and known.arg * size % UNIT_BYTES == 0:
        low += known.arg * size // UNIT_BYTES
        where = "0" if known is offset else writer.scalar(offset.src[0])
    high = panels.stride >> 4 | 1 << 30
    address = f"(unsigned)__cvta_generic_to_shared({memory} + {where})"
    if writer.cluster > 1:  # which block of the cluster it is in stands above
        address = f"({address} & {SHARED_BYTES - 1:#x})"
    return writer.let(node.dtype, f"{high:#x}ull << 32 | (({address} >> 4) + {low:#x}u)")


def is_zero(x: UOp) -> bool:
    """Whether all lanes of a value are the constant 0."""
    if x.op is Ops.CONST:
        return float(x.arg) == 0.0 and math.copysign(1.0, x.arg) > 0.0
    return x.op in (Ops.VECTORIZE, Ops.CAT, Ops.GEP) and all(map(is_zero, x.src))


def _write_wgmma(writer: Writer, node: UOp, unit: MatrixUnit) -> None:
    """WMMA of a warp group: operands are read from shared memory while the threads go on.

    The left one may be in registers: nobody may change these until the products are waited for.
    """
    kind = unit.name.split(".")[1]
    wide, letter = ("s32", "r") if unit.output.is_int else ("f32", "f")
    in_tiles = "a" in unit.shared
    a = [writer.scalar(node.src[0])] if in_tiles else _words(writer, writer.lanes(node.src[0]), unit.inputs)
    b = writer.scalar(node.src[1])
    c = writer.lanes(node.src[2])
    names = [writer.fresh() for _ in c]
    fresh = is_zero(node.src[2])  # then nothing is added, and no register has to be cleared
    starts = ", ".join(n if fresh else f"{n} = {x}" for n, x in zip(names, c, strict=True))
    writer.put(f"{type_name(unit.output)} {starts};")
    holes = ", ".join(f"%{i}" for i in range(len(c)))
    last = len(c)
    flags = "p" if unit.output.is_int else "p, 1, 1"
    if unit.inputs.itemsize == 2:
        tiles = node.src[:2] if in_tiles else node.src[1:2]
        flags += "".join(f", {int(s.arg.transposed) if isinstance(s.arg, Panels) else 0}" for s in tiles)
    left = ", ".join(f"%{last + i}" for i in range(len(a)))
    shape = f"m{unit.m}n{unit.n}k{unit.k}"
    operation = f"wgmma.mma_async.sync.aligned.{shape}.{wide}.{kind}.{kind}"
    adds = "ne" if fresh else "eq"
    outputs = ", ".join(f'"{"=" if fresh else "+"}{letter}"({n})' for n in names)
    inputs = ", ".join(f'"{"l" if in_tiles else "r"}"({x})' for x in a)
    writer.put(
        f'asm volatile("{{ .reg .pred p; setp.{adds}.b32 p, 0, 0; {operation} {{{holes}}}, '
        f'{left if in_tiles else f"{{{left}}}"}, %{last + len(a)}, {flags}; }}" '
        f': {outputs} : {inputs}, "l"({b}));'
    )
    writer.values[node] = names


def write_product(writer: Writer, node: UOp) -> None:
    """WMMA: one instruction of the warp."""
    unit = node.arg
    if not isinstance(unit, MatrixUnit):
        raise CompileError(f"CUDA C knows no matrix unit {unit}", place=place(node))
    if unit.fused:
        write_fused(writer, node, unit)
        return
    if unit.shared:
        _write_wgmma(writer, node, unit)
        return
    kind = unit.name.split(".")[1]
    wide, letter = ("s32", "r") if unit.output.is_int else ("f32", "f")
    a = _words(writer, writer.lanes(node.src[0]), unit.inputs)
    b = _words(writer, writer.lanes(node.src[1]), unit.inputs)
    c = writer.lanes(node.src[2])
    names = [writer.fresh() for _ in c]
    writer.put(f"{type_name(unit.output)} {', '.join(names)};")
    holes, start = [], 0
    for count in (len(c), len(a), len(b), len(c)):
        holes.append("{" + ", ".join(f"%{start + i}" for i in range(count)) + "}")
        start += count
    outputs = ", ".join(f'"={letter}"({n})' for n in names)
    inputs = ", ".join([*(f'"r"({w})' for w in (*a, *b)), *(f'"{letter}"({x})' for x in c)])
    shape = f"m{unit.m}n{unit.n}k{unit.in_word * unit.k}"
    writer.put(
        f'asm("mma.sync.aligned.{shape}.row.col.{wide}.{kind}.{kind}.{wide} {", ".join(holes)};" '
        f": {outputs} : {inputs});"
    )
    writer.values[node] = names


def write_copy(writer: Writer, node: UOp) -> None:
    """ASYNC_COPY: a chunk from global to shared memory; zeros where the source's gate is false."""
    if len(node.src) > 2:
        write_box(writer, node)
        return
    target, source = node.src
    memory, where = writer.addresses[source]
    nbytes = node.arg
    text = f"cp.async.{'cg' if nbytes == 16 else 'ca'}.shared.global [%0], [%1], {nbytes}"
    given = [f'"r"({_shared_address(writer, target)})', f'"l"({memory} + {where})']
    if len(source.src) > 2:
        text += f", %{len(given)}"
        given.append(f'"r"({writer.scalar(source.src[2])} ? {nbytes} : 0)')
    text += ";"
    if len(target.src) > 2:  # a predicate, not a branch: addresses are computed outside of loops all the same
        text = f"{{ .reg .pred p; setp.ne.u32 p, %{len(given)}, 0; @p {text} }}"
        given.append(f'"r"((unsigned){writer.scalar(target.src[2])})')
    writer.put(f'asm volatile("{text}" : : {", ".join(given)} : "memory");')


def write_commit(writer: Writer, node: UOp) -> None:
    """ASYNC_COMMIT."""
    group = "wgmma.commit_group.sync.aligned" if isinstance(node.arg, Products) else "cp.async.commit_group"
    writer.put(f'asm volatile("{group};" : : : "memory");')


def write_wait(writer: Writer, node: UOp) -> None:
    """ASYNC_WAIT."""
    if isinstance(node.arg, Products):
        writer.put(f'asm volatile("wgmma.wait_group.sync.aligned {node.arg.pending};" : : : "memory");')
    else:
        writer.put(f'asm volatile("cp.async.wait_group {node.arg};" : : : "memory");')


def write_fence(writer: Writer, node: UOp) -> None:
    """FENCE: of shared memory, or of the registers that units take over."""
    shared = isinstance(node.arg, Products)
    kind = "fence.proxy.async.shared::cta" if shared else "wgmma.fence.sync.aligned"
    writer.put(f'asm volatile("{kind};" : : : "memory");')


UNITS: dict[Op, Callable[[Writer, UOp], None]] = {
    Ops.LDMATRIX: write_rows,
    Ops.WMMA: write_product,
    Ops.ASYNC_COPY: write_copy,
    Ops.ASYNC_COMMIT: write_commit,
    Ops.ASYNC_WAIT: write_wait,
    Ops.FENCE: write_fence,
}
