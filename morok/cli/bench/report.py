"""Results for people and for programs: the table, the JSON, the roofline as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from morok.cli.bench.curves import Curve
from morok.cli.bench.memory import Peak
from morok.cli.bench.timing import Result
from morok.device.cpu.limits import Limits

HEAD = (
    f"{'work':<34}{'morok':>12} {'best peer':>24} {'ratio':>6} {'torch':>6} {'GFLOP/s':>8} {'GB/s':>6} "
    f"{'limit':>10}  asked for"
)


def line(result: Result, limits: Limits) -> str:
    """One row of the table."""
    best, torch = result.ratio(), result.ratio("torch")
    share, which = result.share(limits)
    peer = f"{result.best_peer} {show_time(result.seconds[result.best_peer])}" if best is not None else "-"
    verdicts = "  ".join(f"{text} {'yes' if reached else 'NO'}" for text, reached in result.verdicts(limits))
    return (
        f"{result.name:<34}{show_time(result.own):>12} {peer:>24} {_two(best):>6} {_two(torch):>6} "
        f"{result.flops / result.own / 1e9:>8.1f} {result.bytes / result.own / 1e9:>6.1f} "
        f"{f'{share:.0%} {which}' if share else '-':>10}  {verdicts}"
    ).rstrip()


def _two(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def show_time(seconds: float) -> str:
    """A time in its own unit."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.2f} µs"


def summary(results: Sequence[Result], limits: Limits) -> str:
    """How many of the things that are asked for are reached, and which are not."""
    asked = [(r.name, text, ok) for r in results for text, ok in r.verdicts(limits)]
    missed = [f"  {name}: {text}" for name, text, ok in asked if not ok]
    lines = [f"{len(asked) - len(missed)} of {len(asked)} reached what is asked for"]
    if missed:
        lines += ["short of it:", *missed]
    absent = {f"{name}: {why}": None for r in results for name, why in r.absent.items()}
    return "\n".join(lines + [f"left out of some rows: {text}" for text in absent])


def show_peaks(peaks: Mapping[str, Mapping[str, Peak]]) -> str:
    """The memory of the models, beside torch's."""
    lines = [f"{'peak memory':<34}{'process':>26}{'on top of library and inputs':>32}"]
    for name, found in peaks.items():
        whole = "  ".join(f"{who} {p.total / 2**20:.0f} MiB" for who, p in found.items())
        added = "  ".join(f"{who} {p.added / 2**20:.0f} MiB" for who, p in found.items())
        lines.append(f"{name:<34}{whole:>26}{added:>32}")
    return "\n".join(lines)


