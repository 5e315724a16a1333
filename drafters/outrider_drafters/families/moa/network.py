"""Mixture of Attentions (arXiv 2410.03804; huawei-noah/HEBO, branch mixture-of-attentions): the trained network.

server (tap)   K/V of all L layers -> pack -> LSA over the layer axis -> mean over layers        2 E_kv values a token
client         tokens -> embedding -> SA (causal) ---> CA -> [last N layers of the target, final norm] -> lm_head
               features -> Ekv2E ---------------------^ keys and values: all features there are, for every query

N is the target layer inference, TLI. With N = 0 CA's output stands for the target's last hidden state after its final
norm; with more, for the state that enters layer L - N (paper, 3.2). Without LSA (the paper's ablation, vLLM's
disable_LSA) the target's last hidden state is CA's other side, and there is no Ekv2E.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from outrider_drafters.blocks.fused import FusedBlock
from outrider_drafters.blocks.layers import BlockShape, LlamaBlock, causal_mask
from outrider_drafters.checkpoints.fingerprint import tensors_fingerprint
from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_drafters.contracts.tap import LAST, Activations, StatelessTap, last_hidden_info
from outrider_drafters.readers.checkpoint import write_model
from outrider_drafters.readers.config import Config
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo

NAME = "moa"
LSA_HEADS = "layer_self_attention_num_attention_heads"  # key of our own export alone, where it is not the others'


@dataclass(frozen=True, slots=True)
class MoASizes:
    """Sizes of the blocks SA and CA, which are as wide as the target, and of LSA, as wide as its 2 E_kv; None: no LSA.

    The published code has one number of heads for all blocks, by which many targets' 2 E_kv cannot be divided. SA alone
    has the target's `rope_scaling` there (train/moa_spec.py, inference/cross_attention.py). Raises UsageError.
    """

    sa: BlockShape
    ca: BlockShape
    lsa: BlockShape | None
    tli: int = 0

    def __post_init__(self) -> None:
        if self.sa.width != self.ca.width:
            raise UsageError(f"self_attention is {self.sa.width} wide, cross_attention {self.ca.width}: need the same")
        if self.sa.head_dim != self.ca.head_dim:  # they share their rotations
            sizes = f"{self.sa.head_dim} in self_attention, {self.ca.head_dim} in cross_attention"
            raise UsageError(f"values of a head: {sizes}: need the same")

    @property
    def mixed_width(self) -> int:
        """Width of CA's context row as it crosses the wire."""
        return self.sa.width if self.lsa is None else self.lsa.width


class MoA(nn.Module):
    """The trained part; submodules are named as in the published files."""

    def __init__(self, sizes: MoASizes) -> None:
        super().__init__()
        self.sizes = sizes
        if sizes.lsa is not None:
            self.layer_self_attention = LlamaBlock(sizes.lsa)
            self.Ekv2E = nn.Linear(sizes.lsa.width, sizes.sa.width)
        self.self_attention = LlamaBlock(sizes.sa)
        self.cross_attention = LlamaBlock(sizes.ca)

    def forward_train(
        self, embeds: Tensor, activations: Tensor, sync: Tensor, staircase: Tensor | None = None
    ) -> Tensor:
        """Run a teacher-forced pass: CA's output [B, T, E]; row p predicts token p + 1.

        With TLI 0 it is ready for lm_head; with more it goes through LastLayers.forward_train first.

        embeds [B, T, E] (the target's embedding), activations: packed K/V [B, T, L, 2 E_kv], without LSA the target's
        last hidden states [B, T, E]; sync [B, T] int64: query i sees the features of positions j <= sync[i] (the T-step
        bounded mask). In the rows that `staircase` [B] bool names, SA sees nothing up to sync[i] but its own position.
        Padding belongs at the end.
        """
        positions = torch.arange(embeds.shape[1], device=embeds.device)
        seen = causal_mask(len(positions), embeds.device)
        if staircase is not None:
            seen = (seen & staircase_mask(sync, staircase)).unsqueeze(1)
        attended = self.self_attention.self_attend(embeds, self.sizes.sa.rope(positions), seen)
        rope = self.sizes.ca.rope(positions)
        keys, values = self.cross_attention.keys_values(self.context(activations), rope)
        visible = positions <= sync.unsqueeze(-1)
        return self.cross_attention(attended, rope, keys, values, visible.unsqueeze(1))  # type: ignore[no-any-return]  # nn.Module

    def context(self, activations: Tensor) -> Tensor:
        """Compute the input of CA's keys and values [B, T, E] from the target's activations, as in forward_train."""
        if self.sizes.lsa is None:
            return activations
        rows = layer_mean(self.layer_self_attention, activations.flatten(0, 1))
        return self.Ekv2E(rows.view(*activations.shape[:2], -1))  # type: ignore[no-any-return]  # nn.Module

    def export(self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32) -> None:
        """Write the published training layout, and TLI, which that layout leaves to the reader."""
        write_model(directory, self._config(target), self.state_dict(), dtype)

    def _config(self, target: TargetSizes) -> Config:
        sa, lsa = self.sizes.sa, self.sizes.lsa
        return {
            **sa.as_config(target.layers, target.max_context, target.vocab),
            "architectures": ["MOASpec"],
            "model_type": "llama",
            "num_key_value_heads": target.kv_heads,
            "rope_theta": sa.rope_theta,
            "rope_scaling": None if sa.rope_scaling is None else sa.rope_scaling.as_config(),
            "disable_LSA": lsa is None,
            "target_layer_inference": self.sizes.tli,
            **({} if lsa is None or lsa.heads == sa.heads else {LSA_HEADS: lsa.heads}),
        }


