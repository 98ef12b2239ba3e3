"""Instruction list → LLVM IR.

Loops are written in rotated form with their counters as phi nodes. Accumulators never touch memory: every
access to registers is at a constant place, so the value is followed through the list and becomes a phi node
at the loops that change it. No optimisation passes are needed for that, and none for common subexpressions
or invariants, which the IR has shared and hoisted already.

A kernel is two functions: the body takes its buffers as separate arguments that do not alias, and the entry
`void name(ptr args, i64 lo, i64 hi, ptr scratch)` reads them from a table, so that all kernels are called
alike. `lo` and `hi` bound the axis that workers share; `i64 name.extent(ptr args)` gives its size.
"""

from __future__ import annotations

from collections.abc import Sequence

from morok.codegen.vector.vectors import turned_rows
from morok.dtype import AddrSpace, DType, PtrDType
from morok.errors import CompileError
from morok.ir.bounds import bounds
from morok.ir.node import UOp
from morok.ir.ops import PACKED, AxisKind, Ops
from morok.ir.provenance import place
from morok.render.llvm.arithmetic import arithmetic_text
from morok.render.llvm.lanes import picked
from morok.render.llvm.list import Slot, is_splat, memory_of, register_of
from morok.render.llvm.places import Pieces
from morok.render.llvm.shared import bounds_of_pieces, count_pieces, extent_text, pieces_of, size_of
from morok.render.llvm.tiles import configured, tile_product
from morok.render.llvm.transpose import turned_groups
from morok.render.llvm.types import constant, suffix, type_name
from morok.render.llvm.writer import ALIGN, Loop, Writer, table_of_numbers
from morok.render.program import Argument, Program, line_numbers

_STACK_LIMIT = 8192  # bytes of local memory that may live on the stack; more comes out of the scratch memory


