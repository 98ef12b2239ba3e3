"""Programs that several tests record, and what is read out of a page again."""

from pathlib import Path
from typing import Any

from morok import knobs
from morok.cli.script import run_script
from morok.viewer.page import read_page
from morok.viewer.view import view

SOFTMAX = """import numpy as np
from morok import Tensor
x = Tensor(np.linspace(-1, 1, 64 * 48, dtype=np.float32).reshape(64, 48))
y = x.softmax(-1)
print(y.numpy().sum())
"""

PRODUCT = """import numpy as np
from morok import Tensor
a = Tensor(np.ones((64, 64), np.float32))
b = Tensor(np.ones((64, 64), np.float32))
c = (a @ b).realize()
d = (a + 1).realize()
for _ in range(3):
    e = (c * d).sum().item()
"""


def record(folder: Path, text: str, device: str = "CPU", name: str = "script.py", **options: Any) -> Path:
    """Writes a script and the page of its run."""
    script = folder / name
    script.write_text(text, encoding="utf-8")
    page = folder / f"{name}.html"
    with knobs.override(DEVICE=device), view(page, title=name, **options):
        run_script(str(script), [])
    return page


def data_of(page: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return read_page(page)
