"""Small models of com.microsoft's operators, and what ONNX Runtime computes for them.

`python -m tests.onnx.contrib > tests/onnx/contrib.json` records the figures with the installed onnxruntime.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

Case = tuple[str, dict[str, Any], list[tuple[str, Any, bool]], int]  # op, attributes, inputs, outputs
_CASES: dict[str, Callable[[Any], Case]] = {}
_ELEMS = {"float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8,
          "int32": TensorProto.INT32, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}  # fmt: skip


def case(function: Callable[[Any], Case]) -> Callable[[Any], Case]:
    _CASES[function.__name__] = function
    return function


def _f(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def _u8(rng: Any, *shape: int) -> Any:
    return rng.integers(0, 256, shape).astype(np.uint8)


def _i8(rng: Any, *shape: int) -> Any:
    return rng.integers(-127, 128, shape).astype(np.int8)


def _simple(op: str, outputs: int, inputs: list[tuple[str, Any, bool]], **attributes: Any) -> Case:
    return op, attributes, inputs, outputs


def _s(x: float) -> Any:
    return np.array(x, np.float32)


_ACTIVATIONS = {"Gelu": {}, "QuickGelu": {"alpha": 1.3}, "FastGelu": {}}
for _name, _attributes in _ACTIVATIONS.items():
    _CASES[_name] = lambda rng, n=_name, a=_attributes: _simple(n, 1, [("x", _f(rng, 3, 8), False)], **a)


@case
def bias_gelu(rng: Any) -> Case:
    return _simple("BiasGelu", 1, [("x", _f(rng, 3, 8), False), ("b", _f(rng, 8), True)])


@case
def fast_gelu_with_a_bias(rng: Any) -> Case:
    return _simple("FastGelu", 1, [("x", _f(rng, 3, 8), False), ("b", _f(rng, 8), True)])


@case
def simplified_layer_norm(rng: Any) -> Case:
    return _simple(
        "SimplifiedLayerNormalization", 1, [("x", _f(rng, 2, 3, 8), False), ("s", _f(rng, 8), True)], axis=-1
    )


@case
def skip_layer_norm(rng: Any) -> Case:
    names = [("x", _f(rng, 2, 3, 8), False), ("skip", _f(rng, 2, 3, 8), False)]
    return _simple(
        "SkipLayerNormalization", 4, [*names, *((n, _f(rng, 8), True) for n in "gbc")], epsilon=1e-4
    )


@case
def skip_layer_norm_broadcast(rng: Any) -> Case:
    names = [("x", _f(rng, 2, 3, 8), False), ("skip", _f(rng, 1, 3, 8), False)]
    return _simple("SkipLayerNormalization", 1, [*names, ("g", _f(rng, 8), True)])


@case
def skip_simplified_layer_norm(rng: Any) -> Case:
    names = [("x", _f(rng, 2, 3, 8), False), ("skip", _f(rng, 2, 3, 8), False)]
    return _simple(
        "SkipSimplifiedLayerNormalization", 4, [*names, ("g", _f(rng, 8), True), ("b", _f(rng, 8), True)]
    )


@case
def embed_layer_norm(rng: Any) -> Case:
    ids = rng.integers(0, 10, (2, 4)).astype(np.int32)
    kinds = rng.integers(0, 2, (2, 4)).astype(np.int32)
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
    tables = [("w", _f(rng, 10, 8), True), ("p", _f(rng, 6, 8), True), ("t", _f(rng, 2, 8), True)]
    norms = [("g", _f(rng, 8), True), ("b", _f(rng, 8), True)]
    return _simple(
        "EmbedLayerNormalization",
        2,
        [("i", ids, False), ("k", kinds, False), *tables, *norms, ("m", mask, False)],
    )


@case
def fused_matmul(rng: Any) -> Case:
    names = [("a", _f(rng, 2, 5, 3), False), ("b", _f(rng, 2, 4, 5), False)]
    return _simple("FusedMatMul", 1, names, alpha=0.5, transA=1, transB=1)


@case
def fused_gemm(rng: Any) -> Case:
    names = [("a", _f(rng, 3, 5), False), ("b", _f(rng, 5, 4), True), ("c", _f(rng, 4), True)]
    return _simple("FusedGemm", 1, names, activation="LeakyRelu", activation_alpha=0.2, alpha=0.5, beta=2.0)


@case
def fused_conv(rng: Any) -> Case:
    names = [("x", _f(rng, 1, 3, 6, 6), False), ("w", _f(rng, 4, 3, 3, 3), True), ("b", _f(rng, 4), True)]
    return _simple("FusedConv", 1, names, activation="Relu", pads=[1, 1, 1, 1], kernel_shape=[3, 3])


@case
def dynamic_quantize_matmul(rng: Any) -> Case:
    names = [("a", _f(rng, 3, 16), False), ("b", _i8(rng, 16, 5), True), ("s", _s(0.02).reshape(1), True)]
    return _simple("DynamicQuantizeMatMul", 1, [*names, ("", None, False), ("c", _f(rng, 5), True)])


@case
def matmul_integer_to_float(rng: Any) -> Case:
    names = [("a", _u8(rng, 3, 16), False), ("b", _i8(rng, 16, 5), True)]
    scales = [("sa", _s(0.1), True), ("sb", (_f(rng, 5) ** 2).astype(np.float32), True)]
    return _simple("MatMulIntegerToFloat", 1, [*names, *scales, ("za", np.uint8(130), True)])


def _quantised(rng: Any, name: str, *shape: int, signed: bool = False) -> list[tuple[str, Any, bool]]:
    zero = np.array(-3, np.int8) if signed else np.array(120, np.uint8)
    values = _i8(rng, *shape) if signed else _u8(rng, *shape)
    return [(name, values, False), (f"s{name}", _s(0.05), True), (f"z{name}", zero, True)]


def _result(scale: float = 0.07, zero: int = 110) -> list[tuple[str, Any, bool]]:
    return [("sy", _s(scale), True), ("zy", np.array(zero, np.uint8), True)]


for _name in ("QLinearAdd", "QLinearMul"):
    _CASES[_name] = lambda rng, n=_name: _simple(
        n,
        1,
        [
            *_quantised(rng, "a", 3, 8),
            *_quantised(rng, "b", 3, 8),
            *_result(0.3 if n == "QLinearMul" else 0.09),
        ],
    )


@case
def qlinear_add_with_a_row(rng: Any) -> Case:
    return _simple(
        "QLinearAdd", 1, [*_quantised(rng, "a", 3, 8), *_quantised(rng, "b", 1, 8), *_result(0.09)]
    )


@case
def qlinear_sigmoid(rng: Any) -> Case:
    return _simple("QLinearSigmoid", 1, [*_quantised(rng, "x", 3, 8), *_result(1 / 256, 0)])


@case
def qlinear_leaky_relu(rng: Any) -> Case:
    return _simple("QLinearLeakyRelu", 1, [*_quantised(rng, "x", 3, 8), *_result()], alpha=0.2)


@case
def qlinear_softmax(rng: Any) -> Case:
    return _simple(
        "QLinearSoftmax", 1, [*_quantised(rng, "x", 3, 8), *_result(1 / 256, 0)], axis=-1, opset=13
    )


@case
def qlinear_average_pool(rng: Any) -> Case:
    return _simple(
        "QLinearAveragePool", 1, [*_quantised(rng, "x", 1, 2, 5, 5), *_result()],
        kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1],
    )  # fmt: skip


@case
def qlinear_global_average_pool(rng: Any) -> Case:
    return _simple("QLinearGlobalAveragePool", 1, [*_quantised(rng, "x", 1, 3, 4, 4), *_result()])


@case
def qlinear_concat(rng: Any) -> Case:
    parts = [*_quantised(rng, "a", 2, 3), *_quantised(rng, "b", 2, 4)]
    return _simple("QLinearConcat", 1, [*_result(), *parts], axis=1)


@case
def qgemm(rng: Any) -> Case:
    b = [("b", _i8(rng, 4, 16), True), ("sb", (_f(rng, 4) ** 2 + 0.01).astype(np.float32), True)]
    c = rng.integers(-500, 500, 4).astype(np.int32)
    names = [*_quantised(rng, "a", 3, 16), *b, ("zb", np.zeros(4, np.int8), True), ("c", c, True)]
    return _simple("QGemm", 1, [*names, *_result(8.0)], transB=1)


@case
def qgemm_to_float(rng: Any) -> Case:
    b = [("b", _i8(rng, 16, 4), True), ("sb", _s(0.02), True), ("zb", np.array(3, np.int8), True)]
    return _simple("QGemm", 1, [*_quantised(rng, "a", 3, 16), *b], alpha=0.5)


def _packed(rng: Any, n: int, k: int, block: int, bits: int) -> list[tuple[str, Any, bool]]:
    blocks = -(-k // block)
    codes = _u8(rng, n, blocks, block * bits // 8)
    return [("b", codes, True), ("s", (_f(rng, n, blocks) * 0.1).astype(np.float32), True)]


@case
def matmul_4_bits(rng: Any) -> Case:
    names = [("a", _f(rng, 3, 40), False), *_packed(rng, 6, 40, 16, 4)]
    return _simple("MatMulNBits", 1, names, K=40, N=6, bits=4, block_size=16)


@case
def matmul_4_bits_with_zero_points(rng: Any) -> Case:
    names = [("a", _f(rng, 2, 3, 64), False), *_packed(rng, 6, 64, 32, 4), ("z", _u8(rng, 6, 1), True)]
    return _simple("MatMulNBits", 1, names, K=64, N=6, bits=4, block_size=32)


@case
def matmul_8_bits(rng: Any) -> Case:
    names = [("a", _f(rng, 3, 32), False), *_packed(rng, 6, 32, 16, 8)]
    return _simple("MatMulNBits", 1, names, K=32, N=6, bits=8, block_size=16)


@case
def gather_of_blocks(rng: Any) -> Case:
    codes = _u8(rng, 10, 16)
    places = rng.integers(0, 10, (2, 3)).astype(np.int64)
    names = [("x", codes, True), ("i", places, False), ("s", _f(rng, 10, 2), True)]
    return _simple("GatherBlockQuantized", 1, names, bits=4, block_size=16, gather_axis=0, quantize_axis=1)


# --- attention


def _angles(rng: Any, length: int, half: int) -> list[tuple[str, Any, bool]]:
    at = np.arange(length)[:, None] / 10.0 ** (np.arange(half) / half)
    return [("cos", np.cos(at).astype(np.float32), True), ("sin", np.sin(at).astype(np.float32), True)]


@case
def rotary_embedding(rng: Any) -> Case:
    places = np.array([[0, 1, 2], [2, 3, 4]], np.int64)
    names = [("x", _f(rng, 2, 3, 16), False), ("p", places, False), *_angles(rng, 8, 4)]
    return _simple("RotaryEmbedding", 1, names)


@case
def rotary_embedding_of_neighbours(rng: Any) -> Case:
    names = [("x", _f(rng, 2, 2, 3, 8), False), ("p", np.array([2], np.int64), False), *_angles(rng, 8, 4)]
    return _simple("RotaryEmbedding", 1, names, interleaved=1)


@case
def rotary_embedding_of_a_part(rng: Any) -> Case:
    places = np.array([[0, 1, 2], [2, 3, 4]], np.int64)
    names = [("x", _f(rng, 2, 3, 16), False), ("p", places, False), *_angles(rng, 8, 2)]
    return _simple("RotaryEmbedding", 1, names, num_heads=2, rotary_embedding_dim=4)


@case
def multi_head_attention(rng: Any) -> Case:
    names = [(n, _f(rng, 2, 4 if n == "q" else 5, 16), False) for n in "qkv"]
    mask = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], np.int32)
    return _simple(
        "MultiHeadAttention", 1, [*names, ("b", _f(rng, 48), True), ("m", mask, False)], num_heads=2
    )


@case
def multi_head_attention_causal(rng: Any) -> Case:
    names = [(n, _f(rng, 2, 4, 16), False) for n in "qkv"]
    return _simple("MultiHeadAttention", 1, names, num_heads=4, unidirectional=1)


@case
def multi_head_attention_with_a_past(rng: Any) -> Case:
    names = [(n, _f(rng, 2, 2, 16), False) for n in "qkv"]
    past = [(n, _f(rng, 2, 2, 3, 8), False) for n in ("pk", "pv")]
    gap = [("", None, False)] * 2
    added = ("r", _f(rng, 1, 2, 2, 5), False)
    return _simple("MultiHeadAttention", 3, [*names, *gap, added, *past], num_heads=2)


def _attention(rng: Any, mask: Any, past: bool, **attributes: Any) -> Case:
    names = [("x", _f(rng, 2, 4, 8), False), ("w", _f(rng, 8, 24), True), ("b", _f(rng, 24), True)]
    rest = [("m", mask, False) if mask is not None else ("", None, False)]
    if past:
        rest.append(("past", _f(rng, 2, 2, 2, 3, 4), False))
    return _simple("Attention", 2 if past else 1, [*names, *rest], num_heads=2, **attributes)


@case
def attention_with_lengths(rng: Any) -> Case:
    return _attention(rng, np.array([4, 2], np.int32), False)


@case
def attention_with_a_mask(rng: Any) -> Case:
    return _attention(rng, np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32), False)


@case
def attention_causal(rng: Any) -> Case:
    return _attention(rng, None, False, unidirectional=1)


@case
def attention_with_a_past(rng: Any) -> Case:
    return _attention(rng, None, True, unidirectional=1)


@case
def qattention(rng: Any) -> Case:
    names = [("x", _u8(rng, 2, 4, 8), False), ("w", _i8(rng, 8, 24), True), ("b", _f(rng, 24), True)]
    scales = [("sx", _s(0.02), True), ("sw", _s(0.01), True)]
    mask = np.array([4, 3], np.int32)
    zeros = [("m", mask, False), ("zx", np.array(128, np.uint8), True), ("zw", np.array(0, np.int8), True)]
    return _simple("QAttention", 1, [*names, *scales, *zeros], num_heads=2)


def _grouped(rng: Any, new: int, old: int, room: int, rotary: bool, **attributes: Any) -> Case:
    heads, groups, size, batch = 4, 2, 16, 2
    names = [("q", _f(rng, batch, new, heads * size), False)]
    names += [(n, _f(rng, batch, new, groups * size), False) for n in "kv"]
    names += [(n, _f(rng, batch, groups, room, size), False) for n in ("pk", "pv")]
    total = old + new
    names += [("l", np.full(batch, total - 1, np.int32), False), ("t", np.array(total, np.int32), False)]
    if rotary:
        names += _angles(rng, 16, size // 2)
        attributes["do_rotary"] = 1
    return _simple("GroupQueryAttention", 3, names, num_heads=heads, kv_num_heads=groups, **attributes)


@case
def grouped_prompt(rng: Any) -> Case:
    return _grouped(rng, 4, 0, 0, False)


@case
def grouped_prompt_turned(rng: Any) -> Case:
    return _grouped(rng, 4, 0, 0, True)


@case
def grouped_next_token(rng: Any) -> Case:
    return _grouped(rng, 1, 5, 5, True)


@case
def grouped_next_token_in_a_window(rng: Any) -> Case:
    return _grouped(rng, 1, 5, 5, True, local_window_size=3)


@case
def grouped_with_a_cap(rng: Any) -> Case:
    return _grouped(rng, 4, 0, 0, False, softcap=2.0)


def _experts(rng: Any, wide: int, **attributes: Any) -> Case:
    names = [("x", _f(rng, 5, 8), False), ("router", _f(rng, 5, 4), False)]
    weights = [("w1", _f(rng, 4, wide, 8), True), ("b1", _f(rng, 4, wide), True)]
    weights += [("w2", _f(rng, 4, 8, 16), True), ("b2", _f(rng, 4, 8), True)]
    return _simple("MoE", 1, [*names, *weights], **attributes)


@case
def experts(rng: Any) -> Case:
    return _experts(rng, 16, activation_type="relu", k=2, normalize_routing_weights=1)


@case
def experts_with_gelu(rng: Any) -> Case:
    return _experts(rng, 16, activation_type="gelu", k=2, normalize_routing_weights=1)


@case
def one_expert_for_each_row(rng: Any) -> Case:
    return _experts(rng, 16, activation_type="silu", k=1)


@case
def experts_with_gates(rng: Any) -> Case:
    return _experts(
        rng, 32, activation_type="swiglu", k=2, normalize_routing_weights=1, swiglu_fusion=1,
        activation_alpha=1.702, activation_beta=1.0, swiglu_limit=2.0,
    )  # fmt: skip


def _packed_experts(rng: Any, bits: int, block: int, zeros: bool, **attributes: Any) -> Case:
    """Weights of 32 and 64 columns, by rows or by blocks of them."""
    each = 8 // bits

    def layer(name: str, rows: int, columns: int) -> list[Any]:
        blocks = columns // block if block else 1
        scales = (rng.random((3, rows, blocks) if block else (3, rows)) * 0.05 + 0.01).astype(np.float32)
        made = [(f"w{name}", _u8(rng, 3, rows, columns // each), True), (f"s{name}", scales, True)]
        return [*made, (f"b{name}", _f(rng, 3, rows), True)]

    def zero(name: str, rows: int, columns: int) -> Any:
        shape = (3, rows, -(-columns // block // each)) if block else (3, rows // each)
        return f"z{name}", _u8(rng, *shape), True

    inputs = [("x", _f(rng, 5, 32), False), ("router", _f(rng, 5, 3), False)]
    inputs += [*layer("1", 64, 32), *layer("2", 32, 64)]
    if zeros:
        inputs += [("", None, False)] * 3 + [zero("1", 64, 32), zero("2", 32, 64)]
    more = {"block_size": block} if block else {}
    return _simple("QMoE", 1, inputs, expert_weight_bits=bits, **more, **attributes)


@case
def experts_of_four_bits(rng: Any) -> Case:
    return _packed_experts(rng, 4, 0, False, activation_type="silu", k=2, normalize_routing_weights=1)


@case
def experts_of_eight_bits(rng: Any) -> Case:
    return _packed_experts(rng, 8, 0, False, activation_type="relu", k=1)


@case
def experts_of_four_bits_in_blocks(rng: Any) -> Case:
    return _packed_experts(rng, 4, 16, True, activation_type="gelu", k=2, normalize_routing_weights=1)


# --- models and figures


def model(name: str) -> tuple[Any, dict[str, Any]]:
    """The model of a case, and its inputs."""
    rng = np.random.default_rng(sum(map(ord, name)))
    op, attributes, inputs, outputs = _CASES[name](rng)
    constants, ports, feeds = [], [], {}
    for n, value, constant in inputs:
        if not n:
            continue
        array = np.asarray(value)
        if constant:
            constants.append(numpy_helper.from_array(array, n))
        else:
            feeds[n] = array
            ports.append(helper.make_tensor_value_info(n, _ELEMS[array.dtype.name], array.shape))
    names = [f"y{i}" for i in range(outputs)]
    if op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization") and outputs == 4:
        names = ["y0", "", "", "y3"]  # a processor's kernels give no mean and no deviation
    domain = "" if op.startswith("Simplified") else "com.microsoft"  # where ONNX Runtime itself has it
    node = helper.make_node(op, [n for n, _, _ in inputs], names, name, domain=domain, **attributes)
    given = [helper.make_tensor_value_info(n, _of(op, i), None) for i, n in enumerate(names) if n]
    if name == "qgemm":
        given = [helper.make_tensor_value_info("y0", TensorProto.UINT8, None)]
    graph = helper.make_graph([node], "g", ports, given, constants)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8), feeds


def _of(op: str, number: int) -> int:
    """The type of an output."""
    if op == "EmbedLayerNormalization" and number == 1:
        return int(TensorProto.INT32)
    return int(TensorProto.UINT8 if op.startswith("QLinear") else TensorProto.FLOAT)


def names() -> list[str]:
    return list(_CASES)


def recorded() -> Iterator[tuple[str, list[Any]]]:
    import onnxruntime

    for name in names():
        proto, feeds = model(name)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            made = onnxruntime.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            ).run(None, feeds)
        except Exception as error:
            yield name, [f"{type(error).__name__}: {error}"]
            continue
        yield name, [{"shape": y.shape, "values": [float(f"{v:.6g}") for v in y.reshape(-1)]} for y in made]


if __name__ == "__main__":
    print(json.dumps(dict(recorded())))
