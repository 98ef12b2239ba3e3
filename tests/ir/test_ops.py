"""The op table and the page that is generated from it."""

import pickle
from pathlib import Path

import pytest

from morok.cli.main import main
from morok.ir.arithmetic.alu import MEANING
from morok.ir.document import ops_page
from morok.ir.ops import (
    ALL_OPS,
    ALU,
    BINARY,
    COMMUTATIVE,
    TERNARY,
    UNARY,
    VARIADIC,
    AxisKind,
    Group,
    Ops,
    op_by_name,
    ops_by_group,
)

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"


def test_the_page_of_ops_is_current() -> None:
    assert PAGE.exists() and PAGE.read_text(encoding="utf-8") == ops_page(), (
        "docs/ops.md does not show the op table any more; write it again with `python -m morok docs`"
    )


def test_the_command_writes_and_checks_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "--into", str(tmp_path), "--check"]) != 0
    assert "out of date" in capsys.readouterr().err
    assert main(["docs", "--into", str(tmp_path)]) == 0
    assert main(["docs", "--into", str(tmp_path), "--check"]) == 0
    assert (tmp_path / "ops.md").read_text(encoding="utf-8") == ops_page()


def test_there_are_80_ops_or_more_each_with_one_line() -> None:
    assert len(ALL_OPS) >= 80
    for op in ALL_OPS:
        assert op.meaning and "\n" not in op.meaning
        assert f"| `{op.name}` |" in ops_page()


def test_every_op_is_in_one_group_and_every_group_has_ops() -> None:
    groups = dict(ops_by_group())
    assert set(groups) == set(Group)
    assert sum(map(len, groups.values())) == len(ALL_OPS)
    assert all(groups.values())


def test_arity_follows_the_group() -> None:
    for ops, arity in ((UNARY, 1), (BINARY, 2), (TERNARY, 3)):
        assert {op.arity for op in ops} == {arity}
    assert UNARY | BINARY | TERNARY == ALU == set(MEANING)
    assert all(op.arity == 2 for op in COMMUTATIVE)
    assert all(op.arity >= 0 or op.arity == VARIADIC for op in ALL_OPS)


def test_ops_are_unique_objects() -> None:
    assert op_by_name("ADD") is Ops.ADD
    assert pickle.loads(pickle.dumps(Ops.ADD)) is Ops.ADD
    assert len({op.name for op in ALL_OPS}) == len({op.number for op in ALL_OPS}) == len(ALL_OPS)
    assert repr(Ops.ADD) == "Ops.ADD"


def test_kinds_of_axes_have_an_order() -> None:
    assert sorted(AxisKind) == list(AxisKind)
    assert repr(AxisKind.LOOP) == "AxisKind.LOOP"
