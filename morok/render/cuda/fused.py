"""Tiles that a warp computes by fused products, in CUDA C: what `fma.*` of `ir/matrix.py` stand for.

A lane has eight rows, `lanes` apart, of some columns. The first product of a chain reads both operands out of
shared tiles, four steps at a time. The second one multiplies what the first has left: lanes hand that around
through memory of their warp, some columns at a time, each eight rows side by side.

Tiles lie in panels of 32 floats a row, whose chunks of four are exchanged by row, as for units.
"""

from __future__ import annotations

from morok.ir.matrix import FUSED_PASSED, FUSED_ROWS, FUSED_SIDE, MatrixUnit, Panels
from morok.ir.node import UOp
from morok.render.cuda.writer import Writer

CHUNK = 4  # floats of a vector
THREAD = "(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z))"
UNROLL = 4  # columns that are handed around in a turn of the loop
HELPERS = """\
__device__ __forceinline__ void read4(float* x, const float* p) {
  const float4 y = *(const float4*)p; x[0] = y.x; x[1] = y.y; x[2] = y.z; x[3] = y.w;
}
__device__ __forceinline__ void write4(float* p, const float* x) {
  *(float4*)p = make_float4(x[0], x[1], x[2], x[3]);
}"""


def write_fused(writer: Writer, node: UOp, unit: MatrixUnit) -> None:
    """WMMA by fused products: tiles of one left operand, the right ones first and last of the sources."""
    writer.helper(HELPERS)
    others = (node.src[1], *node.src[3:])
    names = [writer.fresh() for _ in range(node.dtype.lanes)]
    writer.put(f"float {', '.join(names)};")
    writer.put("{")
    writer.put(
        f"  const int lane = {THREAD} % 32, row = lane / {unit.across}, column = lane % {unit.across};"
    )
    right = ", ".join(writer.scalar(b) for b in others)
    writer.put(f"  const float* const right[] = {{{right}}};")
    writer.put(f"  float x[{len(names)}] = {{{', '.join(writer.lanes(node.src[2]))}}};")
    lines = _first(writer, node, unit) if "a" in unit.shared else _second(writer, node, unit)
    for line in lines:
        writer.put(f"  {line}")
    writer.put("  " + " ".join(f"{n} = x[{i}];" for i, n in enumerate(names)))
    writer.put("}")
    writer.values[node] = names


def _is_turned(operand: UOp) -> bool:
    assert isinstance(operand.arg, Panels)
    return operand.arg.transposed


def _place(row: str, chunk: str) -> str:
    """The place of a chunk in a panel."""
    return f"({row}) * {FUSED_SIDE} + ((({chunk}) ^ (({row}) & 7)) << 2)"


def _first(writer: Writer, node: UOp, unit: MatrixUnit) -> list[str]:
    lanes = unit.across
    high, mine = unit.m // FUSED_ROWS, unit.n // lanes
    a, others = node.src[0], (node.src[1], *node.src[3:])
    r, c = f"row + {high} * i", f"column + {lanes} * j"
    lines = [f"const float* left = {writer.scalar(a)};"]
    if _is_turned(a):  # a tile may begin within a panel
        lines.append("const int within = (int)((size_t)left >> 4 & 7); left -= 4 * within;")
    lines += [
        "#pragma unroll 1",
        f"for (int s = 0; s < {FUSED_SIDE // CHUNK}; ++s) {{",
        f"  float a[{FUSED_ROWS}][4];",
        "  #pragma unroll",
        f"  for (int i = 0; i < {FUSED_ROWS}; ++i)",
    ]
    lines += _four_steps("a[i]", "left", r, _is_turned(a), f"within + (({r}) >> 2)")
    for t, b in enumerate(others):
        lines += ["  #pragma unroll", f"  for (int j = 0; j < {mine}; ++j) {{", "    float b[4];"]
        lines += _four_steps("b", f"right[{t}]", c, _is_turned(b), f"({c}) >> 2")
        lines += [
            "    #pragma unroll",
            "    for (int e = 0; e < 4; ++e)",
            "      #pragma unroll",
            f"      for (int i = 0; i < {FUSED_ROWS}; ++i) {{",
            f"        float& y = x[{t * unit.c.registers} + i * {mine} + j];",
            "        y = __fmaf_rn(a[i][e], b[e], y);",
            "      }",
            "  }",
        ]
    return [*lines, "}"]


def _four_steps(target: str, panel: str, outer: str, turned: bool, chunk: str) -> list[str]:
    """Four steps of a row or a column: a vector, where tiles lie along the steps."""
    if not turned:
        return [f"    read4({target}, {panel} + {_place(outer, 's')});"]
    place = f"{_place('4 * s + e', chunk)} + (({outer}) & 3)"
    return ["    #pragma unroll", f"    for (int e = 0; e < 4; ++e) {target}[e] = {panel}[{place}];"]


def _second(writer: Writer, node: UOp, unit: MatrixUnit) -> list[str]:
    lanes = unit.across
    mine = unit.n // lanes
    others = (node.src[1], *node.src[3:])
    count = max(FUSED_PASSED, lanes)
    writer.passed = max(writer.passed, unit.passed)
    pitch = unit.pitch
    lines = [
        f"const float held[] = {{{', '.join(writer.lanes(node.src[0]))}}};",
        f"float* const own = passed + {THREAD} / 32 * {unit.passed};",
        "#pragma unroll",
        f"for (int part = 0; part < {FUSED_SIDE // count}; ++part) {{",
        "  __syncwarp();",
        "  #pragma unroll",
        f"  for (int j = 0; j < {count // lanes}; ++j) {{",
        f"    float y[{FUSED_ROWS}];",
        "    #pragma unroll",
        f"    for (int i = 0; i < {FUSED_ROWS}; ++i) y[i] = held[i * {mine} + part * {count // lanes} + j];",
        f"    float* const p = own + (j * {lanes} + column) * {pitch} + row * {FUSED_ROWS};",
        "    write4(p, y); write4(p + 4, y + 4);",
        "  }",
        "  __syncwarp();",
        f"  #pragma unroll {UNROLL}",
        f"  for (int s = 0; s < {count}; ++s) {{",
        f"    float a[{FUSED_ROWS}];",
        f"    const float* const p = own + s * {pitch} + row * {FUSED_ROWS};",
        "    read4(a, p); read4(a + 4, p + 4);",
        f"    const int step = part * {count} + s;",
    ]
    for t, b in enumerate(others):
        lines += [f"    {{ float b[{mine}];", *_columns(f"right[{t}]", mine, _is_turned(b))]
        lines += [
            "    #pragma unroll",
            f"    for (int i = 0; i < {FUSED_ROWS}; ++i)",
            "      #pragma unroll",
            f"      for (int j = 0; j < {mine}; ++j) {{",
            f"        float& y = x[{t * unit.c.registers} + i * {mine} + j];",
            "        y = __fmaf_rn(a[i], b[j], y);",
            "      } }",
        ]
    return [*lines, "  }", "}"]


def _columns(panel: str, mine: int, turned: bool) -> list[str]:
    """A lane's columns at one step: neighbours in memory, where tiles lie along the columns."""
    first = f"{mine} * column"
    if turned and mine == CHUNK:
        return [f"    read4(b, {panel} + {_place('step', 'column')});"]
    place = (
        f"{_place('step', f'({first} + j) >> 2')} + ({first} + j & 3)"
        if turned
        else f"{_place(f'{first} + j', 'step >> 2')} + (step & 3)"
    )
    return ["    #pragma unroll", f"    for (int j = 0; j < {mine}; ++j) b[j] = {panel}[{place}];"]
