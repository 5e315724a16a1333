"""Starts a block drafter as the target's last layers behind one that gathers (ours), not from random weights.

Of N layers the last N - 1 are the target's. Let s_t be the target's state that enters them at position t, divided by
its usual size, which their norms do not see. fc is the best linear guess of s_t from the taps at t, exact where s is
tapped, so that context rows c_t give those layers nearly the target's keys and values. The first layer makes

    s_t = embed(x_t) + A c_{t-1} + B n(x_t)      least squares, n the layer's norm of the embedding

of a block that begins at t: some heads look at the last context row alone and add A's main directions, the others look
at the root alone and add B's. Its MLP adds nothing. Masks begin as the root does and learn what comes after.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.blocks.last_layers import LastLayers
from outrider_drafters.blocks.layers import LlamaBlock, RMSNorm, Rope
from outrider_drafters.families.dflash.network import DFlash
from outrider_models.training.core.interfaces import PADDING, Batch, TeacherOutput, TeacherRequest
from outrider_models.training.families.target_start import LeastSquares, check_shape
from outrider_proto.errors import UsageError

_SAME = ("heads", "head_dim", "mlp", "qkv_bias", "rope_theta")
_ROOT_SHARE = 3  # one head of the first layer in so many looks at the root
_SHARPNESS = 2.0  # of the first layer's norms of queries and keys: scores of up to 4 sqrt(head_dim)
_MASK_SHARE = 8  # one row in so many of the fit that tells rows apart is the mask's


def start_request(layers: int, taps: tuple[int, ...]) -> TeacherRequest:
    """Return what the fit reads of the target. Raises UsageError for a drafter of one layer."""
    if layers < 2:
        raise UsageError("drafter.init=target: layers=1: need at least 2, of which the first gathers")
    return TeacherRequest(hidden=(-layers, *taps), last_layers=layers - 1)


@torch.no_grad()
def start_from_target(network: DFlash, examples: Iterable[tuple[Batch, TeacherOutput]]) -> None:
    """Set all weights but the heads' of tokens. Holds the examples.

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
    scale = torch.cat([text.entering[text.inside].pow(2).mean(-1).rsqrt() for text in texts]).median()
    fit = LeastSquares()
    for text in texts:
        fit.add(text.taps[text.inside], text.entering[text.inside])
    network.fc.weight.copy_(fit.solve())
    first, *others = [layer for layer in network.layers if isinstance(layer, LlamaBlock)]
    _start_first(first, network, texts, scale)
    rope = source.shape.rope(torch.arange(texts[-1].entering.shape[1]))
    mask = torch.ones(len(rope.cos), len(rope.cos), dtype=torch.bool).tril()
    states = texts[-1].entering
    for block, theirs in zip(others, source.blocks, strict=True):
        _start_block(block, theirs, states, scale)
        states = theirs.self_attend(states, rope, mask)


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    embeds: Tensor  # [B, T, E]
    taps: Tensor  # [B, T, k E]
    entering: Tensor  # [B, T, E]
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


