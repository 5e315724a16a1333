"""Frames that come twice, late, out of order or from elsewhere: each is refused for its own reason, and its session
stays as it was for its rightful owner."""

import pytest
from stage import NEW, PROMPT, answer, client, opened, plain, server, until
from talk import NO_TREE, calling, talking

from outrider_proto import verifier_pb2 as pb
from outrider_proto.errors import Reason
from outrider_proto.frames import Close, Decode, Draft, Open, Opened, Verdict
from outrider_proto.wire import client_frame_to_proto


@pytest.fixture
async def running():
    async with server() as it:
        yield it


async def first_verdict(talk) -> Verdict:
    return await talk.prompt(PROMPT)


async def resumed(running, opened_before: Opened, tokens) -> list[int]:
    """What the rightful owner gets for the rest of the answer."""
    async with opened(running, session_id=opened_before.session_id, committed_len=len(tokens)) as (talk, about):
        assert about.resumed
        assert about.kept_len == len(tokens) - 1
        verdicts = await talk.decode(len(tokens) - 1, (), tokens[-1], NEW - 1)
        return [verdict.bonus for verdict in verdicts]


def open_frame(running) -> Open:
    about = running.verifier.describe()
    return Open(about.protocol_version, about.target_fingerprint, about.tokenizer_fingerprint)


def draft(seq: int) -> Draft:
    return Draft(seq, len(PROMPT), (), plain()[0], NO_TREE)


WRONG = {
    "the same draft twice": (lambda running: [draft(1)], Reason.BAD_SEQUENCE),
    "an old number": (lambda running: [draft(0)], Reason.BAD_SEQUENCE),
    "a second Open": (lambda running: [open_frame(running)], Reason.MALFORMED_FRAME),
    "a draft beyond what is held": (lambda running: [Draft(2, len(PROMPT) + 9, (), 5, NO_TREE)], Reason.BAD_SEQUENCE),
    "a token that there is none of": (
        lambda running: [Draft(2, len(PROMPT), (), 99_999, NO_TREE)],
        Reason.TOKEN_OUT_OF_VOCABULARY,
    ),
}


@pytest.mark.parametrize("what", list(WRONG))
async def test_a_wrong_frame_ends_its_stream_and_not_its_session(running, what):
    frames, reason = WRONG[what]
    async with opened(running) as (talk, about):
        assert (await first_verdict(talk)).bonus == plain()[0]
        for frame in frames(running):
            await talk.send(frame)
        assert (await talk.refusal()).reason is reason
    assert await resumed(running, about, [*PROMPT, plain()[0]]) == list(plain()[1:])


async def test_a_decode_and_a_draft_keep_their_order(running):
    """The draft waits for the decode, and then counts on less than is held: it is the client's right to go back."""
    async with opened(running) as (talk, _):
        await first_verdict(talk)
        await talk.send(Decode(2, len(PROMPT), (), plain()[0], 3))
        await talk.send(Draft(3, len(PROMPT), (), plain()[0], NO_TREE))
        bonuses = [(frame.seq, frame.bonus) for frame in [await verdict(talk) for _ in range(4)]]
    assert bonuses == [(2, plain()[1]), (2, plain()[2]), (2, plain()[3]), (3, plain()[1])]


async def skipping_features(talk):
    while (frame := await talk.receive()).__class__.__name__ == "Features":
        pass
    return frame


async def verdict(talk) -> Verdict:
    frame = await skipping_features(talk)
    assert isinstance(frame, Verdict)
    return frame


async def test_frames_of_another_stream_answer_for_their_own_session_only(running):
    """What one client sent, sent by another one: it has nothing that the frame counts on."""
    async with opened(running) as (talk, about), opened(running) as (other, _):
        await first_verdict(talk)
        await other.send(draft(2))
        assert (await other.refusal()).reason is Reason.BAD_SEQUENCE
        again = await talk.verdict(len(PROMPT), (), plain()[0])
        assert again.bonus == plain()[1]
        assert about.session_id


async def test_a_whole_recorded_stream_makes_a_session_of_its_own(running):
    """Bytes as they went: without the session's id, which the server chose, they take over nothing."""
    recorded = [
        client_frame_to_proto(frame) for frame in (open_frame(running), Draft(1, 0, PROMPT[:-1], PROMPT[-1], NO_TREE))
    ]
    recorded = [message.SerializeToString() for message in recorded]
    ids = set()
    for _ in range(3):
        async with calling(running.address) as talk:
            for data in recorded:
                await talk.send_message(pb.ClientFrame.FromString(data))
            ids.add((await talk.receive()).session_id)
            assert (await verdict(talk)).bonus == plain()[0]
    assert len(ids) == 3


async def test_a_session_that_a_replayed_open_took_over_is_taken_back(running):
    """Whoever replays a resuming Open knows the id and is the owner, as far as anybody can tell: the older stream ends,
    and its own client comes back and goes on exactly, once it has heard of that end."""
    async with client(running.address) as mine:
        assert await answer(mine) == plain()
        session_id = next(iter(running.verifier._sessions._sessions))
        tap = running.verifier.describe().taps[0].fingerprint
        async with opened(running, session_id=session_id, committed_len=3, tap=tap) as (_, about):
            assert about.resumed
            await until(lambda: mine._context.session.link.has_failed, "the older stream's client to hear of its end")
            longer = await answer(mine, max_new_tokens=NEW + 8)
    assert longer == plain(PROMPT, NEW + 8)


async def test_after_close_nothing_is_taken(running):
    """Else a stream could go on with a session that no longer counts against anything."""
    async with talking(running.verifier) as talk:
        await talk.send(open_frame(running))
        await talk.send(Close())
        for seq in range(1, 5):
            await talk.send(Draft(seq, 0, PROMPT[:-1], PROMPT[-1], NO_TREE))
        assert isinstance(await talk.receive(), Opened)
        assert await talk.receive() is None
    assert len(running.verifier._sessions) == 0
    assert not running.verifier._streams
