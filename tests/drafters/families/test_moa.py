"""MoA against the published code's numbers, and its state against its own teacher-forced pass."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from heads_place import begun, close
from safetensors.torch import load_file

from outrider_drafters import Activations, MoA, MoASizes, TargetWeights, TreeShape, load_drafter, load_tap, pack_kv
from outrider_drafters.blocks.layers import BlockShape
from outrider_drafters.blocks.rope import RopeScaling
from outrider_drafters.contracts.tap import LastHiddenTap, last_hidden_info
from outrider_drafters.families.moa.family import MoADrafter
from outrider_drafters.families.moa.network import layer_mean, staircase_mask
from outrider_proto.errors import UsageError

RUNS = ["tree_d5_b4_t14", "tree_d7_b8_t62"]


@pytest.fixture(scope="module")
def moa(golden: Path) -> MoA:
    theta = 500000.0
    lsa, sa = BlockShape(32, 8, 4, 4, 40, theta), BlockShape(64, 8, 2, 8, 72, theta)
    moa = MoA(MoASizes(sa, BlockShape(64, 8, 4, 8, 56, theta), lsa))
    moa.load_state_dict(load_file(golden / "moa_tli0" / "drafter" / "model.safetensors"))
    return moa.requires_grad_(False)


@pytest.fixture(scope="module")
def meta(golden: Path) -> dict:
    return json.loads((golden / "moa_tli0" / "meta.json").read_text())


def test_server_half_agrees(moa, moa_case):
    arrays = moa_case.arrays
    packed = pack_kv(arrays["past_keys"], arrays["past_values"])
    close(packed, arrays["packed_kv"])
    lsa = moa.layer_self_attention
    close(lsa.self_attend(packed, lsa.shape.rope(torch.arange(4))), arrays["lsa_out"])
    close(layer_mean(lsa, packed), arrays["lsa_mean"])
    rows = moa_case.tap.rows(Activations(arrays["past_keys"], arrays["past_values"], {}))
    close(rows, arrays["lsa_mean"])
    close(moa.Ekv2E(rows), arrays["ekv2e_out"])


def test_teacher_forced_pass_agrees(moa, moa_case, meta):
    arrays = moa_case.arrays
    sync = torch.arange(24).clamp(max=meta["s"])
    hidden = moa.forward_train(arrays["input_embeds"][None], arrays["packed_kv"][None], sync[None])[0]
    close(hidden, arrays["ca_out"])
    close(hidden, arrays["draft_features"])
    close(hidden @ moa_case.drafter.target.lm_head.T, arrays["draft_logits"])


def test_drafting_on_stale_features_agrees(moa_case, meta):
    """Rows s + 1 .. of the teacher-forced pass are what drafting gives when features end at s."""
    arrays, sync = moa_case.arrays, meta["s"]
    tokens = arrays["input_ids"].tolist()
    state = begun(moa_case.drafter, tokens[: sync + 1], arrays["lsa_mean"][: sync + 1])
    for position in range(sync + 1, len(tokens)):
        state.append([tokens[position]])
        close(state.root_logits(), arrays["draft_logits"][position])


class WithTokenState:
    """A state that notes the levels it was asked to expand and what it answered."""

    def __init__(self, state):
        self._state = state
        self.levels = []

    def __getattr__(self, name):
        return getattr(self._state, name)

    def root_logits(self):
        logits = self._state.root_logits()
        self.levels.append([(self._state._token_state.tokens[-1:], logits[None])])
        return logits

    def expand(self, tokens, parents):
        logits = self._state.expand(tokens, parents)
        self.levels[-1].append((tokens, logits))
        return logits


@pytest.mark.parametrize("name", RUNS)
def test_generation_is_identical(moa_case, target_tiny, generate, meta, name, monkeypatch):
    run = meta["runs"][name]
    arrays = load_file(moa_case.directory / f"{name}.safetensors")
    drafter, states = moa_case.drafter, []

    def new_state(self):
        states.append(WithTokenState(original(self)))
        return states[-1]

    original = MoADrafter.new_state
    monkeypatch.setattr(MoADrafter, "new_state", new_state)
    shape = TreeShape(run["breadth"], run["depth_param"] - 1, run["total_tokens"])
    made = generate(target_tiny, drafter, moa_case.tap, meta["prompt"], shape, num_tokens=48)
    assert made.tokens[: len(run["output"])] == run["output"] == meta["vanilla_greedy"]
    assert [accepted + 1 for accepted in made.accepted] == run["tokens_per_cycle"]
    for cycle in range(3):
        check_tree(made.trees[cycle], arrays, f"c{cycle}_")
        check_levels(states[0].levels[cycle], arrays, f"c{cycle}_")


def check_tree(tree, arrays, prefix):
    assert list(tree.tokens) == arrays[f"{prefix}draft_tokens"][1:].tolist()
    positions = arrays[f"{prefix}position_ids"]
    assert list(tree.depths()) == (positions[1:] - positions[0]).tolist()
    if f"{prefix}tree_mask_allowed" in arrays:
        among_nodes = arrays[f"{prefix}tree_mask_allowed"][1:, -len(tree) :]
        assert tree.ancestors().tolist() == among_nodes.tolist()


def check_levels(levels, arrays, prefix):
    for step, (tokens, logits) in enumerate(levels, start=1):
        if f"{prefix}step{step}_logits" not in arrays:
            continue
        assert tokens == arrays[f"{prefix}step{step}_input_ids"][-len(tokens) :].tolist()
        close(logits, arrays[f"{prefix}step{step}_logits"])


def test_vllm_format_config_gives_the_same_drafter(moa_case, golden: Path, tmp_path: Path):
    tensors = (golden / "moa_tli0" / "drafter" / "model.safetensors").read_bytes()
    config = (golden / "moa_tli0" / "drafter_vllm_format" / "config.json").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(tensors)
    (tmp_path / "config.json").write_bytes(config)
    drafter = load_drafter(tmp_path, TargetWeights.load(golden / "target_tiny"))
    assert drafter.tap == moa_case.drafter.tap
    states = (begun(each, [1, 2, 3], moa_case.arrays["lsa_mean"][:2]) for each in (drafter, moa_case.drafter))
    assert torch.equal(*(state.root_logits() for state in states))


SIZES = MoASizes(
    BlockShape(64, 8, 4, 8, 40, 500000.0), BlockShape(64, 8, 8, 8, 48, 500000.0), BlockShape(32, 8, 2, 4, 24, 500000.0)
)
WITHOUT_LSA = replace(SIZES, lsa=None)
LLAMA3 = RopeScaling("llama3", factor=8.0, original_context=64, slow=1.0, fast=4.0)


def exported(directory: Path, golden: Path, sizes: MoASizes, **changes) -> TargetWeights:
    """A random drafter of these sizes, its config edited; answers its target."""
    frozen = TargetWeights.load(golden / "target_tiny")
    MoA(sizes).export(directory, frozen.sizes)
    config = json.loads((directory / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value != "gone"}))
    return frozen


def test_only_self_attention_takes_scaled_rope(tmp_path: Path, golden: Path):
    """As published training builds them; vLLM's configuration would scale all three."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 64
    frozen = exported(tmp_path, golden, SIZES, rope_scaling=scaling)
    drafter = load_drafter(tmp_path, frozen)
    assert drafter.sa.shape.rope_scaling == LLAMA3
    assert drafter.ca.shape.rope_scaling is None
    exported(tmp_path, golden, SIZES, rope_scaling=None, rope_parameters=scaling | {"rope_theta": 500000.0})
    assert load_drafter(tmp_path, frozen).sa.shape == drafter.sa.shape


