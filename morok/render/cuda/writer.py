"""What all parts of the writer of CUDA C share: lines, names, and the texts of values.

The list itself is walked in `kernel.py`; hardware ops are written by functions of a `Writer` in `units.py`
and `mbarriers.py`.
"""

from __future__ import annotations

from typing import Any

from morok.dtype import DType, PtrDType
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.ir.warp_roles import Role
from morok.render.cuda.ops import Arithmetic
from morok.render.cuda.types import constant, type_name, words_of
from morok.render.program import Described, Extent


class Writer:
    """One kernel on its way to text. `values` has the text of every lane of every value."""

    def __init__(self, instructions: tuple[UOp, ...], name: str) -> None:
        self.instructions = instructions
        self.name = name
        self.lines: list[str] = []
        self.starts: list[int] = []  # which of them belong to which instruction
        self.depth = 1
        self.count = 0
        self.values: dict[UOp, list[str]] = {}
        self.addresses: dict[UOp, tuple[str, str]] = {}  # (memory, place) of an INDEX
        self.arithmetic = Arithmetic()
        self.helpers: dict[str, None] = {}  # whole functions that hardware ops have asked for
        self.grid: dict[int, Extent] = {}
        self.block: dict[int, int] = {}
        self.shared: list[tuple[str, PtrDType]] = []
        self.passed = 0  # floats in which each warp hands around what its lanes have
        self.tensor_maps: list[Described] = []
        self.roles: list[Role] = []  # those that have been opened
        self.role: Role | None = None  # the one that is open
        self.cluster = 1  # blocks that write into each other's shared memory
        self.place = ""  # the user's line behind the instruction that is being written
        self.where = ""  # and the one that was written last
        self.places: dict[tuple[Any, int], str] = {}

    # --- small things

    def put(self, text: str) -> None:
        if self.place and self.place != self.where:
            self.where = self.place
            self.lines.append(f"{'  ' * self.depth}// {self.place}")
        self.lines.append("  " * self.depth + text)

    def fresh(self) -> str:
        self.count += 1
        return f"x{self.count}"

    def let(self, dtype: DType, text: str) -> str:
        """A new scalar variable."""
        name = self.fresh()
        self.put(f"{type_name(dtype)} {name} = {text};")
        return name

    def lanes(self, node: UOp) -> list[str]:
        """The text of each lane of a value."""
        if node.op is Ops.CONST:
            return [operand(constant(node.dtype, node.arg))] * node.dtype.lanes
        if node.op is Ops.VCONST:
            return [operand(constant(node.dtype, v)) for v in node.arg]
        return self.values[node]

    def scalar(self, node: UOp) -> str:
        """The text of a value with one lane."""
        return self.lanes(node)[0]

    def helper(self, text: str) -> None:
        """A function that has to stand before the kernel."""
        self.helpers[text] = None

    def packed(self, lanes: list[str], dtype: DType) -> str:
        """A vector as one value of its type in memory."""
        kind, words, per_word = words_of(dtype)
        if per_word > 1:
            parts = [lanes[w * per_word : (w + 1) * per_word] for w in range(words)]
            lanes = [self.word(part, dtype) for part in parts]
            if words == 1:
                return f"({kind})({lanes[0]})"
        return f"make_{kind}({', '.join(lanes)})"

    def word(self, lanes: list[str], dtype: DType) -> str:
        """Lanes of 8 or 16 bits in a word."""
        bits = dtype.scalar.bits
        unsigned = "unsigned char" if bits == 8 else "unsigned short"
        shifted = [f"((unsigned)({unsigned})({x}) << {k * bits})" for k, x in enumerate(lanes)]
        return self.arithmetic.word(lanes) or " | ".join(shifted)


def operand(text: str) -> str:
    """A text that may stand beside an operator."""
    return f"({text})" if text.startswith("-") else text
