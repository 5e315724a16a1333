"""P-EAGLE in every published form against its formulas: one causal pass over all rows, without a cache."""

from typing import Any

import pytest
import torch
from eagle3_forms import HT, TEXT, Form, Head, V, rename_to_vllm
from heads_place import begun, paths_of
from safetensors.torch import load_file
from torch import Tensor

from outrider_drafters import Activations, TargetWeights, TreeShape, grow_tree, load_drafter, load_tap
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.families.peagle.drafter import PEagleDrafter
from outrider_drafters.families.peagle.family import FAMILY
from outrider_drafters.load import recognize_family

TARGET = "target_l8"
MASK, DRAFTS = 255, 5
LAYERS = (None,) * 3
IDS = "eagle_aux_hidden_state_layer_ids"


def proposals(tokens: int) -> dict[str, Any]:
    methods = [{"proposal_type": "greedy", "speculative_tokens": tokens, "verifier_accept_k": 1}]
    return {"algorithm": "peagle", "default_proposal_method": "greedy", "proposal_methods": methods}


SPECULATORS = {
    "speculators_model_type": "peagle",
    "speculators_version": "0.9.0",
    "speculators_config": proposals(DRAFTS),
    "mask_token_id": MASK,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "embed_requires_grad": True,
    "target_hidden_size": None,
    "draft_vocab_size": 100,
    IDS: [2, 4, 5],
}
NESTED = {"num_hidden_layers": 3, "rope_parameters": {"rope_theta": 333.0, "rope_type": "default"}}


def form(config: dict[str, Any] | None = None, nested: dict[str, Any] | None = None, **changes: Any) -> Form:
    usual: dict[str, Any] = {
        "windows": LAYERS,
        "rename": rename_to_vllm,
        "theta": 333.0,
        "holds_embedding": True,
        "uses_own_embedding": True,
        "mask": (1, 1, HT * len(changes.get("layers", (2, 4, 5)))),
    }
    said = {key: value for key, value in (SPECULATORS | (config or {})).items() if value != "silent"}
    return Form(config=said, nested=NESTED | (nested or {}), **(usual | changes))


FORMS = {
    "speculators": form(),
    "qwen3": form({"draft_vocab_size": V}, qk_norm=True, head_dim=24, draft_vocab=V),
    "llama with biases": form(qkv_bias=True, out_bias=True),
    "fc_norm": form({"fc_norm": True}, fc_norm=True),
    "norm_before_fc": form({"norm_before_fc": True}, input_norm=True),
    "norm_before_residual": form({"norm_before_residual": True}, norm_before_residual=True),
    "silent": form(dict.fromkeys(("norm_before_residual", "embed_requires_grad", "norm_output"), "silent")),
    "norm_output, which feeds nothing": form({"norm_output": True}),
    "one layer": form(nested={"num_hidden_layers": 1}, windows=(None,)),
    "the first layer id is 1": form({IDS: [1, 3, 7]}, layers=(1, 3, 7)),
    "four tapped layers": form({IDS: [0, 3, 4, 8]}, layers=(0, 3, 4, 8)),
    "default layers": form({IDS: None}),
    "the target's embedding": form({"embed_requires_grad": False}, uses_own_embedding=False),
    "the target's embedding, asked for": form(options=",embedding=target", uses_own_embedding=False),
    "without an embedding": form(holds_embedding=False, uses_own_embedding=False),
    "sliding": form(
        nested={"sliding_window": 6, "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding")]},
        windows=(6, None, 6),
    ),
    "the last hidden state": form(
        {IDS: None, "eagle_config": {"use_aux_hidden_state": False}}, layers=(-1,), fused=False
    ),
    "vLLM, flat": Form(
        config={"ptd_token_id": MASK, "num_hidden_layers": 3, IDS: [2, 4, 5]},
        **{"windows": LAYERS, "mask": (1, HT * 3), "holds_embedding": True, "uses_own_embedding": True},
    ),
}


@pytest.fixture
def head(request, tmp_path, frozen) -> Head:
    return Head(FORMS[getattr(request, "param", "speculators")], tmp_path / "head", frozen)


def hidden_states(layers: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(len(TEXT) - 1, HT, generator=generator) for _ in layers]


