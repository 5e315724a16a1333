"""DSpark's network (arXiv 2607.05147; deepseek-ai/DeepSpec, vllm-project/speculators): DFlash and two small heads.

e = w1[token before the slot], h = the slot's row of the block, after the final norm
logits of the slot = lm_head(h) + w2 z        vanilla  z = e
                                              gated    z = sigmoid(gate_proj [h ; e]) * e
                                              rnn      g, c, o = joint_proj [s ; e ; h], z = tanh(o),
                                                       s = sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c), 0 to begin with
confidence in the slot = sigmoid(proj [h ; e]), or of h alone: how likely its token is accepted

Slot 0 is the root's row of the block, whose token before is the root.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never, cast

import torch
from torch import Tensor, nn

from outrider_drafters.blocks.layers import initialize
from outrider_drafters.checkpoints.draft_vocabulary import membership, offsets
from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_drafters.families.dflash.network import DFlash, DFlashSizes
from outrider_drafters.families.shared_layout import proposing
from outrider_drafters.readers.checkpoint import write_model

MarkovKind = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True, slots=True)
class DSparkHeads:
    """Sizes of the heads; `rank` 0: no Markov head. `passes_root`: an rnn begins with the root's row, always."""

    rank: int
    kind: MarkovKind = "vanilla"
    confidence: Literal["none", "hidden", "hidden and token"] = "none"
    passes_root: bool = True


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
        return self.logits(hidden, before).sigmoid()

    def logits(self, hidden: Tensor, before: Tensor) -> Tensor:
        inputs = torch.cat((hidden, before), dim=-1)[:, : self.proj.in_features]
        return self.proj(inputs)[:, 0].float()  # type: ignore[no-any-return]  # nn.Module.__call__ is Any


class DSpark(DFlash):
    """The trained part."""

    def __init__(self, sizes: DFlashSizes, heads: DSparkHeads) -> None:
        super().__init__(sizes)
        self.heads = heads
        self.markov_head = MarkovHead(sizes, heads) if heads.rank else None
        inputs = sizes.shape.width + (heads.rank if heads.confidence == "hidden and token" else 0)
        self.confidence_head = None if heads.confidence == "none" else ConfidenceHead(inputs)
        self.apply(initialize)

    def set_draft_tokens(self, tokens: Tensor) -> None:
        """Set the target ids [Vd], rising, of the rows of an lm_head of its own."""
        self.d2t.copy_(offsets(tokens))

    def export(self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32) -> None:
        """Write speculators' layout, without embedding, and with an lm_head only of a draft vocabulary's rows."""
        sizes, heads, tensors = self.sizes, self.heads, self.state_dict()
        if (tokens := self.draft_tokens) is not None:
            tensors["t2d"] = membership(tokens, sizes.vocab)
        config = {
            "architectures": ["DSparkDraftModel"],
            "speculators_model_type": "dspark",
            "transformer_layer_config": self._qwen3_config(target),
            "draft_vocab_size": sizes.head_rows or sizes.vocab,
            "block_size": sizes.block,
            "mask_token_id": sizes.mask_token,
            "aux_hidden_state_layer_ids": list(sizes.taps),
            "sample_from_anchor": sizes.from_root,
            "sliding_window_non_causal": False,
            "markov_rank": heads.rank,
            "markov_head_type": heads.kind,
            "enable_confidence_head": heads.confidence != "none",
            "confidence_head_with_markov": heads.confidence == "hidden and token",
            "speculators_config": proposing("dspark", sizes.num_drafts),
        }
        write_model(directory, config | self._late_config(), tensors, dtype)