def _start_first(block: LlamaBlock, network: DFlash, texts: list[_Text], scale: Tensor) -> None:
    shape, norm, mask = block.shape, block.input_layernorm, texts[0].mask
    sums, kinds, pairs = LeastSquares(), LeastSquares(), list[Tensor]()
    for text in texts:
        context, tokens = network.hidden_norm(network.fc(text.taps)), norm(text.embeds)
        inside = text.inside[:, 1:]
        both = torch.cat((context[:, :-1], tokens[:, 1:]), dim=-1)[inside]
        sums.add(both, (scale * text.entering - text.embeds)[:, 1:][inside])
        pairs.append(both)
        masks = norm(mask).expand(len(both) // _MASK_SHARE, -1)
        for number, rows in enumerate((context[text.inside], tokens[text.inside], masks)):
            kinds.add(rows, F.one_hot(torch.tensor(number), 3).expand(len(rows), -1))
    is_context, is_token, is_mask = kinds.solve()
    from_context, from_root = sums.solve().chunk(2, dim=1)
    root = max(1, shape.heads // _ROOT_SHARE)
    split = (shape.heads - root) * shape.head_dim
    of_context, of_root = torch.cat(pairs).chunk(2, dim=1)
    directions = torch.cat((_main_directions(from_context, of_context, split),
                            _main_directions(from_root, of_root, root * shape.head_dim)), dim=1)  # fmt: skip
    attention, size = block.self_attn, shape.head_dim
    near, elsewhere = _pairs(size, 2, 8), _pairs(size, size // 2 - 4, size // 2)
    here, aside = _pairs(size, size // 2 - 8, size // 2 - 4), elsewhere
    outer = torch.outer
    is_block = is_token + is_mask
    queries = [outer(near, is_block)] * (shape.heads - root) + [outer(here, is_block)] * root
    keys = [outer(near, is_context) + outer(elsewhere, is_block)] * (shape.heads - root)
    keys += [outer(here, is_token) + outer(aside, is_context + is_mask)] * root
    attention.q_proj.weight.copy_(torch.cat(queries))
    attention.k_proj.weight.copy_(torch.cat(keys))
    values = torch.cat((directions[:, :split].T @ from_context, directions[:, split:].T @ from_root))
    attention.v_proj.weight.copy_(values)
    attention.o_proj.weight.copy_(directions)
    for each in (attention.q_norm, attention.k_norm):
        each.weight.fill_(_SHARPNESS)
    block.mlp.down_proj.weight.zero_()


def _pairs(size: int, first: int, last: int) -> Tensor:
    """Return [head_dim]: 1 in the values that RoPE turns as its pairs first, first + 1, ..., last - 1, else 0."""
    chosen = torch.zeros(size // 2)
    chosen[first:last] = 1
    return chosen.repeat(2)


def _main_directions(guess: Tensor, rows: Tensor, count: int) -> Tensor:
    """Return the `count` directions [E, count] in which guess @ rows differ most."""
    made = (rows @ guess.T).double()
    return torch.linalg.eigh(made.T @ made).eigenvectors[:, -count:].float()


def _start_block(block: LlamaBlock, source: LlamaBlock, states: Tensor, scale: Tensor) -> None:
    attention, theirs = block.self_attn, source.self_attn
    assert isinstance(source.input_layernorm, RMSNorm)
    # Context rows come without the layer's input norm, so its weight moves into what reads them.
    into = source.input_layernorm.weight
    pairs = ((attention.q_proj, theirs.q_proj), (attention.k_proj, theirs.k_proj), (attention.v_proj, theirs.v_proj))
    for ours, its in pairs:
        copies = ours.out_features // its.out_features
        heads = its.weight.view(-1, block.shape.head_dim, its.in_features) * into
        ours.weight.copy_(heads.repeat_interleave(copies, dim=0).flatten(0, 1))
    read = source.input_layernorm(states)
    one = Rope(torch.ones(1, 1), torch.zeros(1, 1))
    _start_norm(attention.q_norm, theirs.q_norm, theirs.queries(read, one))
    _start_norm(attention.k_norm, theirs.k_norm, theirs.keys_values(read, one)[0])
    block.post_attention_layernorm.load_state_dict(source.post_attention_layernorm.state_dict())
    block.mlp.load_state_dict(source.mlp.state_dict())
    attention.o_proj.weight.copy_(theirs.o_proj.weight * scale)
    block.mlp.down_proj.weight.mul_(scale)


def _start_norm(ours: nn.Module, theirs: nn.Module, heads: Tensor) -> None:
    """Let a norm over heads [b, heads, n, D] do what the target's does, or change their sizes as little as it can."""
    assert isinstance(ours, RMSNorm)
    if isinstance(theirs, RMSNorm):
        ours.weight.copy_(theirs.weight)
    else:
        ours.weight.fill_(heads.float().pow(2).mean(-1).sqrt().median())


def _check(network: DFlash, source: LastLayers) -> None:
    shape = network.sizes.shape
    check_shape(shape, source.shape, _SAME)
    if shape.kv_heads != shape.heads:
        raise UsageError(
            f"drafter.init=target: kv_heads={shape.kv_heads}: need {shape.heads}, one for each head: what context and "
            "root add comes through its values"
        )
