"""The declaration of a family that can be trained.

Recipes, the command line and the trainers use this, and never ask which family it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from outrider_models.training.core.interfaces import Frequencies, TargetFacts, TrainableDrafter
from outrider_models.training.core.rates import Length, Schedule


class MakeDrafter(Protocol):
    # Any: the family's own settings
    def __call__(self, settings: Any, target: TargetFacts, frequencies: Frequencies) -> TrainableDrafter:
        """Build a drafter with random weights from torch's global generator."""
        ...


@dataclass(frozen=True, slots=True)
class TrainableFamily:
    """A family that can be trained. `schedule` and `length` are the paper's, for runs on chats."""

    name: str
    settings: type  # a frozen dataclass
    defaults: Callable[[TargetFacts], Any]  # the paper's values for a target; Any: an instance of `settings`
    make_drafter: MakeDrafter
    schedule: Schedule
    length: Length


def divisor(number: int, of: int) -> int:
    """Return the largest divisor of `of` that is at most `number`, at least 1."""
    return next(candidate for candidate in range(max(1, min(number, of)), 0, -1) if of % candidate == 0)
