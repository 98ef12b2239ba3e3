"""Instruction list → CUDA C, for NVIDIA's run-time compiler. No header is needed.

One function per kernel, one statement per instruction, the user's lines as comments. A vector is a list of
scalars by the time it is written: it exists in memory accesses only, which are one access of up to 128 bits.
Buffers are parameters that do not alias; after them come the variables, 64 bits each. Memory that the threads
of a block share is declared in the kernel up to 48 KB, and asked for at launch beyond that.

Matrix units, asynchronous copies and their like are written by the functions in `units.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from morok import knobs
from morok.dtype import AddrSpace, PtrDType
from morok.errors import CompileError
from morok.ir.build import RARE
from morok.ir.matrix import Products
from morok.ir.memory import joined_by
from morok.ir.node import UOp
from morok.ir.ops import AxisKind, Ops
from morok.ir.provenance import place
from morok.ir.warp_roles import REGISTERS
from morok.render.cuda import mbarriers
from morok.render.cuda.ops import HELPERS, joined
from morok.render.cuda.registers import Pairs, are_sums, base_of, in_pairs, space_of, written_out
from morok.render.cuda.shared import ALIGN, places
from morok.render.cuda.types import LANES, type_name, words_of
from morok.render.cuda.units import UNITS
from morok.render.cuda.writer import Writer
from morok.render.program import Argument, Program, extent_of, line_numbers

_HARDWARE = {"gidx": "blockIdx", "lidx": "threadIdx"}


STATIC_SHARED = 48 << 10  # bytes of shared memory that a kernel may declare; more is asked for at launch
MANY_REGISTERS = 32  # in arrays of one thread: a register tile
BESIDE_TILES = 40  # registers of a thread beside sums and what units have left there
READ_AHEAD = 64  # bytes that a thread reads in a turn of a loop
MANY_READ = 256  # bytes that it reads before, between or after loops
WARP = 32
READERS = 512  # such threads of a multiprocessor


# In a graph the blocks of the next kernel may be there before this one has ended: they wait here, before they
# touch any memory; hints of what they will read touch none. Elsewhere nothing happens.
EARLY = (
    "#if __CUDA_ARCH__ >= 900",
    '  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");',
    "#endif",
)
WAIT = (
    "#if __CUDA_ARCH__ >= 900",
    '  asm volatile("griddepcontrol.wait;" ::: "memory");',
    "#endif",
)


class _Kernel(Writer):
    """One kernel on its way to text, instruction by instruction."""

    def write(self) -> None:
        self.added_to = products_added(self.instructions)
        self.turns = written_out(self.instructions)
        self.words = in_pairs(self.instructions)
        self.pairs: dict[UOp, Pairs] = {}
        self.hints = sum(n.op is Ops.PREFETCH for n in self.instructions)
        self.lines += [] if self.hints else WAIT
        for node in self.instructions:
            self.starts.append(len(self.lines))
            if node.op not in (Ops.CONST, Ops.VCONST):
                self.comment(node)
                self.instruction(node)
        self.starts.append(len(self.lines))

    def comment(self, node: UOp) -> None:
        """The user's line; looking one up is slow, and most nodes share theirs."""
        if node.origin is None or node.op in (Ops.ENDIF, Ops.END):
            return
        key = (node.origin.code, node.origin.lasti)
        if key not in self.places:
            self.places[key] = place(node) or ""
        self.place = self.places[key]

    def instruction(self, node: UOp) -> None:
        op = node.op
        if node in self.added_to:
            return
        if (dot := added_product(node)) is not None:
            other = node.src[0] if dot is node.src[1] else node.src[1]
            lanes = zip(*map(self.lanes, (*dot.src, other)), strict=True)
            self.values[node] = [self.let(node.dtype, f"__dp4a({', '.join(x)})") for x in lanes]
        elif op.is_alu:
            self.values[node] = [
                self.let(node.dtype, self.arithmetic.text(node, list(x)))
                for x in zip(*(self.lanes(s) for s in node.src), strict=True)
            ]
            self.arithmetic.rounded(node, self.values[node], self.lanes(node.src[0]))
        elif op is Ops.INDEX:
            self.addresses[node] = (self.scalar(node.src[0]), self.scalar(node.src[1]))
        elif op is Ops.LOAD:
            self.values[node] = self.load(node)
        elif op is Ops.STORE:
            self.store(node)
        elif op is Ops.RANGE:
            (mbarriers.open_role if _is_role(node) else _Kernel.open_loop)(self, node)
        elif op is Ops.IF:
            self.put(f"if ({self.scalar(node.src[0])}) {{")
            self.depth += 1
        elif op is Ops.END and _is_role(node.src[1]):
            mbarriers.close_role(self)
        elif op in (Ops.END, Ops.ENDIF):
            self.depth -= 1
            self.put("}")
        elif op is Ops.AFTER:
            if node.src[0] in self.values:
                self.values[node] = self.values[node.src[0]]
        elif op is Ops.GEP:
            found = self.lanes(node.src[0])
            self.values[node] = [found[i] for i in node.arg]
        elif op in (Ops.VECTORIZE, Ops.CAT):
            self.values[node] = [lane for s in node.src for lane in self.lanes(s)]
        elif op is Ops.BARRIER:
            mbarriers.barrier(self, node)
        elif op is Ops.SHUFFLE:
            self.values[node] = [self.shuffle(node, x) for x in self.lanes(node.src[0])]
        elif op is Ops.PREFETCH:
            memory, where = self.addresses[node.src[0]]
            gate = f"if ({self.scalar(node.src[0].src[2])}) " if len(node.src[0].src) > 2 else ""
            self.put(f'{gate}asm volatile("prefetch.global.L2 [%0];" :: "l"({memory} + {where}));')
            self.hints -= 1
            if not self.hints:
                self.lines += WAIT
        elif op in UNITS:
            UNITS[op](self, node)
        elif op in mbarriers.WARP_ROLE_OPS:
            mbarriers.WARP_ROLE_OPS[op](self, node)
        else:
            self.define(node)

    def define(self, node: UOp) -> None:
        dtype = node.dtype
        if node.op is Ops.DEFINE_GLOBAL:
            self.values[node] = [f"g{node.arg}"]
        elif node.op is Ops.DEFINE_VAR:
            self.values[node] = [self.let(dtype, f"({type_name(dtype)})v_{node.arg[0]}")]
        elif node.op is Ops.DEFINE_REG:
            assert isinstance(dtype, PtrDType)
            name = f"a{_identifier(node.arg)}"
            if node in self.words:
                self.pairs[node] = Pairs(name)
                self.put(f"unsigned {name}[{dtype.size // 2}];")
            else:
                self.put(f"{type_name(dtype.elem)} {name}[{dtype.size}];")
            self.values[node] = [name]
        elif node.op is Ops.DEFINE_LOCAL:
            assert isinstance(dtype, PtrDType)
            name = f"s_{_identifier(node.arg)}"
            self.shared.append((name, dtype))
            self.values[node] = [name]
        elif node.op is Ops.SPECIAL:
            self.hardware_index(node)
        else:
            raise CompileError(f"CUDA C has no {node.op.name}", place=place(node))

    def hardware_index(self, node: UOp) -> None:
        kind, number = str(node.arg)[:4], int(str(node.arg)[4:])
        end = node.src[0]
        if kind == "ridx":  # among the threads of a role
            self.put(f"{type_name(node.dtype)} {node.arg} = threadIdx.x - {number};")
            self.values[node] = [str(node.arg)]
            return
        if kind == "gidx":
            self.grid[number] = extent_of(end)
        elif end.op is Ops.CONST:
            self.block[number] = int(end.arg)
        else:
            raise CompileError("the threads of a block need a constant number", place=place(node))
        self.put(f"{type_name(node.dtype)} {node.arg} = {_HARDWARE[kind]}.{LANES[number]};")
        self.values[node] = [str(node.arg)]

    def open_loop(self, node: UOp) -> None:
        name = f"r{node.arg[0]}"
        end = self.scalar(node.src[0])
        if node in self.turns:
            self.put(f"#pragma unroll {self.turns[node]}")
        self.put(f"for ({type_name(node.dtype)} {name} = 0; {name} < {end}; {name}++) {{")
        self.values[node] = [name]
        self.depth += 1

    def shuffle(self, node: UOp, x: str) -> str:
        """x of another lane of the warp; `arg` is how many neighbours exchange values."""
        dtype = node.dtype.scalar
        name, lane = type_name(dtype), self.scalar(node.src[1])
        given = x if dtype.bits >= 32 else f"(unsigned){x}"
        return self.let(dtype, f"({name})__shfl_sync(0xffffffffu, {given}, {lane}, {node.arg})")

    # --- memory

    def load(self, node: UOp) -> list[str]:
        address = node.src[0]
        memory, where = self.addresses[address]
        dtype = node.dtype
        gate = self.scalar(address.src[2]) if len(address.src) > 2 else None
        if space_of(address) is AddrSpace.REG:
            first = where if (start := _start(address)) is None else start
            pairs = self.pairs.get(base_of(address))
            if pairs is not None and start is not None:
                return [pairs.lane(self.put, self.fresh, start + i) for i in range(dtype.lanes)]
            found = [f"{memory}[{_plus(first, i)}]" for i in range(dtype.lanes)]
            if gate is not None:
                found = [f"{gate} ? {x} : {y}" for x, y in zip(found, self.lanes(node.src[1]), strict=True)]
            return [self.let(dtype, x) for x in found]
        if dtype.lanes == 1:
            one = f"{memory}[{where}]"
            if gate is not None:
                one = f"{gate} ? {one} : {self.scalar(node.src[1])}"
            return [self.let(dtype, one)]
        kind, words, per_word = words_of(dtype)
        name = self.fresh()
        whole = f"*(const {kind}*)({memory} + {where})"
        if gate is None:
            self.put(f"{kind} {name} = {whole};")
        else:
            self.put(f"{kind} {name} = {self.packed(self.lanes(node.src[1]), dtype)};")
            self.put(f"if ({gate}) {name} = {whole};")
        if per_word == 1:
            return [f"{name}.{LANES[i]}" for i in range(words)]
        bits = dtype.scalar.bits
        out = []
        for i in range(dtype.lanes):
            word = name if words == 1 else f"{name}.{LANES[i // per_word]}"
            out.append(self.let(dtype, f"({type_name(dtype)})({word} >> {bits * (i % per_word)})"))
        return out

    def store(self, node: UOp) -> None:
        address, value = node.src
        memory, where = self.addresses[address]
        given = self.lanes(value)
        gate = f"if ({self.scalar(address.src[2])}) " if len(address.src) > 2 else ""
        if space_of(address) is AddrSpace.REG:
            first = _start(address)
            pairs = self.pairs.get(base_of(address))
            for i, x in enumerate(given):
                if pairs is not None and first is not None:
                    pairs.write(self.put, lambda pair: self.word(pair, value.dtype), first + i, x)
                    continue
                self.put(f"{gate}{memory}[{_plus(where if first is None else first, i)}] = {x};")
            return
        op = joined_by(node)
        if op is not None:
            self.put(f"{gate}{joined(op, value.dtype, f'{memory} + {where}', given[0])};")
            return
        if value.dtype.lanes == 1:
            self.put(f"{gate}{memory}[{where}] = {given[0]};")
            return
        kind = words_of(value.dtype)[0]
        if are_sums(value):
            given = [f"{self.arithmetic.helper('copied')}({x})" for x in given]
        self.put(f"{gate}*({kind}*)({memory} + {where}) = {self.packed(given, value.dtype)};")