def as_json(
    results: Sequence[Result],
    limits: Limits,
    curves: Sequence[Curve],
    peaks: Mapping[str, Mapping[str, Peak]],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything, as plain values."""
    return {
        "about": dict(about),
        "limits": {"flops": limits.flops, "copy_bytes": limits.copy, "threads": limits.threads},
        "rows": [
            {
                "work": r.name,
                "seconds": r.seconds,
                "first_call": r.first,
                "best_peer": r.best_peer,
                "ratio": r.ratio(),
                "ratio_to_torch": r.ratio("torch"),
                "gflops": r.flops / r.own / 1e9,
                "gbytes": r.bytes / r.own / 1e9,
                "share_of_limit": r.share(limits)[0],
                "limit": r.share(limits)[1],
                "asked": dict(r.verdicts(limits)),
                "absent": r.absent,
            }
            for r in results
        ],
        "curves": [
            {
                "name": c.name,
                "unit": c.unit,
                "cliffs": c.cliffs,
                "points": [{"size": p.size, "seconds": p.seconds, "peer_seconds": p.peer} for p in c.points],
            }
            for c in curves
        ],
        "peak_memory": {
            name: {who: {"total": p.total, "added": p.added} for who, p in found.items()}
            for name, found in peaks.items()
        },
    }


# --- the roofline

_W, _H, _LEFT, _TOP, _RIGHT, _BOTTOM = 900, 560, 70, 40, 30, 60
_COLOURS = {
    "morok": "#c0392b",
    "numpy": "#7f8c8d",
    "torch": "#2980b9",
    "torch.compile": "#8e44ad",
    "jax": "#27ae60",
    "tinygrad": "#d35400",
}


def roofline(results: Sequence[Result], limits: Limits) -> str:
    """An SVG: work per byte against speed, under the two roofs that were measured. No library draws it."""
    shown = [r for r in results if r.flops > 0 and r.bytes > 0]
    xs = [r.flops / r.bytes for r in shown] or [1.0]
    ys = [r.flops / t for r in shown for t in r.seconds.values()] or [1e9]
    ridge = limits.flops / limits.copy
    low_x, high_x = _decades([*xs, ridge / 4, ridge * 4])
    low_y, high_y = _decades([*ys, limits.flops])

    def x_of(value: float) -> float:
        part = (math.log10(value) - low_x) / (high_x - low_x)
        return _LEFT + part * (_W - _LEFT - _RIGHT)

    def y_of(value: float) -> float:
        part = (math.log10(value) - low_y) / (high_y - low_y)
        return _H - _BOTTOM - part * (_H - _TOP - _BOTTOM)

    said = f"{limits.threads} threads: {limits.flops / 1e9:.0f} GFLOP/s, {limits.copy / 1e9:.1f} GB/s"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_W} {_H}" font-family="sans-serif">',
        "<style>text { font-size: 11px }</style>",
        f'<rect width="{_W}" height="{_H}" fill="white"/>',
        f'<text x="{_W / 2}" y="22" text-anchor="middle">Roofline, {said}</text>',
    ]
    for k in range(low_x, high_x + 1):
        x = x_of(10.0**k)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_H - _BOTTOM}" stroke="#eee"/>')
        parts.append(f'<text x="{x:.1f}" y="{_H - _BOTTOM + 16}" text-anchor="middle">{10.0**k:g}</text>')
    for k in range(low_y, high_y + 1):
        y = y_of(10.0**k)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_W - _RIGHT}" y2="{y:.1f}" stroke="#eee"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0 ** (k - 9):g}</text>')
    first, last = 10.0**low_x, 10.0**high_x
    roof = [(first, limits.copy * first), (ridge, limits.flops), (last, limits.flops)]
    start = max(first, 10.0**low_y / limits.copy)
    roof[0] = (start, limits.copy * start)
    points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in roof)
    parts.append(f'<polyline points="{points}" fill="none" stroke="black" stroke-width="1.5"/>')
    for r in shown:
        for who, seconds in sorted(r.seconds.items(), key=lambda item: item[0] == "morok"):
            x, y = x_of(r.flops / r.bytes), y_of(r.flops / seconds)
            size = 4.5 if who == "morok" else 3
            title = escape(f"{r.name}, {who}: {r.flops / seconds / 1e9:.1f} GFLOP/s, {show_time(seconds)}")
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{_COLOURS.get(who, "black")}" '
                f'fill-opacity="0.8"><title>{title}</title></circle>'
            )
    names = [who for who in _COLOURS if any(who in r.seconds for r in shown)]
    for i, who in enumerate(names):
        y = _TOP + 14 + 16 * i
        parts.append(f'<circle cx="{_LEFT + 14}" cy="{y - 4}" r="4" fill="{_COLOURS[who]}"/>')
        parts.append(f'<text x="{_LEFT + 24}" y="{y}">{who}</text>')
    parts.append(f'<text x="{_W / 2}" y="{_H - 16}" text-anchor="middle">operations per byte</text>')
    parts.append(f'<text x="16" y="{_H / 2}" transform="rotate(-90 16 {_H / 2})" '
                 'text-anchor="middle">GFLOP/s</text>')  # fmt: skip
    return "\n".join([*parts, "</svg>"]) + "\n"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten around some values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)
