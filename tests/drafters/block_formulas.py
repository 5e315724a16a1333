"""DFlash's block straight from its formulas, one row at a time, without a cache; and tiny random weights for it.

Tensors bear the published names. `sees(query, key, layer)` says by positions what a row of a layer sees.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from outrider_drafters import TargetSizes

VOCABULARY, WIDTH, HEADS, KV_HEADS, HEAD_DIM, MLP, BLOCK, MASK = 23, 16, 4, 2, 6, 20, 5, 22
LAYERS = 2
THETA = 1000.0
TARGET = TargetSizes(
    hidden=WIDTH,
    layers=6,
    heads=4,
    kv_heads=2,
    head_dim=4,
    vocab=VOCABULARY,
    rope_theta=10000.0,
    eps=1e-5,
    max_context=128,
    model_type="qwen3",
)
Sees = Callable[[int, int, int], bool]


def block_tensors() -> dict[str, Tensor]:
    shapes = {"fc.weight": (WIDTH, 3 * WIDTH), "hidden_norm.weight": (WIDTH,), "norm.weight": (WIDTH,)}
    for layer in (f"layers.{number}." for number in range(LAYERS)):
        attention = layer + "self_attn."
        shapes |= {
            layer + "input_layernorm.weight": (WIDTH,),
            layer + "post_attention_layernorm.weight": (WIDTH,),
            attention + "q_proj.weight": (HEADS * HEAD_DIM, WIDTH),
            attention + "k_proj.weight": (KV_HEADS * HEAD_DIM, WIDTH),
            attention + "v_proj.weight": (KV_HEADS * HEAD_DIM, WIDTH),
            attention + "o_proj.weight": (WIDTH, HEADS * HEAD_DIM),
            attention + "q_norm.weight": (HEAD_DIM,),
            attention + "k_norm.weight": (HEAD_DIM,),
            layer + "mlp.gate_proj.weight": (MLP, WIDTH),
            layer + "mlp.up_proj.weight": (MLP, WIDTH),
            layer + "mlp.down_proj.weight": (WIDTH, MLP),
        }
    return random_tensors(shapes, seed=9)


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    return {name: tensor + 1 if "norm" in name else tensor for name, tensor in made.items()}


def block_rows(
    w: dict[str, Tensor],
    embed: Tensor,
    hidden: Sequence[Tensor],
    root: tuple[int, int],
    sees: Sees = lambda query, key, layer: True,
    late: Sequence[int] = (),
) -> Tensor:
    """The rows [BLOCK, E] after the final norm. hidden: per tapped layer [n, E]; root: its token and position.

    late: the tokens before the root that are rows of the block, too.
    """
    token, place = root[0], root[1] - len(late)
    context = [norm(w["fc.weight"] @ torch.cat(row), w["hidden_norm.weight"]) for row in zip(*hidden, strict=True)]
    x = [embed[each] for each in [*late, token] + [MASK] * (BLOCK - 1)]
    places = [*range(len(context)), *range(place, place + len(x))]
    for layer in range(LAYERS):
        name = f"layers.{layer}."
        attention = name + "self_attn."
        normed = [norm(row, w[name + "input_layernorm.weight"]) for row in x]
        inputs = context + normed
        keys, values = (
            [(w[attention + kind] @ row).view(KV_HEADS, HEAD_DIM) for row in inputs]
            for kind in ("k_proj.weight", "v_proj.weight")
        )
        for i, row in enumerate(normed):
            queries = (w[attention + "q_proj.weight"] @ row).view(HEADS, HEAD_DIM)
            mixed = []
            for head in range(HEADS):
                query = rotated(norm(queries[head], w[attention + "q_norm.weight"]), place + i)
                seen = [j for j, at in enumerate(places) if sees(place + i, at, layer)]
                group = head // (HEADS // KV_HEADS)
                normed_keys = [norm(keys[j][group], w[attention + "k_norm.weight"]) for j in seen]
                turned = [rotated(key, places[j]) for key, j in zip(normed_keys, seen, strict=True)]
                parts = (torch.stack([query @ key for key in turned]) / math.sqrt(HEAD_DIM)).softmax(0)
                mixed.append(sum(part * values[j][group] for part, j in zip(parts, seen, strict=True)))
            x[i] = x[i] + w[attention + "o_proj.weight"] @ torch.cat(mixed)
        for i, row in enumerate(x):
            inner = norm(row, w[name + "post_attention_layernorm.weight"])
            gate, up = w[name + "mlp.gate_proj.weight"] @ inner, w[name + "mlp.up_proj.weight"] @ inner
            x[i] = row + w[name + "mlp.down_proj.weight"] @ (gate * gate.sigmoid() * up)
    return torch.stack([norm(row, w["norm.weight"]) for row in x[-BLOCK:]])


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean() + 1e-6).sqrt() * weight


def rotated(x: Tensor, position: int) -> Tensor:
    half, out = HEAD_DIM // 2, x.clone()
    for pair in range(half):
        angle = position * THETA ** (-2 * pair / HEAD_DIM)
        a, b = x[pair], x[pair + half]
        out[pair] = a * math.cos(angle) - b * math.sin(angle)
        out[pair + half] = b * math.cos(angle) + a * math.sin(angle)
    return out
