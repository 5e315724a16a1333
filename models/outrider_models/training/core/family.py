"""What a family says of its training. Recipes, the command line and the loop ask this, and never which family it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from outrider_models.training.core.interfaces import Frequencies, Pupil, TargetFacts
from outrider_models.training.core.rates import Length, Schedule


class MakePupil(Protocol):
    def __call__(self, settings: Any, target: TargetFacts, frequencies: Frequencies) -> Pupil:  # Any: its own settings
        """A fresh one, from torch's generator."""
        ...


@dataclass(frozen=True, slots=True)
class Trainable:
    """A family that can be trained. `settings` is a frozen dataclass; `defaults` has the paper's values for a target;
    `schedule` and `length` are its run on chats."""

    name: str
    settings: type
    defaults: Callable[[TargetFacts], Any]  # Any: an instance of `settings`
    pupil: MakePupil
    schedule: Schedule
    length: Length


def divisor(number: int, of: int) -> int:
    """The largest divisor of `of` that is at most `number`, at least 1."""
    return next(candidate for candidate in range(max(1, min(number, of)), 0, -1) if of % candidate == 0)
