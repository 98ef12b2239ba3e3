"""The page: one HTML file with the run's data inside, compressed, and everything that shows it.

The sources are plain modules in `page/`. They are joined here, in the order of their imports, so that a page
works from a disk without a server; `make viewer` writes one to look at. Data is JSON, deflated and in base64:
whatever stands in a user's source, it is letters and digits here.
"""

from __future__ import annotations

import base64
import html
import re
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from morok.errors import FormatError
from morok.viewer.columns import from_bytes, to_bytes

Data = dict[str, Any]
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
_BLOCK = re.compile(r'<script type="application/octet-stream" id="data-([\w-]+)">([^<]*)</script>')


def source(name: str) -> str:
    """A file of the page."""
    return (files("morok.viewer") / "page" / name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """All modules as one: each a function of its own, called once, that returns what others import."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        text = source(f"{name}.js")
        for _, needed in _IMPORT.findall(text):
            add(needed)
        exported = ", ".join(found for _, found in _EXPORT.findall(text))
        body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const {\1} = module_\2;", text))
        done[name] = f"const module_{name} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();\n"

    add("main")
    return "\n".join(done.values())


def packed(data: Any) -> str:
    """Data for the page."""
    return base64.b64encode(zlib.compress(to_bytes(data), 7)).decode()


def page_text(index: Data, chunks: Sequence[Data | str], other: Data | None = None) -> str:
    """The whole file. Chunks may be packed already."""
    blocks: dict[str, Data | str] = {"index": index, **{f"chunk-{i}": c for i, c in enumerate(chunks)}}
    if other is not None:
        blocks["other"] = other
    written = {name: block if isinstance(block, str) else packed(block) for name, block in blocks.items()}
    data = "\n".join(
        f'<script type="application/octet-stream" id="data-{name}">{text}</script>'
        for name, text in written.items()
    )
    parts = {
        "TITLE": html.escape(str(index["title"])),
        "STYLE": source("style.css"),
        "DATA": data,
        "SCRIPT": script(),
    }
    return re.sub(r"@(TITLE|STYLE|DATA|SCRIPT)@", lambda found: parts[found.group(1)], source("page.html"))


def write_page(
    path: str | Path, index: Data, chunks: Sequence[Data | str], other: Data | None = None
) -> Path:
    """Writes the file, all of it or nothing."""
    target = Path(path)
    text = page_text(index, chunks, other)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f"{target.name}.new")
    fresh.write_text(text, encoding="utf-8", newline="\n")
    fresh.replace(target)
    return target


def read_page(path: str | Path) -> tuple[Data, list[Data]]:
    """The data of a page that was written before."""
    index, chunks = read_packed(path)
    try:
        return index, [_unpacked(chunk) for chunk in chunks]
    except (ValueError, zlib.error):
        raise FormatError(f"{path} is no page that `morok view` has written") from None


def read_packed(path: str | Path) -> tuple[Data, list[str]]:
    """The same with chunks as they are written."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        found = dict(_BLOCK.findall(text))
        index = _unpacked(found["index"])
        chunks = [found[f"chunk-{i}"] for i in range(sum(name.startswith("chunk-") for name in found))]
    except FileNotFoundError:
        raise FormatError(f"there is no page {path}") from None
    except (OSError, UnicodeDecodeError, ValueError, KeyError, zlib.error):
        raise FormatError(f"{path} is no page that `morok view` has written") from None
    return index, chunks


def _unpacked(block: str) -> Data:
    found: Data = from_bytes(zlib.decompress(base64.b64decode(block, validate=True)))
    return found
