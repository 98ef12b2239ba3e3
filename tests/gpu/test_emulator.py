"""The emulator: what instructions mean for many threads, and each of its checks, which must trip."""

import numpy as np
import pytest

from morok.device.emulator.device import Emulator
from morok.dtype import float32, int32, void
from morok.errors import DeviceError, VariableError
from morok.ir.build import after, define_local, define_reg, rng
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from tests.gpu.kernels import buffer, emulate, gidx, lidx, linear, load, pointer, store

RAMP = np.arange(8, dtype=np.float32)


def barrier(*before: UOp) -> UOp:
    return make(Ops.BARRIER, void, before)


def number(x: UOp) -> UOp:
    return alu(Ops.MUL, const(float32, 1.0), make(Ops.CAST, float32, (x,)))


def out(n: int = 8) -> np.ndarray:
    return np.zeros(n, dtype=np.float32)


# --- what instructions mean


def test_blocks_and_threads_have_numbers() -> None:
    place = gidx(3) * 8 + lidx(4) + lidx(2, 1) * 4
    (found,) = emulate(linear(store(buffer(24), place, number(place))), out(24))
    np.testing.assert_array_equal(found, np.arange(24))


def test_threads_talk_through_local_memory() -> None:
    t, s = lidx(8), define_local(float32, 8, "s")
    wrote = barrier(store(s, t, number(t)))
    (found,) = emulate(linear(store(buffer(8), t, load(after(s, wrote), t * -1 + 7))), out())
    np.testing.assert_array_equal(found, RAMP[::-1])


def test_blocks_have_local_memory_of_their_own() -> None:
    t, g, s = lidx(4), gidx(2), define_local(float32, 4, "s")
    wrote = barrier(store(s, t, number(g * 10 + t)))
    (found,) = emulate(linear(store(buffer(8), g * 4 + t, load(after(s, wrote), t * -1 + 3))), out())
    np.testing.assert_array_equal(found, [3, 2, 1, 0, 13, 12, 11, 10])


def test_threads_may_loop_for_different_times() -> None:
    t = lidx(8)
    r = make(Ops.RANGE, int32, (t,), rng(2, 0).arg)
    a = define_reg(float32, 1, 0)
    start = store(a, 0, const(float32, 0.0))
    inside = after(a, start, r)
    update = store(inside, 0, load(inside, 0) + 1.0)
    done = make(Ops.END, void, (update, r))
    (found,) = emulate(linear(store(buffer(8), t, load(after(a, done), 0))), out())
    np.testing.assert_array_equal(found, RAMP)


def test_a_condition_masks_stores() -> None:
    t = lidx(8)
    gate = make(Ops.IF, void, (alu(Ops.CMPLT, t, const(int32, 3)),))
    where = pointer(buffer(8), t)
    body = make(Ops.STORE, void, (where, number(t)))
    program = linear(where, number(t), gate, body, make(Ops.ENDIF, void, (gate,)))
    (found,) = emulate(program, out())
    np.testing.assert_array_equal(found, [0, 1, 2, 0, 0, 0, 0, 0])


def test_lanes_hand_values_to_one_another() -> None:
    t = lidx(8)
    other = make(Ops.SHUFFLE, float32, (number(t), alu(Ops.XOR, t, const(int32, 1))), 4)
    (found,) = emulate(linear(store(buffer(8), t, other)), out())
    np.testing.assert_array_equal(found, [1, 0, 3, 2, 5, 4, 7, 6])


def test_vectors_are_one_access() -> None:
    t = lidx(2)
    value = load(buffer(8, 1), t * 4, lanes=4)
    transposed = make(Ops.GEP, float32.vec(4), (value,), (3, 2, 1, 0))
    found, _ = emulate(linear(store(buffer(8), t * 4, transposed)), out(), RAMP)
    np.testing.assert_array_equal(found, [3, 2, 1, 0, 7, 6, 5, 4])


def test_guarded_loads_touch_nothing() -> None:
    t = lidx(8)
    value = load(buffer(4, 1), t, alu(Ops.CMPLT, t, const(int32, 4)))
    found, _ = emulate(linear(store(buffer(8), t, value)), out(), RAMP[:4])
    np.testing.assert_array_equal(found, [0, 1, 2, 3, 0, 0, 0, 0])


