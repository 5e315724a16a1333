"""MoA's server half: one row per token, made of the target's K/V.

    [ post-mean 2 E_kv, without LSA the last hidden state E | layer L - N: k0 v0 k1 v1 ... | ... | layer L - 1: ... ]

The layers' K (post-RoPE) and V are present with TLI = N > 0 (paper, table 7: 2 E_kv (N + 1) values).
"""

import torch
from torch import Tensor

from outrider_drafters.blocks.fused import FusedBlock
from outrider_drafters.checkpoints.fingerprint import tensors_fingerprint
from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_drafters.contracts.tap import LAST, Activations, StatelessTap, last_hidden_info
from outrider_drafters.families.moa.network import NAME, MoA, layer_mean, pack_kv
from outrider_proto.frames import TapInfo


def tap_info(moa: MoA, target: TargetSizes) -> TapInfo:
    """Describe the features, named after the weights of LSA and TLI.

    Without either they are the plain last hidden state, which every server has.
    """
    sizes = moa.sizes
    plain = last_hidden_info(sizes.hidden)
    if not sizes.has_lsa and not sizes.tli:
        return plain
    mixed = f"moa:{tensors_fingerprint(moa.layer_self_attention.state_dict())}" if sizes.has_lsa else plain.fingerprint
    name = f"{mixed}:tli{sizes.tli}" if sizes.tli else mixed
    return TapInfo(fingerprint=name, family=NAME, width=sizes.mixed_width + sizes.tli * target.packed_kv)


class MoATap(StatelessTap):
    needs_kv = True

    def __init__(self, moa: MoA, info: TapInfo, *, packed: bool = True) -> None:
        self.info = info
        self.hidden_layers: tuple[int, ...] = () if moa.sizes.has_lsa else (LAST,)
        self._lsa = FusedBlock(moa.layer_self_attention, packed=packed) if moa.sizes.has_lsa else None
        self._like = moa.self_attention.self_attn.o_proj.weight
        self._tli = moa.sizes.tli

    @torch.inference_mode()
    def rows(self, acts: Activations) -> Tensor:
        mixed = self._mixed(acts).float()
        if not self._tli:
            return mixed
        last = pack_kv(*(each[-self._tli :] for each in acts.of_all_layers))
        return torch.cat((mixed, last.flatten(1).to(mixed)), dim=1)

    def _mixed(self, acts: Activations) -> Tensor:
        if self._lsa is None:
            return acts.hidden[LAST]
        # In the weights' type, which may be wider than that of the target's K/V.
        return layer_mean(self._lsa, pack_kv(*acts.of_all_layers).to(self._like))
