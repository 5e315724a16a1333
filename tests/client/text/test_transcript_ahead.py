"""Drafts sent ahead of the verdict that they build on: which of them count once that verdict is there."""

from __future__ import annotations

import pytest

from outrider_client.text.transcript import Transcript
from outrider_proto.errors import Violation
from outrider_proto.frames import Draft, Finish, Opened, Verdict
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
