"""EAGLE-3's first layer over (embedding, feature) pairs: the plain form for training, the fused one for drafting."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outrider_drafters.blocks.fused import FusedBlock
from outrider_drafters.blocks.layers import Attention, BlockShape, GatedMLP, RMSNorm, Rope
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class Eagle3Sizes:
    """Sizes and switches of a head. `block.width` is its own width H, `target_hidden` the target's Ht.

    target_layers: the hidden states it reads, by Hugging Face's index (the number of layers: the last one's output
    before the final norm); none: the last hidden state after it, and no fc. fc_norm: one norm for each of them;
    input_norm: one over all. own_embedding, own_head: in the file, not borrowed. windows: one a layer, how many rows a
    row sees, its own counted; None: all. Raises UsageError for what does not fit together.
    """

    block: BlockShape
    vocab: int
    draft_vocab: int
    target_hidden: int
    target_layers: tuple[int, ...]
    fc_bias: bool = False
    out_bias: bool = False
    fc_norm: bool = False
    input_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    own_embedding: bool = False
    own_head: bool = True
    windows: tuple[int | None, ...] = (None,)

    def __post_init__(self) -> None:
        same_width = self.hidden == self.target_hidden
        if not 1 <= self.draft_vocab <= self.vocab:
            raise UsageError(f"draft_vocab={self.draft_vocab}: need 1 to {self.vocab}, the target's vocabulary")
        if self.fc_norm and self.input_norm:
            raise UsageError("fc_norm and input_norm: a head has one or the other")
        if not self.target_layers and not same_width:
            raise UsageError(f"hidden size is {self.hidden}, the target's {self.target_hidden}, and there is no fc")
        if not self.own_head and not (same_width and self.draft_vocab == self.vocab):
            raise UsageError("lacks lm_head.weight, and the target's fits only a head of its width and vocabulary")
        if not self.own_embedding and not same_width:
            raise UsageError(
                f"hidden size is {self.hidden}, the target's {self.target_hidden}: the embedding must be the head's own"
            )

    @property
    def hidden(self) -> int:
        return self.block.width

    @property
    def layers(self) -> int:
        return len(self.windows)


class PairLayer(nn.Module):
    def __init__(self, sizes: Eagle3Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.shape = shape = sizes.block
        self.input_layernorm = RMSNorm(shape.width, shape.eps)
        self.hidden_norm = RMSNorm(shape.width, shape.eps)
        self.self_attn = Attention(shape, 2 * shape.width, out_bias=sizes.out_bias)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.eps)
        self.mlp = GatedMLP(shape.width, shape.mlp)

    def forward(
        self, embeds: Tensor, features: Tensor, rope: Rope, seen: TrainStepCache, chosen: Tensor | None = None
    ) -> Tensor:
        """Compute a training step's outputs [B, T, H], or those of rows `chosen` [B, R]; its K/V join those `seen`."""
        normed = self.hidden_norm(features)
        pairs = torch.cat((self.input_layernorm(embeds), normed), dim=-1)
        keys, values = self.self_attn.keys_values(pairs, rope)
        if chosen is not None:
            pairs, normed, features = (take_rows(x, chosen) for x in (pairs, normed, features))
            rope = Rope(rope.cos[chosen], rope.sin[chosen]).for_heads()
        mixed = seen.attend(self.self_attn.queries(pairs, rope), keys, values)
        y = (normed if self.sizes.norm_before_residual else features) + self.self_attn.o_proj(mixed)
        return y + self.mlp(self.post_attention_layernorm(y))  # type: ignore[no-any-return]  # nn.Module.__call__ is Any


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Return the rows [B, R] of x [B, T, H]."""
    return x.gather(1, rows.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


class TrainStepCache:
    """Keys and values of the steps of the training-time test.

    A row of step k sees the true rows up to its own (step 0, causal), and of the later steps only its own row: the
    tokens drafted one after the other from there.
    """

    def __init__(self, mask: Tensor) -> None:
        self._mask = mask  # [R, T] bool, or broadcast to [B, 1, 1, R, T]
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Add a step, K and V [B, kv_heads, T or R, d], and attend by queries [B, heads, R, d]: [B, R, heads x d]."""
        self._keys.append(keys.unsqueeze(2))
        self._values.append(values.unsqueeze(2))
        batch, heads, rows, width = queries.shape
        length = self._keys[0].shape[-2]
        grouped = queries.reshape(batch, keys.shape[1], heads // keys.shape[1], rows, width) * width**-0.5
        scores = (grouped @ self._keys[0].transpose(-1, -2)).masked_fill_(~self._mask, -torch.inf)
        own = [(grouped * later).sum(-1, keepdim=True) for later in self._keys[1:]]
        # One softmax over the true rows and the row's own later steps, in float32 also under autocast.
        weights = torch.cat((scores, *own), dim=-1).softmax(-1, dtype=torch.float32).to(values.dtype)
        mixed = weights[..., :length] @ self._values[0]
        for number, later in enumerate(self._values[1:]):
            mixed = mixed + weights[..., length + number, None] * later
        return mixed.flatten(1, 2).transpose(1, 2).flatten(2)


class FusedPairLayer(FusedBlock):
    """PairLayer for inference, over rows [n, 2 H] of one text."""

    def __init__(self, layer: PairLayer) -> None:
        super().__init__(layer)  # type: ignore[arg-type]  # it has all parts of a LlamaBlock
        self._embed_norm, self._feature_norm = layer.input_layernorm, layer.hidden_norm
        self._norm_before_residual = layer.sizes.norm_before_residual

    def _normed(self, x: Tensor) -> Tensor:
        embeds, features = x.chunk(2, dim=-1)
        return torch.cat((self._embed_norm(embeds), self._feature_norm(features)), dim=-1)

    def _output(self, x: Tensor, mixed: Tensor) -> Tensor:
        features = x[..., self.shape.width :]
        return super()._output(self._feature_norm(features) if self._norm_before_residual else features, mixed)
