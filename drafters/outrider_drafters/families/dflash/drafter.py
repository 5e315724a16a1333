"""The client half of DFlash: it drafts a whole block in one pass.

In a tree, the tokens likely at a depth are offered below every path of that depth. Features may lag: the block still
begins at the root, and its context has a gap before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.packed_linear import PackedLinear
from outrider_drafters.blocks.token_state import TokenState, WithTokenState
from outrider_drafters.checkpoints.draft_vocabulary import over_target_vocabulary, select_rows
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.drafter import tree_logits_by_level
from outrider_drafters.contracts.tree_shape import MAX_LEVELS, TreePlan, TreeShape
from outrider_drafters.families.dflash.network import DFlash
from outrider_drafters.families.dflash.tap import NAME, tap_info
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo
from outrider_proto.tree import ROOT, DraftTree


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
        self.plan = TreeShape.chain(min(network.sizes.num_drafts, MAX_LEVELS)) if plan is None else plan
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


class DFlashState(WithTokenState):
    """The context rows' keys and values, and the current draft's block."""

    def __init__(self, drafter: DFlashDrafter) -> None:
        self._drafter = drafter
        self._token_state = TokenState(drafter.tap.width)
        self._caches = drafter.network.new_caches()
        self._depths: list[int] = []  # of the draft rows
        self._hidden: Tensor | None = None  # [block, E] of the current draft
        self._logits: Tensor | None = None  # [max_levels, Vd]: row i for token i + 1 after the root

    @property
    def max_levels(self) -> int:
        return self._drafter.network.sizes.num_drafts

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
        self._begin()
        return self._over_vocabulary(self._draft_logits([self._token_state.tokens[-1]], [ROOT]))[0]

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        self._place(parents)
        return self._over_vocabulary(self._draft_logits(tokens, parents))

    @torch.inference_mode()
    def tree_logits(self, tree: DraftTree) -> Tensor:
        self._begin()

        def expand(tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
            self._place(parents)
            return self._over_vocabulary(self._level_logits(tokens, parents))

        root = self._over_vocabulary(self._level_logits([self._token_state.tokens[-1]], [ROOT]))[0]
        return tree_logits_by_level(tree, root, expand)

    def _begin(self) -> None:
        """Run the block for a new draft."""
        self._token_state.need_root()
        self._depths = []
        drafter, sizes = self._drafter, self._drafter.network.sizes
        block = [self._token_state.tokens[-1]] + [sizes.mask_token] * (sizes.block - 1)
        embeds = F.embedding(torch.tensor(block, device=drafter.embed.device), drafter.embed) * sizes.embed_scale
        # The block begins at the root even if features lag: positions between the last feature and the root are a gap.
        self._hidden = drafter.network.run(embeds, self.num_tokens - 1, self._token_state.usable, self._caches)
        # With the mask token among them, as in the published code: drafted, it is merely refused.
        self._logits = drafter.head_logits(self._hidden[sizes.first_row :])

    def _place(self, parents: Sequence[int]) -> None:
        """Number the nodes of a level as draft rows."""
        depth = 1 if parents[0] == ROOT else self._depths[parents[0]] + 1
        if depth >= self.max_levels:
            raise UsageError(f"a level beyond the last of a block of {self._drafter.network.sizes.block}")
        self._depths += [depth] * len(parents)

    def _draft_logits(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Return what to draft after the nodes of the newest level, [n, Vd]; -inf below a node that ends the draft."""
        return self._level_logits(tokens, parents)

    def _level_logits(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Return logits [n, Vd] after the nodes of the newest level, the root's being that of the parent ROOT."""
        assert self._logits is not None
        # One row for all nodes: no token depends on those before it.
        return self._logits[self._newest_depth, None].expand(len(tokens), -1)

    @property
    def _newest_depth(self) -> int:
        return self._depths[-1] if self._depths else 0

    def _over_vocabulary(self, logits: Tensor) -> Tensor:
        # After the cap, not before: it would make -softcap of -inf.
        drafter, is_shared = self._drafter, len(logits) > 1 and logits.stride(0) == 0
        rows = over_target_vocabulary(logits[:1] if is_shared else logits, drafter.draft_tokens, drafter.vocab_size)
        return rows.expand(len(logits), -1) if is_shared else rows
