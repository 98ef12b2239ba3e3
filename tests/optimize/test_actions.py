"""Actions: each does what its docstring says, refuses with a reason, and never changes the answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from morok.ir.build import sink
from morok.ir.digest import digest
from morok.ir.infer import closed_ranges, dimensions, summed
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.ir.text import parse, to_python
from morok.machine.machine import Machine
from morok.optimize.actions.table import ACTIONS, apply, apply_all, can
from morok.optimize.loops import divides, loops_of, size
from morok.optimize.record import Opt, OptError, Optimised, applied
from tests.optimize.kernels import (
    AVX512,
    GPU,
    MAKERS,
    NEON,
    VALUES,
    interpret,
    kernel,
    kernel_of,
    native,
    same,
    wanted,
)
from tests.schedule import graphs as g

AMOUNTS = (2, 3, 4, 5, 8)
WHOLE = ("UPCAST", "UNROLL", "LOCAL", "GROUP", "GROUPTOP", "THREAD")  # an amount of 0 means all


def candidates(ast: UOp) -> list[Opt]:
    """Everything one might try, legal or not."""
    loops = loops_of(ast)
    found = [Opt("TC")]
    numbers = sorted(loops.by_number)
    for n in numbers:
        found += [Opt(name, n) for name in WHOLE]
        found += [
            Opt(name, n, amount)
            for name in (*WHOLE, "TILE", "PADTO", "PEEL", "PEEL_FIRST")
            for amount in AMOUNTS
        ]
        found += [Opt("SWAP", n, m) for m in numbers if n < m]
        found += [Opt("JOIN", n, m) for m in numbers if n != m]
        found += [Opt(name, n, m) for name in ("CACHE_ROW", "ACCUMULATE_IN_CACHE") for m in numbers if n != m]
        # a last block with fewer steps is a loop whose end depends on another: no loop of the interpreter's
        even = [a for a in (1, 2, 5) if divides(a, loops.by_number[n].src[0])]
        found += [Opt("SPLIT_K", n, a, (m,)) for a in even for m in numbers]
        found += [Opt("SPLIT_K", n, 2, (m, o)) for m in numbers for o in numbers if m != o and 2 in even]
        found += [Opt("CACHE_RESULT", -1, a, (n, m)) for a in (0, 2) for m in numbers]
    inputs = [n.arg for n in loops.order if n.op is Ops.DEFINE_GLOBAL]
    for b in inputs:
        found += [Opt("PACK", b, 0, (n,)) for n in numbers]
        found += [Opt(name, b, 0, (n, m)) for name in ("PACK", "HALO") for n in numbers for m in numbers]
    return found


# what needs a GPU's kernels, and the files that try it there
ELSEWHERE = {
    "ATOMIC": "test_atomics.py", "CACHE_SCORES": "../optimize/test_cache_scores.py",
    "CLUSTER": "test_cluster.py",
    "ONLINE": "test_online.py", "PARTITION": "test_partition.py", "PERSISTENT": "test_warp_specialize.py",
    "SKIP": "test_skip.py", "STAGE": "test_wgmma.py", "STAGE_RESULT": "test_wgmma.py",
    "TILE_UNIT": "../optimize/test_tile_unit.py", "WARP_SPECIALIZE": "test_warp_specialize.py",
}  # fmt: skip


def test_every_action_is_among_the_candidates_or_tried_elsewhere() -> None:
    tried = {opt.name for name in MAKERS for opt in candidates(kernel(name))}
    assert tried | set(ELSEWHERE) == set(ACTIONS) and not tried & set(ELSEWHERE)
    for name, file in ELSEWHERE.items():
        text = (Path(__file__).parents[1] / "gpu" / file).read_text(encoding="utf-8")
        assert f'"{name}"' in text, f"{name} is not tried by {file}"


def legal(ast: UOp, host: Machine) -> list[Opt]:
    return [opt for opt in candidates(ast) if can(ast, opt, host) is None]


@st.composite
def sequences(draw: st.DrawFn, hosts: tuple[Machine, ...]) -> tuple[str, Machine, UOp]:
    """A kernel after a few random legal actions."""
    name = draw(st.sampled_from(sorted(MAKERS)))
    host = draw(st.sampled_from(hosts))
    ast = kernel(name)
    for _ in range(draw(st.integers(1, 5))):
        options = legal(ast, host)
        if not options:
            break
        # a kind of action first, so that rare ones get their turn
        chosen = draw(st.sampled_from(sorted({opt.name for opt in options})))
        opt = draw(st.sampled_from([opt for opt in options if opt.name == chosen]))
        ast = apply(ast, opt, host)
    return name, host, ast


@given(sequences((NEON, AVX512, GPU)))
@settings(max_examples=60)
def test_legal_sequences_keep_the_answer(case: tuple[str, Machine, UOp]) -> None:
    name, _, ast = case
    same(interpret(ast, VALUES), wanted(name))


@given(sequences((NEON,)))
@settings(max_examples=30)
def test_legal_sequences_keep_the_answer_as_machine_code(case: tuple[str, Machine, UOp]) -> None:
    name, _, ast = case
    same(native(ast, VALUES), wanted(name))


@pytest.mark.slow
@given(sequences((NEON, AVX512, GPU)))
def test_many_legal_sequences(case: tuple[str, Machine, UOp]) -> None:
    name, _, ast = case
    same(interpret(ast, VALUES), wanted(name))


@pytest.mark.slow
@given(sequences((NEON, AVX512)))
def test_many_legal_sequences_as_machine_code(case: tuple[str, Machine, UOp]) -> None:
    name, _, ast = case
    same(native(ast, VALUES), wanted(name))


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_every_single_action_keeps_the_answer(name: str) -> None:
    ast = kernel(name)
    for host in (NEON, GPU):
        for opt in legal(ast, host):
            same(interpret(apply(ast, opt, host), VALUES), wanted(name))


@given(sequences((NEON,)))
@settings(max_examples=20)
def test_a_record_replays_prints_and_parses(case: tuple[str, Machine, UOp]) -> None:
    name, host, ast = case
    assert apply_all(kernel(name), applied(ast), host) is ast
    back = parse(to_python(ast))
    assert back is ast
    assert digest(back) == digest(ast)


# --- what single actions do


def kinds(ast: UOp) -> dict[int, tuple[int | None, AxisKind]]:
    return {n: (size(r), r.arg[1]) for n, r in sorted(loops_of(ast).by_number.items())}


def test_upcast_cuts_lanes_off_a_loop() -> None:
    ast = apply(kernel("matmul"), Opt("UPCAST", 1, 4), NEON)
    assert kinds(ast) == {
        0: (12, AxisKind.LOOP),
        1: (2, AxisKind.LOOP),
        2: (10, AxisKind.REDUCE),
        3: (4, AxisKind.UPCAST),
    }
    assert ast.arg == Optimised((Opt("UPCAST", 1, 4),))


def test_upcast_of_all_leaves_no_loop() -> None:
    assert kinds(apply(kernel("row sum"), Opt("UPCAST", 0), NEON)) == {
        1: (24, AxisKind.REDUCE),
        2: (7, AxisKind.UPCAST),
    }


def test_group_and_grouptop_cut_from_either_end() -> None:
    for name in ("GROUP", "GROUPTOP"):
        assert kinds(apply(kernel("row sum"), Opt(name, 1, 4), GPU)) == {
            0: (7, AxisKind.LOOP),
            1: (6, AxisKind.REDUCE),
            2: (4, AxisKind.GROUP_REDUCE),
        }


def test_swap_exchanges_sizes() -> None:
    assert kinds(apply(kernel("matmul"), Opt("SWAP", 0, 1), NEON)) == {
        0: (8, AxisKind.LOOP),
        1: (12, AxisKind.LOOP),
        2: (10, AxisKind.REDUCE),
    }


def test_peel_adds_an_effect_for_the_rest() -> None:
    ast = apply(kernel("in place"), Opt("PEEL", 0, 8), NEON)
    assert kinds(ast) == {0: (40, AxisKind.LOOP), 1: (5, AxisKind.LOOP)}
    assert len(ast.src) == 2


def test_pack_makes_a_local_buffer() -> None:
    ast = apply(kernel("matmul"), Opt("PACK", 2, 0, (2,)), NEON)
    (copy,) = [n for n in toposort(ast) if n.op is Ops.BUFFERIZE]
    assert size(copy.src[1]) == 10


def test_pack_takes_along_what_is_computed_from_the_read_alone() -> None:
    ast = apply(kernel("relu matmul"), Opt("PACK", 1, 0, (2,)), NEON)
    (copy,) = [n for n in toposort(ast) if n.op is Ops.BUFFERIZE]
    assert copy.src[0].op is Ops.MAX


def convolution(padding: int = 1, stride: int = 1) -> UOp:
    return kernel_of(g.conv(g.tensor(16, 3, 6, 7), g.tensor(8, 3, 3, 3), stride, padding))


@pytest.mark.parametrize("padding, stride", [(1, 1), (0, 1), (1, 2)])
def test_halo_copies_what_windows_share(padding: int, stride: int) -> None:
    """The copy has the padded size, its reads have no guards, and the answer stays."""
    ast = convolution(padding, stride)
    copied = apply(ast, Opt("HALO", 1, 0, (2, 5, 3, 6)), NEON)
    (copy,) = (n for n in toposort(copied) if n.op is Ops.BUFFERIZE)
    places = [(n + 2 * padding - 3) // stride + 1 for n in (6, 7)]
    assert [size(r) for r in copy.src[1:]] == [3, *((n - 1) * stride + 3 for n in places)]
    (read,) = (n for n in toposort(copied) if n.op is Ops.INDEX and n.src[0] is copy)
    assert len(read.src) == 2
    same(interpret(copied), interpret(ast))
    same(native(copied), interpret(ast))


def test_halo_refuses_loops_that_are_no_window() -> None:
    ast = convolution()
    for axes, reason in (
        ((2, 6), "depends on more than the sums"), ((2,), "pairs"), ((1, 5), "not exactly one read"),
        ((2, 99), "there is no loop 99"),
    ):  # fmt: skip
        assert reason in (can(ast, Opt("HALO", 1, 0, axes), NEON) or "")
    assert "bytes" in (can(ast, Opt("HALO", 1, 0, (2, 5)), Machine(local_bytes=16)) or "")


def test_split_k_keeps_totals_between_steps() -> None:
    ast = apply(kernel("matmul"), Opt("SPLIT_K", 2, 5, (0, 1)), NEON)
    (totals,) = (n for n in toposort(ast) if n.op is Ops.BUFFERIZE)
    assert [(size(r), r.arg[1]) for r in totals.src[1:]] == [
        (2, AxisKind.ORDERED), (12, AxisKind.LOOP), (8, AxisKind.LOOP),
    ]  # fmt: skip
    assert dimensions(totals) == totals.src[2:] and summed(totals) == totals.src[1:2]
    for action in ("UPCAST", "TILE", "THREAD", "UNROLL", "PADTO"):
        assert can(ast, Opt(action, int(totals.src[1].arg[0]), 2), NEON) is not None


@pytest.mark.parametrize("opts", [
    [Opt("PEEL", 1, 4), Opt("SPLIT_K", 1, 4, (0,))],
    [Opt("PEEL", 1, 4), Opt("SPLIT_K", 1, 4, (0,)), Opt("UPCAST", 0, 2), Opt("UNROLL", 1)],
])  # fmt: skip
def test_totals_of_any_number_of_steps(opts: list[Opt]) -> None:
    """Also of fewer than a block has: then nobody writes a total."""
    ast = apply_all(kernel("symbolic sum"), opts, NEON)
    for n in range(1, 21):
        want = interpret(kernel("symbolic sum"), {"n": n})
        same(interpret(ast, {"n": n}), want)
        same(native(ast, {"n": n}), want)


def test_rows_of_unknown_length_are_kept() -> None:
    plain = kernel("symbolic softmax")
    opts = [Opt("PEEL", 2, 4), Opt("PEEL", 1, 4), Opt("CACHE_ROW", 2, 1), Opt("UPCAST", 1, 4)]
    ast = apply_all(plain, opts, NEON)
    assert sum(n.op is Ops.BUFFERIZE for n in toposort(ast)) == 1
    for n in range(1, 21):
        want = interpret(plain, {"n": n})
        same(interpret(ast, {"n": n}), want)
        same(native(ast, {"n": n}), want)


def test_what_a_block_reads_is_packed_block_by_block() -> None:
    opts = [Opt("SPLIT_K", 2, 5, (0, 1)), Opt("UPCAST", 5, 4), Opt("PACK", 2, 0, (5, 2, 6)), Opt("UPCAST", 9)]
    ast = apply_all(kernel("matmul"), opts, NEON)
    sizes = [[size(r) for r in dimensions(n)] for n in toposort(ast) if n.op is Ops.BUFFERIZE]
    assert [2, 5, 4] in sizes
    same(interpret(ast, VALUES), wanted("matmul"))
    same(native(ast, VALUES), wanted("matmul"))


def test_cache_row_computes_a_row_once() -> None:
    ast = apply(kernel("softmax"), Opt("CACHE_ROW", 3, 1), NEON)
    assert sum(n.op is Ops.EXP for n in toposort(kernel("softmax"))) == 2
    assert sum(n.op is Ops.EXP for n in toposort(ast)) == 1


REFUSED = [
    ("matmul", Opt("FOO", 1, 3), NEON, "there is no action FOO"),
    ("matmul", Opt("UPCAST", 9, 3), NEON, "there is no loop 9"),
    ("matmul", Opt("UPCAST", 0, 5), NEON, "5 does not divide the 12 iterations of loop 0"),
    ("matmul", Opt("UPCAST", 2, 5), NEON, "loop 2 is closed by REDUCE"),
    ("matmul", Opt("UNROLL", 0, 4), NEON, "loop 0 is closed by END"),
    ("matmul", Opt("TILE", 0, 12), NEON, "loop 0 has 12 iterations, so there would be one tile"),
    ("matmul", Opt("LOCAL", 0, 4), NEON, "the machine has no blocks of threads"),
    ("matmul", Opt("THREAD", 0), GPU, "the machine runs a grid, not threads"),
    ("matmul", Opt("THREAD", 2), NEON, "loop 2 is closed by REDUCE"),
    ("matmul", Opt("SWAP", 0, 2), NEON, "loops 0 and 2 are not closed together"),
    ("matmul", Opt("PADTO", 0, 4), NEON, "loop 0 is a multiple of 4 already"),
    ("matmul", Opt("PEEL", 0, 13), NEON, "loop 0 has only 12 iterations"),
    ("matmul", Opt("PEEL_FIRST", 0, 12), NEON, "loop 0 has 12 iterations"),
    ("matmul", Opt("PEEL_FIRST", 9, 1), NEON, "there is no loop 9"),
    ("symbolic rows", Opt("PEEL_FIRST", 0, 1), NEON, "loop 0 has no known number of iterations"),
    ("matmul", Opt("PACK", 0, 0, (0,)), NEON, "buffer 0 is written, so a copy would grow old"),
    ("matmul", Opt("PACK", 1, 0, (0, 1)), NEON, "no read of buffer 1 runs over all of these loops"),
    ("matmul", Opt("PACK", 1), NEON, "a copy needs loops for its dimensions, each once"),
    ("matmul", Opt("SPLIT_K", 2, 10, (0,)), NEON, "10 steps do not cut the 10 of loop 2"),
    ("matmul", Opt("SPLIT_K", 0, 2, (1,)), NEON, "loop 0 is no plain loop of a reduction"),
    ("matmul", Opt("SPLIT_K", 2, 5), NEON, "totals need loops for their dimensions, each once"),
    ("matmul", Opt("SPLIT_K", 2, 5, (2,)), NEON, "the sum does not depend on a loop 2"),
    ("matmul", Opt("SPLIT_K", 2, 5, (0,)), GPU, "threads of a block would share the totals"),
    ("matmul", Opt("CACHE_ROW", 0, 1), NEON, "loops 0 and 1 are not two of the same size"),
    ("row sum", Opt("CACHE_ROW", 0, 9), NEON, "there is no loop 9"),
    ("matmul", Opt("TC"), NEON, "the machine has no matrix unit"),
    ("symbolic rows", Opt("UPCAST", 0), NEON, "the size of loop 0 is not known, so it needs an amount"),
    ("symbolic rows", Opt("UPCAST", 0, 4), NEON, "4 does not divide the unknown iterations of loop 0"),
    ("symbolic rows", Opt("PACK", 1, 0, (0,)), GPU, "the size of loop 0 is not known, so a copy"),
    ("symbolic rows", Opt("PACK", 1, 0, (1, 0)), NEON, "the size of loop 0 is not known, so a copy"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "opt", "host", "reason"), REFUSED, ids=lambda x: str(x)[:24])
def test_refusals_say_why(name: str, opt: Opt, host: Machine, reason: str) -> None:
    assert (can(kernel(name), opt, host) or "").startswith(reason)
    with pytest.raises(OptError, match="not possible"):
        apply(kernel(name), opt, host)


def test_no_second_shared_loop() -> None:
    ast = apply(kernel("matmul"), Opt("THREAD", 0), NEON)
    assert can(ast, Opt("THREAD", 1), NEON) == "another loop is shared by threads already"


def test_the_last_step_of_a_joint_reduction_is_peeled_without_a_loop() -> None:
    ast = apply(kernel("joint reduction"), Opt("PEEL", 1, 11), NEON)  # of 12 steps
    assert [len(closed_ranges(n)) for n in toposort(ast) if n.op is Ops.REDUCE] == [1]
    same(interpret(ast), wanted("joint reduction"))


def test_dimensions_of_a_copy_are_not_joined() -> None:
    ast = apply(kernel("matmul"), Opt("PACK", 2, 0, (2, 1)), NEON)
    assert can(ast, Opt("JOIN", 4, 3), NEON) == "loop 4 is a dimension of a copy"


def test_blocks_have_a_limit() -> None:
    small = Machine(block_threads=8)
    ast = apply(kernel("matmul"), Opt("LOCAL", 0, 4), small)
    assert can(ast, Opt("LOCAL", 1, 4), small) == "a block would have 16 threads of at most 8"


def test_symbolic_sizes_are_cut_after_rounding() -> None:
    for first in (Opt("PEEL", 0, 4), Opt("PADTO", 0, 4)):
        ast = apply_all(kernel("symbolic rows"), (first, Opt("UPCAST", 0, 4)), NEON)
        for n in (1, 3, 4, 9, 20):
            same(interpret(ast, {"n": n}), interpret(kernel("symbolic rows"), {"n": n}))
            same(native(ast, {"n": n}), interpret(kernel("symbolic rows"), {"n": n}))


def test_every_action_shows_before_and_after() -> None:
    assert all("→" in action.meaning and f"{name}(" in action.meaning for name, action in ACTIONS.items())


def test_an_untouched_kernel_has_no_record() -> None:
    assert applied(sink()) == ()


@pytest.mark.parametrize("axes", [(0,), (0, 1), (1,)], ids=str)
def test_a_copy_inside_of_a_copy_is_filled_by_loops_of_its_own(axes: tuple[int, ...]) -> None:
    """Of two effects that share loops and a copy, one has it copied again: there are two copies then."""
    ast = kernel("two outputs")
    for opt in (Opt("PACK", 2, 0, (2,)), Opt("PACK", 2, 0, axes)):
        ast = apply(ast, opt, NEON)
    same(native(ast), wanted("two outputs"))
