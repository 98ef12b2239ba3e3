"""Every op has a rule or a reason, and every rule is right on its own left side."""

import numpy as np
import pytest

from morok import Tensor
from morok.ir.node import UOp, alu, make
from morok.ir.ops import ALL_OPS, COLLECTIVES, COMPARE, Group, Op, Ops
from morok.tensor.gradient.rules import FLAT, RULES, Pullback
from morok.tensor.gradient.walk import DIFFERENTIABLE
from tests.gradient.check import check, sample

BITS = {
    Ops.NOT, Ops.POPCOUNT, Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD, Ops.MULHI, Ops.DOT4, Ops.DOT2,
    Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR, Ops.THREEFRY, Ops.CHECK,
}  # fmt: skip
INSIDE_KERNELS = {Ops.INDEX, Ops.LOAD, Ops.STORE, Ops.BUFFERIZE, Ops.REDUCE, Ops.SCAN, Ops.PICK, Ops.ONLINE}
OVER_DEVICES = COLLECTIVES  # made after gradients
BY_HAND = {Ops.WRITTEN}  # kernels that order numbers: functions that use them have rules of their own
GROUPS = (Group.UNARY, Group.BINARY, Group.TERNARY, Group.MOVEMENT, Group.REDUCTION, Group.MEMORY)


@pytest.mark.parametrize("op", [op for op in ALL_OPS if op.group in GROUPS], ids=lambda op: op.name)
def test_every_op_has_a_rule_or_a_reason(op: Op) -> None:
    reasons = COMPARE | BITS | INSIDE_KERNELS | OVER_DEVICES | BY_HAND | FLAT
    assert (op in DIFFERENTIABLE) != (op in reasons), op


FORMULAS = [rule for rule in RULES.values() if rule.function is None]


@pytest.mark.parametrize("rule", FORMULAS, ids=lambda rule: rule.name)
def test_rule_against_its_own_left_side(rule: Pullback, device: str) -> None:
    arrays = [
        sample(5, seed=i, signs=rule.name not in ("sqrt", "rsqrt", "log", "log2", "pow")) for i in range(3)
    ]
    mask = Tensor(np.array([True, False, True, True, False]))

    def apply(*tensors: Tensor) -> Tensor:
        nodes = [t.uop for t in tensors]
        if rule.op is Ops.WHERE:
            nodes = [mask.uop, *nodes]
        return Tensor._new(alu(rule.op, *nodes))

    count = sum(part is not None for part in rule.parts)
    if count:
        check(apply, *arrays[:count])
    else:
        x = Tensor(arrays[0])
        with pytest.raises(Exception, match="does not depend"):
            apply(x).sum().gradient(x)


def test_formulas_read_like_mathematics() -> None:
    assert RULES["mul"].formula() == "x * y: dx = g * y, dy = g * x"
    assert RULES["exp"].formula() == "r@(exp(x)): dx = g * r"
    assert RULES["floor"].formula() == "floor(x): no gradient"


def test_an_op_without_a_rule_says_so() -> None:
    x = Tensor([1.0, 2.0])
    odd: UOp = make(Ops.ALLREDUCE, x.dtype, (x.uop, x.uop), Ops.ADD)
    with pytest.raises(Exception, match=r"^ALLREDUCE has no gradient; detach\(\) what it is computed from"):
        Tensor._new(odd).sum().gradient(x)
