"""Prefetches of blocks that loops read again: the next one is asked for, and results stay the same."""

from dataclasses import replace

from morok.codegen.linear.prefetch import LARGE
from morok.codegen.linear.prefetch_blocks import MOST
from morok.codegen.pipeline import lower
from morok.device.cpu.llvm import host
from morok.ir.build import reduce as reduce_
from morok.ir.build import rng, sink
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.machine.choose import cpu_machine
from morok.machine.machine import Machine
from tests.codegen.kernels import REDUCE, UPCAST, buffers, check, noise, read, write, zeros

LANES = 16
BLOCKS = Machine("blocks", vector_bytes=64, prefetch_blocks=True)


def product(again: int, steps: int, blocks: int, gap: int = 0) -> UOp:
    """y[b, r, lane] = Σ over k of w[b, k, lane] · x[r, k]: each block of w is read for every r."""
    out, x, w = buffers(blocks * again * LANES, again * steps, blocks * (steps + gap) * LANES)
    b, r, k, lane = rng(blocks, 0), rng(again, 1), rng(steps, 2, REDUCE), rng(LANES, 3, UPCAST)
    factor = read(w, (b * (steps + gap) + k) * LANES + lane)
    total = reduce_(factor * read(x, r * steps + k), Ops.ADD, [k])
    return sink(write(out, (b * again + r) * LANES + lane, total, b, r, lane))


def hints(kernel: UOp, target: Machine = BLOCKS) -> list[UOp]:
    return [n for n in lower(kernel, target).src if n.op is Ops.PREFETCH]


def test_the_next_block_is_asked_for_by_all_steps_together() -> None:
    again, steps = 4, 64
    linear = lower(product(again, steps, LARGE // (steps * LANES * 4)), BLOCKS)
    assert [n.src[0].src[0].arg for n in linear.src if n.op is Ops.PREFETCH]
    open_loops: list[UOp] = []
    asked = 0
    for n in linear.src:
        if n.op is Ops.RANGE:
            open_loops.append(n)
        elif n.op is Ops.END:
            open_loops.remove(n.src[1])
        elif n.op is Ops.PREFETCH:
            times = 1
            for loop in open_loops[1:]:
                times *= int(loop.src[0].arg)
            asked += times
    assert steps <= asked <= 2 * steps  # lines of a block


def test_what_is_read_once_is_left_to_other_hints() -> None:
    assert not hints(product(1, 64, LARGE // (64 * LANES * 4)))


def test_blocks_with_gaps_get_none() -> None:
    assert not hints(product(4, 64, LARGE // (64 * LANES * 4), gap=1))


def test_near_arrays_and_other_machines_get_none() -> None:
    assert not hints(product(4, 64, 8))
    assert not hints(product(4, 64, LARGE // (64 * LANES * 4)), Machine("plain", vector_bytes=64))


def test_a_step_asks_for_a_few_lines_only() -> None:
    for again in (2, 3, 5, 9):
        for steps in (64, 65, 100, 257, 1000):
            found = hints(product(again, steps, 1 + LARGE // (steps * LANES * 4)))
            assert len(found) <= MOST


def test_results_stay_the_same() -> None:
    again, steps, blocks = 3, 65, 1 + LARGE // (65 * LANES * 4)
    target = replace(cpu_machine(host()), prefetch_blocks=True)
    data = [zeros(blocks * again * LANES), noise(again * steps, 1), noise(blocks * steps * LANES, 2)]
    check(product(again, steps, blocks), data, target=target, rtol=1e-4, atol=1e-4)
