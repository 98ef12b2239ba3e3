"""`morok demo`: what works today, shown by doing it."""

from __future__ import annotations

import ast
from argparse import ArgumentParser, Namespace
from pathlib import Path

NAME = "demo"
HELP = "show what works today"


def add_arguments(parser: ArgumentParser) -> None:
    """It takes none."""


def run(args: Namespace) -> int:
    _show_rooms()
    _show_types()
    return 0


def _show_rooms() -> None:
    print("Rooms built so far:")
    for init in sorted(Path(__file__).parents[1].glob("*/__init__.py")):
        about = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        print(f"  {init.parent.name:<10} {about.partition(chr(10))[0]}")


def _show_types() -> None:
    from morok import dtype as dt

    print("\nTypes meet where NumPy says, and bfloat16 and the 8-bit floats join in:")
    for a, b in (
        (dt.int8, dt.uint8),
        (dt.int32, dt.float32),
        (dt.bfloat16, dt.float16),
        (dt.index, dt.int32),
    ):
        print(f"  {a} + {b} → {dt.promote(a, b)}")
    print("\nValues are rounded once, exactly:")
    for dtype in (dt.float32, dt.bfloat16, dt.float8_e4m3, dt.float8_e5m2):
        value = dt.as_value(0.1, dtype)
        print(f"  0.1 as {dtype} is {value!r}, bits {dt.to_bits(value, dtype):#x}")
