"""`morok caches`: what a script makes the process remember, and how much of it is kept."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from morok.cli.script import add_script, run_script

NAME = "caches"
HELP = "run a script and list what the process remembers: entries, bounds, hits"


def add_arguments(parser: ArgumentParser) -> None:
    add_script(parser)


def run(args: Namespace) -> int:
    run_script(args.script, args.arguments)
    from morok import caches

    rows = [("name", "entries", "bound", "hits", "misses", "evicted"), *caches.describe()]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for name, *numbers in rows:
        cells = (cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))
        print("  ".join((name.ljust(widths[0]), *cells)).rstrip())
    print('\n"in use": entries that live as long as somebody holds what they are about.')
    return 0
