"""From a drafter's source to its two halves: the client's drafter and the server's tap. Knows no family."""

from __future__ import annotations

from pathlib import Path

import torch

from outrider_drafters.drafter import Drafter
from outrider_drafters.families import FAMILIES
from outrider_drafters.family import Family, like
from outrider_drafters.files import DrafterFiles, listed
from outrider_drafters.frozen import FrozenTarget, target_sizes
from outrider_drafters.source import DrafterSource
from outrider_drafters.tap import Tap
from outrider_proto.errors import UsageError


def load_drafter(source: str | Path | DrafterSource, frozen: FrozenTarget) -> Drafter:
    """The client half, in the type and on the device of `frozen`. Raises UsageError naming whatever does not fit."""
    files = DrafterFiles.open(DrafterSource.parse(source))
    return family_of(files).drafter(files, frozen)


def load_tap(
    source: str | Path | DrafterSource,
    target_path: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tap:
    """The server half. Raises UsageError naming whatever does not fit."""
    files = DrafterFiles.open(DrafterSource.parse(source))
    return family_of(files).tap(files, target_sizes(target_path), like(dtype, device))


def family_of(files: DrafterFiles) -> Family:
    """The first family that recognises the files. Raises UsageError when none does, or not the one that was named."""
    asked, known = files.options.family, ", ".join(family.name for family in FAMILIES)
    if asked is not None and asked not in [family.name for family in FAMILIES]:
        raise UsageError(f"family={asked}: need one of {known}")
    family = next((family for family in FAMILIES if family.recognises(files)), None)
    if family is None:
        raise files.fault(
            f"not a drafter directory (architectures={files.config.get('architectures')}); need one of {known}, "
            f"but it holds {listed(sorted(files.names))}"
        )
    if asked is not None and family.name != asked:
        raise files.fault(f"a drafter of family {family.name}, not {asked}")
    return family
