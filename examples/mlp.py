"""A multi-layer perceptron in twenty lines: two intertwined spirals."""

import numpy as np

import morok
from morok import Tensor, nn

morok.manual_seed(0)
angle = np.repeat(np.linspace(0.3, 2.5 * np.pi, 200), 2)
side = np.tile([1.0, -1.0], 200)
points = np.stack([angle * np.cos(angle) * side, angle * np.sin(angle) * side], axis=1)
x, y = Tensor(points.astype(np.float32) / 8), Tensor((side > 0).astype(np.int64))

model = nn.Sequential(nn.Linear(2, 64), Tensor.tanh, nn.Linear(64, 64), Tensor.tanh, nn.Linear(64, 2))
optimizer = nn.Adam(nn.parameters(model), lr=0.01)

for step in range(121):
    optimizer.zero_grad()
    loss = model(x).cross_entropy(y)
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        right = model(x).argmax(-1).eq(y).float().mean()
        print(f"step {step:3}  loss {loss.item():.3f}  right {right.item():.0%}")
