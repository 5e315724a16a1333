"""The client half of P-EAGLE: a row for every token of the text, then rows of masks, in one causal pass.

Known tokens whose features are still on their way have rows of their own: token and mask_hidden. What is missing of a
row, its token or its feature, is the mask's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.row_buffer import RowBuffer
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.block_state import BlockDrafter, BlockState
from outrider_drafters.families.eagle3.drafter import drafting_head, fused_layers
from outrider_drafters.families.eagle3.network import tap_info
from outrider_drafters.families.peagle.network import PEagle
from outrider_proto.frames import TapInfo

NAME = "peagle"
_FEW_ROWS = 16  # those of a verdict, not of a prompt


class PEagleDrafter(BlockDrafter):
    """Client half; the server half is Eagle3Tap."""

    family = NAME

    def __init__(
        self, network: PEagle, target: TargetWeights, tap: TapInfo | None = None, plan: TreePlan | None = None
    ) -> None:
        tap = tap_info(network, target.sizes.layers) if tap is None else tap
        super().__init__(target, tap, network.num_drafts, plan, network.embed_tokens)
        self.mask_token = network.mask_token
        self.block = fused_layers(network)
        self.mask_feature = network.mask_feature()
        self._norm = network.norm
        self._head, self.draft_tokens = drafting_head(network, target)

    def new_state(self) -> PEagleState:
        return PEagleState(self)

    def logits(self, outputs: Tensor) -> Tensor:
        """Compute logits [n, Vd] float32 over the tokens that can be drafted, of the layers' outputs [n, H]."""
        return self._head(self._norm(outputs)).float()


class PEagleState(BlockState):
    """The cache of the text's rows, and the current draft's block.

    Row t pairs token t + 1 with feature t. Rows without a feature are rebuilt once it has arrived.
    """

    def __init__(self, drafter: PEagleDrafter) -> None:
        super().__init__(drafter)
        self._drafter = drafter
        self._device = drafter.embed.device
        self._features = RowBuffer(width=drafter.tap.width, dtype=drafter.embed.dtype, device=self._device)
        self._cache = drafter.block.new_cache()
        self._num_true = 0  # rows of the text whose features had arrived when they were made

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        self._features.append(self._token_state.add_features(first, rows).to(self._drafter.embed))

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        self._features.truncate(self._token_state.num_features)
        self._num_true = min(self._num_true, self._token_state.usable)
        self._cache.truncate(max(0, num_tokens - 1))

    def _run_blocks(self, paths: Sequence[Sequence[int]]) -> Tensor:
        drafter, tokens, usable = self._drafter, self._token_state.tokens, self._token_state.usable
        if self._num_true < usable:
            self._cache.truncate(self._num_true)
            self._num_true = usable
        # The root's row runs again in every pass: its output is asked for. A text of one token has row -1 alone.
        self._cache.truncate(max(0, len(tokens) - 2))
        first = min(self._cache.length, len(tokens) - 2)
        text, masks = tokens[first + 1 :], [drafter.mask_token] * (drafter.num_drafts - 1)
        blocks = [[*path, *masks] for path in paths]
        ids = torch.tensor([*text, *(token for block in blocks for token in block)], device=self._device)
        known = self._features.all[max(0, first) : usable]
        features = torch.cat((known, drafter.mask_feature.expand(len(ids) - len(known), -1)))
        pairs = torch.cat((F.embedding(ids, drafter.embed), features), dim=-1)
        outputs = self._outputs(pairs, first, len(text), [len(block) for block in blocks])
        self._cache.truncate(len(tokens) - 1)
        root, *own = torch.split(outputs, [1, *(len(block) for block in blocks)])
        drafted = torch.cat([torch.cat((root, rows))[-drafter.num_drafts :] for rows in own])
        return drafter.logits(drafted).view(len(paths), drafter.num_drafts, -1)

    def _outputs(self, pairs: Tensor, first: int, num_text: int, sizes: Sequence[int]) -> Tensor:
        """Append a text's rows, from position `first` on, and those of blocks below it to the cache.

        Returns the outputs [1 + k, H] of the text's last row and of the blocks'.
        """
        block, early = self._drafter.block, num_text - 1
        behind = [num_text + row for size in sizes for row in range(size)]
        positions = first + torch.tensor([*range(num_text), *behind], device=self._device)
        if early > _FEW_ROWS:
            block.append_kv(pairs[:early], block.shape.rope(positions[:early]), self._cache)
            pairs, positions, num_text = pairs[early:], positions[early:], 1
        held = self._cache.length
        of = [-1] * num_text + [number for number, size in enumerate(sizes) for _ in range(size)]
        blocks = torch.tensor(of, device=self._device)
        # Causal, and no row of a block sees another block's.
        seen = ((blocks == -1) | (blocks[:, None] == blocks)).tril()
        seen = torch.cat((seen.new_ones(len(seen), held), seen), dim=1)
        return block.run(pairs, block.shape.rope(positions), self._cache, seen)[num_text - 1 :]