class _Kernel(Writer):
    """One kernel on its way to text, instruction by instruction."""

    def write(self) -> None:
        self.pieces = Pieces(self.instructions if self.arch == "x86_64" else ())
        for position, node in enumerate(self.instructions):
            self.starts.append(len(self.lines))
            if node.op in (Ops.CONST, Ops.VCONST) or node in self.spread or node in self.pointers.unneeded:
                continue  # written where they are used, if they are
            if node in self.only_stored or node in self.only_turned:
                continue
            self.comment(node)
            if node in self.pieces.cut:
                self.pieces.write(self, node)
                continue
            self.instruction(position, node)
        self.starts.append(len(self.lines))

    def comment(self, node: UOp) -> None:
        """The user's line, where it changes. Looking one up is slow, and most nodes share theirs."""
        origin = node.origin
        if origin is None or origin is self.last_origin or origin.code is None:
            return
        self.last_origin = origin
        key = (id(origin.code), origin.lasti)  # to compare code itself is slow
        if key == self.origin:
            return
        self.origin = key
        where = self.places.get(key)
        if where is None:
            where = self.places[key] = place(node) or ""
        if where and where != self.where:
            self.where = where
            self.put(f"; {where}")

    def instruction(self, position: int, node: UOp) -> None:
        op = node.op
        if op.is_alu:
            self.names[node] = self.let(arithmetic_text(self, node))
        elif op is Ops.INDEX:
            self.index(node)
        elif op is Ops.LOAD:
            self.load(node)
        elif op is Ops.STORE:
            self.store(node, position in self.once)
        elif op is Ops.RANGE:
            self.open_loop(position, node)
        elif op is Ops.END:
            self.close_loop(node)
        elif op is Ops.AFTER:
            if node.src[0] in self.names:
                self.names[node] = self.names[node.src[0]]
        elif op in (Ops.VECTORIZE, Ops.GEP, Ops.CAT):
            self.names[node] = self.vector(node)
        elif op is Ops.VREDUCE:
            x = node.src[0]
            self.names[node] = self.let(
                self.call(
                    f"llvm.vector.reduce.or.{suffix(x.dtype)}", node.dtype, [(x.dtype, self.name_of(x))]
                )
            )
        elif op is Ops.IF:
            self.open_if(node)
        elif op is Ops.ENDIF:
            self.close_if()
        elif op is Ops.PREFETCH:
            self.declared["declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"] = None
            self.put(f"call void @llvm.prefetch.p0(ptr {self.name_of(node.src[0])}, i32 0, i32 3, i32 1)")
        elif op is Ops.TILE_PRODUCT:
            tile_product(self, node)
        elif op is Ops.BARRIER:
            pass  # one thread per loop level: nothing to wait for
        else:
            self.define(node)

    def define(self, node: UOp) -> None:
        dtype = node.dtype
        if node.op is Ops.DEFINE_GLOBAL:
            self.names[node] = f"%g{node.arg}"
        elif node.op is Ops.DEFINE_VAR:
            self.variables.append(node)
            name = f"%v.{node.arg[0]}"
            self.names[node] = self.let(f"trunc i64 {name} to i32") if dtype.bits == 32 else name
        elif node.op is Ops.DEFINE_REG:
            if node in self.in_memory:
                self.names[node] = self.allocate(dtype)
        elif node.op is Ops.DEFINE_LOCAL:
            self.names[node] = self.allocate(dtype)
        else:
            raise CompileError(f"LLVM IR has no {node.op.name}", place=place(node))

    def allocate(self, dtype: DType) -> str:
        assert isinstance(dtype, PtrDType)
        size = dtype.elem.itemsize * dtype.size
        if size <= _STACK_LIMIT:
            return self.let(f"alloca [{max(1, size)} x i8], align {ALIGN}")
        start = self.scratch
        self.scratch += (size + ALIGN - 1) // ALIGN * ALIGN
        return self.let(f"getelementptr i8, ptr %scratch, i64 {start}")

    # --- memory

    def index(self, node: UOp) -> None:
        dtype = node.dtype
        assert isinstance(dtype, PtrDType)
        if dtype.space is AddrSpace.REG and register_of(node) not in self.in_memory:
            return
        place_ = node.src[1]
        elem = type_name(dtype.elem.scalar)
        found = self.pointers.places.get(node)
        if found is not None:
            pointer, offset = found
            name = self.pointer(pointer, elem)
            name = self.let(f"getelementptr {elem}, ptr {name}, i64 {offset}") if offset else name
            if len(node.src) > 2 and node.src[2].dtype.lanes == 1:
                first = self.name_of(pointer.base)
                name = self.let(f"select i1 {self.name_of(node.src[2])}, ptr {name}, ptr {first}")
            self.names[node] = name
            return
        base = self.name_of(node.src[0])
        where = self.name_of(place_)
        if len(node.src) > 2 and node.src[2].dtype.lanes == 1:
            zero = constant(place_.dtype, 0)
            where = self.let(f"select i1 {self.name_of(node.src[2])}, {type_name(place_.dtype)} {where}, "
                             f"{type_name(place_.dtype)} {zero}")  # fmt: skip
        self.names[node] = self.let(f"getelementptr {elem}, ptr {base}, {type_name(place_.dtype)} {where}")

    def load(self, node: UOp) -> None:
        address = node.src[0]
        slot = self.slot(address)
        if slot is not None:
            self.names[node] = self.values[slot][0]
            return
        dtype = node.dtype
        t = type_name(dtype)
        align = dtype.scalar.itemsize
        pointer = self.name_of(address)
        gate = address.src[2] if len(address.src) > 2 else None
        if node in self.broadcast:
            self.names[node], self.elements[node] = pointer, self.each_element(pointer, dtype)
            return
        if gate is None:
            self.names[node] = self.let(f"load {t}, ptr {pointer}, align {align}")
            return
        other = self.name_of(node.src[1])
        if gate.dtype.lanes == 1 and self.has_room(address, dtype.lanes):
            found = self.let(f"load {t}, ptr {pointer}, align {align}")
            self.names[node] = self.let(f"select i1 {self.name_of(gate)}, {t} {found}, {t} {other}")
            return
        mask = self.mask(gate, dtype.lanes)
        if dtype.lanes == 1:
            raise CompileError("a guarded load from an empty buffer", place=place(node))
        intrinsic = f"llvm.masked.load.{suffix(dtype)}.p0"
        self.declared[f"declare {t} @{intrinsic}(ptr, i32, <{dtype.lanes} x i1>, {t})"] = None
        self.names[node] = self.let(
            f"call {t} @{intrinsic}(ptr {pointer}, i32 {align}, <{dtype.lanes} x i1> {mask}, {t} {other})"
        )

    def has_room(self, address: UOp, lanes: int) -> bool:
        """The first elements of the buffer may be read in place of a guarded access."""
        dtype = address.src[0].dtype
        assert isinstance(dtype, PtrDType)
        return dtype.size >= lanes

    def first_worker(self) -> str:
        """Whether this call has the first piece of the shared axis."""
        return self.let("icmp eq i64 %lo, 0")

    def store(self, node: UOp, alone: bool = False) -> None:
        if not alone:
            self.plain_store(node)
            return
        then, after = self.label("then"), self.label("after")
        self.put(f"br i1 {self.first_worker()}, label %{then}, label %{after}")
        self.start_block(then)
        self.plain_store(node)
        self.put(f"br label %{after}")
        self.start_block(after)

    def plain_store(self, node: UOp) -> None:
        address, value = node.src
        if self.slot(address) is not None:
            for slot, part in self.registers.written(node):
                self.values[slot] = (self.name_of(part), part.dtype)
            return
        if value in self.only_stored:
            self.store_parts(self.name_of(address), value)
            return
        dtype = value.dtype
        t = type_name(dtype)
        pointer = self.name_of(address)
        gate = address.src[2] if len(address.src) > 2 else None
        if gate is None:
            self.put(f"store {t} {self.name_of(value)}, ptr {pointer}, align {dtype.scalar.itemsize}")
            return
        mask = self.mask(gate, dtype.lanes)
        packed, lanes = node.arg == PACKED, f"<{dtype.lanes} x i1>"
        intrinsic = "llvm.masked.compressstore." if packed else "llvm.masked.store."
        intrinsic += suffix(dtype) if packed else f"{suffix(dtype)}.p0"
        align = "" if packed else f"i32 {dtype.scalar.itemsize}, "
        self.declared[f"declare void @{intrinsic}({t}, ptr, {'' if packed else 'i32, '}{lanes})"] = None
        self.put(f"call void @{intrinsic}({t} {self.name_of(value)}, ptr {pointer}, {align}{lanes} {mask})")

    def store_parts(self, pointer: str, value: UOp) -> None:
        """Parts of a vector to registers that are memory, one after the other."""
        elem, start = type_name(value.dtype.scalar), 0
        for part in value.src:
            where = self.let(f"getelementptr {elem}, ptr {pointer}, i64 {start}") if start else pointer
            align = value.dtype.scalar.itemsize
            self.put(f"store {type_name(part.dtype)} {self.name_of(part)}, ptr {where}, align {align}")
            start += part.dtype.lanes

    def slot(self, address: UOp) -> Slot | None:
        """The register that an address means; None for memory."""
        dtype = address.dtype
        if not isinstance(dtype, PtrDType) or dtype.space is not AddrSpace.REG:
            return None
        register = register_of(address)
        return None if register in self.in_memory else (register, address.src[1].arg)

    def vector(self, node: UOp) -> str:
        dtype = node.dtype
        t = type_name(dtype)
        if node.op is Ops.GEP:
            piece = self.pieces.taken(node)
            if piece is not None:
                return piece
            if (rows := turned_rows(node)) is not None:
                return self.transpose(*rows, t)
            x, whole = self.name_of(node.src[0]), type_name(node.src[0].dtype)
            if len(node.arg) == 1:
                return self.let(f"extractelement {whole} {x}, i32 {node.arg[0]}")
            return self.shuffle(whole, x, "poison", node.arg)
        if node.op is Ops.CAT:
            groups = turned_groups(node)
            if groups is not None:
                return self.transpose(*groups[:2], t, groups[2])
            found = self.arch == "x86_64" and picked(self, node)
            return found or self.concatenate(node)
        scalar = type_name(dtype.scalar)
        one = node.src[0]
        if one in self.spread and one.src[0] in self.elements:
            return self.splat(self.elements[one.src[0]][one.arg[0]], dtype)
        if one in self.spread:
            source = one.src[0]
            lanes = one.arg * dtype.lanes
            return self.shuffle(type_name(source.dtype), self.name_of(source), "poison", lanes)
        if is_splat(node):
            return self.splat(self.name_of(node.src[0]), dtype)
        turned = turned_rows(node)
        if turned is not None:
            return self.transpose(*turned, t)
        name = "poison"
        for i, s in enumerate(node.src):
            name = self.let(f"insertelement {t} {name}, {scalar} {self.name_of(s)}, i32 {i}")
        return name

    # --- control flow

    def open_loop(self, position: int, node: UOp) -> None:
        t = type_name(node.dtype)
        end = self.name_of(node.src[0])
        start = "0"
        low = bounds(node.src[0])[0]
        threaded = node.arg[1] is AxisKind.THREAD
        if threaded:
            self.thread = node
            start, end = "%lo", "%hi"
            if node.dtype.bits == 32:
                start, end = self.let("trunc i64 %lo to i32"), self.let("trunc i64 %hi to i32")
        head, exit_ = self.label("loop"), self.label("done")
        before = self.block
        guard = None
        alone = position in self.once
        moved = self.first_places(node, start)
        firsts = self.first_indices(node, start, moved)
        if threaded or alone or low < 1:
            runs = self.let(f"icmp slt {t} {start}, {end}")
            if alone:
                runs = self.let(f"and i1 {runs}, {self.first_worker()}")
            self.put(f"br i1 {runs}, label %{head}, label %{exit_}")
            guard = before
        else:
            self.put(f"br label %{head}")
        loop = Loop(node, head, exit_, end, start, guard)
        self.start_block(head)
        loop.counter = self.fresh()
        self.names[node] = loop.counter
        loop.line = len(self.lines)
        self.lines.append(
            f"  {loop.counter} = phi {t} [ {start}, %{before} ], [ {loop.counter}.next, %LATCH ]"
        )
        self.known_pointers.append({})
        for pointer, first in moved:
            if pointer.indexed:
                continue
            name = self.fresh()
            loop.moved.append((pointer, len(self.lines), name))
            self.known_pointers[-1][pointer] = name
            self.lines.append(f"  {name} = phi ptr [ {first}, %{before} ], [ {name}.next, %LATCH ]")
        indices = self.open_indices(loop, firsts, before)
        for slot in self.written_in.get(position, ()):
            if slot not in self.values:
                continue
            value, dtype = self.values[slot]
            name = self.fresh()
            loop.phis.append((slot, len(self.lines), name, value))
            self.lines.append(f"  {name} = phi {type_name(dtype)} [ {value}, %{before} ], [ NEXT, %LATCH ]")
            self.values[slot] = (name, dtype)
        for pointer, first in moved:
            if pointer.indexed:
                index, elem = indices[pointer.step], self.element(pointer)
                self.known_pointers[-1][pointer] = self.let(f"getelementptr {elem}, ptr {first}, i64 {index}")
        self.loops.append(loop)

    def open_indices(self, loop: Loop, firsts: dict[int, str], before: str) -> dict[int, str]:
        """The indices that pointers of a loop share, by their steps: the counter, or one that moves."""
        found: dict[int, str] = {}
        for step, first in firsts.items():
            if step == 1 and loop.node.dtype.bits == 64:
                found[step] = loop.counter
                continue
            name = found[step] = self.fresh()
            loop.indices.append((step, len(self.lines), name))
            self.lines.append(f"  {name} = phi i64 [ {first}, %{before} ], [ {name}.next, %LATCH ]")
        return found

    def close_loop(self, node: UOp) -> None:
        loop = self.loops.pop()
        t = type_name(loop.node.dtype)
        latch = self.block
        self.known_pointers.pop()
        for pointer, line, name in loop.moved:
            self.lines[line] = self.lines[line].replace("%LATCH", f"%{latch}")
            self.put(f"{name}.next = getelementptr {self.element(pointer)}, ptr {name}, i64 {pointer.step}")
        for step, line, name in loop.indices:
            self.lines[line] = self.lines[line].replace("%LATCH", f"%{latch}")
            self.put(f"{name}.next = add i64 {name}, {step}")
        self.put(f"{loop.counter}.next = add nuw nsw {t} {loop.counter}, 1")
        again = self.let(f"icmp slt {t} {loop.counter}.next, {loop.end}")
        if len(node.src) > 2:  # unless this was the last turn
            again = self.let(f"and i1 {again}, {self.name_of(node.src[2])}")
        self.put(f"br i1 {again}, label %{loop.head}, label %{loop.exit}")
        self.lines[loop.line] = self.lines[loop.line].replace("%LATCH", f"%{latch}")
        ends = []
        for slot, line, _, before in loop.phis:
            value, dtype = self.values[slot]
            self.lines[line] = self.lines[line].replace("NEXT, %LATCH", f"{value}, %{latch}")
            ends.append((slot, before, value, dtype))
        self.start_block(loop.exit)
        if loop.guard is None:
            return
        for slot, before, value, dtype in ends:
            name = self.let(f"phi {type_name(dtype)} [ {before}, %{loop.guard} ], [ {value}, %{latch} ]")
            self.values[slot] = (name, dtype)

    def open_if(self, node: UOp) -> None:
        then, after = self.label("then"), self.label("after")
        self.put(f"br i1 {self.name_of(node.src[0])}, label %{then}, label %{after}")
        self.branches.append((self.block, after, dict(self.values)))
        self.known_pointers.append({})
        self.start_block(then)

    def close_if(self) -> None:
        before, after, values = self.branches.pop()
        self.known_pointers.pop()
        self.put(f"br label %{after}")
        latest = self.block
        self.start_block(after)
        for slot, (value, dtype) in list(self.values.items()):
            old = values.get(slot)
            if old is not None and old[0] != value:
                name = self.let(f"phi {type_name(dtype)} [ {old[0]}, %{before} ], [ {value}, %{latest} ]")
                self.values[slot] = (name, dtype)


