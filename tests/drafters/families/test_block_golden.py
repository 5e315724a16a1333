"""DFlash and DSpark against what their published code gives: three rounds on one cache."""

from dataclasses import dataclass

import pytest
import torch
from heads_place import along, close
from safetensors.torch import load_file
from torch import Tensor

from outrider_drafters import Activations, TargetWeights, grow_tree, load_drafter, load_tap
from outrider_drafters.families.dflash.family import DFlashDrafter, DFlashState
from outrider_proto.tree import DraftTree

ROUNDS = range(3)


@dataclass
class Case:
    """A golden case: the drafter, its tap's rows of the published hidden states, and the arrays."""

    drafter: DFlashDrafter
    rows: Tensor
    arrays: dict[str, Tensor]

    def state(self, number: int) -> DFlashState:
        """A state that has been through the rounds before, and has what it drafts from in this one."""
        state = self.drafter.new_state()
        for each in range(number + 1):
            tokens, start = self.arrays["sequence_ids"][0].tolist(), int(self.arrays[f"round{each}_start"])
            state.append(tokens[state.num_tokens : start + 1])
            state.add_features(state.num_features, self.rows[state.num_features : start])
            state.root_logits()
        return state

    def of(self, name: str, number: int) -> Tensor:
        return self.arrays[f"round{number}_{name}"][0]


def case(golden, name: str, options: str = "") -> Case:
    directory = golden / name
    drafter = load_drafter(f"{directory / 'drafter'},ddtree=0{options}", TargetWeights.load(golden / "target_l8"))
    tap = load_tap(directory / "drafter", golden / "target_l8")
    assert isinstance(drafter, DFlashDrafter)
    arrays = load_file(directory / "golden.safetensors")
    hidden = {layer: arrays[f"tap{number}"][0] for number, layer in enumerate(tap.hidden_layers)}
    return Case(drafter, tap.rows(Activations(torch.empty(0), torch.empty(0), hidden)), arrays)


@pytest.fixture(scope="module", params=["dflash_zlab", "dspark_deepspec"])
def either(golden, request) -> Case:
    return case(golden, request.param)


@pytest.fixture(scope="module")
def dflash(golden) -> Case:
    return case(golden, "dflash_zlab")


@pytest.fixture(scope="module")
def dspark(golden) -> Case:
    return case(golden, "dspark_deepspec")


@pytest.mark.parametrize("number", ROUNDS)
def test_features_and_caches_agree(either, number):
    state, context = either.state(number), either.of("context", number)
    start = int(either.arrays[f"round{number}_start"])
    close(either.rows[start - len(context) : start], context)
    close(torch.cat([cache.keys for cache in state._caches]), either.arrays[f"round{number}_cache_k"])
    close(torch.cat([cache.values for cache in state._caches]), either.arrays[f"round{number}_cache_v"])


@pytest.mark.parametrize("number", ROUNDS)
def test_chains_agree(either, number):
    state, tokens = either.state(number), either.of("greedy_tokens", number).tolist()
    assert grow_tree(state, either.drafter.plan) == DraftTree.chain(tokens)


@pytest.mark.parametrize("number", ROUNDS)
def test_dflashs_block_agrees(dflash, number):
    state = dflash.state(number)
    close(state._hidden[0], dflash.of("hidden", number))
    close(along(state, [0] * 6), dflash.of("block_logits", number)[1:])


@pytest.mark.parametrize("number", ROUNDS)
def test_dsparks_block_agrees(dspark, number):
    state = dspark.state(number)
    close(state._hidden[0], dspark.of("block_hidden", number))
    close(state._logits[0], dspark.of("base_logits", number))
    close(along(state, dspark.of("greedy_tokens", number)[:-1].tolist()), dspark.of("greedy_logits", number))


@pytest.mark.parametrize("number", ROUNDS)
def test_dsparks_slots_follow_the_tokens_given(dspark, number):
    given = dspark.of("given_prev_tokens", number).tolist()
    state = dspark.state(number)
    close(along(state, given[1:]), dspark.of("given_logits", number))
    head = dspark.drafter.confidence
    for tokens, name in ((given, "given"), ([given[0], *dspark.of("greedy_tokens", number)[:-1].tolist()], "greedy")):
        expected = dspark.of(f"{name}_confidence_logits", number).sigmoid()
        close(head(state._hidden[0], dspark.drafter.before(tokens)), expected)


@pytest.mark.parametrize("threshold", range(3))
@pytest.mark.parametrize("number", ROUNDS)
def test_the_confidence_head_ends_dsparks_chains(golden, dspark, number, threshold):
    at = round(float(dspark.arrays["thresholds"][0, threshold]), 1)
    stopping = case(golden, "dspark_deepspec", f",confidence={at}")
    length = int(dspark.of("prefix_lengths", number)[threshold])
    tree = grow_tree(stopping.state(number), stopping.drafter.plan)
    assert list(tree.tokens) == dspark.of("greedy_tokens", number)[:length].tolist()
