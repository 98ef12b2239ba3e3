"""Generated pages are what the code says now."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from morok.cli.api_page import tensor_methods
from morok.cli.docs import pages
from morok.cli.main import main
from morok.tensor.tensor import Tensor

DOCS = Path(__file__).parents[2] / "docs"


_ONNX = ["onnx.md"] if importlib.util.find_spec("onnx") else []  # the page needs the package


@pytest.mark.parametrize("name", ["api.md", "ops.md", "stages.md", "pipeline.svg", *_ONNX])
def test_a_page_is_current(name: str) -> None:
    current = (DOCS / name).read_text(encoding="utf-8")
    assert current == pages()[name], f"docs/{name} is out of date; write it again with `python -m morok docs`"


def test_every_page_is_tested() -> None:
    assert set(pages()) == {"api.md", "ops.md", "stages.md", "pipeline.svg", *_ONNX}


def test_check_fails_on_an_old_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "--into", str(tmp_path)]) == 0
    assert main(["docs", "--into", str(tmp_path), "--check"]) == 0
    (tmp_path / "stages.md").write_text("old")
    assert main(["docs", "--into", str(tmp_path), "--check"]) == 2
    assert "stages.md is out of date" in capsys.readouterr().err


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    found = [name for rows in tensor_methods().values() for name, _ in rows]
    assert sorted(found) == sorted(set(found)), "a name belongs to one family"
    public = {name for name in dir(Tensor) if not name.startswith("_")}
    assert set(found) == public


def test_every_public_name_says_what_it_is() -> None:
    page = pages()["api.md"]
    silent = [line for line in page.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert not silent, "without documentation:\n" + "\n".join(silent)
    assert "object at 0x" not in page
    assert "| `sum(axis=None, keepdim=False, dtype=None)` | The sum over axes, or over everything. |" in page


def test_links_of_the_site_lead_to_its_own_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS.parent)
    assert main(["docs", "--site", str(tmp_path / "pages")]) == 0
    pages = list((tmp_path / "pages").rglob("*.md"))
    assert (tmp_path / "pages" / "index.md") in pages and (
        tmp_path / "pages/reference/reductions.md"
    ) in pages
    softmax = (tmp_path / "pages/reference/softmax-norms-losses.md").read_text(encoding="utf-8")
    assert "`softmax(axis=None, dtype=None)` in `morok/tensor/" in softmax
    lost = []
    for page in pages:
        if page.name.endswith((".py.md", ".toml.md")):
            continue
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", text)
        lost += [
            f"{page}: {link}" for link in links if "://" not in link and not (page.parent / link).is_file()
        ]
    assert not lost, lost
    contents = json.loads((tmp_path / "mkdocs.yml").read_text(encoding="utf-8"))
    assert contents["docs_dir"] == "pages" and {"Overview": "index.md"} in contents["nav"]