def added_product(node: UOp) -> UOp | None:
    """Of an addition the sum of four products that its instruction makes on the way."""
    if node.op is not Ops.ADD:
        return None
    return next((s for s in reversed(node.src) if s.op is Ops.DOT4), None)


def products_added(instructions: Sequence[UOp]) -> set[UOp]:
    """Sums of four products that nobody wants but additions that make them."""
    found = {n for n in instructions if n.op is Ops.DOT4}
    if found:
        for node in instructions:
            found.difference_update(s for s in node.src if s is not added_product(node))
            if node.src[:1] == node.src[1:]:
                found.difference_update(node.src)
    return found


def _is_role(node: UOp) -> bool:
    return node.arg[1] is AxisKind.ROLE


def _start(address: UOp) -> int | None:
    """The place in a register array, where it is constant."""
    where = address.src[1]
    return int(where.arg) if where.op is Ops.CONST else None


def _plus(start: int | str, i: int) -> str:
    return str(start + i) if isinstance(start, int) else f"{start} + {i}" if i else start


def _identifier(arg: Any) -> str:
    return re.sub(r"\W", "_", str(arg))


def render(linear: UOp, name: str, buffers: int = 0, cores: int = 0) -> Program:
    """The kernel as CUDA C, ready for a compiler.

    `buffers` is how many it was written with: the caller passes all, also those that are not needed now.
    `cores` are the multiprocessors that it is for, if that is known.
    """
    writer = _Kernel(linear.src, name)
    writer.write()
    written = {base_of(n.src[0]) for n in linear.src if n.op is Ops.STORE}
    arguments = []
    for n in sorted((n for n in linear.src if n.op is Ops.DEFINE_GLOBAL), key=lambda n: n.arg):
        assert isinstance(n.dtype, PtrDType)
        arguments.append(Argument(n.arg, n.dtype.elem, n.dtype.size, n in written))
    count = max([buffers, *(a.number + 1 for a in arguments)])
    variables = sorted({n.arg[0] for n in linear.src if n.op is Ops.DEFINE_VAR})
    block = tuple(writer.block.get(i, 1) for i in range(max(writer.block, default=0) + 1))
    grid = tuple(writer.grid.get(i, (1,)) for i in range(max(writer.grid, default=0) + 1))
    shared, declarations = _shared(writer)
    known = cores > 0 and all(len(n) == 1 and str(n[0]).isdigit() for n in grid)
    most = -(-math.prod(int(n[0]) for n in grid) // cores) if known else READERS  # blocks of a multiprocessor
    text, first = _text(writer, arguments, variables, count, declarations, block, most)
    return Program(
        name,
        text,
        tuple(arguments),
        tuple(variables),
        count,
        0,
        False,
        grid,
        block,
        shared,
        tuple(writer.tensor_maps),
        line_numbers(writer.lines, writer.starts, first),
    )


def _read_at_once(instructions: Sequence[UOp]) -> int:
    """The most bytes of global memory that a thread reads in the body of a loop without loops inside, or
    very many of them outside of loops."""
    most = now = 0
    for node in instructions:
        if node.op is Ops.RANGE:
            most, now = max(most, now if now >= MANY_READ else 0), 0
        elif node.op is Ops.LOAD and base_of(node.src[0]).op is Ops.DEFINE_GLOBAL:
            now += node.dtype.itemsize
        elif node.op is Ops.END:
            most, now = max(most, now), 0
    return max(most, now if now >= MANY_READ else 0)


def _registers(instructions: Sequence[UOp]) -> int:
    """Elements that a thread keeps: of its arrays of registers, or of the largest tile of tensor cores."""
    arrays = [n.dtype for n in instructions if n.op is Ops.DEFINE_REG]
    tiles = [n.dtype.lanes for n in instructions if n.op is Ops.WMMA]
    return max(sum(dtype.size for dtype in arrays if isinstance(dtype, PtrDType)), *tiles, 0)


def _groups_at_once(instructions: Sequence[UOp], threads: int) -> int:
    """Blocks of a multiprocessor that have registers for what units of warp groups leave in them, and for
    sums. Nothing but other groups hides the time in which one computes; left alone, the compiler takes a few
    registers more than there are for one block more."""
    begun = [n.dtype.lanes for n in instructions if n.op is Ops.WMMA and n.src[2].op is Ops.CONST]
    waits = any(n.op is Ops.ASYNC_WAIT and isinstance(n.arg, Products) for n in instructions)
    if not begun or not waits or any(n.op is Ops.MBARRIER for n in instructions):
        return 1
    sums = [n.dtype.size for n in _sums(instructions) if isinstance(n.dtype, PtrDType)]
    return max(1, REGISTERS // (threads * (sum(sums) + sum(begun) + BESIDE_TILES)))


def _sums(instructions: Sequence[UOp]) -> Iterator[UOp]:
    """Registers that keep something through a loop, and not only until a branch has been decided."""
    return (n for n in instructions if n.op is Ops.DEFINE_REG and not str(n.arg).startswith(RARE))


def _shared(writer: _Kernel) -> tuple[int, list[str]]:
    """Bytes to ask for at launch, and the declarations of shared memory."""
    offsets, total = places(writer.instructions)
    if not writer.shared:
        return 0, []
    threads = math.prod(writer.block.values())
    passed, total = total, total + -(-threads // WARP) * writer.passed * 4
    static = total <= STATIC_SHARED
    size = str(total) if static else ""
    lines = [f"  {'' if static else 'extern '}__shared__ __align__({ALIGN}) unsigned char shared[{size}];"]
    for (name, dtype), offset in zip(writer.shared, offsets, strict=True):
        kind = type_name(dtype.elem)
        lines.append(f"  {kind}* const {name} = ({kind}*)(shared + {offset});")
    if writer.passed:
        lines.append(f"  float* const passed = (float*)(shared + {passed});")
    return 0 if static else total, lines


def _text(
    writer: _Kernel,
    arguments: list[Argument],
    variables: list[str],
    count: int,
    declarations: list[str],
    block: tuple[int, ...],
    most: int,
) -> tuple[str, int]:
    """The text, and the number of the line at which the instructions begin. No multiprocessor has more than
    `most` blocks."""
    used = {a.number: a for a in arguments}
    parameters = []
    # what is const and restrict the compiler reads through a cache that is right as long as nobody writes
    # while the kernel is there, so also not the one before it: then only what is written is said to be apart
    for i in range(count):
        a = used.get(i)
        if a is None:
            parameters.append(f"const void* g{i}")
        else:
            qualifier = "" if a.written else "const "
            restrict = "" if knobs.EARLY_START.value and not a.written else "__restrict__ "
            parameters.append(f"{qualifier}{type_name(a.dtype)}* {restrict}g{i}")
    parameters += [f"long long v_{v}" for v in variables]
    parameters += [f"const __grid_constant__ TensorMap m{i}" for i in range(len(writer.tensor_maps))]
    threads = 1
    for n in block:
        threads *= n
    # a thread that keeps a tile, or reads ahead, needs its registers more than the multiprocessor needs more
    # blocks: the compiler would put reads back to where they are used
    bounds = f"{threads}"
    if _registers(writer.instructions) >= MANY_REGISTERS:
        bounds += f", {min(most, _groups_at_once(writer.instructions, threads))}"
    elif threads <= READERS and _read_at_once(writer.instructions) >= READ_AHEAD:
        bounds += f", {min(most, READERS // threads)}"
    cluster = f"__cluster_dims__({writer.cluster}, 1, 1) " if writer.cluster > 1 else ""
    head = f'extern "C" __global__ void {cluster}__launch_bounds__({bounds}) {writer.name}'
    head += f"({', '.join(parameters)}) {{"
    helpers = [HELPERS[name] for name in writer.arithmetic.helpers]
    before = "\n".join([*helpers, *writer.helpers, head, *declarations, *EARLY])
    last = (
        [f"  {mbarriers.ALL_BLOCKS}"] if writer.cluster > 1 else []
    )  # others may still write into this block's memory
    return "\n".join([before, *writer.lines, *last, "}", ""]), before.count("\n") + 1
