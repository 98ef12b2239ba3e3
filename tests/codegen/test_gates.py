"""Stage 8's own rules, each with the exact graph that it makes, and with what it leaves alone."""

from __future__ import annotations

import pytest

from morok.codegen.gates import gate_rules
from morok.dtype import DType, bool_, float32, index, int32, void
from morok.ir import build
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from morok.ir.scan import scan
from morok.rewrite.match import apply_rule

BY_NAME = {rule.name.rpartition(".")[2]: rule for rule in gate_rules}
R, S = build.rng(8, 0), build.rng(8, 1)
MEMORY = build.define_global(float32, 64, 0)


def num(value: int) -> UOp:
    return const(index, value)


def below(x: UOp, limit: int) -> UOp:
    return alu(Ops.CMPLT, x, num(limit))


def read(place: UOp, gate: UOp | None = None, dtype: DType = float32, memory: UOp = MEMORY) -> UOp:
    return make(Ops.INDEX, dtype, (memory, place) if gate is None else (memory, place, gate))


def made(rule: str, node: UOp) -> UOp | None:
    return apply_rule(BY_NAME[rule], node, None)


def both(a: UOp, b: UOp) -> UOp:
    return alu(Ops.AND, a, b)


P, Q, T = below(R, 4), below(R, 6), alu(Ops.CMPLT, num(1), R)


@pytest.mark.parametrize("dtype", [float32, int32, bool_])
def test_a_choice_of_a_read_or_zero_is_a_read_under_the_condition(dtype: DType) -> None:
    memory = build.define_global(dtype, 64, 0)
    zero, one = const(dtype, 0), const(dtype, 1)
    plain = read(R, None, dtype, memory)
    under = read(R, P, dtype, memory)
    assert made("load", alu(Ops.WHERE, P, plain, zero)) is under
    assert made("load", alu(Ops.WHERE, P, plain, one)) is alu(Ops.WHERE, P, under, one)
    other = make(Ops.DEFINE_VAR, dtype, (), ("v", 0, 0))
    assert made("load", alu(Ops.WHERE, P, plain, other)) is alu(Ops.WHERE, P, under, other)


def test_minus_zero_is_chosen_still() -> None:
    zero = const(float32, -0.0)
    assert made("load", alu(Ops.WHERE, P, read(R), zero)) is alu(Ops.WHERE, P, read(R, P), zero)


def test_what_a_gate_says_already_is_not_said_again() -> None:
    zero, one = const(float32, 0.0), const(float32, 1.0)
    gate = both(P, T)
    for said in (P, T, gate, both(T, P)):
        assert made("load", alu(Ops.WHERE, said, read(R, gate), zero)) is read(R, gate)
        assert made("load", alu(Ops.WHERE, said, read(R, gate), one)) is None
    assert made("load", alu(Ops.WHERE, Q, read(R, gate), zero)) is read(R, both(gate, Q))
    part = both(P, Q)  # one of the two is new
    assert made("load", alu(Ops.WHERE, part, read(R, gate), zero)) is read(R, both(gate, part))
    assert made("load", alu(Ops.WHERE, gate, read(R, P), zero)) is read(R, both(P, gate))


def test_a_condition_that_is_not_known_at_the_read_stays_outside() -> None:
    zero = const(float32, 0.0)
    assert made("load", alu(Ops.WHERE, below(S, 4), read(R), zero)) is None, "another loop"
    data = alu(Ops.CMPLT, read(R), const(float32, 1.0))
    assert made("load", alu(Ops.WHERE, data, read(R), zero)) is None, "memory"
    total = build.reduce(build.cast(R, int32), Ops.ADD, [R])
    late = alu(Ops.CMPLT, total, const(int32, 4))
    assert made("load", alu(Ops.WHERE, late, read(R), zero)) is None, "a reduction"
    running = scan((build.cast(R, int32),), Ops.ADD, [R])
    assert made("load", alu(Ops.WHERE, alu(Ops.CMPLT, running, const(int32, 4)), read(R), zero)) is None


def test_only_a_read_of_one_value_gets_a_gate() -> None:
    v = make(Ops.DEFINE_VAR, float32, (), ("v", 0.0, 1.0))
    assert made("load", alu(Ops.WHERE, P, v, const(float32, 0.0))) is None
    wide = float32.vec(4)
    four = make(Ops.INDEX, wide, (MEMORY, R))
    assert made("load", make(Ops.WHERE, wide, (P, four, const(wide, 0.0)))) is None
    address = make(Ops.INDEX, MEMORY.dtype, (MEMORY, R))
    assert made("load", make(Ops.WHERE, MEMORY.dtype, (P, address, address))) is None


