"""Families of models of `transformers` with tiny random configurations, as (model, inputs)."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

LENGTH = 9
_TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 37, "max_position_embeddings": 64}  # fmt: skip


def _ids() -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 99, (2, LENGTH))}


def _pixels(size: int = 32) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def resnet() -> Any:
    config = tf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return tf.ResNetModel(config), _pixels()


def regnet() -> Any:
    config = tf.RegNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=8)
    return tf.RegNetModel(config), _pixels()


def mobilenet() -> Any:
    config = tf.MobileNetV2Config(image_size=32, depth_multiplier=0.25, min_depth=4, output_stride=32)
    return tf.MobileNetV2Model(config), _pixels()


def efficientnet() -> Any:
    config = tf.EfficientNetConfig(
        image_size=32, kernel_sizes=[3, 3], in_channels=[32, 16], out_channels=[16, 24], strides=[1, 2],
        num_block_repeats=[1, 1], expand_ratios=[1, 4], width_coefficient=0.5, depth_coefficient=1.0,
        depthwise_padding=[], hidden_dim=640, dropout_rate=0.0, drop_connect_rate=0.0,
    )  # fmt: skip
    return tf.EfficientNetModel(config), _pixels()


def convnext() -> Any:
    config = tf.ConvNextV2Config(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, image_size=32)
    return tf.ConvNextV2Model(config), _pixels()


def vit() -> Any:
    config = tf.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37, image_size=32,
        patch_size=8,
    )  # fmt: skip
    return tf.ViTModel(config), _pixels()


def swin() -> Any:
    config = tf.SwinConfig(
        image_size=32, patch_size=2, embed_dim=8, depths=[1, 2], num_heads=[2, 4], window_size=4,
        drop_path_rate=0.0,
    )  # fmt: skip
    return tf.SwinModel(config), _pixels()


def segformer() -> Any:
    config = tf.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3],
        strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], drop_path_rate=0.0,
    )  # fmt: skip
    return tf.SegformerModel(config), _pixels()


def clip_text() -> Any:
    return tf.CLIPTextModel(tf.CLIPTextConfig(**_TEXT)), _ids()


def mamba() -> Any:
    config = tf.MambaConfig(vocab_size=99, hidden_size=16, num_hidden_layers=2, state_size=4)
    return tf.MambaModel(config), _ids()


def gemma3() -> Any:
    config = tf.Gemma3TextConfig(**_TEXT, num_key_value_heads=2, head_dim=8, sliding_window=4)
    return tf.Gemma3TextModel(config), {**_ids(), "use_cache": False}


def distilbert() -> Any:
    config = tf.DistilBertConfig(vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=37)
    return tf.DistilBertModel(config), _ids()


def bert() -> Any:
    return tf.BertModel(tf.BertConfig(**_TEXT)), {**_ids(), "attention_mask": torch.ones(2, LENGTH).long()}


def gpt2() -> Any:
    config = tf.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    return tf.GPT2LMHeadModel(config), {**_ids(), "use_cache": False}


def llama() -> Any:
    config = tf.LlamaConfig(**_TEXT, num_key_value_heads=2)
    return tf.LlamaForCausalLM(config), {**_ids(), "use_cache": False}


def qwen3() -> Any:
    config = tf.Qwen3Config(**_TEXT, num_key_value_heads=2, head_dim=8)
    return tf.Qwen3ForCausalLM(config), {**_ids(), "use_cache": False}


def t5_encoder() -> Any:
    config = tf.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    return tf.T5EncoderModel(config), _ids()


def whisper_encoder() -> Any:
    config = tf.WhisperConfig(
        d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=37, num_mel_bins=8,
        max_source_positions=10, vocab_size=99, decoder_layers=1, decoder_attention_heads=4,
        pad_token_id=1, bos_token_id=2, eos_token_id=2, decoder_start_token_id=2,
    )  # fmt: skip
    return tf.WhisperModel(config).encoder, {"input_features": torch.randn(2, 8, 20)}


def mixtral() -> Any:
    config = tf.MixtralConfig(
        **{**_TEXT, "intermediate_size": 48},
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return tf.MixtralForCausalLM(config), {**_ids(), "use_cache": False}


FAMILIES: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (
        resnet, regnet, mobilenet, efficientnet, convnext, vit, swin, segformer, clip_text, mamba, gemma3,
        distilbert, bert, gpt2, llama, qwen3, t5_encoder, whisper_encoder, mixtral,
    )
}  # fmt: skip
