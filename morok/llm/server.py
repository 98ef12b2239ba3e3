"""A server that speaks OpenAI's API: models, completions, chat completions, streamed or whole.

`app(model, …)` is an ASGI application of starlette; `morok serve` runs it in uvicorn.
"""

from __future__ import annotations

import hmac
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Http
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from morok.errors import ArgumentError, MorokError
from morok.llm.generate import Model
from morok.llm.page import PAGE
from morok.llm.serving import Busy, Engine
from morok.llm.text import Piece, Request

MOST_BYTES = 4 << 20  # of a request
_SAMPLING = {
    "temperature": float, "top_p": float, "top_k": int, "min_p": float, "repetition_penalty": float,
    "frequency_penalty": float, "presence_penalty": float, "seed": int,
}  # fmt: skip


class ApiError(MorokError):
    """An answer that is an error, with its status."""

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request_error", code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.code = status, kind, code

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": None, "code": self.code}}


# --- what a request asks for


def _field(data: dict[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """A field of a type; numbers may be whole where fractions are taken."""
    value = data.get(name)
    if value is None:
        return default
    right = isinstance(value, int | float) if kind is float else isinstance(value, kind)
    if not right or (isinstance(value, bool) and kind is not bool):
        raise ApiError(400, f"{name} must be of type {kind.__name__}, not {type(value).__name__}")
    return value


def _options(data: dict[str, Any]) -> dict[str, Any]:
    """Options that both ways of asking have."""
    if _field(data, "n", int, 1) != 1 or _field(data, "best_of", int, 1) != 1:
        raise ApiError(400, "n must be 1: a request has one answer")
    if data.get("tools") or data.get("functions"):
        raise ApiError(400, "tools are not there")
    for name in ("echo", "suffix"):
        if data.get(name):
            raise ApiError(400, f"{name} is not there")
    kind = data.get("response_format")
    if kind is not None and kind != {"type": "text"}:
        raise ApiError(400, "response_format must be text")
    stop = data.get("stop")
    if stop is not None and not (
        isinstance(stop, str) or (isinstance(stop, list) and all(isinstance(s, str) for s in stop))
    ):
        raise ApiError(400, "stop must be a text or a list of texts")
    found = {name: _field(data, name, kind_of) for name, kind_of in _SAMPLING.items()}
    found = {name: value for name, value in found.items() if value is not None}
    found.setdefault("temperature", 1.0)
    found["logit_bias"] = _bias(data)
    most = _field(data, "max_completion_tokens", int, _field(data, "max_tokens", int))
    return found | {
        "max_tokens": most,
        "stop": stop or (),
        "slide": _field(data, "context_shift", bool, False),
    }


def _bias(data: dict[str, Any]) -> dict[int, float]:
    """What is added to logits, by token; JSON's keys are texts."""
    found = _field(data, "logit_bias", dict, {})
    wrong = next((key for key in found if not key.isascii() or not key.isdigit() or len(key) > 9), None)
    if wrong is not None:
        raise ApiError(400, f"logit_bias has the key {wrong!r}, which is no token")
    if any(type(value) not in (int, float) for value in found.values()):
        raise ApiError(400, "logit_bias must be numbers by token")
    return {int(key): value for key, value in found.items()}


@final
class Asked:
    """A request, checked: its prompt and options, and how it wants its answer."""

    def __init__(self, model: Model, data: dict[str, Any], chat: bool) -> None:
        self.chat = chat
        self.stream = _field(data, "stream", bool, False)
        extra = _field(data, "stream_options", dict, {})
        self.usage = bool(extra.get("include_usage"))
        options = _options(data)
        if chat:
            wanted = _field(data, "logprobs", bool, False)
            logprobs = _field(data, "top_logprobs", int, 0) if wanted else None
            prompt: Any = model.chat_prompt(data.get("messages"))
        else:
            logprobs = _field(data, "logprobs", int)
            prompt = _prompt(data.get("prompt"))
            options["max_tokens"] = 16 if options["max_tokens"] is None else options["max_tokens"]
        self.logprobs = logprobs is not None
        self.request: Request = model.request(prompt, logprobs=logprobs, answer=chat, **options)


def _prompt(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    tokens = isinstance(value, list) and all(type(t) is int for t in value)
    if not isinstance(value, str) and not tokens:
        raise ApiError(400, "prompt must be a text or a list of tokens")
    return value


# --- answers


@final
class Answer:
    """Pieces as the API writes them."""

    def __init__(self, model: Model, name: str, asked: Asked) -> None:
        self.model, self.name, self.asked = model, name, asked
        self.id = ("chatcmpl-" if asked.chat else "cmpl-") + uuid.uuid4().hex
        self.created = int(time.time())
        self.offset = 0  # characters of tokens whose logarithms are out

    def _frame(self, choices: list[dict[str, Any]], chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion" if self.asked.chat else "text_completion") + (
            ".chunk" if chunk and self.asked.chat else ""
        )
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.name,
            "choices": choices,
        }

    def usage(self) -> dict[str, Any]:
        request = self.asked.request
        prompt, found = len(request.prompt), len(request.found)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": found,
            "total_tokens": prompt + found,
            "prompt_tokens_details": {"cached_tokens": request.reused},
        }

    def _text(self, token: int) -> tuple[str, bytes]:
        """A token as a text, and its bytes; a part of a letter is written as OpenAI writes it."""
        raw = self.model.need_tokenizer().bytes_of(token)
        try:
            return raw.decode(), raw
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{b:02x}" for b in raw), raw

    def _logprobs(self, pieces: list[Piece]) -> Any:
        known = [p for p in pieces if p.token is not None and p.logprob is not None]
        if not self.asked.logprobs:
            return None
        if not self.asked.chat:
            offsets = []
            for p in known:
                offsets.append(self.offset)
                self.offset += len(p.text)
            return {
                "tokens": [self._text(p.token or 0)[0] for p in known],
                "token_logprobs": [p.logprob for p in known],
                "top_logprobs": [{self._text(t)[0]: value for t, value in p.top_logprobs} for p in known],
                "text_offset": offsets,
            }

        def entry(token: int, value: float | None) -> dict[str, Any]:
            text, raw = self._text(token)
            return {"token": text, "logprob": value, "bytes": list(raw)}

        return {
            "content": [
                entry(p.token or 0, p.logprob) | {"top_logprobs": [entry(t, v) for t, v in p.top_logprobs]}
                for p in known
            ]
        }

    def first(self) -> dict[str, Any]:
        """What a streamed answer of a chat begins with."""
        delta = {"role": "assistant", "content": ""}
        return self._frame([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}], True)

    def part(self, piece: Piece) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": self._logprobs([piece]),
            "finish_reason": piece.finish_reason,
        }
        choice |= {"delta": {"content": piece.text}} if self.asked.chat else {"text": piece.text}
        return self._frame([choice], True)

    def whole(self, pieces: list[Piece]) -> dict[str, Any]:
        text = "".join(p.text for p in pieces)
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": self._logprobs(pieces),
            "finish_reason": pieces[-1].finish_reason if pieces else "length",
        }
        choice |= {"message": {"role": "assistant", "content": text}} if self.asked.chat else {"text": text}
        return self._frame([choice], False) | {"usage": self.usage()}


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


