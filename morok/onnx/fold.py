"""What does not depend on the inputs is computed once, when a model is first called.

Nodes on constants are computed by the compiler itself, together, and their results are constants. A batch
norm behind a convolution becomes weights: w · s and (b - mean) · s + bias, with s = scale / sqrt(var + eps).
Before that, products between DequantizeLinear and QuantizeLinear become products of integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from morok.errors import MorokError
from morok.onnx.fold_codes import by_numpy
from morok.onnx.graph import Node, Program
from morok.onnx.quantized_graph import integer_products
from morok.onnx.run import Env, Tracer
from morok.onnx.sizes import tensors_in
from morok.onnx.table import NeedSteps, NeedValue
from morok.onnx.types import Array
from morok.onnx.values import Coded, Host, to_user
from morok.tensor.tensor import Tensor

_RANDOM = frozenset(
    (
        "RandomNormal",
        "RandomUniform",
        "RandomNormalLike",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
        "Dropout",
    )
)
_GROWS = frozenset(
    ("ConstantOfShape", "Expand", "Tile", "Range", "EyeLike")
)  # small in the file, large in memory


def folded(program: Program, name: str) -> Program:
    """The program, without what can be computed before."""
    constants = dict(program.constants)
    _scales_apart(program)
    nodes = integer_products(program, constants)
    nodes = _constants(nodes, constants, program, name)
    nodes = _batch_norms(nodes, constants, program)
    if len(nodes) == len(program.nodes):
        return program
    return Program(nodes, program.inputs, program.outputs, constants, program.scope, program.infos)


def _scales_apart(program: Program) -> None:
    """Scales and zero points of quantised numbers differ in every layer: they are read, not compiled in."""
    for node in program.nodes:
        if node.op.startswith(("Quantize", "Dequantize", "QLinear", "QGemm")):
            for name in node.inputs[1:]:
                host = program.constants.get(name)
                if host is not None and host.array.size == 1 and host.array.any():
                    host.apart = True


def _constants(nodes: list[Node], constants: dict[str, Host], program: Program, name: str) -> list[Node]:
    """Compute nodes on constants in one plan; the rest of the nodes is left."""
    env: Env = dict(constants)
    tracer = Tracer(name)
    known = set(constants)
    left: list[Node] = []
    made: list[str] = []
    numbers: dict[str, Host] = {}  # that need no kernel
    read = {n for node in nodes for n in (*node.inputs, *node.captures)} | set(program.outputs)
    for node in nodes:
        ready = all(n in known for n in node.inputs if n) and not node.captures
        if not ready or node.op in _RANDOM or node.op in _GROWS or not node.outputs:
            left.append(node)
            continue
        array = by_numpy(node, env) if node.outputs[0] in read else None
        if array is not None:
            env[node.outputs[0]] = numbers[node.outputs[0]] = Host(array, lasting=True)
            known.add(node.outputs[0])
            continue
        try:
            tracer.node(program, node, env)
        except (NeedValue, NeedSteps, MorokError):
            left.append(node)
            continue
        if any(not isinstance(env[n], Tensor | Host | Coded) or _symbolic(env[n]) for n in node.outputs if n):
            left.append(node)
            continue
        known.update(n for n in node.outputs if n)
        made += [n for n in node.outputs if n]
    wanted = {n for node in left for n in (*node.inputs, *node.captures)} | set(program.outputs)
    live = [n for n in made if n in wanted]
    tensors = [t for n in live for t in tensors_in(env[n])]
    if tensors:
        tensors[0].realize(*tensors[1:])
    for n in live:
        value = env[n]
        elem = value.elem if isinstance(value, Host | Coded) else None
        constants[n] = Host(np.asarray(to_user(value)), elem, lasting=True)
    constants.update((n, host) for n, host in numbers.items() if n in wanted)
    return left


def _symbolic(value: Any) -> bool:
    return isinstance(value, Host) and value.symbolic


# --- convolution, then batch norm


def _batch_norms(nodes: list[Node], constants: dict[str, Host], program: Program) -> list[Node]:
    readers: dict[str, int] = {}
    for node in nodes:
        for n in (*node.inputs, *node.captures):
            readers[n] = readers.get(n, 0) + 1
    for n in program.outputs:
        readers[n] = readers.get(n, 0) + 1
    makers = {node.outputs[0]: node for node in nodes if node.op == "Conv" and node.domain == ""}
    gone: set[int] = set()
    changed: dict[int, Node] = {}
    for norm in nodes:
        conv = makers.get(norm.inputs[0]) if norm.op == "BatchNormalization" and norm.inputs else None
        if conv is None or readers[conv.outputs[0]] != 1 or not _fits(conv, norm, constants):
            continue
        weight, bias = _joined(conv, norm, constants)
        names = f"{conv.inputs[1]}·{norm.name}", f"bias·{norm.name}"
        constants[names[0]], constants[names[1]] = weight, bias
        changed[conv.index] = conv.with_ports([conv.inputs[0], *names], [norm.outputs[0]])
        gone.add(norm.index)
    return [changed.get(node.index, node) for node in nodes if node.index not in gone]


def _fits(conv: Node, norm: Node, constants: dict[str, Host]) -> bool:
    """Whether all weights are constants of float32, and the norm is not one of training."""
    names = [*conv.inputs[1:], *norm.inputs[1:5]]
    if len(norm.inputs) != 5 or any(norm.outputs[1:]) or norm.attributes.get("training_mode"):
        return False
    if not norm.attributes.get("spatial", 1):
        return False
    return all(n in constants and constants[n].array.dtype == np.float32 for n in names if n)


def _joined(conv: Node, norm: Node, constants: dict[str, Host]) -> tuple[Host, Host]:
    def wide(name: str) -> Array:
        return constants[name].array.astype(np.float64)

    scale, shift, mean, var = (wide(n) for n in norm.inputs[1:5])
    factor = scale / np.sqrt(var + norm.attributes.get("epsilon", 1e-5))
    w = wide(conv.inputs[1])
    b = wide(conv.inputs[2]) if len(conv.inputs) > 2 and conv.inputs[2] else 0.0
    weight = w * factor.reshape((-1,) + (1,) * (w.ndim - 1))
    bias = (b - mean) * factor + shift
    return Host(weight.astype(np.float32), lasting=True), Host(bias.astype(np.float32), lasting=True)
