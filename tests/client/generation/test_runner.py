"""The client's loops against a verifier without models: the text is the plain loop's, whatever happens to the link."""

from __future__ import annotations

import contextlib
import functools

import pytest

from outrider_client.connection.link_state import LinkState
from outrider_client.core.config import UNLIMITED
from outrider_client.core.events import Committed, Finished, LinkChanged, RolledBack, Unverified, Verified, Warned
from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Sampling

from ..answers import is_offline, replayed
from ..conftest import EOS, MAX_CONTEXT, fake_models

PROMPT = [5, 9, 12, 3]
MODES = ["auto", "stop-and-wait", "proactive", "pipelined", "server-draft", "stream"]


async def collect(client, prompt=PROMPT, when_offline=lambda: None, **overrides):
    """All events; `when_offline` is called as the link is first lost."""
    events = []
    async with contextlib.aclosing(client.generate(prompt, **overrides)) as stream:
        async for event in stream:
            if is_offline(event) and not any(is_offline(earlier) for earlier in events):
                when_offline()
            events.append(event)
    return events


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("waits", [None, True, False])
async def test_answer_is_that_of_the_plain_loop(connect, language, mode, waits):
    for prompt, eos_at, num_tokens, reason in (
        (PROMPT, -1, 40, "limit"),
        (PROMPT, 23, 20, "eos"),
        ([1] * 190, -1, 10, "context"),
    ):
        language.eos_at = eos_at
        completion = await connect().complete(prompt, mode=mode, wait_for_features=waits)
        assert completion.token_ids == language.answer(prompt, num_tokens)
        assert (len(completion.token_ids), completion.reason) == (num_tokens, reason)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["cut_before", "cut_after"])
@pytest.mark.parametrize("verdict", [0, 1, 3, 6])
@pytest.mark.parametrize(("prompt", "forgets"), [(PROMPT, False), (PROMPT, True), (PROMPT * 12, True)])
async def test_verified_answer_survives_a_cut(connect, verifier, language, mode, when, verdict, prompt, forgets):
    """A long prompt's features come while the server writes alone."""
    setattr(verifier, when, {verdict})

    def die():
        verifier.down_for = 2
        if forgets:
            verifier.sessions.clear()

    events = await collect(connect(), prompt, when_offline=die, mode=mode, on_reconnect="verify")
    assert replayed(events) == list(language.answer(prompt, 40))
    assert events[-1].reason == "limit"
    assert events[-1].statistics.outages == 1
    assert events[-1].statistics.unverified == 0
    states = [event.state for event in events if isinstance(event, LinkChanged)]
    assert states[:2] == [LinkState.CONNECTING, LinkState.ONLINE]
    assert states[2] is LinkState.OFFLINE
    assert states[-2:] == [LinkState.RESUMING, LinkState.ONLINE]


@pytest.mark.parametrize("mode", MODES)
async def test_kept_tokens_stand_and_stay_marked(connect, verifier, language, mode):
    verifier.cut_before = {3}
    go_down = functools.partial(setattr, verifier, "down_for", 5)
    events = await collect(connect(), when_offline=go_down, mode=mode, on_reconnect="keep", offline_limit=9)
    tokens = replayed(events)
    unverified = [event for event in events if isinstance(event, Unverified)]
    assert unverified
    assert not any(isinstance(event, RolledBack | Verified) for event in events)
    assert events[-1].statistics.unverified == len(unverified)
    last = unverified[-1].first + 1
    standing = [*PROMPT, *tokens[:last]]
    assert tuple(tokens[last:]) == language.answer(standing, 40 - last)


@pytest.mark.parametrize("on_reconnect", ["keep", "verify"])
async def test_drafter_that_is_done_before_the_link_is_back(connect, verifier, language, on_reconnect):
    verifier.cut_before = {2}
    go_down = functools.partial(setattr, verifier, "down_for", 40)
    events = await collect(connect(), when_offline=go_down, on_reconnect=on_reconnect)
    assert isinstance(events[-1], Finished)
    assert not any(isinstance(event, Finished) for event in events[:-1])
    if on_reconnect == "keep":
        assert events[-1].reason == "unverified"
    else:
        assert replayed(events) == list(language.answer(PROMPT, 40))
        assert events[-1].reason == "limit"
    *_, last_change = [event for event in events if isinstance(event, LinkChanged)]
    assert last_change.state is LinkState.ONLINE


