"""`morok view`: a page of a script, of one that fails, of two runs; and a timeline for Perfetto."""

import json
from pathlib import Path

import pytest

from morok import knobs
from morok.cli.main import main
from morok.viewer.page import read_page

SCRIPT = """import sys
from morok import Tensor
x = Tensor([[float(i + j) for i in range(16)] for j in range(16)])
for _ in range(int(sys.argv[1])):
    y = (x * 2 + 1).sum().item()
"""


@pytest.fixture(autouse=True)
def _on_the_cpu() -> object:
    with knobs.override(DEVICE="CPU"):
        yield


def test_a_page_and_a_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, page, trace = tmp_path / "script.py", tmp_path / "run.html", tmp_path / "run.json"
    script.write_text(SCRIPT)
    options = ["--no-paths", "--title", "mine", "-o", str(page), "--trace", str(trace)]
    assert main(["view", *options, str(script), "3"]) == 0
    assert "run.html" in capsys.readouterr().err
    index, _ = read_page(page)
    assert index["title"] == "mine" and index["files"][0]["path"] == "script.py"
    (row,) = index["rows"]
    assert (row["calls"], row["place"]) == (3, "script.py:5")
    events = json.loads(trace.read_text())["traceEvents"]
    assert len(events) == 3
    for event in events:  # what Perfetto and chrome://tracing ask of a complete event
        assert event["ph"] == "X" and event["dur"] > 0 and event["ts"] >= 0
        assert {"name", "pid", "tid"} <= set(event) and event["args"]["line"] == "script.py:5"
    assert sum(e["dur"] for e in events) == pytest.approx(row["seconds"] * 1e6)


def test_two_pages_as_one(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for name, times in (("before", "1"), ("after", "2")):
        assert main(["view", "--title", name, "-o", str(tmp_path / f"{name}.html"), str(script), times]) == 0
    both = tmp_path / "both.html"
    compared = ["--compare", str(tmp_path / "before.html"), str(tmp_path / "after.html")]
    assert main(["view", *compared, "-o", str(both)]) == 0
    text = both.read_text(encoding="utf-8")
    assert 'id="data-other"' in text
    assert read_page(both)[0]["title"] == "after"
    assert read_page(both)[1] == read_page(tmp_path / "after.html")[1]


def test_an_error_is_on_the_page_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, page = tmp_path / "script.py", tmp_path / "run.html"
    script.write_text("from morok import Tensor\nTensor.ones(2, 3) @ Tensor.ones(4, 5)\n")
    assert main(["view", "-o", str(page), str(script)]) == 2
    err = capsys.readouterr().err
    assert "the error is on the page" in err and "script.py:2" in err
    (error,) = read_page(page)[0]["errors"]
    assert error["type"] == "ShapeError" and error["place"] == "script.py:2"


@pytest.mark.parametrize("code, errors", [("", 0), ("0", 0), ("3", 1)])
def test_a_script_that_ends_itself(tmp_path: Path, code: str, errors: int) -> None:
    script, page = tmp_path / "script.py", tmp_path / "run.html"
    script.write_text(
        f"import sys\nfrom morok import Tensor\nTensor([1.0]).add(1).realize()\nsys.exit({code})\n"
    )
    if errors:
        with pytest.raises(SystemExit):
            main(["view", "-o", str(page), str(script)])
    else:
        assert main(["view", "-o", str(page), str(script)]) == 0
    assert len(read_page(page)[0]["errors"]) == errors


def test_a_module_and_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "größe"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "helper.py").write_text("def double(x):\n    return x * 2\n")
    main_text = "import sys\nfrom morok import Tensor\nfrom .helper import double\n"
    main_text += "print(sys.argv[1:], double(Tensor([1.0, 2.0])).numpy())\n"
    (package / "__main__.py").write_text(main_text)
    monkeypatch.chdir(tmp_path)
    assert main(["view", "-o", "run.html", "-m", "größe", "--steps", "3"]) == 0
    said = capsys.readouterr()
    assert "['--steps', '3'] [2. 4.]" in said.out and "run.html: " in said.err
    index, _ = read_page(tmp_path / "run.html")
    assert index["title"] == "größe" and [row["place"] for row in index["rows"]] == ["helper.py:2"]
    assert {file["path"] for file in index["files"]} == {"größe/helper.py", "größe/__main__.py"}
    assert main(["view", "-m", "no.such.thing"]) == 2
    assert "there is no module no.such.thing" in capsys.readouterr().err


def test_a_script_that_goes_to_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    text = "import os\nfrom morok import Tensor\nos.chdir('elsewhere')\nTensor([1.0]).add(1).realize()\n"
    (tmp_path / "script.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["view", "-o", "run.html", "--trace", "run.json", "script.py"]) == 0
    index, _ = read_page(tmp_path / "run.html")
    (file,) = index["files"]
    assert (file["path"], file["lines"]) == ("script.py", text.splitlines())
    assert (tmp_path / "run.json").exists() and not list((tmp_path / "elsewhere").iterdir())


def test_any_error_tells_where_its_page_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    script, page = tmp_path / "script.py", tmp_path / "run.html"
    script.write_text("from morok import Tensor\nTensor([1.0]).add(1).realize()\n1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        main(["view", "--open", "-o", str(page), str(script)])
    assert f"the error is on the page {page}" in capsys.readouterr().err
    assert opened == [page.as_uri()]


def test_what_it_is_not_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view"]) == 2
    assert "no script to run" in capsys.readouterr().err
    assert main(["view", str(tmp_path / "missing.py")]) == 2
    assert "there is no script" in capsys.readouterr().err
    other = tmp_path / "other.html"
    other.write_text("<p>")
    assert main(["view", "--compare", str(other), str(other), "-o", str(tmp_path / "both.html")]) == 2
    assert "is no page that `morok view` has written" in capsys.readouterr().err
