"""Object code into memory, without LLVM: the few sections and relocations that kernels have.

A process that finds its kernels on disk needs of LLVM only a linker, and loading LLVM takes longer than all
of its kernels. The image is laid out so that every reference within it is relative; functions of the system
are reached through stubs at its end. It is written to memory that has a file's descriptor and mapped from
there, as the system's own loader does it: so nobody can write to what runs, and the system sees to the
instruction cache. What is not known here (another format, another relocation) is left to LLVM.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

_ALIGN = 16  # of a stub
_ALLOCATED, _IN_FILE, _TABLE = (
    2,
    1,
    4,
)  # flag of a section in memory; kinds of sections: with data, relocations
_UNWINDING = (".eh_frame",)  # nothing in a kernel throws
_HEADER = struct.Struct("<4s5B7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
_SPECIAL = 0xFF00  # numbers of sections that are none: absolute and common symbols

# Puts an offset, seen from a place, into the code there.
Patch = Callable[[bytearray, int, int], None]


class Unknown(Exception):
    """Something that is left to LLVM."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


def _field(shift: int, bits: int, scale: int = 0, signed: bool = False) -> Callable[[int], int]:
    """A number as a part of an instruction; it must be a multiple, and fit."""

    def placed(value: int) -> int:
        if value & ((1 << scale) - 1):
            raise Unknown("a place is not aligned")
        value >>= scale
        if signed and not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise Unknown("a place is too far away")
        return (value & ((1 << bits) - 1)) << shift

    return placed


def _in_word(mask: int, value: Callable[[int, int], int]) -> Patch:
    """Into an instruction of 32 bits: what it had in those bits is replaced."""

    def patch(image: bytearray, at: int, target: int) -> None:
        (word,) = struct.unpack_from("<I", image, at)
        struct.pack_into("<I", image, at, word & ~mask | value(at, target))

    return patch


