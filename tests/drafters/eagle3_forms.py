"""A random EAGLE-3 head of any published form, as a directory that a test writes, and its formulas."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from eagle3_formulas import Formulas, layer_shapes
from safetensors.torch import save_file
from torch import Tensor

from outrider_drafters import TargetWeights

V, HT, LAYERS = 256, 64, 8  # target_l8
TEXT = [7, 41, 199, 3, 88, 120, 17, 250, 66, 5, 23, 9]


def rename_to_vllm(name: str) -> str:
    return name.replace("midlayer.", "layers.0.")


@dataclass
class Form:
    """A way in which a head may be made and published."""

    layers: tuple[int, ...] = (2, 4, 5)  # what must come out
    config: dict[str, Any] = field(default_factory=dict)
    nested: dict[str, Any] | None = None
    options: str = ""
    hidden: int = HT
    head_dim: int = 16
    draft_vocab: int = 100
    fc_norm: bool = False
    input_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    holds_embedding: bool = False
    uses_own_embedding: bool = False
    own_head: bool = True
    rename: Callable[[str], str] = str
    norm_before_residual: bool = False
    norm_output: bool = False
    theta: float = 10000.0
    stretched: Callable[[Tensor], Tensor] = lambda plain: plain
    fused: bool = True
    windows: tuple[int | None, ...] = (None,)  # one a layer of its own


class Head:
    """A random head of some form, saved; and its formulas."""

    def __init__(self, form: Form, path: Path, frozen: TargetWeights) -> None:
        self.form, self.path = form, path
        generator = torch.Generator().manual_seed(5)
        tensors = {name: self._random(name, shape, generator) for name, shape in self._shapes().items()}
        self.ids = torch.arange(V)
        if form.draft_vocab < V:
            self.ids = torch.randperm(V, generator=generator)[: form.draft_vocab].sort().values
            tensors["d2t"] = self.ids - torch.arange(form.draft_vocab)
            tensors["t2d"] = torch.zeros(V, dtype=torch.bool)
            tensors["t2d"][self.ids] = True
        path.mkdir()
        self.tensors, self.config = {form.rename(name): tensor for name, tensor in tensors.items()}, self._config()
        self.save()
        exponents = torch.arange(0, form.head_dim, 2) / form.head_dim
        self.formulas = Formulas(
            tensors,
            heads=4,
            kv_heads=2,
            embed=tensors["embed_tokens.weight"] if form.uses_own_embedding else frozen.embed,
            lm_head=tensors.get("lm_head.weight", frozen.lm_head),
            inverse_frequencies=form.stretched(form.theta**-exponents),
            norm_before_residual=form.norm_before_residual,
            norm_output=form.norm_output,
            windows=form.windows,
        )

    def save(self) -> None:
        save_file(self.tensors, self.path / "model.safetensors")
        (self.path / "config.json").write_text(json.dumps(self.config))

    @property
    def source(self) -> str:
        return f"{self.path}{self.form.options}"

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        form = self.form
        hidden, fused = form.hidden, HT * len(form.layers)
        shapes = self._layer("midlayer.", 2 * hidden) | {"midlayer.hidden_norm.weight": (hidden,)}
        for number in range(1, len(form.windows)):
            shapes |= self._layer(f"layers.{number}.", hidden)
        shapes |= {"norm.weight": (hidden,)}
        optional: list[tuple[bool, dict[str, tuple[int, ...]]]] = [
            (form.fused, {"fc.weight": (hidden, fused)}),
            (form.fc_norm, {f"fc_norm.{i}.weight": (HT,) for i in range(len(form.layers))}),
            (form.input_norm, {"input_norm.weight": (fused,)}),
            (form.holds_embedding, {"embed_tokens.weight": (V, hidden)}),
            (form.own_head, {"lm_head.weight": (form.draft_vocab, hidden)}),
        ]
        for there, more in optional:
            shapes |= more if there else {}
        return shapes

    def _layer(self, layer: str, inputs: int) -> dict[str, tuple[int, ...]]:
        form, attention = self.form, f"{layer}self_attn."
        q, kv = 4 * form.head_dim, 2 * form.head_dim
        shapes = layer_shapes(layer, form.hidden, inputs, q, kv, mlp=96)
        biases = {f"{attention}{x}_proj.bias": (n,) for x, n in (("q", q), ("k", kv), ("v", kv))}
        shapes |= biases if form.qkv_bias else {}
        shapes |= {f"{attention}o_proj.bias": (form.hidden,)} if form.out_bias else {}
        return shapes | ({f"{attention}{x}_norm.weight": (form.head_dim,) for x in "qk"} if form.qk_norm else {})

    def _random(self, name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Norms around one, weights such that every part of the network matters."""
        noise = torch.randn(shape, generator=generator)
        return 1 + 0.3 * noise if "norm" in name else noise * (0.5 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5)

    def _config(self) -> dict[str, Any]:
        llama = {"hidden_size": self.form.hidden, "num_attention_heads": 4, "rms_norm_eps": 1e-5, "vocab_size": V}
        if self.form.nested is None:
            return {"architectures": ["LlamaForCausalLMEagle3"], **llama, **self.form.config}
        nested = {"model_type": "llama", **llama, **self.form.nested}
        return {"architectures": ["Eagle3Speculator"], **self.form.config, "transformer_layer_config": nested}
