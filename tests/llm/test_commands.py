"""`morok chat` and `morok serve` on a tiny model, as a user runs them."""

import io
from pathlib import Path

import pytest

from morok.cli.main import main
from morok.llm import load
from tests.llm import files

pytest.importorskip("tokenizers", reason="texts need the package tokenizers")


def test_a_message_and_a_conversation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.gguf"
    files.tiny_llama(path)
    options = [str(path), "--temperature", "0", "--max-tokens", "4"]
    wanted = load(path).chat([{"role": "user", "content": "the"}], max_tokens=4)
    assert main(["chat", *options, "--prompt", "the"]) == 0
    found = capsys.readouterr()
    assert found.out == wanted + "\n" and "tokens," in found.err and "llama, 2 layers" in found.err
    monkeypatch.setattr(
        "sys.stdin", io.StringIO("/help\nthe\n/retry\n/clear\nthe\n" + "x" * 200 + "\n/exit\nno\n")
    )
    assert main(["chat", *options]) == 0
    found = capsys.readouterr()
    assert found.out.count(wanted + "\n") >= 3 and "forget the conversation" in found.out
    assert "fit in the context" in found.err and "/clear forgets the conversation" in found.err
    assert main(["chat", *options, "--prompt", "x" * 200]) == 2
    assert "fit in the context" in capsys.readouterr().err


def test_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiny.gguf"
    files.tiny_llama(path)
    for words, message in (
        (["chat", str(tmp_path / "no.gguf")], "there is no file or folder"),
        (["chat", str(path), "--context", "5000"], "from 1 to the model's 96"),
        (["chat", str(path), "--cache-type", "int3"], "cache_type must be one of"),
        (["serve", str(path), "--port", "99999"], "port must be from 0"),
        (["serve", str(path), "--api-key", "@/no/such/file"], "cannot read the API key"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err
