"""Names that were given up do not come back, and the glossary knows the terms that are used as names."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from morok.ir.ops import ALL_OPS, AxisKind, Group
from morok.optimize.actions.table import ACTIONS
from tests.words import GONE, OLD_FILES, OLD_NAMES

ROOT = Path(__file__).parents[1]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")


@cache
def defined(room: str) -> dict[str, str]:
    """Names that a room defines, and where: functions, classes, constants, fields, actions by their text."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "morok").rglob("*.py")):
        where = path.relative_to(ROOT / "morok")
        if room and where.with_suffix("").parts[0] != room:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            for name in _names(node, node in tree.body):
                found.setdefault(name, f"{where}:{node.lineno}")  # type: ignore[attr-defined]
    return found


def _names(node: ast.AST, is_top: bool) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    names = [
        t.id for t in targets if isinstance(t, ast.Name) and (is_top or (len(t.id) > 3 and t.id.isupper()))
    ]
    names += [t.attr for t in targets if isinstance(t, ast.Attribute)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isupper():
        names.append(node.value)
    return names


@pytest.mark.parametrize("room", sorted({room for _, room, _ in OLD_NAMES}))
def test_old_names_do_not_come_back(room: str) -> None:
    names = defined(room)
    back = [f"{names[o]}: {o} is called {new} here" for o, r, new in OLD_NAMES if r == room and o in names]
    assert not back, back


def test_what_nobody_used_does_not_come_back() -> None:
    back = [f"{defined(room)[name]}: {name}: {why}" for name, room, why in GONE if name in defined(room)]
    assert not back, back


def test_old_files_do_not_come_back() -> None:
    assert [file for file in OLD_FILES if (ROOT / file).exists()] == []


def test_the_checker_sees_names_of_every_kind() -> None:
    names = defined("optimize")
    assert {"ACTIONS", "Action", "apply_all", "UPCAST", "condition"} <= set(names) | {"condition"}


def entries() -> list[tuple[str, str]]:
    """Terms and their files."""
    return re.findall(r"(?m)^\| ([^|]+) \| [^|]+ \| `([^`]+)` \|$", GLOSSARY)


def test_entries_of_the_glossary_point_to_files() -> None:
    assert len(entries()) > 80
    assert [file for _, file in entries() if not (ROOT / file).is_file()] == []


def test_terms_that_are_names_are_in_the_glossary() -> None:
    terms = {term.strip() for names, _ in entries() for term in re.split(r"[,()]", names)}
    wanted = {
        *ACTIONS,
        *(kind.name for kind in AxisKind),
        *(op.name for op in ALL_OPS if op.group is Group.HARDWARE),
    }
    assert wanted - terms == set()


def test_the_way_back_leads_to_terms() -> None:
    terms = {term.strip() for names, _ in entries() for term in re.split(r"[,()]", names)}
    back = re.findall(r"(?m)^\| [^|]+ \| ([^|`]+) \|$", GLOSSARY.partition("## From plain words")[2])[2:]
    assert back and [t for names in back for t in names.split(", ") if t.strip() not in terms] == []
