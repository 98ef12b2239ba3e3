"""An emulated processor with AVX-512, and kernels with their memory on it.

Needs Bochs and the binutils for x86-64, Debian's packages bochs, bochsbios, vgabios and
binutils-x86-64-linux-gnu. A batch of kernels is linked with their memory into one image, which a few lines of
assembly load from a disk and run; what differs from the expected memory comes back through a port.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from morok.device.cpu.llvm import compile_assembly, compile_object
from morok.machine.processor import Processor

HERE = Path(__file__).parent
TOOLS = ("bochs", "x86_64-linux-gnu-as", "x86_64-linux-gnu-ld", "x86_64-linux-gnu-objcopy")
# what Bochs's Ice Lake has, in vectors of the full width
PROCESSOR = Processor(
    "x86_64-unknown-linux-gnu",
    "icelake-client",
    "+avx512f,+avx512vl,+avx512bw,+avx512dq,+avx512cd,+avx512vnni,+avx512vbmi,+avx2,+fma,+f16c,-prefer-256-bit",
)
# What Bochs 2.7 computes wrongly: masks shifted by their whole width but one become empty, and numbers
# between two of half precision are rounded up. Kernels with such instructions cannot be judged here.
FAULTS = re.compile(r"kshiftl(b\s+\$7|w\s+\$15|d\s+\$31|q\s+\$63),|vcvtps2ph")
IMAGE_BYTES = 16 << 20
SECONDS = 300.0
_SECTOR = 512
_ROM_BYTES = 1 << 16
_AROUND = 256  # bytes between regions, of a pattern
_SETTINGS = """
romimage: file={folder}/rom.bin
memory: guest=64, host=64
cpu: model=corei7_icelake_u, count=1, ips=1000000000, reset_on_triple_fault=0
display_library: rfb, options="timeout=0"
port_e9_hack: enabled=1
boot: floppy
log: {folder}/log.txt
panic: action=fatal
plugin_ctrl: unmapped=true, biosdev=true, speaker=false, extfpuirq=true, parallel=false, serial=false
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=disk, path={folder}/disk, mode=flat, cylinders={cylinders}, heads=16, spt=63
"""


@dataclass(frozen=True)
class Job:
    """A kernel's text with its memory before and after; arguments are (region, offset), or nowhere."""

    name: str
    text: str
    scratch: int
    arguments: tuple[tuple[int, int] | None, ...]
    values: tuple[int, ...]
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """About so many bytes of an image."""
        return 2 * sum(len(b) + _AROUND for b in self.before) + self.scratch + 4 * len(self.text)


@dataclass(frozen=True)
class Outcome:
    """What the regions that differ hold; None: the kernel did not come to its end."""

    job: Job
    regions: dict[int, bytes] | None


def can_judge(job: Job) -> bool:
    """Whether the emulator runs all of its instructions as a processor does."""
    return FAULTS.search(compile_assembly(job.text, PROCESSOR)) is None


