"""The page of operators, written from the table: `python -m morok.torch.page > docs/torch-operators.md`."""

from __future__ import annotations

import inspect

from morok.torch import operators as _operators  # noqa: F401 - enters all rows
from morok.torch.table import rows

_HEAD = """# Operators of PyTorch

Written from the table of `morok/torch/ops` by `python -m morok.torch.page`. These ATen overloads are computed
as they are, by `torch.compile(model, backend="morok")` and by `morok.torch.load`. What torch can write with
them it takes apart first; the rest is done by torch itself, which is said once, with the user's line.
"""


def page() -> str:
    """The page's text."""
    families: dict[str, list[str]] = {}
    for row in rows():
        note = (inspect.getdoc(row.function) or "").partition("\n")[0].replace("|", "\\|")
        families.setdefault(row.family, []).append(f"| `{row.name}` | {note} |")
    text = [_HEAD]
    total = sum(map(len, families.values()))
    text.append(f"{total} overloads.\n")
    for family in sorted(families):
        text.append(f"## {family.replace('_', ' ')}\n\n| overload | |\n|---|---|")
        text.append("\n".join(families[family]) + "\n")
    return "\n".join(text)


if __name__ == "__main__":
    print(page(), end="")
