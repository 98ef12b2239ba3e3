"""The page of the public API: every function and method with its signature and its one line, by family."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import morok
from morok.cli.limits import limits_section
from morok.tensor.calls.record import _OPERATORS
from morok.tensor.sizes import _UNSET
from morok.tensor.tensor import Tensor

# heading → the modules whose functions belong there
FAMILIES: dict[str, tuple[str, ...]] = {
    "Creation": ("constructors",),
    "Random": ("random", "distributions"),
    "Arithmetic, comparison, bits": ("arithmetic", "comparison", "named"),
    "Functions of one number": ("functions", "rounding", "whole"),
    "Special functions": ("errors", "gamma", "bessel"),
    "Activation functions": ("activations",),
    "Conversion": ("conversion",),
    "Movement": ("movement", "padding", "joining", "arrange", "pieces"),
    "Reductions": ("reduce", "nan_reductions", "statistics", "histograms"),
    "Softmax, norms, losses": ("normalization",),
    "Index": ("index", "scatter", "selection", "distinct", "assign"),
    "In place": ("in_place",),
    "Order": ("sorting", "middle"),
    "Products": ("products", "contract", "attention"),
    "Convolutions, pools, resizing": ("windows", "convolution", "pools", "resize", "grid", "fold"),
    "Systems of equations, factorisations": ("solve", "factors", "inverses", "powers"),
    "Gradients": ("backward",),
    "Several devices": ("sharding",),
    "Values and facts": ("core", "export", "facts"),
}
# Properties are written in the table itself.
_PROPERTIES = {
    "T": "Movement", "mT": "Movement", "grad": "Gradients", "requires_grad": "Gradients",
    "is_leaf": "Gradients", "placement": "Several devices",
}  # fmt: skip
MODULES: dict[str, str] = {
    "morok.nn.functional": "Functions by PyTorch's names",
    "morok.nn.losses": "Losses",
    "morok.nn.schedules": "Learning rates",
    "morok.nn.state": "State on disk",
}
# Namespaces of functions that are no methods.
SPACES: dict[str, str] = {
    "morok.functions.linalg": "morok.linalg: systems of equations, factorisations, norms",
    "morok.functions.special": "morok.special: special functions",
    "morok.functions.fft": "morok.fft: Fourier transforms",
    "morok.functions.random": "morok.random: generators and distributions",
    "morok.functions.signal": "morok.signal: pieces of signals",
    "morok.functions.signal.windows": "morok.signal.windows: windows",
}
_SAME = ("keepdims",)  # second names of arguments, see the head of the page
_HEAD = """# The API

Written by `morok docs` from the code. Everything broadcasts and promotes types as NumPy 2 does; Python
numbers take the type of the tensor that they meet. `axis=` and `dim=` are one argument, and so are `keepdim=`
and `keepdims=`; one of each is shown. Operators: {operators}.

