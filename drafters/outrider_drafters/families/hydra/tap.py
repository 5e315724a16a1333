"""The server half of Hydra++: its prefix layer runs over every hidden state of a session, and the newest row is sent.

Hydra without that layer uses NewestHiddenTap.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.fused import FusedBlock
from outrider_drafters.checkpoints.fingerprint import tensors_fingerprint
from outrider_drafters.contracts.tap import LAST, Activations
from outrider_drafters.families.heads import newest_hidden_info
from outrider_drafters.families.hydra.network import Hydra, HydraPrefix
from outrider_proto.frames import TapInfo


def prefix_info(prefix: HydraPrefix, offset: int = 0) -> TapInfo:
    """Describe the features of a prefix layer, named after its weights, its RoPE and the hidden state it reads."""
    shape = prefix.block.shape
    digest = tensors_fingerprint(prefix.state_dict())
    name = f"hydra-prefix:{digest}:{shape.rope_theta:g}" + (f":{offset}" if offset else "")
    return TapInfo(name, "hydra-prefix", shape.width, newest_only=True)


def tap_info(hydra: Hydra) -> TapInfo:
    sizes, prefix = hydra.sizes, hydra.prefix
    return newest_hidden_info(sizes.hidden, sizes.offset) if prefix is None else prefix_info(prefix, sizes.offset)


class HydraPrefixTap:
    """The prefix layer, shared by all sessions."""

    needs_kv = False

    def __init__(self, prefix: HydraPrefix, info: TapInfo, offset: int = 0) -> None:
        self.info = info
        self.hidden_layers = (LAST - offset,)
        self.block = FusedBlock(prefix.block)
        self.norm = prefix.norm

    def new_state(self) -> HydraPrefixState:
        return HydraPrefixState(self)


class HydraPrefixState:
    """The prefix layer's keys and values of one session."""

    def __init__(self, tap: HydraPrefixTap) -> None:
        self._tap = tap
        self._cache = tap.block.new_cache()

    @torch.inference_mode()
    def rows(self, acts: Activations) -> Tensor:
        block, norm = self._tap.block, self._tap.norm
        hidden = acts.hidden[self._tap.hidden_layers[0]].to(norm.weight)
        first, count = self._cache.length, len(hidden)
        # Positions continue from the cache: the layer has seen every earlier position of the session.
        rope = block.shape.rope(torch.arange(first, first + count, device=hidden.device))
        seen = torch.ones(count, first + count, dtype=torch.bool, device=hidden.device).tril(first)
        mixed = block.run(hidden, rope, self._cache, None if count == 1 else seen)
        return F.rms_norm(mixed, norm.weight.shape, norm.weight, norm.eps).float()

    def truncate(self, length: int) -> None:
        self._cache.truncate(length)