async def test_wrong_guesses_are_rolled_back_and_corrected(connect, verifier, language):
    verifier.cut_before = {2}
    events = await collect(connect(), when_offline=functools.partial(setattr, verifier, "down_for", 8))
    assert any(isinstance(event, RolledBack) for event in events)
    corrected = [event for event in events if isinstance(event, Committed) and event.origin == "corrected"]
    assert len(corrected) == 1
    assert events[-1].statistics.rolled_back > 0
    assert replayed(events) == list(language.answer(PROMPT, 40))


async def test_without_a_drafter(connect, verifier, language, bare_models):
    client = connect(models=bare_models)
    assert (await client.complete(PROMPT)).token_ids == language.answer(PROMPT, 40)
    assert verifier.opens[0].tap == ""
    verifier.cut_before = {verifier.num_verdicts + 3}
    events = await collect(client, [1, 2, 3])
    assert replayed(events) == list(language.answer([1, 2, 3], 40))
    assert not any(isinstance(event, Unverified) for event in events)
    verifier.cut_before = {verifier.num_verdicts + 4}
    go_down = functools.partial(setattr, verifier, "down_for", 10_000)
    *_, last = await collect(connect(models=bare_models), when_offline=go_down, wait_for_link_s=0.0)
    assert (last.reason, last.statistics.new_tokens) == ("link", 4)


async def test_next_turn_sends_only_what_is_new(connect, verifier, language):
    client = connect()
    first = await client.complete(PROMPT, max_new_tokens=10)
    prompt = [*PROMPT, *first.token_ids, 30, 31, 32]
    second = await client.complete(prompt)
    assert second.token_ids == language.answer(prompt, 40)
    turn = verifier.requests[first.statistics.target_calls]
    assert turn.base_len == len(PROMPT) + 9
    assert turn.context == (first.token_ids[-1], 30, 31)
    assert turn.features_from >= len(PROMPT)
    assert len(verifier.opens) == 1


async def test_a_sampling_survives_the_link(connect, verifier):
    client = connect()
    calls = (await client.complete(PROMPT, max_new_tokens=3)).statistics.target_calls
    verifier.cut_before = {calls + 1}
    await client.complete(PROMPT, temperature=0.5, seed=7)
    assert [frame.sampling for frame in verifier.opens] == [Sampling(), Sampling(0.5, seed=7)]
    assert [r.sampling for r in verifier.requests if r.sampling] == [Sampling(0.5, seed=7)]


async def test_another_sampling_opens_another_stream_of_an_older_server(connect, verifier):
    verifier.request_sampling = False
    client = connect()
    await client.complete(PROMPT, max_new_tokens=3)
    await client.complete(PROMPT, max_new_tokens=3, temperature=0.5, seed=7)
    assert [frame.sampling.temperature for frame in verifier.opens] == [0.0, 0.5]
    assert verifier.opens[1].session_id == "s1"


async def test_refusal_reaches_the_caller_and_ends_the_session(connect, verifier, language):
    verifier.refusal = Refusal(Reason.CONTEXT_FULL, "too long")
    client = connect()
    with pytest.raises(Refusal, match="too long"):
        await client.complete(PROMPT)
    verifier.refusal = None
    assert (await client.complete(PROMPT)).token_ids == language.answer(PROMPT, 40)
    assert verifier.opens[1].session_id == ""


async def test_text_follows_the_tokens_and_closing_says_goodbye(connect, verifier, models):
    verifier.cut_before = {2}
    client = connect()
    completion = await client.complete("hello", raw=True)
    assert completion.text == models.decode(completion.token_ids)
    await client.close()
    await client.close()
    assert not verifier.sessions


async def test_a_chat_goes_on_when_its_context_is_full(connect, language):
    turns = [{"role": role, "content": "abcdefgh" * 6} for role in ("user", "assistant")] * 2
    messages = [*turns, {"role": "user", "content": "abc"}]
    with pytest.raises(Refusal, match="context is 200"):
        await connect().complete([*messages, *messages], on_full_context="error")
    async with contextlib.aclosing(connect().generate(messages)) as events:
        said = [event async for event in events if isinstance(event, Warned | Finished)]
    assert [event.message for event in said[:-1]] == [
        "the conversation is longer than the context: its 2 oldest messages are left out"
    ]
    kept = fake_models(language, None).encode(messages[2:], raw=False)
    assert said[-1].statistics.new_tokens == len(language.answer(kept, 40))


async def test_without_a_limit_an_answer_ends_with_the_context(connect, language):
    completion = await connect().complete(PROMPT, max_new_tokens=UNLIMITED, mode="stream")
    expected = language.answer(PROMPT, 1000)[: MAX_CONTEXT - len(PROMPT)]
    assert completion.token_ids == expected
    assert completion.reason == ("context" if expected[-1] != EOS else "eos")
