"""DFlash, version 1, from published files, and its declaration."""

from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import (
    DDTREE_OPTION,
    DRAFT_VOCAB_OPTION,
    FROM_ROOT_OPTION,
    TARGET_LAYERS_OPTION,
)
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.families.dflash.drafter import DFlashDrafter
from outrider_drafters.families.dflash.layout import canonical, default_plan, family_of, read_sizes
from outrider_drafters.families.dflash.network import NAME, DFlash, DFlashTap, is_fused, tap_info
from outrider_drafters.families.family import Family
from outrider_drafters.families.shared_layout import D2T, T2D, check_vocabulary

MAPS = frozenset({D2T, T2D})


def load_network(files: DrafterFiles, target: TargetSizes) -> DFlash:
    """Load the network. Raises UsageError for anything but version 1 for this target."""
    files = canonical(files)
    sizes = read_sizes(files, target)
    network = files.build(lambda: DFlash(sizes), also_known=MAPS)
    check_vocabulary(files, sizes.head_rows, target.vocab)
    return network


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> DFlashDrafter:
    network = load_network(files, target.sizes)
    info = tap_info(network)  # before the cast: the fingerprint is of the values as stored
    network = network.to(target.embed.device, target.embed.dtype)
    return DFlashDrafter(network, target, info, default_plan(files, network.sizes.num_drafts))


def make_tap(network: DFlash, like: Tensor) -> DFlashTap:
    """Return the server half, in the type and on the device of `like`."""
    info = tap_info(network)  # before the cast, as above
    return DFlashTap(network.to(like.device, like.dtype), info)


FAMILY = Family(
    name=NAME,
    features="hidden states of several target layers, mixed to one row a token",
    offline="goes on",
    trees="dynamic",
    recognizes=lambda files: family_of(files) == NAME,
    drafter=_load_drafter,
    tap=lambda files, target, like: make_tap(load_network(files, target), like),
    keep_unquantized=is_fused,
    options=(TARGET_LAYERS_OPTION, DRAFT_VOCAB_OPTION, DDTREE_OPTION, FROM_ROOT_OPTION),
)
