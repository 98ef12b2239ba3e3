"""Mutants of morok/codegen that survive."""

_CUT = "morok.codegen.vector.devectorize.cut_arithmetic"
_ONE = "one lane is never more than a register holds, so the question below gives the same answer, only later"
_V = "morok.codegen.vector.vectors"
_SAME = "only the way there is longer: equal nodes are one node, whichever line makes them"
_NO_PART = "no lane lies between two equal ends, whichever they are: there is no part yet"
_SPLAT = "x.op is Ops.VECTORIZE and x.src.count(x.src[0]) == len(x.src)"

SURVIVORS: dict[str, str] = {
    f"{_CUT}: count == 1 → count == 0": _ONE,
    f"{_CUT}: count == 1 or node.dtype.is_void or node.dtype.is_index → "
    "False or node.dtype.is_void or node.dtype.is_index": _ONE,
    f"{_V}.swizzle: n == 1 → n == 0": _SAME,
    f"{_V}.swizzle: len(wanted) == n and wanted[0] == 0 and (wanted == tuple(range(n))) → "
    "len(wanted) == n and True and (wanted == tuple(range(n)))": _SAME,
    f"{_V}.pieces: x.op is Ops.CONST or ({_SPLAT}) → x.op is Ops.CONST and ({_SPLAT})": _SAME,
    f"{_V}.pieces: x.op is Ops.CONST or ({_SPLAT}) → x.op is Ops.CONST or False": _SAME,
    f"{_V}._from_parts: start = stop = 0 → start = stop = -1": _NO_PART,
    f"{_V}._from_parts: start = stop = 0 → start = stop = 1": _NO_PART,
    f"{_V}._from_parts: ends or list(accumulate([part.dtype.lanes for part in x.src])) → "
    "False or list(accumulate([part.dtype.lanes for part in x.src]))": "the same ends, found again",
    f"{_V}._from_parts: start <= lane < stop → start < lane < stop": (
        "a part's first lane begins a run of its own then: the same lanes of the same part, in more pieces"
    ),
    f"{_V}.pieces: at = 0 → at = -1": f"no part is found whole then, and each is picked: {_SAME}",
}