def render(
    linear: UOp,
    name: str,
    buffers: int = 0,
    in_place: bool = False,
    fused: bool = True,
    arch: str = "",
    variables: Sequence[str] | None = None,
    cores: int = 1,
    ranges: bool = False,
) -> Program:
    """The kernel as LLVM IR, ready for a compiler.

    `buffers` is how many it was written with: the caller passes all, also those that are not needed now.
    `in_place` says that a fused product overwrites what it is added to, `fused` that there is one.
    `variables`, where they are given, are those that the caller passes. `cores` share a loop.
    `ranges` says that one instruction gives the larger number of two and knows the order of zeros.
    """
    writer = _Kernel(linear.src, name, in_place, fused, arch, ranges)
    writer.write()
    globals_ = sorted((n for n in linear.src if n.op is Ops.DEFINE_GLOBAL), key=lambda n: n.arg)
    written = {memory_of(n.src[0]) for n in linear.src if n.op is Ops.STORE}
    arguments = []
    for n in globals_:
        assert isinstance(n.dtype, PtrDType)
        arguments.append(Argument(n.arg, n.dtype.elem, n.dtype.size, n in written))
    count = max([buffers, *(a.number + 1 for a in arguments)])
    used = sorted({n.arg[0] for n in linear.src if n.op is Ops.DEFINE_VAR})
    passed = used if variables is None else list(variables)
    text, first = _module(writer, arguments, passed, count, pieces_of(linear.src, cores))
    return Program(
        name,
        text,
        tuple(arguments),
        tuple(passed),
        count,
        writer.scratch,
        writer.thread is not None,
        starts=line_numbers(writer.lines, writer.starts, first),
    )


