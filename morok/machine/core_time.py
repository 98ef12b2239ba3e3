"""How long a product takes on the cores of a processor, in cycles of the busiest one, from its sizes alone.

Cores share panels of columns, and pieces of the rows beside them, each of which packs the panel for itself.
What a core packs is read again for every tile of rows: out of the second cache, or out of memory where it is
too long for that. The splitting of reductions asks this before there is a kernel.
"""

from __future__ import annotations

from morok.machine.machine import Machine

TILE_ROWS, TILE_VECTORS = 8, 3  # about what the planner of tiles takes
PART_FOR_PANEL = 2  # of the second cache: half of it


def panels_of(columns: int, itemsize: int, machine: Machine) -> int:
    """Panels that so many columns are packed in."""
    return -(-columns // (TILE_VECTORS * max(1, machine.vector_bytes // itemsize)))


def product_cycles(
    rows: int, columns: int, others: int, steps: int, itemsize: int, machine: Machine
) -> float:
    """The time of the busiest core; `others` are products side by side."""
    panels, tiles = panels_of(columns, itemsize, machine) * others, -(-rows // TILE_ROWS)
    return min(
        -(-panels * pieces // machine.cores) * _turn(rows, -(-tiles // pieces), steps, machine)
        for pieces in range(1, min(tiles, machine.cores) + 1)
    )


def _turn(rows: int, tiles: int, steps: int, machine: Machine) -> float:
    """A panel that is packed and multiplied by some tiles of rows."""
    rates = machine.rates
    panel = steps * TILE_VECTORS * machine.vector_bytes
    again = rates.l2_byte if panel * PART_FOR_PANEL <= machine.l2_bytes else rates.memory_byte
    products = min(TILE_ROWS, rows) * TILE_VECTORS * steps * rates.issue
    return panel * rates.memory_byte + tiles * (products + panel * again)
