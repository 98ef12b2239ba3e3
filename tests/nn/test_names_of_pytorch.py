"""Layers by the names that PyTorch gives their arguments, and models that say `forward`."""

from typing import Any

import numpy as np
import pytest

from morok import Tensor, nn
from morok.errors import ArgumentError, MorokError

LAYERS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "Linear": ({"in_features": 3, "out_features": 4, "bias": False}, (2, 3)),
    "Conv1d": ({"in_channels": 2, "out_channels": 4, "kernel_size": 3}, (1, 2, 6)),
    "Conv2d": ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "padding": 1}, (1, 2, 5, 5)),
    "ConvTranspose2d": ({"in_channels": 2, "out_channels": 4, "kernel_size": 2}, (1, 2, 5, 5)),
    "BatchNorm2d": ({"num_features": 2}, (1, 2, 3, 3)),
    "LayerNorm": ({"normalized_shape": 3, "elementwise_affine": False}, (2, 3)),
    "RMSNorm": ({"normalized_shape": (3,)}, (2, 3)),
    "GroupNorm": ({"num_groups": 2, "num_channels": 4}, (1, 4, 3)),
    "InstanceNorm1d": ({"num_features": 2}, (1, 2, 3)),
    "RNN": ({"input_size": 3, "hidden_size": 5, "num_layers": 2}, (4, 1, 3)),
    "LSTM": ({"input_size": 3, "hidden_size": 5, "num_layers": 2, "bidirectional": True}, (4, 1, 3)),
    "GRU": ({"input_size": 3, "hidden_size": 5}, (4, 1, 3)),
    "LSTMCell": ({"input_size": 3, "hidden_size": 5}, (2, 3)),
    "RNNCell": ({"input_size": 3, "hidden_size": 5}, (2, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer(name: str) -> None:
    given, shape = LAYERS[name]
    layer = getattr(nn, name)(**given)
    found = layer(Tensor.ones(*shape))
    found = found[0] if isinstance(found, tuple) else found
    assert np.isfinite(found.numpy()).all()


def test_tables() -> None:
    table = nn.Embedding(num_embeddings=5, embedding_dim=3, padding_idx=0)
    assert table(Tensor([[0, 4]])).shape == (1, 2, 3) and not table.weight[0].numpy().any()
    assert nn.EmbeddingBag(num_embeddings=5, embedding_dim=3)(Tensor([[0, 4]])).shape == (1, 3)
    assert nn.Bilinear(in1_features=2, in2_features=3, out_features=4)(
        Tensor.ones(5, 2), Tensor.ones(5, 3)
    ).shape == (5, 4)


def test_both_names_of_an_argument() -> None:
    with pytest.raises(ArgumentError, match="in_features and inputs are one argument"):
        nn.Linear(in_features=3, inputs=3, outputs=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="in_feature"):
        nn.Linear(in_feature=3, outputs=2)  # type: ignore[call-arg]


def test_a_model_that_says_forward() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.first = nn.Linear(in_features=2, out_features=3)  # type: ignore[call-arg]
            self.scale = Tensor([2.0], requires_grad=True)
            self.seen = Tensor([0.0])

        def forward(self, x: Tensor, times: float = 1.0) -> Tensor:
            return self.first(x).relu() * self.scale * times

    net = Net()
    x = Tensor.ones(4, 2)
    np.testing.assert_allclose(net(x, times=3.0).numpy(), 3 * net(x).numpy(), rtol=1e-6)
    assert [name for name, _ in net.named_parameters()] == ["first.weight", "first.bias", "scale"]
    net(x).sum().backward()
    assert net.scale.grad is not None
    net.zero_grad()
    assert net.scale.grad is None
    with pytest.raises(MorokError, match="neither __call__ nor forward"):
        nn.Module()(x)
