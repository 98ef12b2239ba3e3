"""Only morok/machine, and what speaks to one maker's hardware, knows a chip or a device by its name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "morok"
# Who may: the files themselves, renderers and drivers of one maker, the pool and the linker, which write
# instructions.
ALLOWED = (
    "machine/",
    "render/",
    "device/cuda",
    "device/cpu/pool_ir.py",
    "device/cpu/objects.py",
    "cli/bench/",
)
CHIPS = re.compile(
    r"sm_\d|neoverse|cortex|avx|\bsse\d|aarch64|arm64|x86|\bneon\b|\bamx|[hab][12]00\b|hopper|ampere", re.I
)
DEVICES = frozenset(("CPU", "CUDA", "EMULATOR", "PYTHON"))
NAMELESS = ("schedule/", "optimize/", "codegen/")
# Facts and rates that were constants once. What is left is the definition of an instruction, not of a chip.
FACTS = re.compile(
    r"^_?(WARP|LINE|REGISTERS|ISSUE|LAUNCH|LATENCY|WAKE|OPS_PER_BYTE|\w+_RATE|\w+_SHAPES|DEAR_OPS)$"
)
INSTRUCTIONS = {"codegen/gpu/shared.py": {"LINE"}}  # bytes that the banks of shared memory give at once


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """All strings that are no docstrings."""
    described = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            yield node.lineno, node.value


def complaints(name: str, text: str) -> list[str]:
    """What a file of the package may not say."""
    if name.startswith(ALLOWED) or name == "knobs.py":  # whose help has examples
        return []
    tree = ast.parse(text)
    found = [f"{name}:{line}: names a chip: {s!r}" for line, s in texts(tree) if CHIPS.search(s)]
    if name.startswith(NAMELESS):
        found += [f"{name}:{line}: names a device: {s!r}" for line, s in texts(tree) if s in DEVICES]
        for node in tree.body:
            for target in node.targets if isinstance(node, ast.Assign) else ():
                for part in ast.walk(target):
                    if isinstance(part, ast.Name) and FACTS.match(part.id):
                        if part.id not in INSTRUCTIONS.get(name, ()):
                            found.append(f"{name}:{node.lineno}: {part.id} belongs into a machine's file")
    return found


def test_chips_are_known_to_machines_only() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        found += complaints(path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8"))
    assert found == []


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("codegen/gpu.py", "_SHARED = {'sm_80': 163}", "names a chip"),
        ("device/host.py", "wide = 'avx512f' in flags", "names a chip"),
        ("schedule/graph/scans.py", "IN_RUNS = frozenset(('CUDA',))", "names a device"),
        ("schedule/costs.py", "LAUNCH = 20_000.0", "LAUNCH belongs into"),
        ("optimize/heuristics/gpu/matmul.py", "UNIT_RATE, STORE_RATE = 1800, 18", "STORE_RATE belongs into"),
    ],
)
def test_what_was_there_is_found(name: str, text: str, complaint: str) -> None:
    assert any(complaint in line for line in complaints(name, text))


def test_docstrings_may_tell_stories() -> None:
    assert complaints("codegen/vector/vector_constants.py", '"""Taken for all true on AArch64."""') == []
