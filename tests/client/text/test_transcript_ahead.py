"""Drafts sent ahead of the verdict that they build on: which of them count once that verdict is there."""

from __future__ import annotations

import pytest

from outrider_client.text.transcript import Transcript
from outrider_proto.errors import Violation
from outrider_proto.frames import Draft, Verdict
from outrider_proto.tree import DraftTree

VOCAB = 100
PROMPT = (1, 2, 3, 4)
TREE = DraftTree.chain((10, 11, 12))
AHEAD = DraftTree.chain((20, 21, 22))
FURTHER = DraftTree.chain((30, 31, 32))
TEXT = (*PROMPT, 9)  # what stands when the first draft leaves
LIKELY = (*TEXT, 10, 11, 12, 19)  # what its likeliest outcome makes of it: all right, and 19
LIKELIEST = (*LIKELY, 20, 21, 22, 29)  # and so on


def begun(max_new_tokens: int = 30) -> Transcript:
    transcript = Transcript()
    transcript.begin(PROMPT, max_new_tokens)
    draft = transcript.next_draft(DraftTree(), 0)
    transcript.apply(Verdict(draft.seq, (), 9), VOCAB)
    return transcript


def three_in_flight(transcript: Transcript) -> tuple[Draft, Draft, Draft]:
    return (
        transcript.next_draft(TREE, 4),
        transcript.next_ahead(LIKELY, AHEAD),
        transcript.next_ahead(LIKELIEST, FURTHER),
    )


@pytest.mark.parametrize(
    ("path", "bonus"),
    [
        ((0, 1, 2), 18),  # another bonus
        ((0, 1), 19),  # the bonus guessed, elsewhere
        ((), 19),
        ((0,), 11),  # what was drafted, but as the bonus: fewer tokens stand
    ],
)
def test_all_others_go_when_the_verdict_says_something_else(path, bonus):
    transcript = begun()
    first, ahead, further = three_in_flight(transcript)
    transcript.apply(Verdict(first.seq, path, bonus), VOCAB)
    assert transcript.awaited is None
    for gone in (ahead, further):
        with pytest.raises(Violation, match="answers no request in flight"):
            transcript.apply(Verdict(gone.seq, (), None, stale=True), VOCAB)
    following = transcript.next_draft(TREE, 0)
    assert following.base_len == len(TEXT) + len(path)
    assert following.root == bonus
    assert following.seq > further.seq


def test_verdicts_out_of_turn_and_stale_ones_whose_text_stands_are_the_servers_fault():
    transcript = begun()
    first, ahead, _ = three_in_flight(transcript)
    with pytest.raises(Violation, match="answers no request in flight"):
        transcript.apply(Verdict(ahead.seq, (), 29), VOCAB)
    transcript.apply(Verdict(first.seq, (0, 1, 2), 19), VOCAB)
    with pytest.raises(Violation, match="stale"):
        transcript.apply(Verdict(ahead.seq, (), None, stale=True), VOCAB)
