"""DFlash's network (z-lab/dflash, dflash/model.py; arXiv 2602.06036), version 1: a whole block of tokens in one pass.

server (tap)   hidden states of n target layers -> fc -> hidden_norm = context row            E values per token
client         block: root, MASK, MASK, ... -> target's embedding -> layers -> norm -> target's lm_head
                                                                      ^ keys and values: context rows, then the block

z-lab: row i of the block predicts the token at its own position, so rows 1, 2, ... give the tokens after the root.
DeepSpec: row i predicts the token after its position, so rows 0, 1, ... give them. Each is independent of the tokens
drafted for the others. Embedding and lm_head may be the drafter's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from outrider_drafters.blocks.layers import INIT_STD, BlockShape, LlamaBlock, RMSNorm
from outrider_drafters.blocks.row_buffer import KVCache
from outrider_drafters.checkpoints.draft_vocabulary import draft_tokens
from outrider_drafters.checkpoints.fingerprint import tensors_fingerprint
from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_drafters.contracts.tap import Activations, StatelessTap
from outrider_drafters.families.dflash.layer_masks import LayerMask
from outrider_drafters.readers.checkpoint import write_model
from outrider_drafters.readers.config import FULL
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo

# Key of our config.json: most features that blocks lacked in training, as they do ahead of a verdict.
LATE = "outrider_late"


@dataclass(frozen=True, slots=True)
class DFlashSizes:
    """Sizes and settings of a drafter. `block` counts the root; `taps` are indices of Hugging Face's hidden_states.

    `embed_scale`, `logit_scale` and `softcap` (of logits; None: none) follow targets that have such. `from_root`: the
    root's row drafts, too. `head_rows`: rows of an lm_head of its own (0: it has none), `vocab` of an embedding of its
    own. `borrowed_head`: these rows are the target's. `late`: see LATE. `hint`: see Drafter. Raises UsageError.
    """

    shape: BlockShape
    layer_masks: tuple[LayerMask, ...]  # one a layer
    taps: tuple[int, ...]
    block: int
    mask_token: int
    embed_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float | None = None
    from_root: bool = False
    vocab: int = 0
    head_rows: int = 0
    borrowed_head: bool = False
    own_embedding: bool = False
    late: int = 0
    hint: str = ""

    def __post_init__(self) -> None:
        if self.num_drafts < 1:
            raise UsageError(f"block_size={self.block}: need at least 2, the root and one token")

    @property
    def first_row(self) -> int:
        """The row of the block that gives the token after the root."""
        return 0 if self.from_root else 1

    @property
    def num_drafts(self) -> int:
        """Number of tokens that a block drafts."""
        return self.block - self.first_row


@dataclass(frozen=True, slots=True, eq=False)
class BlockRows:
    """Rows of blocks; windows count from `origins`: a block's root, or the row itself if it comes before that."""

    positions: Tensor  # [n] int64
    origins: Tensor
    blocks: Tensor | None  # the number of each row's block; None: there is one

    @classmethod
    def of(cls, spans: Sequence[tuple[int, int, int]], device: torch.device) -> BlockRows:
        """Make the rows of blocks, each from its first position to its last, with its root's between them."""
        rows = [(at, min(at, root), n) for n, (first, root, last) in enumerate(spans) for at in range(first, last + 1)]
        positions, origins, blocks = torch.tensor(rows, device=device).unbind(1)
        return cls(positions, origins, blocks if len(spans) > 1 else None)

    def apart(self, num_context: int) -> Tensor | None:
        """Compute which of `num_context` rows and of these each may see, [n, m] bool: its own block; None: all."""
        if self.blocks is None:
            return None
        own = self.blocks[:, None] == self.blocks
        return torch.cat((own.new_ones(len(own), num_context), own), dim=1)


