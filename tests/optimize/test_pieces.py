"""Loops whose reads are guarded by constants (what is joined, rolled, padded) are cut at the guards."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from morok import Tensor
from morok.ir.bounds import vmax, vmin
from morok.ir.infer import closed_ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.actions.table import apply_all, can
from morok.optimize.heuristics.cpu import choose
from morok.optimize.record import Opt, applied
from tests.optimize.kernels import AVX512, NEON, interpret, kernel_of, native, same


def floats(*shape: int) -> Tensor:
    return Tensor(np.zeros(shape, np.float32))


def joined(*widths: int, rows: int = 40) -> Tensor:
    return Tensor.cat(*(floats(rows, n) for n in widths), dim=1)


def halves(x: Tensor) -> Tensor:
    return Tensor.cat(-x[:, 32:], x[:, :32], dim=1)


def uneven(x: Tensor, y: Tensor) -> Tensor:
    return Tensor.cat(x.exp(), y * 2, dim=1)


PROGRAMS: dict[str, tuple[Callable[[], Tensor], int]] = {  # and how many pieces
    "two columns": (lambda: joined(500, 300), 2),
    "three of odd widths": (lambda: joined(33, 17, 100), 3),
    "twenty": (lambda: joined(*[30] * 20), 20),
    "one array behind another": (lambda: Tensor.cat(floats(5003), floats(4001), dim=0), 2),
    "rows behind rows": (lambda: Tensor.cat(floats(50, 100), floats(70, 100), dim=0), 2),
    "stacked in the middle": (lambda: Tensor.stack(*(floats(40, 143) for _ in range(5)), dim=1), 5),
    "rolled": (lambda: floats(80, 100).roll(5, 1), 2),
    "halves that change places": (lambda: halves(floats(40, 64)), 2),
    "arithmetic on some": (lambda: uneven(floats(80, 100), floats(80, 60)) + floats(160), 2),
}


def guards(root: UOp) -> list[UOp]:
    """Comparisons that are not decided yet."""
    return [n for n in toposort(root) if n.op is Ops.CMPLT and vmin(n) != vmax(n)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_piece_has_no_guards(name: str) -> None:
    program, pieces = PROGRAMS[name]
    kernel = kernel_of(program().uop)
    done = choose(kernel, NEON)
    assert guards(kernel) and not guards(done)
    assert sum(opt.name == "PEEL_FIRST" for opt in applied(done)) == pieces - 1
    same(native(done), interpret(kernel))


@pytest.mark.parametrize("name", PROGRAMS)
def test_pieces_are_right_where_memory_takes_masks(name: str) -> None:
    kernel = kernel_of(PROGRAMS[name][0]().uop)
    same(interpret(choose(kernel, replace(AVX512, cores=1))), interpret(kernel))


def test_sums_are_cut_too() -> None:
    kernel = kernel_of(joined(100, 60).sum(1).uop)
    done = choose(kernel, NEON)
    assert not guards(done) and sum(n.op is Ops.REDUCE for n in toposort(done)) > 1
    same(native(done), interpret(kernel))


def test_a_product_keeps_its_tile() -> None:
    done = choose(kernel_of((joined(64, 64, rows=64) @ floats(128, 8)).uop), NEON)
    assert all(opt.name != "PEEL_FIRST" for opt in applied(done))


def test_what_is_one_body_is_not_cut() -> None:
    done = choose(kernel_of(joined(7, 9).uop), NEON)
    assert all(opt.name != "PEEL_FIRST" for opt in applied(done))


def test_a_border_of_rows_is_not_cut() -> None:
    """A guard that a whole row shares costs little where only one array is read."""
    done = choose(kernel_of((floats(60, 64).pad(((1, 1), (0, 0))) + floats(64)).uop), NEON)
    assert all(opt.name != "PEEL_FIRST" for opt in applied(done))


@pytest.mark.parametrize(
    "program",
    [
        lambda: Tensor.cat(floats(90_000), floats(70_000), floats(80_000), dim=0),
        lambda: Tensor.cat(floats(50, 2000), floats(70, 2000), dim=0),
        lambda: Tensor.stack(*(floats(60_000) for _ in range(3)), dim=0),
        lambda: Tensor.cat(floats(256, 196), *(floats(32, 196) for _ in range(12)), dim=0),  # one is large
    ],
)
def test_threads_share_all_pieces(program: Callable[[], Tensor]) -> None:
    kernel = kernel_of(program().uop)
    done = choose(kernel, replace(NEON, cores=4))
    shared = {r for e in done.src for r in closed_ranges(e) if r.arg[1] is AxisKind.THREAD}
    steps = [np.prod([int(r.src[0].arg) for r in closed_ranges(e)]) for e in done.src]
    alone = [n for n, e in zip(steps, done.src, strict=True) if shared.isdisjoint(closed_ranges(e))]
    assert len(shared) == 1 and sum(alone) < sum(steps) / 20
    same(native(done), interpret(kernel))


def test_bodies_of_many_pieces_are_short() -> None:
    """All of them together are about as much code whatever their number."""

    def lanes(count: int) -> int:
        done = choose(kernel_of(Tensor.cat(*(floats(32, 1024) for _ in range(count)), dim=0).uop), AVX512)
        return sum(
            int(r.src[0].arg) for r in toposort(done) if r.op is Ops.RANGE and r.arg[1] is AxisKind.UPCAST
        )

    assert lanes(4) == 4 * 8 * 16
    assert lanes(24) <= lanes(12) == 12 * 4 * 16


def test_more_pieces_than_all_bodies_have_vectors() -> None:
    x = Tensor.cat(*(floats(20 + 7 * (k * k % 11), 30) for k in range(18)), dim=0)
    kernel = kernel_of((x + x.flip(0)).uop)
    done = choose(kernel, AVX512)
    assert len(done.src) > 64
    same(native(done), interpret(kernel))


def test_loops_that_are_shared_together() -> None:
    kernel = kernel_of(Tensor.cat(floats(64), floats(128), dim=0).uop)
    cut = apply_all(kernel, (Opt("PEEL_FIRST", 0, 64),), NEON)
    assert (
        can(cut, Opt("THREAD", 0, 0, (1,)), NEON) == "loops that are shared together need an amount of pieces"
    )
    assert (
        can(cut, Opt("THREAD", 0, 4, (0,)), NEON)
        == "loops that are shared together belong to different effects"
    )
    same(native(apply_all(cut, (Opt("THREAD", 0, 4, (1,)),), NEON)), interpret(kernel))
