"""P-EAGLE in every published form against its formulas: one causal pass over all rows, without a cache."""

from typing import Any

import pytest
import torch
from eagle3_forms import HT, TEXT, Form, Head, rename_to_vllm
from heads_place import begun
from safetensors.torch import load_file
from torch import Tensor

from outrider_drafters import Activations, TargetWeights, TreeShape, grow_tree, load_drafter, load_tap
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.families.peagle.drafter import PEagleDrafter
from outrider_drafters.families.peagle.family import FAMILY
from outrider_drafters.load import recognize_family
from outrider_proto.tree import DraftTree

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
    "silent": form(dict.fromkeys(("norm_before_residual", "embed_requires_grad", "norm_output"), "silent")),
    "the target's embedding": form({"embed_requires_grad": False}, uses_own_embedding=False),
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


def test_drafts_a_chain_or_the_likeliest_paths(head, frozen):
    drafter = load_drafter(head.source, frozen)
    assert drafter.plan == TreeShape.chain(DRAFTS)
    state = begun(drafter, TEXT)
    best = slots(state).argmax(-1).tolist()
    assert grow_tree(state, drafter.plan) == DraftTree.chain(best)
    assert load_drafter(f"{head.source},ddtree=12", frozen).plan == TreeShape.best_first(DRAFTS, 12)


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
