"""The draft state of drafters that give the logits of a whole block at once: levels of a tree over its blocks.

root . . .      a block drafts num_drafts tokens after its root, a slot for each level of nodes
     a . .
       b . .    below a node at its end begins another block,
x . . .         and at each bonus that may follow a tree whose verdict is awaited (trees/predraft.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn

from outrider_drafters.blocks.token_state import TokenState
from outrider_drafters.checkpoints.draft_vocabulary import DraftHead
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.drafter import Drafter, WithTokenState
from outrider_drafters.contracts.tree_shape import MAX_LEVELS, TreePlan, TreeShape
from outrider_proto.frames import TapInfo
from outrider_proto.tree import ROOT, DraftTree


class BlockDrafter(Drafter, ABC):
    """A family of blocks: `num_drafts` tokens in one pass, as a chain unless `plan` says otherwise."""

    tree_in_one_pass = True
    head: DraftHead

    def __init__(
        self,
        target: TargetWeights,
        tap: TapInfo,
        num_drafts: int,
        plan: TreePlan | None,
        own_embedding: nn.Embedding | None,
    ) -> None:
        self.target, self.tap, self.vocab_size = target, tap, target.sizes.vocab
        self.num_drafts = self.levels_per_pass = num_drafts
        self.plan = TreeShape.chain(min(num_drafts, MAX_LEVELS)) if plan is None else plan
        self.embed = target.embed if own_embedding is None else own_embedding.weight.detach()

    @abstractmethod
    def new_state(self) -> BlockState: ...


class Slot(NamedTuple):
    """Where the successors of a node are found: row 0 of a block follows its root."""

    block: int
    row: int


class BlockState(WithTokenState, ABC):
    """The draft rows of a tree over blocks. A state of a family runs these, by default without regard to the nodes."""

    def __init__(self, drafter: BlockDrafter) -> None:
        self._block_drafter = drafter
        self._token_state = TokenState(drafter.tap.width)
        self._tokens: list[int] = []  # of the draft rows
        self._parents: list[int] = []
        self._slots: dict[int, Slot] = {}  # of the root and the draft rows
        self._num_judged = ROOT  # draft rows of a tree that tree_logits was asked for: bonuses follow its nodes
        self._logits: Tensor | None = None  # [blocks, num_drafts, Vd]

    @torch.inference_mode()
    def root_logits(self) -> Tensor:
        self._begin(DraftTree())
        return self._over_vocabulary(self._draft_logits([ROOT]))[0]

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        first = len(self._tokens)
        assert self._logits is not None
        if roots := self._place(tokens, parents, len(self._logits)):
            self._run(roots)
        return self._over_vocabulary(self._draft_logits(range(first, len(self._tokens))))

    @torch.inference_mode()
    def tree_logits(self, tree: DraftTree) -> Tensor:
        self._begin(tree)
        levels = groupby(range(len(tree)), key=tree.depths().__getitem__)
        nodes = [[ROOT], *(list(level) for _, level in levels)]
        logits = torch.cat([self._over_vocabulary(self._level_logits(level)) for level in nodes])
        self._num_judged = len(tree)
        return logits

    @abstractmethod
    def _run_blocks(self, paths: Sequence[Sequence[int]]) -> Tensor:
        """Run a block below the text and each path, whose last token is its root, in one pass; [n, drafts, Vd]."""

    def _begin(self, tree: DraftTree) -> None:
        """Start a draft that has the nodes of `tree`, and run all of its blocks."""
        self._token_state.need_root()
        self._tokens, self._parents, self._num_judged, self._logits = [], [], ROOT, None
        self._slots = {ROOT: Slot(0, 0)}
        self._run([ROOT, *self._place(tree.tokens, tree.parents, 1)])

    def _place(self, tokens: Sequence[int], parents: Sequence[int], num_blocks: int) -> list[int]:
        """Give nodes their draft rows and slots; return those that are roots of blocks, beyond the `num_blocks`."""
        roots: list[int] = []
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True), len(self._tokens)):
            self._tokens.append(token)
            self._parents.append(parent)
            above = self._slots[parent]
            if parent < self._num_judged or above.row + 1 == self._block_drafter.num_drafts:
                self._slots[node] = Slot(num_blocks + len(roots), 0)
                roots.append(node)
            else:
                self._slots[node] = Slot(above.block, above.row + 1)
        return roots

    def _run(self, roots: Sequence[int]) -> None:
        logits = self._run_blocks([self._path_to(root) for root in roots])
        self._logits = logits if self._logits is None else torch.cat((self._logits, logits))

    def _path_to(self, node: int) -> list[int]:
        path: list[int] = []
        while node != ROOT:
            path.append(self._tokens[node])
            node = self._parents[node]
        return path[::-1]

    def _draft_logits(self, nodes: Sequence[int]) -> Tensor:
        """Return what to draft after the newest nodes, [n, Vd]; -inf below a node that ends the draft."""
        return self._level_logits(nodes)

    def _level_logits(self, nodes: Sequence[int]) -> Tensor:
        """Return logits [n, Vd] after the newest nodes, or after the root."""
        assert self._logits is not None
        return self._in_slots(self._logits, nodes)

    def _in_slots(self, values: Tensor, nodes: Sequence[int]) -> Tensor:
        """Look up the nodes' slots [n, width] in values [blocks, num_drafts, width]."""
        slots = [self._slots[node] for node in nodes]
        if len(set(slots)) == 1:
            # One row for all nodes, which is not copied: no token depends on those before it.
            return values[slots[0].block, slots[0].row, None].expand(len(nodes), -1)
        return values[[slot.block for slot in slots], [slot.row for slot in slots]]

    def _over_vocabulary(self, logits: Tensor) -> Tensor:
        # After the cap, not before: it would make -softcap of -inf.
        is_shared = len(logits) > 1 and logits.stride(0) == 0
        rows = self._block_drafter.head.over_vocabulary(logits[:1] if is_shared else logits)
        return rows.expand(len(logits), -1) if is_shared else rows
