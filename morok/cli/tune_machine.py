"""`morok tune --machine`: measures this processor and writes its rates where the compiler looks for them.

Every probe is a small program of tensors, as long as it says; what a call costs otherwise is taken out by
measuring it at two lengths. All are run in turns, and the best time of each counts, so somebody else's work
on the machine makes it slower rather than wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from morok import knobs

if TYPE_CHECKING:
    from morok.machine.fit import Probes
    from morok.machine.machine import Machine

Program = Callable[[], Any]
_SIMPLE = (4, 12)  # operations of a chain
_LONG = (1, 3)  # and of one of functions: a kernel's code has a bound
_ELEMENTS = 8192  # stay in the first cache
_KERNELS = 32
_HELPED = 0.9  # of its time alone a program must take at most, for threads to have helped
_BURST = 0.02  # seconds in which a program is called again and again


class Pair(NamedTuple):
    """A program at two lengths, and in how many units these differ; `beside` is subtracted from a unit."""

    short: Program
    long: Program
    units: float
    beside: str = ""  # the probe that each unit brings along


def _numbers(count: int) -> Any:
    from morok import Tensor

    return Tensor(np.random.default_rng(0).uniform(0.5, 1.0, count).astype(np.float32), device="CPU")


def repeated(step: Callable[..., Any], times: int, *inputs: Any) -> Program:
    """A step applied to its own result, in one kernel."""
    from morok.tensor.jit.jit import jit

    def chain(y: Any, *others: Any) -> Any:
        for _ in range(times):
            y = step(y, *others)
        return y

    compiled = jit(chain)
    return lambda: compiled(*inputs)


def _chain(
    step: Callable[..., Any], *inputs: Any, lengths: tuple[int, int] = _LONG, units: int = 1, beside: str = ""
) -> Pair:
    short, long = (repeated(step, n, *inputs) for n in lengths)
    return Pair(short, long, (lengths[1] - lengths[0]) * _ELEMENTS * units, beside)


def op_probes() -> dict[str, Pair]:
    """What an element costs in registers: a simple operation, and the groups of slower ones."""
    from morok import Tensor

    x, y = _numbers(_ELEMENTS), _numbers(_ELEMENTS).flip(0).contiguous().realize()
    n = Tensor(np.full(_ELEMENTS, 1 << 30, np.int32), device="CPU")
    return {
        "operation": _chain(lambda y, x: (y + x) * x, y, x, lengths=_SIMPLE, units=2),
        "division": _chain(lambda y, x: x / (y + x), y, x, lengths=_SIMPLE, beside="operation"),
        "integer_division": _chain(lambda m, n: n // (m + 1), n, n, lengths=_SIMPLE, beside="operation"),
        "exponential": _chain(lambda y: (y * -0.5).exp(), y, beside="operation"),
        "trigonometric": _chain(lambda y: (y * 0.9).sin(), y, beside="operation"),
        "power": _chain(lambda y, x: (y + x) ** x, y, x, beside="operation"),
    }


def memory_probes(machine: Machine) -> dict[str, Pair]:
    """Bytes of a copy, read and written; elements of a gather; kernels of a plan."""
    from morok import Tensor
    from morok.tensor.jit.jit import jit

    def copy(nbytes: int) -> Program:
        return repeated(lambda x: x + 1.0, 1, _numbers(nbytes // 4).realize())

    def gather(count: int) -> Program:
        table = _numbers(machine.l2_bytes // 8).realize()
        places = np.random.default_rng(1).integers(0, machine.l2_bytes // 8, count).astype(np.int32)
        found = jit(lambda table, places: table[places])
        where = Tensor(places, device="CPU")
        return lambda: found(table, where)

    l2, far = machine.l2_bytes // 8, 16 * machine.l2_bytes
    kernels = [_kernels(n) for n in (_KERNELS, 2 * _KERNELS)]
    return {
        "memory": Pair(copy(far), copy(3 * far), 4 * far),
        "l2": Pair(copy(l2), copy(2 * l2), 2 * l2),
        "gather": Pair(gather(_ELEMENTS), gather(3 * _ELEMENTS), 2 * _ELEMENTS),
        "launch": Pair(kernels[0], kernels[1], _KERNELS),
    }


def _kernels(count: int) -> Program:
    """A plan of so many kernels that do next to nothing. Under `jit` they would cost a few nanoseconds."""
    x = y = _numbers(16).realize()
    for _ in range(count):
        y = (y + x).contiguous()
    run: Program = y.plan().run
    return run


def best_times(programs: list[Program], rounds: int) -> list[float]:
    """The shortest time of each, in turns."""
    best = [float("inf")] * len(programs)
    for _ in range(rounds):
        for n, program in enumerate(programs):
            program()
            ends = time.perf_counter() + _BURST
            while (started := time.perf_counter()) < ends:
                program()
                best[n] = min(best[n], time.perf_counter() - started)
    return best


def seconds_of(pairs: dict[str, Pair], rounds: int) -> dict[str, float]:
    """Seconds of a unit of each probe; 0 where noise was larger than what was measured."""
    times = iter(best_times([program for pair in pairs.values() for program in pair[:2]], rounds))
    found: dict[str, float] = {}
    for name, pair in pairs.items():
        short, long = next(times), next(times)
        found[name] = max(0.0, (long - short) / pair.units - found.get(pair.beside, 0.0))
    return found


def _dependent(machine: Machine) -> float:
    """Seconds of a vector's multiply-add that waits for the one before."""
    import ctypes

    from morok.device.cpu.limits import peak_ir
    from morok.device.cpu.llvm import Code, compile_object

    steps = 200_000
    code = Code(compile_object(peak_ir(max(4, machine.vector_bytes // 4), 1)), ("peak",))
    peak = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(code.addresses["peak"])
    out = np.full(128, 0.5, np.float32)
    return best_times([lambda: peak(steps, out.ctypes.data)], 3)[0] / steps


def _waking(threads: int, rounds: int) -> float:
    """Seconds until all threads work; 0 where there is only one, or somebody else keeps the cores busy."""
    from morok.schedule.schedule import clear_cache

    x = _numbers(_ELEMENTS).realize()
    times: list[float] = []
    for count in (1, threads):
        clear_cache()  # plans for another count of threads
        with knobs.override(THREADS=count):
            times += best_times([repeated(lambda y: (y * -0.5).exp(), _LONG[1], x)], rounds)
    helped = threads > 1 and times[1] < _HELPED * times[0]
    return max(0.0, times[1] - times[0] / threads) if helped else 0.0


def measure(machine: Machine, threads: int, rounds: int = 40) -> Probes:
    """All probes on this processor."""
    from morok.dtype import float32
    from morok.machine.fit import Probes

    with knobs.override(THREADS=1, DEVICE="CPU", BEAM=0):
        found = seconds_of({**op_probes(), **memory_probes(machine)}, rounds)
        found["dependent"] = _dependent(machine)
    with knobs.override(DEVICE="CPU", BEAM=0):
        found["wake"] = _waking(threads, rounds)
    return Probes(
        **{name: float(f"{s:.3g}") for name, s in found.items()}, lanes=float(machine.lanes(float32))
    )


def run() -> int:
    """Measures, writes the file, and says what has changed."""
    from morok.device.cpu.device import cpu_machine_key
    from morok.device.cpu.llvm import host
    from morok.device.cpu.threads import thread_count
    from morok.machine import choose
    from morok.machine.files import source
    from morok.machine.fit import as_file, changes, fit, probes_of

    processor, threads = host(), thread_count()
    shipped = choose.shipped_source(processor)
    machine = shipped.machine(processor.flags)
    print(f"Measuring {processor.cpu}, {threads} threads; it takes half a minute, and wants a quiet machine.")
    here = measure(choose.cpu_machine(processor, threads), threads)
    after = fit(machine, probes_of(shipped), here)
    path = choose.fitted_path(processor.cpu)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_file(after, shipped.name, here), encoding="utf-8")
    source.cache_clear()
    choose.cpu_machine.cache_clear()
    cpu_machine_key.cache_clear()
    print(f"{'rate':<18} {'before':>10} {'after':>10}")
    for name, old, new in changes(machine, after):
        print(f"{name:<18} {old:>10.4g} {new:>10.4g}")
    print(f"Written to {path}: plans for this processor use it from now on. Without the file, or with ")
    print(f"MACHINE={shipped.name}, they use what came along.")
    return 0
