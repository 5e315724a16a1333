"""The client half of a Gemma-4 assistant. It keeps no K/V of its own, only what the target lends.

Where features lag, the tokens without them are run like drafted ones: all stand where the first of them does. Without
any feature, a hidden state of zeros starts that, and attention adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.packed_linear import PackedLinear
from outrider_drafters.blocks.row_buffer import KVCache, RowBuffer
from outrider_drafters.blocks.token_state import TokenState
from outrider_drafters.checkpoints.draft_vocabulary import over_target_vocabulary, select_rows, split_logits
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.drafter import Drafter, WithTokenState
from outrider_drafters.families.gemma4.network import NAME, Assistant, Kind, Lent, tap_info
from outrider_drafters.trees.grow import Level


class AssistantDrafter(Drafter):
    """Client half: the network between the target's embedding and its own head.

    `lenders`: the target's layers whose K/V it reads. `row_tokens` [rows]: the tokens that the rows of a plain head
    stand for; None: row i is token i.
    """

    family = NAME

    def __init__(
        self, network: Assistant, target: TargetWeights, lenders: tuple[int, ...], row_tokens: Tensor | None = None
    ) -> None:
        self.network = network
        self.target = target
        self.tap = tap_info(network.sizes, lenders)
        self.vocab_size = target.sizes.vocab
        self.draft_tokens: Tensor | None = None
        self._head: PackedLinear | None = None
        if network.masked_embedding is None:
            own = network.lm_head.weight.detach()
            stored = None if row_tokens is None else row_tokens.to(own.device)
            rows, self.draft_tokens = select_rows(own, stored, target.draft_tokens)
            self._head = PackedLinear(rows, packed=None)
        # Rounded to the weights' type, as in transformers: in bfloat16 the root of 3072 is 55.5.
        self._scale = torch.tensor(network.sizes.backbone**0.5).to(target.embed.device, network.norm.weight.dtype)

    def new_state(self) -> AssistantState:
        return AssistantState(self)

    def run(
        self, tokens: Sequence[int], before: Tensor, texts: Sequence[Lent], counts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Run rows of tokens, given `before` [n, E] of the tokens before them.

        Return states for the head [n, width], and what stands for the tokens' own hidden states [n, E].
        """
        embeds = F.embedding(torch.tensor(tokens, device=before.device), self.target.embed).to(before) * self._scale
        hidden = self.network.run(torch.cat((embeds, before), dim=-1), texts, counts)
        return hidden, self.network.post_projection(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [n, V] float32 of states [n, width]."""
        if self._head is None:
            return self.network.ordered_logits(hidden)
        return over_target_vocabulary(self._head(hidden).float(), self.draft_tokens, self.vocab_size)


class AssistantState(WithTokenState):
    """What the target lends of the text, and the hidden states of draft rows."""

    def __init__(self, drafter: AssistantDrafter) -> None:
        sizes, like = drafter.network.sizes, drafter.network.norm.weight
        self._drafter = drafter
        self._token_state = TokenState(sizes.feature_width)
        self._caches: dict[Kind, KVCache] = {
            kind: KVCache(sizes.lent[kind].kv_heads, sizes.lent[kind].head_dim, like.dtype, like.device)
            for kind in sizes.borrowed
        }
        self._hidden = RowBuffer(width=sizes.backbone, dtype=like.dtype, device=like.device)
        self._lent: Lent | None = None  # of the current draft
        self._position = 0  # at which it stands
        self._stale: list[Tensor] = []  # [1, E] of the tokens from there on that the root follows
        self._rows = self._hidden.all  # [1 + n, E] of the root and every draft row

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        sizes = self._drafter.network.sizes
        parts = [part for kind in sizes.borrowed for part in [sizes.lent[kind].width // 2] * 2]
        lacking = self._token_state.add_features(first, rows).to(self._hidden.all)
        *lent, hidden = torch.split(lacking, [*parts, sizes.backbone], dim=1)
        for number, (kind, cache) in enumerate(self._caches.items()):
            shape = (len(lacking), sizes.lent[kind].kv_heads, sizes.lent[kind].head_dim)
            keys, values = (part.reshape(shape).transpose(0, 1) for part in lent[2 * number : 2 * number + 2])
            cache.append(keys, values)
        self._hidden.append(hidden)

    def rollback(self, num_tokens: int) -> None:
        self._token_state.rollback(num_tokens)
        for cache in self._caches.values():
            cache.truncate(self._token_state.num_features)
        self._hidden.truncate(self._token_state.num_features)
        del self._stale[max(num_tokens - 1 - self._position, 0) :]

    @torch.inference_mode()
    def root_logits(self) -> Tensor:
        self._begin()
        assert self._lent is not None
        hidden, self._rows = self._drafter.run(self._token_state.tokens[-1:], self._before_root(), [self._lent], [1])
        return self._drafter.logits(hidden)[0]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        (logits,) = self.expand_together([(self, Level(tokens, parents))])
        return logits

    @staticmethod
    @torch.inference_mode()
    def expand_together(levels: Sequence[tuple[AssistantState, Level]]) -> list[Tensor]:
        drafter, counts = levels[0][0]._drafter, [len(level.tokens) for _, level in levels]
        before = torch.cat([state._rows[[1 + parent for parent in level.parents]] for state, level in levels])
        texts = [state._lent for state, _ in levels if state._lent is not None]
        hidden, after = drafter.run([token for _, level in levels for token in level.tokens], before, texts, counts)
        for (state, _), own in zip(levels, torch.split(after, counts), strict=True):
            state._rows = torch.cat((state._rows, own))
        return split_logits(drafter.logits(hidden), counts)

    def _begin(self) -> None:
        """Take over what the target lends for a new draft, and run the tokens between that and the root."""
        self._token_state.need_root()
        position = self._token_state.usable
        if position != self._position:
            self._position = position
            self._stale.clear()
        self._lent = self._lend(position)
        for token in self._token_state.tokens[position + len(self._stale) : -1]:
            self._stale.append(self._drafter.run([token], self._before_root(), [self._lent], [1])[1])

    def _before_root(self) -> Tensor:
        """Return the hidden state [1, E] of the last token that has been run."""
        if self._stale:
            return self._stale[-1]
        last = self._hidden.all[: self._position][-1:]
        return last if len(last) else last.new_zeros(1, self._drafter.network.sizes.backbone)

    def _lend(self, position: int) -> Lent:
        sizes = self._drafter.network.sizes
        # transformers' bidirectional window counts from the last key and takes in both ends: window + 1 keys. With the
        # target's own cache it has one less after a pass of a single token, which no verdict's is.
        first = {"sliding_attention": max(0, position - 1 - sizes.window), "full_attention": 0}
        return Lent(
            {
                kind: (cache.keys[:, :, first[kind] : position], cache.values[:, :, first[kind] : position])
                for kind, cache in self._caches.items()
            },
            {kind: sizes.lent[kind].rope(position, self._hidden.all.device) for kind in self._caches},
        )
