"""What all parts of the writer of LLVM IR share: names, lines, blocks, constants."""

from __future__ import annotations

from dataclasses import dataclass

from morok.dtype import DType, PtrDType
from morok.ir.matrix import TileProduct
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.ir.provenance import Origin
from morok.render.llvm.list import (
    Registers,
    Slot,
    only_broadcast,
    only_spread,
    outside_of_thread,
    register_accesses,
    written_slots,
)
from morok.render.llvm.pointers import INDEXED, Pointer, pointers_of
from morok.render.llvm.transpose import only_turned, transposed
from morok.render.llvm.types import constant, listed, type_name
from morok.render.program import Argument

ALIGN = 64  # bytes of a thread's own memory, and of tables


@dataclass(frozen=True)
class Many:
    """What has been written for a tree of extremes."""

    value: str  # the extreme of all that are numbers
    ordered: str  # the lanes where all leaves that were compared are; none is compared yet if it is empty
    alone: str  # a leaf that is not compared yet, or nothing


class Loop:
    """A loop that is being written."""

    __slots__ = (
        "counter",
        "end",
        "exit",
        "guard",
        "head",
        "indices",
        "line",
        "moved",
        "node",
        "phis",
        "start",
    )

    def __init__(self, node: UOp, head: str, exit_: str, end: str, start: str, guard: str | None) -> None:
        self.node = node
        self.head = head
        self.exit = exit_
        self.end = end
        self.start = start
        self.guard = guard  # the block that may jump over the loop
        self.counter = ""
        self.line = 0  # where the counter's phi node stands
        self.phis: list[tuple[Slot, int, str, str]] = []  # slot, line, name, value before the loop
        self.moved: list[tuple[Pointer, int, str]] = []  # with the line of its phi node and its name
        self.indices: list[tuple[int, int, str]] = []  # shared ones: step, line of the phi node, name


