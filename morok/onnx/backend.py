"""The interface of ONNX's own test suite and of its scoreboard: `prepare`, `run_model`, `run_node`."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

from morok.errors import UnsupportedModel
from morok.onnx.model import Model, load


@final
class MorokRep(BackendRep):
    """A prepared model."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        feeds = (
            inputs
            if isinstance(inputs, dict)
            else dict(zip([p.name for p in self.model.inputs], inputs, strict=False))
        )
        try:
            return tuple(
                np.asarray(v) if isinstance(v, np.generic) else v for v in self.model.run(None, feeds)
            )
        except UnsupportedModel as error:
            raise BackendIsNotSupposedToImplementIt(str(error)) from error


@final
class MorokBackend(Backend):
    """morok, as ONNX calls a backend."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        return cls.supports_device(device) and not load(model).missing

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> MorokRep:
        onnx.checker.check_model(model)
        try:
            loaded = load(model, symbolic=kwargs.get("symbolic", True))
        except UnsupportedModel as error:
            raise BackendIsNotSupposedToImplementIt(str(error)) from error
        if loaded.missing:
            raise BackendIsNotSupposedToImplementIt(f"there is no {', '.join(loaded.missing)}")
        return MorokRep(loaded)

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        given = [np.asarray(x) for x in inputs]
        names = [n for n in node.input if n]
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in zip(names, given, strict=True)
        ]
        outputs = [helper.make_empty_tensor_value_info(n) for n in node.output]
        model = helper.make_model(helper.make_graph([node], "node", infos, outputs), **kwargs)
        return MorokRep(load(model)).run(given)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return bool(Device(device).type == DeviceType.CPU)


is_compatible = MorokBackend.is_compatible
prepare = MorokBackend.prepare
run_model = MorokBackend.run_model
run_node = MorokBackend.run_node
supports_device = MorokBackend.supports_device