def test_more_blocks_than_run_at_once() -> None:
    t, g = lidx(8), gidx(20_000)
    place = g * 8 + t
    (found,) = emulate(linear(store(buffer(160_000), place, number(t))), out(160_000))
    np.testing.assert_array_equal(found.reshape(-1, 8), np.broadcast_to(RAMP, (20_000, 8)))


# --- what it must not let pass


def fails(program: UOp, *arrays: object, match: str, **how: object) -> None:
    with pytest.raises(DeviceError, match=match) as error:
        emulate(program, *arrays, **how)  # type: ignore[arg-type]
    assert "kernel test: instruction" in str(error.value)


def test_two_threads_write_one_local_element() -> None:
    t, s = lidx(8), define_local(float32, 4, "s")
    program = linear(store(s, alu(Ops.SHR, t, const(int32, 1)), number(t)))
    fails(program, match="thread 0 of block 0 writes element 0 of the local memory s, which thread 1")


def test_a_read_without_a_barrier() -> None:
    t, s = lidx(8), define_local(float32, 8, "s")
    wrote = store(s, t, number(t))
    program = linear(store(buffer(8), t, load(after(s, wrote), t * -1 + 7)))
    fails(program, out(), match="LOAD, in thread 0 of block 0 reads element 7 of .*without a barrier")


def test_a_write_over_what_others_still_read() -> None:
    t, s = lidx(8), define_local(float32, 8, "s")
    wrote = barrier(store(s, t, number(t)))
    value = load(after(s, wrote), t * -1 + 7)
    program = linear(store(buffer(8), t, value), store(after(s, wrote), t, value))
    fails(program, out(), match="STORE, .* writes element 0 of .*which thread 7 of the block touches as well")


def test_a_write_over_what_several_have_read() -> None:
    t, s = lidx(8), define_local(float32, 8, "s")
    wrote = barrier(store(s, t, number(t)))
    value = load(after(s, wrote), 0)
    program = linear(store(buffer(8), t, value), store(after(s, wrote), t, value))
    fails(program, out(), match="writes element 0 of .*which several threads of the block touch")


def test_a_thread_may_read_what_it_wrote() -> None:
    t, s = lidx(8), define_local(float32, 8, "s")
    wrote = store(s, t, number(t))
    (found,) = emulate(linear(store(buffer(8), t, load(after(s, wrote), t))), out())
    np.testing.assert_array_equal(found, RAMP)


def test_two_threads_write_one_global_element() -> None:
    t, g = lidx(4), gidx(2)
    fails(linear(store(buffer(8), t, number(g))), out(), match="writes element 0 of buffer 0, as does thread")


def test_places_outside() -> None:
    t = lidx(8)
    fails(
        linear(store(buffer(8), t + 1, number(t))),
        out(),
        match="thread 7 .* element 8 of buffer 0, which has 8",
    )
    program = linear(store(buffer(8), t, load(buffer(8, 1), t - 1)))
    fails(program, out(), RAMP, match="LOAD, in thread 0 .* element -1 of buffer 1")
    s = define_local(float32, 4, "s")
    fails(linear(store(s, t, number(t))), match="element 4 of the local memory s, which has 4")
    a = define_reg(float32, 2, 0)
    fails(linear(store(a, t, number(t))), match="thread 2 .* element 2 of the registers 0")


def test_memory_that_nobody_has_written() -> None:
    t, s, a = lidx(8), define_local(float32, 8, "s"), define_reg(float32, 1, 0)
    half = alu(Ops.CMPLT, t, const(int32, 4))
    fails(
        linear(store(buffer(8), t, load(s, t))),
        out(),
        match="reads element 0 of the local memory s, which nobody",
    )
    wrote = barrier(store(s, t, number(t), half))
    fails(
        linear(store(buffer(8), t, load(after(s, wrote), t))),
        out(),
        match="thread 4 .*reads element 4 of the local",
    )
    fails(
        linear(store(buffer(8), t, load(a, 0))),
        out(),
        match="reads element 0 of the registers 0, which nobody",
    )
    program = linear(store(buffer(8), t, load(buffer(8, 1), t)))
    fails(program, out(), RAMP, fresh=(1,), match="reads element 0 of buffer 1, which nobody has written")


def test_vectors_lie_at_multiples_of_their_size() -> None:
    t = lidx(1)
    program = linear(store(buffer(8), t, load(buffer(8, 1), t + 2, lanes=4)))
    fails(program, out(), RAMP, match="accesses 4 elements of buffer 1 at 2, which is not aligned")


