"""The pages as the source of a site: what `make docs` gives to mkdocs, which builds it without the network.

Pages lie in the repository where its readers look for them. Here they are copied to a folder, each at its own
path, so that links between them hold; a file of code that a page links to becomes a page with that code, and
the docstrings of the API become reference pages.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from pathlib import Path
from typing import Any

from morok.cli.api_page import signature_of, tensor_methods
from morok.errors import MorokError

FIRST = (
    ("README.md", "Overview"),
    ("docs/tour.md", "A tour"),
    ("docs/usage.md", "Using it"),
    ("docs/cuda.md", "NVIDIA GPUs"),
)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_FENCES = re.compile(r"(```.*?```)", re.DOTALL)
_LANGUAGES = {".py": "python", ".toml": "toml"}


def write_site(root: Path, into: Path) -> None:
    """Copies the pages of a checkout and writes `mkdocs.yml` beside them."""
    if not (root / "mkdocs.yml").exists():
        raise MorokError(f"{root} has no mkdocs.yml; a site is built in a checkout of morok")
    found = [
        p
        for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "morok/**/*.md")
        for p in root.glob(pattern)
    ]
    pages = sorted(p.relative_to(root).as_posix() for p in found)
    for page in pages:
        text = (root / page).read_text(encoding="utf-8")
        _write(into / _renamed(page), _relinked(text, root, into, page))
    for picture in root.glob("docs/*.svg"):
        _write(into / picture.relative_to(root), picture.read_text(encoding="utf-8"))
    reference = [_reference(into, title, rows) for title, rows in tensor_methods().items()]
    _write(into.parent / "mkdocs.yml", _settings(root, into, pages, reference))


def _renamed(page: str) -> str:
    return "index.md" if page == "README.md" else page


def _relinked(text: str, root: Path, into: Path, page: str) -> str:
    parts = _FENCES.split(text)
    parts[::2] = [_LINK.sub(lambda m: _link(root, into, page, m), part) for part in parts[::2]]
    return "".join(parts)


def _link(root: Path, into: Path, page: str, match: re.Match[str]) -> str:
    """A link as it holds in the copy; to a folder, only its words."""
    picture, words, file, heading = match.groups()
    target = (root / page).parent / file
    if not file or "://" in file or picture or target.suffix == ".md":
        home = (root / "README.md").samefile(target) if file and target.exists() else False
        file = file.replace("README.md", "index.md") if home else file
        return f"{picture}[{words}]({file}{heading or ''})"
    if target.is_dir():
        return words
    code = target.resolve().relative_to(root.resolve()).as_posix()
    language = _LANGUAGES.get(target.suffix, "")
    _write(into / f"{code}.md", f"# {code}\n\n```{language}\n{target.read_text(encoding='utf-8')}```\n")
    return f"[{words}]({file}.md)"


def _reference(into: Path, title: str, rows: list[tuple[str, Any]]) -> tuple[str, str]:
    """The page of a family of methods, with whole docstrings."""
    parts = [f"# {title}\n"]
    for name, member in rows:
        text = inspect.getdoc(_function(member)) or ""
        file = inspect.unwrap(_function(member)).__module__.replace(".", "/") + ".py"
        parts.append(f"## {name}\n\n`{name}{signature_of(member)}` in `{file}`\n\n{_examples(text)}\n")
    path = f"reference/{re.sub(r'[^a-z]+', '-', title.lower())}.md"
    _write(into / path, "\n".join(parts))
    return title, path


def _function(member: Any) -> Any:
    return member.fget if isinstance(member, property) else getattr(member, "__func__", member)


def _examples(text: str) -> str:
    """Examples of a docstring as blocks of code."""
    return re.sub(r"(?m)((?:^>>>.*\n?)(?:^\S.*\n?)*)", r"```python\n\1\n```\n", text)


def _settings(root: Path, into: Path, pages: list[str], reference: list[tuple[str, str]]) -> str:
    """The settings of the site with its table of contents, as JSON, which is YAML."""
    decisions = [page for page in pages if page.startswith("docs/decisions/")]
    first = dict(FIRST)
    others = [page for page in pages if page not in first and page not in decisions]
    contents: list[dict[str, Any]] = [{title: _renamed(page)} for page, title in FIRST]
    contents.append({"Pages": [{_title(root / page): page} for page in others]})
    contents.append({"Reference": [{title: path} for title, path in reference]})
    contents.append({"Decisions": [{_title(root / page): page} for page in decisions]})
    beside = Path(os.path.relpath(root, into.parent))
    settings = {
        "INHERIT": str(beside / "mkdocs.yml"),
        "docs_dir": into.name,
        "site_dir": str(beside / "site"),
        "nav": contents,
    }
    return json.dumps(settings, indent=2)


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").strip()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
