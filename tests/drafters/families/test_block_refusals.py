"""What of DeepSpec's and speculators' DFlash and DSpark is refused, and by which name."""

import pytest
import torch
from block_forms import FORMS, Place, random_target

from outrider_drafters import TargetWeights
from outrider_proto.errors import UsageError


@pytest.fixture(scope="module")
def frozen() -> TargetWeights:
    return random_target()


@pytest.fixture
def place(tmp_path, request) -> Place:
    return Place(tmp_path / "drafter", FORMS[getattr(request, "param", "vanilla, DeepSpec")])


DEEPSPEC_FAULTS = {
    "target_layer_ids": ([1, 3, 6], "taps hidden state 7, the target has 0 to 6"),
    "block_size": (None, "block_size=None: need a whole number"),
    "mask_token_id": (None, "mask_token_id=None: need a row"),
    "markov_rank": (4, r"markov_rank=4: markov_head\.markov_w1\.weight has 3 columns"),
    "markov_head_type": ("sum", "markov_head_type=sum: need one of vanilla, gated, rnn"),
    "confidence_head_with_markov": (False, r"proj\.weight has 19 columns: need 16, confidence_head_with_markov=False"),
    "layer_types": (["sliding_attention", "full_attention"], "layer 0 is sliding_attention, of which DeepSpec's code"),
    "is_causal": (True, "is_causal=True: blocks of DeepSpec are not causal"),
    "num_hidden_layers": (5, "holds 2 layers: config.json says num_hidden_layers=5"),
    "hidden_act": ("gelu", "hidden_act=gelu: need silu"),
    "vocab_size": (30, "vocab_size is 30, the target's 23"),
}


@pytest.mark.parametrize("key", list(DEEPSPEC_FAULTS))
def test_deepspecs_settings_are_read_or_refused(key, place, frozen):
    place.config[key], message = DEEPSPEC_FAULTS[key]
    place.refused(message, frozen)


SPECULATORS_FAULTS = {
    "aux_hidden_state_layer_ids": (None, "aux_hidden_state_layer_ids=None: need the target's layers"),
    "draft_vocab_size": (11, r"lm_head\.weight has 9 rows: config\.json says draft_vocab_size=11"),
    "target_hidden_size": (32, "target_hidden_size is 32, the target's 16"),
    "dflash_config": ({"top_k": 3}, "dflash_config: top_k=3 is not understood"),
    "is_causal": (True, "is_causal=True: blocks of speculators are not causal"),
}


@pytest.mark.parametrize("place", ["gated, speculators"], indirect=True)
@pytest.mark.parametrize("key", list(SPECULATORS_FAULTS))
def test_speculators_settings_are_read_or_refused(key, place, frozen):
    place.config[key], message = SPECULATORS_FAULTS[key]
    place.refused(message, frozen)


@pytest.mark.parametrize("place", ["rnn, DeepSpec", "gated, speculators"], indirect=True)
def test_every_missing_tensor_is_named(place, frozen):
    whole = place.tensors
    for name in whole.keys() - {"embed_tokens.weight", "t2d"}:
        place.tensors = {other: tensor for other, tensor in whole.items() if other != name}
        place.refused(f"lacks tensors .*{name}", frozen)


def test_a_head_of_another_kind_is_named(place, frozen):
    place.config["markov_head_type"] = "gated"
    place.refused(r"lacks tensors markov_head\.gate_proj\.bias, markov_head\.gate_proj\.weight", frozen)
    place.config["markov_head_type"] = "vanilla"
    place.tensors["markov_head.joint_proj.bias"] = torch.zeros(9)
    place.refused(r"holds unknown tensors markov_head\.joint_proj\.bias", frozen)


@pytest.mark.parametrize("place", ["gated, speculators"], indirect=True)
def test_maps_that_contradict_each_other_are_refused(place, frozen):
    place.tensors["t2d"] = ~place.tensors["t2d"]
    place.refused("t2d and d2t contradict each other", frozen)


@pytest.mark.parametrize("place", ["vanilla, speculators, not from the root"], indirect=True)
def test_a_threshold_needs_a_confidence_head(place, frozen):
    with pytest.raises(UsageError, match=r"confidence=0\.5: it has no confidence head"):
        place.load(frozen, ",confidence=0.5")


def test_other_families_take_no_threshold(tmp_path, frozen):
    with pytest.raises(UsageError, match="option confidence: family dflash takes"):
        Place(tmp_path / "dflash", FORMS["dflash, DeepSpec"]).load(frozen, ",confidence=0.5")


def test_heads_without_their_settings_are_refused(place, frozen):
    del place.config["markov_rank"]
    place.refused(r"embed_tokens\.weight, lm_head\.weight of its own, but config\.json is that of no layout", frozen)
    for name in ("embed_tokens.weight", "lm_head.weight"):
        del place.tensors[name]
    place.refused("DSpark's heads, but config.json has no markov_rank", frozen)