class Writer:
    """One kernel on its way to text."""

    def __init__(
        self,
        instructions: tuple[UOp, ...],
        name: str,
        in_place: bool,
        fused: bool,
        arch: str = "",
        ranges: bool = False,
    ) -> None:
        self.instructions = instructions
        self.name = name
        self.in_place = in_place
        self.fused = fused
        self.arch = arch
        self.numbers: list[tuple[str, str]] = []  # constants in memory, each for one use: type and value
        self.lines: list[str] = []
        self.starts: list[int] = []  # which of them belong to which instruction
        self.names: dict[UOp, str] = {}
        self.declared: dict[str, None] = {}
        self.tile_products: dict[TileProduct, str] = {}  # functions that were written, by what they compute
        self.block = "entry"
        self.count = 0
        self.labels = 0
        self.loops: list[Loop] = []
        self.values: dict[Slot, tuple[str, DType]] = {}
        self.branches: list[tuple[str, str, dict[Slot, tuple[str, DType]]]] = []
        self.ranges = ranges
        self.extremes: dict[UOp, Many] = {}  # what is known of trees of them
        self.scratch = 0
        self.arguments: list[Argument] = []
        self.variables: list[UOp] = []
        self.thread: UOp | None = None
        self.where: str | None = None
        self.last_origin: Origin | None = None
        self.origin: tuple[int, int] | None = None
        self.places: dict[tuple[int, int], str] = {}
        accesses = register_accesses(instructions)
        self.registers = Registers(accesses)
        self.in_memory = self.registers.in_memory
        self.only_stored = self.registers.only_stored(instructions)
        self.written_in = written_slots(instructions, accesses, self.registers)
        self.once = outside_of_thread(instructions)
        self.only_turned = only_turned(instructions)
        self.spread = only_spread(instructions)
        # an x86 processor loads an element into all lanes at once; from a register a shuffle takes the place
        # of a multiplication
        self.broadcast = only_broadcast(instructions, self.spread) if arch == "x86_64" else frozenset()
        self.elements: dict[UOp, list[str]] = {}  # of those loads
        self.turned: dict[tuple[str, tuple[UOp, ...], int], list[str]] = {}  # by block, rows, lanes
        self.pointers = pointers_of(instructions, arch in INDEXED)
        self.known_pointers: list[dict[Pointer, str]] = [
            {}
        ]  # by the loops and branches that they are made in

    # --- small things

    def fresh(self) -> str:
        self.count += 1
        return f"%x{self.count}"

    def label(self, word: str) -> str:
        self.labels += 1
        return f"{word}{self.labels}"

    def put(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def let(self, text: str) -> str:
        name = self.fresh()
        self.put(f"{name} = {text}")
        return name

    def start_block(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def call(self, intrinsic: str, result: DType, operands: list[tuple[DType, str]]) -> str:
        types = ", ".join(type_name(t) for t, _ in operands)
        self.declared[f"declare {type_name(result)} @{intrinsic}({types})"] = None
        given = ", ".join(f"{type_name(t)} {x}" for t, x in operands)
        return f"call {type_name(result)} @{intrinsic}({given})"

    def name_of(self, node: UOp) -> str:
        if node.op in (Ops.CONST, Ops.VCONST):
            return constant(node.dtype, node.arg)
        return self.names[node]

    def number(self, node: UOp) -> str:
        """A constant in a register that may be overwritten: from memory, and from a place of its own.

        From a register that keeps it, it would have to be copied by one of the units that compute, and a load
        from a place that others read too would be shared with them. Loads are free where arithmetic is
        expensive.
        """
        t = type_name(node.dtype)
        self.numbers.append((t, self.name_of(node)))
        return self.let(f"load {t}, ptr %number{len(self.numbers) - 1}, align {node.dtype.scalar.itemsize}")

    # --- lanes

    def transpose(self, rows: tuple[UOp, ...], lane: int, t: str, together: int = 1) -> str:
        """One lane of all rows, or some neighbours; all are made together, where the first is asked for."""
        key = (self.block, rows, together)
        if key not in self.turned:
            names = [self.name_of(row) for row in rows]
            size = rows[0].dtype.scalar.itemsize * together
            wide = t if together == 1 else f"<{len(rows)} x i{8 * size}>"
            if together > 1:
                names = [self.let(f"bitcast {t} {name} to {wide}") for name in names]
            found = transposed(names, size, lambda x, y, lanes: self.shuffle(wide, x, y, lanes))
            if together > 1:
                found = [self.let(f"bitcast {wide} {name} to {t}") for name in found]
            self.turned[key] = found
        return self.turned[key][lane]

    def shuffle(self, t: str, x: str, y: str, lanes: tuple[int, ...] | list[int]) -> str:
        mask = listed("i32", list(map(str, lanes)))
        return self.let(f"shufflevector {t} {x}, {t} {y}, <{len(lanes)} x i32> {mask}")

    # --- pointers

    def pointer(self, pointer: Pointer, elem: str) -> str:
        """A pointer that several places share, made where the first of them is."""
        for known in reversed(self.known_pointers):
            if pointer in known:
                return known[pointer]
        place_ = pointer.terms[0]
        name = self.let(
            f"getelementptr {elem}, ptr {self.name_of(pointer.base)}, {type_name(place_.dtype)} "
            f"{self.name_of(place_)}"
        )
        self.known_pointers[-1][pointer] = name
        return name

    def first_places(self, node: UOp, start: str) -> list[tuple[Pointer, str]]:
        """Where the pointers of a loop are before its first step."""
        found = []
        for pointer in self.pointers.moved.get(node, ()):
            names = [self.as_long(x.dtype, self.name_of(x)) for x in pointer.terms]
            if start != "0" and not pointer.indexed:
                names.append(self.let(f"mul i64 {self.as_long(node.dtype, start)}, {pointer.step}"))
            total = names[0] if names else "0"
            for name in (*names[1:], *([str(pointer.offset)] if pointer.offset else ())):
                total = self.let(f"add i64 {total}, {name}")
            base, elem = self.name_of(pointer.base), self.element(pointer)
            found.append((pointer, self.let(f"getelementptr {elem}, ptr {base}, i64 {total}")))
        return found

    def first_indices(self, node: UOp, start: str, moved: list[tuple[Pointer, str]]) -> dict[int, str]:
        """What the indices that pointers share are before the first step, by what they move."""
        found: dict[int, str] = {}
        for step in dict.fromkeys(pointer.step for pointer, _ in moved if pointer.indexed):
            is_counter = step == 1 and node.dtype.bits == 64
            found[step] = "0"
            if start != "0" and not is_counter:
                found[step] = self.let(f"mul i64 {self.as_long(node.dtype, start)}, {step}")
        return found

    def as_long(self, dtype: DType, name: str) -> str:
        return name if dtype.bits == 64 else self.let(f"sext {type_name(dtype)} {name} to i64")

    def element(self, pointer: Pointer) -> str:
        dtype = pointer.base.dtype
        assert isinstance(dtype, PtrDType)
        return type_name(dtype.elem.scalar)

    # --- vectors

    def each_element(self, pointer: str, dtype: DType) -> list[str]:
        """The elements of a vector in memory, one by one."""
        scalar, found = type_name(dtype.scalar), []
        for i in range(dtype.lanes):
            at = self.let(f"getelementptr {scalar}, ptr {pointer}, i64 {i}") if i else pointer
            found.append(self.let(f"load {scalar}, ptr {at}, align {dtype.scalar.itemsize}"))
        return found

    def splat(self, element: str, dtype: DType) -> str:
        """A vector with an element in every lane."""
        t = type_name(dtype)
        first = self.let(f"insertelement {t} poison, {type_name(dtype.scalar)} {element}, i32 0")
        return self.shuffle(t, first, "poison", (0,) * dtype.lanes)

    def mask(self, gate: UOp, lanes: int) -> str:
        """A condition per lane."""
        name = self.name_of(gate)
        if gate.dtype.lanes == lanes:
            return name
        first = self.let(f"insertelement <{lanes} x i1> poison, i1 {name}, i32 0")
        return self.let(
            f"shufflevector <{lanes} x i1> {first}, <{lanes} x i1> poison, <{lanes} x i32> zeroinitializer"
        )

    def concatenate(self, node: UOp) -> str:
        """Parts one after the other, from the left; the shorter of two is widened first."""
        scalar = node.dtype.scalar
        name, width, used = "", 0, 0  # what there is: its lanes, and how many of them count
        for part in node.src:
            x, lanes = self.name_of(part), part.dtype.lanes
            wide = max(2, lanes)
            if lanes == 1:
                two = type_name(scalar.vec(2))
                x = self.let(f"insertelement {two} poison, {type_name(scalar)} {x}, i32 0")
            if width == 0:
                name, width, used = x, wide, lanes
                continue
            total = max(width, wide)
            left, right = self.widen(scalar, name, width, total), self.widen(scalar, x, wide, total)
            mask = [*range(used), *range(total, total + lanes)]
            name = self.shuffle(type_name(scalar.vec(total)), left, right, mask)
            width = used = len(mask)
        return name

    def widen(self, scalar: DType, x: str, width: int, total: int) -> str:
        if width == total:
            return x
        return self.shuffle(
            type_name(scalar.vec(width)), x, "poison", [*range(width), *([0] * (total - width))]
        )


def table_of_numbers(writer: Writer) -> tuple[list[str], list[str]]:
    """The constants that are read from memory, and the names of their places.

    They are not declared constant: LLVM would take them out of their loops into registers again. Their type
    has a name, because spelt out at every place the text would grow with the square of their number.
    """
    if not writer.numbers:
        return [], []
    kinds = ", ".join(t for t, _ in writer.numbers)
    values = ", ".join(f"{t} {value}" for t, value in writer.numbers)
    table, kind = f"@{writer.name}.numbers", f"%{writer.name}.numbers"
    places = [
        f"  %number{i} = getelementptr {kind}, ptr {table}, i64 0, i32 {i}"
        for i in range(len(writer.numbers))
    ]
    named = f"{kind} = type {{ {kinds} }}"
    return [named, f"{table} = internal global {kind} {{ {values} }}, align {ALIGN}", ""], places
