"""DFlash, version 1, from published files, and its declaration: the client half drafts a whole block in one pass.

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

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import FROM_ROOT_OPTION
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.block_state import BlockDrafter, BlockState
from outrider_drafters.families.dflash.layout import canonical, default_plan, family_of, read_sizes
from outrider_drafters.families.dflash.network import NAME, BlockRows, DFlash, DFlashTap, is_fused, tap_info
from outrider_drafters.families.family import Family
from outrider_drafters.families.shared_layout import D2T, T2D, check_vocabulary
from outrider_proto.tree import DraftTree

LATE_ROWS = 8  # rows of a block before its root, at most
MAPS = frozenset({D2T, T2D})


class DFlashDrafter(BlockDrafter):
    """Client half: the layers, between an embedding and an lm_head, the target's or the drafter's own."""

    family = NAME

    def __init__(self, network: DFlash, target: TargetWeights, plan: TreePlan | None = None) -> None:
        tap = tap_info(network)  # of the weights as stored: before the cast
        self.network = network.to(target.embed.device, target.embed.dtype)
        super().__init__(target, tap, network.sizes.num_drafts, plan, network.embed_tokens)
        self.hint = network.sizes.hint
        # Trained with blocks that lack a whole block's verdict: docs/results/drafters.md, "Ahead of a verdict".
        self.stale_tolerant = network.sizes.late > self.num_drafts
        if network.lm_head is not None:
            self.head = target.head_for(network.lm_head.weight, network.draft_tokens)
        else:
            tokens = network.draft_tokens
            self.head = (target if tokens is None else target.drafting(tokens.tolist())).head_for(None)

    def new_state(self) -> DFlashState:
        return DFlashState(self)

    def head_logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [n, Vd] float32 over the tokens that can be drafted, of block rows [n, E]."""
        sizes = self.network.sizes
        logits = self.head.drafted(hidden) * sizes.logit_scale
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


def load_network(files: DrafterFiles, target: TargetSizes) -> DFlash:
    """Load the network. Raises UsageError for anything but version 1 for this target."""
    files = canonical(files)
    sizes = read_sizes(files, target)
    network = files.build(lambda: DFlash(sizes), also_known=MAPS)
    check_vocabulary(files, sizes.head_rows, target.vocab)
    return network


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> DFlashDrafter:
    network = load_network(files, target.sizes)
    return DFlashDrafter(network, target, default_plan(files, network.sizes.num_drafts))


FAMILY = Family(
    name=NAME,
    features="hidden states of several target layers, mixed to one row a token",
    offline="goes on",
    trees="dynamic",
    recognizes=lambda files: family_of(files) == NAME,
    drafter=_load_drafter,
    tap=lambda files, target, like: DFlashTap(load_network(files, target), like),
    keep_unquantized=is_fused,
    options=("target_layers", "draft_vocab", "ddtree", FROM_ROOT_OPTION),
)
