"""Machines: files that say what they mean, the right one for a processor, kernels for others."""

from dataclasses import replace
from pathlib import Path

import pytest

from morok import knobs
from morok.dtype import float16, float32
from morok.errors import DeviceError, MachineError
from morok.ir.ops import Ops
from morok.machine import choose
from morok.machine.choose import cpu_machine, gpu_machine, source_of
from morok.machine.files import load, names
from morok.machine.machine import Machine
from morok.machine.processor import Processor

X86 = "x86_64-unknown-linux-gnu"
ARM = "aarch64-unknown-linux-gnu"
ALL = "+avx512f,+avx512vl,+avx2,+fma,+f16c,+sse4.1"

WANTED = {
    "neoverse-n1": Processor(ARM, "neoverse-n1", "+neon"),
    "aarch64": Processor(ARM, "cortex-a72", "+neon"),
    "avx512": Processor(X86, "skylake-avx512", ALL),
    "avx512-amx": Processor(X86, "sapphirerapids", ALL + ",+amx-tile,+amx-bf16,+amx-int8"),
    "avx2": Processor(X86, "znver3", "+avx2,+fma,+f16c"),
    "x86-64": Processor(X86, "x86-64", ""),
    "generic": Processor("riscv64-unknown-linux-gnu", "generic-rv64", ""),
}


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path):
    """What was fitted on this machine does not count here."""
    choose.cpu_machine.cache_clear()
    with knobs.override(CACHE_DIR=str(tmp_path)):
        yield
    choose.cpu_machine.cache_clear()


@pytest.mark.parametrize("name", sorted(WANTED))
def test_a_processor_finds_its_file(name: str) -> None:
    assert source_of(WANTED[name]).name == name


def test_a_name_for_all_processors_is_no_file() -> None:
    """LLVM calls what it does not know by the name of its architecture; then features count."""
    assert source_of(Processor(X86, "x86-64", "+avx2")).name == "avx2"
    assert source_of(Processor(ARM, "generic", "+neon")).name == "aarch64"


def test_what_was_fitted_here_comes_first(tmp_path: Path) -> None:
    place = choose.fitted_path("neoverse-n1")
    place.parent.mkdir()
    place.write_text("base = 'neoverse-n1'\n[rates]\nlaunch = 12345\n")
    found = cpu_machine(WANTED["neoverse-n1"])
    assert found.rates.launch == 12345.0 and found.lane_operands


def test_facts_of_processors() -> None:
    """The widths and registers of the makers' manuals; single features add what they are."""
    found = {name: cpu_machine(p, 4) for name, p in WANTED.items()}
    assert {n: m.vector_bytes for n, m in found.items() if m.arch == "x86_64"} == {
        "avx512": 64, "avx512-amx": 64, "avx2": 32, "x86-64": 16,
    }  # fmt: skip
    assert found["avx2"].registers == 16 and found["avx512"].registers == 32
    assert found["neoverse-n1"].lane_operands and not found["avx2"].lane_operands
    assert found["neoverse-n1"].wide_conversions and not found["avx2"].wide_conversions
    assert {m.cores for m in found.values()} == {4}
    plain = found["x86-64"]
    assert not plain.fma and Ops.FLOOR not in plain.ops and float16 not in plain.stored_floats
    half = cpu_machine(Processor(X86, "x86-64", "+f16c,+fma,+sse4.1"))
    assert half.fma and Ops.FLOOR in half.ops and float16 in half.stored_floats


def test_facts_of_gpus() -> None:
    """The driver's figures win over the file's; a GPU without a file is the nearest before it."""
    own = gpu_machine("sm_90a", cores=78, local_bytes=200 << 10)
    assert own.tma and own.cores == 78 and own.local_bytes == 200 << 10
    assert any(unit.name.startswith("wgmma") for unit in own.matrix_units)
    assert gpu_machine("sm_87").local_bytes == load("sm_86").local_bytes == 99 << 10
    assert not load("sm_80").tma and load("sm_80").lanes(float32) == 1
    assert load("sm_80").access_lanes(float32) == 4


@pytest.mark.parametrize("name", names())
def test_every_file_is_a_machine(name: str) -> None:
    machine = load(name)
    assert machine.name == name and str(machine) == name
    assert machine == load(name) and hash(machine) == hash(replace(machine))
    assert machine.key == replace(machine).key != replace(machine, registers=7).key
    assert machine.key != replace(machine, rates=replace(machine.rates, launch=1.0)).key
    assert all(text for _, text in machine.show())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("vector_byte = 16", "there is no 'vector_byte'; there are name, family"),
        ("vector_bytes = 'wide'", "vector_bytes is 'wide', where int is wanted"),
        ("matrix_units = ['mma.f17']", "'mma.f17', where the name of a matrix unit is wanted"),
        ("ops_missing = ['ROOT']", "'ROOT', where the name of an op is wanted"),
        ("vector_bytes = ", "is not TOML"),
        ("base = 'sm_79'", "there is no machine 'sm_79'; there are aarch64"),
        ("[rates]\nspeed = 1.0", "there is no 'speed'"),
        ("[products]\nunit_rate = 1.0", "Products also needs"),
    ],
)
def test_what_a_file_may_not_say(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text)
    with pytest.raises(MachineError, match=complaint):
        load(str(file))


def test_a_file_lays_what_differs_over_its_base(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "base = 'sm_80'\ncores = 2\n[splits]\nreduce = false\n[rates]\nfar = 9.5\n"
        "[[links]]\nto = 'CPU'\nlatency = 1e-5\nbandwidth = 2.5e10\n"
    )
    found, base = load(str(file)), load("sm_80")
    assert found.cores == 2 and found.rates.far == 9.5 and found.splits.reduce is None
    assert found.products == base.products and found.rates.spill_at == base.rates.spill_at
    assert found.links[0].bandwidth == 2.5e10
    with pytest.raises(MachineError, match="cannot be read"):
        load(str(tmp_path / "absent.toml"))


def test_defaults_are_a_plain_processor() -> None:
    plain = Machine()
    assert plain.lanes(float32) == 4 and plain.longest_access(float32) == 4 and not plain.has_grid


def test_the_knob_names_a_gpu_for_the_emulator() -> None:
    from morok.device.emulator.device import Emulator

    device = Emulator()
    assert device.machine.tma
    with knobs.override(MACHINE="sm_80"):
        assert device.machine is load("sm_80")
    with knobs.override(MACHINE="avx512"):
        assert device.machine.tma  # that is no GPU


def test_a_gpu_does_not_run_as_another() -> None:
    from morok.device.cuda.device import Cuda
    from tests.device.cuda.fake_gpu import FakeDriver

    device = Cuda("CUDA", FakeDriver())
    with knobs.override(MACHINE="sm_80"), pytest.raises(DeviceError, match="MACHINE=sm_80 is sm_80"):
        assert device.machine


def test_kernels_for_another_processor_are_shown_as_it_runs_them(tmp_path: Path) -> None:
    import numpy as np

    from morok import Tensor
    from morok.device.dump import dump

    other = "avx512" if load("avx512").arch not in cpu_here().arch else "neoverse-n1"
    x = np.arange(64, dtype=np.float32)
    with knobs.override(DEVICE="CPU", MACHINE=other), dump(tmp_path) as shown:
        result = (Tensor(x) * 2 + 1).numpy()
    assert (result == x * 2 + 1).all()
    (place,) = shown.kernels
    assembly = (place / "24-assembly.s").read_text()
    assert ("zmm" if other == "avx512" else ".4s") in assembly


def cpu_here() -> Machine:
    from morok.device.cpu.llvm import host

    return cpu_machine(host())
