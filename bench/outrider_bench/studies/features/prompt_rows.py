"""Acceptance with only some of a prompt's feature rows: the newest, or the oldest.

No state of the product accepts rows with a gap before them. MoA's cross-attention sees a set of rows, each with its own
position, so here its state leaves some out: those rows are not among the keys, and nothing else changes.

    newest 3   prompt . . . . # # # | answer # # # ... root
    oldest 3          # # # . . . . |        # # #
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from outrider_bench.core.acceptance import SHAPES
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question, lengthened, questions
from outrider_bench.core.reference_answers import plain_answers
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, table
from outrider_bench.studies.features.acceptance_replay import accepted
from outrider_bench.studies.features.recorded_features import RecordedAnswer
from outrider_bench.studies.features.staleness import TauShare, record_features, tau_share
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.moa.drafter import MoADrafter, MoAState
from outrider_drafters.trees.grow import grow_tree
from outrider_proto.errors import UsageError
from outrider_server.engine.target import Target

End = Literal["newest", "oldest"]


@dataclass(frozen=True, slots=True)
class PromptRows:
    """The `rows` newest or oldest feature rows of a prompt."""

    end: End
    rows: int

    def of(self, prompt: int) -> tuple[int, int]:
        """Return the first row and the one after the last, for a prompt of this length."""
        rows = min(self.rows, prompt)
        return (prompt - rows, prompt) if self.end == "newest" else (0, rows)


class GappedState(MoAState):
    """A MoA draft state that can leave out rows."""

    def skip_to(self, position: int) -> None:
        """Leave out the rows from the next position to this one."""
        # Reaches into private state of MoA: the product has no way to leave rows out.
        self._token_state.num_features = position


def prompt_row_choices(rows: Sequence[int]) -> list[PromptRows]:
    return [PromptRows(end, number) for end in ("newest", "oldest") for number in rows]


def measure_prompt_rows(
    drafter: Drafter,
    recordings: Sequence[RecordedAnswer],
    plan: TreePlan,
    chosen: Sequence[PromptRows],
    step: Callable[[], None] = lambda: None,
) -> list[TauShare]:
    """Measure all rows first, then each choice; `step` is called after each.

    Raises UsageError for drafters other than MoA without TLI.
    """
    if not isinstance(drafter, MoADrafter) or drafter.tail.blocks:
        raise UsageError(f"drafter of family {drafter.family}: only MoA without TLI can leave out rows of a prompt")
    counts: list[NDArray[np.int64]] = []
    for part in (None, *chosen):
        counts.append(np.array([count(GappedState(drafter), one, plan, part) for one in recordings]))
        step()
    return [tau_share(mine, counts[0]) for mine in counts]


@torch.inference_mode()
def count(state: GappedState, recording: RecordedAnswer, plan: TreePlan, part: PromptRows | None) -> tuple[int, int]:
    """Count tokens and verdicts of the answer, drafted with these rows of the prompt and all of the answer's."""
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


Shares = Mapping[str, TauShare]  # by what is there of a prompt's features, all of them first


def ask_long_prompts(directory: Path, per_family: int, least: int) -> Sequence[Question]:
    models = LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER))
    return lengthened(questions(models, per_family), models, least)


async def measure_shares(
    directory: Path, source: Path, asked: Sequence[Question], chosen: Sequence[PromptRows], limit: int, step: Step
) -> dict[str, Shares]:
    """Measure all choices, by shape of the trees."""
    target = Target.load(str(directory))
    answers = plain_answers(target, asked, limit, step)
    drafter, recordings = await record_features(target, directory, source, asked, answers)
    names = ["all", *(f"{part.end} {part.rows}" for part in chosen)]
    results: dict[str, Shares] = {}
    for shape, plan in SHAPES.items():
        shares = measure_prompt_rows(drafter, recordings, plan, chosen, ProgressCounter(step, shape, len(names)))
        results[shape] = dict(zip(names, shares, strict=True))
    return results


def prompt_rows_table(shape: str, shares: Shares) -> ResultTable:
    rows = [(name, *one.cells) for name, one in shares.items()]
    return table(shape, ("features of the prompt", "tau", "share"), rows, caption=OVER_PROMPTS)


def read_row_counts(text: str) -> list[int]:
    numbers = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if min(numbers) < 1:
        raise UsageError(f"rows={text!r}: need whole numbers from 1 on, separated by commas")
    return numbers