async def _events(answer: Answer, first: Piece | None, pieces: AsyncGenerator[Piece]) -> AsyncIterator[str]:
    try:
        if answer.asked.chat:
            yield _event(answer.first())
        if first is not None:
            yield _event(answer.part(first))
        async for piece in pieces:
            yield _event(answer.part(piece))
        if answer.asked.usage:
            yield _event(answer._frame([], True) | {"usage": answer.usage()})
        yield "data: [DONE]\n\n"
    except MorokError as error:
        yield _event(ApiError(500, error.message, "server_error").body())
    finally:
        await pieces.aclose()


# --- the application

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"
_Work = Callable[[Http], Awaitable[Response]]


@final
class Service:
    """What answers at each path."""

    def __init__(self, engine: Engine, name: str, api_key: str | None, most_bytes: int) -> None:
        self.engine, self.model, self.name = engine, engine.model, name
        self.api_key, self.most_bytes = api_key, most_bytes
        self.entry = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "morok"}

    def routes(self) -> list[Route]:
        return [
            Route("/", self.page),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/v1/models", self._guarded(self.models)),
            Route("/v1/models/{name:path}", self._guarded(self.one_model)),
            Route("/v1/completions", self._guarded(self.completions), methods=["POST"]),
            Route("/v1/chat/completions", self._guarded(self.chat_completions), methods=["POST"]),
        ]

    def _check_key(self, http: Http) -> None:
        given, key = http.headers.get("authorization", ""), self.api_key
        if key is not None and not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            raise ApiError(401, "the API key is wrong or missing", "authentication_error", "invalid_api_key")

    async def _body(self, http: Http) -> dict[str, Any]:
        size, parts = 0, []
        async for part in http.stream():
            size += len(part)
            if size > self.most_bytes:
                raise ApiError(413, f"the request has more than {self.most_bytes} bytes")
            parts.append(part)
        try:
            found = json.loads(b"".join(parts))
        except (ValueError, RecursionError):
            raise ApiError(400, "the request is not valid JSON") from None
        if not isinstance(found, dict):
            raise ApiError(400, "the request must be a JSON object")
        wanted = found.get("model")
        if wanted is not None and wanted != self.name:
            raise ApiError(
                404, f"there is no model {wanted!r}; there is {self.name!r}", code="model_not_found"
            )
        return found

    async def _complete(self, http: Http, chat: bool) -> Response:
        data = await self._body(http)
        answer = Answer(self.model, self.name, Asked(self.model, data, chat))
        pieces = self.engine.pieces(answer.asked.request)
        first = await anext(pieces, None)  # a full line, say, is still a status
        if answer.asked.stream:
            headers = {"cache-control": "no-cache"}
            return StreamingResponse(_events(answer, first, pieces), 200, headers, "text/event-stream")
        found = [] if first is None else [first]
        async for piece in pieces:
            found.append(piece)
            if await http.is_disconnected():
                await pieces.aclose()
                raise ClientDisconnect()
        return JSONResponse(answer.whole(found))

    def _guarded(self, work: _Work) -> _Work:
        """The work behind the key, with errors as the API writes them."""

        async def handle(http: Http) -> Response:
            found: Response
            try:
                self._check_key(http)
                found = await work(http)
            except ApiError as error:
                found = JSONResponse(error.body(), error.status)
            except ArgumentError as error:
                found = JSONResponse(ApiError(400, error.message).body(), 400)
            except Busy as error:
                busy = ApiError(429, error.message, "rate_limit_error", "rate_limit_exceeded")
                found = JSONResponse(busy.body(), 429, headers={"retry-after": "1"})
            except MorokError as error:
                found = JSONResponse(ApiError(500, error.message, "server_error").body(), 500)
            except ClientDisconnect:
                found = PlainTextResponse("", 499)
            path = getattr(http.scope.get("route"), "path", "other")
            self.engine.counts.answered(path, found.status_code)
            return found

        return handle

    async def completions(self, http: Http) -> Response:
        return await self._complete(http, chat=False)

    async def chat_completions(self, http: Http) -> Response:
        return await self._complete(http, chat=True)

    async def models(self, http: Http) -> Response:
        return JSONResponse({"object": "list", "data": [self.entry]})

    async def one_model(self, http: Http) -> Response:
        if http.path_params["name"] != self.name:
            raise ApiError(404, f"there is no model {http.path_params['name']!r}", code="model_not_found")
        return JSONResponse(self.entry)

    async def health(self, http: Http) -> Response:
        engine = self.engine
        return JSONResponse({"status": "ok", "running": engine.running, "waiting": engine.waiting})

    async def metrics(self, http: Http) -> Response:
        return PlainTextResponse(self.engine.metrics(), media_type="text/plain; version=0.0.4")

    async def page(self, http: Http) -> Response:
        return HTMLResponse(PAGE, headers={"content-security-policy": _POLICY})


def app(
    model: Model,
    name: str,
    api_key: str | None = None,
    slots: int = 4,
    waiting: int = 64,
    most_bytes: int = MOST_BYTES,
) -> Starlette:
    """The application for one model."""
    engine = Engine(model, slots, waiting)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        engine.close()

    async def refused(http: Http, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        said = ApiError(error.status_code, f"{http.method} {http.url.path}: {error.detail}")
        return JSONResponse(said.body(), error.status_code, headers=error.headers)

    routes = Service(engine, name, api_key, most_bytes).routes()
    found = Starlette(lifespan=lifespan, routes=routes, exception_handlers={HTTPException: refused})
    found.state.engine = engine
    return found
