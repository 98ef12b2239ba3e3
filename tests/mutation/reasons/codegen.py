"""Mutants of morok/codegen that survive."""

_CUT = "morok.codegen.vector.devectorize.cut_arithmetic"
_ONE = "one lane is never more than a register holds, so the question below gives the same answer, only later"

SURVIVORS: dict[str, str] = {
    f"{_CUT}: count == 1 → count == 0": _ONE,
    f"{_CUT}: count == 1 or node.dtype.is_void or node.dtype.is_index → "
    "False or node.dtype.is_void or node.dtype.is_index": _ONE,
}
