"""TILE_PRODUCT in LLVM IR: x86's AMX, whose registers hold tiles of 16 rows of 64 bytes.

A product is a function of the module, written once for its sizes. It goes over the result in blocks that the
registers hold and walks all steps for each. How the registers are divided into rows is said once per call of
the kernel. Text for processors without such a unit has plain loops in the place of these functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from morok.dtype import int8
from morok.errors import CompileError
from morok.ir.matrix import TILE_UNITS, TileProduct
from morok.ir.node import UOp
from morok.ir.provenance import place
from morok.render.llvm.types import type_name
from morok.render.llvm.writer import Writer

_INSTRUCTIONS = {"tile.bf16": "tdpbf16ps", "tile.s8": "tdpbssd"}
_ROW_BYTES = 64
_ROWS = 16
_TILES = 8
_DECLARED = (
    "declare void @llvm.x86.ldtilecfg(ptr)",
    "declare void @llvm.x86.tilerelease()",
    "declare void @llvm.x86.tilezero(i8 immarg)",
    "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
    "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
)


def tile_product(writer: Writer, node: UOp) -> None:
    """A call of the function that computes it."""
    how = _in_bytes(node.arg)
    if writer.arch != "x86_64" or how.unit.name not in _INSTRUCTIONS:
        raise CompileError(f"{writer.arch!r} has no unit {how.unit.name}", place=place(node))
    name = writer.tile_products.get(how)
    if name is None:
        name = writer.tile_products[how] = f"@{writer.name}.tiles{len(writer.tile_products)}"
        instruction = f"llvm.x86.{_INSTRUCTIONS[how.unit.name]}"
        for line in (*_DECLARED, f"declare void @{instruction}(i8 immarg, i8 immarg, i8 immarg)"):
            writer.declared[line] = None
        if len(writer.tile_products) == 1:
            writer.declared[f"@{writer.name}.tiles = internal constant {_shapes()}, align 64"] = None
        writer.declared["\n".join((_title(how, name), *_function(how, instruction), "}"))] = None
    given = ", ".join(f"ptr {writer.name_of(s)}" for s in node.src)
    writer.put(f"call void {name}({given})")


def _in_bytes(how: TileProduct) -> TileProduct:
    """Words as the bytes that they are."""
    if not how.unit.words:
        return how
    unit = next(u for u in TILE_UNITS if u.inputs is int8)
    return TileProduct(unit, how.rows, how.columns, how.steps * unit.steps, how.stride * unit.steps)


def configured(writer: Writer) -> tuple[list[str], list[str]]:
    """What comes before and after a kernel that has such products."""
    if not writer.tile_products:
        return [], []
    begin = f"  call void @llvm.x86.ldtilecfg(ptr @{writer.name}.tiles)"
    return [begin], ["  call void @llvm.x86.tilerelease()"]


def _shapes() -> str:
    """Rows and bytes per row of all registers, as LDTILECFG reads them."""
    table = [1, *[0] * 15, *[_ROW_BYTES, 0] * _TILES, *[0] * 16, *[_ROWS] * _TILES, *[0] * 8]
    return f"[64 x i8] [{', '.join(f'i8 {n}' for n in table)}]"


def _title(how: TileProduct, name: str) -> str:
    """The first lines; from the comment the same function can be written for other processors."""
    sizes = f"{how.unit.name} {how.rows} {how.columns} {how.steps} {how.stride}"
    return f"; tiles {sizes}\ndefine internal void {name}(ptr %c, ptr %a, ptr %b) #0 {{\nentry:"


def blocks(rows: int, columns: int, registers: int) -> tuple[int, int]:
    """Tiles of a block: all of them accumulate, those along one side are kept, of the other one at least."""
    choices = [
        (m, n)
        for m in range(1, rows + 1)
        for n in range(1, columns + 1)
        if rows % m == 0 and columns % n == 0 and m * n + min(m, n) + 1 <= registers
    ]
    return min(choices, key=lambda c: (1 / c[0] + 1 / c[1], c))


def _function(how: TileProduct, instruction: str) -> Iterator[str]:
    unit, size = how.unit, how.unit.inputs.itemsize
    tiles = how.rows // unit.m, how.columns // unit.n
    m, n = blocks(*tiles, unit.registers)
    left, right, result = how.stride * size, how.columns * unit.steps * size, how.columns * 4
    before = "entry"
    for number in range(tiles[0] // m * (tiles[1] // n)):
        i, j = divmod(number, tiles[1] // n)
        a, b = i * m * unit.m * left, j * n * _ROW_BYTES
        yield from (f"  call void @llvm.x86.tilezero(i8 {t})" for t in range(m * n))
        yield f"  br label %steps{number}"
        yield f"steps{number}:"
        yield f"  %k{number} = phi i64 [ 0, %{before} ], [ %next{number}, %steps{number} ]"
        yield f"  %a{number} = mul i64 %k{number}, {unit.k * size}"
        yield f"  %b{number} = mul i64 %k{number}, {unit.k // unit.steps * right}"
        yield from _step((m, n), number, (a, b), (left, right), instruction, unit.registers)
        yield f"  %next{number} = add i64 %k{number}, 1"
        yield f"  %more{number} = icmp ult i64 %next{number}, {how.steps // unit.k}"
        yield f"  br i1 %more{number}, label %steps{number}, label %done{number}"
        yield f"done{number}:"
        before = f"done{number}"
        for t in range(m * n):
            at = (i * m + t // n) * unit.m * result + (j * n + t % n) * unit.n * 4
            yield f"  %c{number}.{t} = getelementptr i8, ptr %c, i64 {at}"
            yield f"  call void @llvm.x86.tilestored64(i8 {t}, ptr %c{number}.{t}, i64 {result})"
    yield "  ret void"


def _step(
    shape: tuple[int, int],
    number: int,
    starts: tuple[int, int],
    strides: tuple[int, int],
    instruction: str,
    most: int,
) -> Iterator[str]:
    """One tile of steps: the tiles of the shorter side are loaded, and those of the other one by one."""
    m, n = shape

    def load(side: int, t: int, register: int) -> Iterator[str]:
        name = f"%{'ab'[side]}{number}"
        far = starts[side] + (t * _ROWS * strides[0] if side == 0 else t * _ROW_BYTES)
        yield f"  {name}.{t}.at = add i64 {name}, {far}"
        yield f"  {name}.{t} = getelementptr i8, ptr %{'ab'[side]}, i64 {name}.{t}.at"
        yield f"  call void @llvm.x86.tileloadd64(i8 {register}, ptr {name}.{t}, i64 {strides[side]})"

    kept = 0 if m <= n else 1
    few, many = (m, n) if kept == 0 else (n, m)
    for t in range(few):
        yield from load(kept, t, m * n + t)
    left = most - m * n - few
    for t in range(many):
        register = m * n + few + t % left
        yield from load(1 - kept, t, register)
        for other in range(few):
            row, column = (other, t) if kept == 0 else (t, other)
            pair = (m * n + other, register) if kept == 0 else (register, m * n + other)
            yield f"  call void @{instruction}(i8 {row * n + column}, i8 {pair[0]}, i8 {pair[1]})"


# --- for processors without it

_WRITTEN = re.compile(r"^; tiles (\S+) (\d+) (\d+) (\d+) (\d+)\n(define [^\n]*\nentry:\n).*?^}$", re.M | re.S)
_ONLY_HERE = re.compile(r"^(declare|  call) void @llvm\.x86\.(ldtilecfg|tile|tdp)[^\n]*\n", re.M)


def portable_tiles(text: str) -> str:
    """The text of a kernel with plain loops in the place of tiles."""
    return _ONLY_HERE.sub("", _WRITTEN.sub(_plain, text)) if _WRITTEN.search(text) else text


def _plain(found: re.Match[str]) -> str:
    unit = next(u for u in TILE_UNITS if u.name == found[1])
    rows, columns, steps, stride = (int(found[n]) for n in range(2, 6))
    here, total = type_name(unit.inputs), type_name(unit.output)
    is_float = unit.output.is_float
    lines = [found[6] + "  br label %outputs"]
    lines += [
        "outputs:",
        "  %o = phi i64 [ 0, %entry ], [ %o.next, %done ]",
        f"  %i = udiv i64 %o, {columns}",
        f"  %j = urem i64 %o, {columns}",
        "  br label %steps",
        "steps:",
        "  %k = phi i64 [ 0, %outputs ], [ %k.next, %steps ]",
        f"  %s = phi {total} [ {'0.0' if is_float else '0'}, %outputs ], [ %s.next, %steps ]",
        f"  %a.row = mul i64 %i, {stride}",
        "  %a.at = add i64 %a.row, %k",
        f"  %a.p = getelementptr {here}, ptr %a, i64 %a.at",
        f"  %x = load {here}, ptr %a.p",
        f"  %k.group = udiv i64 %k, {unit.steps}",
        f"  %k.beside = urem i64 %k, {unit.steps}",
        f"  %b.group = mul i64 %k.group, {columns * unit.steps}",
        f"  %b.column = mul i64 %j, {unit.steps}",
        "  %b.row = add i64 %b.group, %b.column",
        "  %b.at = add i64 %b.row, %k.beside",
        f"  %b.p = getelementptr {here}, ptr %b, i64 %b.at",
        f"  %y = load {here}, ptr %b.p",
        f"  %xx = {'fpext' if is_float else 'sext'} {here} %x to {total}",
        f"  %yy = {'fpext' if is_float else 'sext'} {here} %y to {total}",
        f"  %p = {'fmul' if is_float else 'mul'} {total} %xx, %yy",
        f"  %s.next = {'fadd' if is_float else 'add'} {total} %s, %p",
        "  %k.next = add i64 %k, 1",
        f"  %k.more = icmp ult i64 %k.next, {steps}",
        "  br i1 %k.more, label %steps, label %done",
        "done:",
        f"  %c.p = getelementptr {total}, ptr %c, i64 %o",
        f"  store {total} %s.next, ptr %c.p",
        "  %o.next = add i64 %o, 1",
        f"  %o.more = icmp ult i64 %o.next, {rows * columns}",
        "  br i1 %o.more, label %outputs, label %out",
        "out:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)
