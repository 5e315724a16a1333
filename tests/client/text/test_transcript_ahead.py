"""Drafts sent ahead of the verdict that they build on: which of them count once that verdict is there."""

from __future__ import annotations

import numpy as np
import pytest

from outrider_client.text.transcript import Transcript
from outrider_proto.errors import Violation
from outrider_proto.frames import Draft, Features, Finish, Opened, ServerTree, Verdict
from outrider_proto.packing import prefix_hash
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


def test_a_draft_ahead_names_the_text_it_assumes():
    transcript = begun()
    first, ahead, further = three_in_flight(transcript)
    assert first.assumes == b""
    assert (ahead.base_len, ahead.context, ahead.root, ahead.tree) == (len(LIKELY) - 1, (), 19, AHEAD)
    assert ahead.assumes == prefix_hash(LIKELY)
    assert further.assumes == prefix_hash(LIKELIEST)
    assert ahead.features_from == ahead.base_len
    assert first.seq < ahead.seq < further.seq
    assert transcript.awaits(first.seq)
    assert not transcript.awaits(ahead.seq)


def test_right_assumptions_are_judged_one_after_another():
    transcript = begun()
    first, ahead, further = three_in_flight(transcript)
    transcript.apply(Verdict(first.seq, (0, 1, 2), 19), VOCAB)
    assert tuple(transcript.tokens) == LIKELY
    assert transcript.awaits(ahead.seq)
    transcript.apply(Verdict(ahead.seq, (0, 1, 2), 29), VOCAB)
    assert tuple(transcript.tokens) == LIKELIEST
    assert transcript.awaits(further.seq)
    transcript.apply(Verdict(further.seq, (0,), 50), VOCAB)
    assert transcript.new_tokens == (9, 10, 11, 12, 19, 20, 21, 22, 29, 30, 50)
    assert transcript.awaited is None
    following = transcript.next_draft(TREE, 99)
    assert (following.base_len, following.context, following.root) == (len(LIKELIEST) + 1, (), 50)


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


def test_the_third_goes_when_the_second_s_verdict_says_something_else():
    transcript = begun()
    first, ahead, further = three_in_flight(transcript)
    transcript.apply(Verdict(first.seq, (0, 1, 2), 19), VOCAB)
    transcript.apply(Verdict(ahead.seq, (0, 1), 60), VOCAB)
    assert not transcript.awaits(further.seq)
    assert transcript.next_draft(TREE, 0).base_len == len(LIKELY) + 2


def test_verdicts_out_of_turn_and_stale_ones_whose_text_stands_are_the_servers_fault():
    transcript = begun()
    first, ahead, _ = three_in_flight(transcript)
    with pytest.raises(Violation, match="answers no request in flight"):
        transcript.apply(Verdict(ahead.seq, (), 29), VOCAB)
    transcript.apply(Verdict(first.seq, (0, 1, 2), 19), VOCAB)
    with pytest.raises(Violation, match="stale"):
        transcript.apply(Verdict(ahead.seq, (), None, stale=True), VOCAB)


@pytest.mark.parametrize(
    ("limit", "finishes", "ends"),
    [
        (30, [Finish.EOS], ["eos"]),
        (30, [Finish.CONTEXT_FULL], ["context"]),
        (4, [Finish.NOT_YET], ["limit"]),  # cut by the limit, what was assumed does not stand
        (7, [Finish.NOT_YET, Finish.NOT_YET], [None, "limit"]),
    ],
)
def test_the_end_of_the_answer_ends_all(limit, finishes, ends):
    transcript = begun(max_new_tokens=limit)
    flights = zip(three_in_flight(transcript), (19, 29), finishes, strict=False)
    changes = [transcript.apply(Verdict(d.seq, (0, 1, 2), bonus, finish), VOCAB) for d, bonus, finish in flights]
    assert [change.finish for change in changes] == ends
    assert transcript.awaited is None
    assert transcript.new_tokens == (9, *LIKELIEST[5:])[: min(limit, 1 + 4 * len(ends))]


