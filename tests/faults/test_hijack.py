"""Sessions and those who are not theirs: an id cannot be guessed and is not told, and of two streams that know it the
newer one speaks, the older one never again."""

import logging

import pytest
from stage import NEW, PROMPT, opened, plain, server
from talk import NO_TREE, calling

from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Cancel, Close, Draft, Ping


@pytest.fixture
async def running():
    async with server() as it:
        yield it


def guesses(session_id: str) -> list[str]:
    """Near misses of an id."""
    last = format((int(session_id[-1], 16) + 1) % 16, "x")
    return [session_id[:-1], session_id[:-1] + last, session_id.upper() + "0", f" {session_id}", "0" * 32, "*", "%"]


async def test_a_guessed_id_opens_a_session_of_ones_own(running):
    async with opened(running) as (talk, about):
        await talk.prompt(PROMPT)
        for guess in guesses(about.session_id):
            async with opened(running, session_id=guess, committed_len=2**31) as (_, strange):
                assert not strange.resumed
                assert strange.kept_len == 0
                assert strange.session_id not in (guess, about.session_id)
        assert (await talk.verdict(len(PROMPT), (), plain()[0])).bonus == plain()[1]


async def test_an_id_without_end_is_malformed(running):
    async with calling(running.address) as talk:
        with pytest.raises(Refusal) as refused:
            await talk.open(running.verifier.describe(), session_id="0" * 100_000)
    assert refused.value.reason is Reason.MALFORMED_FRAME


async def test_ids_are_long_and_all_different(running):
    ids = set()
    for _ in range(30):
        async with opened(running) as (_, about):
            ids.add(about.session_id)
    assert len(ids) == 30
    assert all(len(each) == 32 and int(each, 16) for each in ids)


@pytest.mark.parametrize("late", ["draft", "close", "ping", "cancel"])
async def test_after_a_takeover_the_older_stream_has_no_effect(running, late):
    """It is told so; and what it sends behind that changes nothing for the newer one."""
    frames = {"draft": Draft(2, 0, (), 5, NO_TREE), "close": Close(), "ping": Ping(1), "cancel": Cancel(1)}
    async with opened(running) as (old, about):
        await old.prompt(PROMPT)
        async with opened(running, session_id=about.session_id, committed_len=len(PROMPT)) as (new, again):
            assert again.resumed
            await old.send(frames[late])  # it may have been told already
            assert (await old.refusal()).reason is Reason.TAKEN_OVER
            verdicts = await new.decode(len(PROMPT), (), plain()[0], NEW - 1)
            assert [verdict.bonus for verdict in verdicts] == list(plain()[1:])
        assert len(running.verifier._sessions) == 1


async def test_no_id_is_in_the_logs_or_in_a_refusal(running, caplog, monkeypatch):
    """Of streams that end well, are refused, are taken over, and fail in the server itself."""
    caplog.set_level(logging.DEBUG)
    ids, told = [], []
    async with opened(running) as (old, about):
        ids.append(about.session_id)
        async with opened(running, session_id=about.session_id) as (new, _):
            told.append(await old.refusal())
            await new.send(Draft(1, 99, (), 5, NO_TREE))
            told.append(await new.refusal())

    def fails(inputs):
        raise RuntimeError("for the test")

    monkeypatch.setattr(running.verifier._engine_loop._passes._engine, "launch", fails)
    async with opened(running) as (talk, about):
        ids.append(about.session_id)
        await talk.draft(0, (), 5)
        told.append(await talk.refusal())
    assert [refusal.reason for refusal in told] == [Reason.TAKEN_OVER, Reason.BAD_SEQUENCE, Reason.INTERNAL]
    said = caplog.text + "".join(map(str, told))
    assert "RuntimeError" in said
    assert not [each for each in ids if each in said]
