"""The file itself: nothing of a user's text can leave its place, and modules are joined rightly."""

import re
from pathlib import Path

import pytest

import morok
from morok.errors import FormatError, MorokError
from morok.viewer.page import page_text, read_page, script, source
from tests.viewer.recorded import data_of, record

NASTY = '''import numpy as np
from morok import Tensor
a = Tensor(np.ones(8, "f"))  # </script><script>document.title = "hijacked"</script> <!-- ]]> &lt; ' " `
b = (a + 1).realize()  # \u202egnp.exe\u202c \u05e9\u05dc\u05d5\u05dd "\\u2028" \u2028 @DATA@ @SCRIPT@
long = "LONG"
c = (a * 2).realize(); """</style><style>* { display: none }"""
'''


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = NASTY.replace("LONG", "x" * 10_000_000)
    return record(tmp_path_factory.mktemp("page"), text, name="strange '\"<b>.py")


def test_source_is_nowhere_as_it_is(nasty: Path) -> None:
    text = nasty.read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    assert "hijacked" not in text and "gnp.exe" not in text and "</style><style>" not in text
    modules = script()
    without = text.replace(modules, "")
    assert without.count("</script>") == without.count("<script ")
    assert re.findall(r"<title>(.*)</title>", text) == ["strange &#x27;&quot;&lt;b&gt;.py · morok"]


def test_source_comes_back_as_it_was(nasty: Path) -> None:
    index, _ = data_of(nasty)
    number, file = next((n, f) for n, f in enumerate(index["files"]) if f["name"].startswith("strange"))
    expected = NASTY.split("\n")
    assert file["lines"][2] == expected[2]
    assert "\u202egnp.exe\u202c" in "\n".join(file["lines"])
    longest = max(map(len, file["lines"]))
    assert longest < 2100
    assert any("10,000,0" in line and "characters" in line for line in file["lines"])
    assert {tuple(row["at"]) for row in index["rows"]} <= {(number, n + 1) for n in range(len(file["lines"]))}


def test_paths_are_left_out_when_asked(tmp_path: Path) -> None:
    text = "from morok import Tensor\n(Tensor([1.0, 2.0]) + 1).realize()\n"
    page = record(tmp_path, text, paths=False)
    index, chunks = data_of(page)
    assert index["files"][0]["path"] == "script.py"
    assert str(tmp_path) not in repr(index) and str(tmp_path) not in repr(chunks)


def test_a_path_below_the_working_folder_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = record(tmp_path, "from morok import Tensor\n(Tensor([1.0, 2.0]) + 1).realize()\n")
    assert data_of(page)[0]["files"][0]["path"] == "script.py"


def test_modules_are_joined_in_the_order_of_their_imports() -> None:
    text = script()
    order = re.findall(r"^const module_(\w+) = \(\(\) => \{$", text, re.MULTILINE)
    folder = Path(morok.__file__).parent / "viewer" / "page"
    assert sorted(order) == sorted(path.stem for path in folder.glob("*.js"))
    assert order[-1] == "main"
    for name, body in zip(
        order, re.split(r"^const module_\w+ = ", text, flags=re.MULTILINE)[1:], strict=True
    ):
        for needed in re.findall(r"= module_(\w+);", body):
            assert order.index(needed) < order.index(name)
    assert not re.search(r"^(import|export) ", text, re.MULTILINE)
    assert "</script" not in text.replace("<\\/script>", "")


def test_every_name_that_a_module_imports_is_exported() -> None:
    folder = Path(morok.__file__).parent / "viewer" / "page"
    for path in folder.glob("*.js"):
        for names, other in re.findall(
            r'^import \{([^}]*)\} from "\./(\w+)\.js";$', path.read_text(), re.MULTILINE
        ):
            exported = re.findall(
                r"^export (?:async )?(?:function|const|class) (\w+)", source(f"{other}.js"), re.MULTILINE
            )
            imported = {name.strip() for name in names.split(",")}
            assert imported <= set(exported), (path.name, other)
            unused = {n for n in imported if len(re.findall(rf"\b{n}\b", path.read_text())) < 2}
            assert unused == set(), path.name


def test_no_address_of_any_server() -> None:
    text = script() + source("style.css") + source("page.html")
    assert set(re.findall(r"https?://[^\"'` ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "fetch(" not in text and "XMLHttpRequest" not in text and "import(" not in text


def test_a_page_can_be_read_again_and_nothing_else_can(tmp_path: Path) -> None:
    index = {"title": "t", "n": [1, 2]}
    path = tmp_path / "page.html"
    path.write_text(page_text(index, [{"a": 1}], {"title": "other"}), encoding="utf-8")
    assert read_page(path) == (index, [{"a": 1}])
    other = tmp_path / "other.html"
    other.write_text("<html></html>")
    with pytest.raises(FormatError, match="no page that"):
        read_page(other)
    cut = tmp_path / "cut.html"
    text = path.read_text(encoding="utf-8")
    where = text.index('id="data-index">') + 30
    cut.write_text(text[:where] + text[where + 5 :], encoding="utf-8")
    with pytest.raises(FormatError):
        read_page(cut)
    with pytest.raises(FormatError, match="there is no page"):
        read_page(tmp_path / "missing.html")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MorokError, match="cannot be written"), morok.view(tmp_path / "file" / "run.html"):
        pass
