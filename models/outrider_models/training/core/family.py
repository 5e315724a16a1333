"""The declaration of a family that can be trained.

Recipes, the command line and the trainers use this, and never ask which family it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outrider_models.training.core.interfaces import Frequencies, TargetFacts, TrainableDrafter
from outrider_models.training.core.rates import Length, Schedule


@dataclass(frozen=True, slots=True)
class TrainableFamily:
    """A family that can be trained. `schedule` and `length` are the paper's, for runs on chats."""

    name: str
    settings: type  # a frozen dataclass
    defaults: Callable[[TargetFacts], Any]  # the paper's values for a target; Any: an instance of `settings`
    # From settings, with random weights of torch's global generator.
    make_drafter: Callable[[Any, TargetFacts, Frequencies], TrainableDrafter]
    schedule: Schedule
    length: Length


def divisor(number: int, of: int) -> int:
    """Return the largest divisor of `of` that is at most `number`, at least 1."""
    return next(candidate for candidate in range(max(1, min(number, of)), 0, -1) if of % candidate == 0)
