"""Calls: what they are called and what they take, in text, in hashes, for gradients and for the schedule."""

import ast
import gc
from pathlib import Path

from morok import Tensor, checkpoint, custom_gradient, grad
from morok.ir.call import CustomRule, attributes, call, call_name
from morok.ir.digest import digest
from morok.ir.infer import shape
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.ir.text import expr, parse, to_python
from morok.schedule.normalise import normalise
from morok.schedule.schedule import _known, _templates
from morok.tensor.gradient.walk import CALLS, CUSTOM

TENSOR = Path(__file__).parents[2] / "morok" / "tensor"


def doubled(x: Tensor, name: str = "double", **how: object) -> UOp:
    return call(name, (x * 2).uop, x.uop, **how)


def test_a_call_is_its_result_under_a_name() -> None:
    node = doubled(Tensor([1.0, 2.0]), times=2, axes=(0, 1))
    assert (call_name(node), attributes(node)) == ("double", {"times": 2, "axes": (0, 1)})
    assert shape(node) == (2,) and node.dtype is node.src[0].dtype
    assert Tensor._new(node).tolist() == [2.0, 4.0]


def test_names_and_attributes_are_in_text_and_hash() -> None:
    x = Tensor([1.0, 2.0])
    nodes = [
        doubled(x),
        doubled(x, "twice"),
        doubled(x, times=2),
        doubled(x, times=3),
        doubled(x, times=True),
        doubled(x, gradient=CustomRule(1)),
    ]
    assert len({digest(n) for n in nodes}) == len(nodes)
    assert all(parse(to_python(n)) is n for n in nodes)


def test_a_call_is_printed_as_it_was_called() -> None:
    n = doubled(Tensor([1.0, 2.0]), times=2)
    assert expr(n).startswith("double(buffer") and expr(n).endswith(", times=2)")
    assert expr(Tensor([1.0]).sigmoid().uop).startswith("sigmoid(buffer")


def test_every_name_has_a_rule() -> None:
    """A name without one would send gradients through the formula, which some formulas do not survive."""
    names = set()
    for path in TENSOR.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "call",
                "marked",
                "named",
                "_of_two",
            ):
                names.update(a.value for a in node.args[:2] if isinstance(a, ast.Constant))
    assert {"conv", "norm", "rows", "windows", "qr", "log1p", "logaddexp", "remainder"} <= names
    assert names - CALLS.keys() == {"checkpoint"}  # it brings its own


def test_a_call_without_a_rule_is_transparent() -> None:
    x = Tensor([3.0])
    box = Tensor._new(call("somebody's box", (x * x).uop, x.uop))
    assert box.sum().gradient(x)[0].tolist() == [6.0]


def test_the_schedule_knows_no_names() -> None:
    x, other = Tensor([1.0, 2.0]), Tensor([5.0])
    named = call("f", x.sigmoid().uop, x.uop, other.uop)
    form = normalise([named])
    assert not [n for n in toposort(form.sink) if n.op in (Ops.CALL, Ops.IDENTITY)]
    assert len(form.buffers) == 1  # what only the name would need is not there
    assert form.sink is normalise([call("g", x.sigmoid().uop, x.uop, times=3)]).sink


def test_rules_of_users_go_with_their_functions() -> None:
    """A function that is made anew for each step costs neither memory nor schedules."""

    def step() -> float:
        @custom_gradient(lambda g, result, x: g * 7)
        def same(x: Tensor) -> Tensor:
            return x * 1.5

        value = same(Tensor([1.0, 2.0, 4.0]))
        assert value.tolist() == [1.5, 3.0, 6.0]
        return grad(lambda x: same(x).sum())(Tensor([1.0])).item()

    assert step() == 7.0
    gc.collect()
    before = len(CUSTOM), len(_known), len(_templates)
    assert {step() for _ in range(5)} == {7.0}
    gc.collect()
    assert (len(CUSTOM), len(_known), len(_templates)) == before

    @custom_gradient(lambda g, result, x: g * 5)
    def kept(x: Tensor) -> Tensor:
        return x * 1

    x = Tensor([1.0])
    y = kept(x).sum()
    del kept
    gc.collect()
    assert y.gradient(x)[0].tolist() == [5.0]  # the graph has it


def test_a_checkpoint_knows_what_its_function_took_from_outside() -> None:
    x, w = Tensor([2.0]), Tensor([3.0])
    assert grad(lambda t: checkpoint(lambda u: u * t * t, x).sum())(w).tolist() == [12.0]
    leaf = Tensor([3.0], requires_grad=True)
    checkpoint(lambda u: u * leaf * leaf, x).sum().backward()
    assert leaf.grad.tolist() == [12.0]
