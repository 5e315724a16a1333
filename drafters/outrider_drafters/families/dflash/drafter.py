"""The client half of DFlash: it drafts a whole block in one pass.

In a tree, the tokens likely at a depth are offered below every path of that depth. Features may lag: the block still
begins at the root, and its context has a gap before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.token_state import TokenState, WithTokenState
from outrider_drafters.blocks.tree_mask import TreeMask
from outrider_drafters.checkpoints.draft_vocabulary import over_target_vocabulary
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.drafter import tree_logits_by_level
from outrider_drafters.contracts.tree_shape import MAX_LEVELS, TreePlan, TreeShape
from outrider_drafters.families.dflash.network import DFlash
from outrider_drafters.families.dflash.tap import NAME, tap_info
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo
from outrider_proto.tree import DraftTree


class DFlashDrafter:
    """Client half: the layers, between the target's embedding and its lm_head."""

    family = NAME
    stale_tolerant = False
    tree_in_one_pass = True

    def __init__(self, network: DFlash, target: TargetWeights, tap: TapInfo | None = None) -> None:
        self.network = network
        self.target = target
        self.tap = tap_info(network) if tap is None else tap
        self.vocab_size = target.sizes.vocab
        self.plan: TreePlan | None = TreeShape.chain(min(network.sizes.block - 1, MAX_LEVELS))

    def new_state(self) -> DFlashState:
        return DFlashState(self)


class DFlashState(WithTokenState):
    """The context rows' keys and values, and the current draft's block."""

    def __init__(self, drafter: DFlashDrafter) -> None:
        self._drafter = drafter
        self._token_state = TokenState(drafter.tap.width)
        self._caches = drafter.network.new_caches()
        self._tree_mask = TreeMask(drafter.target.embed.device)
        self._logits: Tensor | None = None  # [max_levels, V] of the current draft: row i for token i + 1 after the root

    @property
    def max_levels(self) -> int:
        return self._drafter.network.sizes.block - 1

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        start = self._token_state.num_features
        lacking = self._token_state.add_features(first, rows).to(self._drafter.target.embed)
        self._drafter.network.append_kv(lacking, start, self._caches)

    def rollback(self, num_tokens: int) -> None:
        self._token_state.rollback(num_tokens)
        for cache in self._caches:
            cache.truncate(self._token_state.num_features)

    @torch.inference_mode()
    def root_logits(self) -> Tensor:
        self._token_state.need_root()
        self._tree_mask.clear()
        self._logits = self._block_logits(self._token_state.tokens[-1])
        return self._logits[0]

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        depths, _ = self._tree_mask.add(parents, 0)
        logits = self._logits
        assert logits is not None
        if int(depths.max()) >= len(logits):
            raise UsageError(f"a level beyond the last of a block of {self.max_levels + 1}")
        return logits[depths]

    def tree_logits(self, tree: DraftTree) -> Tensor:
        return tree_logits_by_level(tree, self.root_logits(), self.expand)

    def _block_logits(self, root: int) -> Tensor:
        """Compute logits [block - 1, V] float32 for the positions after the root."""
        target, sizes = self._drafter.target, self._drafter.network.sizes
        block = torch.tensor([root] + [sizes.mask_token] * (sizes.block - 1), device=target.embed.device)
        embeds = F.embedding(block, target.embed) * sizes.embed_scale
        # The block begins at the root even if features lag: positions between the last feature and the root are a gap.
        hidden = self._drafter.network.run(embeds, self.num_tokens - 1, self._token_state.usable, self._caches)
        logits = F.linear(hidden[1:], target.lm_head).float() * sizes.logit_scale
        logits = logits if sizes.softcap is None else torch.tanh(logits / sizes.softcap) * sizes.softcap
        # After the cap, not before: it would make -softcap of -inf.
        return over_target_vocabulary(logits, target.draft_tokens, target.sizes.vocab)
