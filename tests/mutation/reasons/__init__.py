"""Mutants that survive, and why that is right: an argument that they are the same function of all inputs.

The key is what changed, so it outlives a move of lines.
"""

from tests.mutation.reasons import codegen, decompose, ir, schedule, symbolic

SURVIVORS: dict[str, str] = {
    **ir.SURVIVORS,
    **symbolic.SURVIVORS,
    **schedule.SURVIVORS,
    **codegen.SURVIVORS,
    **decompose.SURVIVORS,
}
