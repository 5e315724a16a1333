"""The server half of EAGLE-3: hidden states of several target layers, fused to one row per token.

`fc` runs on the server, so that a token's feature is H values rather than the target's width times the layers.
"""

import torch
from torch import Tensor

from outrider_drafters.checkpoints.fingerprint import tensors_fingerprint
from outrider_drafters.contracts.tap import BEFORE_NORM, Activations, StatelessTap, last_hidden_info
from outrider_drafters.families.eagle3.network import Eagle3
from outrider_proto.frames import TapInfo

NAME = "eagle3"


def tap_info(eagle: Eagle3, target_layers: int) -> TapInfo:
    """Describe the features, named after the weights that fuse them and the tapped layers."""
    sizes = eagle.sizes
    if not sizes.target_layers:
        return last_hidden_info(sizes.target_hidden)
    fusing = {name: tensor for name, tensor in eagle.state_dict().items() if name.startswith(("fc", "input_norm"))}
    numbers = torch.tensor([sizes.block.eps, target_layers, *sizes.target_layers], dtype=torch.float64)
    return TapInfo(f"eagle3:{tensors_fingerprint({**fusing, 'numbers': numbers})}", NAME, sizes.hidden)


class Eagle3Tap(StatelessTap):
    """Server half: hidden states of several layers, fused to one row per token."""

    needs_kv = False

    def __init__(self, eagle: Eagle3, num_layers: int, info: TapInfo | None = None) -> None:
        self.info = tap_info(eagle, num_layers) if info is None else info
        self._layers = tuple(BEFORE_NORM if layer == num_layers else layer for layer in eagle.sizes.target_layers)
        self.hidden_layers = tuple(dict.fromkeys(self._layers))
        self._fuse, self._like = eagle.fuser(), eagle.norm.weight

    @torch.inference_mode()
    def rows(self, acts: Activations) -> Tensor:
        return self._fuse(torch.cat([acts.hidden[layer] for layer in self._layers], dim=-1).to(self._like)).float()
