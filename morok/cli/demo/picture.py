"""The picture of the demo: predictions above the timeline of one step of training, as an SVG file."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from morok.runtime.profile import Profile

Array = Any
_WIDTH, _MARGIN, _ROW = 920, 24, 15
_STYLE = """
text { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 11px; fill: #333 }
.title { font-size: 15px; font-weight: 600 } .right { fill: #1a7f37 }
.wrong { fill: #cf222e; font-weight: 700 }
.grid { stroke: #ddd; stroke-width: 1 } .small { font-size: 10px; fill: #777 }
"""


def draw(path: Path, images: Array, labels: Array, guesses: Array, taken: Profile, accuracy: float) -> None:
    """Writes the picture: wrong predictions first and in red, then right ones, then the kernels in time."""
    wrong = np.flatnonzero(labels != guesses)
    shown = np.concatenate([wrong, np.flatnonzero(labels == guesses)])[:28]
    parts = [f'<text class="title" x="{_MARGIN}" y="30">right on {accuracy:.1%} of unseen digits</text>']
    for i, number in enumerate(shown):
        left, top = _MARGIN + i % 14 * 62, 46 + i // 14 * 82
        parts.append(_digit(images[number, 0], left, top))
        good = labels[number] == guesses[number]
        said = f"{guesses[number]}" if good else f"{guesses[number]}, not {labels[number]}"
        kind = "right" if good else "wrong"
        parts.append(f'<text class="{kind}" x="{left}" y="{top + 68}">{said}</text>')
    top = 46 + -(-len(shown) // 14) * 82 + 30
    parts.append(f'<text class="title" x="{_MARGIN}" y="{top}">the kernels of one training step</text>')
    parts += _timeline(taken, top + 16)
    height = top + 44 + _ROW * len(taken.events)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}">'
    ground = f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>'
    path.write_text(f"{head}<style>{_STYLE}</style>{ground}{''.join(parts)}</svg>\n", encoding="utf-8")


def _digit(image: Array, left: int, top: int) -> str:
    """An image of 8 × 8, dark where there is ink."""
    dots = []
    for (row, column), ink in np.ndenumerate(image):
        if ink > 0:
            place = f'x="{left + 1 + column * 7}" y="{top + 1 + row * 7}" width="7" height="7"'
            dots.append(f'<rect {place} fill="#111" fill-opacity="{float(ink):.2f}"/>')
    frame = f'<rect x="{left}" y="{top}" width="58" height="58" fill="#f6f8fa" stroke="#d0d7de"/>'
    return frame + "".join(dots)


def _timeline(taken: Profile, top: int) -> list[str]:
    """One bar per kernel, at its time, with its name and line beside it."""
    events = taken.events
    begin = min((e.started for e in events), default=0.0)
    span = max((e.started + e.seconds - begin for e in events), default=0.0) or 1.0
    wide = _WIDTH - 2 * _MARGIN - 250
    bottom = top + _ROW * len(events)
    parts = []
    for tick in range(5):
        x = _MARGIN + wide * tick / 4
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        label = f"{span * tick / 4 * 1e3:.1f} ms"
        parts.append(f'<text class="small" x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{label}</text>')
    places = sorted({e.place or "-" for e in events})
    for i, e in enumerate(events):
        left = _MARGIN + wide * (e.started - begin) / span
        width = max(wide * e.seconds / span, 1.0)
        hue = 360 * places.index(e.place or "-") // max(len(places), 1)
        y = top + i * _ROW
        name = escape(f"{e.name} at {e.place or 'an unknown line'}")
        box = f'x="{left:.1f}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 4}" rx="2"'
        parts.append(f'<rect {box} fill="hsl({hue},65%,62%)"><title>{name}</title></rect>')
        text = escape(f"{e.name}  {e.place or ''}  {e.seconds * 1e6:.0f} µs")
        parts.append(f'<text class="small" x="{left + width + 5:.1f}" y="{y + 11}">{text}</text>')
    return parts
