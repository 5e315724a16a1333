"""EAGLE-3 and EAGLE 3.1 at work: the tap that fuses the target's hidden states, and the drafter that goes on from them.

The network and its formulas are eagle3_network.py's, what a text leaves behind pairs.py's. `fc` runs on the server, so
that a token's feature is H values instead of one width of the target's for every layer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.fingerprint import tensors_fingerprint
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.tap import BEFORE_NORM, Activations, LastHiddenTap, Memoryless, Tap, last_hidden_info
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.eagle2.state import PairState
from outrider_drafters.families.eagle3.layer import FusedPairLayer
from outrider_drafters.families.eagle3.layout import (
    D2T,
    EMBEDDING,
    T2D,
    canonical,
    check_vocabulary,
    recognized,
    sizes_of,
)
from outrider_drafters.families.eagle3.network import Eagle3
from outrider_drafters.families.eagle3.vocabulary import over_target_vocabulary
from outrider_drafters.families.family import Family
from outrider_proto.frames import TapInfo

NAME = "eagle3"


def tap_info(eagle: Eagle3, target_layers: int) -> TapInfo:
    """The features of this head: named after what fuses them, and which of the target's layers."""
    sizes = eagle.sizes
    if not sizes.target_layers:
        return last_hidden_info(sizes.target_hidden)
    fusing = {name: tensor for name, tensor in eagle.state_dict().items() if name.startswith(("fc", "input_norm"))}
    numbers = torch.tensor([sizes.block.eps, target_layers, *sizes.target_layers], dtype=torch.float64)
    return TapInfo(f"eagle3:{tensors_fingerprint({**fusing, 'numbers': numbers})}", NAME, sizes.hidden)


class Eagle3Tap(Memoryless):
    """Server half: hidden states of several layers, fused to one row a token."""

    needs_kv = False

    def __init__(self, eagle: Eagle3, num_layers: int, info: TapInfo | None = None) -> None:
        self.info = tap_info(eagle, num_layers) if info is None else info
        self._layers = tuple(BEFORE_NORM if layer == num_layers else layer for layer in eagle.sizes.target_layers)
        self.hidden_layers = tuple(dict.fromkeys(self._layers))
        self._fuse, self._like = eagle.fuser(), eagle.norm.weight

    @torch.inference_mode()
    def rows(self, acts: Activations) -> Tensor:
        return self._fuse(torch.cat([acts.hidden[layer] for layer in self._layers], dim=-1).to(self._like)).float()


class Eagle3Drafter:
    """Client half; the server half is Eagle3Tap, or tap.LastHiddenTap for a head without fc."""

    family = NAME
    stale_tolerant = True  # trained on its own outputs over several steps: docs/features.md
    tree_in_one = False

    def __init__(self, eagle: Eagle3, frozen: TargetWeights, tap: TapInfo | None = None) -> None:
        self.frozen = frozen
        self.tap = tap_info(eagle, frozen.sizes.layers) if tap is None else tap
        self.vocab_size = frozen.sizes.vocab
        self.plan: TreePlan | None = None
        self.embed = frozen.embed if eagle.embed_tokens is None else eagle.embed_tokens.weight.detach()
        self.block = FusedPairLayer(eagle.midlayer, eagle.norm)
        self._draft_tokens = eagle.draft_tokens
        self._head = frozen.lm_head if eagle.lm_head is None else eagle.lm_head.weight.detach()
        self._norm = None if eagle.sizes.norm_output else eagle.norm

    def pairs(self, embeds: Tensor, features: Tensor) -> Tensor:
        return torch.cat((embeds, features), dim=-1)

    def logits(self, outputs: Tensor) -> Tensor:
        normed = outputs if self._norm is None else self._norm(outputs)
        return over_target_vocabulary(F.linear(normed, self._head).float(), self._draft_tokens, self.vocab_size)

    def new_state(self) -> PairState:
        return PairState(self)


def _load(files: DrafterFiles, target: TargetSizes) -> Eagle3:
    files = canonical(files)
    sizes = sizes_of(files, target)
    with torch.device("meta"):
        network = Eagle3(sizes)
    files.fill(network, also_known=frozenset({EMBEDDING, D2T, T2D}))
    check_vocabulary(files, sizes)
    return network


def _load_drafter(files: DrafterFiles, frozen: TargetWeights) -> Eagle3Drafter:
    eagle = _load(files, frozen.sizes)
    info = tap_info(eagle, frozen.sizes.layers)  # of the values as stored
    return Eagle3Drafter(eagle.to(frozen.embed.device, frozen.embed.dtype), frozen, info)


def _load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> Tap:
    eagle = _load(files, target)
    if not eagle.sizes.target_layers:
        return LastHiddenTap(target.hidden)
    info = tap_info(eagle, target.layers)
    return Eagle3Tap(eagle.to(like.device, like.dtype), target.layers, info)


FAMILY = Family(
    name=NAME,
    eats="hidden states of some target layers, fused to one row a token",
    offline="goes on",
    trees="dynamic",
    recognizes=recognized,
    drafter=_load_drafter,
    tap=_load_tap,
    keeps=lambda name: name.startswith(("fc", "input_norm")),
    options=("rope_theta", "norm_output", "embedding", "target_layers"),
)
