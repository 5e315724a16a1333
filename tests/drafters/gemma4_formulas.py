"""A Gemma-4 assistant straight from its formulas, a row and a head at a time; and tiny random weights for it.

Tensors bear the published names. The target's K/V are lists over positions, of [K/V heads, head_dim] each.
"""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCABULARY, BACKBONE, WIDTH, HEADS, MLP, WINDOW = 48, 32, 12, 4, 20, 6
KINDS = ["sliding_attention", "sliding_attention", "full_attention"]
HEAD_DIM = {"sliding_attention": 8, "full_attention": 16}
THETA = {"sliding_attention": 1e4, "full_attention": 1e6}
SHARE = {"sliding_attention": 1.0, "full_attention": 0.25}
CENTROIDS, BEST = 12, 3
Lent = dict[str, tuple[list[Tensor], list[Tensor]]]

CONFIG = {
    "architectures": ["Gemma4AssistantForCausalLM"],
    "model_type": "gemma4_assistant",
    "backbone_hidden_size": BACKBONE,
    "num_centroids": CENTROIDS,
    "centroid_intermediate_top_k": BEST,
    "use_ordered_embeddings": False,
}
TEXT = {
    "attention_k_eq_v": True,
    "global_head_dim": HEAD_DIM["full_attention"],
    "head_dim": HEAD_DIM["sliding_attention"],
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": WIDTH,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": MLP,
    "layer_types": KINDS,
    "model_type": "gemma4_text",
    "num_attention_heads": HEADS,
    "num_global_key_value_heads": 1,
    "num_hidden_layers": len(KINDS),
    "num_key_value_heads": 2,
    "num_kv_shared_layers": len(KINDS),
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
    },
    "sliding_window": WINDOW,
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": 0,
}


def assistant_tensors(*, ordered: bool = False, seed: int = 4) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
        "pre_projection.weight": (WIDTH, 2 * BACKBONE),
        "post_projection.weight": (BACKBONE, WIDTH),
    }
    for number, kind in enumerate(KINDS):
        name = f"model.layers.{number}."
        shapes |= {
            name + "layer_scalar": (1,),
            name + "self_attn.q_proj.weight": (HEADS * HEAD_DIM[kind], WIDTH),
            name + "self_attn.q_norm.weight": (HEAD_DIM[kind],),
            name + "self_attn.o_proj.weight": (WIDTH, HEADS * HEAD_DIM[kind]),
            name + "mlp.gate_proj.weight": (MLP, WIDTH),
            name + "mlp.up_proj.weight": (MLP, WIDTH),
            name + "mlp.down_proj.weight": (WIDTH, MLP),
        }
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        shapes |= {f"{name}{each}_layernorm.weight": (WIDTH,) for each in norms}
    if ordered:
        shapes["masked_embedding.centroids.weight"] = (CENTROIDS, WIDTH)
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    made = {name: tensor + 1 if "norm" in name or "scalar" in name else tensor for name, tensor in made.items()}
    if ordered:
        made["masked_embedding.token_ordering"] = torch.randperm(VOCABULARY, generator=generator)
    return made


def write_assistant(place: Path, tensors: dict[str, Tensor], text: dict | None = None, **config: object) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    ordered = "masked_embedding.centroids.weight" in tensors
    whole = CONFIG | {"use_ordered_embeddings": ordered} | config | {"text_config": TEXT | (text or {})}
    (place / "config.json").write_text(json.dumps({key: value for key, value in whole.items() if value is not None}))
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    return place


def chain_logits(w: dict[str, Tensor], embed: Tensor, lent: Lent, hidden: Tensor, tokens: list[int]) -> list[Tensor]:
    """Logits after the root, the first of `tokens`, and after each token drafted below the one before.

    `lent`: K/V of all positions before the root; `hidden` [E]: the target's last hidden state of the last of these.
    """
    answers, position = [], len(lent["full_attention"][0])
    for token in tokens:
        embedded = embed[token] * math.sqrt(BACKBONE)
        x = w["pre_projection.weight"] @ torch.cat([embedded, hidden])
        for number, kind in enumerate(KINDS):
            x = layer(w, f"model.layers.{number}.", kind, x, lent[kind], position)
        x = normed(x, w["model.norm.weight"])
        answers.append(ordered(w, x) if "masked_embedding.centroids.weight" in w else head(w) @ x)
        hidden = w["post_projection.weight"] @ x
    return answers


def head(w: dict[str, Tensor]) -> Tensor:
    return w.get("lm_head.weight", w["model.embed_tokens.weight"])


def layer(w: dict[str, Tensor], name: str, kind: str, x: Tensor, lent, position: int) -> Tensor:
    inner = normed(x, w[name + "input_layernorm.weight"])
    mixed = [torch.zeros(HEAD_DIM[kind])] * HEADS
    queries = (w[name + "self_attn.q_proj.weight"] @ inner).view(HEADS, HEAD_DIM[kind])
    keys, values = lent
    last = len(keys) - 1
    seen = [at for at in range(len(keys)) if kind == "full_attention" or last - at <= WINDOW]
    for number, query in enumerate(queries if seen else []):
        turned = rotated(normed(query, w[name + "self_attn.q_norm.weight"]), position, kind)
        group = number // (HEADS // len(keys[0]))
        shares = torch.stack([turned @ keys[at][group] for at in seen]).softmax(0)
        mixed[number] = sum(share * values[at][group] for share, at in zip(shares, seen, strict=True))
    attended = w[name + "self_attn.o_proj.weight"] @ torch.cat(mixed)
    x = x + normed(attended, w[name + "post_attention_layernorm.weight"])
    inner = normed(x, w[name + "pre_feedforward_layernorm.weight"])
    gate = w[name + "mlp.gate_proj.weight"] @ inner
    gelu = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    down = w[name + "mlp.down_proj.weight"] @ (gelu * (w[name + "mlp.up_proj.weight"] @ inner))
    return (x + normed(down, w[name + "post_feedforward_layernorm.weight"])) * w[name + "layer_scalar"]


def ordered(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """The clusters whose centroids fit best, token by token; the rest lie one below the least."""
    fits = (w["masked_embedding.centroids.weight"] @ x).tolist()
    best = sorted(range(CENTROIDS), key=lambda cluster: -fits[cluster])[:BEST]
    size = VOCABULARY // CENTROIDS
    order = w["masked_embedding.token_ordering"].tolist()
    chosen = [token for cluster in best for token in order[cluster * size : (cluster + 1) * size]]
    scores = {token: float(head(w)[token] @ x) for token in chosen}
    return torch.tensor([scores.get(token, min(scores.values()) - 1) for token in range(VOCABULARY)])


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean() + 1e-6).sqrt() * weight


def rotated(x: Tensor, position: int, kind: str) -> Tensor:
    dim, out = len(x), x.clone()
    for pair in range(int(SHARE[kind] * dim / 2)):
        angle = position * THETA[kind] ** (-2 * pair / dim)
        a, b = x[pair], x[pair + dim // 2]
        out[pair] = a * math.cos(angle) - b * math.sin(angle)
        out[pair + dim // 2] = b * math.cos(angle) + a * math.sin(angle)
    return out
