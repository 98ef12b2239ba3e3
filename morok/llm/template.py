"""Chat templates: programs that come with a model, run in jinja2's sandbox and within limits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from morok.errors import ArgumentError, FormatError, MorokError

MOST_TEMPLATE = 1 << 20  # characters of a template

_PLAIN = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{{ message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def check_messages(messages: object) -> list[dict[str, Any]]:
    """Messages as the chat API has them; an ArgumentError says what is wrong with them."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ArgumentError("messages must be a list of at least one message")
    found = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ArgumentError(f"messages[{i}] must be an object with a role and a content")
        content = message.get("content")
        if isinstance(content, list):
            parts = [
                p.get("text") if isinstance(p, Mapping) and p.get("type") == "text" else None for p in content
            ]
            if any(not isinstance(p, str) for p in parts):
                raise ArgumentError(f"messages[{i}].content has a part that is not text")
            content = "".join(str(p) for p in parts)
        if content is None and message["role"] == "assistant":  # it has called something instead
            content = ""
        if not isinstance(content, str):
            raise ArgumentError(f"messages[{i}].content must be a text")
        found.append({**message, "content": content} | _calls(message, i))
    return found


def _calls(message: Mapping[str, Any], i: int) -> dict[str, Any]:
    """The calls of tools that a message has, with arguments as templates read them: the API has a text."""
    calls = message.get("tool_calls")
    if calls is None:
        return {}
    found = []
    for call in calls if isinstance(calls, list) else [None]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(call, Mapping) or not isinstance(function, Mapping):
            raise ArgumentError(f"messages[{i}].tool_calls must be a list of objects with a function")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError, RecursionError):
                arguments = json.loads(arguments)
        found.append({**call, "function": {**function, "arguments": arguments}})
    return {"tool_calls": found}


def render(template: str | None, messages: object, names: Mapping[str, str], **options: Any) -> str:
    """A conversation as the text that the model continues."""
    try:
        from jinja2 import TemplateError

        from morok.llm.sandbox import MOST_TEXT, Sandbox
    except ImportError:
        raise MorokError("chat templates need the package jinja2: pip install 'morok[llm]'") from None
    checked = check_messages(messages)
    source = _PLAIN if template is None else template
    if len(source) > MOST_TEMPLATE:
        raise FormatError(
            f"the model's chat template has {len(source)} characters, more than {MOST_TEMPLATE}"
        )

    def refuse(message: str) -> NoReturn:
        raise ArgumentError(f"the model's chat template refuses the conversation: {message}")

    environment = Sandbox()
    environment.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    try:
        compiled = environment.compiled(source)
        pieces, length = [], 0
        for piece in compiled.generate(
            messages=checked, add_generation_prompt=True, tools=None, documents=None, **names, **options
        ):
            length += len(piece)
            if length > MOST_TEXT:
                raise FormatError(f"the model's chat template writes more than {MOST_TEXT} characters")
            pieces.append(piece)
        return "".join(pieces)
    except MorokError:
        raise
    except TemplateError as error:
        raise FormatError(
            f"the model's chat template fails: {error.message or type(error).__name__}"
        ) from None
    except (
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        MemoryError,
    ) as error:
        raise FormatError(f"the model's chat template fails: {str(error) or type(error).__name__}") from None
