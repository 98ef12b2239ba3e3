"""The server: what it answers, streamed and whole, and what it refuses, in OpenAI's forms."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from morok.llm import load
from morok.llm.template import render
from tests.llm import files
from tests.llm.serving import served

for name in ("tokenizers", "starlette", "uvicorn"):
    pytest.importorskip(name, reason="a server needs starlette and uvicorn")
httpx: Any = pytest.importorskip("httpx", reason="the tests of the server ask by httpx")

HELLO = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    path = tmp_path_factory.mktemp("llm") / "tiny.gguf"
    files.tiny_llama(path)
    with (
        served(load(path), slots=2, waiting=8) as (address, engine),
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        yield client, engine


def events(reply: Any) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_chat_streamed_and_whole(server: tuple[Any, Any]) -> None:
    client, engine = server
    asked = {"model": "tiny", "messages": HELLO, "temperature": 0, "max_tokens": 8}
    whole = client.post("/v1/chat/completions", json=asked).json()
    (choice,) = whole["choices"]
    assert whole["object"] == "chat.completion" and choice["message"]["role"] == "assistant"
    prompt = len(engine.model.chat_prompt(HELLO))
    found = whole["usage"]["completion_tokens"]
    assert whole["usage"]["prompt_tokens"] == prompt and whole["usage"]["total_tokens"] == prompt + found
    wanted = engine.model.chat(HELLO, max_tokens=8)
    assert choice["message"]["content"] == wanted
    extra = {"stream": True, "stream_options": {"include_usage": True}}
    parts = events(client.post("/v1/chat/completions", json=asked | extra))
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(p["choices"][0]["delta"].get("content", "") for p in parts[:-1]) == wanted
    assert parts[-1]["choices"] == [] and parts[-1]["usage"]["completion_tokens"] == found
    assert parts[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == prompt - 1
    assert parts[-2]["choices"][0]["finish_reason"] == choice["finish_reason"] in ("stop", "length")


def test_a_completion(server: tuple[Any, Any]) -> None:
    client, engine = server
    asked = {"prompt": "the", "max_tokens": 5, "temperature": 0, "logprobs": 2}
    found = client.post("/v1/completions", json=asked).json()
    assert found["choices"][0]["text"] == engine.model.generate("the", max_tokens=5)
    assert len(found["choices"][0]["logprobs"]["top_logprobs"]) == found["usage"]["completion_tokens"]
    sampled = [client.post("/v1/completions", json={"prompt": "a", "seed": 3}).json() for _ in range(2)]
    assert sampled[0]["choices"][0]["text"] == sampled[1]["choices"][0]["text"]


def test_logarithms_of_tokens_that_are_parts_of_letters(server: tuple[Any, Any]) -> None:
    """The tiny model writes bytes: each is told as it is, and where it stands in the text."""
    client, _ = server
    asked = {"max_tokens": 12, "temperature": 0, "logprobs": 1}
    (choice,) = client.post("/v1/completions", json=asked | {"prompt": "the cat"}).json()["choices"]
    found = choice["logprobs"]
    assert any(token.startswith("bytes:\\x") for token in found["tokens"])
    assert len(found["text_offset"]) == len(found["tokens"]) and found["text_offset"][0] == 0
    assert found["text_offset"] == sorted(found["text_offset"]) and found["text_offset"][-1] > 0
    asked |= {"logprobs": True, "top_logprobs": 2, "messages": HELLO}
    (choice,) = client.post("/v1/chat/completions", json=asked).json()["choices"]
    content = choice["logprobs"]["content"]
    raw = b"".join(bytes(entry["bytes"]) for entry in content)
    assert choice["message"]["content"] == raw.decode(errors="replace") and b"\xef\xbf\xbd" not in raw
    assert all(entry["top_logprobs"][0]["bytes"] == entry["bytes"] for entry in content)
    parts = events(client.post("/v1/chat/completions", json=asked | {"stream": True}))
    found = [p["choices"][0]["logprobs"] for p in parts]
    assert [entry for logs in found if logs for entry in logs["content"]] == content


def test_a_bias_by_token(server: tuple[Any, Any]) -> None:
    client, engine = server
    token = engine.model.need_tokenizer().encode("x")[0]
    asked = {"prompt": "the", "max_tokens": 3, "temperature": 0, "logit_bias": {str(token): 100}}
    assert client.post("/v1/completions", json=asked).json()["choices"][0]["text"] == "xxx"


def test_a_conversation_with_calls_of_tools(server: tuple[Any, Any]) -> None:
    """An answer that is a call has no text; its arguments come as a text and templates read objects."""
    client, _ = server
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [5]}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "7"},
    ]
    asked = {"messages": messages, "max_tokens": 2, "temperature": 0}
    assert client.post("/v1/chat/completions", json=asked).status_code == 200
    template = (
        "{% for m in messages %}{{ m.tool_calls[0].function.arguments.a[0] if m.tool_calls }}{% endfor %}"
    )
    assert render(template, messages, {}) == "5"
    wrong = [{"role": "assistant", "content": None, "tool_calls": [5]}]
    reply = client.post("/v1/chat/completions", json={"messages": wrong})
    assert reply.status_code == 400 and "tool_calls" in reply.json()["error"]["message"]


def test_what_is_refused(server: tuple[Any, Any]) -> None:
    client, _ = server
    chat, plain = "/v1/chat/completions", "/v1/completions"
    wrong: list[tuple[str, Any, int, str]] = [
        (chat, {"messages": []}, 400, "at least one message"),
        (chat, {}, 400, "messages"),
        (chat, {"messages": HELLO, "temperature": "hot"}, 400, "temperature must be"),
        (chat, {"messages": HELLO, "n": 3}, 400, "n must be 1"),
        (chat, {"messages": HELLO, "max_tokens": -1}, 400, "max_tokens"),
        (chat, {"messages": HELLO, "model": "other"}, 404, "no model 'other'"),
        (chat, {"messages": [{"role": "user", "content": "x" * 1_000_000}]}, 400, "fit in the context"),
        (plain, {"prompt": {"a": 1}}, 400, "prompt must be"),
        (plain, {"prompt": [10**9]}, 400, "no token"),
        (plain, {"prompt": "the " * 200}, 400, "fit in the context"),
        (plain, {"prompt": "a", "stop": 5}, 400, "stop must be"),
        (plain, [1], 400, "JSON object"),
        (plain, {"prompt": "a", "echo": True}, 400, "echo is not there"),
        (plain, {"prompt": "a", "suffix": "b"}, 400, "suffix is not there"),
        (plain, {"prompt": "a", "logit_bias": {"x": 1}}, 400, "'x', which is no token"),
        (plain, {"prompt": "a", "logit_bias": {"1": [1]}}, 400, "numbers by token"),
        (plain, {"prompt": "a", "logit_bias": {"1": 1000}}, 400, "from -100 to 100"),
    ]
    for path, data, status, message in wrong:
        reply = client.post(path, json=data)
        assert (reply.status_code, message in reply.json()["error"]["message"]) == (status, True), reply.text
    assert client.post(chat, content=b"{not json").status_code == 400
    reply = client.post(plain, content=b'{"prompt": "a\\ud800"}')
    assert reply.status_code == 400 and "surrogates" in reply.json()["error"]["message"]
    assert client.post(chat, content=b"x" * (5 << 20)).status_code == 413
    assert client.get("/v1/models/other").status_code == 404 and client.get("/nowhere").status_code == 404
    assert client.get("/nowhere").json()["error"]["message"] == "GET /nowhere: Not Found"
    assert client.get(chat).status_code == 405


def test_health_models_metrics_page(server: tuple[Any, Any]) -> None:
    client, _ = server
    assert client.get("/health").json()["status"] == "ok"
    assert [m["id"] for m in client.get("/v1/models").json()["data"]] == ["tiny"]
    metrics = client.get("/metrics").text
    assert "morok_requests_running 0" in metrics and "# TYPE morok_generated_tokens_total counter" in metrics
    assert "<title>morok</title>" in client.get("/").text


def test_a_reader_who_leaves_frees_the_slot(server: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps wait a little: a tiny model has said all of it before a busy reader has its first line."""
    client, engine = server
    before = engine.counts.cancelled
    step = engine._step
    monkeypatch.setattr(engine, "_step", lambda texts: time.sleep(0.05) or step(texts))
    asked = {"prompt": "the", "max_tokens": 90, "temperature": 1, "seed": 1, "stream": True}
    with client.stream("POST", "/v1/completions", json=asked) as reply:
        lines = reply.iter_lines()  # kept: the connection ends with its iterator
        assert "choices" in next(lines)
        assert engine.running == 1
    deadline = time.monotonic() + 20
    while (engine.running or engine.counts.cancelled == before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert engine.running == 0 and engine.counts.cancelled == before + 1


def test_many_at_once_get_their_own_answers(server: tuple[Any, Any]) -> None:
    client, engine = server
    prompts = [f"the {chr(97 + i)}" for i in range(6)]
    found: dict[str, str] = {}

    def ask(prompt: str) -> None:
        asked = {"prompt": prompt, "max_tokens": 6, "temperature": 0}
        found[prompt] = client.post("/v1/completions", json=asked).json()["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(p,)) for p in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {p: engine.model.generate(p, max_tokens=6) for p in prompts}
    assert engine.running == 0 and engine.made <= 2


def test_whoever_comes_first_does_not_wait_for_plans(tmp_path: Path) -> None:
    """What `morok serve` prepares is what requests need, and no slot makes the caches grow."""
    path = tmp_path / "tiny.gguf"
    files.tiny_llama(path)
    model = load(path)
    with served(model, slots=2) as (address, engine), httpx.Client(base_url=address, timeout=60) as client:
        engine.prepare()
        plans = (model._token, model._chunk, model._together)
        before = [p.traces for p in plans]
        assert before == [1, 1, 1]
        prompts = ["the", "a cat", "x" * 70]

        def ask(prompt: str) -> None:
            asked = {"prompt": prompt, "max_tokens": 6, "temperature": 0}
            assert client.post("/v1/completions", json=asked).status_code == 200

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(ask, prompts))
        assert [p.traces for p in plans] == before and engine.made == model.taken == model._texts == 2


def test_keys_and_full_lines(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    files.tiny_llama(path)
    options: dict[str, Any] = {"api_key": "secret", "slots": 1, "waiting": 0}
    with (
        served(load(path), **options) as (address, engine),
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        assert client.get("/v1/models").status_code == 401 and client.get("/health").status_code == 200
        client.headers["authorization"] = "Bearer secret"
        assert client.get("/v1/models").status_code == 200
        engine.running += 1  # as if somebody had the only slot
        reply = client.post("/v1/completions", json={"prompt": "a"})
        assert reply.status_code == 429 and "slots are taken" in reply.json()["error"]["message"]
        engine.running -= 1
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
