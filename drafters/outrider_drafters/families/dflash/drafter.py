"""The client half of DFlash: it drafts a whole block in one pass.

In a tree, the tokens likely at a depth are offered below every path of that depth. Features may lag: the block still
begins at the root, and its context has a gap before it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.packed_linear import PackedLinear
from outrider_drafters.checkpoints.draft_vocabulary import select_rows
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.tree_shape import MAX_LEVELS, TreePlan, TreeShape
from outrider_drafters.families.dflash.block_state import BlockState
from outrider_drafters.families.dflash.network import DFlash
from outrider_drafters.families.dflash.tap import NAME, tap_info
from outrider_proto.frames import TapInfo


class DFlashDrafter:
    """Client half: the layers, between an embedding and an lm_head, the target's or the drafter's own."""

    family = NAME
    stale_tolerant = False
    tree_in_one_pass = True

    def __init__(
        self, network: DFlash, target: TargetWeights, tap: TapInfo | None = None, plan: TreePlan | None = None
    ) -> None:
        self.network = network
        self.target = target
        self.tap = tap_info(network) if tap is None else tap
        self.vocab_size = target.sizes.vocab
        self.num_drafts = network.sizes.num_drafts
        self.plan = TreeShape.chain(min(self.num_drafts, MAX_LEVELS)) if plan is None else plan
        self.embed = target.embed if network.embed_tokens is None else network.embed_tokens.weight.detach()
        head, self.draft_tokens = target.lm_head, target.draft_tokens
        if network.lm_head is not None:
            own = network.lm_head.weight.detach()
            head, self.draft_tokens = select_rows(own, network.draft_tokens, target.draft_tokens)
        self._head = PackedLinear(head, packed=None)

    def new_state(self) -> DFlashState:
        return DFlashState(self)

    def head_logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [n, Vd] float32 over the tokens that can be drafted, of block rows [n, E]."""
        sizes = self.network.sizes
        logits = self._head(hidden).float() * sizes.logit_scale
        return logits if sizes.softcap is None else torch.tanh(logits / sizes.softcap) * sizes.softcap


class DFlashState(BlockState):
    """The context rows' keys and values, and the current draft's block."""

    def __init__(self, drafter: DFlashDrafter) -> None:
        super().__init__(drafter)
        self._drafter = drafter
        self._caches = drafter.network.new_caches()
        self._hidden: Tensor | None = None  # [block, E] of the current draft

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        start = self._token_state.num_features
        lacking = self._token_state.add_features(first, rows).to(self._drafter.target.embed)
        self._drafter.network.append_kv(lacking, start, self._caches)

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        for cache in self._caches:
            cache.truncate(self._token_state.num_features)

    def _run_block(self) -> Tensor:
        drafter, sizes = self._drafter, self._drafter.network.sizes
        block = [self._token_state.tokens[-1]] + [sizes.mask_token] * (sizes.block - 1)
        embeds = F.embedding(torch.tensor(block, device=drafter.embed.device), drafter.embed) * sizes.embed_scale
        # The block begins at the root even if features lag: positions between the last feature and the root are a gap.
        self._hidden = drafter.network.run(embeds, self.num_tokens - 1, self._token_state.usable, self._caches)
        # With the mask token among them, as in the published code: drafted, it is merely refused.
        return drafter.head_logits(self._hidden[sizes.first_row :])
