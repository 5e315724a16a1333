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

    def read(self, feature: Tensor) -> MLPSpeculatorLogits:
        return MLPSpeculatorLogits(self, feature)

    def logits(self, head: int, states: Tensor) -> Tensor:
        """Compute a head's logits [n, V] float32 of its states [n, inner]."""
        output = self._outputs[min(head, len(self._outputs) - 1)]
        return over_target_vocabulary(output(states).float(), self._tokens, self.vocab_size)


class MLPSpeculatorLogits:
    """Logits of the heads from one feature and the tokens after it. Every path's state is computed once."""

    def __init__(self, drafter: MLPSpeculatorDrafter, feature: Tensor) -> None:
        self._drafter = drafter
        self._feature = feature
        self._states: dict[TokenPath, Tensor] = {(): drafter.network.first_state(feature)}  # each [1, width]

    def after(self, lines: Sequence[TokenPath]) -> Tensor:
        head = len(lines[0]) - 1
        if head < 0:
            return self._drafter.target.logits(self._feature).expand(len(lines), -1)
        return self._drafter.logits(head, self._states_of(lines))

    def _states_of(self, lines: Sequence[TokenPath]) -> Tensor:
        """Return the states [n, width] after n paths of equal length."""
        if new := [line for line in dict.fromkeys(lines) if line not in self._states]:
            above = self._states_of([line[:-1] for line in new])
            tokens = torch.tensor([line[-1] for line in new], device=self._feature.device)
            made = self._drafter.network.next_state(len(new[0]) - 1, above, tokens)
            self._states |= zip(new, made.unsqueeze(1), strict=True)
        return torch.cat([self._states[line] for line in lines])
