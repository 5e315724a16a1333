"""Every published form of EAGLE-3 against its formulas, computed without a cache on a real target's hidden states."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle3_formulas import Formulas
from safetensors.torch import save_file
from torch import Tensor

from outrider_drafters import Activations, TargetWeights, load_drafter, load_tap
from outrider_drafters.contracts.drafter import DraftState
from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_proto.tree import ROOT

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
    fc_bias: bool = False
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


FORMS = {
    "plain": Form(),
    "theta of the head": Form(config={"rope_theta": 777.0}, theta=777.0),
    "theta of transformers 5": Form(config={"rope_parameters": {"rope_type": "default", "rope_theta": 55.0}}, theta=55),
    "theta overridden": Form(config={"rope_theta": 777.0}, options=",rope_theta=99", theta=99.0),
    "linear scaling": Form(
        config={"rope_scaling": {"type": "linear", "factor": 4.0}}, stretched=lambda plain: plain / 4
    ),
    "3.1": Form(config={"norm_output": True}, fc_norm=True, norm_output=True),
    "norm_output asked for": Form(options=",norm_output=true", norm_output=True),
    "norm_output denied": Form(config={"norm_output": True}, options=",norm_output=false"),
    "norm_before_residual": Form(config={"norm_before_residual": True}, norm_before_residual=True),
    "norm_before_fc": Form(config={"norm_before_fc": True}, input_norm=True),
    "norm_before_fc in eagle_config": Form(config={"eagle_config": {"norm_before_fc": True}}, input_norm=True),
    "norm_before_fc by its tensor": Form(input_norm=True),
    "q and k norms": Form(qk_norm=True),
    "biases": Form(qkv_bias=True, out_bias=True, fc_bias=True),
    "wide heads": Form(head_dim=24),
    "narrow heads": Form(head_dim=8),
    "narrower head": Form(hidden=48, holds_embedding=True, uses_own_embedding=True),
    "wider head": Form(hidden=80, holds_embedding=True, uses_own_embedding=True, config={"target_hidden_size": HT}),
    "embedding is the target's": Form(holds_embedding=True),
    "embedding is its own": Form(holds_embedding=True, uses_own_embedding=True, options=",embedding=own"),
    "embedding was trained": Form(
        holds_embedding=True,
        uses_own_embedding=True,
        config={"embed_requires_grad": True, "norm_before_residual": False},
    ),
    "embedding was trained, target's asked for": Form(
        holds_embedding=True, config={"embed_requires_grad": True}, options=",embedding=target"
    ),
    "embedding absent, target's asked for": Form(options=",embedding=target"),
    "whole vocabulary": Form(draft_vocab=V),
    "target's lm_head": Form(draft_vocab=V, own_head=False, config={"draft_vocab_size": None}),
    "said to be tied": Form(config={"tie_word_embeddings": True}),
    "null sizes": Form(config={"target_hidden_size": None, "rope_scaling": None, "eagle_config": None}),
    "two layers": Form(
        layers=(1, 6), config={"eagle_aux_hidden_state_layer_ids": [0, 5]}, options=",target_layers=1-6"
    ),
    "four layers": Form(layers=(0, 3, 4, 7), config={"eagle_aux_hidden_state_layer_ids": [0, 3, 4, 7]}),
    "layers by their outputs": Form(
        layers=(2, 4, 5), config={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
    ),
    "layers by their inputs": Form(layers=(3, 5, 6), config={"eagle_aux_hidden_state_layer_ids": [3, 5, 6]}),
    "the last layer's output": Form(layers=(2, 5, 8), config={"eagle_aux_hidden_state_layer_ids": [2, 5, 8]}),
    "the last layer's output, counted so": Form(
        layers=(2, 5, 8), config={"eagle_aux_hidden_state_layer_ids": [1, 4, 7]}
    ),
    "layers out of order": Form(layers=(2, 4, 6), config={"eagle_aux_hidden_state_layer_ids": [6, 2, 4]}),
    "a layer named twice": Form(layers=(2, 4), config={"eagle_aux_hidden_state_layer_ids": [2, 4, 2]}),
    "one layer": Form(layers=(6,), config={"eagle_aux_hidden_state_layer_ids": [6]}),
    "last hidden state": Form(fused=False, config={"eagle_config": {"use_aux_hidden_state": False}}),
    "vLLM's names": Form(rename=rename_to_vllm, config={"norm_before_residual": False}),
    "a prefix": Form(rename=lambda name: f"model.{rename_to_vllm(name)}"),
    "speculators": Form(
        rename=rename_to_vllm,
        config={"norm_before_residual": False, "speculators_model_type": "eagle3"},
        nested={"rope_theta": 333.0},
        theta=333.0,
    ),
    "speculators, silent on its residual": Form(
        rename=rename_to_vllm, config={"speculators_model_type": "eagle3"}, nested={}, norm_before_residual=True
    ),
    "speculators' layers": Form(
        rename=rename_to_vllm,
        layers=(2, 4, 6),
        config={"norm_before_residual": False, "eagle_aux_hidden_state_layer_ids": [2, 4, 6]},
        nested={"rope_parameters": {"rope_type": "default", "rope_theta": 44.0}},
        theta=44.0,
    ),
    "converted to speculators with SGLang's layers": Form(
        rename=rename_to_vllm,
        layers=(2, 4, 6),
        config={"norm_before_residual": False, "eagle_aux_hidden_state_layer_ids": [1, 3, 5]},
        nested={},
    ),
    "three layers": Form(windows=(None,) * 3),
    "two layers, biases and norms": Form(
        windows=(None,) * 2, qkv_bias=True, out_bias=True, qk_norm=True, config={"norm_before_residual": True},
        norm_before_residual=True,
    ),
    "two layers, 3.1": Form(windows=(None,) * 2, config={"norm_output": True}, fc_norm=True, norm_output=True),
    "three layers, vLLM's names": Form(
        rename=lambda name: f"model.{rename_to_vllm(name)}", windows=(None,) * 3, config={"num_hidden_layers": 36}
    ),
    "two layers, DeepSpec": Form(
        rename=rename_to_vllm,
        layers=(1, 3, 7),
        config={"target_layer_ids": [0, 2, 6], "num_hidden_layers": 2},
        windows=(None,) * 2,
        holds_embedding=True,
        uses_own_embedding=True,
        draft_vocab=V,
    ),
    "two layers, speculators": Form(
        rename=rename_to_vllm,
        config={"norm_before_residual": True},
        nested={"num_hidden_layers": 2, "sliding_window": None, "layer_types": ["sliding_attention"] * 2},
        windows=(None,) * 2,
        norm_before_residual=True,
    ),
    "three layers, speculators, sliding": Form(
        rename=rename_to_vllm,
        config={"norm_before_residual": False},
        nested={
            "num_hidden_layers": 3,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        windows=(4, None, 4),
    ),
    "one sliding layer, speculators": Form(
        rename=rename_to_vllm,
        config={"norm_before_residual": False},
        nested={"sliding_window": 3, "use_sliding_window": True, "layer_types": ["sliding_attention"]},
        windows=(3,),
    ),
    "a first layer of 1 as it stands": Form(
        layers=(1, 4, 6), config={"target_layers": [1, 4, 6], "eagle_aux_hidden_state_layer_ids": [1, 4, 6]}
    ),
}


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
        save_file({form.rename(name): tensor for name, tensor in tensors.items()}, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(self._config()))
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
            (form.fc_bias, {"fc.bias": (hidden,)}),
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
        hidden, q, kv = form.hidden, 4 * form.head_dim, 2 * form.head_dim
        rows = dict(zip("qkv", (q, kv, kv), strict=True))
        shapes: dict[str, tuple[int, ...]] = {
            f"{layer}{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")
        }
        shapes |= {f"{attention}{x}_proj.weight": (n, inputs) for x, n in rows.items()}
        shapes |= {f"{attention}o_proj.weight": (hidden, q), f"{layer}mlp.down_proj.weight": (hidden, 96)}
        shapes |= {f"{layer}mlp.{part}_proj.weight": (96, hidden) for part in ("gate", "up")}
        shapes |= {f"{attention}{x}_proj.bias": (n,) for x, n in rows.items()} if form.qkv_bias else {}
        shapes |= {f"{attention}o_proj.bias": (hidden,)} if form.out_bias else {}
        return shapes | ({f"{attention}{x}_norm.weight": (form.head_dim,) for x in "qk"} if form.qk_norm else {})

    def _random(self, name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Norms around one, weights such that every part of the network matters."""
        noise = torch.randn(shape, generator=generator)
        return 1 + 0.3 * noise if "norm" in name else noise * (0.5 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5)

    def _config(self) -> dict[str, Any]:
        llama = {
            "hidden_size": self.form.hidden,
            "num_attention_heads": 4,
            "rms_norm_eps": 1e-5,
            "vocab_size": V,
        }
        if self.form.nested is None:
            return {"architectures": ["LlamaForCausalLMEagle3"], **llama, **self.form.config}
        nested = {"model_type": "llama", **llama, **self.form.nested}
        return {"architectures": ["Eagle3Speculator"], **self.form.config, "transformer_layer_config": nested}


