"""Drafters that read a feature of every token: what features do to their drafts."""

import torch

from outrider_drafters import DraftState, FeatureDrafter, check_drafter
from outrider_drafters.families.eagle2.family import Eagle2Drafter
from outrider_proto.tree import ROOT


def answers(state: DraftState) -> torch.Tensor:
    """Logits at the root, and of two children."""
    return torch.cat([state.root_logits()[None], state.expand([2, 5], [ROOT, ROOT])])


def test_the_roots_own_feature_waits_for_a_successor(drafter):
    rows = torch.randn(3, drafter.tap.width, generator=torch.Generator().manual_seed(4))
    state, fresh = drafter.new_state(), drafter.new_state()
    for each in (state, fresh):
        each.append([1, 2, 3])
        each.add_features(0, rows[:2])
    state.add_features(2, rows[2:])
    torch.testing.assert_close(answers(state), answers(fresh))
    assert state.num_features == 3


def test_a_step_alone_is_enough_for_a_long_prompt(tiny_drafters, monkeypatch):
    """A family may leave `fill` as it is: the rows of a prompt then run as all others do."""
    filled = []
    for fill in (Eagle2Drafter.fill, FeatureDrafter.fill):
        monkeypatch.setattr(Eagle2Drafter, "fill", fill)
        state = tiny_drafters["eagle2"].new_state()
        state.append([number % 23 for number in range(60)])
        state.add_features(0, torch.randn(59, 16, generator=torch.Generator().manual_seed(4)))
        filled.append(answers(state))
    torch.testing.assert_close(*filled, atol=1e-4, rtol=1e-4)
    check_drafter(tiny_drafters["eagle2"], scripts=2)
