"""The key of the store follows from what compilation imports: editing any of those files makes new keys."""

import ast
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import morok
from morok.device import version
from morok.device.store import DiskStore
from morok.device.version import ENTRIES, compiler_version, digest, import_closure, version_of

PACKAGE = Path(morok.__file__).parent
SOURCES = import_closure(PACKAGE)


def parsed_imports(text: bytes) -> Iterator[str]:
    """What a module imports of the package, from Python's own parser, without imports for type checkers."""
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "names of modules are written out"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.stmt | ast.Module | ast.excepthandler):
            waiting += ast.iter_child_nodes(node)


def test_it_finds_what_the_parser_finds() -> None:
    modules = {
        ".".join(("morok", *p.relative_to(PACKAGE).with_suffix("").parts)) for p in PACKAGE.rglob("*.py")
    }
    modules = {name.removesuffix(".__init__") for name in modules}
    wanted = {found for text in SOURCES.values() for found in parsed_imports(text)} & modules
    begins = set(ENTRIES) | {name for name in modules if name.rpartition(".")[2].startswith(version.WRITERS)}
    names = [name.split(".") for name in wanted | begins]
    packages = {".".join(parts[:i]) for parts in names for i in range(1, len(parts))} | {"morok"}
    assert wanted | packages | begins == SOURCES.keys()


def test_what_was_left_out_once_is_in() -> None:
    shaping = (
        "schedule.graph.attention.online_softmax",
        "schedule.kernel.ranges",
        "schedule.costs",
        "optimize.heuristics.cpu",
        "codegen.vector.expand",
    )
    for name in (
        *shaping,
        "render.llvm.kernel",
        "tensor.arrays.written_order",
        "device.cpu.llvm",
        "symbolic.divmod",
        "dtype.types",
        "knobs",
        "ir.arithmetic.alu",
    ):
        assert f"morok.{name}" in SOURCES
    tensors = {n for n in SOURCES if n.startswith("morok.tensor") and f".{version.WRITERS}" not in n}
    assert tensors == {"morok.tensor", "morok.tensor.arrays"}  # of what writes kernels by hand the packages
    assert not any(name.startswith(("morok.nn", "morok.cli")) for name in SOURCES)


def test_every_module_changes_the_key() -> None:
    usual = digest(SOURCES)
    assert compiler_version().endswith(usual)
    for name, text in SOURCES.items():
        assert digest({**SOURCES, name: text + b"#"}) != usual, name
    assert digest({**SOURCES, "morok.ir.new": b""}) != usual


@pytest.mark.parametrize(
    "name",
    ["schedule/graph/attention/online_softmax.py", "schedule/kernel/ranges.py", "render/llvm/kernel.py"],
)
def test_an_edited_file_changes_the_key(tmp_path: Path, name: str) -> None:
    copy = tmp_path / "morok"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert import_closure(copy) == SOURCES
    (copy / name).write_text((copy / name).read_text() + "\n# changed\n")
    assert digest(import_closure(copy)) != digest(SOURCES)


def test_an_import_that_is_new_is_followed(tmp_path: Path) -> None:
    copy = tmp_path / "morok"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "codegen" / "fresh.py").write_text("def f(): ...\n")
    assert "morok.codegen.fresh" not in import_closure(copy)
    with (copy / "device" / "lowering.py").open("a") as file:
        file.write(
            "\n\ndef late():\n    from morok.codegen import (\n        fresh,\n    )\n    return fresh\n"
        )
    ast.parse((copy / "device" / "lowering.py").read_text())
    assert "morok.codegen.fresh" in import_closure(copy)


def test_a_kept_hash_is_that_of_files_nobody_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "morok"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    kept = DiskStore(str(tmp_path / "cache"))
    read: list[Path] = []
    monkeypatch.setattr(
        version, "import_closure", lambda root, entries: [read.append(root), import_closure(root, entries)][1]
    )
    usual = digest(SOURCES)
    assert [version_of(copy, kept) for _ in range(2)] == [usual] * 2
    assert len(read) == 2  # files that were written just now could be written again in the same moment
    monkeypatch.setattr(version, "_SETTLED", -60.0)
    assert [version_of(copy, kept) for _ in range(3)] == [usual] * 3
    assert len(read) == 3
    edited = copy / "render" / "llvm" / "kernel.py"
    before = edited.stat()
    edited.write_bytes(edited.read_bytes().replace(b"define", b"DEFINE"))  # as long, and as old as it was
    os.utime(edited, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = version_of(copy, kept)
    assert changed != usual
    assert changed == digest(import_closure(copy))
    (copy / "codegen" / "fresh.py").write_text("")
    assert version_of(copy, kept) == changed  # looked at again: nobody imports it
    assert len(read) == 5


def test_a_damaged_entry_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "_SETTLED", -60.0)
    kept = DiskStore(str(tmp_path))
    usual = version_of(PACKAGE, kept)
    kept._guarded(lambda c: c.execute("update versions set version = 'another'"))
    assert version_of(PACKAGE, kept) == usual
    kept.close()
