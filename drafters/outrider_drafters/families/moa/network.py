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
from outrider_drafters.blocks.rope import RopeScaling
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
    """Sizes of a MoA drafter. `heads` are the target's, `lsa_heads` those of LSA, whose width 2 E_kv is `packed_kv`.

    The published code has one number for all blocks (`lsa_heads` None), by which many targets' 2 E_kv cannot be
    divided. Without LSA packed_kv, lsa_kv_heads and lsa_mlp are 0. `rope_scaling` is SA's alone: the published training
    code takes it from the target, but builds LSA and CA without (train/moa_spec.py, inference/cross_attention.py).
    """

    hidden: int
    heads: int
    head_dim: int
    packed_kv: int
    lsa_kv_heads: int
    lsa_mlp: int
    sa_kv_heads: int
    sa_mlp: int
    ca_kv_heads: int
    ca_mlp: int
    rope_theta: float = 10000.0
    eps: float = 1e-5
    qkv_bias: bool = False  # of SA and LSA, for Qwen2 targets; CA never has any
    tli: int = 0
    rope_scaling: RopeScaling | None = None
    lsa_heads: int | None = None

    def __post_init__(self) -> None:
        heads = self.lsa_heads or self.heads
        if self.packed_kv % heads:
            raise UsageError(f"packed_kv={self.packed_kv}: LSA's {heads} heads do not divide it: need other lsa_heads")
        if self.tli < 0:
            raise UsageError(f"tli={self.tli}: need 0 or more")

    @property
    def has_lsa(self) -> bool:
        return self.packed_kv > 0

    @property
    def lsa(self) -> BlockShape:
        heads = self.lsa_heads or self.heads
        widths = self.packed_kv, heads, self.lsa_kv_heads, self.packed_kv // heads, self.lsa_mlp
        return BlockShape(*widths, self.rope_theta, self.eps, self.qkv_bias)

    @property
    def sa(self) -> BlockShape:
        widths = self.hidden, self.heads, self.sa_kv_heads, self.head_dim, self.sa_mlp
        return BlockShape(*widths, self.rope_theta, self.eps, self.qkv_bias, rope_scaling=self.rope_scaling)

    @property
    def ca(self) -> BlockShape:
        widths = self.hidden, self.heads, self.ca_kv_heads, self.head_dim, self.ca_mlp
        return BlockShape(*widths, self.rope_theta, self.eps)

    @property
    def mixed_width(self) -> int:
        """Width of CA's context row as it crosses the wire."""
        return self.packed_kv if self.has_lsa else self.hidden


class MoA(nn.Module):
    """The trained part; submodules are named as in the published files."""

    def __init__(self, sizes: MoASizes) -> None:
        super().__init__()
        self.sizes = sizes
        if sizes.has_lsa:
            self.layer_self_attention = LlamaBlock(sizes.lsa)
            self.Ekv2E = nn.Linear(sizes.packed_kv, sizes.hidden)
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
        if not self.sizes.has_lsa:
            return activations
        rows = layer_mean(self.layer_self_attention, activations.flatten(0, 1))
        return self.Ekv2E(rows.view(*activations.shape[:2], -1))  # type: ignore[no-any-return]  # nn.Module

    def export(self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32) -> None:
        """Write the published training layout, and TLI, which that layout leaves to the reader."""
        write_model(directory, self._config(target), self.state_dict(), dtype)

    def _config(self, target: TargetSizes) -> Config:
        scaling = self.sizes.rope_scaling
        return {
            "architectures": ["MOASpec"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self.sizes.hidden,
            "num_attention_heads": self.sizes.heads,
            "num_hidden_layers": target.layers,
            "num_key_value_heads": target.kv_heads,
            "head_dim": self.sizes.head_dim,
            "max_position_embeddings": target.max_context,
            "rms_norm_eps": self.sizes.eps,
            "rope_theta": self.sizes.rope_theta,
            "rope_scaling": None if scaling is None else scaling.as_config(),
            "vocab_size": target.vocab,
            "disable_LSA": not self.sizes.has_lsa,
            "target_layer_inference": self.sizes.tli,
            **({} if self.sizes.lsa_heads in (None, self.sizes.heads) else {LSA_HEADS: self.sizes.lsa_heads}),
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
    """Mix packed K/V [n, L, 2 E_kv] to the features sent [n, 2 E_kv]: LSA over the layers, then their mean.

    Each token on its own and without a mask.
    """
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
    """Server half: one row per token, made of the target's K/V.

    [ post-mean 2 E_kv, without LSA the last hidden state E | layer L - N: k0 v0 k1 v1 ... | ... | layer L - 1: ... ]

    The layers' K (post-RoPE) and V are present with TLI = N > 0 (paper, table 7: 2 E_kv (N + 1) values).
    """

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
