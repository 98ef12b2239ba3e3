"""CUDA C run on the host: the text of a kernel, compiled by the C++ compiler of this machine.

The emulator computes in NumPy, so it cannot see what C makes of an expression: the promotion of narrow
integers to int, signed overflow, shifts. Here the text itself is judged. Threads run one after the other, so
kernels whose threads wait for each other are not for this. What is an instruction in the kernel's helpers is
written out in C; undefined behaviour of C ends the process.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from morok.render.cuda.ops import HELPERS
from morok.render.program import Program

_PRELUDE = """
#include <cmath>
#include <cstdint>
#include <cstring>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
struct Place { int x, y, z; };
static Place threadIdx, blockIdx;
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __dp4a(int a, int b, int c) {
  unsigned sum = (unsigned)c;
  for (int i = 0; i < 32; i += 8)
    sum += (unsigned)((signed char)((unsigned)a >> i) * (signed char)((unsigned)b >> i));
  return (int)sum; }
static inline int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)(((unsigned long long)a * b) >> 32); }
static inline long long __mul64hi(long long a, long long b) { return (long long)(((__int128)a * b) >> 64); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64); }
"""
_WRITTEN_OUT = {"low16": "static inline unsigned short low16(unsigned x) { return (unsigned short)x; }"}


def _in_plain_c(text: str) -> str:
    """The kernel with the helpers that are instructions of a GPU written out."""
    for name, helper in HELPERS.items():
        if helper in text:
            text = text.replace(helper, _WRITTEN_OUT[name])
    return text


def _body(program: Program) -> str:
    (blocks,) = [n for axis in program.grid for n in axis] or [1]
    (threads,) = program.block or (1,)
    given = ", ".join(f"({kind})g[{i}]" for i, kind in enumerate(_kinds(program.text)))
    return (
        f"for (blockIdx.x = 0; blockIdx.x < {blocks}; blockIdx.x++)"
        f" for (threadIdx.x = 0; threadIdx.x < {threads}; threadIdx.x++) {program.name}({given});"
    )


def _kinds(text: str) -> list[str]:
    """The types of a kernel's parameters."""
    found = re.search(r"__global__ void __launch_bounds__\([^)]*\) \w+\(([^)]*)\)", text)
    assert found is not None
    return [re.sub(r"(__restrict__ )?\w+$", "", p.strip()) for p in found[1].split(",")]


def run_on_host(programs: list[Program], arrays: list[list[Any]], folder: Path) -> None:
    """Runs kernels of different names on their arrays, all compiled at once."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler on this machine")
    starts = [f'extern "C" void run_{p.name}(void** g) {{ {_body(p)} }}' for p in programs]
    text = "\n".join([_PRELUDE, *map(_once(set()), (_in_plain_c(p.text) for p in programs)), *starts])
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    source.write_text(text, encoding="utf-8")
    undefined = "-fsanitize=signed-integer-overflow,shift-base,integer-divide-by-zero"
    command = [compiler, "-O1", "-w", "-fPIC", "-shared", undefined, "-fsanitize-undefined-trap-on-error"]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    for program, given in zip(programs, arrays, strict=True):
        pointers = (ctypes.c_void_p * len(given))(*(a.ctypes.data for a in given))
        loaded[f"run_{program.name}"](pointers)


def _once(seen: set[str]) -> Any:
    """Helpers that several kernels bring along are defined once."""

    def kept(text: str) -> str:
        lines = []
        for line in text.splitlines():
            if line.startswith("static inline"):
                if line in seen:
                    continue
                seen.add(line)
            lines.append(line)
        return "\n".join(lines)

    return kept
