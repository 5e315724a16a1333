"""EAGLE-3 against the published code's numbers, from safetensors and from GGUF; what of a directory is optional."""

from pathlib import Path

import pytest
import torch
from heads_place import SETTINGS, along, begun, check_published_generation, check_published_tree, close
from safetensors.torch import load_file
from spoiled import SpoiledHead
from torch import Tensor

from outrider_drafters import TargetWeights, TreeShape, grow_tree, load_drafter, load_tap
from outrider_drafters.contracts.tap import Activations
from outrider_drafters.families.eagle3.family import Eagle3Drafter
from outrider_drafters.families.eagle3.layout import chosen_layers, default_layers
from outrider_drafters.families.eagle3.network import Eagle3Tap
from outrider_drafters.families.feature_drafter import FeatureState


class Case:
    """The golden case, its head loaded from one of its layouts."""

    def __init__(self, golden: Path, layout: str) -> None:
        self.directory = golden / "eagle3_llama"
        self.arrays = load_file(self.directory / "golden.safetensors")
        drafter = load_drafter(self.directory / layout, TargetWeights.load(golden / "target_l8"))
        tap = load_tap(self.directory / layout, golden / "target_l8")
        assert isinstance(drafter, Eagle3Drafter)
        assert isinstance(tap, Eagle3Tap)
        self.drafter, self.tap = drafter, tap

    def features(self) -> Tensor:
        """The prompt's, fused by the tap from the published hidden states."""
        states = self.arrays["target_features"][0].chunk(3, dim=-1)
        empty = torch.empty(0)
        return self.tap.rows(Activations(empty, empty, dict(zip((2, 4, 5), states, strict=True))))

    def prompted(self) -> FeatureState:
        tokens = [*self.arrays["prompt_ids"][0].tolist(), *self.arrays["next_token"][0].tolist()]
        return begun(self.drafter, tokens, self.features())


@pytest.fixture(scope="module", params=["drafter", "drafter_gguf", "drafter_gguf/eagle3-f32.gguf"])
def case(request, golden) -> Case:
    return Case(golden, request.param)


def over_draft_vocabulary(case: Case, logits: Tensor) -> Tensor:
    d2t = load_file(case.directory / "drafter" / "model.safetensors")["d2t"]
    ids = torch.arange(128) + d2t
    assert logits.isfinite().nonzero().flatten().tolist() == ids.tolist()
    return logits[ids]


def test_prefill_agrees(case):
    state = case.prompted()
    close(over_draft_vocabulary(case, state.root_logits()), case.arrays["drafter_logits"][0, -1])
    close(state._cache.keys, case.arrays["drafter_k"])
    close(state._cache.values, case.arrays["drafter_v"])
    close(state._output, case.arrays["drafter_hidden"][0, -1:])


def test_every_prefix_agrees(case):
    tokens, features = case.arrays["drafter_input_ids"][0].tolist(), case.features()
    state = begun(case.drafter, case.arrays["prompt_ids"][0, :1].tolist())
    for position, token in enumerate(tokens):
        state.append([token])
        state.add_features(position, features[position : position + 1])
        logits = over_draft_vocabulary(case, state.root_logits())
        close(logits, case.arrays["drafter_logits"][0, position])
        close(state._output[0], case.arrays["drafter_hidden"][0, position])


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_tree_is_identical(case, number):
    check_published_tree(case.prompted(), case.arrays, number)


def test_generation_is_identical(case, target_l8, generate):
    prompt = case.arrays["prompt_ids"][0].tolist()
    made = generate(target_l8, case.drafter, case.tap, prompt, TreeShape(6, 5, 23), num_tokens=61)
    check_published_generation(made, case.arrays, case.directory)


