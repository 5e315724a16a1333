"""Starts a block drafter as the target's last layers behind one that gathers (ours), not from random weights.

Of N layers the last N - 1 are the target's. Let s_t be the target's state that enters them at position t, divided by
its usual size, which their norms do not see. fc is the best linear guess of s_t from the taps at t, exact where s is
tapped, so that the context rows c_t = hidden_norm(fc(taps)) give those layers nearly the target's keys and values. The
first layer makes, of a block that begins at t and with n its norm of embeddings,

    s_t     = embed(x_t) + A c_{t-1} + B n(x_t)         the root's row
    s_{t+k} = embed(mask) + A' c_{t-1} + B' n(x_t)      the masks' rows, one guess for all k >= 1

by least squares. It has heads for each of A, B, A' and B', which add its main directions. A head's queries and keys
are constants that tell contexts, roots and masks apart: in values that RoPE turns at a middling pace to find the last
context row, in values that it hardly turns to find the root. A head asked by a row that is not its own looks at the
masks, whose values are 0. The layer's MLP adds nothing at first.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.blocks.last_layers import LastLayers
from outrider_drafters.blocks.layers import LlamaBlock, RMSNorm, Rope, causal_mask
from outrider_drafters.families.dflash.network import DFlash
from outrider_models.training.core.interfaces import PADDING, Batch, TeacherOutput, TeacherRequest
from outrider_models.training.families.target_start import LeastSquares, check_shape
from outrider_proto.errors import UsageError

_SAME = ("heads", "head_dim", "mlp", "qkv_bias", "rope_theta")
_MIN_HEADS = 4
_SHARPNESS = 2.0  # of the first layer's norms of queries and keys: scores of up to 4 sqrt(head_dim)
_MASK_SHARE = 8  # one row in so many of the fit that tells rows apart is the mask's
_LATER = 0.7  # of each further token's rows in the one guess for all masks: tokens after a wrong one are lost
_COMPARED = 4  # one row in so many chooses the main directions
_CONTEXT, _TOKEN, _MASK = range(3)


def start_request(layers: int, taps: tuple[int, ...]) -> TeacherRequest:
    """Return what the fit reads of the target. Raises UsageError for a drafter of one layer."""
    if layers < 2:
        raise UsageError("drafter.init=target: layers=1: need at least 2, of which the first gathers")
    return TeacherRequest(hidden=(-layers, *taps), last_layers=layers - 1)


@torch.no_grad()
def start_from_target(network: DFlash, examples: Iterable[tuple[Batch, TeacherOutput]]) -> None:
    """Set fc, all layers and the final norm. Holds the examples.

    Raises UsageError for layers of another shape, and for too few examples.
    """
    texts, source = list[_Text](), None
    for batch, output in examples:
        source = output.last_layers
        assert source is not None
        _check(network, source)
        texts.append(_Text.of(batch, output, network))
    assert source is not None
    network.norm.load_state_dict(source.norm.state_dict())
    fit = LeastSquares()
    for text in texts:
        fit.add(text.taps[text.inside], text.entering[text.inside])
    network.fc.weight.copy_(fit.solve())
    scale = torch.cat([text.entering[text.inside].pow(2).mean(-1).rsqrt() for text in texts]).median()
    first, *others = [layer for layer in network.layers if isinstance(layer, LlamaBlock)]
    _FirstLayerFit(network, first, texts, scale).set_weights()
    states = texts[-1].entering
    rope = source.shape.rope(torch.arange(states.shape[1], device=states.device))
    for block, theirs in zip(others, source.blocks, strict=True):
        _copy(block, theirs, states, scale)
        states = theirs.self_attend(states, rope, causal_mask(states.shape[1], states.device))


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    embeds: Tensor  # [B, T, E]
    taps: Tensor  # [B, T, k E]
    entering: Tensor  # [B, T, E]: the target's states that enter its copied layers
    inside: Tensor  # [B, T] bool: not padding
    mask: Tensor  # [E]: the mask's embedding

    @classmethod
    def of(cls, batch: Batch, output: TeacherOutput, network: DFlash) -> "_Text":
        sizes = network.sizes
        return cls(
            F.embedding(batch.tokens, output.embed).float(),
            torch.cat([output.hidden[tap] for tap in sizes.taps], dim=-1).float(),
            output.hidden[-len(sizes.layer_masks)].float(),
            batch.labels != PADDING,
            output.embed[sizes.mask_token].float(),
        )


class _FirstLayerFit:
    """A, B, A' and B', what tells rows apart, and the attention that follows from them."""

    def __init__(self, network: DFlash, block: LlamaBlock, texts: list[_Text], scale: Tensor) -> None:
        self._block, self._root_drafts = block, network.sizes.from_root
        norm = block.input_layernorm
        masked = norm(texts[0].mask)
        self._kinds, self._root, self._masks = LeastSquares(), _Guess(masked), _Guess(masked)
        for text in texts:
            context, tokens = network.hidden_norm(network.fc(text.taps)), norm(text.embeds)
            rows = context[text.inside], tokens[text.inside]
            for kind, some in enumerate((*rows, masked.expand(len(rows[0]) // _MASK_SHARE, -1))):
                self._kinds.add(some, F.one_hot(torch.tensor(kind), 3).to(some).expand(len(some), -1))
            states, last = scale * text.entering, context[:, :-1]
            self._root.add(last, tokens[:, 1:], (states - text.embeds)[:, 1:], text.inside[:, 1:])
            # The row that gives the token k + 1 after the root stands for s_{t+k}.
            for k in range(1 - network.sizes.first_row, network.sizes.num_drafts):
                upto = tokens.shape[1] - 1 - k
                wanted, inside = (states - text.mask)[:, 1 + k :], text.inside[:, 1 + k :]
                scaled = [_LATER**k * each for each in (last[:, :upto], tokens[:, 1 : 1 + upto], wanted)]
                self._masks.add(scaled[0], scaled[1], scaled[2], inside)

    def set_weights(self) -> None:
        attention, heads, size = self._block.self_attn, self._block.shape.heads, self._block.shape.head_dim
        marks = _marks(size).to(tells := self._kinds.solve())
        attention.k_proj.weight.copy_(torch.einsum("kd,ke->de", marks, tells).repeat(heads, 1))
        queries, values, outputs = list[Tensor](), list[Tensor](), list[Tensor]()
        of_masks = max(2, heads // 3) if self._root_drafts else heads - 2
        for guess, count, own, other in (
            (self._root, heads - of_masks, _TOKEN, _MASK),
            (self._masks, of_masks, _MASK, _TOKEN),
        ):
            of_root = max(1, count // 3)  # embeddings have fewer main directions than context rows
            for kind, share in ((_CONTEXT, count - of_root), (_TOKEN, of_root)):
                directions = guess.main_directions(kind, share * size)
                outputs.append(directions)
                values.append(directions.T @ guess.solution[kind])
                asked = torch.outer(marks[kind], tells[own]) + torch.outer(marks[_MASK], tells[other])
                queries.append(asked.repeat(share, 1))
        attention.q_proj.weight.copy_(torch.cat(queries))
        attention.v_proj.weight.copy_(torch.cat(values))
        attention.o_proj.weight.copy_(torch.cat(outputs, dim=1))
        for norm in (attention.q_norm, attention.k_norm):
            assert isinstance(norm, RMSNorm)
            norm.weight.fill_(_SHARPNESS)
        self._block.mlp.down_proj.weight.zero_()


def _marks(size: int) -> Tensor:
    """Return what keys of contexts, tokens and masks hold where they are what they are, [3, head_dim]."""
    pairs = size // 2
    turned = ((pairs // 16, pairs // 4), (pairs * 7 // 8, pairs), (pairs * 3 // 4, pairs * 7 // 8))
    marks = torch.zeros(3, pairs)
    for mark, (first, last) in zip(marks, turned, strict=True):
        mark[first:last] = 1
    # RoPE turns value i together with value i + size / 2.
    return marks.repeat(1, 2)


class _Guess:
    """A linear guess of states from the last context row and the root."""

    def __init__(self, masked: Tensor) -> None:
        self._sums, self._rows, self._masked = LeastSquares(), list[Tensor](), masked

    def add(self, context: Tensor, tokens: Tensor, wanted: Tensor, inside: Tensor) -> None:
        """Add rows [B, T, E] where `inside` [B, T] is true."""
        rows = torch.cat((context, tokens), dim=-1)[inside]
        self._sums.add(rows, wanted[inside])
        self._rows.append(rows[::_COMPARED])

    @cached_property
    def solution(self) -> tuple[Tensor, Tensor]:
        """What a context row and a token add, each [E, E]; a mask's row adds nothing."""
        context, token = self._sums.solve().chunk(2, dim=1)
        unit = F.normalize(self._masked, dim=0)
        return context - torch.outer(context @ unit, unit), token - torch.outer(token @ unit, unit)

    def main_directions(self, kind: int, count: int) -> Tensor:
        """Return the `count` directions [E, count] in which what it makes of rows of a kind differs most."""
        made = (torch.cat(self._rows).chunk(2, dim=1)[kind] @ self.solution[kind].T).double()
        directions: Tensor = torch.linalg.eigh(made.T @ made).eigenvectors[:, -count:].float()
        return directions