NumPy's own functions take tensors: `np.exp(t)` and every other function that a tensor has a method for is
that method, lazy and with a gradient; anything else NumPy computes from the tensor's values, and the result
is a tensor again. `t == None` is False. `f"{{t:.3f}}"` is the text of a tensor's only number. What NumPy or
PyTorch do and morok does not is listed at the end, under [Limits](#limits).
"""


def api_page() -> str:
    """The whole page."""
    parts = [_HEAD.format(operators=_operators()), "## Functions\n"]
    parts.append(_table("morok.", _functions()))
    parts.append("## Tensor\n")
    for title, rows in tensor_methods().items():
        parts += [f"### {title}\n", _table("", rows)]
    for module, title in SPACES.items():
        prefix = module.removeprefix("morok.functions.") + "."
        parts += [f"## {title}\n", _table(prefix, _space(module))]
    parts += ["## morok.nn\n", _table("nn.", _exports("morok.nn"))]
    for module, title in MODULES.items():
        parts += [f"### {title}\n", _table(f"{module.removeprefix('morok.')}.", _exports(module))]
    parts.append(limits_section())
    return "\n".join(parts)


Rows = list[tuple[str, Any]]


def _functions() -> Rows:
    found = ((name, getattr(morok, name)) for name in morok.__all__)
    return [(name, value) for name, value in found if callable(value)]


def _exports(module: str) -> Rows:
    """The public functions and classes that a module offers."""
    loaded = import_module(module)
    names = getattr(loaded, "__all__", None) or [
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module and callable(value)
    ]
    return [(name, _plain(getattr(loaded, name))) for name in names]


def _space(module: str) -> Rows:
    """What a namespace holds, in the order of its file."""
    loaded = import_module(module)
    own = getattr(loaded, "__all__", None) or [
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_") and callable(value) and name not in ("Tensor", "recorded", "partial")
    ]
    return [
        (n, _plain(getattr(loaded, n))) for n in own if n not in ("Any", "TYPE_CHECKING", "update_wrapper")
    ]


def tensor_methods() -> dict[str, Rows]:
    """Every public name of a tensor, by family, in the order of the table."""
    found: dict[str, Rows] = {title: [] for title in FAMILIES}
    titles = {name: title for title, modules in FAMILIES.items() for name in modules}
    for cls in reversed(Tensor.__mro__[:-1]):
        for name, member in vars(cls).items():
            if name.startswith("_"):
                continue
            if isinstance(member, property):
                found[_PROPERTIES.get(name, "Values and facts")].append((name, member))
            elif callable(getattr(Tensor, name)):
                found[titles[_plain(member).__module__.rpartition(".")[2]]].append((name, member))
    return found


def _operators() -> str:
    signs = {
        "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
        "matmul": "@", "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "invert": "~",
        "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "getitem": "x[…]",
        "setitem": "x[…] = y", "iadd": "+=", "isub": "-=", "imul": "*=", "itruediv": "/=",
    }  # fmt: skip
    known = [sign for name, sign in signs.items() if f"__{name}__" in _OPERATORS]
    return " ".join(f"`{sign}`" for sign in known)


def _table(prefix: str, rows: Rows) -> str:
    """One line per function; other names of the same function stand beside it."""
    lines = ["| name | meaning |", "|---|---|"]
    groups: dict[Any, list[str]] = {}
    members: dict[Any, Any] = {}
    for name, member in rows:
        key = _plain(member)
        groups.setdefault(key, []).append(name)
        members[key] = member
    for key, names in groups.items():
        others = "".join(f", also `{other}`" for other in names[1:])
        lines.append(f"| `{prefix}{names[0]}{signature_of(members[key])}`{others} | {meaning(key)} |")
    return "\n".join(lines) + "\n"


def _plain(member: Any) -> Any:
    """The function behind a method, without what records its callers."""
    if isinstance(member, property):
        return member.fget
    return inspect.unwrap(getattr(member, "__func__", member))


def meaning(member: Any) -> str:
    """The first line of a docstring."""
    text = inspect.getdoc(member) or ""
    return text.splitlines()[0].replace("|", "\\|") if text else ""


def signature_of(member: Any) -> str:
    if isinstance(member, property):
        return ""
    function: Callable[..., Any] = _plain(member)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return "(…)"
    is_method = getattr(member, "__qualname__", "").startswith("Tensor.")
    shown = list(_shown(list(parameters)[is_method:]))
    if isinstance(member, type):
        shown = [text for text in shown if text != "self"]
    return f"({', '.join(shown)})"


def _shown(parameters: list[inspect.Parameter]) -> Iterator[str]:
    first = {p.name for p in parameters if p.default is not _UNSET}
    for p in parameters:
        second = p.name not in first or p.name in _SAME or (p.name == "axis" and "dim" in first)
        if p.name in ("self", "cls") or second:
            continue
        if p.kind is inspect.Parameter.VAR_POSITIONAL:
            yield f"*{p.name}"
        elif p.kind is inspect.Parameter.VAR_KEYWORD:
            yield f"**{p.name}"
        else:
            yield p.name if p.default is inspect.Parameter.empty else f"{p.name}={_default(p.default)}"


def _default(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)
