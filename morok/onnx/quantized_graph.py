"""Graphs that quantisers have written: a product between DequantizeLinear and QuantizeLinear takes integers.

The law is Σ (x - a) s · (w - b) t = s t Σ (x - a)(w - b): scales come out of a sum of products, and so does a
bias in the scale s t. What is left is a sum of integers, which is exact, and one rounding at its end. The
operators for it are QLinearConv, QLinearMatMul and com.microsoft's QGemm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from morok.onnx.graph import Node, Program
from morok.onnx.values import Host

_OLDEST = 10  # version of the operators that there are integers for
_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))


def integer_products(program: Program, constants: dict[str, Host]) -> list[Node]:
    """The program's nodes with integers in place of what the law applies to; constants may be added."""
    nodes = program.nodes
    if program.scope.version("") < _OLDEST or not any(n.op == "QuantizeLinear" for n in nodes):
        return nodes
    makers = {name: node for node in nodes for name in node.outputs if name}
    readers: dict[str, int] = {}
    for name in (*program.outputs, *(n for node in nodes for n in (*node.inputs, *node.captures))):
        readers[name] = readers.get(name, 0) + 1
    changed: dict[int, Node] = {}
    for last in nodes:
        product = makers.get(last.inputs[0]) if last.op == "QuantizeLinear" and not last.domain else None
        if product is None or product.op not in _RULES or product.domain or readers[last.inputs[0]] != 1:
            continue
        made = _rewritten(product, last, makers, constants)
        if made is not None:
            changed[last.index] = Node(made, last.index, program.scope)
    return _live([changed.get(n.index, n) for n in nodes], program.outputs) if changed else nodes


def _rewritten(product: Node, last: Node, makers: dict[str, Node], constants: dict[str, Host]) -> Any:
    """The operator on integers for a product and the QuantizeLinear behind it, or None."""
    left = _dequantised(product.inputs[0], makers, constants)
    right = _dequantised(product.inputs[1], makers, constants)
    if left is None or right is None or not _plain(last, constants) or left[1].array.size != 1:
        return None
    weights = constants.get(right[0])
    if right[1].array.size != 1 and weights is None:
        return None
    x, w = makers[product.inputs[0]].inputs, makers[product.inputs[1]].inputs
    bias: list[str] = []
    if len(product.inputs) > 2 and product.inputs[2]:
        found = _bias(product.inputs[2], makers, constants, left[1].array * right[1].array)
        if found is None:
            return None
        bias = [found]
    axis = makers[product.inputs[1]].attributes.get("axis", 1)
    ndim = 0 if weights is None else weights.array.ndim
    across = None if right[1].array.size == 1 else axis % ndim if ndim else -1
    rule = _RULES[product.op](product, across, ndim)
    if rule is None:
        return None
    op, domain, attributes = rule
    operands = [x[0], x[1], x[2], w[0], w[1], w[2]]
    ends = [last.inputs[1], last.inputs[2]]
    order = [*operands, *(bias or [""]), *ends] if op == "QGemm" else [*operands, *ends, *bias]
    return helper.make_node(op, order, last.outputs, product.name, domain=domain, **attributes)


def _dequantised(name: str, makers: dict[str, Node], constants: dict[str, Host]) -> tuple[str, Host] | None:
    """The integers of 8 bits behind a DequantizeLinear, and their scale, if both and the zero are known."""
    node = makers.get(name)
    if node is None or node.op != "DequantizeLinear" or node.domain or not _plain(node, constants):
        return None
    return node.inputs[0], constants[node.inputs[1]]


def _plain(node: Node, constants: dict[str, Host]) -> bool:
    """Whether a scale of float32 and a zero point of 8 bits are constants, and nothing else is asked for."""
    if len(node.inputs) != 3 or set(node.attributes) - {"axis"}:
        return False
    scale, zero = constants.get(node.inputs[1]), constants.get(node.inputs[2])
    if scale is None or zero is None or scale.array.dtype != np.float32 or scale.array.ndim > 1:
        return False
    single = node.op == "DequantizeLinear" or scale.array.size == 1
    return single and zero.array.dtype in _BYTES and zero.array.shape == scale.array.shape


def _bias(name: str, makers: dict[str, Node], constants: dict[str, Host], scale: Any) -> str | None:
    """The integers of a bias whose scale is that of the products."""
    node = makers.get(name)
    if node is None or node.op != "DequantizeLinear" or set(node.attributes) - {"axis"}:
        return None
    own, zero = constants.get(node.inputs[1]), node.inputs[2] if len(node.inputs) > 2 else ""
    held = constants.get(node.inputs[0])
    if own is None or held is None or held.array.dtype != np.int32 or held.array.ndim != 1:
        return None
    if zero and (zero not in constants or constants[zero].array.any()):
        return None
    fits = np.allclose(own.array.reshape(-1), scale.reshape(-1), rtol=1e-6, atol=0)
    return node.inputs[0] if fits else None


def _conv(product: Node, across: int | None, ndim: int) -> tuple[str, str, dict[str, Any]] | None:
    return ("QLinearConv", "", product.attributes) if across in (None, 0) else None


def _matmul(product: Node, across: int | None, ndim: int) -> tuple[str, str, dict[str, Any]] | None:
    return ("QLinearMatMul", "", {}) if across is None or (ndim == 2 and across == 1) else None


def _gemm(product: Node, across: int | None, ndim: int) -> tuple[str, str, dict[str, Any]] | None:
    given = dict(product.attributes)
    turned = given.get("transB", 0)
    if given.pop("beta", 1.0) != 1.0 or given.get("alpha", 1.0) != 1.0:
        return None
    fits = across is None or across == (0 if turned else 1)
    return ("QGemm", "com.microsoft", given) if fits else None


_RULES = {"Conv": _conv, "MatMul": _matmul, "Gemm": _gemm}


def _live(nodes: list[Node], outputs: list[str]) -> list[Node]:
    """Without what nobody reads any more."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if wanted & set(node.outputs) or not node.outputs:
            kept.append(node)
            wanted |= {*node.inputs, *node.captures}
    return kept[::-1]
