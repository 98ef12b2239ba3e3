"""Random models of branches, loops and scans, nested, with captured values and conditions from data."""

import random
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
SHAPE = (3,)


def _info(name: str, elem: int, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, elem, shape)


class Writer:
    """Writes nodes of one graph; floats that it may use are vectors of three, its own or those around it."""

    def __init__(self, rng: random.Random, floats: list[str], depth: int, prefix: str) -> None:
        self.rng, self.floats, self.depth, self.prefix = rng, list(floats), depth, prefix
        self.nodes: list[NodeProto] = []
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"{self.prefix}_{self.count}"

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names

    def constant(self, value: Any) -> str:
        return self.node("Constant", value=numpy_helper.from_array(np.asarray(value)))[0]

    def float(self) -> str:
        return self.rng.choice(self.floats)

    def steps(self, count: int) -> None:
        for _ in range(count):
            kinds = ["add", "mul", "tanh", "const"]
            if self.depth > 0:
                kinds += ["if", "loop", "while", "scan"] * 2
            getattr(self, "_" + self.rng.choice(kinds))()

    def _add(self) -> None:
        self.floats += self.node("Add", self.float(), self.float())

    def _mul(self) -> None:
        self.floats += self.node(
            "Mul", self.float(), self.constant(np.float32(self.rng.choice([0.5, -0.5, 2.0])))
        )

    def _tanh(self) -> None:
        self.floats += self.node("Tanh", self.float())

    def _const(self) -> None:
        self.floats.append(self.constant(np.array([self.rng.random() for _ in SHAPE * 3], np.float32)[:3]))

    def condition(self) -> str:
        """A truth: from data, from a shape, or known."""
        kind = self.rng.randrange(3)
        if kind == 0:
            total = self.node("ReduceSum", self.float(), keepdims=0)[0]
            return self.node("Less", total, self.constant(np.float32(self.rng.choice([-1, 0, 1]))))[0]
        if kind == 1:
            size = self.node("Size", self.float())[0]
            return self.node("Equal", size, self.constant(np.int64(self.rng.choice([3, 4]))))[0]
        return self.constant(np.bool_(self.rng.random() < 0.5))

    def inner(self) -> "Writer":
        return Writer(self.rng, self.floats, self.depth - 1, self.name())

    def _if(self) -> None:
        branches = []
        for _ in range(2):
            writer = self.inner()
            writer.steps(self.rng.randrange(1, 3))
            out = writer.node("Identity", writer.float())
            branches.append(helper.make_graph(writer.nodes, writer.prefix, [], [_info(out[0], F, SHAPE)]))
        self.floats += self.node("If", self.condition(), then_branch=branches[0], else_branch=branches[1])

    def _body(self, until: bool) -> GraphProto:
        writer = self.inner()
        at, going, state = writer.name(), writer.name(), writer.name()
        writer.floats.append(state)
        turns = writer.node("Cast", at, to=F)[0]
        writer.floats += writer.node("Add", state, turns)
        writer.steps(self.rng.randrange(1, 3))
        new = writer.node("Tanh", writer.float())[0]
        row = writer.node("Identity", writer.float())[0]
        if until:  # as long as a sum of the state is small
            total = writer.node("ReduceSum", new, keepdims=0)[0]
            more = writer.node("Less", total, writer.constant(np.float32(self.rng.choice([-0.5, 0.5, 9.0]))))[
                0
            ]
        else:
            more = writer.node("Identity", going)[0]
        inputs = [_info(at, I, ()), _info(going, B, ()), _info(state, F, SHAPE)]
        outputs = [_info(more, B, ()), _info(new, F, SHAPE), _info(row, F, SHAPE)]
        return helper.make_graph(writer.nodes, writer.prefix, inputs, outputs)

    def _rows(self, rows: str) -> None:
        """A vector of three from any number of rows."""
        self.floats += self.node("ReduceSum", rows, self.constant(np.array([0])), keepdims=0)

    def _loop(self) -> None:
        most = self.constant(np.int64(self.rng.choice([0, 1, 2, 5])))
        last, rows = self.node("Loop", most, "", self.float(), outputs=2, body=self._body(until=False))
        self.floats.append(last)
        self._rows(rows)

    def _while(self) -> None:
        most = self.constant(np.int64(self.rng.choice([3, 6])))
        going = self.constant(np.bool_(self.rng.random() < 0.8))
        last, rows = self.node("Loop", most, going, self.float(), outputs=2, body=self._body(until=True))
        self.floats.append(last)
        self._rows(rows)

    def _scan(self) -> None:
        writer = self.inner()
        state, part = writer.name(), writer.name()
        writer.floats += [state, part]
        writer.steps(self.rng.randrange(1, 3))
        new = writer.node("Add", state, part)[0]
        row = writer.node("Mul", writer.float(), part)[0]
        body = helper.make_graph(
            writer.nodes,
            writer.prefix,
            [_info(state, F, SHAPE), _info(part, F, SHAPE)],
            [_info(new, F, SHAPE), _info(row, F, SHAPE)],
        )
        wide = self.node("Unsqueeze", self.float(), self.constant(np.array([0])))[0]
        rows = self.node("Tile", wide, self.constant(np.array([self.rng.choice([1, 3, 4]), 1])))[0]
        last, made = self.node(
            "Scan", self.float(), rows, outputs=2, body=body, num_scan_inputs=1,
            scan_output_directions=[self.rng.randrange(2)],
        )  # fmt: skip
        self.floats.append(last)
        self._rows(made)


def model(seed: int) -> ModelProto:
    """A model of two inputs and one output."""
    rng = random.Random(seed)
    writer = Writer(rng, ["x", "y"], 2, "g")
    writer.steps(2)
    getattr(writer, "_" + rng.choice(["if", "loop", "while", "scan"]))()
    writer.steps(1)
    total = writer.floats[-1]
    for name in writer.floats[-4:-1]:
        total = writer.node("Add", total, name)[0]
    out = writer.node("Identity", total)[0]
    graph = helper.make_graph(
        writer.nodes, f"bodies {seed}", [_info("x", F, SHAPE), _info("y", F, SHAPE)], [_info(out, F, SHAPE)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def inputs(seed: int) -> list[dict[str, Any]]:
    """Two sets of inputs."""
    rng = np.random.default_rng(seed)
    pairs = [rng.standard_normal((2, 3)).astype(np.float32) for _ in range(2)]
    return [{"x": x, "y": y} for x, y in pairs]


if __name__ == "__main__":  # python -m tests.onnx.bodies > tests/onnx/bodies.json: what ONNX Runtime computes
    import json

    import onnxruntime

    found: dict[str, Any] = {}
    for number in range(56):
        session = onnxruntime.InferenceSession(
            model(number).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        rows = [session.run(None, feeds)[0] for feeds in inputs(number)]
        found[str(number)] = [[float(v) for v in row] for row in rows]
    print(json.dumps(found))
