"""torch's symbolic numbers: as the numbers of a call, as hints while a graph is tried, or as variables."""

from __future__ import annotations

from typing import Any, final

import torch

from morok.ir.sizes import canonical
from morok.tensor.sizes import Variable
from morok.torch.table import Unsupported

_SMALLEST_RANGE = 16  # a variable's upper end is a power of two, at least this one
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@final
class Sizes:
    """What symbols are in a call. Calling it with a number of torch's gives a plain one."""

    def __init__(self, hints: bool = False) -> None:
        self.known: dict[Any, Any] = {}
        self.hints = hints

    def learn(self, val: Any, value: Any) -> None:
        """What a placeholder's sizes are in this call."""
        if isinstance(val, torch.SymInt | torch.SymFloat):
            self._note(val, value)
        elif isinstance(val, torch.Tensor) and isinstance(value, torch.Tensor):
            for size, n in zip((*val.shape, *val.stride()), (*value.shape, *value.stride()), strict=False):
                if isinstance(size, torch.SymInt):
                    self._note(size, n)

    def _note(self, size: Any, value: Any) -> None:
        expr = size.node.expr
        if expr.is_Symbol:
            self.known[expr] = value

    def __call__(self, size: Any) -> Any:
        if not isinstance(size, _SYMBOLIC):
            return size
        expr = size.node.expr
        if self.hints and not self.known:
            hint = size.node.hint
            if hint is None:
                raise Unsupported(f"the size {expr} is known only when it runs")
            return hint
        found = expr.xreplace(self.known) if hasattr(expr, "xreplace") else expr
        found = found.doit() if hasattr(found, "doit") else found
        if getattr(found, "free_symbols", None):
            raise Unsupported(f"the size {expr} is known only when it runs")
        if isinstance(size, torch.SymBool):
            return bool(found)
        return int(found) if isinstance(size, torch.SymInt) else float(found)


@final
class Variables:
    """The same, with a variable for each symbol whose value is a size: one plan for all sizes of a range."""

    def __init__(self, sizes: Sizes, shape_env: Any) -> None:
        self.of: dict[Any, Variable] = {}  # by symbol
        self.fixed: dict[Any, Any] = {}  # symbols with one value only
        for number, (symbol, value) in enumerate(sizes.known.items()):
            low, high = _range(symbol, value, shape_env)
            if low < high:
                self.of[symbol] = Variable(f"size_{number}", low, high)
            else:
                self.fixed[symbol] = value

    def fits(self, sizes: Sizes) -> bool:
        """Whether all sizes of a call lie within the ranges."""
        if sizes.known.keys() != self.of.keys() | self.fixed.keys():
            return False
        for symbol, variable in self.of.items():
            low, high = variable.bounds
            if not low <= sizes.known[symbol] <= high:
                return False
        return all(sizes.known[symbol] == value for symbol, value in self.fixed.items())

    def values(self, sizes: Sizes) -> dict[str, int]:
        """The variables' values in a call."""
        return {variable.name: int(sizes.known[symbol]) for symbol, variable in self.of.items()}

    def __call__(self, size: Any) -> Any:
        if not isinstance(size, _SYMBOLIC):
            return size
        if not isinstance(size, torch.SymInt):
            raise Unsupported(f"{size} is a number that depends on a size")
        return canonical(self._written(size.node.expr))

    def _written(self, expr: Any) -> Any:
        """An expression of sympy's as a size of morok's."""
        if expr.is_Integer:
            return int(expr)
        if expr in self.fixed:
            return self.fixed[expr]
        if expr in self.of:
            return self.of[expr].uop
        parts = [self._written(part) for part in expr.args]
        kind = type(expr).__name__
        if kind in ("Add", "Mul") and parts:
            found = parts[0]
            for part in parts[1:]:
                found = found + part if kind == "Add" else found * part
            return found
        if kind == "Pow" and isinstance(parts[1], int) and 1 <= parts[1] <= 4:
            found = parts[0]
            for _ in range(parts[1] - 1):
                found = found * parts[0]
            return found
        if kind == "FloorDiv":
            return parts[0] // parts[1]
        if kind in ("Mod", "PythonMod"):
            return parts[0] % parts[1]
        raise Unsupported(f"the size {expr} has no form that morok knows")


def _range(symbol: Any, value: Any, shape_env: Any) -> tuple[int, int]:
    """The sizes that one plan serves: up to the next power of two, within what torch allows."""
    if not isinstance(value, int) or value < 2:
        return value, value
    limits = shape_env.bound_sympy(symbol)
    low = max(2, int(limits.lower)) if limits.lower.is_Integer else 2
    high = max(_SMALLEST_RANGE, 1 << (value - 1).bit_length())
    if limits.upper.is_Integer:
        high = min(high, int(limits.upper))
    return min(low, value), max(high, value)
