"""What SmolLM2 writes by transformers in float32, from weights that the gguf package has dequantised.

    python -m tests.llm.smollm2_reference path/to/SmolLM2-135M-Instruct.Q4_1.gguf

writes smollm2.json beside this file: of five prompts the tokens, 256 likeliest ones after them and how far
the second was behind; of a text its tokens and the mean of -log p.
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


def main(path: str) -> None:
    import torch

    from morok.llm.tokenizer import tokenizer_of_gguf
    from morok.nn.gguf import read_gguf

    model, tokenizer = reference(path), tokenizer_of_gguf(read_gguf(path)[1])
    greedy = []
    with torch.no_grad():
        for prompt in PROMPTS:
            ids = tokenizer.encode(prompt)
            tokens: list[int] = []
            gaps: list[float] = []
            cache, x = None, torch.tensor([ids])
            for _ in range(256):
                found = model(x, past_key_values=cache, use_cache=True)
                cache = found.past_key_values
                best = found.logits[0, -1].topk(2)
                tokens.append(int(best.indices[0]))
                gaps.append(round(float(best.values[0] - best.values[1]), 6))
                x = torch.tensor([tokens[-1:]])
            greedy.append({"prompt": prompt, "ids": ids, "tokens": tokens, "gaps": gaps})
        root = Path(__file__).parents[2]
        ids = tokenizer.encode((root / "LICENSE").read_text() + (root / "CONTRIBUTING.md").read_text())[:2001]
        shares = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        nll = -shares[:-1].gather(1, torch.tensor(ids[1:])[:, None]).mean().item()
    RECORD.write_text(json.dumps({"greedy": greedy, "text": {"ids": ids, "nll": nll}}))


if __name__ == "__main__":
    main(sys.argv[1])
