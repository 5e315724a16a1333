"""The server half of DFlash: hidden states of several target layers, mixed to one context row per token."""

import torch
from torch import Tensor

from outrider_drafters.checkpoints.fingerprint import tensors_fingerprint
from outrider_drafters.contracts.tap import Activations, StatelessTap
from outrider_drafters.families.dflash.network import DFlash
from outrider_proto.frames import TapInfo

NAME = "dflash"


def is_fused(name: str) -> bool:
    """True for the tensors that the features' name covers: both sides must hold the same values."""
    return name.startswith(("fc.", "hidden_norm."))


def tap_info(network: DFlash) -> TapInfo:
    """Describe the features, named after the weights that make them and the tapped layers."""
    weights = {"fc": network.fc.weight, "hidden_norm": network.hidden_norm.weight}
    layers = "-".join(map(str, network.sizes.taps))
    return TapInfo(f"{NAME}:{tensors_fingerprint(weights)}:{layers}", NAME, network.sizes.shape.width)


class DFlashTap(StatelessTap):
    """Server half: hidden states of several layers, mixed to one context row per token."""

    needs_kv = False

    def __init__(self, network: DFlash, info: TapInfo | None = None) -> None:
        self.info = tap_info(network) if info is None else info
        self.hidden_layers = tuple(dict.fromkeys(network.sizes.taps))
        self._network = network

    @torch.inference_mode()
    def rows(self, acts: Activations) -> Tensor:
        like = self._network.fc.weight
        return self._network.context([acts.hidden[tap].to(like) for tap in self._network.sizes.taps]).float()
