"""The client half of DFlash: it drafts a whole block in one pass.

In a tree, the tokens likely at a depth are offered below every path of that depth. Features may lag: the newest tokens
without them are further rows of the block, before its root, and the context has a gap before these.

features  f f f f f f
block                 . . . t t t t root MASK MASK ...
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
from outrider_drafters.families.block_state import BlockDrafter, BlockState
from outrider_drafters.families.dflash.network import NAME, BlockRows, DFlash, tap_info
from outrider_proto.frames import TapInfo
from outrider_proto.tree import DraftTree

LATE_ROWS = 8  # rows of a block before its root, at most


class DFlashDrafter(BlockDrafter):
    """Client half: the layers, between an embedding and an lm_head, the target's or the drafter's own."""

    family = NAME

    def __init__(
        self, network: DFlash, target: TargetWeights, tap: TapInfo | None = None, plan: TreePlan | None = None
    ) -> None:
        tap = tap_info(network) if tap is None else tap
        super().__init__(target, tap, network.sizes.num_drafts, plan, network.embed_tokens)
        self.network, self.hint = network, network.sizes.hint
        # Trained with blocks that lack a whole block's verdict: docs/results/drafters.md, "Ahead of a verdict".
        self.stale_tolerant = network.sizes.late > self.num_drafts
        head, self.draft_tokens = target.lm_head, target.draft_tokens
        if network.lm_head is not None:
            own = network.lm_head.weight.detach()
            head, self.draft_tokens = select_rows(own, network.draft_tokens, target.draft_tokens)
        elif (tokens := network.draft_tokens) is not None:
            target = target.drafting(tokens.tolist())
            head, self.draft_tokens = target.lm_head, target.draft_tokens
        self._head = PackedLinear(head, packed=None)

    def new_state(self) -> DFlashState:
        return DFlashState(self)

    def head_logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [n, Vd] float32 over the tokens that can be drafted, of block rows [n, E]."""
        sizes = self.network.sizes
        logits = self._head(hidden).float() * sizes.logit_scale
        return logits if sizes.softcap is None else torch.tanh(logits / sizes.softcap) * sizes.softcap


class DFlashState(BlockState):
    """The context rows' keys and values, and the current draft's blocks."""

    def __init__(self, drafter: DFlashDrafter) -> None:
        super().__init__(drafter)
        self._drafter = drafter
        self._caches = drafter.network.new_caches()
        width = drafter.embed.shape[1]
        self._hidden = drafter.embed.new_empty(0, drafter.network.sizes.block, width)  # of the current draft's blocks

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        start = self._token_state.num_features
        lacking = self._token_state.add_features(first, rows).to(self._drafter.target.embed)
        self._drafter.network.append_kv(lacking, start, self._caches)

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        for cache in self._caches:
            cache.truncate(self._token_state.num_features)

    def _begin(self, tree: DraftTree) -> None:
        self._hidden = self._hidden[:0]
        super()._begin(tree)

    def _run_blocks(self, paths: Sequence[Sequence[int]]) -> Tensor:
        drafter, sizes, usable = self._drafter, self._drafter.network.sizes, self._token_state.usable
        late, masks = self._token_state.tokens[usable:], [sizes.mask_token] * (sizes.block - 1)
        tokens: list[list[int]] = []
        spans: list[tuple[int, int, int]] = []
        for path in paths:
            known = [*late, *path][-1 - LATE_ROWS :]
            root = self.num_tokens - 1 + len(path)
            tokens.append(known + masks)
            spans.append((root + 1 - len(known), root, root + len(masks)))
        ids = torch.tensor([token for block in tokens for token in block], device=drafter.embed.device)
        embeds = F.embedding(ids, drafter.embed) * sizes.embed_scale
        outputs = drafter.network.run(embeds, BlockRows.of(spans, embeds.device), usable, self._caches)
        parts = torch.split(outputs, [len(block) for block in tokens])
        hidden = torch.stack([part[-sizes.block :] for part in parts])
        self._hidden = torch.cat((self._hidden, hidden))
        # With the mask token among them, as in the published code: drafted, it is merely refused.
        logits = drafter.head_logits(hidden[:, sizes.first_row :].flatten(0, 1))
        return logits.view(len(paths), sizes.num_drafts, -1)
