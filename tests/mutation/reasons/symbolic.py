"""Mutants of morok/symbolic that survive."""

_Q = "morok.symbolic.quotients"
_DIVIDES = "the divisor divides the coefficient, so rounding up and down give the same number"
_NOTHING = "for a coefficient of 0 both branches add 0 times an end of the interval"
_LEFT_OUT = "the divisor divides a coefficient of 0, so such a term is left out before anybody asks"
_ONE = "they differ for the coefficient 1 only, which is its own remainder by every divisor that leaves one"
_NAN = "an infinity divided is NaN, which differs from everything, itself among it"
_O = "morok.symbolic.order"
_APART = "asked only where the two differ, and then `<` and `<=` are the same question"

SURVIVORS: dict[str, str] = {
    f"{_Q}.divide_sum: k // g → 0 - -k // g": _DIVIDES,
    f"{_Q}.divide_sum: k // divisor → 0 - -k // divisor": _DIVIDES,
    f"{_Q}.reduce_sum: k // g → 0 - -k // g": _DIVIDES,
    f"{_Q}._small_rest: k // d → 0 - -k // d": _DIVIDES,
    f"{_Q}._interval: k > 0 → k >= 0": _NOTHING,
    f"{_Q}._interval: k > 0 → k > -1": _NOTHING,
    f"{_Q}.reduce_sum: k > 0 → k >= 0": _LEFT_OUT,
    f"{_Q}.reduce_sum: k > 0 → k > -1": _LEFT_OUT,
    f"{_Q}.reduce_sum: k > 0 → k > 1": _ONE,
    f"{_Q}._one_quotient: not math.isfinite(high - low) or low // c != high // c → "
    "False or low // c != high // c": _NAN,
    f"{_Q}._one_quotient: high - low → high + low": f"asked again below: {_NAN}",
    f"{_O}._arg_less: a < b → a <= b": _APART,
    f"{_O}._arg_less: (type(a).__name__, repr(a)) < (type(b).__name__, repr(b)) → "
    "(type(a).__name__, repr(a)) <= (type(b).__name__, repr(b))": _APART,
    f"{_O}.structurally_less: a.op.number < b.op.number → a.op.number <= b.op.number": _APART,
    f"{_O}.structurally_less: len(a.src) < len(b.src) → len(a.src) <= len(b.src)": _APART,
    f"{_O}.structurally_less: str(a.dtype) < str(b.dtype) → str(a.dtype) <= str(b.dtype)": (
        f"{_APART}; types of values that differ are written differently"
    ),
    "symbolic.divmod_simple.div-bounds: if 0 < c → 1 < c": (
        "they differ for the divisor 1 only, and x // 1 is x by a rule of its own"
    ),
}
