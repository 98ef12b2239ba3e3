"""A decoder: tokens to logits, with the keys and values of all tokens so far in a cache.

One description serves all architectures; `Config` says by what they differ. Positions are a `Variable`, so
that one compiled plan serves a token at any position, and another one a chunk of a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from morok import dtype as dt
from morok.errors import FormatError
from morok.llm.cache import Attended, Cache, Next, Stretch, Together, new_cache
from morok.llm.config import Config
from morok.llm.matrix import FEW_ROWS, Matrix, Packed, Stack, below_each_other
from morok.llm.rotary import Turns, rotate, turns
from morok.machine.devices import machine_of
from morok.tensor.sizes import concrete
from morok.tensor.tensor import Tensor


@final
@dataclass(frozen=True)
class Linear:
    """A matrix and perhaps a bias."""

    weight: Matrix
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        found = self.weight.product(x)
        return found if self.bias is None else found + self.bias

    def of(self, x: Tensor) -> Tensor:
        """The same of what is only multiplied: kept, unless a grid makes bytes of a few rows, where each
        number is computed once as well."""
        few = isinstance(self.weight, Packed) and concrete(x.shape[0]) <= FEW_ROWS
        return self(x if few and machine_of(x.device).block_threads else x.contiguous())


def joined(linears: list[Linear]) -> list[Linear]:
    """Linear maps of the same numbers as one where a grid would start a kernel for each; else as they are."""
    weight = below_each_other([linear.weight for linear in linears])
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if weight is None or len(biases) not in (0, len(linears)):
        return linears
    return [Linear(weight, Tensor.cat(*biases).contiguous().realize() if biases else None)]


@final
@dataclass(frozen=True)
class Norm:
    """A norm over the last axis: with means and a bias, or by the root mean square."""

    eps: float
    weight: Tensor
    bias: Tensor | None = None
    means: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        if self.means:
            return x.layer_norm(-1, self.weight, self.bias, self.eps)
        return x.rms_norm(-1, self.weight, self.eps)

    def before(self, linears: list[Linear], x: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers, and what linear maps read of them. That is kept; but of a few rows on a grid bytes are
        made of the numbers themselves: of one row in the kernel that finds its norm."""
        only = linears[0].weight if len(linears) == 1 else None
        few = concrete(x.shape[0]) <= FEW_ROWS
        if isinstance(only, Packed) and few and machine_of(x.device).block_threads:
            x = x.contiguous()
            return x, self(x)
        return x, self(x).contiguous()

    def after(self, x: Tensor) -> Tensor:
        """Of what a linear map has made. A grid's threads share its rows, so it is kept."""
        return self(x.contiguous() if machine_of(x.device).block_threads else x)


@final
class Parts:
    """Weights by name, with one sentence for what is missing or has another shape."""

    def __init__(self, config: Config, found: Mapping[str, Any]) -> None:
        self.config, self.found = config, found

    def has(self, name: str) -> bool:
        return name in self.found

    def vector(self, name: str, size: int) -> Tensor:
        value = self.found.get(name)
        if not isinstance(value, Tensor) or tuple(value.shape) != (size,):
            raise self._missing(name, (size,), value)
        return value

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        value = self.found.get(name)
        if value is None or isinstance(value, Tensor | Stack) or value.shape != (rows, columns):
            raise self._missing(name, (rows, columns), value)
        found: Matrix = value
        return found

    def matrices(self, name: str, count: int, rows: int, columns: int) -> Stack:
        value = self.found.get(name)
        if not isinstance(value, Stack) or (value.count, *value.shape) != (count, rows, columns):
            raise self._missing(name, (count, rows, columns), value)
        return value

    def linear(self, name: str, rows: int, columns: int) -> Linear:
        bias = self.vector(f"{name}.bias", rows) if self.has(f"{name}.bias") else None
        return Linear(self.matrix(f"{name}.weight", rows, columns), bias)

    def norm(self, name: str, size: int) -> Norm:
        bias = self.vector(f"{name}.bias", size) if self.has(f"{name}.bias") else None
        return Norm(self.config.eps, self.vector(f"{name}.weight", size), bias, self.config.layer_norm)

    def optional_norm(self, name: str, size: int) -> Norm | None:
        return self.norm(name, size) if self.has(f"{name}.weight") else None

    def _missing(self, name: str, wanted: tuple[int, ...], value: object) -> FormatError:
        shape = (value.count, *value.shape) if isinstance(value, Stack) else getattr(value, "shape", None)
        what = "is missing" if value is None else f"has the shape {shape}"
        return FormatError(f"the model's tensor {name!r} {what}; {wanted} is needed")