@pytest.fixture(scope="module")
def hidden(target_l8) -> dict[int, Tensor]:
    """The target's hidden states of TEXT, the last layer's output before the norm too."""
    seen = []
    handle = target_l8.model.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    with torch.inference_mode():
        states = target_l8(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    handle.remove()
    return {-1: states[-1][0], BEFORE_NORM: seen[0], **{i: state[0] for i, state in enumerate(states[:-1])}}


@pytest.fixture(scope="module")
def frozen(golden) -> TargetWeights:
    return TargetWeights.load(golden / "target_l8")


@pytest.fixture(params=list(FORMS))
def head(request, tmp_path, frozen) -> Head:
    return Head(FORMS[request.param], tmp_path / "head", frozen)


def drafted(state: DraftState) -> list[tuple[list[int], Tensor]]:
    """Paths below the root and the logits at their ends."""
    answers = [([], state.root_logits())]
    answers += zip([[5], [200]], state.expand([5, 200], [ROOT, ROOT]), strict=True)
    answers += zip([[200, 9], [5, 9], [5, 31]], state.expand([9, 9, 31], [1, 0, 0]), strict=True)
    answers += zip([[5, 9, 77]], state.expand([77], [3]), strict=True)
    return answers


def test_agrees_with_its_formulas(head, frozen, golden, hidden):
    drafter, tap = load_drafter(head.source, frozen), load_tap(head.source, golden / "target_l8")
    assert tap is not None
    assert tap.info == drafter.tap
    layers = [BEFORE_NORM if layer == LAYERS else layer for layer in head.form.layers] if head.form.fused else [-1]
    assert tap.hidden_layers == tuple(layers)
    rows = tap.rows(Activations(torch.empty(0), torch.empty(0), {layer: hidden[layer] for layer in layers}))
    features = head.formulas.fused([hidden[layer] for layer in layers])
    torch.testing.assert_close(rows, features, atol=1e-4, rtol=1e-4)
    state = drafter.new_state()
    state.append(TEXT)
    state.add_features(0, rows[:-1])
    for path, logits in drafted(state):
        expected = head.formulas.draft(TEXT, features[:-1], path)
        torch.testing.assert_close(logits[head.ids], expected, atol=1e-4, rtol=1e-4)
        assert int(logits.isfinite().sum()) == len(head.ids)


def test_forms_differ(tmp_path, frozen, golden, hidden):
    """A switch that changed nothing would make the test above say nothing."""
    answers = {}
    for name in ("plain", "3.1", "norm_output asked for", "norm_before_residual", "norm_before_fc", "q and k norms"):
        head = Head(FORMS[name], tmp_path / name.replace(" ", "-"), frozen)
        state = load_drafter(head.source, frozen).new_state()
        state.append(TEXT)
        state.add_features(0, head.formulas.fused([hidden[layer] for layer in (2, 4, 5)])[:-1])
        state.root_logits()
        answers[name] = state.expand([5], [ROOT])[0, head.ids]
    names = list(answers)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert not torch.allclose(answers[one], answers[other], atol=1e-2), (one, other)
