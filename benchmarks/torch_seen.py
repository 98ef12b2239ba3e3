"""Models for `torch_models.py`, by name; random weights. Their kernels have been looked at.

Widths and batches are those that people run on a GPU, with fewer layers, as these are all alike and have to
be compiled; and tiny ones for a try on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Built = tuple[Any, tuple[Any, ...], dict[str, Any]]


def words(large: bool, batch: int, length: int) -> Any:
    return torch.randint(3, 1000, (batch, length) if large else (1, 16))


def image(large: bool, batch: int, size: int = 224) -> Any:
    return torch.randn(batch if large else 1, 3, size, size)


def t5(large: bool) -> Built:
    """Encoder and decoder, a bias of places in the scores, no bias elsewhere."""
    import transformers as tf

    wide = {"d_model": 768, "d_ff": 3072, "num_layers": 3, "num_heads": 12}
    narrow = {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16, "vocab_size": 1000}
    model = tf.T5ForConditionalGeneration(tf.T5Config(**(wide if large else narrow)))
    given = {"decoder_input_ids": words(large, 16, 128), "use_cache": False}
    return model, (words(large, 16, 512),), given


def llama(large: bool) -> Built:
    """Heads that share keys and values, rotated places, RMS norms, a gate."""
    import transformers as tf

    wide = {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4,
            "num_attention_heads": 16, "num_key_value_heads": 4}  # fmt: skip
    narrow = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**(wide if large else narrow)))
    return model, (words(large, 4, 1024),), {"use_cache": False}


def mistral(large: bool) -> Built:
    """As Llama, with a window that slides over the keys, and heads of 128."""
    import transformers as tf

    wide = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 7168, "num_hidden_layers": 2,
            "num_attention_heads": 16, "num_key_value_heads": 4, "sliding_window": 512}  # fmt: skip
    narrow = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8}  # fmt: skip
    model = tf.MistralForCausalLM(tf.MistralConfig(**(wide if large else narrow)))
    return model, (words(large, 2, 2048),), {"use_cache": False}


def whisper(large: bool) -> Built:
    """The encoder: two convolutions, then rows of 1500."""
    import transformers as tf
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    wide = {"d_model": 512, "encoder_layers": 3, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048}
    narrow = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64,
              "max_source_positions": 50}  # fmt: skip
    config = tf.WhisperConfig(**(wide if large else narrow))
    return WhisperEncoder(config), (torch.randn(*((8, 80, 3000) if large else (1, 80, 100))),), {}


def clip(large: bool) -> Built:
    """Images and texts, of which every pair has a score."""
    import transformers as tf

    narrow = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    wide = {"num_hidden_layers": 4}
    text = tf.CLIPTextConfig(**(wide if large else narrow)).to_dict()
    vision = tf.CLIPVisionConfig(**(wide if large else {**narrow, "image_size": 64})).to_dict()
    model = tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config=vision))
    words = torch.randint(3, 1000, (64, 77) if large else (2, 16))
    words[:, -1] = 49407  # ends the text
    return model, (words, image(large, 64, 224 if large else 64)), {}


def swin(large: bool) -> Built:
    """Attention within windows that shift, with a bias for each pair of places."""
    import transformers as tf

    narrow = {"embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4], "image_size": 56}
    wide = {"depths": [2, 2, 2, 2]}
    config = tf.SwinConfig(drop_path_rate=0.0, **(wide if large else narrow))
    model = tf.SwinForImageClassification(config)
    return model, (image(large, 64, 224 if large else 56),), {}


def vision(name: str, batch: int, size: int = 64) -> Callable[[bool], Built]:
    def model(large: bool) -> Built:
        import torchvision

        return getattr(torchvision.models, name)(), (image(large, batch, 224 if large else size),), {}

    return model


def bart(large: bool) -> Built:
    """Encoder and decoder, norms after the sums."""
    import transformers as tf

    wide = {"encoder_layers": 3, "decoder_layers": 3, "d_model": 768, "encoder_ffn_dim": 3072,
            "decoder_ffn_dim": 3072, "encoder_attention_heads": 12,
            "decoder_attention_heads": 12}  # fmt: skip
    narrow = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 64, "encoder_ffn_dim": 128,
              "decoder_ffn_dim": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
              "vocab_size": 1000}  # fmt: skip
    model = tf.BartForConditionalGeneration(tf.BartConfig(**(wide if large else narrow)))
    return model, (words(large, 16, 384),), {"decoder_input_ids": words(large, 16, 96), "use_cache": False}


def neox(large: bool) -> Built:
    """Attention and feed-forward beside each other; a quarter of each head is rotated."""
    import transformers as tf

    wide = {"vocab_size": 50432, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 3,
            "num_attention_heads": 16}  # fmt: skip
    narrow = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4}  # fmt: skip
    model = tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**(wide if large else narrow)))
    return model, (words(large, 6, 768),), {"use_cache": False}


def qwen3(large: bool) -> Built:
    """Queries and keys are normalised for each head; heads are wider than the model."""
    import transformers as tf

    wide = {"vocab_size": 40000, "hidden_size": 1280, "intermediate_size": 3456, "num_hidden_layers": 3,
            "num_attention_heads": 20, "num_key_value_heads": 5, "head_dim": 128}  # fmt: skip
    narrow = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}  # fmt: skip
    model = tf.Qwen3ForCausalLM(tf.Qwen3Config(**(wide if large else narrow)))
    return model, (words(large, 3, 1280),), {"use_cache": False}


def segformer(large: bool) -> Built:
    """Attention to a smaller image, depthwise convolutions between linear layers, four sizes put together."""
    import transformers as tf

    narrow = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 32}
    wide = {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 320, 512]}
    config = tf.SegformerConfig(drop_path_rate=0.0, num_labels=150, **(wide if large else narrow))
    return tf.SegformerForSemanticSegmentation(config), (image(large, 16, 256 if large else 64),), {}


def wav2vec2(large: bool) -> Built:
    """A waveform through seven convolutions, one of places in groups, then a transformer."""
    import transformers as tf

    wide = {"num_hidden_layers": 3, "mask_time_prob": 0.0, "layerdrop": 0.0}
    narrow = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
              "conv_dim": [16] * 7, "num_conv_pos_embeddings": 16,
              "num_conv_pos_embedding_groups": 4}  # fmt: skip
    model = tf.Wav2Vec2Model(tf.Wav2Vec2Config(**(wide if large else {**wide, **narrow})))
    return model, (torch.randn(*((8, 80000) if large else (1, 4000))),), {}


def gemma2(large: bool) -> Built:
    """Scores that are bent by a tanh, every other layer with a window, norms before and after."""
    import transformers as tf

    wide = {"vocab_size": 48000, "hidden_size": 1152, "intermediate_size": 4608, "num_hidden_layers": 4,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128,
            "sliding_window": 384}  # fmt: skip
    narrow = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
              "sliding_window": 8}  # fmt: skip
    model = tf.Gemma2ForCausalLM(tf.Gemma2Config(**(wide if large else narrow)))
    return model, (words(large, 4, 896),), {"use_cache": False}


def opt(large: bool) -> Built:
    """Learned places that begin at two, ReLU, biases everywhere."""
    import transformers as tf

    wide = {"vocab_size": 50272, "hidden_size": 896, "ffn_dim": 3584, "num_hidden_layers": 4,
            "num_attention_heads": 14, "word_embed_proj_dim": 896}  # fmt: skip
    narrow = {"vocab_size": 1000, "hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "word_embed_proj_dim": 64}  # fmt: skip
    model = tf.OPTForCausalLM(tf.OPTConfig(**(wide if large else narrow)))
    return model, (words(large, 8, 512),), {"use_cache": False}


def falcon(large: bool) -> Built:
    """One key and value for all heads, attention and feed-forward beside each other."""
    import transformers as tf

    wide = {"vocab_size": 65024, "hidden_size": 1280, "num_hidden_layers": 3, "num_attention_heads": 20}
    narrow = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = tf.FalconForCausalLM(tf.FalconConfig(**(wide if large else narrow)))
    return model, (words(large, 4, 640),), {"use_cache": False}


def deberta(large: bool) -> Built:
    """Scores of words with places that are gathered by their distance."""
    import transformers as tf

    places = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 64,
              "norm_rel_ebd": "layer_norm", "share_att_key": True,
              "position_biased_input": False}  # fmt: skip
    wide = {"num_hidden_layers": 3, "vocab_size": 30000}
    narrow = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4}  # fmt: skip
    model = tf.DebertaV2ForSequenceClassification(tf.DebertaV2Config(**places, **(wide if large else narrow)))
    return model, (words(large, 24, 256),), {}


def dinov2(large: bool) -> Built:
    """A vision transformer of patches of 14, each sum scaled by a learned number for each channel."""
    import transformers as tf

    wide = {"num_hidden_layers": 4}
    narrow = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "image_size": 56}
    model = tf.Dinov2ForImageClassification(tf.Dinov2Config(**(wide if large else narrow)))
    return model, (image(large, 32, 224 if large else 56),), {}


def googlenet(large: bool) -> Built:
    """Four convolutions of one image, put together."""
    import torchvision

    model = torchvision.models.googlenet(aux_logits=False, init_weights=False)
    return model, (image(large, 56, 224 if large else 64),), {}


def bloom(large: bool) -> Built:
    """Scores that fall with the distance, a norm after the words, one product for all three of attention."""
    import transformers as tf

    wide = {"vocab_size": 60000, "hidden_size": 1024, "n_layer": 3, "n_head": 16}
    narrow = {"vocab_size": 1000, "hidden_size": 64, "n_layer": 2, "n_head": 4}
    model = tf.BloomForCausalLM(tf.BloomConfig(**(wide if large else narrow)))
    return model, (words(large, 8, 448),), {"use_cache": False}


def phi(large: bool) -> Built:
    """Half of each head is rotated; attention and feed-forward behind one norm, biases everywhere."""
    import transformers as tf

    wide = {"vocab_size": 51200, "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 3,
            "num_attention_heads": 16}  # fmt: skip
    narrow = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4}  # fmt: skip
    model = tf.PhiForCausalLM(tf.PhiConfig(**(wide if large else narrow)))
    return model, (words(large, 3, 1152),), {"use_cache": False}


def olmo2(large: bool) -> Built:
    """Norms behind attention and feed-forward, and of all queries and keys at once."""
    import transformers as tf

    wide = {"vocab_size": 36000, "hidden_size": 1536, "intermediate_size": 4224, "num_hidden_layers": 3,
            "num_attention_heads": 12}  # fmt: skip
    narrow = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4}  # fmt: skip
    model = tf.Olmo2ForCausalLM(tf.Olmo2Config(**(wide if large else narrow)))
    return model, (words(large, 5, 704),), {"use_cache": False}


def albert(large: bool) -> Built:
    """One layer of weights, used again and again; words narrower than the model."""
    import transformers as tf

    wide = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096,
            "num_hidden_layers": 4}  # fmt: skip
    narrow = {"vocab_size": 1000, "embedding_size": 16, "hidden_size": 64, "num_attention_heads": 4,
              "intermediate_size": 128, "num_hidden_layers": 2}  # fmt: skip
    model = tf.AlbertForSequenceClassification(tf.AlbertConfig(**(wide if large else narrow)))
    return model, (words(large, 20, 320),), {}


def spectrogram(large: bool) -> Built:
    """A vision transformer over the frequencies of a sound, patches that overlap."""
    import transformers as tf

    wide = {"num_hidden_layers": 3, "max_length": 512}
    narrow = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
              "max_length": 64, "num_mel_bins": 32}  # fmt: skip
    model = tf.ASTForAudioClassification(tf.ASTConfig(**(wide if large else narrow)))
    return model, (torch.randn(*((12, 512, 128) if large else (1, 64, 32))),), {}


def inception(large: bool) -> Built:
    """Convolutions of 1×7 and 7×1, branches that are put together."""
    import torchvision

    model = torchvision.models.inception_v3(aux_logits=False, init_weights=False)
    return model, (image(large, 32, 299 if large else 96),), {}


def maxvit(large: bool) -> Built:
    """Depthwise convolutions, attention in blocks and over a grid, a bias for each pair of places."""
    import torchvision

    model = torchvision.models.maxvit_t()
    for part in model.modules():
        if isinstance(part, torchvision.ops.StochasticDepth):
            part.p = 0.0
    return model, (image(large, 16, 224),), {}


def video(large: bool) -> Built:
    """Convolutions in three dimensions."""
    import torchvision

    model = torchvision.models.video.r3d_18()
    return model, (torch.randn(*((8, 3, 16, 112, 112) if large else (1, 3, 4, 32, 32))),), {}


def segmentation(large: bool) -> Built:
    """A ResNet whose convolutions have holes, then an image of classes that is made larger."""
    import torchvision

    model = torchvision.models.segmentation.fcn_resnet50(weights_backbone=None)
    return model, (image(large, 8, 256 if large else 64),), {}


def starcoder2(large: bool) -> Built:
    """Two keys and values for all heads, a window, LayerNorm and biases, a feed-forward without a gate."""
    import transformers as tf

    wide = {"vocab_size": 49152, "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 3,
            "num_attention_heads": 12, "num_key_value_heads": 2, "sliding_window": 640}  # fmt: skip
    narrow = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8}  # fmt: skip
    model = tf.Starcoder2ForCausalLM(tf.Starcoder2Config(**(wide if large else narrow)))
    return model, (words(large, 3, 1280),), {"use_cache": False}


def stablelm(large: bool) -> Built:
    """A quarter of each head is rotated, LayerNorm, a gate; words and head of their own."""
    import transformers as tf

    wide = {"vocab_size": 50304, "hidden_size": 1280, "intermediate_size": 3456, "num_hidden_layers": 3,
            "num_attention_heads": 20, "num_key_value_heads": 20}  # fmt: skip
    narrow = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 4}  # fmt: skip
    model = tf.StableLmForCausalLM(tf.StableLmConfig(**(wide if large else narrow)))
    return model, (words(large, 5, 768),), {"use_cache": False}


def electra(large: bool) -> Built:
    """An encoder whose words are narrower than its rows, which says of each word whether it was replaced."""
    import transformers as tf

    wide = {"hidden_size": 512, "embedding_size": 128, "num_attention_heads": 8, "intermediate_size": 2048,
            "num_hidden_layers": 6}  # fmt: skip
    narrow = {"vocab_size": 1000, "embedding_size": 16, "hidden_size": 64, "num_attention_heads": 4,
              "intermediate_size": 128, "num_hidden_layers": 2}  # fmt: skip
    model = tf.ElectraForPreTraining(tf.ElectraConfig(**(wide if large else narrow)))
    return model, (words(large, 28, 448),), {}


def beit(large: bool) -> Built:
    """A vision transformer with a bias for each pair of places and a number for each channel."""
    import transformers as tf

    wide = {"num_hidden_layers": 4, "use_relative_position_bias": True}
    narrow = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
              "image_size": 48, "use_relative_position_bias": True}  # fmt: skip
    model = tf.BeitForImageClassification(tf.BeitConfig(drop_path_rate=0.0, **(wide if large else narrow)))
    return model, (image(large, 24, 224 if large else 48),), {}


def mobilevit(large: bool) -> Built:
    """Inverted bottlenecks; between them a transformer over each place of all patches."""
    import transformers as tf

    model = tf.MobileViTForImageClassification(tf.MobileViTConfig())
    return model, (image(large, 24, 256 if large else 64),), {}


def poolformer(large: bool) -> Built:
    """A transformer whose attention is an average of neighbours, with norms of groups."""
    import transformers as tf

    model = tf.PoolFormerForImageClassification(tf.PoolFormerConfig(drop_path_rate=0.0))
    return model, (image(large, 24, 224 if large else 64),), {}


def levit(large: bool) -> Built:
    """Convolutions to a small image, attention with narrow keys, batch norms behind linear layers."""
    import transformers as tf

    model = tf.LevitForImageClassification(tf.LevitConfig(drop_path_rate=0))
    return model, (image(large, 128, 224),), {}


def separable_video(large: bool) -> Built:
    """Convolutions over space and over time apart, in branches."""
    import torchvision

    model = torchvision.models.video.s3d()
    return model, (torch.randn(*((4, 3, 16, 224, 224) if large else (1, 3, 16, 224, 224))),), {}


def pyramid(large: bool) -> Built:
    """Convolutions with holes of several widths beside each other, over a small network's image."""
    import torchvision

    model = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(weights_backbone=None)
    return model, (image(large, 12, 320 if large else 64),), {}


