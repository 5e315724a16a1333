"""The client half of Medusa: all heads' logits from the newest feature."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.checkpoints.draft_vocabulary import over_target_vocabulary, select_rows
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.families.heads import HeadsDrafter, TokenPath, default_choices, newest_hidden_info
from outrider_drafters.families.medusa.network import NAME, Medusa, output_of


class MedusaDrafter(HeadsDrafter):
    """Client half; the server half is NewestHiddenTap."""

    family = NAME

    def __init__(
        self,
        medusa: Medusa,
        target: TargetWeights,
        shared: Tensor | None = None,
        tokens: Tensor | None = None,
        row_tokens: Tensor | None = None,
    ) -> None:
        """`shared` [rows, E]: one output for all heads, unless they have their own. `tokens` [k] int64: the only ones
        to draft, besides the target's draft vocabulary. `row_tokens` [rows]: what the rows of outputs that are not the
        target's stand for; None if every token has one."""
        sizes = medusa.sizes
        super().__init__(target, newest_hidden_info(sizes.hidden), sizes.heads, default_choices(sizes.heads))
        self._blocks = [head[: sizes.blocks] for head in medusa.heads]
        common = target.lm_head if shared is None else shared
        outputs = [output_of(head) for head in medusa.heads] if sizes.rows else [common]
        device = self.like.device
        tokens = None if tokens is None else tokens.to(device)
        stored = None if row_tokens is None else row_tokens.to(device)
        stored = target.draft_tokens if outputs[0] is target.lm_head else stored
        kept = [select_rows(*select_rows(output, stored, tokens), target.draft_tokens) for output in outputs]
        self._outputs, self._tokens = [output for output, _ in kept], kept[0][1]

    def after(self, feature: Tensor, lines: Sequence[TokenPath], held: dict[TokenPath, Tensor]) -> Tensor:
        """Return the same logits for every path: Medusa's heads do not see drafted tokens."""
        head, is_shared = len(lines[0]) - 1, len(self._outputs) < self.num_heads
        if not is_shared:
            return self._logits(feature, range(head, head + 1)).expand(len(lines), -1)
        # An output that all heads share is read once for all of them: memory traffic is the cost.
        if () not in held:
            held[()] = self._logits(feature, range(self.num_heads))
        return held[()][head : head + 1].expand(len(lines), -1)

    def _logits(self, feature: Tensor, heads: range) -> Tensor:
        """Compute the logits [heads, V] of one head with its own output, or of all that share one."""
        mixed = torch.cat([self._blocks[head](feature) for head in heads])
        logits = F.linear(mixed, self._outputs[heads.start]).float()
        return over_target_vocabulary(logits, self._tokens, self.vocab_size)