@final
class Attention:
    """Queries of all heads against the keys of all positions so far."""

    def __init__(self, parts: Parts, name: str, layer: int) -> None:
        self.config = c = parts.config
        self.window = c.window if c.has_window(layer) else 0
        rows = (c.heads * c.head, c.groups * c.head, c.groups * c.head)
        names = [f"{name}.attn_{kind}" for kind in "qkv"]
        if parts.has(f"{name}.attn_qkv.weight"):
            self.into = [parts.linear(f"{name}.attn_qkv", sum(rows), c.width)]
        else:
            self.into = joined([parts.linear(n, m, c.width) for n, m in zip(names, rows, strict=True)])
        self.joined = len(self.into) == 1
        self.out = parts.linear(f"{name}.attn_output", c.width, c.heads * c.head)
        self.q_norm = parts.optional_norm(f"{name}.attn_q_norm", c.head)
        self.k_norm = parts.optional_norm(f"{name}.attn_k_norm", c.head)

    def __call__(
        self, x: Tensor, cache: Cache, step: Next, turned: Turns | None, mask: Tensor | None
    ) -> Tensor:
        q, k, v = self._heads(x, step.count)
        if self.q_norm is not None:
            q = self.q_norm(q)
        if self.k_norm is not None:
            k = self.k_norm(k)
        if turned is not None:
            cosines, sines = (t if len(t.shape) == 3 else t.unsqueeze(1) for t in turned)
            q, k = rotate(q, cosines, sines), rotate(k, cosines, sines)
        seen = self._mix(step.attend(self.config, cache, (q, k, v), mask))
        return self.out(step.rows(self.config, seen).contiguous())

    def _heads(self, x: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as (rows, heads, numbers)."""
        c = self.config
        counts = (c.heads, c.groups, c.groups)
        found = [linear(x).contiguous() for linear in self.into]  # and not within what writes to a cache
        if self.joined:
            found = list(found[0].split([n * c.head for n in counts], dim=1))
        q, k, v = (f.reshape(rows, n, c.head) for f, n in zip(found, counts, strict=True))
        return q, k, v

    def _mix(self, a: Attended) -> Tensor:
        """Scores, their powers and what these weigh are kept: each is needed as a whole by the next one, and
        of a length that is not known they could not stay in registers. Threads of a grid find their shares in
        one kernel."""
        c = self.config
        scores = (a.queries @ a.keys.transpose(-1, -2)) * c.score_scale
        if c.score_cap:
            scores = (scores / c.score_cap).tanh() * c.score_cap
        if a.mask is not None:
            scores = a.mask.where(scores, float("-inf"))
        scores = scores.contiguous()
        if machine_of(a.keys.device).block_threads:
            return scores.softmax(-1).contiguous() @ a.values
        powers = (scores - scores.max(-1, keepdim=True).contiguous()).exp().contiguous()
        return (powers @ a.values) / powers.sum(-1, keepdim=True)


@final
class Gated:
    """down(act(gate(x)) · up(x)), or down(act(up(x)))."""

    def __init__(self, parts: Parts, name: str) -> None:
        c = parts.config
        self.config = c
        self.joined = c.gated and not parts.has(f"{name}.ffn_gate.weight")
        wide = 2 * c.hidden if self.joined else c.hidden
        self.gate = None if self.joined or not c.gated else parts.linear(f"{name}.ffn_gate", wide, c.width)
        self.up = parts.linear(f"{name}.ffn_up", wide, c.width)
        self.down = parts.linear(f"{name}.ffn_down", c.width, c.hidden)
        self.into = [self.up] if self.gate is None else [self.gate, self.up]

    def __call__(self, x: Tensor) -> Tensor:
        act = self.config.activation
        up = self.up(x)
        if self.joined:
            gate, up = up.contiguous().split([self.config.hidden] * 2, dim=1)
            return self.down.of(activation(act, gate) * up)
        if self.gate is None:
            return self.down.of(activation(act, up))
        return self.down.of(activation(act, self.gate(x)) * up)


@final
class Experts:
    """Several gated maps, of which a router chooses a few for each token."""

    def __init__(self, parts: Parts, name: str) -> None:
        c = parts.config
        self.config = c
        self.router = parts.linear(f"{name}.ffn_gate_inp", c.experts, c.width)
        self.into: list[Linear] = []  # any of them
        sizes = (("gate", c.experts_hidden, c.width), ("up", c.experts_hidden, c.width))
        self.gate, self.up = (
            parts.matrices(f"{name}.ffn_{kind}_exps.weight", c.experts, rows, columns)
            for kind, rows, columns in sizes
        )
        self.down = parts.matrices(f"{name}.ffn_down_exps.weight", c.experts, c.width, c.experts_hidden)

    def __call__(self, x: Tensor) -> Tensor:
        c = self.config
        shares = self.router(x).softmax(-1).contiguous()
        best, places = shares.topk(c.experts_used, dim=-1)
        if c.normalized_experts:
            best = best / best.sum(-1, keepdim=True)
        if concrete(x.shape[0]) * c.experts_used < c.experts:
            return self._chosen(x, best.contiguous(), places.contiguous())
        share = (places.one_hot(c.experts).cast(dt.float32) * best.unsqueeze(-1)).sum(1).contiguous()
        total: Tensor | None = None
        for i in range(c.experts):
            found = self._expert(x, i) * share[:, i : i + 1]
            total = found if total is None else total + found
        assert total is not None
        return total

    def _chosen(self, x: Tensor, best: Tensor, places: Tensor) -> Tensor:
        """Few tokens: row by row, the experts that were chosen, and no others are read."""
        rows = []
        for row in range(concrete(x.shape[0])):
            one, shares = x[row : row + 1], best[row : row + 1]
            used = range(self.config.experts_used)
            found = [self._expert(one, places[row, i]) * shares[:, i : i + 1] for i in used]
            rows.append(sum(found[1:], found[0]))
        return rows[0] if len(rows) == 1 else Tensor.cat(*rows, dim=0)

    def _expert(self, x: Tensor, place: int | Tensor) -> Tensor:
        gate, up, down = (stack.at(place) for stack in (self.gate, self.up, self.down))
        inner = activation(self.config.activation, gate.product(x)) * up.product(x)
        return down.product(inner.contiguous())


def activation(name: str, x: Tensor) -> Tensor:
    if name == "silu":
        return x.silu()
    return x.gelu("tanh" if name == "gelu_tanh" else "none")


@final
class Layer:
    """Attention and a gated map, each on what a norm has made and added to what was there."""

    def __init__(self, parts: Parts, layer: int) -> None:
        name, width = f"blk.{layer}", parts.config.width
        self.windowed = parts.config.has_window(layer)
        self.attention_norm = parts.norm(f"{name}.attn_norm", width)
        self.attention = Attention(parts, name, layer)
        self.attention_after = parts.optional_norm(f"{name}.post_attention_norm", width)
        self.map_norm = parts.norm(f"{name}.ffn_norm", width)
        self.map = Experts(parts, name) if parts.config.experts else Gated(parts, name)
        self.map_after = parts.optional_norm(f"{name}.post_ffw_norm", width)

    def __call__(
        self, x: Tensor, cache: Cache, step: Next, turned: Turns | None, mask: Tensor | None
    ) -> Tensor:
        x, found = self.attention_norm.before(self.attention.into, x)
        found = self.attention(found, cache, step, turned, mask)
        x = x + (found if self.attention_after is None else self.attention_after.after(found))
        x, found = self.map_norm.before(self.map.into, x)
        found = self.map(found)
        return x + (found if self.map_after is None else self.map_after.after(found))


@final
class Decoder:
    """The whole model. `longest` is how many positions a cache has."""

    def __init__(
        self, config: Config, found: Mapping[str, Any], longest: int, slack: int, device: str | None = None
    ) -> None:
        parts = Parts(config, found)
        self.config, self.longest, self.room, self.device = config, longest, longest + slack, device
        self.table = parts.matrix("token_embd.weight", config.vocabulary, config.width)
        self.layers = [Layer(parts, i) for i in range(config.layers)]
        self.norm = parts.norm("output_norm", config.width)
        tied = not parts.has("output.weight")
        self.head = Linear(
            self.table if tied else parts.matrix("output.weight", config.vocabulary, config.width)
        )
        self.places = None
        if config.rotation is None:
            wanted = parts.matrix("position_embd.weight", config.context, config.width)
            self.places = (
                wanted.rows(Tensor.arange(longest, device=device)).pad(((0, slack), (0, 0))).realize()
            )
        self.turns = None if config.rotation is None else turns(config.rotation, self.room, device, longest)
        local = config.local_rotation
        self.local_turns = self.turns if local is None else turns(local, self.room, device, longest)

    def caches(self, kind: str = "float32", texts: int = 1) -> list[Cache]:
        """Room for the keys and values of all layers."""
        return [new_cache(self.config, texts, self.room, kind, self.device) for _ in self.layers]

    def rows(self, tokens: Tensor, caches: list[Cache], step: Next) -> Tensor:
        """What the layers make of some tokens: (tokens, width)."""
        c = self.config
        x = self.table.rows(tokens)
        if c.embedding_scale != 1.0:
            x = x * c.embedding_scale
        if self.places is not None:
            x = x + step.places(self.places)
        x = x.contiguous()
        turned = {
            w: None if t is None else step.turned(t)
            for w, t in ((False, self.turns), (True, self.local_turns))
        }
        windows = {la.windowed for la in self.layers}
        masks = {w: step.mask(c.window if w else 0, self.device) for w in windows}
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache, step, turned[layer.windowed], masks[layer.windowed])
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Rows to logits of the next token."""
        found = self.head(self.norm.before([self.head], x)[1])
        cap = self.config.logit_cap
        return (found / cap).tanh() * cap if cap else found

    def token(self, token: Tensor, caches: list[Cache], text: Any, at: Any) -> Tensor:
        """The logits after one more token of a text, at a position."""
        return self.logits(self.rows(token, caches, Stretch(text, at, 1)))[0]

    def chunk(self, tokens: Tensor, caches: list[Cache], text: Any, at: Any, pick: Any) -> Tensor:
        """The logits after one token of a chunk of a prompt; what comes after it is not looked at."""
        step = Stretch(text, at, concrete(tokens.shape[0]))
        return self.logits(self.rows(tokens, caches, step)[pick : pick + 1])[0]

    def score(self, tokens: Tensor, caches: list[Cache], text: Any, at: Any) -> Tensor:
        """The logits after each token of a chunk."""
        step = Stretch(text, at, concrete(tokens.shape[0]))
        return self.logits(self.rows(tokens, caches, step))

    def together(self, tokens: Tensor, caches: list[Cache], positions: Tensor, last: Any) -> Tensor:
        """The logits after one more token of every text: (texts, vocabulary)."""
        return self.logits(self.rows(tokens, caches, Together(positions, last)))