def _copy(block: LlamaBlock, source: LlamaBlock, states: Tensor, scale: Tensor) -> None:
    """Copy a layer of the target's, which reads `states` [b, n, E] there."""
    attention, theirs = block.self_attn, source.self_attn
    assert isinstance(source.input_layernorm, RMSNorm)
    # Context rows come without the layer's input norm, so its weight moves into what reads them.
    into = source.input_layernorm.weight
    pairs = ((attention.q_proj, theirs.q_proj), (attention.k_proj, theirs.k_proj), (attention.v_proj, theirs.v_proj))
    for ours, its in pairs:
        heads = (its.weight * into).view(-1, block.shape.head_dim, its.in_features)
        ours.weight.copy_(heads.repeat_interleave(ours.out_features // its.out_features, dim=0).flatten(0, 1))
    unturned = Rope(torch.ones(1, 1, device=states.device), torch.zeros(1, 1, device=states.device))
    read = source.input_layernorm(states)
    _start_norm(attention.q_norm, theirs.q_norm, theirs.queries(read, unturned))
    _start_norm(attention.k_norm, theirs.k_norm, theirs.keys_values(read, unturned)[0])
    block.post_attention_layernorm.load_state_dict(source.post_attention_layernorm.state_dict())
    block.mlp.load_state_dict(source.mlp.state_dict())
    attention.o_proj.weight.copy_(theirs.o_proj.weight * scale)
    block.mlp.down_proj.weight.mul_(scale)


def _start_norm(ours: nn.Module, theirs: nn.Module, heads: Tensor) -> None:
    """Do what the target's norm over heads [b, heads, n, D] does, or, if it has none, change their usual size least."""
    assert isinstance(ours, RMSNorm)
    if isinstance(theirs, RMSNorm):
        ours.weight.copy_(theirs.weight)
    else:
        ours.weight.fill_(heads.float().pow(2).mean(-1).sqrt().median())


def _check(network: DFlash, source: LastLayers) -> None:
    shape = network.sizes.shape
    check_shape(shape, source.shape, _SAME)
    if shape.kv_heads != shape.heads or shape.heads < _MIN_HEADS:
        raise UsageError(
            f"drafter.init=target: heads={shape.heads}, kv_heads={shape.kv_heads}: need as many of both, at least "
            f"{_MIN_HEADS}: what context and root add comes through their values"
        )
