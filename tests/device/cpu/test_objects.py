"""Object code that is put into memory without LLVM: the same addresses within, and what is left to LLVM."""

import ctypes
import os
import struct
import subprocess
import sys

import pytest

from morok.device.cpu import llvm
from morok.device.cpu.llvm import Code, compile_object, host
from morok.device.cpu.objects import MACHINES, Unknown, link, linked
from morok.machine.processor import Processor

HERE = MACHINES.get(host().arch)
needs_here = pytest.mark.skipif(HERE is None, reason="objects of this processor are LLVM's business")

TABLE = """
@numbers = internal global [4 x i64] [i64 3, i64 5, i64 7, i64 11], align 16
define internal i64 @at(i64 %i) noinline nounwind {
  %p = getelementptr i64, ptr @numbers, i64 %i
  %x = load i64, ptr %p, align 8
  ret i64 %x
}
define i64 @answer(i64 %i) nounwind {
  %x = call i64 @at(i64 %i)
  %y = mul i64 %x, 100
  ret i64 %y
}
define double @half(double %x) nounwind {
  %y = fmul double %x, 0x3FDFFFFFFFFFFFF1
  ret double %y
}
"""
OUTSIDE = """
declare i64 @strlen(ptr)
define i64 @length(ptr %s) nounwind {
  %n = call i64 @strlen(ptr %s)
  ret i64 %n
}
"""


def call(address: int, kind: type, *arguments: object) -> object:
    return ctypes.CFUNCTYPE(kind, *(type(a) for a in arguments))(address)(*arguments)


@needs_here
def test_what_is_linked_runs() -> None:
    found = link(compile_object(TABLE), ("answer", "half"))
    assert found is not None
    _, addresses = found
    assert [call(addresses["answer"], ctypes.c_int64, ctypes.c_int64(i)) for i in range(4)] == [
        300,
        500,
        700,
        1100,
    ]
    assert call(addresses["half"], ctypes.c_double, ctypes.c_double(8.0)) == 8.0 * float.fromhex(
        "0x1.ffffffffffff1p-2"
    )


@needs_here
def test_functions_of_the_system_are_far_away() -> None:
    found = link(compile_object(OUTSIDE), ("length",))
    assert found is not None
    _, addresses = found
    assert call(addresses["length"], ctypes.c_int64, ctypes.c_char_p(b"twelve bytes")) == 12


@needs_here
def test_memory_goes_back() -> None:
    code, _ = link(compile_object(TABLE), ("answer",)) or (None, None)
    assert code is not None

    def is_mapped(address: int) -> bool:
        with open("/proc/self/maps", encoding="ascii") as maps:
            return any(line.startswith(f"{address:x}-") for line in maps)

    address = code.address
    with open("/proc/self/maps", encoding="ascii") as maps:
        (line,) = [line for line in maps if line.startswith(f"{address:x}-")]
    assert "r-x" in line  # nobody writes to it
    del code
    assert not is_mapped(address)


def test_llvm_links_what_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "link", lambda code, symbols: None)
    code = Code(compile_object(TABLE), ("answer",))
    assert call(code.addresses["answer"], ctypes.c_int64, ctypes.c_int64(2)) == 700


@pytest.mark.parametrize("arch", MACHINES)
def test_no_damaged_object_is_taken(arch: str) -> None:
    code = compile_object(TABLE, Processor(f"{arch}-unknown-linux-gnu", "generic"))
    image, places = linked(code, ("answer", "half"), MACHINES[arch], lambda name: 0)
    assert places["answer"] < len(image) and places["half"] < len(image)
    for size in (0, 3, 40, 64, 100, len(code) - 200, len(code) - 1):
        with pytest.raises(Unknown):
            linked(code[:size], ("answer", "half"), MACHINES[arch], lambda name: 0)
    with pytest.raises(Unknown):  # no such symbol
        linked(code, ("question",), MACHINES[arch], lambda name: 0)
    other = next(name for name in MACHINES if name != arch)
    with pytest.raises(Unknown, match="not an object of this processor"):
        linked(code, ("answer",), MACHINES[other], lambda name: 0)


def test_references_of_x86() -> None:
    """A call to a neighbour and to the system: the distance from the end of the instruction."""
    processor = Processor("x86_64-unknown-linux-gnu", "generic")
    image, places = linked(
        compile_object(OUTSIDE, processor), ("length",), MACHINES["x86_64"], lambda name: 0x1234567890
    )
    at = image.index(b"\xe8" if b"\xe8" in image[places["length"] :] else b"\xe9", places["length"])
    (distance,) = struct.unpack_from("<i", image, at + 1)
    stub = at + 5 + distance
    assert image[stub : stub + 2] == b"\xff\x25"  # jumps to the address that is written ...
    (offset,) = struct.unpack_from("<i", image, stub + 2)
    assert struct.unpack_from("<Q", image, stub + 6 + offset) == (0x1234567890,)


def test_fields_that_are_too_small() -> None:
    image = bytearray(struct.pack("<I", 0x94000000))
    with pytest.raises(Unknown, match="too far"):
        MACHINES["aarch64"].patches[283](image, 0, 1 << 28)
    with pytest.raises(Unknown, match="aligned"):
        MACHINES["aarch64"].patches[286](image, 0, 12)
    MACHINES["aarch64"].patches[283](image, 0, -4)
    assert struct.unpack("<I", image) == (0x97FFFFFF,)  # bl to the instruction before


def test_the_processor_is_asked_once(tmp_path: object) -> None:
    """A second process finds what LLVM said of the processor, and does not load LLVM."""
    program = (
        "import sys; from morok.device.cpu.llvm import host; print(host()); print('llvmlite' in sys.modules)"
    )
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "MOROK_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(done.stdout.splitlines())
    assert said[0][0] == said[1][0] == str(host())
    assert (said[0][1], said[1][1]) == ("True", "False")


def test_what_changes_by_itself_is_no_other_processor(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "cpuinfo")

    def key(text: str) -> str | None:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return llvm.host_key(path)

    again = "processor\t: 0\ncpu MHz\t\t: 3000\nflags\t\t: avx2\n\nprocessor\t: 1\nflags\t\t: avx2\n"
    plain = key("processor\t: 0\ncpu MHz\t\t: 800.1\nflags\t\t: avx2\n")
    assert plain == key(again)
    assert plain != key("processor\t: 0\ncpu MHz\t\t: 800.1\nflags\t\t: avx2 avx512f\n")
    assert llvm.host_key(path + ".none") is None
