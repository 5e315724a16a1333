"""Starts an EAGLE-3 head as the target's last layer behind least-squares guesses (ours), not from random weights.

With g_t = fc(taps at t), s_{t+1} the state that enters the target's last layer one position on, and n_{t+1} the pair of
embed(x_{t+1}) and g_t after the layer's norms:

    s_{t+1} = g_t + A n_{t+1}      the layer's residual is g_t alone: the rest has to come through its attention
    s_{t+1} = C n_{t+1}            what the target's own heads read
    1       = c n_{t+1}            projections have no bias

A third of the heads look at their own row alone and add the main directions of A n; the other heads are the target's,
on C n, as are MLP, norms and lm_head. Drafting goes on with the output, the target's last state at t + 1, in the place
of g_{t+1}; so A, C and c are fitted once more, over such pairs as well.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.last_layers import LastLayers
from outrider_drafters.blocks.layers import RMSNorm
from outrider_drafters.families.eagle3.network import Eagle3
from outrider_models.training.core.interfaces import PADDING, Batch, TeacherOutput, TeacherRequest
from outrider_models.training.families.target_start import LeastSquares, check_shape
from outrider_proto.errors import UsageError

_ENTERING = -2  # state before the last layer, by Hugging Face's index
_OWN_ROW_SHARE = 3  # one head in so many looks at its own row alone
_OWN_ROW_SCORE = 4.7  # each value of such heads' queries and keys
_FASTEST = 4  # one in so many of RoPE's pairs, the fastest, holds them: the others hardly turn from row to row
_MAX_NORM_WEIGHT = 20.0


def start_request(target_layers: tuple[int, ...]) -> TeacherRequest:
    """Return what the fit reads of the target."""
    return TeacherRequest(hidden=(_ENTERING, *target_layers), last_layers=1)


@torch.no_grad()
def start_from_target(network: Eagle3, examples: Iterable[tuple[Batch, TeacherOutput]]) -> None:
    """Set all weights but lm_head's, which are the target's already. Holds the examples. Raises UsageError."""
    texts: list[_Text] = []
    for batch, output in examples:
        assert output.last_layers is not None
        if not texts:
            _check(network, output.last_layers)
        texts.append(_Text.of(batch, output, network.sizes.target_layers))
        source = output.last_layers
    _fit_fc(network, texts)
    _copy_last_layer(network, source)
    fit = _LayerFit(network, source)
    for text in texts:
        fit.add(text.embeds, network.fuse(text.taps), text.entering, text.inside)
    fit.set_attention()
    for text in texts:
        drafted = network.forward_train(text.embeds, network.fuse(text.taps), 1)[0].hidden
        fit.add(text.embeds[:, 1:], drafted[:, :-1], text.entering[:, 1:], text.inside[:, 1:])
    fit.set_attention()


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    """Row t: the token of position t + 1, the target at t, and what it makes of position t + 1."""

    embeds: Tensor  # [B, T, E]
    taps: Tensor  # [B, T, k E]
    entering: Tensor  # [B, T, E]
    inside: Tensor  # [B, T] bool: not padding

    @classmethod
    def of(cls, batch: Batch, output: TeacherOutput, layers: tuple[int, ...]) -> "_Text":
        return cls(
            F.embedding(batch.tokens[:, 1:], output.embed).float(),
            torch.cat([output.hidden[layer] for layer in layers], dim=-1)[:, :-1].float(),
            output.hidden[_ENTERING][:, 1:].float(),
            (batch.labels != PADDING)[:, 1:],
        )


class _LayerFit:
    """A, C and c, and the attention that follows from them."""

    def __init__(self, network: Eagle3, source: LastLayers) -> None:
        self._layer, self._shape = network.midlayer, network.sizes.block
        self._source, self._sums, self._sizes = source.blocks[0], LeastSquares(), list[Tensor]()

    def add(self, embeds: Tensor, features: Tensor, entering: Tensor, inside: Tensor) -> None:
        """Add the pairs [B, T, E] of a text, and the states [B, T, E] that they stand for."""
        layer = self._layer
        pairs = torch.cat((layer.input_layernorm(embeds), layer.hidden_norm(features)), dim=-1)
        wanted = torch.cat((entering - features, entering, torch.ones_like(entering[..., :1])), dim=-1)
        self._sums.add(pairs[inside], wanted[inside])
        self._sizes.append(entering[inside].pow(2).mean(-1))

    def set_attention(self) -> None:
        added, entering, one = torch.split(self._sums.solve(), [self._shape.width, self._shape.width, 1])
        own = max(1, self._shape.heads // _OWN_ROW_SHARE)
        split, width = own * self._shape.head_dim, self._shape.head_dim
        # The main directions of what is to be added, over all pairs.
        spread = added.double() @ self._sums.squares @ added.double().T
        directions = torch.linalg.eigh(spread).eigenvectors[:, -split:].float()
        # RoPE turns value i together with value i + width / 2. One constant for queries and keys: most alike at the
        # same position.
        fast = torch.arange(width // 2, device=one.device) < max(1, width // 2 // _FASTEST)
        constant = _OWN_ROW_SCORE * fast.repeat(2 * own).unsqueeze(-1) * one
        attention, theirs, shape = self._layer.self_attn, self._source.self_attn, self._source.shape
        scale = (torch.cat(self._sizes) + shape.eps).rsqrt().median()
        assert isinstance(self._source.input_layernorm, RMSNorm)
        read = (self._source.input_layernorm.weight * scale).unsqueeze(-1) * entering
        kept = torch.arange(own, shape.heads, device=one.device)
        groups = kept // (shape.heads // shape.kv_heads)

        def copied(projection: torch.nn.Linear, heads: Tensor) -> Tensor:
            rows: Tensor = projection.weight @ read
            if projection.bias is not None:
                rows = rows + projection.bias.unsqueeze(-1) * one
            return rows.view(-1, width, rows.shape[-1])[heads].flatten(0, 1)

        attention.q_proj.weight.copy_(torch.cat((constant, copied(theirs.q_proj, kept))))
        attention.k_proj.weight.copy_(torch.cat((constant, copied(theirs.k_proj, groups))))
        attention.v_proj.weight.copy_(torch.cat((directions.T @ added, copied(theirs.v_proj, groups))))
        attention.o_proj.weight.copy_(torch.cat((directions, theirs.o_proj.weight[:, split:]), dim=1))


def _fit_fc(network: Eagle3, texts: list[_Text]) -> None:
    """Fit g to s together with the embeddings, and the weight of the norm that gives g's values one spread."""
    sums = LeastSquares()
    for text in texts:
        sums.add(torch.cat((text.embeds, text.taps), dim=-1)[text.inside], text.entering[text.inside])
    assert network.fc is not None
    network.fc.weight.copy_(sums.solve()[:, network.sizes.hidden :])
    norm = network.midlayer.hidden_norm
    normed = torch.cat([norm(network.fuse(text.taps[text.inside])) for text in texts])
    norm.weight.copy_((1 / normed.std(0)).clamp(max=_MAX_NORM_WEIGHT))


def _copy_last_layer(network: Eagle3, source: LastLayers) -> None:
    layer, theirs = network.midlayer, source.blocks[0]
    layer.post_attention_layernorm.load_state_dict(theirs.post_attention_layernorm.state_dict())
    layer.mlp.load_state_dict(theirs.mlp.state_dict())
    network.norm.load_state_dict(source.norm.state_dict())


def _check(network: Eagle3, source: LastLayers) -> None:
    shape = network.sizes.block
    check_shape(shape, source.shape, ("heads", "head_dim", "mlp", "qk_norm", "rope_theta"))
    if shape.kv_heads != shape.heads:
        raise UsageError(
            f"drafter.init=target: kv_heads={shape.kv_heads}: need {shape.heads}, one for each head: what the token "
            "adds comes through its values"
        )
