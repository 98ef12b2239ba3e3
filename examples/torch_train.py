"""A model of PyTorch's learns through morok: the loss of every few steps beside eager PyTorch's.

Needs torch (`pip install 'morok[torch]'`). The model tells apart two spirals, as in `mlp.py`.
"""

import copy

import torch
from torch import nn

import morok.torch  # where morok is installed, backend="morok" needs no import

torch.manual_seed(0)
turns = torch.rand(256, 1) * 6
side = torch.arange(256).remainder(2).unsqueeze(1)
angle = turns + side * torch.pi
points = torch.cat((angle.cos(), angle.sin()), 1) * turns / 6
labels = side.squeeze(1)


def train(model: nn.Module, run: object, steps: int = 60) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(points), labels)  # type: ignore[operator]
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


model = nn.Sequential(
    nn.Linear(2, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 2)
)
twin = copy.deepcopy(model)
compiled = torch.compile(twin, backend=morok.torch.morok, fullgraph=True)
ours, eager = train(twin, compiled), train(model, model)
for step in range(0, len(ours), 10):
    print(f"step {step:3}  morok {ours[step]:.5f}  eager {eager[step]:.5f}")
print(f"last      morok {ours[-1]:.5f}  eager {eager[-1]:.5f}")