def _module(
    writer: _Kernel, arguments: list[Argument], variables: list[str], count: int, pieces: int
) -> tuple[str, int]:
    """The text, and the number of the line at which the instructions begin."""
    name = writer.name
    access = {True: "noalias", False: "noalias readonly"}
    parameters = [f"ptr {access[a.written]} %g{a.number}" for a in arguments]
    parameters += [f"i64 %v.{v}" for v in variables]
    parameters += ["i64 %lo", "i64 %hi", "ptr noalias %scratch"]
    table, places = table_of_numbers(writer)
    head = f"define internal void @{name}.body({', '.join(parameters)}) #{1 if table else 0} {{"
    begin, end = configured(writer)
    body = [head, "entry:", *places, *begin, *writer.lines]
    body += [*end, "  ret void", "}"]
    entry = [f"define void @{name}(ptr %args, i64 %lo, i64 %hi, ptr %scratch) #0 {{", "entry:"]
    given = []
    for a in arguments:
        entry.append(f"  %p{a.number} = getelementptr ptr, ptr %args, i64 {a.number}")
        entry.append(f"  %g{a.number} = load ptr, ptr %p{a.number}, align 8")
        given.append(f"ptr %g{a.number}")
    for i, v in enumerate(variables, count):
        entry.append(f"  %p{i} = getelementptr i64, ptr %args, i64 {i}")
        entry.append(f"  %v.{v} = load i64, ptr %p{i}, align 8")
        given.append(f"i64 %v.{v}")
    size = size_of(writer.thread)
    if size.isdigit() and int(size) <= pieces:
        pieces = 0
    if pieces:
        entry += [*count_pieces(size, pieces), *bounds_of_pieces(size)]
    given += ["i64 %lo.i", "i64 %hi.i"] if pieces else ["i64 %lo", "i64 %hi"]
    given.append("ptr %scratch")
    entry += [f"  call void @{name}.body({', '.join(given)})", "  ret void", "}"]
    extent = extent_text(name, size, pieces, variables, count, writer.instructions)
    # LLVM has a hundred passes over each function, and some of them take long whatever is in it.
    attributes = ["attributes #0 = { nounwind }", "attributes #2 = { nounwind noinline optnone }"]
    if table:
        # Instructions are ordered as for a processor that runs them in order. The models of others trust that
        # it looks ahead, and it does not look as far as the chain of a polynomial is long.
        attributes.append('attributes #1 = { nounwind "tune-cpu"="generic" }')
    before = [*writer.declared, "", *table]
    text = "\n".join([*before, *body, "", *entry, "", *extent, "", *attributes, ""])
    return text, sum(part.count("\n") + 1 for part in before) + 2 + len(places) + len(begin)
