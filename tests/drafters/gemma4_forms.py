"""A tiny Gemma-4 assistant with random weights, as a directory that a test writes."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCABULARY, BACKBONE, WIDTH, HEADS, MLP, WINDOW = 48, 32, 12, 4, 20, 6
KINDS = ["sliding_attention", "sliding_attention", "full_attention"]
HEAD_DIM = {"sliding_attention": 8, "full_attention": 16}
CENTROIDS, BEST = 12, 3

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
