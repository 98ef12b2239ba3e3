"""CUDA C of a whole block run on the host: threads of the processor are those of the block.

What warps do together by text rather than by an instruction, fused products for instance, the emulator
computes from its description; here the text itself is judged. Threads of a warp meet at __syncwarp and
shuffles, those of a block at __syncthreads; a copy is made when it is started.
"""

from __future__ import annotations

import ctypes
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from morok.render.program import Program

_PRELUDE = """
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
struct Place { int x, y, z; };
struct float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
static thread_local Place threadIdx, blockIdx;
static Place blockDim, gridDim;
static thread_local int number;
static std::unique_ptr<std::barrier<>> block;
static std::vector<std::unique_ptr<std::barrier<>>> warps;
static float exchanged[1024];
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline void __syncthreads() { block->arrive_and_wait(); }
static inline void __syncwarp() { warps[number / 32]->arrive_and_wait(); }
static inline float __shfl_sync(unsigned, float x, int lane, int width) {
  exchanged[number] = x; __syncwarp();
  float y = exchanged[number / width * width + lane % width]; __syncwarp(); return y; }
static inline float __shfl_xor_sync(unsigned m, float x, int bits, int width = 32) {
  return __shfl_sync(m, x, (number % width) ^ bits, width); }
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __uint_as_float(unsigned x) { float y; std::memcpy(&y, &x, 4); return y; }
static inline unsigned __float_as_uint(float x) { unsigned y; std::memcpy(&y, &x, 4); return y; }
static inline int __float_as_int(float x) { return (int)__float_as_uint(x); }
static inline float __int_as_float(int x) { return __uint_as_float((unsigned)x); }
static inline float most(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : a > b ? a : b; }
static inline float least(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : a < b ? a : b; }
"""
_SMALL = {  # helpers that are one instruction
    "max.NaN.f32": "y = most(a, b);",
    "min.NaN.f32": "y = least(a, b);",
    "ex2.approx.ftz.f32": "y = std::exp2(a);",
    "rcp.approx.ftz.f32": "y = 1 / a;",
}


def _operands(text: str) -> list[str]:
    """What stands in brackets behind the constraints of an asm statement."""
    found = []
    for start in (m.end() for m in re.finditer(r'"=?[a-z]"\(', text)):
        depth, end = 1, start
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        found.append(text[start : end - 1])
    return found


def _copy(line: str) -> str:
    """A copy into shared memory: less than all of it where the rest is zeros."""
    nbytes = re.findall(r"\[%1\], (\d+)(, %2)?", line)
    target, source, *more = _operands(line)
    target = target.removeprefix("(unsigned)__cvta_generic_to_shared(")[:-1]
    count, part = nbytes[0]
    condition = more.pop() if "@p" in line else "1"
    size = more[0] if part else count
    return (
        f"if ({condition}) {{ std::memset({target}, 0, {count}); std::memcpy({target}, {source}, {size}); }}"
    )


def _in_plain_c(program: Program) -> str:
    lines = []
    for line in program.text.splitlines():
        name = next((n for n in _SMALL if n in line), None)
        if name is not None:
            line = re.sub(r'asm( volatile)?\("[^"]*"[^;]*?\);', _SMALL[name], line.replace("%0, %1, %2;", ""))
        elif "cp.async.c" in line and "group" not in line:
            line = _copy(line)
        elif "asm volatile" in line:
            line = ""
        if "__shared__" in line:
            line = f"  static __align__(1024) unsigned char shared[{1 << 18}];"
        lines.append(line)
    return "\n".join(lines)


def run_on_host(program: Program, arrays: list[Any], folder: Path) -> None:
    """Runs a kernel on its arrays, block after block."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler on this machine")
    grid = [math.prod(axis) for axis in program.grid] + [1, 1, 1]
    block = [*program.block, 1, 1, 1]
    count = math.prod(program.block)
    given = ", ".join(f"(float*)g[{i}]" for i in range(len(arrays)))
    start = f"""
extern "C" void run(void** g) {{
  blockDim = {{{block[0]}, {block[1]}, {block[2]}}};
  for (int z = 0; z < {grid[2]}; z++) for (int y = 0; y < {grid[1]}; y++)
  for (int x = 0; x < {grid[0]}; x++) {{
    block = std::make_unique<std::barrier<>>({count});
    warps.clear();
    for (int w = 0; w < {count // 32}; w++) warps.push_back(std::make_unique<std::barrier<>>(32));
    std::vector<std::thread> all;
    for (int t = 0; t < {count}; t++) all.emplace_back([=] {{
      number = t; blockIdx = {{x, y, z}};
      threadIdx = {{t % {block[0]}, t / {block[0]} % {block[1]}, t / {block[0] * block[1]}}};
      {program.name}({given});
    }});
    for (auto& t : all) t.join();
  }}
}}"""
    source, library = folder / "block.cpp", folder / "block.so"
    source.write_text("\n".join([_PRELUDE, _in_plain_c(program), start]), encoding="utf-8")
    command = [compiler, "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-pthread"]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    ctypes.CDLL(str(library)).run(pointers)
