"""DFlash (z-lab/dflash), version 1, as a drafter: see network.py for what it computes.

Drafts a block at once; in a tree, what is likely at a place is offered below every path. Features may lag: the block
stands at the root all the same, and its context has a gap before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.scratch import Scratch
from outrider_drafters.blocks.token_state import TokenState, WithTokenState
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.fingerprint import tensors_fingerprint
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.drafter import level_by_level
from outrider_drafters.contracts.tap import Activations, Memoryless
from outrider_drafters.contracts.tree_shape import MAX_LEVELS, TreePlan, TreeShape
from outrider_drafters.families.dflash.layout import load_network, recognizes
from outrider_drafters.families.dflash.network import DFlash
from outrider_drafters.families.family import Family
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo
from outrider_proto.tree import DraftTree

NAME = "dflash"


def tap_info(network: DFlash) -> TapInfo:
    """The features of this drafter: named after the weights that make them, and the layers."""
    weights = {"fc": network.fc.weight, "hidden_norm": network.hidden_norm.weight}
    layers = "-".join(map(str, network.sizes.taps))
    return TapInfo(f"{NAME}:{tensors_fingerprint(weights)}:{layers}", NAME, network.sizes.shape.width)


class DFlashTap(Memoryless):
    """Server half: hidden states of several layers, mixed to one context row a token."""

    needs_kv = False

    def __init__(self, network: DFlash, info: TapInfo | None = None) -> None:
        self.info = tap_info(network) if info is None else info
        self.hidden_layers = tuple(dict.fromkeys(network.sizes.taps))
        self._network = network

    @torch.inference_mode()
    def rows(self, acts: Activations) -> Tensor:
        like = self._network.fc.weight
        return self._network.context([acts.hidden[tap].to(like) for tap in self._network.sizes.taps]).float()


class DFlashDrafter:
    """Client half: the layers, between the target's embedding and its lm_head."""

    family = NAME
    stale_tolerant = False
    tree_in_one = True

    def __init__(self, network: DFlash, frozen: TargetWeights, tap: TapInfo | None = None) -> None:
        self.network = network
        self.frozen = frozen
        self.tap = tap_info(network) if tap is None else tap
        self.vocab_size = frozen.sizes.vocab
        self.plan: TreePlan | None = TreeShape.chain(min(network.sizes.block - 1, MAX_LEVELS))

    def new_state(self) -> DFlashState:
        return DFlashState(self)


class DFlashState(WithTokenState):
    """The context rows' keys and values, and the block of this drafting. See drafter.DraftState."""

    def __init__(self, drafter: DFlashDrafter) -> None:
        self._drafter = drafter
        self._record = TokenState(drafter.tap.width)
        self._caches = drafter.network.new_caches()
        self._scratch = Scratch(drafter.frozen.embed.device)
        self._logits: Tensor | None = None  # [reach, V] of this drafting: row i for the token i + 1 after the root

    @property
    def reach(self) -> int:
        return self._drafter.network.sizes.block - 1

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        start = self._record.num_features
        lacking = self._record.take(first, rows).to(self._drafter.frozen.embed)
        self._drafter.network.remember(lacking, start, self._caches)

    def rollback(self, num_tokens: int) -> None:
        self._record.rollback(num_tokens)
        for cache in self._caches:
            cache.truncate(self._record.num_features)

    @torch.inference_mode()
    def root_logits(self) -> Tensor:
        self._record.need_root()
        self._scratch.clear()
        self._logits = self._block_logits(self._record.tokens[-1])
        return self._logits[0]

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        depths, _ = self._scratch.add(parents, 0)
        logits = self._logits
        assert logits is not None
        if int(depths.max()) >= len(logits):
            raise UsageError(f"a level beyond the last of a block of {self.reach + 1}")
        return logits[depths]

    def tree_logits(self, tree: DraftTree) -> Tensor:
        return level_by_level(tree, self.root_logits(), self.expand)

    def _block_logits(self, root: int) -> Tensor:
        """Logits [block - 1, V] float32 of the places after the root."""
        frozen, sizes = self._drafter.frozen, self._drafter.network.sizes
        block = torch.tensor([root] + [sizes.mask_token] * (sizes.block - 1), device=frozen.embed.device)
        embeds = F.embedding(block, frozen.embed) * sizes.embed_scale
        hidden = self._drafter.network.run(embeds, self.num_tokens - 1, self._record.usable, self._caches)
        logits = F.linear(hidden[1:], frozen.lm_head).float() * sizes.logit_scale
        return logits if sizes.softcap is None else torch.tanh(logits / sizes.softcap) * sizes.softcap


def _load_drafter(files: DrafterFiles, frozen: TargetWeights) -> DFlashDrafter:
    network = load_network(files, frozen.sizes)
    info = tap_info(network)  # of the values as stored
    return DFlashDrafter(network.to(frozen.embed.device, frozen.embed.dtype), frozen, info)


def _load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> DFlashTap:
    network = load_network(files, target)
    info = tap_info(network)
    return DFlashTap(network.to(like.device, like.dtype), info)


FAMILY = Family(
    name=NAME,
    eats="hidden states of several target layers, mixed to one row a token",
    offline="goes on",
    trees="chain",
    recognizes=recognizes,
    drafter=_load_drafter,
    tap=_load_tap,
    options=("target_layers",),
)