SEEN: dict[str, Callable[[bool], Built]] = {
    "t5": t5,
    "llama": llama,
    "mistral": mistral,
    "whisper": whisper,
    "clip": clip,
    "swin": swin,
    "convnext_tiny": vision("convnext_tiny", 32),
    "efficientnet_b0": vision("efficientnet_b0", 64),
    "densenet121": vision("densenet121", 32),
    "mobilenet_v3_large": vision("mobilenet_v3_large", 64),
    "bart": bart,
    "neox": neox,
    "qwen3": qwen3,
    "segformer": segformer,
    "wav2vec2": wav2vec2,
    "regnet_y_800mf": vision("regnet_y_800mf", 48),
    "shufflenet_v2_x1_0": vision("shufflenet_v2_x1_0", 96),
    "resnext50_32x4d": vision("resnext50_32x4d", 32),
    "vgg11_bn": vision("vgg11_bn", 24),
    "mnasnet1_0": vision("mnasnet1_0", 80),
    "gemma2": gemma2,
    "opt": opt,
    "falcon": falcon,
    "deberta": deberta,
    "dinov2": dinov2,
    "googlenet": googlenet,
    "squeezenet1_1": vision("squeezenet1_1", 112),
    "efficientnet_v2_s": vision("efficientnet_v2_s", 24, 96),
    "wide_resnet50_2": vision("wide_resnet50_2", 40),
    "swin_v2_t": vision("swin_v2_t", 32, 128),
    "bloom": bloom,
    "phi": phi,
    "olmo2": olmo2,
    "albert": albert,
    "spectrogram": spectrogram,
    "inception_v3": inception,
    "maxvit_t": maxvit,
    "r3d_18": video,
    "fcn_resnet50": segmentation,
    "alexnet": vision("alexnet", 128),
    "starcoder2": starcoder2,
    "stablelm": stablelm,
    "electra": electra,
    "beit": beit,
    "mobilevit": mobilevit,
    "poolformer": poolformer,
    "levit": levit,
    "s3d": separable_video,
    "deeplabv3_mobilenet_v3_large": pyramid,
    "mobilenet_v2": vision("mobilenet_v2", 72),
}
