"""Private modules of torch's: a release that has moved one is named by who needs it."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from morok.errors import MorokError  # noqa: E402
from morok.torch import private  # noqa: E402


@pytest.mark.parametrize(
    "module", ["torch._dynamo.backends.common", "torch._functorch.partitioners", "torch._prims_common"]
)
def test_a_module_that_has_moved_is_named_with_the_version(module: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if there were none
    named = f"torch {re.escape(torch.__version__)} has no {re.escape(module)}"
    with pytest.raises(ImportError, match=named) as told:
        runpy.run_path(private.__file__)
    assert isinstance(told.value, MorokError)


def test_nothing_else_of_the_package_imports_what_torch_does_not_promise() -> None:
    """So that the error above is the only one."""
    private_names = re.compile(
        r"(from|import) torch(\.\w+)*\._\w+|from torch\S* import _|\btorch(\.\w+)*\._[a-z]\w*\."
    )
    for file in Path(private.__file__).parent.rglob("*.py"):
        if file.name != "private.py":
            found = private_names.search(file.read_text(encoding="utf-8"))
            assert found is None, f"{file.name}: {found}"
