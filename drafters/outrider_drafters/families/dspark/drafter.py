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
from outrider_proto.tree import ROOT, DraftTree

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
        self.rank, self.passes_root = network.heads.rank, network.heads.passes_root
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
        self._states = drafter.embed.new_zeros(1, drafter.rank)  # before a block, then after the root and draft rows

    def _begin(self, tree: DraftTree) -> None:
        self._states = self._states[:1]
        super()._begin(tree)

    def _draft_logits(self, nodes: Sequence[int]) -> Tensor:
        logits, drafter = self._level_logits(nodes), self._dspark
        if drafter.confidence is None or not drafter.threshold:
            return logits
        confidence = drafter.confidence(self._hidden_of(nodes), drafter.before(self._tokens_of(nodes)))
        return logits.masked_fill((confidence < drafter.threshold)[:, None], -torch.inf)

    def _level_logits(self, nodes: Sequence[int]) -> Tensor:
        logits, drafter = super()._level_logits(nodes), self._dspark
        if drafter.markov is None:
            return logits
        before, states = drafter.before(self._tokens_of(nodes)), self._states_before(nodes)
        z, after = drafter.markov.step(before, self._hidden_of(nodes), states)
        self._states = torch.cat((self._states, after))
        return logits + drafter.bias(z)

    def _states_before(self, nodes: Sequence[int]) -> Tensor:
        """Return the states [n, rank] before the nodes' slots."""
        roots = [place for place, node in enumerate(nodes) if self._slots[node].row == 0]
        states = self._states[[0 if self._slots[node].row == 0 else 2 + self._parents[node] for node in nodes]]
        # speculators' Markov head runs over a root's row that does not draft all the same, with the root before it.
        if roots and self._dspark.network.sizes.first_row and self._dspark.passes_root:
            assert self._dspark.markov is not None
            begun = [nodes[place] for place in roots]
            before = self._dspark.before(self._tokens_of(begun))
            hidden = self._hidden[[self._slots[node].block for node in begun], 0]
            states[roots] = self._dspark.markov.step(before, hidden, states[roots])[1]
        return states

    def _tokens_of(self, nodes: Sequence[int]) -> list[int]:
        return [self._token_state.tokens[-1] if node == ROOT else self._tokens[node] for node in nodes]

    def _hidden_of(self, nodes: Sequence[int]) -> Tensor:
        """Return the blocks' rows [n, E] of the nodes' slots."""
        return self._in_slots(self._hidden[:, self._dspark.network.sizes.first_row :], nodes)