class DFlash(nn.Module):
    """The trained part; submodules are named as in the published files."""

    d2t: Tensor

    def __init__(self, sizes: DFlashSizes) -> None:
        super().__init__()
        width = sizes.shape.width
        self.sizes = sizes
        self.embed_tokens = nn.Embedding(sizes.vocab, width) if sizes.own_embedding else None
        self.fc = nn.Linear(len(sizes.taps) * width, width, bias=False)
        self.hidden_norm = RMSNorm(width, sizes.shape.eps)
        self.layers = nn.ModuleList(LlamaBlock(sizes.shape) for _ in sizes.layer_masks)
        self.norm = RMSNorm(width, sizes.shape.eps)
        has_own_head = sizes.head_rows and not sizes.borrowed_head
        self.lm_head = nn.Linear(width, sizes.head_rows, bias=False) if has_own_head else None
        if sizes.head_rows not in (0, sizes.vocab):
            self.register_buffer("d2t", torch.zeros(sizes.head_rows, dtype=torch.int64))
        if not self.fc.weight.is_meta:
            nn.init.normal_(self.fc.weight, std=INIT_STD)

    @property
    def draft_tokens(self) -> Tensor | None:
        """Target ids of lm_head's own rows; None where row i is token i. Raises UsageError for a broken d2t."""
        return draft_tokens(self.d2t, self.sizes.vocab) if hasattr(self, "d2t") else None

    def context(self, hidden: Sequence[Tensor]) -> Tensor:
        """Mix hidden states of the tapped layers, each [n, E], to context rows [n, E]."""
        return self.hidden_norm(self.fc(torch.cat(list(hidden), dim=-1)))  # type: ignore[no-any-return]  # nn.Module's call

    def new_caches(self) -> list[KVCache]:
        """Make one cache per layer for the context rows' keys and values."""
        shape, like = self.sizes.shape, self.norm.weight
        return [KVCache(shape.kv_heads, shape.head_dim, like.dtype, like.device) for _ in self.layers]

    def append_kv(self, context: Tensor, first: int, caches: Sequence[KVCache]) -> None:
        """Append the keys and values of context rows [n, E], positions first, first + 1, ..., to the caches."""
        # Without the layer's input norm, unlike the block's own rows: hidden_norm has normed the context already.
        rope = self.sizes.shape.rope(torch.arange(first, first + len(context), device=context.device))
        for layer, cache in zip(self._blocks(), caches, strict=True):
            cache.append(*layer.self_attn.keys_values(context[None], rope))

    def run(self, embeds: Tensor, rows: BlockRows, num_context: int, caches: Sequence[KVCache]) -> Tensor:
        """Run blocks' rows [n, E] over `num_context` cached rows, in one pass; states [n, E] for lm_head."""
        apart, rope = rows.apart(num_context), self.sizes.shape.rope(rows.positions)
        columns = torch.cat((torch.arange(num_context, device=embeds.device), rows.positions))
        x = embeds[None]
        for layer, cache, layer_mask in zip(self._blocks(), caches, self.sizes.layer_masks, strict=True):
            pairs = zip(cache.first(num_context), layer.keys_values(x, rope), strict=True)
            keys, values = (torch.cat(pair, dim=2) for pair in pairs)
            mask = layer_mask.mask(rows.positions, rows.origins, columns)
            seen = apart if mask is None or apart is None else mask & apart
            x = layer(x, rope, keys, values, mask if seen is None else seen)
        return self.norm(x[0])  # type: ignore[no-any-return]  # nn.Module's call

    def forward_train(self, embeds: Tensor, context: Tensor, anchors: Tensor, lacking: Tensor) -> Tensor:
        """Run many blocks of each text at once (paper, 4.2): states [B, A, n, E] for lm_head.

        embeds [B, A, n, E] of blocks whose roots are at positions `anchors` [B, A], context rows [B, T, E]. A block's
        rows before its root are the tokens there. As in drafting, it sees the context but for the last `lacking` [B, A]
        rows before its root, of its own rows before it as many, and the others. No layer may have a mask of its own.
        """
        count, block = embeds.shape[1:3]
        along, rows = torch.arange(context.shape[1], device=context.device), torch.arange(block, device=context.device)
        rows = rows - (block - self.sizes.block)  # the root's is 0
        of = torch.arange(count, device=context.device).repeat_interleave(block)
        before = (along < (anchors - lacking).unsqueeze(-1)).repeat_interleave(block, dim=1)
        own = (of[:, None] == of) & (rows >= -lacking.unsqueeze(-1)).flatten(1).unsqueeze(1)
        mask = torch.cat((before, own), dim=-1).unsqueeze(1)
        of_context = self.sizes.shape.rope(along)
        rope = self.sizes.shape.rope((anchors.unsqueeze(-1) + rows).flatten(1)).for_heads()
        x = embeds.flatten(1, 2)
        for layer in self._blocks():
            pairs = zip(layer.self_attn.keys_values(context, of_context), layer.keys_values(x, rope), strict=True)
            keys, values = (torch.cat(pair, dim=2) for pair in pairs)
            x = layer(x, rope, keys, values, mask)
        return self.norm(x).view(embeds.shape)  # type: ignore[no-any-return]  # nn.Module's call

    def export(self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32) -> None:
        """Write z-lab's layout, of a network with neither embedding nor lm_head whose root's row does not draft."""
        sizes = self.sizes
        config = self._qwen3_config(target) | {
            "architectures": ["DFlashDraftModel"],
            "rope_theta": sizes.shape.rope_theta,
            "block_size": sizes.block,
            "num_target_layers": target.layers,
            # Counted by outputs: -1 is the embedding, which is hidden state 0.
            "dflash_config": {"mask_token_id": sizes.mask_token, "target_layer_ids": [tap - 1 for tap in sizes.taps]},
        }
        write_model(directory, config | self._late_config(), self.state_dict(), dtype)

    def _qwen3_config(self, target: TargetSizes) -> dict[str, object]:
        shape, count = self.sizes.shape, len(self.sizes.layer_masks)
        return {
            "model_type": "qwen3",
            **shape.as_config(count, target.max_context, self.sizes.vocab),
            "layer_types": [FULL] * count,
            "sliding_window": None,
            "use_sliding_window": False,
            "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
            "attention_bias": shape.qkv_bias,
        }

    def _late_config(self) -> dict[str, object]:
        return {LATE: self.sizes.late} if self.sizes.late else {}

    def _blocks(self) -> list[LlamaBlock]:
        return [layer for layer in self.layers if isinstance(layer, LlamaBlock)]


NAME = "dflash"


def is_fused(name: str) -> bool:
    """True for the tensors that the features' name covers: both sides must hold the same values."""
    return name.startswith(("fc.", "hidden_norm."))


def tap_info(network: DFlash) -> TapInfo:
    """Describe the features, named after the weights that make them, as stored, and the tapped layers."""
    weights = {"fc": network.fc.weight, "hidden_norm": network.hidden_norm.weight}
    layers = "-".join(map(str, network.sizes.taps))
    return TapInfo(f"{NAME}:{tensors_fingerprint(weights)}:{layers}", NAME, network.sizes.shape.width)


class DFlashTap(StatelessTap):
    """Server half: hidden states of several layers, mixed to one context row per token."""

    needs_kv = False

    def __init__(self, network: DFlash, like: Tensor) -> None:
        """The weights take the type and device of `like`."""
        self.info = tap_info(network)  # of the weights as stored: before the cast
        self.hidden_layers = tuple(dict.fromkeys(network.sizes.taps))
        self._network = network.to(like.device, like.dtype)

    @torch.inference_mode()
    def rows(self, acts: Activations) -> Tensor:
        like = self._network.fc.weight
        return self._network.context([acts.hidden[tap].to(like) for tap in self._network.sizes.taps]).float()
