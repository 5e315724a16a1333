"""Every published form of EAGLE-3 against its formulas, computed without a cache on a real target's hidden states."""

from typing import Any

import pytest
import torch
from eagle3_forms import LAYERS, TEXT, Form, Head, V, rename_to_vllm
from heads_place import begun
from torch import Tensor

from outrider_drafters import Activations, load_drafter, load_tap
from outrider_drafters.blocks import fused
from outrider_drafters.contracts.drafter import DraftState
from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_proto.tree import ROOT

TARGET = "target_l8"
IDS, SLIDING, FULL = "eagle_aux_hidden_state_layer_ids", "sliding_attention", "full_attention"
OWN: dict[str, Any] = {"holds_embedding": True, "uses_own_embedding": True}


def speculators(nested: dict[str, Any], config: dict[str, Any] | None = None, **changes: Any) -> Form:
    said = {"norm_before_residual": False} | (config or {})
    return Form(rename=rename_to_vllm, config=said, nested=nested, **changes)


FORMS = {
    "plain": Form(),
    "theta of transformers 5": Form(config={"rope_parameters": {"rope_type": "default", "rope_theta": 55.0}}, theta=55),
    "theta overridden": Form(config={"rope_theta": 777.0}, options=",rope_theta=99", theta=99.0),
    "linear scaling": Form(
        config={"rope_scaling": {"type": "linear", "factor": 4.0}}, stretched=lambda plain: plain / 4
    ),
    "3.1": Form(config={"norm_output": True}, fc_norm=True, norm_output=True),
    "norm_output asked for": Form(options=",norm_output=true", norm_output=True),
    "norm_before_residual": Form(config={"norm_before_residual": True}, norm_before_residual=True),
    "norm_before_fc": Form(config={"norm_before_fc": True}, input_norm=True),
    "norm_before_fc in eagle_config": Form(config={"eagle_config": {"norm_before_fc": True}}, input_norm=True),
    "narrower head": Form(hidden=48, **OWN),
    "embedding is the target's": Form(holds_embedding=True),
    "embedding was trained": Form(**OWN, config={"embed_requires_grad": True, "norm_before_residual": False}),
    "embedding was trained, target's asked for": Form(
        holds_embedding=True, config={"embed_requires_grad": True}, options=",embedding=target"
    ),
    "target's lm_head": Form(draft_vocab=V, own_head=False, config={"draft_vocab_size": None}),
    "null sizes": Form(config={"target_hidden_size": None, "rope_scaling": None, "eagle_config": None}),
    "two layers": Form(layers=(1, 6), config={IDS: [0, 5]}, options=",target_layers=1-6"),
    "layers by their outputs": Form(layers=(2, 4, 5), config={"eagle_config": {IDS: [1, 3, 4]}}),
    "the last layer's output": Form(layers=(2, 5, 8), config={IDS: [2, 5, 8]}),
    "the last layer's output, counted so": Form(layers=(2, 5, 8), config={IDS: [1, 4, 7]}),
    "layers out of order": Form(layers=(2, 4, 6), config={IDS: [6, 2, 4]}),
    "last hidden state": Form(fused=False, config={"eagle_config": {"use_aux_hidden_state": False}}),
    "a prefix": Form(rename=lambda name: f"model.{rename_to_vllm(name)}"),
    "speculators": speculators({"rope_theta": 333.0}, {"speculators_model_type": "eagle3"}, theta=333.0),
    "speculators, silent on its residual": Form(
        rename=rename_to_vllm, config={"speculators_model_type": "eagle3"}, nested={}, norm_before_residual=True
    ),
    "converted to speculators with SGLang's layers": speculators({}, {IDS: [1, 3, 5]}, layers=(2, 4, 6)),
    "two layers, biases and norms": Form(
        **{"qkv_bias": True, "out_bias": True, "qk_norm": True, "norm_before_residual": True},
        windows=(None,) * 2,
        config={"norm_before_residual": True},
    ),
    "three layers, vLLM's names": Form(
        rename=lambda name: f"model.{rename_to_vllm(name)}", windows=(None,) * 3, config={"num_hidden_layers": 36}
    ),
    "two layers, DeepSpec": Form(
        **OWN | {"rename": rename_to_vllm, "layers": (1, 3, 7), "windows": (None,) * 2, "draft_vocab": V},
        config={"target_layer_ids": [0, 2, 6], "num_hidden_layers": 2},
    ),
    "two layers, speculators": speculators(
        {"num_hidden_layers": 2, "sliding_window": None, "layer_types": [SLIDING] * 2},
        {"norm_before_residual": True},
        windows=(None,) * 2,
        norm_before_residual=True,
    ),
    "three layers, speculators, sliding": speculators(
        {"num_hidden_layers": 3, "sliding_window": 4, "layer_types": [SLIDING, FULL, SLIDING]}, windows=(4, None, 4)
    ),
    "rope by kind of layer, speculators": speculators(
        {"rope_parameters": {kind: {"rope_theta": theta, "rope_type": "default"}
                             for kind, theta in ((SLIDING, 333.0), (FULL, 5e5))}}, theta=333.0,
    ),
    "a first layer of 1 as it stands": Form(layers=(1, 4, 6), config={"target_layers": [1, 4, 6], IDS: [1, 4, 6]}),
}  # fmt: skip


@pytest.fixture(scope="module")
def hidden(target_l8) -> dict[int, Tensor]:
    """The target's hidden states of TEXT, the last layer's output before the norm too."""
    seen = []
    handle = target_l8.model.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    with torch.inference_mode():
        states = target_l8(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    handle.remove()
    return {-1: states[-1][0], BEFORE_NORM: seen[0], **{i: state[0] for i, state in enumerate(states[:-1])}}


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
    drafter, tap = load_drafter(head.source, frozen), load_tap(head.source, golden / TARGET)
    assert tap.info == drafter.tap
    layers = [BEFORE_NORM if layer == LAYERS else layer for layer in head.form.layers] if head.form.fused else [-1]
    assert tap.hidden_layers == tuple(layers)
    rows = tap.rows(Activations(torch.empty(0), torch.empty(0), {layer: hidden[layer] for layer in layers}))
    features = head.formulas.fused([hidden[layer] for layer in layers])
    torch.testing.assert_close(rows, features, atol=1e-4, rtol=1e-4)
    state = begun(drafter, TEXT, rows[:-1])
    for path, logits in drafted(state):
        expected = head.formulas.draft(TEXT, features[:-1], path)
        torch.testing.assert_close(logits[head.ids], expected, atol=1e-4, rtol=1e-4)
        assert int(logits.isfinite().sum()) == len(head.ids)


def test_a_prompt_goes_through_several_layers_in_pieces(tmp_path, frozen, monkeypatch):
    """Longer than the rows that run at once."""
    head, text = Head(FORMS["three layers, speculators, sliding"], tmp_path / "head", frozen), TEXT * 4
    features = torch.randn(len(text) - 1, 64, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(fused, "_PIECE", 7)
    for path, logits in drafted(begun(load_drafter(head.source, frozen), text, features)):
        torch.testing.assert_close(logits[head.ids], head.formulas.draft(text, features, path), atol=1e-4, rtol=1e-4)
