"""What SmolLM2 writes by transformers in float32, from weights that the gguf package has dequantised.

    python -m tests.llm.smollm2_reference path/to/SmolLM2-135M-Instruct.Q4_1.gguf 256

writes smollm2.json beside this file: of five prompts the tokens, so many likeliest ones after them and how
far the second was behind; of a text its tokens and the mean of -log p.
"""

import json
import sys
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parent / "smollm2.json"
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nExplain why the sky is blue.<|im_end|>\n<|im_start|>assistant\n",
    "1, 1, 2, 3, 5, 8, 13,",
]


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text())
    return found


def reference(path: str) -> Any:
    """The model of transformers with the file's numbers."""
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = GGUFReader(path)
    tensors = {
        t.name: torch.from_numpy(dequantize(t.data, t.tensor_type).reshape(t.shape.tolist()[::-1]).copy())
        for t in reader.tensors
    }

    def fact(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    width, heads, groups = (
        fact(k) for k in ("embedding_length", "attention.head_count", "attention.head_count_kv")
    )
    config = LlamaConfig(
        vocab_size=fact("vocab_size"),
        hidden_size=width,
        intermediate_size=fact("feed_forward_length"),
        num_hidden_layers=fact("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        max_position_embeddings=fact("context_length"),
        rms_norm_eps=fact("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": fact("rope.freq_base")},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).float().eval()

    def halves(w: Any, count: int) -> Any:
        return w.reshape(count, width // heads // 2, 2, -1).transpose(1, 2).reshape(w.shape)

    names = {
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    table = tensors["token_embd.weight"]
    state = {
        "model.embed_tokens.weight": table,
        "lm_head.weight": table,
        "model.norm.weight": tensors["output_norm.weight"],
    }
    for i in range(config.num_hidden_layers):
        old, new = f"blk.{i}", f"model.layers.{i}"
        state[f"{new}.self_attn.q_proj.weight"] = halves(tensors[f"{old}.attn_q.weight"], heads)
        state[f"{new}.self_attn.k_proj.weight"] = halves(tensors[f"{old}.attn_k.weight"], groups)
        state |= {f"{new}.{a}.weight": tensors[f"{old}.{b}.weight"] for a, b in names.items()}
    model.load_state_dict(state)
    return model


def greedy(model: Any, ids: list[int], count: int, guess: Any) -> tuple[list[int], list[float]]:
    """The likeliest tokens after a prompt, by the reference alone: a guess is looked at as a whole, what it
    has right so far is kept with the reference's own next token, and the rest is guessed anew."""
    import torch

    tokens: list[int] = []
    while len(tokens) < count:
        guessed = tokens + guess(ids + tokens, count - len(tokens))
        best = model(torch.tensor([ids + guessed])).logits[0, len(ids) - 1 :].topk(2)
        own, gaps = best.indices[:, 0].tolist(), (best.values[:, 0] - best.values[:, 1]).tolist()
        right = next((i for i, (a, b) in enumerate(zip(guessed, own, strict=False)) if a != b), count)
        tokens = own[: right + 1][:count]
    return tokens, [round(g, 6) for g in gaps[:count]]


def main(path: str, count: int = 256) -> None:
    import torch

    from morok.llm import load

    model, fast = reference(path), load(path, context=1024)
    tokenizer = fast.need_tokenizer()
    found = []

    def guess(ids: list[int], count: int) -> list[int]:
        return [p.token or 0 for p in fast.stream(ids, max_tokens=count, ignore_end=True)]

    with torch.no_grad():
        for prompt in PROMPTS:
            ids = tokenizer.encode(prompt)
            tokens, gaps = greedy(model, ids, count, guess)
            print(prompt, "→", repr(tokenizer.decode(tokens)), "least gap", min(gaps), flush=True)
            found.append({"prompt": prompt, "ids": ids, "tokens": tokens, "gaps": gaps})
            RECORD.write_text(json.dumps({"greedy": found}))
        root = Path(__file__).parents[2]
        ids = tokenizer.encode((root / "LICENSE").read_text() + (root / "CONTRIBUTING.md").read_text())[:2001]
        shares = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        nll = -shares[:-1].gather(1, torch.tensor(ids[1:])[:, None]).mean().item()
    RECORD.write_text(json.dumps({"greedy": found, "text": {"ids": ids, "nll": nll}}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
