"""Models for `torch_models.py`, by name; random weights: ten that nothing here was tuned for.

When their kernels have been looked at, models move to `torch_seen.py`, and others take their place. Widths
and batches are those that people run on a GPU, with fewer layers, as these are all alike and have to be
compiled; and tiny ones for a try on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch_seen import Built, image, vision, words  # type: ignore[import-not-found]


def gpt_neo(large: bool) -> Built:
    """Layers with all keys and with a window of them take turns; scores without a scale."""
    import transformers as tf

    wide = {"hidden_size": 1024, "num_layers": 4, "num_heads": 16,
            "attention_types": [[["global", "local"], 2]]}  # fmt: skip
    narrow = {"vocab_size": 1000, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "window_size": 8,
              "attention_types": [[["global", "local"], 1]]}  # fmt: skip
    model = tf.GPTNeoForCausalLM(tf.GPTNeoConfig(**(wide if large else narrow)))
    return model, (words(large, 5, 896),), {"use_cache": False}


def cohere(large: bool) -> Built:
    """Attention and feed-forward beside each other, norms without a bias, logits with a scale."""
    import transformers as tf

    wide = {"vocab_size": 48000, "hidden_size": 1536, "intermediate_size": 4608, "num_hidden_layers": 3,
            "num_attention_heads": 12, "num_key_value_heads": 4}  # fmt: skip
    narrow = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": 2}  # fmt: skip
    model = tf.CohereForCausalLM(tf.CohereConfig(**(wide if large else narrow)))
    return model, (words(large, 4, 640),), {"use_cache": False}


def mpnet(large: bool) -> Built:
    """An encoder with a bias for the distance of two words in all scores."""
    import transformers as tf

    narrow = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 128}  # fmt: skip
    model = tf.MPNetForMaskedLM(tf.MPNetConfig(**({"num_hidden_layers": 4} if large else narrow)))
    return model, (words(large, 14, 384),), {}


def pvt_v2(large: bool) -> Built:
    """A pyramid of transformers: keys of a smaller picture, depthwise windows inside of the feed-forward."""
    import transformers as tf

    model = tf.PvtV2ForImageClassification(tf.PvtV2Config(drop_path_rate=0.0))
    return model, (image(large, 48, 224 if large else 64),), {}


def convnextv2(large: bool) -> Built:
    """Windows of 7 x 7 in each channel, and norms of responses over all places."""
    import transformers as tf

    narrow = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}
    model = tf.ConvNextV2ForImageClassification(tf.ConvNextV2Config(**({} if large else narrow)))
    return model, (image(large, 40, 224 if large else 64),), {}


def deit(large: bool) -> Built:
    """A vision transformer with a second word for its teacher."""
    import transformers as tf

    narrow = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    wide = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    model = tf.DeiTForImageClassification(tf.DeiTConfig(**(wide if large else narrow)))
    return model, (image(large, 56, 224),), {}


def multiscale(large: bool) -> Built:
    """Attention over video whose queries, keys and values are pooled, with biases of places."""
    import torchvision

    model = torchvision.models.video.mvit_v2_s(stochastic_depth_prob=0.0, dropout=0.0)
    return model, (torch.randn(3 if large else 1, 3, 16, 224, 224),), {}


def factored_video(large: bool) -> Built:
    """Residual blocks of convolutions over space, then over time."""
    import torchvision

    size = (4, 3, 16, 112, 112) if large else (1, 3, 8, 32, 32)
    return torchvision.models.video.r2plus1d_18(), (torch.randn(*size),), {}


def reduced_pyramid(large: bool) -> Built:
    """Segmentation over two pictures of a small network, one of them gated by a mean of neighbours."""
    import torchvision

    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights_backbone=None)
    return model, (image(large, 14, 352 if large else 64),), {}


FRESH: dict[str, Callable[[bool], Built]] = {
    "gpt_neo": gpt_neo,
    "cohere": cohere,
    "mpnet": mpnet,
    "pvt_v2": pvt_v2,
    "convnextv2": convnextv2,
    "deit": deit,
    "mvit_v2_s": multiscale,
    "r2plus1d_18": factored_video,
    "lraspp_mobilenet_v3_large": reduced_pyramid,
    "regnet_x_1_6gf": vision("regnet_x_1_6gf", 44),
}
