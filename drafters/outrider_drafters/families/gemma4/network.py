"""The network of a Gemma-4 assistant (transformers, models/gemma4_assistant; google/gemma-4-E2B-it-assistant).

server (tap)   K/V of the target's last sliding and last full layer, and its last hidden state h, as they are
client         [ target's embedding of the token x sqrt(E) ; h of the token before ] -> pre_projection -> layers -> norm
                   layers have queries alone: they attend to the target's K/V  -^                    |         |
               h of the token, for the next one <- post_projection ----------------------------------'         v
               logits <- its own head: of all tokens (plain), or of the clusters whose centroids fit best (ordered)

The root stands at position L, and K/V are those of the L tokens before it, its own not among them. Tokens drafted below
it stand there, too: whatever the depth, queries turn by L. No row sees another, but for the h of its parent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.blocks.layers import GatedMLP, RMSNorm, Rope
from outrider_drafters.contracts.tap import LAST, Activations, StatelessTap
from outrider_proto.frames import TapInfo

NAME = "gemma4"
Kind = Literal["sliding_attention", "full_attention"]
KINDS: tuple[Kind, ...] = ("sliding_attention", "full_attention")  # as they follow each other in a feature


@dataclass(frozen=True, slots=True)
class LentShape:
    """K/V that the layers of one kind borrow, and the rotation of their queries.

    `turned`: pairs of a head that RoPE turns, the first ones; frequencies are those of all pairs divided by `factor`.
    """

    kv_heads: int
    head_dim: int
    theta: float
    turned: int
    factor: float = 1.0

    @property
    def width(self) -> int:
        """Values of K and V of a token."""
        return 2 * self.kv_heads * self.head_dim

    def rope(self, position: int, device: torch.device) -> Rope:
        """Compute the rotation [1, head_dim] of one position."""
        # Proportional RoPE: exponents are of the whole head, also where few of its pairs turn.
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=device) / self.head_dim
        angles = position * (1.0 / self.theta**exponents / self.factor)
        angles[self.turned :] = 0
        cos, sin = angles.cos(), angles.sin()
        return Rope(torch.cat((cos, cos))[None], torch.cat((-sin, sin))[None])


@dataclass(frozen=True, slots=True)
class AssistantSizes:
    """Sizes of an assistant. `backbone` is the target's width, `head_rows` those of its own head.

    `centroids` 0: a plain head. `window`: what is seen of the sliding layer, see Lent.
    """

    backbone: int
    width: int
    heads: int
    mlp: int
    eps: float
    kinds: tuple[Kind, ...]  # one a layer
    lent: Mapping[Kind, LentShape]
    window: int
    vocab: int
    head_rows: int
    centroids: int = 0
    best_centroids: int = 0

    @property
    def borrowed(self) -> tuple[Kind, ...]:
        """The kinds of layers whose K/V it needs, in the order of a feature."""
        return tuple(kind for kind in KINDS if kind in self.kinds)

    @property
    def feature_width(self) -> int:
        return sum(self.lent[kind].width for kind in self.borrowed) + self.backbone


@dataclass(frozen=True, slots=True, eq=False)
class Lent:
    """The target's K/V of one text, [1, kv_heads, n, head_dim] each, and the rotations of queries at its root."""

    keys_values: Mapping[Kind, tuple[Tensor, Tensor]]
    ropes: Mapping[Kind, Rope]


class _Attention(nn.Module):
    def __init__(self, sizes: AssistantSizes, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = sizes.heads, head_dim
        self.q_proj = nn.Linear(sizes.width, sizes.heads * head_dim, bias=False)
        self.q_norm = RMSNorm(head_dim, sizes.eps)
        self.o_proj = nn.Linear(sizes.heads * head_dim, sizes.width, bias=False)

    def forward(self, x: Tensor, kind: Kind, texts: Sequence[Lent], counts: Sequence[int]) -> Tensor:
        """Let rows x [n, width], counts[i] of them text i's, attend to their text's K/V."""
        queries = self.q_norm(self.q_proj(x).view(len(x), self.heads, self.head_dim)).transpose(0, 1)
        mixed = []
        for text, own in zip(texts, torch.split(queries, list(counts), dim=1), strict=True):
            keys, values = text.keys_values[kind]
            if not keys.shape[2]:
                mixed.append(torch.zeros_like(own))  # a softmax over nothing is NaN
                continue
            rotated = text.ropes[kind].rotate(own)[None]
            # Scale 1: the norms of queries and keys have taken its place.
            mixed.append(F.scaled_dot_product_attention(rotated, keys, values, scale=1.0, enable_gqa=True)[0])
        return self.o_proj(torch.cat(mixed, dim=1).transpose(0, 1).flatten(1))  # type: ignore[no-any-return]  # nn.Module's call


class _MLP(GatedMLP):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))  # type: ignore[no-any-return]  # as above