def test_without_lsa_the_last_hidden_state_is_all_it_wants(tmp_path: Path, golden: Path):
    frozen = exported(tmp_path, golden, WITHOUT_LSA)
    assert isinstance(load_tap(tmp_path, golden / "target_tiny"), LastHiddenTap)
    told = load_drafter(tmp_path, frozen).tap
    assert told == last_hidden_info(64)
    exported(tmp_path, golden, WITHOUT_LSA, disable_LSA=False)
    with pytest.raises(UsageError, match=r"lacks tensors Ekv2E\.bias, Ekv2E\.weight, layer_self_attention"):
        load_drafter(tmp_path, frozen)
    exported(tmp_path, golden, WITHOUT_LSA, disable_LSA="gone")  # the tensors tell it as well
    assert load_drafter(tmp_path, frozen).tap == told


@torch.no_grad()
def test_staircase_hides_what_the_features_tell():
    """In the rows named, self-attention reaches back to the latest sync point, and no further."""
    sync = torch.tensor([[0, 0, 2, 2, 2], [0, 0, 2, 2, 2]])
    hidden = staircase_mask(sync, torch.tensor([True, False])) & torch.ones(5, 5, dtype=torch.bool).tril()
    assert hidden[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 1, 1],
    ]
    shape = BlockShape(8, 2, 1, 4, 12)
    moa = MoA(MoASizes(shape, replace(shape, kv_heads=2), shape))
    embeds, packed = torch.randn(1, 5, 8).expand(2, -1, -1), torch.randn(1, 5, 3, 8).expand(2, -1, -1, -1)
    plain = moa.forward_train(embeds, packed, sync)
    stairs = moa.forward_train(embeds, packed, sync, torch.tensor([True, False]))
    close(stairs[1], plain[1])
    close(stairs[0, 0], plain[0, 0])
    assert not torch.allclose(stairs[0, 1:], plain[0, 1:], atol=1e-6)
