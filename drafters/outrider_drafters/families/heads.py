"""What Medusa, Hydra and MLP speculators share: heads that each predict one token further ahead, and their tap.

position     q        q+1      q+2      q+3      q+4            h: the newest feature, at position q
token        x_q      x_q+1    x_q+2    ...                     x_q+1 is the root, unless features lag behind it
predicted by          lm_head  head 0   head 1   head 2  ...    from h (Medusa), and the tokens after q (Hydra)

A root at q + 1 is the common case: head 0 predicts its successor. Every token by which the root is further away costs
one head; a root at q, whose own feature is there, gets its successor from the target's lm_head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence

import torch
from torch import Tensor

from outrider_drafters.blocks.row_buffer import RowBuffer
from outrider_drafters.blocks.token_state import TokenState
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.drafter import Drafter, WithTokenState
from outrider_drafters.contracts.tap import LAST, LastHiddenTap
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo
from outrider_proto.tree import MAX_NODES, ROOT

DEFAULT_CHOICES = "mc_sim_7b_63"
TokenPath = tuple[int, ...]  # tokens after the feature's position


class HeadsDrafter(Drafter, ABC):
    """The client half of a family of heads, whose server half is NewestHiddenTap."""

    knows_next = True  # the feature is the input of the target's lm_head

    def __init__(self, target: TargetWeights, tap: TapInfo, num_heads: int, plan: TreePlan | None) -> None:
        self.target, self.tap, self.num_heads, self.plan = target, tap, num_heads, plan
        self.like = target.embed  # of the type and on the device in which it computes
        self.vocab_size = target.sizes.vocab

    @abstractmethod
    def after(self, feature: Tensor, lines: Sequence[TokenPath], held: dict[TokenPath, Tensor]) -> Tensor:
        """Logits [n, V] from the feature [1, width] after n paths of a length; `held` is the family's, for a draft."""

    def new_state(self) -> HeadsState:
        return HeadsState(self)


class NewestFeatureState(TokenState):
    """Tokens, and the feature rows of some of their positions, which come in order, with gaps.

    `num_features` is one more than the newest position that has a feature: a server sends only the newest.
    """

    # All rows are kept, not just the newest: after a rollback, the one before is needed.

    def __init__(self, width: int, like: Tensor) -> None:
        super().__init__(width)
        self._positions: list[int] = []
        self._rows = RowBuffer(width=width, dtype=like.dtype, device=like.device)

    def add_features(self, first: int, rows: Tensor) -> Tensor:
        """Keep and return the rows of positions from `first` on that are newer than the newest. Raises UsageError."""
        self.check_features(first, rows)
        newer = range(max(first, self.num_features), first + len(rows))
        lacking = rows[len(rows) - len(newer) :]
        self._positions.extend(newer)
        self._rows.append(lacking.to(self._rows.all))
        self.num_features = newer.stop if newer else self.num_features
        return lacking

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        del self._positions[bisect_left(self._positions, num_tokens) :]
        self._rows.truncate(len(self._positions))
        self.num_features = self._positions[-1] + 1 if self._positions else 0

    def newest(self, end: int) -> tuple[int, Tensor] | None:
        """Return position and row [1, width] of the newest feature before position `end`, if any."""
        number = bisect_left(self._positions, end) - 1
        return None if number < 0 else (self._positions[number], self._rows.all[number : number + 1])


class HeadsState(WithTokenState):
    """The draft state of heads. Nothing is cached between drafts, so a rollback only cuts tokens and features."""

    _token_state: NewestFeatureState

    def __init__(self, heads: HeadsDrafter) -> None:
        self._heads = heads
        self._token_state = NewestFeatureState(heads.tap.width, heads.like)
        self._feature: Tensor | None = None  # [1, width] of the current draft
        self._held: dict[TokenPath, Tensor] = {}  # what the family computed for it
        self._root: TokenPath = ()  # of the current draft
        self._lines: list[TokenPath] = []  # of the current draft's rows

    @property
    def max_levels(self) -> int:
        newest = self._newest()
        return 0 if newest is None else max(0, self._heads.num_heads - (self.num_tokens - 2 - newest[0]))

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        super().add_features(first, rows)

    @torch.inference_mode()
    def root_logits(self) -> Tensor:
        self._token_state.need_root()
        newest = self._newest()
        if newest is None or not self.max_levels:
            raise UsageError(f"the newest of {self.num_features} features is too old for {self._heads.num_heads} heads")
        position, row = newest
        # A copy: rows are views, which appends after a rollback overwrite.
        self._feature, self._held, self._lines = row.clone(), {}, []
        self._root = tuple(self._token_state.tokens[position + 1 :])
        if not self._root:
            return self._heads.target.logits(self._feature)[0]
        return self._heads.after(self._feature, [self._root], self._held)[0]

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        assert self._feature is not None
        above = [self._root if parent == ROOT else self._lines[parent] for parent in parents]
        lines = [(*line, token) for line, token in zip(above, tokens, strict=True)]
        if len(lines[0]) > self._heads.num_heads:
            raise UsageError(f"a level beyond the last of {self._heads.num_heads} heads")
        self._lines += lines
        return self._heads.after(self._feature, lines, self._held)

    def _newest(self) -> tuple[int, Tensor] | None:
        """Return the feature to draft from; the root's own only if the target's lm_head can read it."""
        return self._token_state.newest(self.num_tokens - (0 if self._heads.knows_next else 1))


def default_choices(num_heads: int) -> TreeChoices:
    """Return Medusa's and Hydra's tree, cut to the number of heads. Raises UsageError without heads."""
    fitted = TreeChoices.load(DEFAULT_CHOICES).fitted(num_heads, MAX_NODES)
    if fitted is None:
        raise UsageError("a drafter of heads without a head")
    return fitted


class NewestHiddenTap(LastHiddenTap):
    """The target's hidden state `offset` layers before its last one (0: after the final norm), the newest row alone."""

    def __init__(self, width: int, offset: int = 0) -> None:
        self.info, self.hidden_layers = newest_hidden_info(width, offset), (LAST - offset,)


def newest_hidden_info(width: int, offset: int = 0) -> TapInfo:
    """Describe the features."""
    # Not last_hidden_info's name, although the rows are the same: EAGLE needs every row, these only the newest.
    place = f":{offset}" if offset else ""
    return TapInfo(f"newest-hidden:{width}{place}", "newest-hidden", width, newest_only=True)