def expected(head: Head, features: Tensor, tokens: list[int], drafts: int) -> Tensor:
    """Logits [drafts, Vd] of the slots after `tokens`, whose newest lack features where there are fewer."""
    formulas = head.formulas
    mask = formulas.fused(list(head.tensors["mask_hidden"].view(1, -1).split(HT, dim=-1)))
    ids = [*tokens[1:], *[MASK] * (drafts - 1)]
    features = features[: len(tokens) - 1]
    rows = torch.cat((features, mask.expand(len(ids) - len(features), -1)))
    hidden = formulas.outputs(formulas.embed[ids], rows)[-drafts:]
    return formulas.norm(hidden, formulas.tensors["norm.weight"]) @ formulas.lm_head.T


def slots(state, drafts: int = DRAFTS) -> Tensor:
    """All logits of one block, along a chain."""
    chain = (state.expand([level], [level - 1])[0] for level in range(drafts - 1))
    return torch.stack([torch.as_tensor(row) for row in (state.root_logits(), *chain)])


def close(logits: Tensor, reference: Tensor, head: Head) -> None:
    torch.testing.assert_close(logits[:, head.ids], reference, atol=1e-4, rtol=1e-4)
    assert int(logits.isfinite().sum()) == logits[:, head.ids].numel()


@pytest.mark.parametrize("head", list(FORMS), indirect=True)
def test_agrees_with_its_formulas(head, frozen, golden):
    """Through tap and state, from features that came bit by bit; with the newest ones lacking, too."""
    drafter, tap = load_drafter(head.source, frozen), load_tap(head.source, golden / TARGET)
    assert isinstance(drafter, PEagleDrafter)
    assert tap.info == drafter.tap
    states = hidden_states(head.form.layers)
    hidden = dict(zip(tap.hidden_layers, states, strict=True))
    rows = tap.rows(Activations(torch.empty(0), torch.empty(0), hidden))
    features = head.formulas.fused(states)
    torch.testing.assert_close(rows, features, atol=1e-4, rtol=1e-4)
    drafts = DRAFTS if head.form.nested is not None else 8
    state = drafter.new_state()
    assert drafter.num_drafts == drafts
    state.append(TEXT[:6])
    close(slots(state, drafts), expected(head, features[:0], TEXT[:6], drafts), head)
    state.add_features(0, rows[:3])
    close(slots(state, drafts), expected(head, features[:3], TEXT[:6], drafts), head)
    state.append(TEXT[6:])
    close(slots(state, drafts), expected(head, features[:3], TEXT, drafts), head)
    state.add_features(2, rows[2:])
    close(slots(state, drafts), expected(head, features, TEXT, drafts), head)
    state.rollback(8)
    close(slots(state, drafts), expected(head, features[:7], TEXT[:8], drafts), head)


@pytest.mark.parametrize("number", range(3))
def test_speculators_own_code_gives_the_same(number, golden):
    """On a state that has been through the rounds before."""
    directory = golden / "peagle_speculators"
    drafter = load_drafter(directory / "drafter", TargetWeights.load(golden / TARGET))
    tap, arrays = load_tap(directory / "drafter", golden / TARGET), load_file(directory / "golden.safetensors")
    assert isinstance(drafter, PEagleDrafter)
    hidden = {layer: arrays[f"tap{place}"][0] for place, layer in enumerate(tap.hidden_layers)}
    rows, text = tap.rows(Activations(torch.empty(0), torch.empty(0), hidden)), arrays["sequence_ids"][0].tolist()
    torch.testing.assert_close(drafter.mask_feature, arrays["mask_feature"], atol=1e-4, rtol=1e-4)
    state = drafter.new_state()
    for each in range(number + 1):
        start = int(arrays[f"round{each}_start"])
        state.append(text[state.num_tokens : start + 1])
        state.add_features(state.num_features, rows[state.num_features : start])
        logits = slots(state)
    context = arrays[f"round{number}_context"][0]
    torch.testing.assert_close(rows[start - len(context) : start], context, atol=1e-4, rtol=1e-4)
    drafted = logits[:, logits.isfinite().all(0)]
    torch.testing.assert_close(drafted, arrays[f"round{number}_logits"][0], atol=1e-4, rtol=1e-4)
    tree = grow_tree(state, drafter.plan)
    assert list(tree.tokens) == arrays[f"round{number}_greedy_tokens"][0].tolist()


