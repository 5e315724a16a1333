"""The draft state of drafters that give the logits of a whole block at once: levels of a tree over one block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from outrider_drafters.blocks.token_state import TokenState, WithTokenState
from outrider_drafters.checkpoints.draft_vocabulary import over_target_vocabulary
from outrider_drafters.contracts.drafter import tree_logits_by_level
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo
from outrider_proto.tree import ROOT, DraftTree


class BlockDrafter(Protocol):
    """A drafter of blocks."""

    @property
    def tap(self) -> TapInfo: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def draft_tokens(self) -> Tensor | None:
        """The target's tokens [Vd] of the head's rows; None where row i is token i."""
        ...

    @property
    def num_drafts(self) -> int:
        """Number of tokens that a block drafts."""
        ...


class BlockState(WithTokenState, ABC):
    """The draft rows of a block's tree. A state of a family runs the block, by default without regard to its tokens."""

    def __init__(self, drafter: BlockDrafter) -> None:
        self._block_drafter = drafter
        self._token_state = TokenState(drafter.tap.width)
        self._depths: list[int] = []  # of the draft rows
        self._logits: Tensor | None = None  # [max_levels, Vd]: row i for token i + 1 after the root

    @property
    def max_levels(self) -> int:
        return self._block_drafter.num_drafts

    def rollback(self, num_tokens: int) -> None:
        self._token_state.rollback(num_tokens)

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

    @abstractmethod
    def _run_block(self) -> Tensor:
        """Run the block from the root on and return its logits [max_levels, Vd] float32."""

    def _begin(self) -> None:
        """Run the block for a new draft."""
        self._token_state.need_root()
        self._depths = []
        self._logits = self._run_block()

    def _place(self, parents: Sequence[int]) -> None:
        """Number the nodes of a level as draft rows."""
        depth = 1 if parents[0] == ROOT else self._depths[parents[0]] + 1
        if depth >= self.max_levels:
            raise UsageError(f"a level beyond the last of a block that drafts {self.max_levels} tokens")
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
        drafter, is_shared = self._block_drafter, len(logits) > 1 and logits.stride(0) == 0
        rows = over_target_vocabulary(logits[:1] if is_shared else logits, drafter.draft_tokens, drafter.vocab_size)
        return rows.expand(len(logits), -1) if is_shared else rows
