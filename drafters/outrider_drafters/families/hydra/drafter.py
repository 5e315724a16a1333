"""The client half of Hydra: each block of a head as one product."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.checkpoints.draft_vocabulary import over_target_vocabulary, select_rows
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.families.heads import HeadsDrafter, TokenPath, default_choices
from outrider_drafters.families.hydra.network import Hydra, HydraBlock, tap_info
from outrider_proto.frames import TapInfo

NAME = "hydra"


class HydraHead:
    """One head for inference, with linear and res_connection of a block as one product."""

    def __init__(self, blocks: list[HydraBlock], weight: Tensor, bias: Tensor | None) -> None:
        self._blocks = [_fused(block) for block in blocks]
        self._output = weight, bias

    def logits(self, x: Tensor) -> Tensor:
        """Compute logits [n, rows of the output] from x [n, inputs x E]."""
        for weight, bias, widens in self._blocks:
            mixed = F.linear(x, weight, bias)
            kept, gate = mixed.chunk(2, dim=-1) if widens else (x, mixed)
            x = kept + F.silu(gate)
        return F.linear(x, *self._output)


class HydraDrafter(HeadsDrafter):
    """Client half; the server half is NewestHiddenTap, or HydraPrefixTap for Hydra++."""

    family = NAME

    def __init__(
        self, hydra: Hydra, target: TargetWeights, tap: TapInfo | None = None, row_tokens: Tensor | None = None
    ) -> None:
        """`row_tokens` [rows]: what the outputs' rows stand for; None if every token has one."""
        count = hydra.sizes.heads
        super().__init__(target, tap_info(hydra) if tap is None else tap, count, default_choices(count))
        self.knows_next = hydra.prefix is None and hydra.sizes.offset == 0
        self.grounded = hydra.sizes.grounded
        self.heads: list[HydraHead] = []
        for blocks, output in hydra.heads:
            if output is None:
                self._tokens = target.draft_tokens
                self.heads.append(HydraHead(blocks, target.lm_head, None))
                continue
            weight, self._tokens = select_rows(output.weight.detach(), row_tokens, target.draft_tokens)
            bias, _ = select_rows(output.bias.detach(), row_tokens, target.draft_tokens)
            self.heads.append(HydraHead(blocks, weight, bias))

    def after(self, feature: Tensor, lines: Sequence[TokenPath], held: dict[TokenPath, Tensor]) -> Tensor:
        head = len(lines[0]) - 1
        if not self.grounded:
            return self.logits(head, feature).expand(len(lines), -1)
        tokens = torch.tensor(lines, dtype=torch.int64, device=feature.device)
        embeds = F.embedding(tokens, self.target.embed).flatten(1)
        return self.logits(head, torch.cat((feature.expand(len(lines), -1), embeds), dim=-1))

    def logits(self, head: int, x: Tensor) -> Tensor:
        """Compute a head's logits [n, V] float32 from x [n, inputs x E]."""
        return over_target_vocabulary(self.heads[head].logits(x).float(), self._tokens, self.vocab_size)


def _fused(block: HydraBlock) -> tuple[Tensor, Tensor, bool]:
    """Return weight and bias of a block's products, and true if their first half is res_connection."""
    linear, skip = block.linear, block.res_connection
    if not isinstance(skip, torch.nn.Linear):
        return linear.weight.detach(), linear.bias.detach(), False
    return torch.cat((skip.weight, linear.weight)).detach(), torch.cat((skip.bias, linear.bias)).detach(), True
