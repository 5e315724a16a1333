"""The client half of the MLP speculator: heads that each read the token before, from the newest feature."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider_drafters.blocks.packed_linear import PackedLinear
from outrider_drafters.checkpoints.draft_vocabulary import over_target_vocabulary, select_rows
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.heads import HeadsDrafter, TokenPath, newest_hidden_info
from outrider_drafters.families.mlp_speculator.network import MLPSpeculator

NAME = "mlp_speculator"


class MLPSpeculatorDrafter(HeadsDrafter):
    """Client half; the server half is NewestHiddenTap."""

    family = NAME

    def __init__(
        self,
        network: MLPSpeculator,
        target: TargetWeights,
        plan: TreePlan | None = None,
        row_tokens: Tensor | None = None,
    ) -> None:
        """`row_tokens` [rows]: what the heads' rows stand for; None if every token has one."""
        sizes = network.sizes
        super().__init__(target, newest_hidden_info(sizes.hidden), sizes.heads, plan)
        self.network = network
        stored = None if row_tokens is None else row_tokens.to(self.like.device)
        cut = [select_rows(network.output(head), stored, target.draft_tokens) for head in range(len(network.head))]
        self._outputs, self._tokens = [PackedLinear(weight, packed=None) for weight, _ in cut], cut[0][1]

    def after(self, feature: Tensor, lines: Sequence[TokenPath], held: dict[TokenPath, Tensor]) -> Tensor:
        states, head = self._states_of(feature, lines, held), len(lines[0]) - 1
        logits = self._outputs[min(head, len(self._outputs) - 1)](states).float()
        return over_target_vocabulary(logits, self._tokens, self.vocab_size)

    def _states_of(self, feature: Tensor, lines: Sequence[TokenPath], held: dict[TokenPath, Tensor]) -> Tensor:
        """Return the states [n, width] after n paths of equal length; every path's is computed once."""
        if not held:
            held[()] = self.network.first_state(feature)
        if new := [line for line in dict.fromkeys(lines) if line not in held]:
            above = self._states_of(feature, [line[:-1] for line in new], held)
            tokens = torch.tensor([line[-1] for line in new], device=feature.device)
            held |= zip(new, self.network.next_state(len(new[0]) - 1, above, tokens).unsqueeze(1), strict=True)
        return torch.cat([held[line] for line in lines])
