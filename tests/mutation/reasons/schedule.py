"""Mutants of morok/schedule that survive."""

_V = "morok.schedule.graph.views"
_SUM = "the same sum of two sizes, whichever comes first"

SURVIVORS: dict[str, str] = {
    "morok.schedule.kernel.gates.in_open_loops: "
    "return any((r.src[0].op is not Ops.CONST for n in (x, y) for r in ranges(n))) → return True": (
        "the next condition proves the law by itself; bounds have found it before where all ends are numbers"
    ),
    f"{_V}.join_shrinks: add_sizes(size_of(start), offset) → add_sizes(offset, size_of(start))": _SUM,
    f"{_V}.join_shrinks: add_sizes(size_of(stop), offset) → add_sizes(offset, size_of(stop))": _SUM,
    f"{_V}.join_pads: add_sizes(size_of(before), size_of(first)) → "
    "add_sizes(size_of(first), size_of(before))": _SUM,
    f"{_V}.join_pads: add_sizes(size_of(after), size_of(last)) → "
    "add_sizes(size_of(last), size_of(after))": _SUM,
    f"{_V}.join_pads: zip(_pairs(node), _pairs(node.src[0]), strict=True) → "
    "zip(_pairs(node.src[0]), _pairs(node), strict=True)": (
        "only sums of both are made, and those are the same sums the other way round"
    ),
    "morok.schedule.kernel.collapse._times: value.op is Ops.CONST and value.arg == 0 → "
    "True and value.arg == 0": "of all values only a constant has a number for its argument",
}
