"""A roofline is bytes and operations over what the machine can do; figures are computed here by hand."""

from pathlib import Path

import pytest

from morok import knobs
from morok.cli.main import main
from morok.device.cpu.limits import Limits
from morok.ir.layout import Mesh
from morok.runtime.profile import Event
from morok.runtime.roofline import limits_of, roofline, table
from tests.viewer.recorded import PRODUCT, data_of, record

LIMITS = {"CPU": Limits(100e9, 10e9, 2, ((1000, 40e9), (100_000, 20e9)))}


def event(name: str, seconds: float, ops: int, nbytes: int) -> Event:
    return Event(name, f"f.py:{len(name)}", "CPU", 0.0, seconds, ops, nbytes, 0)


def test_the_longer_of_two_times_is_the_roof() -> None:
    rows = roofline([event("a", 2e-3, 10**8, 10**6), event("bb", 1e-3, 10**6, 10**6)], LIMITS)
    first, second = rows
    assert (first.name, first.bound, second.bound) == ("a", "arithmetic", "memory")
    assert first.roof == pytest.approx(1e8 / 100e9) and first.of_roof == pytest.approx(0.5)
    assert second.roof == pytest.approx(1e6 / 10e9) and second.of_roof == pytest.approx(0.1)
    assert first.share == pytest.approx(2 / 3)
    assert first.flops == pytest.approx(1e8 / 2e-3) and second.bandwidth == pytest.approx(1e9)


def test_what_fits_a_cache_has_its_bandwidth() -> None:
    for nbytes, rate in ((500, 40e9), (1000, 40e9), (1001, 20e9), (100_000, 20e9), (200_000, 10e9)):
        (row,) = roofline([event("a", 1.0, 0, nbytes)], LIMITS)
        assert row.roof == pytest.approx(nbytes / rate)


def test_calls_are_added_up_and_poor_ones_told() -> None:
    events = [event("slow", 1e-2, 10**7, 10**6)] * 3 + [event("fast", 1e-3, 9 * 10**7, 8)]
    rows = roofline(events, LIMITS)
    assert rows[0].calls == 3 and rows[0].seconds == pytest.approx(3e-2) and rows[0].is_poor
    assert not rows[1].is_poor
    text = table(rows, LIMITS)
    assert "worth a look: slow at f.py:4, 96.8% of the time at 1.0% of its roofline" in text
    assert "fast" not in text.partition("worth a look")[2]


def test_a_kernel_with_too_little_to_do() -> None:
    (row,) = roofline([event("tiny", 20e-6, 100, 800)], LIMITS)
    assert row.is_poor and "too little to do" in row.limit
    (row,) = roofline([event("first call", 300e-6, 100, 800)], LIMITS)
    assert "too little to do" in row.limit  # 80 ns of work, at most
    (row,) = roofline([event("slow", 300e-6, 100_000, 800)], LIMITS)
    assert row.limit == "neither memory nor arithmetic: arithmetic would allow 300 times the speed"


def test_the_page_has_the_figures_of_the_profile_and_of_the_roofline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes and operations by hand; rates from the seconds on the page."""
    from morok.runtime.profile import profile

    with profile() as taken:
        page = record(tmp_path, PRODUCT)
    index, _ = data_of(page)
    n = 64 * 64
    # a @ b: 64³ products and sums, three matrices; a + 1: two matrices; (c * d).sum(): two and a number
    expected = {5: (2 * 64**3, 3 * 4 * n), 6: (n, 2 * 4 * n), 8: (3 * 2 * n, 3 * (2 * 4 * n + 4))}
    limits = index["limits"]["CPU"]
    rows = {row["at"][1]: row for row in index["rows"]}
    total = sum(row["seconds"] for row in index["rows"])
    for line, (ops, nbytes) in expected.items():
        row = rows[line]
        assert (row["ops"], row["bytes"]) == (ops, nbytes), line
        assert row["share"] == pytest.approx(row["seconds"] / total)
        widths = [limits["copy"]] + [
            rate for size, rate in limits["caches"] if nbytes // row["calls"] <= size
        ]
        assert row["roof"] == pytest.approx(max(nbytes / max(widths), ops / limits["flops"]))
    profiled = {
        (name, where): (calls, seconds, rate, width, share)
        for name, where, calls, seconds, rate, width, share in taken.rows()
    }
    for row in index["rows"]:
        calls, seconds, rate, width, share = profiled[row["name"], row["place"]]
        assert (row["calls"], row["seconds"]) == (calls, seconds)
        assert row["ops"] / row["seconds"] / 1e9 == pytest.approx(rate)
        assert row["bytes"] / row["seconds"] / 1e9 == pytest.approx(width)
        assert row["share"] == pytest.approx(share)


def test_three_say_the_same_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What PROFILE=1 prints, what `morok bench --roofline` prints, and the page, of the very same runs."""
    from morok.runtime.profile import profile

    page = tmp_path / "run.html"
    body = "\n".join(f"    {line}" for line in PRODUCT.splitlines())
    script = tmp_path / "script.py"
    script.write_text(f"import morok\nwith morok.view({str(page)!r}):\n{body}\n")
    with knobs.override(DEVICE="CPU"), profile() as taken:
        assert main(["bench", "--roofline", str(script)]) == 0
    out = capsys.readouterr().out.splitlines()
    index, _ = data_of(page)
    assert len(index["rows"]) == 3
    for row in index["rows"]:
        rates = row["ops"] / row["seconds"] / 1e9, row["bytes"] / row["seconds"] / 1e9
        figures = [row["name"], row["place"], str(row["calls"]), f"{row['seconds'] * 1e3:.3f}"]
        of_roof = row["roof"] / row["seconds"]
        wanted = [*figures, f"{row['share']:.1%}", f"{rates[0]:.2f}", f"{rates[1]:.2f}", f"{of_roof:.1%}"]
        assert wanted in [line.split()[: len(wanted)] for line in out]
        wanted = [*figures, f"{rates[0]:.2f}", f"{rates[1]:.2f}", f"{row['share']:.1%}"]
        assert wanted in [line.split() for line in taken.table().splitlines()]


def test_the_command_prints_every_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(PRODUCT + "print('said by the script')\n")
    with knobs.override(DEVICE="CPU"):
        assert main(["bench", "--roofline", str(script)]) == 0
    out, err = capsys.readouterr()
    assert "said by the script" in err
    for line in (5, 6, 8):
        assert f"script.py:{line} " in out
    assert "of the roofline in all" in out
    assert "worth a look" in out or "no kernel takes more than 2% of the time" in out


def test_a_script_without_kernels_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("print(1)\n")
    assert main(["bench", "--roofline", str(script)]) == 2
    assert "has run no kernels" in capsys.readouterr().err


def test_a_mesh_has_the_limits_of_what_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    described = limits_of("EMULATOR")
    mesh = Mesh((2,), ("data",), "EMULATOR")
    assert limits_of(mesh.name) is described and not described.measured
