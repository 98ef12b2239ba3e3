"""Programs of templates within limits: what they read is jinja2's sandbox's, what they take is counted here.

A template comes with a model's file and may be anything. Every step that can be repeated (a turn of a loop, a
call, a filter) and every text or list that a step makes costs something, of a sum that no conversation needs;
numbers that say how long something becomes are looked at before it is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, final

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from morok.errors import FormatError

MOST_TEXT = 1 << 24  # characters of a text
_MOST_NUMBER = 1 << 20  # that a filter or a function is given
_MOST_BITS = 1 << 12
_STEP, _MOST_WORK = 512, 1 << 28  # characters that a step costs as much as, and all together
_ELEMENT = 16  # of a list
_LONG_NUMBER = re.compile(r"\d{8}")


def _too_long() -> FormatError:
    return FormatError(f"the model's chat template writes more than {MOST_TEXT} characters")


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """As transformers has it: without HTML's escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


@final
class _Generation(Extension):
    """A part that training looks at: transformers has a tag for it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@final
class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one run of one template."""

    intercepted_binops = frozenset(("**", "*", "+", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self.work = 0
        self.filters["tojson"] = _to_json
        self.filters = {name: self._counted(f) for name, f in self.filters.items()}
        self.filters |= {"_sized": self.sized, "_each": self.each}
        del self.globals["lipsum"]

    def compiled(self, source: str) -> Any:
        """A template, with its steps counted."""
        return self.from_string(_Counted().visit(self.parse(source)))

    def step(self, size: int = 0) -> None:
        self.work += _STEP + size
        if self.work > _MOST_WORK:
            raise FormatError("the model's chat template goes on without an end")

    def sized(self, value: Any) -> Any:
        """What a step has made."""
        if isinstance(value, str):
            if len(value) > MOST_TEXT:
                raise _too_long()
            self.step(len(value))
        else:
            self.step(_ELEMENT * len(value) if isinstance(value, list | tuple | dict | set | range) else 0)
        return value

    def each(self, values: Iterable[Any]) -> Iterator[Any]:
        """What a loop goes through."""
        for value in values:
            self.step()
            yield value

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def found(*args: Any, **options: Any) -> Any:
            _check_numbers((*args, *options.values()))
            if getattr(function, "__name__", "") == "do_format":
                _check_form(args[0])
            return self.sized(function(*args, **options))

        return found

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        _check_numbers((*args, *kwargs.values()))
        return __self.sized(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        found = super().wrap_str_format(value)
        if found is not None:
            _check_form(value.__self__)
        return found

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Sums and products of texts and numbers that a conversation can need, and no larger ones."""
        if operator == "**":
            raise FormatError("the model's chat template uses powers")
        if operator == "%" and isinstance(left, str):
            _check_form(left)
            _check_numbers(right if isinstance(right, tuple) else (right,))
        sizes = [len(v) for v in (left, right) if hasattr(v, "__len__")]
        numbers = [v for v in (left, right) if isinstance(v, int)]
        if operator == "*" and sizes and numbers and sizes[0] * numbers[0] > MOST_TEXT:
            raise _too_long()
        if len(numbers) == 2 and sum(n.bit_length() for n in numbers) > _MOST_BITS:
            raise FormatError("the model's chat template uses large numbers")
        return self.sized(super().call_binop(context, operator, left, right))


def _check_numbers(values: Iterable[Any]) -> None:
    if any(isinstance(v, int) and abs(v) > _MOST_NUMBER for v in values):
        raise FormatError("the model's chat template uses large numbers")


def _check_form(text: Any) -> None:
    """Widths in a text that is filled in."""
    if _LONG_NUMBER.search(str(text)):
        raise FormatError("the model's chat template uses large numbers")


@final
class _Counted(NodeTransformer):
    """The steps of a program through filters that count them."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through(node.iter, "_each")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through(node, "_sized")

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = _through(node.filter, "_sized")
        return node


def _through(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)
