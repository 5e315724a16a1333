"""MoA's target layer inference against a slow reference: the target's own layers over a hand-built cache.

The reference keeps nothing between calls. Of a text of which the target has processed `known` positions and a drafted
path, it runs SA and CA over everything, takes the states CA gives to the positions from `known` on, and sends them
through transformers' layers, whose past is what the target's cache holds of the positions before.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from heads_place import begun, random_network
from heads_place import near as close
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from outrider_drafters import Activations, MoA, MoASizes, Tap, TargetWeights, TreeShape, load_drafter, load_tap
from outrider_drafters.blocks.layers import BlockShape, causal_mask
from outrider_drafters.blocks.rope import rope_scaling
from outrider_drafters.checkpoints.target_weights import target_sizes
from outrider_drafters.families.moa.family import MoADrafter
from outrider_drafters.families.moa.network import pack_kv, unpack_kv
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT

SIZES = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4, "vocab_size": 50}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16, "rope_theta": 5000.0}
TARGETS = {
    "llama": LlamaConfig(**SIZES),
    "llama 3.1": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=8),
    "mistral sliding": MistralConfig(**SIZES, sliding_window=5),
}
TEXT = torch.randint(50, (14,), generator=torch.Generator().manual_seed(5)).tolist()


@dataclass
class Case:
    model: PreTrainedModel
    moa: MoA
    drafter: MoADrafter
    tap: Tap
    directory: Path


@torch.no_grad()
def make(directory: Path, config, tli: int, has_lsa: bool = True) -> Case:
    """A random target and a random drafter for it, both through their files."""
    model = random_network(3, lambda: AutoModelForCausalLM.from_config(config, attn_implementation="eager"))
    model.save_pretrained(directory / "target")
    target = target_sizes(directory / "target")
    qwen2, scaling = config.model_type == "qwen2", rope_scaling(config.to_dict())
    sa = BlockShape(32, 4, 2, 8, 24, target.rope_theta, target.eps, qwen2)
    ca, lsa = replace(sa, kv_heads=4, mlp=28, qkv_bias=False), replace(sa, width=target.packed_kv)
    moa = random_network(4, lambda: MoA(MoASizes(replace(sa, rope_scaling=scaling), ca, lsa if has_lsa else None, tli)))
    moa.export(directory / "drafter", target)
    drafter = load_drafter(directory / "drafter", TargetWeights.load(directory / "target"))
    assert isinstance(drafter, MoADrafter)
    return Case(model, moa, drafter, load_tap(directory / "drafter", directory / "target"), directory)


@torch.no_grad()
def activations(model: PreTrainedModel, tokens: list[int]) -> Activations:
    """With K/V of all positions, also where the layers have windows."""
    out = model(torch.tensor([tokens]), past_key_values=DynamicCache(), output_hidden_states=True)
    layers = out.past_key_values.layers
    keys, values = torch.cat([layer.keys for layer in layers]), torch.cat([layer.values for layer in layers])
    return Activations(keys, values, {-1: out.hidden_states[-1][0]})


class HandBuiltCache:
    """What the target's layers remember of the first positions; forgets what they add."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:  # each [L, kv_heads, known, head_dim]
        self._past = keys, values

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_args, **_kwargs) -> tuple[Tensor, Tensor]:
        return tuple(
            torch.cat((past[layer_idx][None], new), 2) for past, new in zip(self._past, (keys, values), strict=True)
        )


@torch.no_grad()
def reference(case: Case, tokens: list[int], known: int, path: tuple[int, ...] = ()) -> Tensor:
    """Logits [V] after tokens and path."""
    sizes, model = case.moa.sizes, case.model
    ids = torch.tensor([*tokens, *path])
    positions = torch.arange(len(ids))
    acts = activations(model, tokens)
    keys, values = acts.keys[:, :, :known], acts.values[:, :, :known]
    spoken = case.moa.self_attention.self_attend(
        model.get_input_embeddings()(ids)[None], sizes.sa.rope(positions), causal_mask(len(ids), ids.device)
    )
    context = case.moa.context((pack_kv(acts.keys, acts.values) if sizes.lsa else acts.hidden[-1])[None])
    ca = case.moa.cross_attention
    ca_keys, ca_values = ca.keys_values(context[:, :known], sizes.ca.rope(positions[:known]))
    states = ca(spoken[:, known:], sizes.ca.rope(positions[known:]), ca_keys, ca_values)
    if sizes.tli:
        states = through_last_layers(model, sizes.tli, states, positions[known:], HandBuiltCache(keys, values))
    return model.lm_head(states)[0, -1]


def through_last_layers(model, tli: int, states: Tensor, positions: Tensor, cache: HandBuiltCache) -> Tensor:
    """transformers' layers over states [1, n, E] at the end of a text whose earlier positions the cache holds."""
    rows = torch.arange(int(positions[-1]) + 1)
    seen = rows <= positions[:, None]
    if (window := getattr(model.config, "sliding_window", None)) is not None:
        seen &= rows > positions[:, None] - window
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    rope = model.model.rotary_emb(states, positions[None])
    for layer in model.model.layers[-tli:]:
        states = layer(states, attention_mask=mask, position_embeddings=rope, past_key_values=cache)
    return model.model.norm(states)


def check(case: Case, state, tokens: list[int], known: int) -> None:
    """Root, two children, three grandchildren and one below, in levels."""
    close(state.root_logits(), reference(case, tokens, known))
    levels = [[(2,), (5,)], [(5, 7), (2, 1), (2, 4)], [(2, 4, 9)]]
    rows: dict[tuple[int, ...], int] = {(): ROOT}
    for level in levels:
        logits = state.expand([path[-1] for path in level], [rows[path[:-1]] for path in level])
        for path, row in zip(level, logits, strict=True):
            close(row, reference(case, tokens, known, path))
            rows[path] = len(rows) - 1


