"""Transformers as PyTorch has them: names, arguments, order of axes and state dicts are its own.

Sequences are (length, batch, width), or (batch, length, width) with `batch_first`. Boolean masks say where
*not* to look, as PyTorch's layers take them; others are added to the scores.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from morok.errors import ArgumentError
from morok.nn import functional
from morok.nn.init import parameter, xavier_uniform
from morok.nn.linear import Linear
from morok.nn.module import Module, is_training, named_tensors
from morok.nn.norm import LayerNorm
from morok.tensor.sizes import concrete_shape
from morok.tensor.tensor import Tensor

Activation = Callable[[Tensor], Tensor]


class MultiheadAttention(Module):
    """Attention in several heads: (result, weights, averaged over the heads, or None).

    >>> x = Tensor.ones(5, 1, 8)
    >>> y, weights = MultiheadAttention(8, 2)(x, x, x)
    >>> y.shape, weights.shape
    ((5, 1, 8), (1, 5, 5))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        dtype: Any = None,
    ) -> None:
        if embed_dim % num_heads:
            raise ArgumentError(f"{num_heads} heads do not divide a width of {embed_dim}")
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.add_zero_attn, self.batch_first = add_zero_attn, batch_first
        width, inputs = embed_dim, (embed_dim, kdim or embed_dim, vdim or embed_dim)
        if inputs == (width,) * 3:
            self.in_proj_weight = parameter(xavier_uniform(3 * width, width, dtype=dtype))
        else:
            self.q_proj_weight, self.k_proj_weight, self.v_proj_weight = (
                parameter(xavier_uniform(width, n, dtype=dtype)) for n in inputs
            )
        self.in_proj_bias = parameter(Tensor.zeros(3 * width, dtype=dtype)) if bias else None
        if add_bias_kv:
            self.bias_k, self.bias_v = (
                parameter(Tensor.normal(1, 1, width, std=width**-0.5, dtype=dtype)) for _ in range(2)
            )
        self.out_proj = Linear(width, width, bias, dtype)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        turned = self.batch_first and query.ndim == 3
        if turned:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        if is_causal and attn_mask is None:
            raise ArgumentError("is_causal is a hint about attn_mask, which must be given with it")
        whole = getattr(self, "in_proj_weight", None)
        y, weights = functional.multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, whole, self.in_proj_bias,
            getattr(self, "bias_k", None), getattr(self, "bias_v", None), self.add_zero_attn, self.dropout,
            self.out_proj.weight, self.out_proj.bias, is_training(), key_padding_mask, need_weights,
            attn_mask, whole is None, getattr(self, "q_proj_weight", None),
            getattr(self, "k_proj_weight", None), getattr(self, "v_proj_weight", None),
            average_attn_weights=average_attn_weights,
        )  # fmt: skip
        return y.transpose(0, 1) if turned else y, weights


def _activation(given: str | Activation) -> Activation:
    if callable(given):
        return given
    if given not in ("relu", "gelu"):
        raise ArgumentError(f'activation is "relu", "gelu" or a function, not {given!r}')
    return Tensor.relu if given == "relu" else Tensor.gelu


def _copies(layer: Any, count: int) -> list[Any]:
    """So many layers of the same form, each with first values of its own memory."""
    tensors = list(named_tensors(layer).values()) if count else []
    if tensors:
        tensors[0].realize(*tensors[1:])  # together: copies ask for one after the other
    return [copy.deepcopy(layer) for _ in range(count)]


