"""The session's tokens: what a verdict changes, what the server is sent, what a resume leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_client.text.transcript import Transcript
from outrider_proto.errors import Violation
from outrider_proto.frames import Features, Finish, Opened, Verdict
from outrider_proto.packing import common_prefix_len, prefix_hash
from outrider_proto.tree import DraftTree

VOCAB = 100
PROMPT = (1, 2, 3, 4)
NO_TREE = DraftTree()
TREE = DraftTree((10, 11, 12, 13), (-1, -1, 0, 2))


def begun(prompt=PROMPT, max_new_tokens=20) -> Transcript:
    transcript = Transcript()
    transcript.begin(prompt, max_new_tokens)
    return transcript


def answered(transcript: Transcript, tree=NO_TREE, path=(), bonus=20, finish=Finish.NOT_YET):
    draft = transcript.next_draft(tree, 0)
    return draft, transcript.apply(Verdict(draft.seq, path, bonus, finish), VOCAB)


def test_a_decode_cancelled_before_it_began_leaves_the_server_what_it_had():
    transcript = begun()
    decode = transcript.next_decode(0)
    transcript.apply(Verdict(decode.seq, (), None, Finish.CANCELLED), VOCAB)
    draft = transcript.next_draft(DraftTree(), 0)
    assert (draft.base_len, draft.context, draft.features_from) == (0, (1, 2, 3), 0)


def opened(kept: tuple[int, ...]) -> Opened:
    return Opened("s", True, len(kept), prefix_hash(kept), 1000, 255, ())


@pytest.mark.parametrize(
    ("kept", "sent"),
    [
        ((1, 2, 3, 4, 9), (5, (10,), 30)),
        *((other, (0, (1, 2, 3, 4, 9, 10), 30)) for other in ((), (1, 2, 99), (1, 2, 3, 4, 9, 10, 30, 7))),
    ],
)
def test_resume_sends_what_the_server_lacks_and_all_where_it_holds_other_tokens(kept, sent):
    transcript = begun()
    answered(transcript, bonus=9)
    answered(transcript, TREE, (0,), 30)
    transcript.resume(opened(kept))
    draft = transcript.next_draft(TREE, 0)
    assert (draft.base_len, draft.context, draft.root) == sent


def features(seq: int, first: int, num_rows: int) -> Features:
    return Features(seq, first, np.zeros((num_rows, 2), dtype=np.float32), True)


def test_features_of_tokens_that_are_gone_do_not_count():
    transcript = begun()
    draft, _ = answered(transcript, bonus=9)
    assert transcript.num_usable_rows(features(draft.seq, 0, 4)) == 4
    assert transcript.num_usable_rows(features(draft.seq, 2, 9)) == 2
    transcript.begin((1, 2, 50, 51), 20)
    assert transcript.num_usable_rows(features(draft.seq, 0, 4)) == 2
    assert transcript.num_usable_rows(features(draft.seq, 3, 1)) == 0


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(99, (), 1),  # answers nothing
        Verdict(1, (1, 2), 1),  # no path of the tree
        Verdict(1, (7,), 1),
        Verdict(1, (0,), VOCAB),  # outside the vocabulary
        Verdict(1, (0,), None),  # nothing follows, but the answer goes on
    ],
)
def test_verdict_that_does_not_fit(verdict):
    transcript = begun()
    transcript.next_draft(TREE, 0)
    with pytest.raises(Violation):
        transcript.apply(verdict, VOCAB)


@given(st.data())
def test_any_tail_ends_as_the_targets_text(data):
    """Whatever the drafter wrote, checking it leaves a prefix of what the target writes."""
    truth = data.draw(st.lists(st.integers(0, 3), min_size=30, max_size=30))
    tail = data.draw(st.lists(st.integers(0, 3), max_size=12))
    max_nodes = data.draw(st.integers(1, 5))
    transcript = begun(max_new_tokens=25)
    for token in tail:
        transcript.write_unverified(token)
    while transcript.tail_len:
        done = transcript.num_new_tokens - transcript.tail_len
        chain = transcript.tail_chain(max_nodes)
        num_right = common_prefix_len(chain.tokens, truth[done:])
        answered(transcript, chain, tuple(range(num_right)), truth[done + num_right])
    assert list(transcript.new_tokens) == truth[: len(transcript.new_tokens)]
    assert len(transcript.new_tokens) > common_prefix_len(tail, truth) or not tail


@pytest.mark.parametrize(("path", "bonus"), [((0, 1, 2), 18), ((), 19), ((0,), 11)])
def test_what_was_sent_ahead_goes_when_the_verdict_says_something_else(path, bonus):
    """Another bonus, the one guessed elsewhere, and what was drafted as the bonus: fewer tokens stand."""
    transcript, first, ahead = with_one_ahead()
    with pytest.raises(Violation, match="answers no request in flight"):
        transcript.apply(Verdict(ahead.seq, (), 29), VOCAB)  # out of turn
    transcript.apply(Verdict(first.seq, path, bonus), VOCAB)
    assert transcript.awaited is None
    with pytest.raises(Violation, match="answers no request in flight"):
        transcript.apply(Verdict(ahead.seq, (), None, stale=True), VOCAB)
    following = transcript.next_draft(TREE, 0)
    assert (following.base_len, following.root) == (5 + len(path), bonus)


def test_a_draft_whose_text_stands_is_not_stale():
    transcript, first, ahead = with_one_ahead()
    transcript.apply(Verdict(first.seq, (0, 1, 2), 19), VOCAB)
    with pytest.raises(Violation, match="stale"):
        transcript.apply(Verdict(ahead.seq, (), None, stale=True), VOCAB)


def with_one_ahead():
    transcript = begun()
    answered(transcript, bonus=9)
    first = transcript.next_draft(DraftTree.chain((10, 11, 12)), 4)
    return transcript, first, transcript.next_ahead((*PROMPT, 9, 10, 11, 12, 19), TREE)
