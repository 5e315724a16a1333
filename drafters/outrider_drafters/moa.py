"""Mixture of Attentions (arXiv 2410.03804; huawei-noah/HEBO, branch mixture-of-attentions), TLI = 0.

server (tap)   K/V of all L layers -> pack -> LSA over the layer axis -> mean over layers        2 E_kv values a token
client         tokens -> embedding -> SA (causal) ---> CA -> lm_head (no final norm: CA's output is post-norm)
               features -> Ekv2E ---------------------^ keys and values: all features there are, whoever asks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.checkpoint import Checkpoint, write_model
from outrider_drafters.config import Config
from outrider_drafters.drafter import ENDLESS
from outrider_drafters.family import Family
from outrider_drafters.files import DrafterFiles
from outrider_drafters.fingerprint import tensors_fingerprint
from outrider_drafters.frozen import FrozenTarget, TargetSizes
from outrider_drafters.fused import FusedBlock
from outrider_drafters.layers import WEIGHTS, BlockShape, LlamaBlock, Rope, causal_mask, stored_shape
from outrider_drafters.record import Record
from outrider_drafters.scratch import Scratch
from outrider_drafters.shape import TreePlan
from outrider_drafters.tap import Activations, Memoryless
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo

NAME = "moa"
BLOCKS = ("layer_self_attention.", "self_attention.", "cross_attention.")
PARTS = (*BLOCKS, "Ekv2E.")
REQUIRED = frozenset({"Ekv2E.weight", "Ekv2E.bias"} | {block + name for block in BLOCKS for name in WEIGHTS})


@dataclass(frozen=True, slots=True)
class MoASizes:
    """Sizes of a MoA drafter. `heads` are the target's in all three blocks; `packed_kv` is the wire width 2 E_kv."""

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

    def __post_init__(self) -> None:
        if self.packed_kv % self.heads:
            raise UsageError(f"packed_kv={self.packed_kv}: must be a multiple of heads={self.heads}, which LSA shares")

    @property
    def lsa(self) -> BlockShape:
        head_dim = self.packed_kv // self.heads
        return self._block(self.packed_kv, self.lsa_kv_heads, head_dim, self.lsa_mlp, self.qkv_bias)

    @property
    def sa(self) -> BlockShape:
        return self._block(self.hidden, self.sa_kv_heads, self.head_dim, self.sa_mlp, self.qkv_bias)

    @property
    def ca(self) -> BlockShape:
        return self._block(self.hidden, self.ca_kv_heads, self.head_dim, self.ca_mlp, False)

    def _block(self, width: int, kv_heads: int, head_dim: int, mlp: int, qkv_bias: bool) -> BlockShape:
        return BlockShape(width, self.heads, kv_heads, head_dim, mlp, self.rope_theta, self.eps, qkv_bias)


