"""The house keeps to its plan, and the checker of the plan catches whoever does not."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import rooms

PACKAGE = Path(__file__).parents[1] / "morok"


def test_the_package_keeps_to_the_plan() -> None:
    assert rooms.check(PACKAGE) == []


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "examples"])
def test_what_lies_beside_the_package_is_no_longer(folder: str) -> None:
    assert rooms.check_sizes(PACKAGE.parent / folder) == []


def test_exceptions_are_needed() -> None:
    modules = {**rooms.read(PACKAGE), **rooms.read(PACKAGE.parent / "benchmarks")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rooms, "LONG_FUNCTIONS", {})
        found = {text.partition(":")[0] for text in rooms._long_functions(modules)}
    assert found == set(rooms.LONG_FUNCTIONS)


def test_the_checker_sees_the_whole_package() -> None:
    modules = rooms.read(PACKAGE)
    assert {"morok", "morok.knobs", "morok.dtype", "morok.dtype.types", "morok.cli.main"} <= set(modules)
    found = [i for module in modules.values() for i in rooms.imports_of(module, modules)]
    assert any((i.source, i.target) == ("morok.dtype.promote", "morok.dtype.types") for i in found)


def test_importing_morok_loads_nothing_heavy() -> None:
    heavy = ("numpy", "llvmlite", "z3", "ml_dtypes", "morok.dtype")
    code = f"import sys, morok; sys.exit([m for m in {heavy} if m in sys.modules] or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


SOUND = {
    "__init__.py": '"""A house."""\n__version__ = "1"\n_EXPORTS = {}\ndef __getattr__(name): ...\n',
    "errors.py": "class E(Exception): ...\n",
    "knobs.py": "import os\nfrom morok.errors import E\nX = os.environ.get('X')\n",
    "dtype/__init__.py": '"""Types."""\nfrom morok.dtype.types import T\n__all__ = ["T"]\n',
    "dtype/types.py": "from morok import knobs\nclass T: ...\n",
    "ir/__init__.py": "",
    "ir/node.py": "from typing import TYPE_CHECKING\nfrom morok.dtype import T\n"
    "if TYPE_CHECKING:\n    from morok.dtype.types import T\n",
    "ir/sums/add.py": "from morok.ir.node import T\n",
    "ir/terms/show.py": "from morok.ir.sums.add import T\n",
    "ir/text.py": "from .node import T\ndef show(): ...\n",
    "proof/__init__.py": "from morok.ir import node\n",
    "ir/sums/mul.py": "",
    "cli/__init__.py": "",
    "cli/main.py": "def run():\n    import morok.proof\n",
}


def build(root: Path, **changes: str) -> Path:
    package = root / "morok"
    for name, text in {**SOUND, **changes}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


def test_a_sound_house_passes(tmp_path: Path) -> None:
    assert rooms.check(build(tmp_path)) == []


@pytest.mark.parametrize(
    "file, text, complaint",
    [
        ("dtype/types.py", "import morok.ir.node\nclass T: ...\n", "ir is not above dtype"),
        (
            "dtype/types.py",
            "class T:\n    def f(self):\n        from morok.ir import node\n",
            "ir is not above",
        ),
        ("dtype/types.py", "from ..ir import node\nclass T: ...\n", "ir is not above dtype"),
        ("errors.py", "import morok.knobs\n", "knobs is not above errors"),
        ("dtype/types.py", "if 0:\n    from morok.dtype import T\n", "cycle: "),
        (
            "ir/node.py",
            "import morok.ir.text\nT = 1\n",
            "cycle: morok.ir.node → morok.ir.text → morok.ir.node",
        ),
        (
            "ir/node.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import morok.ir.text\nT = 1\n",
            "cycle: morok.ir.node → morok.ir.text → morok.ir.node",
        ),
        (
            "ir/sums/sub.py",
            "import morok.ir.terms.show\n",
            "cycle of folders: morok.ir.sums → morok.ir.terms →",
        ),
        (
            "ir/node.py",
            "import morok.ir.sums.mul\nT = 1\n",
            "cycle of folders: morok.ir.node → morok.ir.sums →",
        ),
        ("schedule/plan/order.py", "import morok.proof\n", "the prover is for the command line"),
        ("nn/layers.py", "import morok.cli.main\n", "cli is not above nn"),
        ("viz/show.py", "import morok.nn.layers\n", "which does not exist"),
        ("attic/old.py", "", "attic is not a room"),
        ("ir/__init__.py", "import os\nX = os.sep\n", "re-exports only"),
        ("ir/__init__.py", "def f(): ...\n", "re-exports only"),
        ("__init__.py", "import morok.dtype\n", "loads lazily"),
        ("__init__.py", "def helper(): ...\n", "re-exports only"),
        ("ir/text.py", "import os\nX = os.environ['X']\ndef show(): ...\n", "nowhere else"),
        ("ir/text.py", "from os import getenv\ndef show(): ...\n", "nowhere else"),
        ("ir/text.py", "show = 1\n" + "\n" * rooms.MAX_LINES, f"more than {rooms.MAX_LINES}"),
        ("ir/text.py", "def show():\n" + "    x = 1\n" * rooms.MAX_BODY, f"more than {rooms.MAX_BODY}"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    complaints = rooms.check(build(tmp_path, **{file: text}))
    assert any(complaint in line for line in complaints), complaints


def test_a_crowded_folder_is_found(tmp_path: Path) -> None:
    package = build(tmp_path, **{f"ir/f{i}.py": "" for i in range(rooms.MAX_NAMES)})
    assert any("names in one folder" in line for line in rooms.check(package))
