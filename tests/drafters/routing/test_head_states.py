"""After any calls, a draft state equals a fresh one with the same tokens and features: all families."""

from dataclasses import dataclass, field
from itertools import groupby

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_drafters import DraftState, TreeShape, grow_tree
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo
from outrider_proto.tree import ROOT

VOCABULARY = 23

appends = st.tuples(st.just("append"), st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4))
features = st.tuples(st.just("features"), st.integers(0, 6), st.integers(0, 12), st.integers(0, 3))
rollbacks = st.tuples(st.just("rollback"), st.integers(0, 8))
drafts = st.tuples(st.just("draft"), st.integers(0, 3))
scripts = st.lists(st.one_of(appends, features, rollbacks, drafts), max_size=24)


@dataclass
class Told:
    """What a state was told and still stands."""

    tokens: list[int] = field(default_factory=list)
    rows: dict[int, torch.Tensor] = field(default_factory=dict)  # by position

    @property
    def num_features(self) -> int:
        return 1 + max(self.rows, default=-1)

    def retell(self, state: DraftState) -> None:
        """Tell a fresh state, rows of neighbouring positions at once."""
        state.append(self.tokens)
        for _, run in groupby(enumerate(sorted(self.rows)), key=lambda pair: pair[1] - pair[0]):
            positions = [position for _, position in run]
            state.add_features(positions[0], torch.stack([self.rows[position] for position in positions]))


def play(state: DraftState, script: list, tap: TapInfo) -> Told:
    told, generator = Told(), torch.Generator().manual_seed(3)
    for name, *arguments in script:
        match name:
            case "append":
                state.append(arguments[0])
                told.tokens += arguments[0]
            case "features":
                overlap, more, *skipped = arguments
                held = told.num_features
                start = min(held + sum(skipped), len(told.tokens)) if tap.newest_only else held
                first = max(0, held - overlap) if start == held else start
                rows = torch.randn(min(more, len(told.tokens) - start), tap.width, generator=generator)
                lies = torch.full((start - first, tap.width), 1e9)  # what it has, it must not take again
                state.add_features(first, torch.cat((lies, rows)))
                told.rows |= dict(enumerate(rows, start))
            case "rollback":
                keep = max(0, len(told.tokens) - arguments[0])
                state.rollback(keep)
                del told.tokens[keep:]
                told.rows = {position: row for position, row in told.rows.items() if position < keep}
            case "draft":
                if told.tokens:
                    grow_tree(state, TreeShape(2, arguments[0] + 1, 6))
    return told


def answers(state: DraftState) -> torch.Tensor:
    """Logits at the root, of two children and of grandchildren, as far as the state reaches."""
    levels = [lambda: state.root_logits()[None], lambda: state.expand([2, 5], [ROOT, ROOT])]
    levels += [lambda: state.expand([7, 1, 4], [1, 0, 0])]
    return torch.cat([torch.empty(0, VOCABULARY), *(level() for level in levels[: state.max_levels])])


@pytest.fixture(scope="module", autouse=True)
def computed_in_float64(in_float64):
    """In float32, these random weights turn the last bit of a sum into a thousandth of a logit."""
    with in_float64():
        yield


@pytest.fixture(scope="module")
def tiny_drafters(float64_drafters):
    return float64_drafters


