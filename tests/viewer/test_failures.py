"""A page is written of a run that fails, too, and says what the compiler was at."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import morok
from morok import Tensor, knobs
from morok.cli.script import run_script
from morok.codegen import pipeline
from morok.device.cpu.device import CPU
from morok.errors import CompileError, RewriteCycle, SpecError
from morok.ir.build import rng, sink
from morok.ir.node import UOp
from morok.rewrite.engine import rewrite
from morok.rewrite.rules import Rules, grows
from morok.rewrite.ruleset import REGISTRY, rules
from morok.rewrite.terms import Add, Sub, Var
from tests.codegen.kernels import buffers, read, write
from tests.viewer.recorded import data_of


@pytest.fixture(autouse=True)
def _leave_the_registry_alone() -> Any:
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def test_rules_that_undo_each_other(tmp_path: Path) -> None:
    @rules("test.round")
    def around(x: Var, y: Var) -> Rules:
        yield "there", Add(x, y) >> Sub(x, y), grows("for the test")
        yield "back", Sub(x, y) >> Add(x, y), grows("for the test")

    page = tmp_path / "run.html"
    with pytest.raises(RewriteCycle), morok.view(page):
        rewrite(sink(rng(8, 0) + rng(4, 1)), around)
    index, _ = data_of(page)
    (error,) = index["errors"]
    assert error["type"] == "RewriteCycle" and error["cycle"]
    (stopped,) = error["stopped"]
    assert stopped["kind"] == "rules" and stopped["changes"] == len(stopped["rules"]) >= 1
    assert {error["graphs"]["strings"][r] for r in stopped["rules"]} == {
        "test.round.there",
        "test.round.back",
    }
    assert any(index["files"][file]["name"] == "test_failures.py" for file, _ in error["frames"])


def test_a_stage_that_breaks_its_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "run.html"
    broken = [s for s in pipeline.STAGES if s.name == "add loads"]
    assert broken

    def fail(self: object, root: UOp, ctx: object) -> UOp:
        if getattr(self, "name", "") == "add loads":
            raise SpecError("a LOAD of something that is no address")
        return original(self, root, ctx)

    original = type(broken[0]).apply
    monkeypatch.setattr(type(broken[0]), "apply", fail)
    with knobs.override(DEVICE="CPU"), pytest.raises(SpecError), morok.view(page):
        (Tensor(np.ones(77, np.float32)) * 3).realize()
    index, chunks = data_of(page)
    (error,) = index["errors"]
    assert [c["kind"] for c in error["stopped"]][:2] == ["kernel", "stage"]
    assert error["stopped"][1]["name"] == "add loads"
    (kernel,) = index["kernels"]
    assert not kernel["whole"]
    last = chunks[kernel["chunk"]]["stages"][-1]
    assert last["failed"] and last["name"] == "add loads" and last["after"] == -1


def test_a_kernel_that_is_not_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads every second element of four: PROVE=1 refuses it, and the page shows which access."""
    pytest.importorskip("z3")
    from morok.device import prove

    monkeypatch.setattr(prove, "totals", prove.Totals())  # it is none of those that a whole run counts
    o, x = buffers(4, 4)
    r = rng(4, 0)
    page = tmp_path / "run.html"
    with knobs.override(PROVE=1), pytest.raises(CompileError, match="leaves its memory"), morok.view(page):
        CPU().compile(sink(write(o, r, read(x, r * 2), r)), "bad")
    index, chunks = data_of(page)
    (error,) = index["errors"]
    assert error["type"] == "CompileError" and "leaves its memory" in error["message"]
    (kernel,) = index["kernels"]
    assert kernel["name"] == "bad" and kernel["proof"]["status"] == "refuted"
    assert kernel["proof"]["open"][0]["kind"] == "bounds" and kernel["proof"]["open"][0]["refuted"]
    assert kernel["proof"]["open"][0]["instruction"] >= 0
    assert chunks[kernel["chunk"]]["list"]


def test_code_that_the_compiler_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from morok.device.cpu import device

    def refuse(text: str, processor: object = None, level: int = 2) -> str:
        raise CompileError("LLVM refused the generated code: no such instruction")

    monkeypatch.setattr(device, "compile_assembly", refuse)
    page = tmp_path / "run.html"
    with knobs.override(DEVICE="CPU"), pytest.raises(CompileError), morok.view(page):
        (Tensor(np.ones(55, np.float32)) * 5).realize()
    index, chunks = data_of(page)
    assert index["errors"][0]["message"].startswith("LLVM refused")
    (kernel,) = index["kernels"]
    assert kernel["whole"] and chunks[kernel["chunk"]]["program"]["text"]


def test_an_error_of_the_user(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    with pytest.raises(ZeroDivisionError), morok.view(page):
        (Tensor(np.ones(33, np.float32)) * 7).realize()
        1 / 0
    index, _ = data_of(page)
    assert index["errors"][0]["type"] == "ZeroDivisionError"
    assert len(index["kernels"]) == 1


def test_an_exception_without_a_text(tmp_path: Path) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with pytest.raises(Odd), morok.view(tmp_path / "run.html"):
        raise Odd
    assert data_of(tmp_path / "run.html")[0]["errors"][0]["message"] == "(it has no text)"


def test_a_file_that_python_cannot_read(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import morok\nx = = 1\n")
    with pytest.raises(SyntaxError), morok.view(tmp_path / "run.html"):
        run_script(str(script), [])
    index, _ = data_of(tmp_path / "run.html")
    file, line = index["errors"][0]["frames"][-1]
    assert line == 2 and index["files"][file]["lines"] == ["import morok", "x = = 1"]


def test_a_page_that_cannot_be_written_does_not_hide_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ZeroDivisionError), morok.view(tmp_path / "file" / "run.html"):
        1 / 0
    assert "could not be written" in capsys.readouterr().err
