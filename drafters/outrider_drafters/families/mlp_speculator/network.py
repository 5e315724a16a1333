"""The MLP speculator (arXiv 2404.19124; foundation-model-stack/fms-extras, models/speculator.py): heads in a row.

s_0 = h_q                                        with scale_input: rms(h_q) / sqrt(2)
s_i+1 = GELU(ln_i(a proj_i(s_i) + b emb_i(x_q+1+i)))       ln: rms, weight, bias
logits of x_q+2+i = head_i(s_i+1)

h_q is the target's last hidden state, after its final norm. Of n heads, a = 0.5 ** (0.5 / n), so that h_q makes half of
the last state, and b = sqrt((1 - a * a) inner / 2).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-6


@dataclass(frozen=True, slots=True)
class MLPSpeculatorSizes:
    """Sizes of a set of heads; `hidden` is the target's, `rows`: of a head. `tied`: all heads share embedding, output
    and norm, and those after the first the projection."""

    hidden: int
    inner: int
    vocab: int
    rows: int
    heads: int = 3
    scale_input: bool = False
    tied: bool = False


class ScaledNorm(nn.Module):
    """rms(x) * weight + bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, EPS) + self.bias


class MLPSpeculator(nn.Module):
    """The trained part; submodules are named as in the published files, of tied ones the first alone is there."""

    def __init__(self, sizes: MLPSpeculatorSizes) -> None:
        super().__init__()
        self.sizes = sizes
        own = 1 if sizes.tied else sizes.heads
        self.emb = nn.ModuleList(nn.Embedding(sizes.vocab, sizes.inner) for _ in range(own))
        inputs = (sizes.hidden, *[sizes.inner] * (sizes.heads - 1))[: own + 1 if sizes.tied else own]
        self.proj = nn.ModuleList(nn.Linear(width, sizes.inner, bias=False) for width in inputs)
        self.head = nn.ModuleList(nn.Linear(sizes.inner, sizes.rows, bias=False) for _ in range(own))
        self.ln = nn.ModuleList(ScaledNorm(sizes.inner) for _ in range(own))
        self.state_weight: float = 0.5 ** (0.5 / sizes.heads)
        self.emb_weight: float = ((1 - self.state_weight**2) * sizes.inner / 2) ** 0.5

    def first_state(self, feature: Tensor) -> Tensor:
        """Compute the state [n, hidden] before the first head, of the target's hidden states [n, hidden]."""
        if not self.sizes.scale_input:
            return feature
        return F.rms_norm(feature, feature.shape[-1:], eps=EPS) / 2**0.5

    def next_state(self, head: int, state: Tensor, tokens: Tensor) -> Tensor:
        """Compute a head's state [n, inner] from the state before and the tokens [n] int64 after it."""
        place = 0 if self.sizes.tied else head
        proj, emb, norm = self.proj[min(head, len(self.proj) - 1)], self.emb[place], self.ln[place]
        mixed = self.state_weight * proj(state) + self.emb_weight * emb(tokens)
        return F.gelu(norm(mixed))

    def output(self, head: int) -> Tensor:
        """Return the weight [rows, inner] of a head's output."""
        linear = self.head[0 if self.sizes.tied else head]
        assert isinstance(linear, nn.Linear)
        return linear.weight.detach()
