"""EAGLE-3, and layers of other heads, straight from the formulas: everything computed anew each time, no cache.

Tensors bear SafeAILab's names. Written from the paper (arXiv 2503.01840) and the published code's order of steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


def layer_shapes(layer: str, hidden: int, inputs: int, q: int, kv: int, mlp: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's tensors; `inputs` is the width that attention reads."""
    shapes: dict[str, tuple[int, ...]] = {
        f"{layer}{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")
    }
    rows = dict(zip("qkv", (q, kv, kv), strict=True))
    shapes |= {f"{layer}self_attn.{x}_proj.weight": (n, inputs) for x, n in rows.items()}
    shapes |= {f"{layer}self_attn.o_proj.weight": (hidden, q), f"{layer}mlp.down_proj.weight": (hidden, mlp)}
    return shapes | {f"{layer}mlp.{part}_proj.weight": (mlp, hidden) for part in ("gate", "up")}


@dataclass
class Formulas:
    """One head. `states`: the target's hidden states that go into fc, each [n, Ht]."""

    tensors: dict[str, Tensor]
    heads: int
    kv_heads: int
    embed: Tensor
    lm_head: Tensor
    inverse_frequencies: Tensor
    eps: float = 1e-5
    norm_before_residual: bool = False
    norm_output: bool = False
    windows: tuple[int | None, ...] = (None,)  # one a layer

    def fused(self, states: list[Tensor]) -> Tensor:
        if "fc.weight" not in self.tensors:
            return states[0]
        if "fc_norm.0.weight" in self.tensors:
            states = [self.norm(state, self.tensors[f"fc_norm.{i}.weight"]) for i, state in enumerate(states)]
        joined = torch.cat(states, dim=-1)
        if "input_norm.weight" in self.tensors:
            joined = self.norm(joined, self.tensors["input_norm.weight"])
        return joined @ self.tensors["fc.weight"].T

    def draft(self, tokens: list[int], features: Tensor, path: list[int]) -> Tensor:
        """Draft logits [Vd] after `tokens` (one more than features) and a drafted path."""
        rows, output = list(features), None
        for token in [None, *path]:
            if token is not None:
                rows.append(output)
                tokens = [*tokens, token]
            hidden = self.outputs(self.embed[tokens[1:]], torch.stack(rows))[-1]
            normed = self.norm(hidden, self.tensors["norm.weight"])
            output = normed if self.norm_output else hidden
        return normed @ self.lm_head.T

    def outputs(self, embeds: Tensor, features: Tensor) -> Tensor:
        """Before the last norm, of rows that all see those before them."""
        normed = self.norm(features, self.tensors["midlayer.hidden_norm.weight"])
        x = torch.cat((self.norm(embeds, self.tensors["midlayer.input_layernorm.weight"]), normed), dim=-1)
        attended = self.attention(x, "midlayer.", self.windows[0])
        x = self.mixed((normed if self.norm_before_residual else features) + attended, "midlayer.")
        for number, window in enumerate(self.windows[1:], 1):
            layer = f"layers.{number}."
            attended = self.attention(self.norm(x, self.tensors[f"{layer}input_layernorm.weight"]), layer, window)
            x = self.mixed(x + attended, layer)
        return x

    def mixed(self, y: Tensor, layer: str) -> Tensor:
        gate, up, down = (self.tensors[f"{layer}mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        z = self.norm(y, self.tensors[f"{layer}post_attention_layernorm.weight"])
        return y + ((z @ gate.T) * torch.sigmoid(z @ gate.T) * (z @ up.T)) @ down.T

    def attention(self, x: Tensor, layer: str, window: int | None) -> Tensor:
        places = torch.arange(len(x))
        distance = places[:, None] - places
        return self.attended(x, layer, (distance >= 0) & (distance < (window or len(x))), places)

    def attended(self, x: Tensor, layer: str, seen: Tensor, places: Tensor) -> Tensor:
        """Of rows [n] at these places, each of which sees those of its row of `seen` [n, n]."""
        attention = f"{layer}self_attn."
        queries = self.rotated(f"{attention}q", x, self.heads, places)
        keys = self.rotated(f"{attention}k", x, self.kv_heads, places)
        values = self.projected(f"{attention}v", x, self.kv_heads)
        mixed = []
        for head in range(self.heads):
            group = head // (self.heads // self.kv_heads)
            scores = queries[:, head] @ keys[:, group].T / queries.shape[-1] ** 0.5
            mixed.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values[:, group])
        out = torch.cat(mixed, dim=-1) @ self.tensors[f"{attention}o_proj.weight"].T
        return out + self.tensors.get(f"{attention}o_proj.bias", 0)

    def rotated(self, name: str, x: Tensor, heads: int, places: Tensor) -> Tensor:
        """RoPE as a product of complex numbers: the halves of a head are real and imaginary parts."""
        rows = self.projected(name, x, heads)
        weight = self.tensors.get(f"{name}_norm.weight")
        rows = rows if weight is None else self.norm(rows, weight)
        real, imaginary = rows.chunk(2, dim=-1)
        angles = places[:, None] * self.inverse_frequencies
        rotated = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat((rotated.real, rotated.imag), dim=-1)

    def projected(self, name: str, x: Tensor, heads: int) -> Tensor:
        bias = self.tensors.get(f"{name}_proj.bias", 0)
        return (x @ self.tensors[f"{name}_proj.weight"].T + bias).unflatten(-1, (heads, -1))

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * weight