def test_a_barrier_that_some_do_not_reach() -> None:
    t = lidx(8)
    gate = make(Ops.IF, void, (alu(Ops.CMPLT, t, const(int32, 3)),))
    program = linear(gate, make(Ops.BARRIER, void, (gate,)), make(Ops.ENDIF, void, (gate,)))
    fails(program, match="BARRIER, in thread 3 of block 0 does not come to the barrier")


def test_a_lane_that_does_not_take_part() -> None:
    t = lidx(6)
    other = make(Ops.SHUFFLE, float32, (number(t), alu(Ops.XOR, t, const(int32, 2))), 4)
    fails(linear(store(buffer(8), t, other)), out(), match="thread 4 .* asks lane 6 of its block")


def test_a_lane_of_the_warp_that_waits_elsewhere() -> None:
    """Lanes 0 … 3 hand values to each other, but the instruction waits for all of their warp."""
    t = lidx(8)
    gate = make(Ops.IF, void, (alu(Ops.CMPLT, t, const(int32, 4)),))
    other = make(Ops.SHUFFLE, float32, (number(t), alu(Ops.XOR, t, const(int32, 1))), 4)
    first = list(linear(pointer(buffer(8), t), other.src[0], other.src[1], gate.src[0]).src)
    body = (gate, other, store(buffer(8), t, other), make(Ops.ENDIF, void, (gate,)))
    fails(make(Ops.LINEAR, void, (*first, *body)), out(), match="thread 4 .* others of its warp wait at")
    whole = lidx(64)
    gate = make(Ops.IF, void, (alu(Ops.CMPLT, whole, const(int32, 32)),))
    other = make(Ops.SHUFFLE, float32, (number(whole), alu(Ops.XOR, whole, const(int32, 1))), 4)
    first = list(linear(pointer(buffer(64), whole), other.src[0], other.src[1], gate.src[0]).src)
    body = (gate, other, store(buffer(64), whole, other), make(Ops.ENDIF, void, (gate,)))
    (found,) = emulate(make(Ops.LINEAR, void, (*first, *body)), out(64))
    np.testing.assert_array_equal(found[:4], [1, 0, 3, 2])
    np.testing.assert_array_equal(found[32:], np.zeros(32))


def test_more_lanes_than_a_warp_has() -> None:
    t = lidx(64)
    other = make(Ops.SHUFFLE, float32, (number(t), alu(Ops.XOR, t, const(int32, 32))), 64)
    fails(linear(store(buffer(64), t, other)), out(64), match="asks among 64 lanes; a warp has 32")


@pytest.mark.parametrize("sound", [False, True])
def test_local_memory_in_a_loop(sound: bool) -> None:
    """It is one memory in all rounds: who is faster writes over what others still read."""
    t, s = lidx(8), define_local(float32, 8, "s")
    r = make(Ops.RANGE, int32, (const(int32, 3),), rng(2, 0).arg)
    wrote = barrier(store(after(s, r), t, number(t)))
    read = store(buffer(24), r * 8 + t, load(after(s, wrote), t * -1 + 7))
    program = linear(make(Ops.END, void, (barrier(read) if sound else read, r)))
    if sound:
        np.testing.assert_array_equal(emulate(program, out(24))[0].reshape(3, 8)[2], RAMP[::-1])
    else:
        fails(program, out(24), match="STORE, .* writes element 0 of .*which thread 7 of the block")


def test_variables_have_to_be_there() -> None:
    n = make(Ops.DEFINE_VAR, int32, (), ("n", 1, 4))
    program = linear(store(buffer(8), lidx(8), number(n)))
    np.testing.assert_array_equal(emulate(program, out(), values={"n": 3})[0], np.full(8, 3))
    with pytest.raises(VariableError, match="needs a value for the variable n"):
        emulate(program, out())
    with pytest.raises(VariableError, match="lies in 1 … 4"):
        emulate(program, out(), values={"n": 5})


def test_its_memory_is_its_own() -> None:
    device = Emulator()
    data = RAMP.copy()
    held = device.adopt(data, float32)
    data[:] = 0
    np.testing.assert_array_equal(held.copy_out(), RAMP)
    with pytest.raises(DeviceError, match="not reachable from the host"):
        held.array()