def opened(kept: tuple[int, ...]) -> Opened:
    return Opened("s", True, len(kept), prefix_hash(kept), 1000, 255, ())


@pytest.mark.parametrize("kept", [PROMPT, TEXT])
def test_a_new_connection_forgets_them(kept):
    """However many of them the server has judged before the link went: it keeps no more than what stands here."""
    transcript = begun()
    drafts = three_in_flight(transcript)
    transcript.resume(opened(kept))
    assert transcript.awaited is None
    assert transcript.requested_len == 0
    assert not any(transcript.awaits(draft.seq) for draft in drafts)
    draft = transcript.next_draft(TREE, 4)
    assert (draft.base_len, draft.context, draft.root, draft.assumes) == (4, (), 9, b"")


def test_a_draft_on_what_stands_and_another_answer_take_the_place_of_all():
    transcript = begun()
    first, *_, last = three_in_flight(transcript)
    draft = transcript.next_draft(TREE, 4)
    assert (transcript.awaits(first.seq), transcript.awaits(draft.seq)) == (False, True)
    transcript.begin((*PROMPT, 9, 70), 10)
    assert transcript.awaited is None
    draft = transcript.next_draft(DraftTree(), 0)
    assert (draft.base_len, draft.context, draft.root) == (4, (9,), 70)
    assert draft.seq > last.seq


def test_features_are_asked_for_once():
    """requested_len: all before it will come without being asked for again."""
    transcript = begun()
    assert transcript.requested_len == len(PROMPT)
    first, ahead, _ = three_in_flight(transcript)
    assert transcript.requested_len == len(PROMPT)  # a verdict may say that nothing of the tree stands
    transcript.apply(Verdict(first.seq, (0, 1, 2), 19), VOCAB)
    assert transcript.requested_len == len(LIKELY) - 1 == ahead.features_from
    transcript.apply(Verdict(ahead.seq, (0,), 60), VOCAB)
    assert transcript.requested_len == len(LIKELY) + 1
    following = transcript.next_draft(TREE, transcript.requested_len)
    assert following.features_from == transcript.requested_len == following.base_len
    transcript.begin(LIKELY[:6], 10)
    assert transcript.requested_len == 6


def test_features_of_decoded_tokens_are_asked_for_with_the_decode():
    transcript = begun()
    plain = transcript.next_decode()
    transcript.apply(Verdict(plain.seq, (), 50), VOCAB)
    assert transcript.requested_len == len(PROMPT)
    decode = transcript.next_decode(4, ServerTree(2, 3, 4))
    assert decode.features_from == 4
    transcript.apply(Verdict(decode.seq, (), 53, tokens=(51, 52)), VOCAB)
    assert transcript.requested_len == len(TEXT) + 3  # all but the bonus
    assert transcript.awaits(decode.seq)


def test_a_cancelled_decode_is_over_and_leaves_what_stands():
    transcript = begun()
    decode = transcript.next_decode(4)
    transcript.apply(Verdict(decode.seq, (), 50), VOCAB)
    change = transcript.apply(Verdict(decode.seq, (), None, Finish.CANCELLED), VOCAB)
    assert (change.accepted, change.bonus, change.finish) == ((), (), None)
    assert transcript.awaited is None
    draft = transcript.next_draft(TREE, 4)
    assert (draft.base_len, draft.context, draft.root) == (len(TEXT), (), 50)


@pytest.mark.parametrize(("num_judged", "usable"), [(0, 0), (1, 4), (2, 4)])
def test_rows_of_what_has_not_been_judged_do_not_count(num_judged, usable):
    """Rows of the first flight: its root's, and its path's."""
    transcript = begun()
    first, ahead, _ = three_in_flight(transcript)
    for draft, bonus in ((first, 19), (ahead, 29))[:num_judged]:
        transcript.apply(Verdict(draft.seq, (0, 1, 2), bonus), VOCAB)
    rows = Features(first.seq, len(TEXT) - 1, np.zeros((4, 2), dtype=np.float32), True)
    assert transcript.num_usable_rows(rows) == usable