CASES = [("llama 3.1", 0), *((name, tli) for name in TARGETS for tli in (1, 3))]


@pytest.fixture(scope="module", params=CASES, ids=lambda param: f"{param[0]}, TLI {param[1]}")
def case(request, tmp_path_factory) -> Case:
    name, tli = request.param
    return make(tmp_path_factory.mktemp("moa"), TARGETS[name], tli)


def test_a_cycle_after_the_other_is_the_reference(case):
    """Features that come late, more tokens without, a rollback into what was drafted from, other tokens."""
    rows, state = case.tap.rows(activations(case.model, TEXT)), case.drafter.new_state()
    state.append(TEXT[:6])
    check(case, state, TEXT[:6], known=0)
    state.add_features(0, rows[:4])
    check(case, state, TEXT[:6], known=4)
    state.append(TEXT[6:9])
    check(case, state, TEXT[:9], known=4)
    state.append(TEXT[9:])
    state.add_features(2, rows[2:12])
    check(case, state, TEXT, known=12)
    state.rollback(10)
    check(case, state, TEXT[:10], known=9)  # position 9 has its feature, but is the root
    others = [*TEXT[:10], 3, 1, 4]
    state.append(others[10:])
    check(case, state, others, known=10)
    state.add_features(10, case.tap.rows(activations(case.model, others))[10:12])
    check(case, state, others, known=12)


@pytest.mark.parametrize("tli", [0, 2])
@pytest.mark.parametrize("known", [13, 8, 0])
def test_without_lsa(tmp_path, tli, known):
    case = make(tmp_path, TARGETS["llama"], tli, has_lsa=False)
    state = begun(case.drafter, TEXT, case.tap.rows(activations(case.model, TEXT))[:known])
    check(case, state, TEXT, known)
    assert case.tap.info == case.drafter.tap
    assert case.tap.info.width == 32 + tli * 32
    assert case.tap.info.fingerprint == ("last-hidden:32:tli2" if tli else "last-hidden:32")


@pytest.mark.parametrize("tli", [0, 1, 3])
@pytest.mark.parametrize("has_lsa", [True, False])
def test_greedy_output_is_the_targets(tmp_path, generate, tli, has_lsa):
    case = make(tmp_path, TARGETS["qwen2"], tli, has_lsa)
    made = generate(case.model, case.drafter, case.tap, TEXT, TreeShape(3, 4, 12), num_tokens=20)
    plain = case.model.generate(torch.tensor([TEXT]), max_new_tokens=20, do_sample=False, eos_token_id=-1)
    assert made.tokens[: len(TEXT) + 20] == plain[0].tolist()


def test_rows_on_the_wire(case):
    """The mixed row, then of each last layer K and V by head, as the target's cache has them."""
    acts, tli = activations(case.model, TEXT), case.moa.sizes.tli
    rows = case.tap.rows(acts)
    assert case.tap.info == case.drafter.tap
    assert rows.shape == (14, case.tap.info.width) == (14, 32 * (1 + tli))
    assert case.tap.info.fingerprint.endswith(f":tli{tli}") == (tli > 0)
    if tli:
        first_of_them, head = acts.keys[-tli], acts.values[-tli][1]
        assert torch.equal(rows[:, 32:40], first_of_them[0])
        assert torch.equal(rows[:, 56:64], head)
        keys, values = unpack_kv(rows[:, 32:], tli, 2)
        assert torch.equal(keys, acts.keys[-tli:])
        assert torch.equal(values, acts.values[-tli:])


def test_the_option_overrides_what_the_file_says(tmp_path):
    make(tmp_path, TARGETS["llama"], 1)
    frozen, source = TargetWeights.load(tmp_path / "target"), tmp_path / "drafter"
    widths = {tli: load_drafter(f"{source},tli={tli}", frozen).tap.width for tli in (0, 1, 3)}
    assert widths == {0: 32, 1: 64, 3: 128}
    assert load_tap(f"{source},tli=3", tmp_path / "target").info == load_drafter(f"{source},tli=3", frozen).tap
    with pytest.raises(UsageError, match="tli=5: the target has 4 layers"):
        load_drafter(f"{source},tli=5", frozen)
    with pytest.raises(UsageError, match="tli=5: the target has 4 layers"):
        load_tap(f"{source},tli=5", tmp_path / "target")


@torch.no_grad()
def test_the_training_pass_is_drafting_after_the_last_sync_point(case):
    """When every position up to `last` is a sync point, the later ones are what a state makes of stale features."""
    last, sizes = 8, case.moa.sizes
    acts = activations(case.model, TEXT)
    states = case.model(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    sync = torch.arange(len(TEXT)).clamp(max=last)[None]
    predicted = case.moa.forward_train(states[0], pack_kv(acts.keys, acts.values)[None], sync)
    hidden = predicted
    if sizes.tli:
        layers = TargetWeights.load(case.directory / "target").last_layers(sizes.tli)
        finished = layers.forward_train(predicted, states[-1 - sizes.tli], sync)
        hidden = finished.hidden
        assert torch.equal(finished.entering[:, last + 1 :], predicted[:, last + 1 :])
    logits = case.model.lm_head(hidden)[0]
    state = begun(case.drafter, TEXT[: last + 1], case.tap.rows(acts)[: last + 1])
    for position in range(last + 1, len(TEXT)):
        state.append([TEXT[position]])
        close(state.root_logits(), logits[position])
