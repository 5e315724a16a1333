"""How much is accepted while only some of a prompt's features are there: its newest rows, or its oldest.

No state of the product takes rows with a gap before them. MoA's cross-attention sees a set of rows, each with its own
position, so its state is led to do without some here: those rows are no keys, and nothing else changes.

    newest 3   prompt . . . . # # # | answer # # # ... root
    oldest 3          # # # . . . . |        # # #
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from outrider_bench.studies.features.staleness import Share, share
from outrider_bench.studies.features.staleness_recording import Recording
from outrider_bench.studies.features.staleness_walk import accepted
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.moa.state import MoADrafter, MoAState
from outrider_drafters.trees.grow import grow_tree
from outrider_proto.errors import UsageError

End = Literal["newest", "oldest"]


@dataclass(frozen=True, slots=True)
class Part:
    """So many rows of a prompt, from one of its ends."""

    end: End
    rows: int

    def of(self, prompt: int) -> tuple[int, int]:
        """First row and the one after the last, of a prompt so long."""
        rows = min(self.rows, prompt)
        return (prompt - rows, prompt) if self.end == "newest" else (0, rows)


class GappedState(MoAState):
    """Told in order which rows it has and which it must do without."""

    def skip_to(self, position: int) -> None:
        """The rows from the next position to this one stay away."""
        self._record.num_features = position


def parts(rows: Sequence[int]) -> list[Part]:
    return [Part(end, number) for end in ("newest", "oldest") for number in rows]


def measure_parts(
    drafter: Drafter,
    recordings: Sequence[Recording],
    plan: TreePlan,
    chosen: Sequence[Part],
    step: Callable[[], None] = lambda: None,
) -> list[Share]:
    """Of all rows first, then of each part; `step` is called after each. Raises UsageError for other drafters than
    MoA without TLI."""
    if not isinstance(drafter, MoADrafter) or drafter.tail.blocks:
        raise UsageError(
            f"drafter of family {drafter.family}: only MoA without TLI can do without a prompt's older rows"
        )
    counts: list[NDArray[np.int64]] = []
    for part in (None, *chosen):
        counts.append(np.array([count(GappedState(drafter), one, plan, part) for one in recordings]))
        step()
    return [share(mine, counts[0]) for mine in counts]


@torch.inference_mode()
def count(state: GappedState, recording: Recording, plan: TreePlan, part: Part | None) -> tuple[int, int]:
    """Tokens and verdicts of the answer, drafted with this part of the prompt's rows and all of the answer's."""
    tokens, prompt = recording.tokens, len(recording.prompt)
    first, stop = (0, prompt) if part is None else part.of(prompt)
    known, there, verdicts = prompt + 1, prompt, 0
    state.append(tokens[:known])
    state.skip_to(first)
    state.add_features(first, recording.features[first:stop])
    state.skip_to(prompt)
    while (left := len(tokens) - known) > 0:
        state.append(tokens[state.num_tokens : known])
        state.add_features(there, recording.features[there : known - 1])
        there = known - 1
        known += min(left, accepted(grow_tree(state, plan), tokens[known:]) + 1)
        verdicts += 1
    return known - prompt - 1, verdicts
