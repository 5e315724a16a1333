"""The client half of DSpark: DFlash's block, each node scored by its parent's Markov term.

With a threshold, a draft ends below the nodes after which the confidence head gives less: a chain where it does first,
as published, a tree node by node.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.packed_linear import PackedLinear
from outrider_drafters.checkpoints.draft_vocabulary import select_rows
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.dflash.drafter import DFlashDrafter, DFlashState
from outrider_drafters.families.dspark.network import DSpark
from outrider_proto.frames import TapInfo

NAME = "dspark"


class DSparkDrafter(DFlashDrafter):
    """Client half; the server half is DFlashTap."""

    family = NAME

    def __init__(
        self,
        network: DSpark,
        target: TargetWeights,
        tap: TapInfo | None = None,
        plan: TreePlan | None = None,
        threshold: float = 0.0,
    ) -> None:
        super().__init__(network, target, tap, plan)
        self.threshold = threshold if network.confidence_head is not None else 0.0
        self.markov, self.confidence = network.markov_head, network.confidence_head
        self.rank = network.heads.rank
        self._w1 = self._w2 = None
        if self.markov is not None:
            # The same rows as lm_head's.
            w2, _ = select_rows(self.markov.markov_w2.weight.detach(), network.draft_tokens, target.draft_tokens)
            self._w1, self._w2 = self.markov.markov_w1.weight.detach(), PackedLinear(w2, packed=None)

    def new_state(self) -> DSparkState:
        return DSparkState(self)

    def before(self, tokens: Sequence[int]) -> Tensor:
        """Look up w1's rows [n, rank] of the tokens before some slots."""
        if self._w1 is None:
            return self.embed.new_empty(len(tokens), 0)
        return F.embedding(torch.tensor(tokens, device=self.embed.device), self._w1)

    def bias(self, z: Tensor) -> Tensor:
        """Compute w2 z [n, Vd] float32 of z [n, rank]."""
        assert self._w2 is not None
        return self._w2(z).float()


class DSparkState(DFlashState):
    """As DFlash's, with the Markov head's states."""

    def __init__(self, drafter: DSparkDrafter) -> None:
        super().__init__(drafter)
        self._dspark = drafter
        self._first_state = drafter.embed.new_zeros(1, drafter.rank)  # before the root's slot
        self._states = self._first_state  # after the root and every draft row

    def _begin(self) -> None:
        super()._begin()
        drafter = self._dspark
        state = drafter.embed.new_zeros(1, drafter.rank)
        # Where the root's row does not draft, the Markov head runs over it all the same, with the root before it.
        for slot in range(drafter.network.sizes.first_row if drafter.markov is not None else 0):
            _, state = self._step(self._token_state.tokens[-1:], slot, state)
        self._first_state = state

    def _draft_logits(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        logits, drafter = self._level_logits(tokens, parents), self._dspark
        if drafter.confidence is None or not drafter.threshold:
            return logits
        confidence = drafter.confidence(self._slot_hidden(self._slot, len(tokens)), drafter.before(tokens))
        return logits.masked_fill((confidence < drafter.threshold)[:, None], -torch.inf)

    def _level_logits(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        logits, drafter = super()._level_logits(tokens, parents), self._dspark
        if drafter.markov is None:
            return logits
        states = self._states[[1 + parent for parent in parents]] if self._depths else self._first_state
        z, after = self._step(tokens, self._slot, states)
        self._states = torch.cat((self._states, after)) if self._depths else after
        return logits + drafter.bias(z)

    @property
    def _slot(self) -> int:
        """The block's row of the newest level."""
        return self._drafter.network.sizes.first_row + self._newest_depth

    def _step(self, tokens: Sequence[int], slot: int, states: Tensor) -> tuple[Tensor, Tensor]:
        drafter = self._dspark
        assert drafter.markov is not None
        z, after = drafter.markov.step(drafter.before(tokens), self._slot_hidden(slot, len(tokens)), states)
        return z, after

    def _slot_hidden(self, slot: int, count: int) -> Tensor:
        assert self._hidden is not None
        return self._hidden[slot, None].expand(count, -1)