class _Layer(nn.Module):
    layer_scalar: Tensor

    def __init__(self, sizes: AssistantSizes, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.self_attn = _Attention(sizes, sizes.lent[kind].head_dim)
        self.mlp = _MLP(sizes.width, sizes.mlp)
        self.input_layernorm = RMSNorm(sizes.width, sizes.eps)
        self.post_attention_layernorm = RMSNorm(sizes.width, sizes.eps)
        self.pre_feedforward_layernorm = RMSNorm(sizes.width, sizes.eps)
        self.post_feedforward_layernorm = RMSNorm(sizes.width, sizes.eps)
        self.register_buffer("layer_scalar", torch.ones(1))

    def forward(self, x: Tensor, texts: Sequence[Lent], counts: Sequence[int]) -> Tensor:
        mixed = self.self_attn(self.input_layernorm(x), self.kind, texts, counts)
        x = x + self.post_attention_layernorm(mixed)
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return x * self.layer_scalar


class _Clusters(nn.Module):
    """The ordered head's part: the token ids cluster by cluster, and each cluster's centroid."""

    token_ordering: Tensor

    def __init__(self, sizes: AssistantSizes) -> None:
        super().__init__()
        self.centroids = nn.Linear(sizes.width, sizes.centroids, bias=False)
        self.register_buffer("token_ordering", torch.zeros(sizes.vocab, dtype=torch.int64))
        self._best = sizes.best_centroids

    def tokens(self, hidden: Tensor) -> Tensor:
        """Return the tokens [n, k] of the clusters that fit rows [n, width] best."""
        best = self.centroids(hidden).topk(self._best, dim=-1).indices
        clusters = self.token_ordering.to(torch.int64).view(self.centroids.out_features, -1)
        return clusters[best].flatten(1)


class Assistant(nn.Module):
    """The whole network; submodules are named as in the published files, without their `model.`."""

    def __init__(self, sizes: AssistantSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.pre_projection = nn.Linear(2 * sizes.backbone, sizes.width, bias=False)
        self.layers = nn.ModuleList(_Layer(sizes, kind) for kind in sizes.kinds)
        self.norm = RMSNorm(sizes.width, sizes.eps)
        self.post_projection = nn.Linear(sizes.width, sizes.backbone, bias=False)
        self.lm_head = nn.Linear(sizes.width, sizes.head_rows, bias=False)
        self.masked_embedding = _Clusters(sizes) if sizes.centroids else None

    def run(self, inputs: Tensor, texts: Sequence[Lent], counts: Sequence[int]) -> Tensor:
        """Run rows [n, 2 E], counts[i] of them text i's, to states [n, width] for the head and post_projection."""
        x = self.pre_projection(inputs)
        for layer in self.layers:
            x = layer(x, texts, counts)
        return self.norm(x)  # type: ignore[no-any-return]  # as above

    def ordered_logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [n, V] float32 of the clusters that fit best; all other tokens get one less than the least."""
        assert self.masked_embedding is not None
        tokens = self.masked_embedding.tokens(hidden)
        drafted = torch.einsum("nkw,nw->nk", F.embedding(tokens, self.lm_head.weight), hidden).float()
        # The least of each row: a tree's nodes do not depend on which others they run with.
        rest = drafted.min(dim=-1, keepdim=True).values - 1.0
        return rest.expand(-1, self.sizes.vocab).scatter(1, tokens, drafted)


def tap_info(sizes: AssistantSizes, lenders: tuple[int, ...]) -> TapInfo:
    """Describe the features of the target's layers `lenders`. No weights make them: all assistants share them."""
    layers = "-".join(map(str, lenders))
    return TapInfo(f"{NAME}:{layers}:{sizes.feature_width}", NAME, sizes.feature_width)


class LentTap(StatelessTap):
    """Server half: what the target has computed anyway, as it is.

    [ sliding layer: K | V | full layer: K | V | last hidden state E ]       K and V head by head, K post-RoPE
    """

    needs_kv = True
    hidden_layers = (LAST,)

    def __init__(self, info: TapInfo, lenders: tuple[int, ...]) -> None:
        self.info = info
        self._lenders = lenders

    @torch.inference_mode()
    def rows(self, acts: Activations) -> Tensor:
        lent = [part for layer in self._lenders for part in (acts.keys[layer], acts.values[layer])]
        hidden = acts.hidden[LAST].float()
        return torch.cat([*(part.transpose(0, 1).flatten(1).to(hidden) for part in lent), hidden], dim=1)
