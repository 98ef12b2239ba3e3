"""`morok knobs`: the table of options."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

NAME = "knobs"
HELP = "list every option: its value, its default, what it does"


def add_arguments(parser: ArgumentParser) -> None:
    """It takes none."""


def run(args: Namespace) -> int:
    from morok import knobs

    rows = [("name", "value", "default", "in cache key", "what it does"), *knobs.describe()]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4])))
    plain = ", ".join(knob.name for knob in knobs.KNOBS.values() if knob.plain)
    print(f"\nSet one with MOROK_<NAME>=value in the environment; these also without the prefix: {plain}.")
    return 0
