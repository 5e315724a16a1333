"""Replays of known answers with some features missing: what would be accepted, verdict by verdict.

The target's greedy answer does not depend on the drafts, so they can be judged against the answer itself and no target
has to run. With all features, this counts what the real loop counts.

    tokens        prompt | answer ........... root
    fresh         features of every position before the root
    s tokens      the newest s of those are missing, though never the prompt's
    k verdicts    only those are there that were fresh k drafts ago: later ones came after the drafts were sent
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outrider_drafters.contracts.drafter import Drafter, DraftState
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.trees.grow import grow_tree
from outrider_lab.studies.recorded_features import RecordedAnswer
from outrider_proto.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class Lag:
    """Delay of features, in tokens or in verdicts."""

    tokens: int = 0
    verdicts: int = 0

    def num_features(self, fresh: list[int], prompt: int) -> int:
        """Return the features known to the newest draft; `fresh[i]` are those of draft i without lag."""
        return max(prompt, fresh[max(0, len(fresh) - 1 - self.verdicts)] - self.tokens)


class AcceptanceReplay:
    """Drafts along one recorded answer; replays with different lags share their drafts."""

    def __init__(self, drafter: Drafter, recording: RecordedAnswer, plan: TreePlan) -> None:
        self._drafter, self._recording, self._plan = drafter, recording, plan
        self._accepted: dict[tuple[int, int], int] = {}  # by number of tokens and of features

    def committed_by_verdict(self, lag: Lag) -> tuple[int, ...]:
        """Return the tokens that each verdict commits, bonus included, without the prompt's own."""
        state, prompt = self._drafter.new_state(), len(self._recording.prompt)
        committed: list[int] = []
        fresh: list[int] = []
        known = prompt + 1
        while (left := len(self._recording.tokens) - known) > 0:
            fresh.append(known - 1)
            there = lag.num_features(fresh, prompt)
            committed.append(min(left, self._draft(state, known, there) + 1))
            known += committed[-1]
        return tuple(committed)

    @torch.inference_mode()
    def _draft(self, state: DraftState, known: int, there: int) -> int:
        """Return the accepted tokens of the tree below token known - 1; cached."""
        # A draft depends only on the tokens known and the features there, so lags share drafts.
        if (known, there) not in self._accepted:
            tokens, has = self._recording.tokens, state.num_features
            state.append(tokens[state.num_tokens : known])
            if there > has and self._drafter.tap.fingerprint:
                state.add_features(has, self._recording.features[has:there])
            self._accepted[known, there] = accepted(grow_tree(state, self._plan), tokens[known:])
        return self._accepted[known, there]


def accepted(tree: DraftTree, truth: tuple[int, ...]) -> int:
    """Return the length of the path that `truth` takes through the tree."""
    children = {
        (parent, token): node for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
    }
    node, depth = ROOT, 0
    while depth < len(truth) and (node, truth[depth]) in children:
        node, depth = children[node, truth[depth]], depth + 1
    return depth
