"""EAGLE-3 and EAGLE 3.1 from published files, and their declaration."""

from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import (
    DRAFT_VOCAB_OPTION,
    EMBEDDING_OPTION,
    ROPE_THETA_OPTION,
    TARGET_LAYERS_OPTION,
)
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.tap import LastHiddenTap, Tap
from outrider_drafters.families.eagle3.drafter import PUBLISHED_STEPS, Eagle3Drafter
from outrider_drafters.families.eagle3.layout import NORM_OUTPUT, SETTINGS, canonical, recognizes, sizes_of
from outrider_drafters.families.eagle3.network import NAME, Eagle3, Eagle3Tap, tap_info
from outrider_drafters.families.family import Family
from outrider_drafters.families.shared_layout import D2T, EMBEDDING, STEPS, T2D, check_vocabulary
from outrider_drafters.readers.config import NESTED, config_int

_DEEPSPECS_STEPS = "ttt_length"  # DeepSpec's key for what STEPS says


def _load(files: DrafterFiles, target: TargetSizes) -> Eagle3:
    if NESTED in files.config:
        files.need_understood(SETTINGS)
    files = canonical(files)
    sizes = sizes_of(files, target)
    network = files.build(lambda: Eagle3(sizes), also_known=frozenset({EMBEDDING, D2T, T2D}))
    check_vocabulary(files, sizes.draft_vocab, sizes.vocab)
    return network


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> Eagle3Drafter:
    eagle = _load(files, target.sizes)
    # Before the cast: the fingerprint is of the values as stored.
    info = tap_info(eagle, target.sizes.layers)
    steps = config_int(files.config, STEPS, config_int(files.config, _DEEPSPECS_STEPS, PUBLISHED_STEPS))
    return Eagle3Drafter(eagle.to(target.embed.device, target.embed.dtype), target, info, steps)


def make_tap(eagle: Eagle3, target: TargetSizes, like: Tensor) -> Tap:
    """Return the server half, in the type and on the device of `like`."""
    if not eagle.sizes.target_layers:
        return LastHiddenTap(target.hidden)
    info = tap_info(eagle, target.layers)  # before the cast, as above
    return Eagle3Tap(eagle.to(like.device, like.dtype), target.layers, info)


FAMILY = Family(
    name=NAME,
    features="hidden states of some target layers, fused to one row a token",
    offline="goes on",
    trees="dynamic",
    recognizes=recognizes,
    drafter=_load_drafter,
    tap=lambda files, target, like: make_tap(_load(files, target), target, like),
    keep_unquantized=lambda name: name.startswith(("fc", "input_norm")),
    asked=1,  # its tensors are also in P-EAGLE's files
    options=(ROPE_THETA_OPTION, NORM_OUTPUT, EMBEDDING_OPTION, TARGET_LAYERS_OPTION, DRAFT_VOCAB_OPTION),
)