@pytest.fixture(scope="module")
def deepspec(golden) -> tuple[Eagle3Drafter, Eagle3Tap, dict[str, Tensor]]:
    """DeepSpec's layout: q and k normed, three taps counted by layers' outputs, an embedding and a head of its own."""
    directory = golden / "deepspec_eagle3_3taps"
    drafter = load_drafter(directory / "drafter", TargetWeights.load(golden / "target_l8"))
    tap = load_tap(directory / "drafter", golden / "target_l8")
    assert isinstance(drafter, Eagle3Drafter)
    assert isinstance(tap, Eagle3Tap)
    assert not drafter.stale_tolerant  # by its ttt_length of 3
    return drafter, tap, load_file(directory / "golden.safetensors")


def deepspec_state(deepspec) -> FeatureState:
    """The prompt with its features, fused by the tap from the published hidden states."""
    drafter, tap, arrays = deepspec
    assert tap.hidden_layers == (2, 4, 7)
    states = {layer: arrays[f"tap{number}"][0] for number, layer in enumerate(tap.hidden_layers)}
    rows = tap.rows(Activations(torch.empty(0), torch.empty(0), states))
    close(rows, arrays["fc_output"][0])
    return begun(drafter, [*arrays["prompt_ids"][0].tolist(), *arrays["next_token"][0].tolist()], rows)


def test_deepspecs_prefill_agrees(deepspec):
    arrays, state = deepspec[2], deepspec_state(deepspec)
    close(state.root_logits(), arrays["prefill_logits"][0, -1])
    close(state._output, arrays["prefill_hidden"][0, -1:])
    close(state._cache.keys, arrays["prefill_k"])
    close(state._cache.values, arrays["prefill_v"])


def test_deepspecs_chains_agree(deepspec):
    arrays, state = deepspec[2], deepspec_state(deepspec)
    tokens = arrays["given_tokens"][0].tolist()
    close(along(state, tokens), arrays["given_step_logits"][0, : len(tokens) + 1])


def test_deepspecs_next_round_agrees(deepspec):
    arrays, state, tap = deepspec[2], deepspec_state(deepspec), deepspec[1]
    first = grow_tree(state, TreeShape.chain(3))
    assert list(first.tokens) == arrays["greedy0_tokens"][0].tolist()
    # The first committed token is the root that the prompt already ended with.
    state.append(arrays["sequence_ids"][0, 21:24].tolist())
    states = arrays["round1_features"][0].chunk(3, dim=-1)
    rows = tap.rows(Activations(torch.empty(0), torch.empty(0), dict(zip(tap.hidden_layers, states, strict=True))))
    state.add_features(20, rows)
    close(state.root_logits(), arrays["round1_step0_logits"][0, -1])
    close(state._cache.keys, arrays["round1_k"])
    assert list(grow_tree(state, TreeShape.chain(3)).tokens) == arrays["greedy1_tokens"][0].tolist()


@pytest.fixture
def head(tmp_path, golden) -> SpoiledHead:
    return SpoiledHead(tmp_path / "head", golden, "eagle3")


def test_whole_vocabularies_may_carry_idle_maps(head):
    head.tensors["lm_head.weight"] = torch.randn(256, 64)
    head.tensors |= {"d2t": torch.zeros(256, dtype=torch.int64), "t2d": torch.zeros(256, dtype=torch.bool)}
    assert head.load().head.tokens is None


def test_fingerprint_tells_layers_and_weights_apart(head):
    first = head.load().tap
    assert head.load(",target_layers=2-4-6").tap != first
    head.tensors["lm_head.weight"] += 1
    assert head.load().tap == first  # the client's affair
    head.tensors["fc.weight"] += 1
    assert head.load().tap != first


@pytest.mark.parametrize(
    ("layers", "default"), [(32, (2, 16, 29)), (8, (2, 4, 5)), (6, (2, 3)), (5, (2,)), (4, (1, 2)), (3, (0, 1, 2))]
)
def test_default_layers_collapse_in_small_targets(layers, default):
    assert default_layers(layers) == default
    assert chosen_layers({}, None, layers, len(default)) == default
