"""MoA's client half: Ekv2E, SA, CA and the target's last layers, between its embedding and its lm_head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.blocks.fused import FusedBlock
from outrider_drafters.blocks.last_layers import LastLayers
from outrider_drafters.blocks.layers import Rope
from outrider_drafters.blocks.row_buffer import JointCache
from outrider_drafters.blocks.token_state import TokenState, TreeMask
from outrider_drafters.checkpoints.draft_vocabulary import split_logits
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.drafter import Drafter, WithTokenState
from outrider_drafters.families.moa.last_layers_state import FusedLastLayers, LastLayersState
from outrider_drafters.families.moa.network import NAME, MoA, tap_info
from outrider_drafters.trees.grow import Level
from outrider_proto.frames import TapInfo
from outrider_proto.tree import DraftTree

_NO_TREE = DraftTree()


class MoADrafter(Drafter):
    """Client half of MoA. It reads the last layers from `target` unless `last` is given."""

    family = NAME
    stale_tolerant = True  # its T-step mask trains it for that
    tree_in_one_pass = True

    def __init__(
        self, moa: MoA, target: TargetWeights, tap: TapInfo | None = None, last: LastLayers | None = None
    ) -> None:
        sizes = moa.sizes
        self.target = target
        self.tap = tap_info(moa, target.sizes) if tap is None else tap
        self.vocab_size = target.sizes.vocab
        self.mixed_width = sizes.mixed_width
        self.ekv2e = moa.Ekv2E if sizes.has_lsa else nn.Identity()
        self.sa, self.ca = FusedBlock(moa.self_attention), FusedBlock(moa.cross_attention)
        self.tail = FusedLastLayers(target.last_layers(sizes.tli) if sizes.tli and last is None else last)
        self._one_rope = sizes.rope_scaling is None

    def new_state(self) -> MoAState:
        return MoAState(self)

    def ropes(self, positions: Tensor) -> tuple[Rope, Rope]:
        """Return SA's and CA's rotations."""
        # Only SA is scaled, as in the published training: see MoASizes.rope_scaling.
        rope = self.ca.shape.rope(positions)
        return (rope if self._one_rope else self.sa.shape.rope(positions)), rope


class MoAState(WithTokenState):
    """SA's cache over the tokens, CA's over the features, the last layers' over both."""

    def __init__(self, drafter: MoADrafter) -> None:
        self._drafter = drafter
        self._device = drafter.target.embed.device
        self._token_state = TokenState(drafter.tap.width)
        self._sa_cache = drafter.sa.new_cache()
        self._ca_cache = drafter.ca.new_cache()
        self._tail = LastLayersState(drafter.tail, drafter.tap.width - drafter.mixed_width, drafter.target.embed)
        self._tree_mask = TreeMask(self._device)
        self._num_text_rows = 0  # rows of SA's cache that are tokens'; draft rows follow
        self._num_visible = 0  # rows of CA's cache that this drafting sees

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        start, width = self._token_state.num_features, self._drafter.mixed_width
        rows = self._token_state.add_features(first, rows).to(self._drafter.target.embed)
        positions = torch.arange(start, start + len(rows), device=self._device)
        rope = self._drafter.ca.shape.rope(positions)
        self._drafter.ca.append_kv(self._drafter.ekv2e(rows[:, :width]), rope, self._ca_cache)
        self._tail.add_features(rows[:, width:])

    def rollback(self, num_tokens: int) -> None:
        self._token_state.rollback(num_tokens)
        self._num_text_rows = min(self._num_text_rows, num_tokens)
        self._ca_cache.truncate(self._token_state.num_features)
        self._tail.rollback(num_tokens)

    def root_logits(self) -> Tensor:
        return self.tree_logits(_NO_TREE)[0]

    @torch.inference_mode()
    def tree_logits(self, tree: DraftTree) -> Tensor:
        self._token_state.need_root()
        self._tree_mask.clear()
        tokens, root, usable = self._token_state.tokens, self.num_tokens - 1, self._token_state.usable
        start = self._tail.begin(usable, root)  # includes at least the root, whose query is needed
        first = min(self._num_text_rows, start)
        self._sa_cache.truncate(first)
        rope, _ = self._drafter.ropes(torch.arange(first, start, device=self._device))
        self._drafter.sa.append_kv(self._embeds(tokens[first:start]), rope, self._sa_cache)
        self._num_text_rows, self._num_visible = self.num_tokens, usable
        positions = torch.arange(start, self.num_tokens, device=self._device)
        mask = _causal(positions)
        if tree.tokens:
            depths, sees = self._tree_mask.add(tree.parents, self._num_text_rows)
            positions, mask = torch.cat((positions, depths + root)), _above(mask, sees)
        hidden = _hidden([self], [[*tokens[start:], *tree.tokens]], [positions], [mask])
        self._tail.mark_text(self.num_tokens)
        return self._logits(hidden[root - start :])

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        (logits,) = self.expand_together([(self, Level(tokens, parents))])
        return logits

    @staticmethod
    @torch.inference_mode()
    def expand_together(levels: Sequence[tuple[MoAState, Level]]) -> list[Tensor]:
        states, tokens = [state for state, _ in levels], [level.tokens for _, level in levels]
        positions, masks = [], []
        for state, level in levels:
            depths, mask = state._tree_mask.add(level.parents, state._num_text_rows)
            positions.append(depths + (state.num_tokens - 1))
            masks.append(mask)
        return split_logits(states[0]._logits(_hidden(states, tokens, positions, masks)), [len(own) for own in tokens])

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._drafter.target.logits(hidden)

    def _embeds(self, tokens: Sequence[int]) -> Tensor:
        return F.embedding(torch.tensor(tokens, dtype=torch.int64, device=self._device), self._drafter.target.embed)


def _hidden(
    states: Sequence[MoAState],
    tokens: Sequence[Sequence[int]],
    positions: Sequence[Tensor],
    masks: Sequence[Tensor | None],
) -> Tensor:
    """Append rows to SA's and the last layers' caches and return their states [n, E] for lm_head, text behind text.

    masks[i] [n of text i, rows of its cache] bool; None: they see all.
    """
    drafter, sizes = states[0]._drafter, [len(own) for own in tokens]
    sa_rope, ca_rope = drafter.ropes(torch.cat(list(positions)))
    embeds = states[0]._embeds([token for own in tokens for token in own])
    attended = drafter.sa.run(embeds, sa_rope, JointCache([state._sa_cache for state in states], masks, sizes))
    seen = [state._ca_cache.first(state._num_visible) for state in states]
    crossed = drafter.ca.cross_attend(attended, ca_rope, seen, sizes)
    return LastLayersState.run([state._tail for state in states], crossed, positions, masks)


def _above(mask: Tensor | None, sees: Tensor) -> Tensor:
    """Join the mask of text rows (None: one row that sees all of the text) with that of a tree's nodes below them."""
    num_nodes, num_rows = sees.shape
    standing = sees.new_ones(1, num_rows - num_nodes) if mask is None else mask
    return torch.cat((F.pad(standing, (0, num_nodes)), sees))


def _causal(positions: Tensor) -> Tensor | None:
    """Return the causal mask of consecutive rows over all rows up to theirs; None for a single row, which sees all."""
    if len(positions) == 1:
        return None
    rows = torch.arange(int(positions[-1]) + 1, device=positions.device)
    return rows <= positions.unsqueeze(1)
