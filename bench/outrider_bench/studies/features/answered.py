"""Held-out prompts and the target's own answers to them, against which drafters are measured without a link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider_bench.core.acceptance import SHAPES
from outrider_bench.core.progress import Counter, Step
from outrider_bench.core.prompts import Question, by_family, questions
from outrider_bench.core.reference_answers import plain_answers
from outrider_bench.studies.features.staleness import Cell, Measured, measure, recorded
from outrider_bench.studies.features.staleness_recording import Recording
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.drafter import Drafter
from outrider_server.engine.target import Target


@dataclass(frozen=True, slots=True)
class Answered:
    """`directory` is the target's."""

    directory: Path
    target: Target
    asked: Sequence[Question]
    answers: Sequence[tuple[int, ...]]

    @classmethod
    def by(cls, directory: Path, per_family: int, limit: int, step: Step) -> Answered:
        """The target in that directory, asked so many questions of each family."""
        asked = questions(LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER)), per_family)
        target = Target.load(str(directory))
        return cls(directory, target, asked, plain_answers(target, asked, limit, step))

    async def recorded(self, drafter: Path) -> tuple[Drafter, list[Recording]]:
        """A drafter and what its tap makes of all questions and answers."""
        return await recorded(self.target, self.directory, drafter, self.asked, self.answers)

    def measured(
        self, name: str, drafter: Drafter, recordings: Sequence[Recording], chosen: Sequence[Cell], step: Step
    ) -> dict[str, list[Measured]]:
        """The chosen cells, by shape of the trees."""
        families = by_family(self.asked)
        return {
            shape: measure(
                drafter, recordings, families, plan, chosen, Counter(step, f"{name}, {shape}", len(self.asked))
            )
            for shape, plan in SHAPES.items()
        }
