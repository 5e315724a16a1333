"""EAGLE-3 straight from its formulas: everything computed anew for every question, no cache, no fused products.

Tensors bear SafeAILab's names. Written from the paper (arXiv 2503.01840) and the published code's order of steps.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


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
    layer: str = field(default="midlayer.")

    def fused(self, states: list[Tensor]) -> Tensor:
        if "fc.weight" not in self.tensors:
            return states[0]
        if "fc_norm.0.weight" in self.tensors:
            states = [self.norm(state, self.tensors[f"fc_norm.{i}.weight"]) for i, state in enumerate(states)]
        joined = torch.cat(states, dim=-1)
        if "input_norm.weight" in self.tensors:
            joined = self.norm(joined, self.tensors["input_norm.weight"])
        return joined @ self.tensors["fc.weight"].T + self.tensors.get("fc.bias", 0)

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
        own = lambda name: self.tensors[self.layer + name]  # noqa: E731
        normed = self.norm(features, own("hidden_norm.weight"))
        x = torch.cat((self.norm(embeds, own("input_layernorm.weight")), normed), dim=-1)
        attended = self.attention(x) @ own("self_attn.o_proj.weight").T
        attended = attended + self.tensors.get(f"{self.layer}self_attn.o_proj.bias", 0)
        y = (normed if self.norm_before_residual else features) + attended
        z = self.norm(y, own("post_attention_layernorm.weight"))
        gate, up = z @ own("mlp.gate_proj.weight").T, z @ own("mlp.up_proj.weight").T
        return y + (gate * torch.sigmoid(gate) * up) @ own("mlp.down_proj.weight").T

    def attention(self, x: Tensor) -> Tensor:
        queries, keys = self.rotated("q", x, self.heads), self.rotated("k", x, self.kv_heads)
        values = self.projected("v", x, self.kv_heads)
        seen = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        mixed = []
        for head in range(self.heads):
            group = head // (self.heads // self.kv_heads)
            scores = queries[:, head] @ keys[:, group].T / queries.shape[-1] ** 0.5
            mixed.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values[:, group])
        return torch.cat(mixed, dim=-1)

    def rotated(self, name: str, x: Tensor, heads: int) -> Tensor:
        """RoPE as a product of complex numbers: the halves of a head are real and imaginary parts."""
        rows = self.projected(name, x, heads)
        weight = self.tensors.get(f"{self.layer}self_attn.{name}_norm.weight")
        rows = rows if weight is None else self.norm(rows, weight)
        real, imaginary = rows.chunk(2, dim=-1)
        angles = torch.arange(len(x))[:, None] * self.inverse_frequencies
        rotated = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat((rotated.real, rotated.imag), dim=-1)

    def projected(self, name: str, x: Tensor, heads: int) -> Tensor:
        weight, bias = f"{self.layer}self_attn.{name}_proj.weight", f"{self.layer}self_attn.{name}_proj.bias"
        return (x @ self.tensors[weight].T + self.tensors.get(bias, 0)).unflatten(-1, (heads, -1))

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * weight
