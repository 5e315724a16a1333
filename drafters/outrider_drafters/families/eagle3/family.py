"""EAGLE-3 and EAGLE 3.1 from published files, and their declaration: the client half is a head over pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_drafters.blocks.fused import FusedBlock, FusedLayers
from outrider_drafters.blocks.layers import RMSNorm
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.tap import LastHiddenTap, Tap
from outrider_drafters.families.eagle3.layer import FusedPairLayer
from outrider_drafters.families.eagle3.layout import NORM_OUTPUT, SETTINGS, canonical, recognizes, sizes_of
from outrider_drafters.families.eagle3.network import NAME, Eagle3, Eagle3Tap, tap_info
from outrider_drafters.families.family import Family
from outrider_drafters.families.feature_drafter import PairDrafter
from outrider_drafters.families.shared_layout import D2T, EMBEDDING, STEPS, T2D, check_vocabulary
from outrider_drafters.readers.config import NESTED, config_int

PUBLISHED_STEPS = 7  # of its own output, that published heads were trained over
BESIDE = frozenset({EMBEDDING, D2T, T2D})  # tensors that are no part of the network
_DEEPSPECS_STEPS = "ttt_length"  # DeepSpec's key for what STEPS says


class Eagle3Drafter(PairDrafter):
    """Client half; the server half is Eagle3Tap, or LastHiddenTap for a head without fc."""

    family = NAME

    def __init__(self, eagle: Eagle3, target: TargetWeights, steps: int = PUBLISHED_STEPS) -> None:
        tap = tap_info(eagle, target.sizes.layers)  # of the weights as stored: before the cast
        eagle = eagle.to(target.embed.device, target.embed.dtype)
        super().__init__(target, tap, None if eagle.embed_tokens is None else eagle.embed_tokens.weight.detach())
        # A head that was trained over three steps loses 11 to 16 % one verdict late, over seven 3 %: docs/features.md.
        self.stale_tolerant = steps >= PUBLISHED_STEPS
        self.block = fused_layers(eagle, eagle.norm if eagle.sizes.norm_output else None)
        self.head = target.head_for(None if eagle.lm_head is None else eagle.lm_head.weight, eagle.draft_tokens)
        # Applied once: with norm_output the layers' output, which is fed back, is normed already.
        self._norm = None if eagle.sizes.norm_output else eagle.norm

    def pairs(self, embeds: Tensor, features: Tensor) -> Tensor:
        return torch.cat((embeds, features), dim=-1)

    def logits(self, outputs: Tensor) -> Tensor:
        normed = outputs if self._norm is None else self._norm(outputs)
        return self.head.logits(normed)


def fused_layers(eagle: Eagle3, norm: RMSNorm | None = None) -> FusedLayers:
    """Return the layers over pairs [n, 2 H], with a norm after the last if asked for."""
    later = [FusedBlock(layer) for layer in eagle.later_layers]
    return FusedLayers([FusedPairLayer(eagle.midlayer), *later], eagle.sizes.windows, norm)


def _load(files: DrafterFiles, target: TargetSizes) -> Eagle3:
    if NESTED in files.config:
        files.need_understood(SETTINGS)
    files = canonical(files)
    sizes = sizes_of(files, target)
    network = files.build(lambda: Eagle3(sizes), also_known=BESIDE)
    check_vocabulary(files, sizes.draft_vocab, sizes.vocab)
    return network


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> Eagle3Drafter:
    eagle = _load(files, target.sizes)
    steps = config_int(files.config, STEPS, config_int(files.config, _DEEPSPECS_STEPS, PUBLISHED_STEPS))
    return Eagle3Drafter(eagle, target, steps)


def make_tap(eagle: Eagle3, target: TargetSizes, like: Tensor) -> Tap:
    """Return the server half, in the type and on the device of `like`."""
    return Eagle3Tap(eagle, target.layers, like) if eagle.sizes.target_layers else LastHiddenTap(target.hidden)


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
    options=("rope_theta", NORM_OUTPUT, "embedding", "target_layers", "draft_vocab"),
)
