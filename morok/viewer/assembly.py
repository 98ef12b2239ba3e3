"""Facts of machine code: which line of the text an instruction comes from, registers, memory on the stack."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

from morok.errors import MorokError
from morok.render.locations import read_locations
from morok.viewer.columns import Column

_VECTORS = re.compile(r"%?\b(?:[vqdsz](\d{1,2})(?:\.\w+)?|[xyz]mm(\d{1,2}))\b")
_GENERAL = re.compile(r"%?\b(?:[xw](\d{1,2})|r(\d{1,2})[dwb]?|[re]?(ax|bx|cx|dx|si|di|bp))\b")
_STACK = re.compile(r"sub\s+(?:sp|x\d+), sp, #(\d+)(, lsl #12)?|subq\s+\$(\d+), %rsp")
_REGISTER_COUNT = 0x2F  # EIATTR_REGCOUNT: registers of a function, in the notes of a cubin


def assembled(make: Callable[[], str]) -> dict[str, Any]:
    """Assembly, which is made now or was in the background: its lines, their places, its facts."""
    try:
        text = make()
    except MorokError as error:
        return {"text": "", "rows": Column(), "missing": str(error)}
    except Exception as error:  # a compiler that is half installed must not cost the page
        return {"text": "", "rows": Column(), "missing": f"{type(error).__name__}: {error}"}
    found = list(read_locations(text))
    lines = [line for line, _ in found]
    data: dict[str, Any] = {"text": "\n".join(lines), "rows": Column([row for _, row in found])}
    return data | ({} if ".entry" in text else {"facts": host_facts(lines)})


def host_facts(lines: list[str]) -> dict[str, int]:
    """Registers that the code of a processor names, and bytes of its largest function on the stack."""
    vectors: set[str] = set()
    general: set[str] = set()
    stack = own = 0
    for line in lines:
        vectors.update(a or b for a, b in _VECTORS.findall(line))
        general.update(a or b or c for a, b, c in _GENERAL.findall(line))
        if line.rstrip().endswith(":") and not line.startswith("."):
            own = 0  # another function
        for arm, pages, intel in _STACK.findall(line):
            own += int(arm or intel) << (12 if pages else 0)
            stack = max(stack, own)
    return {"vector registers": len(vectors), "general registers": len(general), "stack bytes": stack}


def cubin_registers(code: bytes) -> int | None:
    """Registers of a thread, as the notes of a cubin (an ELF file) say; None if it is something else."""
    if code[:6] != b"\x7fELF\x02\x01":
        return None
    start, size, count = (*struct.unpack_from("<Q", code, 40), *struct.unpack_from("<HH", code, 58))
    best = None
    for i in range(count):
        at = start + i * size
        kind, _, _, offset, length = struct.unpack_from("<IQQQQ", code, at + 4)
        if kind != 0x70000000:  # SHT_LOPROC: .nv.info
            continue
        here, end = offset, offset + length
        while here + 4 <= end:
            form, attribute, value = struct.unpack_from("<BBH", code, here)
            if form == 4 and attribute == _REGISTER_COUNT and value >= 8:
                registers = struct.unpack_from("<I", code, here + 8)[0]
                best = registers if best is None else max(best, registers)
            here += 4 + (value if form == 4 else 0)
    return best
