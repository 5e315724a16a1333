"""Tapes: written and read again, grown from, thinned, recorded from real models."""

from dataclasses import replace

import pytest

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.trees.predraft import TreeOutcome
from outrider_lab.virtual.tape import Guess, Tape, TapedPosition, Thinning, thinned
from outrider_lab.virtual.texts import TapedTexts
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT, DraftTree

from .tapes import BELIEVED, LEVELS, PROMPT, RIGHT, SECOND, guess, recording_of, tape_of, texts_of

CHAIN = TreeShape.chain(LEVELS)


@pytest.mark.parametrize("name", ["tape.json", "tape.json.gz"])
def test_a_tape_is_read_as_it_was_written(tmp_path, name):
    late = {5: recording_of(10, lambda number: SECOND).positions}
    recordings = replace(recording_of(10), late=late), recording_of(10, name="hand-1", prompt=(9, 9), salt=3)
    tape = tape_of(*recordings, levels_per_pass=3)
    tape.save(tmp_path / name)
    assert Tape.load(tmp_path / name) == tape


def test_a_draft_is_grown_from_the_taped_lag_nearest_to_what_is_missing():
    late = {5: recording_of(10, lambda number: SECOND).positions}
    recording, num_tokens = replace(recording_of(10), late=late), len(PROMPT) + 6
    text = texts_of(recording).of(PROMPT)

    def first(missing):
        return text.drafts(num_tokens, CHAIN, num_tokens - 1 - missing)[0].tree.tokens[0]

    right = recording.answer[6]
    assert [first(missing) == right for missing in (0, 2, 3, 5, 20)] == [True, True, False, False, False]
    tree = DraftTree()
    assert text.outcomes(num_tokens, tree, 1)[0][0] == TreeOutcome(ROOT, right)
    assert text.outcomes(num_tokens, tree, 1, num_tokens - 6)[0][0] != TreeOutcome(ROOT, right)


@pytest.mark.parametrize("shape", [TreeShape(5, 2, 4), TreeShape(1, LEVELS + 1, 4)])
def test_larger_trees_than_taped_are_refused(shape):
    with pytest.raises(UsageError, match="the tape has"):
        texts_of(recording_of(10)).of(PROMPT).drafts(len(PROMPT) + 1, shape)


def test_the_likeliest_outcome_of_a_sure_chain_is_that_all_of_it_stands():
    recording = recording_of(10, lambda number: SECOND if number == 1 + LEVELS else RIGHT)
    text = texts_of(recording).of(PROMPT)
    answer = recording.answer
    scored = text.outcomes(len(PROMPT) + 1, DraftTree.chain(answer[1 : 1 + LEVELS]), 8)
    outcomes, scores = zip(*scored, strict=True)
    assert outcomes[0] == TreeOutcome(LEVELS - 1, guess(answer[1 + LEVELS], SECOND).tokens[0])
    assert outcomes[1].node == ROOT
    assert TreeOutcome(LEVELS - 1, answer[1 + LEVELS]) in outcomes
    assert list(scores) == sorted(scores, reverse=True)
    assert scores[0] == pytest.approx((LEVELS + 1) * BELIEVED, abs=0.01)


def test_a_branch_that_the_drafter_has_ended_is_not_drafted_on():
    """As copying does, which knows one continuation alone."""
    recording = recording_of(10)
    ended = {path: Guess((), ()) if len(path) == 2 else found for path, found in recording.positions[1].guesses.items()}
    positions = (recording.positions[0], TapedPosition(ended), *recording.positions[2:])
    tape = thinned(tape_of(replace(recording, positions=positions)), Thinning(0.1, seed=3))
    text = TapedTexts(tape).of(PROMPT)
    drafts = text.drafts(len(PROMPT) + 2, CHAIN)
    assert len(drafts[-1].tree) == 2
    outcomes = [outcome for outcome, _ in text.outcomes(len(PROMPT) + 2, drafts[-1].tree, 8)]
    assert outcomes
    assert all(outcome.node < 1 for outcome in outcomes)
    nothing = replace(recording, positions=(TapedPosition({(): Guess((), ())}),) * len(recording.positions))
    assert texts_of(nothing).of(PROMPT).likeliest(len(PROMPT) + 2) is None
    assert not texts_of(nothing).of(PROMPT).drafts(len(PROMPT) + 2, CHAIN)[-1].tree.tokens


def test_a_text_of_no_recording_is_refused():
    with pytest.raises(UsageError, match="no prompt of the tape"):
        texts_of(recording_of(10)).of((8, 8, 8))


def test_a_hard_token_is_hard_in_every_draft_and_the_share_is_kept():
    tape = tape_of(recording_of(400))
    recording = thinned(tape, Thinning(0.3, seed=3)).recordings[0]
    answer = recording.answer
    hard = [
        recording.positions[number - 1].guesses[()].tokens[0] != answer[number] for number in range(1, len(answer) - 1)
    ]
    assert sum(hard) / len(hard) == pytest.approx(0.3, abs=0.08)
    for number in range(2, len(answer) - 1):
        from_before = recording.positions[number - 2].guesses[(answer[number - 1],)]
        assert (from_before.tokens[0] != answer[number]) == hard[number - 1]


def test_thinning_is_fixed_by_its_seed_and_none_changes_nothing():
    tape = tape_of(recording_of(40))
    assert thinned(tape, Thinning(0.3, seed=1)) == thinned(tape, Thinning(0.3, seed=1))
    assert thinned(tape, Thinning(0.3, seed=1)) != thinned(tape, Thinning(0.3, seed=2))
    assert thinned(tape, Thinning(0.0, seed=1)) is tape
    assert replace(tape, recordings=()) != tape