def _page(at: int, target: int) -> int:
    """The distance between pages, in the two parts that ADRP has it in."""
    pages = (target >> 12) - (at >> 12)
    if not -(1 << 20) <= pages < 1 << 20:
        raise Unknown("a page is too far away")
    return (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5


def _low(scale: int) -> Patch:
    """The place within its page, in units of an access."""
    field = _field(10, 12 - scale, scale)
    return _in_word(0xFFF << 10, lambda at, target: field(target & 0xFFF))


_BRANCH = _field(0, 26, 2, signed=True)
_call = _in_word((1 << 26) - 1, lambda at, target: _BRANCH(target - at))


def _relative(image: bytearray, at: int, target: int) -> None:
    distance = target - at
    if not -(1 << 31) <= distance < 1 << 31:
        raise Unknown("a place is too far away")
    struct.pack_into("<i", image, at, distance)


class Machine(NamedTuple):
    """How a processor's code refers to other places, by the numbers of the format."""

    number: int
    patches: dict[int, Patch]
    stub: bytes  # jumps to the address that follows it


MACHINES = {
    "aarch64": Machine(
        183,
        {
            275: _in_word(3 << 29 | 0x7FFFF << 5, _page),
            277: _low(0),
            278: _low(0),
            284: _low(1),
            285: _low(2),
            286: _low(3),
            299: _low(4),
            261: _relative,
            282: _call,
            283: _call,
        },
        struct.pack("<II", 0x58000050, 0xD61F0200),  # ldr x16, the address; br x16
    ),
    "x86_64": Machine(
        62,
        {2: _relative, 4: _relative},
        b"\xff\x25\x02\x00\x00\x00\x66\x90",  # jmp to the address two bytes on
    ),
}


def linked(
    code: bytes, symbols: Sequence[str], machine: Machine, address_of: Callable[[str], int]
) -> tuple[bytes, dict[str, int]]:
    """The image of an object file, and where symbols stand in it."""
    try:
        return _linked(code, symbols, machine, address_of)
    except (struct.error, IndexError, ValueError, UnicodeDecodeError, LookupError) as error:
        raise Unknown(f"this is no object file: {error}") from None


def _linked(
    code: bytes, symbols: Sequence[str], machine: Machine, address_of: Callable[[str], int]
) -> tuple[bytes, dict[str, int]]:
    magic, wide, order, *_, kind, number, _, _, _, table, _, _, _, _, size, count, names = (
        _HEADER.unpack_from(code)
    )
    if (magic, wide, order, kind, number, size) != (b"\x7fELF", 2, 1, 1, machine.number, _SECTION.size):
        raise Unknown("not an object of this processor")
    sections = [_Section(*_SECTION.unpack_from(code, table + n * size)) for n in range(count)]
    image, places = _laid_out(code, sections, sections[names].offset)
    references = [s for s in sections if s.kind == _TABLE and s.info in places]
    tables = [s for s in sections if s.kind == 2]
    if len(tables) != 1 or any(s.kind in (9, 19) for s in sections):
        raise Unknown("more than one table of symbols, or another kind of relocations")
    symbol = _Symbols(code, tables[0], sections[tables[0].link].offset, places)
    stubs: dict[int, int] = {}
    for section in references:
        base = places[section.info]
        for at in range(section.offset, section.offset + section.size, _RELOCATION.size):
            offset, what, which, more = _RELOCATION.unpack_from(code, at)
            patch = machine.patches.get(what)
            if patch is None:
                raise Unknown(f"a relocation of kind {what}")
            place = symbol.place(which)
            if place is None:
                if which not in stubs:
                    image += bytes(-len(image) % _ALIGN)
                    stubs[which] = len(image)
                    image += machine.stub + struct.pack("<Q", address_of(symbol.name(which)))
                place = stubs[which]
            patch(image, base + offset, place + more)
    return bytes(image), symbol.places(symbols)


def _laid_out(code: bytes, sections: Sequence[_Section], names: int) -> tuple[bytearray, dict[int, int]]:
    """What has to be in memory, one after the other, and where each section begins.

    Data that could be written are among it: kernels keep numbers there, and never write to them.
    """
    image, places = bytearray(), {}
    for number, section in enumerate(sections):
        if not section.flags & _ALLOCATED or _text(code, names + section.name) in _UNWINDING:
            continue
        if section.kind != _IN_FILE and section.size:
            raise Unknown(f"a section of kind {section.kind}")
        if section.offset + section.size > len(code) or section.align > mmap.PAGESIZE:
            raise Unknown("a section that is not there")
        image += bytes(-len(image) % max(1, section.align))
        places[number] = len(image)
        image += code[section.offset : section.offset + section.size]
    return image, places


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode()


class _Symbols:
    """The table of symbols of an object file."""

    def __init__(self, code: bytes, table: _Section, names: int, places: dict[int, int]) -> None:
        self._code, self._names, self._places = code, names, places
        end = table.offset + table.size
        self._all = [_SYMBOL.unpack_from(code, at) for at in range(table.offset, end, _SYMBOL.size)]

    def name(self, number: int) -> str:
        return _text(self._code, self._names + self._all[number][0])

    def place(self, number: int) -> int | None:
        """Where it stands in the image; None if it is somebody else's."""
        section: int = self._all[number][3]
        value: int = self._all[number][4]
        if section == 0:
            return None
        if section >= _SPECIAL or section not in self._places:
            raise Unknown("a symbol outside of the sections")
        return self._places[section] + value

    def places(self, wanted: Sequence[str]) -> dict[str, int]:
        known = {self.name(n): n for n, row in enumerate(self._all) if row[3] and row[0]}
        found = {}
        for name in wanted:
            place = self.place(known[name])
            assert place is not None
            found[name] = place
        return found


@cache
def _system() -> Any:
    """The system's own functions, with the types of the few that are called here."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc


def _address_of(name: str) -> int:
    try:
        found: int | None = ctypes.cast(getattr(_system(), name), ctypes.c_void_p).value
    except AttributeError:
        found = None
    if not found:
        raise Unknown(f"the system has no {name}")
    return found


class Image:
    """Linked code in memory that nobody can write to. The memory goes back when the object dies."""

    __slots__ = ("__weakref__", "address", "close")

    def __init__(self, image: bytes) -> None:
        libc = _system()
        try:
            file = os.memfd_create("morok-kernel", os.MFD_CLOEXEC)
        except OSError as error:
            raise Unknown(f"no memory with a descriptor: {error}") from None
        try:
            rest = memoryview(image)
            while rest:
                rest = rest[os.write(file, rest) :]
            found = libc.mmap(None, len(image), mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file, 0)
        except OSError as error:
            raise Unknown(f"no room for code: {error}") from None
        finally:
            os.close(file)
        if found is None or found == ctypes.c_void_p(-1).value:
            raise Unknown("the system maps no code")
        self.address: int = found
        self.close = weakref.finalize(self, libc.munmap, found, len(image))
        self.close.atexit = False  # somebody may still run it then


def link(code: bytes, symbols: Sequence[str]) -> tuple[Image, dict[str, int]] | None:
    """Object code in memory with the addresses of its symbols; None if LLVM has to do it."""
    if not hasattr(os, "memfd_create"):  # another system
        return None
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        return None
    try:
        image, places = linked(code, symbols, machine, _address_of)
        loaded = Image(image)
    except Unknown:
        return None
    return loaded, {name: loaded.address + place for name, place in places.items()}