class MoA(nn.Module):
    """The trained part; submodules are named as in the published files."""

    def __init__(self, sizes: MoASizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.layer_self_attention = LlamaBlock(sizes.lsa)
        self.Ekv2E = nn.Linear(sizes.packed_kv, sizes.hidden)
        self.self_attention = LlamaBlock(sizes.sa)
        self.cross_attention = LlamaBlock(sizes.ca)

    def forward_train(self, embeds: Tensor, packed_kv: Tensor, sync: Tensor) -> Tensor:
        """Teacher-forced pass: hidden [B, T, E] in post-norm space, ready for lm_head; row p predicts token p + 1.

        embeds [B, T, E] (the target's embedding), packed_kv [B, T, L, 2 E_kv], sync [B, T] int64: query i sees the
        features of positions j <= sync[i] (the T-step bounded mask). Padding belongs at the end.
        """
        positions = torch.arange(embeds.shape[1], device=embeds.device)
        rope = self.self_attention.shape.rope(positions)
        rows = layer_mean(self.layer_self_attention, packed_kv.flatten(0, 1)).view(*packed_kv.shape[:2], -1)
        spoken = self.self_attention.self_attend(embeds, rope, causal_mask(len(positions), embeds.device))
        keys, values = self.cross_attention.keys_values(self.Ekv2E(rows), rope)
        visible = positions <= sync.unsqueeze(-1)
        return self.cross_attention(spoken, rope, keys, values, visible.unsqueeze(1))  # type: ignore[no-any-return]  # nn.Module

    def export(self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32) -> None:
        """Write the published training layout: the drafter's tensors and the target's sizes."""
        config = {
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
            "rope_scaling": None,
            "vocab_size": target.vocab,
        }
        write_model(directory, config, self.state_dict(), dtype)


def sizes_of(checkpoint: Checkpoint, config: Config) -> MoASizes:
    """Sizes from a file that holds all REQUIRED tensors. Raises UsageError."""
    hidden, packed_kv = checkpoint.matrix("Ekv2E.weight")
    lsa, sa, ca = (stored_shape(checkpoint, block, config) for block in BLOCKS)
    return MoASizes(
        hidden=hidden,
        heads=sa.heads,
        head_dim=sa.head_dim,
        packed_kv=packed_kv,
        lsa_kv_heads=lsa.kv_heads,
        lsa_mlp=lsa.mlp,
        sa_kv_heads=sa.kv_heads,
        sa_mlp=sa.mlp,
        ca_kv_heads=ca.kv_heads,
        ca_mlp=ca.mlp,
        rope_theta=sa.rope_theta,
        eps=sa.eps,
        qkv_bias=sa.qkv_bias,
    )


def pack_kv(keys: Tensor, values: Tensor) -> Tensor:
    """K (post-RoPE) and V [..., L, kv_heads, n, head_dim] -> [..., n, L, 2 E_kv], by head: k0 v0 k1 v1 ..."""
    both = torch.cat((keys, values), dim=-1)
    return both.movedim(-2, -4).flatten(-2)


def layer_mean(lsa: LlamaBlock | FusedBlock, packed_kv: Tensor) -> Tensor:
    """Packed K/V [n, L, 2 E_kv] -> what goes over the wire [n, 2 E_kv]: LSA over the layers, then their mean.

    Each token for itself, no mask, RoPE over the layer's number.
    """
    layers = torch.arange(packed_kv.shape[1], device=packed_kv.device)
    return lsa.self_attend(packed_kv, lsa.shape.rope(layers)).mean(dim=1)


def tap_info(moa: MoA) -> TapInfo:
    """The features of this drafter: named after the weights of its LSA."""
    digest = tensors_fingerprint(moa.layer_self_attention.state_dict())
    return TapInfo(fingerprint=f"moa:{digest}", family=NAME, width=moa.sizes.packed_kv)


class MoATap(Memoryless):
    """Server half: the target's K/V of all layers, mixed to one row a token."""

    needs_kv = True
    hidden_layers = ()

    def __init__(self, moa: MoA, info: TapInfo | None = None) -> None:
        self.info = tap_info(moa) if info is None else info
        self._lsa = FusedBlock(moa.layer_self_attention)
        self._like = moa.Ekv2E.weight

    @torch.inference_mode()
    def rows(self, acts: Activations) -> Tensor:
        return layer_mean(self._lsa, pack_kv(acts.keys, acts.values).to(self._like)).float()


class MoADrafter:
    """Client half: Ekv2E, SA and CA between the target's embedding and its lm_head."""

    family = NAME

    def __init__(self, moa: MoA, frozen: FrozenTarget, tap: TapInfo | None = None) -> None:
        self.frozen = frozen
        self.tap = tap_info(moa) if tap is None else tap
        self.vocab_size = frozen.sizes.vocab
        self.plan: TreePlan | None = None
        self.ekv2e = moa.Ekv2E
        self.sa, self.ca = FusedBlock(moa.self_attention), FusedBlock(moa.cross_attention)

    def new_state(self) -> MoAState:
        return MoAState(self)


class MoAState:
    """SA's cache over the tokens, CA's over the features. See drafter.DraftState."""

    def __init__(self, drafter: MoADrafter) -> None:
        self._drafter = drafter
        self._device = drafter.frozen.embed.device
        self._record = Record(drafter.tap.width)
        self._sa_cache = drafter.sa.new_cache()
        self._ca_cache = drafter.ca.new_cache()
        self._scratch = Scratch(self._device)
        self._num_standing = 0  # rows of SA's cache that are tokens'; scratch rows follow
        self._num_visible = 0  # rows of CA's cache that this drafting sees

    @property
    def num_tokens(self) -> int:
        return len(self._record.tokens)

    @property
    def num_features(self) -> int:
        return self._record.num_features

    @property
    def reach(self) -> int:
        return ENDLESS

    def append(self, tokens: Sequence[int]) -> None:
        self._record.append(tokens)

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        start = self._record.num_features
        rows = self._record.take(first, rows)
        context = self._drafter.ekv2e(rows.to(self._drafter.frozen.embed))
        self._drafter.ca.remember(context, self._rope(start, len(rows)), self._ca_cache)

    def rollback(self, num_tokens: int) -> None:
        self._record.rollback(num_tokens)
        self._num_standing = min(self._num_standing, num_tokens)
        self._ca_cache.truncate(self._record.num_features)

    @torch.inference_mode()
    def root_logits(self) -> Tensor:
        self._record.need_root()
        self._scratch.clear()
        first = min(self._num_standing, self.num_tokens - 1)  # the root at least: its query is needed
        self._sa_cache.truncate(first)
        *context, root = self._record.tokens[first:]
        self._drafter.sa.remember(self._embeds(context), self._rope(first, len(context)), self._sa_cache)
        self._num_standing, self._num_visible = self.num_tokens, self._record.usable
        return self._logits(self._embeds([root]), self._rope(self.num_tokens - 1, 1))[0]

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        depths, mask = self._scratch.add(parents, self._num_standing)
        rope = self._drafter.sa.shape.rope(depths + (self.num_tokens - 1))
        return self._logits(self._embeds(tokens), rope, mask)

    def _logits(self, embeds: Tensor, rope: Rope, mask: Tensor | None = None) -> Tensor:
        """Logits [n, V] of rows that go into SA's cache; mask [n, rows of it] bool, None: they see all."""
        spoken = self._drafter.sa.run(embeds, rope, self._sa_cache, mask)
        keys, values = self._ca_cache.first(self._num_visible)
        return F.linear(self._drafter.ca.ask(spoken, rope, keys, values), self._drafter.frozen.lm_head).float()

    def _embeds(self, tokens: Sequence[int]) -> Tensor:
        return F.embedding(torch.tensor(tokens, dtype=torch.int64, device=self._device), self._drafter.frozen.embed)

    def _rope(self, first: int, count: int) -> Rope:
        """Of consecutive positions; SA's and CA's are the same."""
        return self._drafter.sa.shape.rope(torch.arange(first, first + count, device=self._device))


def _load(files: DrafterFiles, target: TargetSizes) -> MoA:
    files.need_vocabulary(target)
    files.need(REQUIRED)
    sizes = sizes_of(files.checkpoint, files.config)
    files.need_equal("hidden size", sizes.hidden, target.hidden)
    files.need_equal("width of packed K/V", sizes.packed_kv, target.packed_kv)
    with torch.device("meta"):
        network = MoA(sizes)
    return files.fill(network)


def _load_drafter(files: DrafterFiles, frozen: FrozenTarget) -> MoADrafter:
    moa = _load(files, frozen.sizes)
    info = tap_info(moa)  # of the values as stored
    return MoADrafter(moa.to(frozen.embed.device, frozen.embed.dtype), frozen, info)


def _load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> MoATap:
    moa = _load(files, target)
    info = tap_info(moa)
    return MoATap(moa.to(like.device, like.dtype), info)


FAMILY = Family(
    name=NAME,
    eats="K/V of all target layers, mixed to one row a token",
    offline="goes on",
    trees="dynamic",
    recognises=lambda files: any(name.startswith(PARTS) for name in files.names),
    drafter=_load_drafter,
    tap=_load_tap,
)
