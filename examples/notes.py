"""A melody is written down: Spotify's basic-pitch, an ONNX model, hears which notes are played when.

The model comes with the package `basic-pitch` (`pip download --no-deps basic-pitch`, then unzip the wheel):

    python examples/notes.py path/to/basic_pitch/saved_models/icassp_2022/nmp.onnx

The melody is synthesised here, with overtones, so that the right answer is known.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

RATE, FRAMES_PER_SECOND, LENGTH = 22050, 86, 43844  # of the model: samples, frames, samples of one window
NAMES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")
MELODY = (60, 64, 67, 72)  # C, E, G, C: MIDI numbers


def name(midi: int) -> str:
    """60 is C4."""
    return f"{NAMES[midi % 12]}{midi // 12 - 1}"


def tone(midi: int, seconds: float) -> np.ndarray:
    """A note with four overtones that fade away."""
    t = np.arange(int(RATE * seconds)) / RATE
    pitch = 440 * 2 ** ((midi - 69) / 12)
    waves = sum(0.5**k * np.sin(2 * np.pi * pitch * (k + 1) * t) for k in range(5))
    return waves * np.exp(-2 * t) * np.minimum(1, t * 100) * 0.3


def transcribe(path: str) -> list[str]:
    import morok.onnx

    model = morok.onnx.load(path)
    print(model)
    each = LENGTH / RATE / len(MELODY)
    audio = np.concatenate([tone(midi, each) for midi in MELODY]).astype(np.float32)
    audio = np.pad(audio, (0, LENGTH - len(audio)))[None, :, None]
    outputs = [out[0] for out in model(audio).values() if out.shape[-1] == 88]
    notes = max(outputs, key=lambda out: float(out.sum()))  # of notes and their beginnings, the fuller one
    heard = []
    for i in range(len(MELODY)):
        middle = int((i + 0.4) * each * FRAMES_PER_SECOND)
        heard.append(name(21 + int(notes[middle - 8 : middle + 8].mean(0).argmax())))  # the first key is A0
    return heard


def main() -> None:
    if len(sys.argv) < 2 or not Path(sys.argv[1]).exists():
        print((__doc__ or "").strip())
        return
    heard = transcribe(sys.argv[1])
    print("played", " ".join(map(name, MELODY)))
    print("heard ", " ".join(heard))


if __name__ == "__main__":
    main()
