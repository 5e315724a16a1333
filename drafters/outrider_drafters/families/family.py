"""What a family of drafters says of itself. Everything else asks this, and never which family it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tap import Tap

Offline = Literal["goes on", "as far as its heads", "copies"]
Trees = Literal["dynamic", "fixed choices", "chain"]


@dataclass(frozen=True, slots=True)
class Family:
    """One family, declared in its own file and listed in families.py.

    `eats` is what it wants of the target, `offline` how it writes without one, `trees` what it drafts unless told
    otherwise. `recognizes` looks at names and configuration only. `drafter` and `tap` load the two halves, the tap's
    weights as the type and on the device of a tensor, None for a family that wants no features; both raise UsageError.
    A family that needs no files is asked for by its name, and its `recognizes` is not asked. `keeps` names the tensors
    that an edge bundle must leave as they are: those that the tap's fingerprint is of, or that are not read through
    DrafterFiles. `options` names the fields of DrafterOptions that it reads, beside `family`; others are refused.
    """

    name: str
    eats: str
    offline: Offline
    trees: Trees
    recognizes: Callable[[DrafterFiles], bool]
    drafter: Callable[[DrafterFiles, TargetWeights], Drafter]
    tap: Callable[[DrafterFiles, TargetSizes, Tensor], Tap | None]
    needs_files: bool = True
    keeps: Callable[[str], bool] = lambda name: False
    options: tuple[str, ...] = ()


def like(dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """A tensor that says type and device and holds nothing."""
    return torch.empty(0, dtype=dtype, device=device)
