"""The table of a tensor's methods: functions of modules, seen by people, editors and type checkers."""

import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from morok import Tensor
from morok.tensor.core import Core
from morok.tensor.protocols import in_place

METHODS = {
    name: member
    for name, member in vars(Tensor).items()
    if not name.startswith("_") and not isinstance(member, property)
}


def function(member: Any) -> Any:
    return inspect.unwrap(getattr(member, "__func__", member))


def test_the_class_itself_holds_nothing_but_the_table() -> None:
    assert [cls.__name__ for cls in Tensor.__mro__] == ["Tensor", "Operators", "Core", "object"]
    assert len(METHODS) > 300
    private = {name for name in vars(Tensor) if name.startswith("_") and not name.startswith("__")}
    assert not private, "helpers are functions of their modules"


def test_each_method_is_a_function_of_a_module() -> None:
    for name, member in METHODS.items():
        attached = function(member)
        module = sys.modules[attached.__module__]
        assert module.__name__.startswith("morok.tensor."), name
        assert module is not sys.modules[Tensor.__module__], name
        assert inspect.unwrap(getattr(module, attached.__name__)) is attached, name
        if module is in_place:  # made by `overwriting` of the method without the underscore
            continue
        lines, _ = inspect.getsourcelines(getattr(Tensor, name))  # what `??` and help pages show
        assert any(line.startswith(f"def {attached.__name__}(") for line in lines), name
        assert inspect.getsourcefile(attached) == module.__file__, name


def test_where_is_softmax() -> None:
    assert str(inspect.getsourcefile(function(Tensor.softmax))).endswith("tensor/linalg/normalization.py")
    assert str(inspect.signature(Tensor([1.0]).softmax)).startswith("(axis: 'Any' = None, *, dim")
    text = pydoc.plain(pydoc.render_doc(Tensor.softmax))
    assert (
        "softmax(x: 'T', axis" in re.sub(r"\(\s+", "(", re.sub(r",\s+", ", ", text))
        and "exp(x) over its sum along an axis" in text
    )


def test_a_function_under_two_names_is_one_method() -> None:
    assert Tensor.clip is Tensor.clamp and Tensor.view is Tensor.reshape
    assert Tensor.matmul is Tensor.__matmul__


def test_a_method_knows_its_class() -> None:
    assert Tensor.softmax.__qualname__ == "Tensor.softmax" and Tensor.softmax.__module__ == Tensor.__module__
    assert Tensor.zeros(2).__class__ is Tensor and issubclass(Tensor, Core)


def test_names_of_axes_are_free() -> None:
    """The tensor is no argument by name, so that "x" may be an axis."""
    x = Tensor.ones(6)
    assert x.rearrange("(x t) -> t x", x=2).shape == (3, 2)
    assert x.rearrange("(self cls) -> cls self", self=2).shape == (3, 2)


TYPES = """
from morok import Tensor
t = Tensor([1.0], requires_grad=True)
reveal_type(t.softmax())
reveal_type(t.clip(0, 1))
reveal_type(Tensor.zeros(1, 2))
reveal_type(t + 3)
reveal_type(3 - t)
reveal_type(t == t)
reveal_type(t @ t)
reveal_type(t[0])
reveal_type(t.T)
reveal_type(t.float())
t.softmax(dtpe=3)
Tensor.zeros(1, dtpe=2)
"""


@pytest.mark.slow
def test_what_the_type_checker_sees(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(TYPES)
    run = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(tmp_path / "program.py")]
    said = subprocess.run(run, capture_output=True, text=True, check=False).stdout.splitlines()
    revealed = [line for line in said if "Revealed type" in line]
    assert len(revealed) == 10
    assert all(line.endswith('"morok.tensor.tensor.Tensor"') for line in revealed), revealed
    wrong = [line for line in said if "error:" in line]
    assert len(wrong) == 2 and all('Unexpected keyword argument "dtpe"' in line for line in wrong), wrong
