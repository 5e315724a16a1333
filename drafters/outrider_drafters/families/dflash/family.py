"""DFlash (z-lab/dflash), version 1, from published files, and its declaration."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.families.dflash.drafter import DFlashDrafter
from outrider_drafters.families.dflash.layout import read_sizes, recognizes
from outrider_drafters.families.dflash.network import DFlash
from outrider_drafters.families.dflash.tap import NAME, DFlashTap, tap_info
from outrider_drafters.families.family import Family


def load_network(files: DrafterFiles, target: TargetSizes, like: Tensor | None = None) -> DFlash:
    """Load the network. Raises UsageError for anything but version 1 for this target."""
    sizes = read_sizes(files, target)
    with torch.device("meta"):
        network = DFlash(sizes)
    return files.fill(network, like)


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> DFlashDrafter:
    network = load_network(files, target.sizes)
    info = tap_info(network)  # before the cast: the fingerprint is of the values as stored
    return DFlashDrafter(network.to(target.embed.device, target.embed.dtype), target, info)


def _load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> DFlashTap:
    network = load_network(files, target)
    info = tap_info(network)
    return DFlashTap(network.to(like.device, like.dtype), info)


FAMILY = Family(
    name=NAME,
    features="hidden states of several target layers, mixed to one row a token",
    offline="goes on",
    trees="chain",
    recognizes=recognizes,
    drafter=_load_drafter,
    tap=_load_tap,
    options=("target_layers", "draft_vocab"),
)
