"""DFlash's block straight from its formulas, without a cache; and tiny random weights for it.

Tensors bear the published names. `sees(query, key, layer)` says by positions what a row of a layer sees.
"""

from collections.abc import Callable, Sequence

import torch
from eagle3_formulas import Formulas, layer_shapes
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
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (WIDTH, 3 * WIDTH), "hidden_norm.weight": (WIDTH,)}
    shapes |= {"norm.weight": (WIDTH,)}
    for layer in (f"layers.{number}." for number in range(LAYERS)):
        shapes |= layer_shapes(layer, WIDTH, WIDTH, HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, MLP)
        shapes |= {f"{layer}self_attn.{x}_norm.weight": (HEAD_DIM,) for x in "qk"}
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
    token, place = root
    frequencies = THETA ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    formulas = Formulas(w, HEADS, KV_HEADS, embed, embed, frequencies, eps=1e-6)
    context = formulas.norm(torch.cat(list(hidden), dim=-1) @ w["fc.weight"].T, w["hidden_norm.weight"])
    x = embed[[*late, token] + [MASK] * (BLOCK - 1)]
    first = place - len(late)
    places = [*range(len(context)), *range(first, first + len(x))]
    for number in range(LAYERS):
        layer = f"layers.{number}."
        rows = torch.cat((context, formulas.norm(x, w[f"{layer}input_layernorm.weight"])))
        seen = torch.tensor([[sees(query, key, number) for key in places] for query in places])
        attended = formulas.attended(rows, layer, seen, torch.tensor(places))
        x = formulas.mixed(x + attended[len(context) :], layer)
    return formulas.norm(x[-BLOCK:], w["norm.weight"])