def pack_kv(keys: Tensor, values: Tensor) -> Tensor:
    """Pack K (post-RoPE) and V [..., L, kv_heads, n, head_dim] to [..., n, L, 2 E_kv]."""
    # Interleaved by head, k0 v0 k1 v1 ..., not all K then all V: the trained weights expect this order.
    both = torch.cat((keys, values), dim=-1)
    return both.movedim(-2, -4).flatten(-2)


def unpack_kv(packed: Tensor, num_layers: int, kv_heads: int) -> tuple[Tensor, Tensor]:
    """Unpack [n, L * 2 E_kv], pack_kv's layers in one row, to K and V, each [L, kv_heads, n, head_dim]."""
    both_dims = packed.shape[1] // (num_layers * kv_heads)
    both = packed.view(len(packed), num_layers, kv_heads, both_dims).movedim(0, 2)
    keys, values = both.chunk(2, dim=-1)
    return keys, values


def layer_mean(lsa: LlamaBlock | FusedBlock, packed_kv: Tensor) -> Tensor:
    """Mix packed K/V [n, L, 2 E_kv] to features [n, 2 E_kv]: LSA over each token's layers, then their mean."""
    # RoPE over the layer's number, although K is rotated by position already: as published.
    layers = torch.arange(packed_kv.shape[1], device=packed_kv.device)
    return lsa.self_attend(packed_kv, lsa.shape.rope(layers)).mean(dim=1)


def staircase_mask(sync: Tensor, staircase: Tensor) -> Tensor:
    """Return [B, T, T] bool: in the named rows query i sees j > sync[i] and itself, in the others everything."""
    positions = torch.arange(sync.shape[1], device=sync.device)
    after = positions > sync.unsqueeze(-1)
    own = torch.eye(len(positions), dtype=torch.bool, device=sync.device)
    return after | own | ~staircase.view(-1, 1, 1)


def tap_info(moa: MoA, target: TargetSizes) -> TapInfo:
    """Describe the features: the weights of LSA, as stored, and TLI; without either the plain last hidden state."""
    sizes = moa.sizes
    plain = last_hidden_info(sizes.sa.width)
    if sizes.lsa is None and not sizes.tli:
        return plain
    mixed = f"moa:{tensors_fingerprint(moa.layer_self_attention.state_dict())}" if sizes.lsa else plain.fingerprint
    name = f"{mixed}:tli{sizes.tli}" if sizes.tli else mixed
    return TapInfo(fingerprint=name, family=NAME, width=sizes.mixed_width + sizes.tli * target.packed_kv)


class MoATap(StatelessTap):
    """Server half: one row per token, made of the target's K/V.

    [ post-mean 2 E_kv, without LSA the last hidden state E | layer L - N: k0 v0 k1 v1 ... | ... | layer L - 1: ... ]

    The layers' K (post-RoPE) and V are present with TLI = N > 0 (paper, table 7: 2 E_kv (N + 1) values).
    """

    needs_kv = True

    def __init__(self, moa: MoA, target: TargetSizes, like: Tensor) -> None:
        """The weights take the type and device of `like`."""
        self.info = tap_info(moa, target)  # of the weights as stored: before the cast
        moa = moa.to(like.device, like.dtype)
        self.hidden_layers: tuple[int, ...] = () if moa.sizes.lsa else (LAST,)
        self._lsa = FusedBlock(moa.layer_self_attention, packed=True) if moa.sizes.lsa else None
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
