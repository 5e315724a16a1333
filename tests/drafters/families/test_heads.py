"""How far heads reach from the newest feature, and what they answer from there."""

import json

import pytest
import torch

from outrider_drafters import TargetWeights, TreeShape, grow_tree, load_drafter, load_tap
from outrider_drafters.contracts.tap import Activations, LastHiddenTap
from outrider_drafters.families.heads import NewestHiddenTap, newest_hidden_info
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT

TOKENS = [4, 8, 15, 16, 2, 3]


@pytest.fixture(params=["medusa", "hydra", "hydra++", "mlp"])
def drafter(request, tiny_drafters):
    return tiny_drafters[request.param]


@pytest.fixture
def rows():
    return torch.randn(6, 16, generator=torch.Generator().manual_seed(5))


def told(drafter, rows, *positions):
    """A state of all tokens, with features of these positions."""
    state = drafter.new_state()
    state.append(TOKENS)
    for position in positions:
        state.add_features(position, rows[position : position + 1])
    return state


@pytest.mark.parametrize(("position", "lost"), [(4, 0), (3, 1), (2, 2), (1, 3), (0, 4)])
def test_every_token_since_the_feature_costs_a_head(drafter, rows, position, lost):
    state = told(drafter, rows, position)
    assert state.max_levels == max(0, drafter.num_heads - lost)
    tree = grow_tree(state, TreeShape(breadth=2, levels=9, budget=40))
    assert max(tree.depths(), default=0) == state.max_levels


def test_without_a_feature_nothing_is_drafted(drafter, rows):
    state = told(drafter, rows)
    assert (state.max_levels, len(grow_tree(state, TreeShape()))) == (0, 0)
    with pytest.raises(UsageError, match="the newest of 0 features is too old"):
        state.root_logits()
    with pytest.raises(UsageError, match="nothing to draft from"):
        drafter.new_state().root_logits()


def test_the_roots_own_feature_gives_lm_heads_answer_first(tiny_drafters, rows):
    for name in ("medusa", "hydra", "mlp"):
        drafter = tiny_drafters[name]
        state = told(drafter, rows, 4, 5)
        assert state.max_levels == drafter.num_heads + 1
        torch.testing.assert_close(state.root_logits(), drafter.target.lm_head @ rows[5])
        onward = state.expand([9], [ROOT])
        state.append([9])
        torch.testing.assert_close(state.root_logits(), onward[0])


def test_behind_a_prefix_layer_the_roots_own_feature_waits(tiny_drafters, rows):
    both, older = (told(tiny_drafters["hydra++"], rows, *positions) for positions in ((4, 5), (4,)))
    assert both.num_features == 6
    torch.testing.assert_close(both.root_logits(), older.root_logits())
    for state in (both, older):
        state.append([9])
    assert both.max_levels == older.max_levels + 1


def test_hydra_reads_a_nodes_own_path_and_medusa_none(tiny_drafters, rows):
    for name, reads_path in (("hydra", True), ("mlp", True), ("medusa", False)):
        state = told(tiny_drafters[name], rows, 4)
        state.root_logits()
        state.expand([9, 11], [ROOT, ROOT])
        among = state.expand([6, 6], [0, 1])
        assert torch.equal(among[0], among[1]) != reads_path
        state.root_logits()
        state.expand([11], [ROOT])
        torch.testing.assert_close(state.expand([6], [0])[0], among[1])


def test_the_tap_asks_for_the_newest_row_under_a_name_of_its_own():
    tap, acts = (
        NewestHiddenTap(16),
        Activations(torch.empty(0), torch.empty(0), {-1: torch.ones(2, 16), -3: torch.zeros(2, 16)}),
    )
    assert tap.info.newest_only
    assert not tap.needs_kv
    assert torch.equal(tap.new_state().rows(acts), torch.ones(2, 16))
    deeper = NewestHiddenTap(16, offset=2)
    assert deeper.hidden_layers == (-3,)
    assert torch.equal(deeper.rows(acts), torch.zeros(2, 16))
    assert len({LastHiddenTap(16).info.fingerprint, tap.info.fingerprint, deeper.info.fingerprint}) == 3
    assert tap.info == newest_hidden_info(16)


@pytest.mark.parametrize(
    ("name", "levels", "same", "least"), [("medusa_v01", 4, 12, 1), ("hydra_mlp", 3, 22, 11)], ids=["medusa", "hydra"]
)
def test_generation_is_the_targets_own(golden, generate, name, levels, same, least):
    from transformers import LlamaForCausalLM

    target, directory = golden / "target_vicuna_tiny", golden / name / "drafter"
    meta = json.loads((golden / name / "meta.json").read_text())["greedy"]
    drafter, tap = load_drafter(directory, TargetWeights.load(target)), load_tap(directory, target)
    model = LlamaForCausalLM.from_pretrained(target).eval()
    made = generate(model, drafter, tap, meta["prompt"], TreeShape(4, levels, 24), num_tokens=same + 8)
    assert made.tokens[: same + 20] == meta["output"][: same + 20]
    assert sum(made.accepted) >= least
