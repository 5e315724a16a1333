"""The client's half of a drafter, as every family offers it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from outrider_drafters.trees.shape import TreePlan
from outrider_proto.frames import TapInfo

ENDLESS = 2**31  # what `reach` answers where a drafter can go on from its own guesses


class DraftState(Protocol):
    """What a drafter knows of one text. Position p's feature is what the target knew after processing token p.

    After any calls the state equals a fresh one that was given the same tokens and features.
    """

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_features(self) -> int:
        """Positions 0 .. num_features - 1 have theirs; the newest tokens may lack them. A drafter that eats the newest
        feature alone (TapInfo.newest_only) counts as having all before it."""
        ...

    @property
    def reach(self) -> int:
        """Levels it can draft from here: ENDLESS, or as many as its heads reach past the newest feature, maybe 0."""
        ...

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens that stand, committed or unverified; the last one is the root."""
        ...

    def add_features(self, first: int, rows: Tensor) -> None:  # [n, width] float32
        """Feature rows of positions first, first + 1, ...; those it has are ignored, a gap raises UsageError unless it
        only wants the newest."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens; the features of the others go too."""
        ...

    def root_logits(self) -> Tensor:
        """Logits [V] for the root's successor; -inf for one it would never draft. Ends any earlier drafting: its
        scratch rows are forgotten. Raises UsageError where `reach` is 0."""
        ...

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Logits [n, V] for the successors of n drafted nodes, given as their tokens and their parents' scratch rows.

        A node's scratch row is numbered from 0 in order of expansion since root_logits; -1 is the root. A call's nodes
        are of one level, and levels come in order, at most `reach` of them (the root's counts).
        """
        ...


class Drafter(Protocol):
    @property
    def family(self) -> str: ...

    @property
    def tap(self) -> TapInfo:
        """The features it wants from the server; an empty fingerprint for none."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def plan(self) -> TreePlan | None:
        """The trees it was made for, where that is a fixed set of choices; None: any."""
        ...

    def new_state(self) -> DraftState: ...
