"""Mutants of morok/symbolic that survive."""

_Q = "morok.symbolic.quotients"
_DIVIDES = "the divisor divides the coefficient, so rounding up and down give the same number"
_NOTHING = "for a coefficient of 0 both branches add 0 times an end of the interval"

SURVIVORS: dict[str, str] = {
    f"{_Q}.divide_sum: k // g → 0 - -k // g": _DIVIDES,
    f"{_Q}.divide_sum: k // divisor → 0 - -k // divisor": _DIVIDES,
    f"{_Q}.reduce_sum: k // g → 0 - -k // g": _DIVIDES,
    f"{_Q}._small_rest: k // d → 0 - -k // d": _DIVIDES,
    f"{_Q}._interval: k > 0 → k >= 0": _NOTHING,
    f"{_Q}._interval: k > 0 → k > -1": _NOTHING,
}
