"""The declaration of a family of drafters. All other code asks it, and never which family it has."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import SHARED, DrafterOption
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tap import Tap
from outrider_proto.errors import UsageError

OF_EVERY_DRAFTER = ("family", "copy", "suffix")  # options that belong to no family
Offline = Literal["goes on", "as far as its heads", "copies"]
Trees = Literal["dynamic", "fixed choices", "chain"]


@dataclass(frozen=True, slots=True)
class Family:
    """One family, declared in its own package and found there by its name FAMILY, or by a package's entry point.

    `features` says what it reads of the target, `offline` how it goes on without one, `trees` what it drafts unless
    told otherwise. `recognizes` looks at names and configuration only; it is not called for a family that needs no
    files, which is chosen by its name. `drafter` and `tap` load the two halves and raise UsageError; the tap's weights
    take the type and device of the tensor given, and None is the tap of a family without features.
    `keep_unquantized` selects the tensors that an edge bundle must store as they are: those that the tap's fingerprint
    covers. `is_head` selects those with a row for every token: a bundle with a draft vocabulary stores its rows alone.
    `options` are those that it reads besides `family`; others are refused. One of options.SHARED may be given by its
    name. A family whose heads TargetWeights.draft_tokens restricts has `draft_vocab` among them. `asked` is its turn
    among Outrider's own: one that also recognizes what belongs to another has a later one.
    """

    name: str
    features: str
    offline: Offline
    trees: Trees
    drafter: Callable[[DrafterFiles, TargetWeights], Drafter]
    recognizes: Callable[[DrafterFiles], bool] = lambda files: False
    tap: Callable[[DrafterFiles, TargetSizes, Tensor], Tap | None] = lambda files, target, like: None
    needs_files: bool = True
    keep_unquantized: Callable[[str], bool] = lambda name: False
    is_head: Callable[[str], bool] = lambda name: False
    options: tuple[DrafterOption[Any] | str, ...] = ()  # Any: each has values of its own type
    asked: int = 0

    def __post_init__(self) -> None:
        names = [*OF_EVERY_DRAFTER, *(option if isinstance(option, str) else option.name for option in self.options)]
        for option in self.options:
            if isinstance(option, str) and option not in SHARED:
                raise UsageError(f"family {self.name}: option {option}: need a DrafterOption, or {', '.join(SHARED)}")
        if twice := sorted(name for name in set(names) if names.count(name) > 1):
            raise UsageError(f"family {self.name}: option {', '.join(twice)}: declared already, need another name")

    @property
    def declared_options(self) -> tuple[DrafterOption[Any], ...]:
        return tuple(SHARED[option] if isinstance(option, str) else option for option in self.options)


def like(dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """An empty tensor that carries a type and a device."""
    return torch.empty(0, dtype=dtype, device=device)