def test_forms_differ(tmp_path, frozen):
    answers = {}
    for name in ("speculators", "fc_norm", "norm_before_fc", "norm_before_residual", "sliding", "one layer"):
        head = Head(FORMS[name], tmp_path / name, frozen)
        answers[name] = expected(head, head.formulas.fused(hidden_states((2, 4, 5))), TEXT, DRAFTS)
    names = list(answers)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert not torch.allclose(answers[one], answers[other], atol=1e-2), (one, other)


def test_a_long_prompt_and_a_text_of_one_token(head, frozen):
    drafter, text = load_drafter(head.source, frozen), TEXT * 5
    features = torch.randn(len(text) - 1, HT, generator=torch.Generator().manual_seed(1))
    state = begun(drafter, text, features)
    close(slots(state), expected(head, features, text, DRAFTS), head)
    state.rollback(1)
    alone, fresh = slots(state), drafter.new_state()
    fresh.append(text[:1])
    torch.testing.assert_close(slots(fresh), alone)
    state.append(text[1:3])
    close(slots(state), expected(head, features[:1], text[:3], DRAFTS), head)


def test_drafts_a_chain_or_the_likeliest_paths(head, frozen):
    drafter = load_drafter(head.source, frozen)
    assert drafter.plan == TreeShape.chain(DRAFTS)
    state = begun(drafter, TEXT)
    best = slots(state).argmax(-1).tolist()
    tree = grow_tree(state, drafter.plan)
    assert (list(tree.tokens), tree.parents) == (best, (-1, 0, 1, 2, 3))
    branching = load_drafter(f"{head.source},ddtree=12", frozen)
    assert branching.plan == TreeShape.best_first(DRAFTS, 12)
    state = begun(branching, TEXT)
    logs, frontier, scored = slots(state).log_softmax(-1), [(0.0, ())], []
    for row in logs:
        values, tokens = row.topk(12)
        grown = [
            (score + gain, (*path, token))
            for score, path in frontier
            for gain, token in zip(values.tolist(), tokens.tolist(), strict=True)
        ]
        frontier = sorted(grown, reverse=True)[:12]
        scored += frontier
    assert set(paths_of(grow_tree(state, branching.plan))) == {path for _, path in sorted(scored, reverse=True)[:12]}


def test_below_the_end_of_a_block_stands_another(head, frozen):
    """It drafts what a block of the text with that path does, whose tokens have the mask's feature."""
    drafter, features = load_drafter(head.source, frozen), torch.randn(len(TEXT) - 1, HT)
    state, longer = drafter.new_state(), drafter.new_state()
    path = [*range(DRAFTS - 1), 9]
    for each, text in ((state, TEXT), (longer, [*TEXT, *path])):
        each.append(text)
        each.add_features(0, features)
    slots(state)
    ends = state.expand([7, path[-1]], [DRAFTS - 2] * 2)
    levels = slots(longer)
    torch.testing.assert_close(ends[1], levels[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(state.expand([0], [DRAFTS])[0], levels[1], atol=1e-4, rtol=1e-4)


def test_the_files_say_how_much_to_draft(head, frozen):
    head.config["speculators_config"] = proposals(3)
    head.save()
    assert load_drafter(head.source, frozen).num_drafts == 3
    more = load_drafter(f"{head.source},drafts=11", frozen)
    assert more.plan == TreeShape.chain(11)
    assert more.tap == load_drafter(head.source, frozen).tap
    head.config["speculators_config"]["proposal_methods"] = []
    head.save()
    assert load_drafter(head.source, frozen).num_drafts == 8
    head.config |= {"num_depths": 6, "down_sample_ratio": 0.7, "down_sample_ratio_min": 0.2}
    head.save()
    assert load_drafter(head.source, frozen).num_drafts == 6


def test_mask_hidden_alone_is_p_eagles(head, golden):
    assert recognize_family(DrafterFiles.open(DrafterSource.parse(head.source))) is FAMILY
    del head.config["speculators_model_type"]
    for prefix in ("", "model."):
        head.tensors = {prefix + name.removeprefix("model."): tensor for name, tensor in head.tensors.items()}
        head.save()
        assert recognize_family(DrafterFiles.open(DrafterSource.parse(head.source))) is FAMILY
    load_drafter(head.source, TargetWeights.load(golden / TARGET))
