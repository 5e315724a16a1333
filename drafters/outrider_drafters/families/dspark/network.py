"""DSpark's network (arXiv 2607.05147; deepseek-ai/DeepSpec, vllm-project/speculators): DFlash and two small heads.

e = w1[token before the slot], h = the slot's row of the block, after the final norm
logits of the slot = lm_head(h) + w2 z        vanilla  z = e
                                              gated    z = sigmoid(gate_proj [h ; e]) * e
                                              rnn      g, c, o = joint_proj [s ; e ; h], z = tanh(o),
                                                       s = sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c), 0 to begin with
confidence in the slot = sigmoid(proj [h ; e]), or of h alone: how likely its token is accepted

Slot 0 is the root's row of the block, whose token before is the root.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never, cast

import torch
from torch import Tensor, nn

from outrider_drafters.families.dflash.network import DFlash, DFlashSizes

MarkovKind = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True, slots=True)
class DSparkHeads:
    """Sizes of the two heads: `rank` 0 is no Markov head; `confidence`: what that head reads, if there is one."""

    rank: int
    kind: MarkovKind = "vanilla"
    confidence: Literal["none", "hidden", "hidden and token"] = "none"


class MarkovHead(nn.Module):
    """What the token before adds to a slot's logits, of low rank; submodules are named as in the published files."""

    def __init__(self, sizes: DFlashSizes, heads: DSparkHeads) -> None:
        super().__init__()
        width, rank = sizes.shape.width, heads.rank
        self.kind = heads.kind
        # w1 is over all tokens, w2 over those of the head.
        self.markov_w1 = nn.Embedding(sizes.vocab, rank)
        self.markov_w2 = nn.Linear(rank, sizes.head_rows or sizes.vocab, bias=False)
        self.gate_proj = nn.Linear(width + rank, rank) if self.kind == "gated" else None
        self.joint_proj = nn.Linear(2 * rank + width, 3 * rank) if self.kind == "rnn" else None

    def step(self, before: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute z and the next state, each [n, rank], from w1's rows and states [n, rank], and block rows [n, E]."""
        match self.kind:
            case "vanilla":
                return before, state
            case "gated":
                gate = cast(nn.Linear, self.gate_proj)(torch.cat((hidden, before), dim=-1)).sigmoid()
                return gate * before, state
            case "rnn":
                joint = cast(nn.Linear, self.joint_proj)(torch.cat((state, before, hidden), dim=-1))
                gate, candidate, output = joint.chunk(3, dim=-1)
                # z is of the output, not of the state.
                return output.tanh(), torch.lerp(candidate.tanh(), state, gate.sigmoid())
            case _:
                assert_never(self.kind)


class ConfidenceHead(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(inputs, 1)

    def forward(self, hidden: Tensor, before: Tensor) -> Tensor:
        """Compute probabilities [n] float32 from block rows [n, E] and w1's rows [n, rank]."""
        inputs = torch.cat((hidden, before), dim=-1)[:, : self.proj.in_features]
        return self.proj(inputs)[:, 0].float().sigmoid()  # type: ignore[no-any-return]  # nn.Module.__call__ is Any


class DSpark(DFlash):
    """The trained part."""

    def __init__(self, sizes: DFlashSizes, heads: DSparkHeads) -> None:
        super().__init__(sizes)
        self.heads = heads
        self.markov_head = MarkovHead(sizes, heads) if heads.rank else None
        inputs = sizes.shape.width + (heads.rank if heads.confidence == "hidden and token" else 0)
        self.confidence_head = None if heads.confidence == "none" else ConfidenceHead(inputs)