@pytest.mark.parametrize("dtype", [float32, int32, bool_])
def test_gates_that_are_known(dtype: DType) -> None:
    memory = build.define_global(dtype, 64, 0)
    found = made("place", read(R, const(bool_, False), dtype, memory))
    assert found is const(dtype, 0)
    assert type(found.arg) is {float32: float, int32: int, bool_: bool}[dtype]
    assert made("place", read(R, const(bool_, True), dtype, memory)) is read(R, None, dtype, memory)
    assert made("place", read(R, None, dtype, memory)) is None


def test_an_address_under_a_gate() -> None:
    closed = make(Ops.INDEX, MEMORY.dtype, (MEMORY, R, const(bool_, False)))
    assert made("place", closed) is None, "an address is no value, so it is not 0"
    is_open = make(Ops.INDEX, MEMORY.dtype, (MEMORY, R, const(bool_, True)))
    assert made("place", is_open) is make(Ops.INDEX, MEMORY.dtype, (MEMORY, R))
    assert made("place", read(alu(Ops.FLOORMOD, R, num(4)), P)) is read(R, P)
    assert made("place", read(R, P)) is None
    assert made("place", read(alu(Ops.FLOORMOD, R, num(4)), Q)) is None, "6 steps are more than 4"


def test_loops_of_one_step() -> None:
    assert made("step", build.rng(1, 0)) is num(0)
    assert made("step", build.rng(2, 0)) is None
    assert made("step", build.rng(make(Ops.DEFINE_VAR, index, (), ("n", 1, 2)), 0)) is None


def test_only_loops_are_closed() -> None:
    value = read(R)
    zero = num(0)

    def reduced(*loops: UOp, arg: tuple[object, ...] = (Ops.ADD,)) -> UOp:
        return make(Ops.REDUCE, float32, (*(value,) * len(arg), *loops), arg)

    assert made("close", reduced(zero)) is value
    assert made("close", reduced()) is value
    assert made("close", reduced(R, zero)) is reduced(R)
    assert made("close", reduced(zero, R, S)) is reduced(R, S)
    assert made("close", reduced(R)) is None
    assert made("close", reduced(R, S)) is None
    two = (Ops.ADD, Ops.MAX)
    assert made("close", reduced(R, zero, arg=two)) is reduced(R, arg=two)
    assert made("close", reduced(zero, arg=two)) is reduced(arg=two), "there are two values"
    assert made("close", reduced(arg=two)) is None
    assert made("close", reduced(R, arg=two)) is None
    store = make(Ops.STORE, void, (make(Ops.INDEX, MEMORY.dtype, (MEMORY, R)), value))
    assert made("close", make(Ops.END, void, (store, zero))) is store
    assert made("close", make(Ops.END, void, (store, R, zero))) is make(Ops.END, void, (store, R))
    assert made("close", make(Ops.END, void, (store, R))) is None


def test_running_sums_run_along_loops_only() -> None:
    value = read(R)
    assert made("close", scan((value,), Ops.ADD, [R])) is None
    assert made("close", scan((value,), Ops.ADD, [R, S])) is None
    both_ = scan((value,), Ops.ADD, [R, S])
    stopped = both_.replace((*both_.src[:-1], num(0)))
    assert made("close", stopped) is scan((value,), Ops.ADD, [R])
    start = const(float32, 2.0)
    started = scan((value,), Ops.MUL, [R, S], start)
    stopped = started.replace((*started.src[:-1], num(0)))
    assert made("close", stopped) is scan((value,), Ops.MUL, [R], start)


def test_each_value_of_a_joint_reduction_is_one_of_its_own() -> None:
    x, y = read(R), read(alu(Ops.ADD, R, S))
    joint = build.reduce((x, y), (Ops.ADD, Ops.MAX), [R, S])
    assert made("pick", make(Ops.PICK, float32, (joint,), 0)) is build.reduce(x, Ops.ADD, [R, S])
    assert made("pick", make(Ops.PICK, float32, (joint,), 1)) is build.reduce(y, Ops.MAX, [R, S])
    other = make(Ops.GEP, joint.dtype, (joint,), (0,))
    assert made("pick", make(Ops.PICK, float32, (other,), 0)) is None