def missing_tools() -> list[str]:
    """What has to be installed first."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def run(jobs: Sequence[Job], folder: Path) -> Iterator[Outcome]:
    """All of them, in as many images as are needed. One that breaks the machine costs the others nothing."""
    _assemble(HERE / "rom.s", folder / "rom.o")
    script = folder / "rom.ld"
    script.write_text("SECTIONS { . = 0xF0000; .text : { *(.text) } . = 0xFFFF0; .reset : { *(.reset) } }")
    _tool("ld", "-T", script, folder / "rom.o", "-o", folder / "rom.elf")
    _tool("objcopy", "-O", "binary", "--gap-fill", "0", folder / "rom.elf", folder / "rom.bin")
    rom = (folder / "rom.bin").read_bytes()
    (folder / "rom.bin").write_bytes(rom.ljust(_ROM_BYTES, b"\0"))
    left = list(jobs)
    while left:
        room = IMAGE_BYTES
        batch: list[Job] = []
        while left and (not batch or left[0].size <= room):
            batch.append(left.pop(0))
            room -= batch[-1].size
        _image(batch, folder)
        found, is_whole = _outcomes(batch, _run_bochs(folder))
        if not is_whole:  # the last one that began has not ended
            broken = max(len(found) - 1, 0)
            left = batch[broken + 1 :] + left
            found = [*found[:broken], None]
        for job, regions in zip(batch, found, strict=False):
            yield Outcome(job, regions)


def _tool(name: str, *arguments: object) -> None:
    done = subprocess.run([f"x86_64-linux-gnu-{name}", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _assemble(source: Path, target: Path) -> None:
    _tool("as", "--64", source, "-o", target)


def _image(jobs: Sequence[Job], folder: Path) -> None:
    """guest.s, the jobs and their memory at 1 MiB, as a disk."""
    table, data, memory = ["jobs:"], [], bytearray(b"\xcc" * 4096)
    objects = []

    def put(content: bytes) -> int:
        place = len(memory)
        memory.extend(content)
        memory.extend(b"\xcc" * (-len(memory) % 64 + _AROUND))
        return place

    for job in jobs:
        path = folder / f"{job.name}.o"
        path.write_bytes(compile_object(job.text, PROCESSOR))
        objects.append(path)
        regions = [(put(b), put(a), len(b)) for b, a in zip(job.before, job.after, strict=True)]
        scratch = put(bytes(job.scratch))
        places = [0 if at is None else regions[at[0]][0] + at[1] for at in job.arguments]
        data.append(f"args_{job.name}:")
        data += [f"\t.quad memory + {place}" for place in places]
        data += [f"\t.quad {value}" for value in job.values]
        data.append(f"regions_{job.name}:")
        data += [f"\t.quad memory + {work}, memory + {wanted}, {n}" for work, wanted, n in regions]
        table.append(
            f"\t.quad {job.name}, {job.name}.extent, args_{job.name}, memory + {scratch}, "
            f"regions_{job.name}, {len(regions)}"
        )
    (folder / "memory").write_bytes(bytes(memory))
    lines = ["\t.data", "\t.balign 64", *table, "\t.quad 0", *data, "\t.balign 64"]
    lines += ["memory:", f'\t.incbin "{folder / "memory"}"', ""]
    (folder / "image.s").write_text((HERE / "guest.s").read_text(encoding="utf-8") + "\n".join(lines))
    _assemble(folder / "image.s", folder / "image.o")
    _tool("ld", "-static", "-Ttext=0x100000", "-z", "norelro", "-o", folder / "image.elf",
          folder / "image.o", *objects)  # fmt: skip
    _tool("objcopy", "-O", "binary", folder / "image.elf", folder / "image.bin")
    image = (folder / "image.bin").read_bytes()
    sectors = -(-len(image) // _SECTOR)
    cylinders = -(-(sectors + 1) // (16 * 63)) + 1
    disk = struct.pack("<I", sectors).ljust(_SECTOR, b"\0") + image
    (folder / "disk").write_bytes(disk.ljust(cylinders * 16 * 63 * _SECTOR, b"\0"))
    (folder / "settings").write_text(_SETTINGS.format(folder=folder, cylinders=cylinders))
    (folder / "commands").write_text("c\n")


def _run_bochs(folder: Path) -> bytes:
    command = ["bochs", "-q", "-f", str(folder / "settings"), "-rc", str(folder / "commands")]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        return error.stdout or b""
    return done.stdout


def _outcomes(jobs: Sequence[Job], said: bytes) -> tuple[list[dict[int, bytes] | None], bool]:
    """What guest.s has written; whether it came to the end."""
    start = said.find(b"MOROKSTART")
    assert start >= 0, f"the emulated processor did not start: {said[-500:]!r}"
    at = start + len(b"MOROKSTART")
    found: list[dict[int, bytes] | None] = []
    while at < len(said):
        kind, at = said[at : at + 1], at + 1
        if kind == b"K":
            found.append({})
        elif kind == b"R" and found:
            last, number = found[-1], said[at]
            assert last is not None
            size = len(jobs[len(found) - 1].before[number])
            last[number] = said[at + 1 : at + 1 + size]
            at += 1 + size
        else:
            return found, kind == b"E"
    return found, False
