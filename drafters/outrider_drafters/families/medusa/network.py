"""Medusa (arXiv 2401.10774; FasterDecoding/Medusa): independent heads on the target's last hidden state.

head i of h_q: h <- h + SiLU(linear(h)), once per block;  logits of x_q+2+i = output(h)

h_q is the hidden state after the final norm; all nodes of a level have the same successors.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_drafters.readers.checkpoint import MEDUSA_HEADS, write_model

NAME = "medusa"


@dataclass(frozen=True, slots=True)
class MedusaSizes:
    """Sizes of a set of heads; `hidden` is the target's.

    `rows`: of each head's own output, 0: it has none. `tied`: a head's blocks share their weights, as published.
    """

    hidden: int
    rows: int
    heads: int = 4
    blocks: int = 1
    bias: bool = True
    tied: bool = True


class MedusaBlock(nn.Module):
    """x + SiLU(linear(x)); initialized as the identity."""

    def __init__(self, sizes: MedusaSizes) -> None:
        super().__init__()
        self.linear = nn.Linear(sizes.hidden, sizes.hidden, bias=sizes.bias)
        if not self.linear.weight.is_meta:
            for parameter in self.linear.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class Medusa(nn.ModuleList):
    """The trained part; submodules are named as in the published v0.1 files: head, then block or, last, output."""

    def __init__(self, sizes: MedusaSizes) -> None:
        super().__init__(_head(sizes) for _ in range(sizes.heads))
        self.sizes = sizes

    @property
    def heads(self) -> list[nn.Sequential]:
        return [head for head in self if isinstance(head, nn.Sequential)]

    @torch.no_grad()
    def start_from(self, lm_head: Tensor) -> None:
        """Initialize every head's output with the target's lm_head [V, E], as published."""
        for head in self.heads:
            output_of(head).copy_(lm_head)

    def export(self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32, base: str = "") -> None:
        """Write v0.1's layout as safetensors; `base` names the target."""
        config = {
            "base_model_name_or_path": base,
            "medusa_num_heads": self.sizes.heads,
            "medusa_num_layers": self.sizes.blocks,
            "hidden_size": target.hidden,
            "vocab_size": target.vocab,
        }
        write_model(directory, config, self.state_dict(), dtype, MEDUSA_HEADS)


def _head(sizes: MedusaSizes) -> nn.Sequential:
    one = MedusaBlock(sizes)
    # Tied blocks are one module in several places: state_dict() still writes a tensor for each of them.
    blocks = [one if sizes.tied or number == 0 else MedusaBlock(sizes) for number in range(sizes.blocks)]
    outputs = [nn.Linear(sizes.hidden, sizes.rows, bias=False)] if sizes.rows else []
    return nn.Sequential(*blocks, *outputs)


def output_of(head: nn.Sequential) -> Tensor:
    """Return a head's own output [rows, E]."""
    linear = head[-1]
    assert isinstance(linear, nn.Linear)
    return linear.weight.detach()