@settings(max_examples=100)
@given(script=scripts)
def test_equals_a_fresh_state(tiny_drafters, script):
    for drafter in tiny_drafters.values():
        state, fresh = drafter.new_state(), drafter.new_state()
        told = play(state, script, drafter.tap)
        assert (state.num_tokens, state.num_features) == (len(told.tokens), told.num_features)
        if not told.tokens:
            continue
        told.retell(fresh)
        assert state.max_levels == fresh.max_levels
        torch.testing.assert_close(answers(state), answers(fresh), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dropped", range(6))
@pytest.mark.parametrize("lacking", [1, 3])
def test_nothing_is_left_of_what_was_rolled_back(drafter, dropped, lacking):
    """Drafted from, rolled back, and gone on with other tokens and features beyond the old end."""
    script = [("append", [1, 2, 3, 4, 5, 6]), ("features", 0, 6 - lacking), ("draft", 2)]
    script += [("rollback", dropped), ("append", [7, 8, 9, 10, 11, 12]), ("features", 2, 9 - lacking)]
    state, fresh = drafter.new_state(), drafter.new_state()
    told = play(state, script, drafter.tap)
    told.retell(fresh)
    torch.testing.assert_close(answers(state), answers(fresh), atol=1e-4, rtol=1e-4)


def test_a_long_text_outgrows_every_buffer(drafter):
    tokens = torch.randint(VOCABULARY, (300,), generator=torch.Generator().manual_seed(1)).tolist()
    rows = torch.randn(299, drafter.tap.width, generator=torch.Generator().manual_seed(2))
    state, fresh = drafter.new_state(), drafter.new_state()
    for start in range(0, 300, 20):
        state.append(tokens[start : start + 20])
        grow_tree(state, TreeShape(8, 12, 60))  # 88 draft rows
        state.add_features(start, rows[start : start + 19])
        state.add_features(start + 19, rows[start + 19 : start + 20])
    fresh.append(tokens)
    fresh.add_features(0, rows)
    torch.testing.assert_close(answers(state), answers(fresh), atol=1e-4, rtol=1e-4)


def test_features_matter(drafter):
    state = drafter.new_state()
    state.append([1, 2, 3])
    without = state.root_logits()
    state.add_features(0, torch.ones(2, drafter.tap.width))
    assert not torch.allclose(state.root_logits(), without)


def test_the_roots_own_feature_waits_for_a_successor(drafter):
    rows = torch.randn(3, drafter.tap.width, generator=torch.Generator().manual_seed(4))
    state, fresh = drafter.new_state(), drafter.new_state()
    for each in (state, fresh):
        each.append([1, 2, 3])
        each.add_features(0, rows[:2])
    state.add_features(2, rows[2:])
    torch.testing.assert_close(answers(state), answers(fresh))
    assert state.num_features == 3


def test_features_that_come_while_drafting_wait_for_the_next_root(drafter):
    state, twin = drafter.new_state(), drafter.new_state()
    for each in (state, twin):
        each.append([1, 2, 3])
        each.root_logits()
    state.add_features(0, torch.ones(2, drafter.tap.width))
    level = [4, 5], [ROOT, ROOT]
    torch.testing.assert_close(state.expand(*level), twin.expand(*level))


def test_nodes_see_ancestors_only(drafter):
    """A node's logits do not depend on what was expanded beside it."""
    state = drafter.new_state()
    state.append([1, 2, 3])
    state.root_logits()
    state.expand([4], [ROOT])
    alone = state.expand([6], [0])
    state.root_logits()
    state.expand([9, 4, 8], [ROOT, ROOT, ROOT])
    among = state.expand([5, 6, 6], [0, 1, 2])
    torch.testing.assert_close(among[1], alone[0], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(among[2], alone[0])


def test_drafting_equals_appending(drafter):
    """With the same features, a drafted path gives the logits that the path's tokens give when they stand."""
    rows = torch.randn(3, drafter.tap.width, generator=torch.Generator().manual_seed(4))
    state = drafter.new_state()
    state.append([1, 2, 3, 4])
    state.add_features(0, rows)
    state.root_logits()
    drafted = [
        state.expand([5], [ROOT]),
        state.expand([6], [0]),
    ]
    state.append([5])
    standing = [state.root_logits()]
    state.append([6])
    standing.append(state.root_logits())
    torch.testing.assert_close(torch.stack(standing), torch.cat(drafted), atol=1e-4, rtol=1e-4)


def test_misuse_is_refused(drafter):
    state, width = drafter.new_state(), drafter.tap.width
    with pytest.raises(UsageError, match="nothing to draft from"):
        state.root_logits()
    state.append([1, 2, 3])
    with pytest.raises(UsageError, match="features from position 1: there are 0"):
        state.add_features(1, torch.zeros(1, width))
    with pytest.raises(UsageError, match="features up to position 3: there are 3 tokens"):
        state.add_features(0, torch.zeros(4, width))
    with pytest.raises(UsageError, match=rf"features of shape \[2, {width + 1}\]: need \[n, {width}\]"):
        state.add_features(0, torch.zeros(2, width + 1))
    with pytest.raises(UsageError, match="rollback to 4 tokens: there are 3"):
        state.rollback(4)
    assert (state.num_tokens, state.num_features) == (3, 0)