class _Layer(Module):
    """What encoders' and decoders' layers have in common: two linear maps, and dropout around each part."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.p, self.norm_first, self.activation = dropout, norm_first, _activation(activation)

    def _drop(self, x: Tensor) -> Tensor:
        return x.dropout(self.p, is_training()) if self.p else x

    def _forward(self, x: Tensor) -> Tensor:
        return self._drop(self.linear2(self._drop(self.activation(self.linear1(x))).contiguous()))

    def _part(self, x: Tensor, norm: Any, part: Activation) -> Tensor:
        """x and what a part makes of it; the norm before that part, or after the sum.

        It is stored, as it always is where it is large: tiny layers would be fused into kernels of several
        layers each, which take long to compile.
        """
        return (x + part(norm(x)) if self.norm_first else norm(x + part(x))).contiguous()


class TransformerEncoderLayer(_Layer):
    """Attention to itself, then two linear maps, each beside what it began with.

    >>> TransformerEncoderLayer(8, 2, 16)(Tensor.ones(5, 1, 8)).shape
    (5, 1, 8)
    """

    def __call__(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            y, _ = self.self_attn(x, x, x, src_key_padding_mask, False, src_mask)
            return self._drop(y)

        x = self._part(src, self.norm1, attend)
        return self._part(x, self.norm2, self._forward)


class TransformerDecoderLayer(_Layer):
    """Attention to itself, then to an encoder's result, then two linear maps.

    >>> TransformerDecoderLayer(8, 2, 16)(Tensor.ones(5, 1, 8), Tensor.ones(3, 1, 8)).shape
    (5, 1, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first,
            bias, dtype,
        )  # fmt: skip
        self.multihead_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype
        )
        self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)

    def __call__(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            y, _ = self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask)
            return self._drop(y)

        def look(x: Tensor) -> Tensor:
            y, _ = self.multihead_attn(x, memory, memory, memory_key_padding_mask, False, memory_mask)
            return self._drop(y)

        x = self._part(tgt, self.norm1, attend)
        x = self._part(x, self.norm2, look)
        return self._part(x, self.norm3, self._forward)


class TransformerEncoder(Module):
    """Several layers like the given one, each with weights of its own, and a norm at the end if one is given.

    >>> layer = TransformerEncoderLayer(8, 2, 16)
    >>> TransformerEncoder(layer, 2)(Tensor.ones(5, 1, 8)).shape
    (5, 1, 8)
    """

    def __init__(self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: Any = None) -> None:
        self.layers, self.norm = _copies(encoder_layer, num_layers), norm

    def __call__(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """Several layers like the given one, each with weights of its own, and a norm at the end if one is given.

    >>> layer = TransformerDecoderLayer(8, 2, 16)
    >>> TransformerDecoder(layer, 2)(Tensor.ones(5, 1, 8), Tensor.ones(3, 1, 8)).shape
    (5, 1, 8)
    """

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Any = None) -> None:
        self.layers, self.norm = _copies(decoder_layer, num_layers), norm

    def __call__(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder, and a decoder that looks at what it made.

    >>> Transformer(8, 2, 1, 1, 16)(Tensor.ones(5, 1, 8), Tensor.ones(3, 1, 8)).shape
    (3, 1, 8)
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        how = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first)
        norms = [LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype) for _ in range(2)]
        first = TransformerEncoderLayer(*how, bias, dtype), TransformerDecoderLayer(*how, bias, dtype)
        # nobody else has these layers, so they are no copies, which would have to be computed here
        self.encoder = TransformerEncoder(first[0], 0, norms[0])
        self.encoder.layers = [
            TransformerEncoderLayer(*how, bias, dtype) if n else first[0] for n in range(num_encoder_layers)
        ]
        self.decoder = TransformerDecoder(first[1], 0, norms[1])
        self.decoder.layers = [
            TransformerDecoderLayer(*how, bias, dtype) if n else first[1] for n in range(num_decoder_layers)
        ]
        for weight in named_tensors(self).values():
            if weight.ndim > 1:
                weight.assign(xavier_uniform(*concrete_shape(weight.shape), dtype=weight.dtype))

    def __call__(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        memory = self.encoder(src, src_mask, src_key_padding_mask)
        return self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)

    @staticmethod
    def generate_square_subsequent_mask(size: int, dtype: Any = None) -> Tensor:
        """-inf above the diagonal: nobody looks ahead."""
        ahead = Tensor.ones(size, size).triu(1).cast("bool")
        return ahead.where(float("-inf"), Tensor.zeros(size, size, dtype=dtype))
