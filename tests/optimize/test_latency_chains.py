"""How many vectors go through the body of a loop, by what it computes."""

from morok.dtype import float32
from morok.ir.build import define_global, end, index, rng, sink, store
from morok.ir.node import UOp, alu, make
from morok.ir.ops import AxisKind, Op, Ops
from morok.machine.machine import Machine
from morok.optimize.facts import functions
from morok.optimize.heuristics.cpu import choose
from morok.optimize.loops import loops_of, size

HOST = Machine(vector_bytes=16, registers=32)


def chain(n: int, *ops: Op) -> UOp:
    """The product of some functions of one array."""
    r = rng(n, 0)
    x = make(Ops.INDEX, float32, (define_global(float32, n, 1), r))
    value = x
    for op in ops:
        value = value * alu(op, x)
    return sink(end(store(index(define_global(float32, n, 0), r), value), r))


def vectors(kernel: UOp, host: Machine = HOST) -> int:
    """Vectors at a time in the widest of its loops."""
    lanes = [size(r) or 0 for r in loops_of(choose(kernel, host)).closers if r.arg[1] is AxisKind.UPCAST]
    return max(lanes) // host.lanes(float32)


def test_functions_are_counted_in_a_loop() -> None:
    kernel = chain(64, Ops.EXP, Ops.TANH, Ops.ABS)
    effect = kernel.src[0]
    assert functions(effect.src[0].src[1], effect.src[1]) == 2
    assert functions(effect.src[0].src[1], rng(5, 7)) == 0


def test_the_more_functions_the_fewer_vectors() -> None:
    n = 1 << 20
    found = [
        vectors(chain(n, *ops)) for ops in ((Ops.EXP,), (Ops.EXP, Ops.TANH), (Ops.EXP, Ops.TANH, Ops.ERF))
    ]
    assert found == [6, 4, 2]
    assert vectors(chain(n)) == 8


def test_six_vectors_only_where_the_rest_is_small() -> None:
    assert vectors(chain(512, Ops.EXP)) == 4
    assert vectors(chain(24 * 1000 + 16, Ops.EXP)) == 6


def test_fewer_registers_fewer_vectors() -> None:
    assert vectors(chain(1 << 20, Ops.EXP), Machine(vector_bytes=32, registers=16)) == 4
