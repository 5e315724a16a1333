"""Answers to private prompts: who writes them, what the server is asked, and what is left behind."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from outrider_client import Client
from outrider_client.cli import app as cli
from outrider_client.connection.transport import LocalTransport
from outrider_client.core.events import LinkChanged, Private, Warned
from outrider_client.core.prompt import PromptMessage, Segment
from outrider_client.drafting.drafting_thread import DraftingThread
from outrider_client.privacy.detector import Detector
from outrider_drafters.families.lookup.family import LookupDrafter
from outrider_proto.errors import Reason, Refusal, UsageError
from outrider_proto.frames import Draft

from ..conftest import EOS, FAST, VOCAB, FakeDrafter, Language, Letters, fake_models

SAFE, SECRET = "thesafepart", "quokka"
PROMPT = (Segment(SAFE), Segment(SECRET, private=True), Segment("more"))
SAFE_TOKENS = (EOS, *Letters().encode(SAFE))
WHOLE_TOKENS = (*SAFE_TOKENS, *Letters().encode(SECRET + "more"))


def alone(language: Language, limit: int = FAST.max_new_tokens) -> tuple[int, ...]:
    """The drafter's answer to the whole prompt."""
    state = FakeDrafter(language).new_state()
    state.append(WHOLE_TOKENS)
    while len(state.tokens) < len(WHOLE_TOKENS) + limit and state.tokens[len(WHOLE_TOKENS) :][-1:] != [EOS]:
        state.append([int(state.root_logits().argmax())])
    return tuple(state.tokens[len(WHOLE_TOKENS) :])


async def events_of(client, prompt=PROMPT, **overrides):
    return [event async for event in client.generate(prompt, **overrides)]


@pytest.mark.parametrize("mode", ["auto", "stop-and-wait", "stream"])
async def test_the_drafter_writes_alone_on_everything_and_leaves_nothing_behind(connect, verifier, language, mode):
    client = connect()
    completion = await client.complete(PROMPT, mode=mode)
    assert completion.token_ids == alone(language)
    assert completion.token_ids[-1] == EOS
    assert (set(completion.origins), completion.reason) == ({"private"}, "private")
    assert completion.statistics.unverified == completion.statistics.new_tokens == len(completion.token_ids)
    assert completion.segments == (Segment(completion.text, private=True),)
    [request] = verifier.requests
    assert isinstance(request, Draft)
    assert (*request.context, request.root) == SAFE_TOKENS
    assert not request.tree.tokens
    context = client._context
    assert tuple(context.transcript.tokens[: len(SAFE_TOKENS)]) == SAFE_TOKENS
    assert len(context.transcript.tokens) == len(SAFE_TOKENS) + 1  # the target's own next token
    assert context.drafting._tokens == context.fallback_drafter._tokens == []
    assert (await connect().complete(PROMPT, mode=mode, max_new_tokens=5)).token_ids == alone(language, 5)


async def test_it_has_the_targets_features_of_the_safe_prefix_and_no_connection_while_it_writes(connect, monkeypatch):
    known, client = [], connect()
    write = DraftingThread.write

    async def watched(self, *given):
        token = await write(self, *given)
        known.append((self.num_features, client._context.session.is_connected))
        return token

    monkeypatch.setattr(DraftingThread, "write", watched)
    async for event in client.generate(PROMPT, max_new_tokens=3):
        assert not isinstance(event, Private) or not client._context.session.is_connected
    assert known == [(len(SAFE_TOKENS), False)] * 3


async def test_of_the_same_safe_prefix_only_features_are_asked_again_and_the_next_turn_stays_here_too(
    connect, verifier
):
    client = connect()
    first = await client.complete(PROMPT)
    await client.complete((Segment(SAFE), Segment("other", private=True)))
    turns = [
        PromptMessage(role="user", content=PROMPT),
        PromptMessage(role="assistant", content=first.segments),
        PromptMessage(role="user", content="go on"),
    ]
    assert (await client.complete(turns)).reason == "private"
    assert [request.root for request in verifier.requests] == [SAFE_TOKENS[-1]] * 3
    for again in verifier.requests[1:]:
        assert (again.base_len, again.context, again.features_from) == (len(SAFE_TOKENS) - 1, (), 0)


async def test_cut_before_the_verdict_it_asks_again(connect, verifier, language):
    verifier.cut_before = {0}
    verifier.down_for = 0
    completion = await connect().complete(PROMPT)
    assert completion.token_ids == alone(language)
    first, again = verifier.requests
    assert (*first.context, first.root) == SAFE_TOKENS
    assert (again.base_len, again.context, again.root) == (len(SAFE_TOKENS) - 1, (), SAFE_TOKENS[-1])


async def test_link_that_stays_away_leaves_it_without_features(connect, verifier, fast):
    verifier.cut_before = {0}
    client = connect(replace(fast, wait_for_link_s=0.05))
    await client.complete("hello", mode="stream", max_new_tokens=1)
    verifier.cut_before, verifier.down_for = set(range(1, 100)), 10**6
    events = await events_of(client)
    assert any(isinstance(event, Warned) and "without its features" in event.message for event in events)
    assert events[-1].reason == "private"


@pytest.mark.parametrize(
    ("prompt", "overrides"), [(PROMPT, {"mode": "offline"}), ((Segment(SECRET, True),), {"raw": True})]
)
async def test_without_a_safe_part_the_server_is_not_asked(connect, verifier, prompt, overrides):
    events = await events_of(connect(), prompt, **overrides)
    assert events[-1].reason == "private"
    assert not verifier.opens
    assert not any(isinstance(event, LinkChanged) and event.state.value == "online" for event in events)


async def test_who_cannot_write_says_what_would_help(connect, bare_models, verifier):
    with pytest.raises(UsageError, match="privacy=placeholder") as refused:
        await connect(models=bare_models).complete(PROMPT)
    assert SECRET not in str(refused.value)
    assert not verifier.requests


async def test_too_long_is_refused_before_anything_is_sent(connect, verifier):
    with pytest.raises(Refusal) as refused:
        await connect().complete((Segment(SAFE), Segment(SECRET * 100, private=True)))
    assert refused.value.reason is Reason.CONTEXT_FULL
    assert str(200) in refused.value.message
    assert str(len(SECRET) * 100) not in refused.value.message
    assert not verifier.opens


@pytest.mark.parametrize("private", [SECRET, "abcabc", SECRET * 100])
async def test_what_it_cannot_answer_leaves_the_session_as_it_is(connect, language, verifier, private):
    """Failure of the drafter depends on the private text, so the server must not see it."""
    client = connect(models=fake_models(language, LookupDrafter(VOCAB)))
    await client.complete("hello", mode="stream")
    with contextlib.suppress(UsageError, Refusal):
        await client.complete((Segment(SAFE), Segment(private, private=True)))
    await client.complete("hello again", mode="stream")
    assert [opened.session_id for opened in verifier.opens][1:] == ["s1"] * (len(verifier.opens) - 1)
    assert set(verifier.sessions) == {"s1"}


@pytest.mark.parametrize("options", [[], ["--no-fences"], ["--detect-pii"]])
def test_the_command_says_what_stays_here(verifier, models, monkeypatch, capsys, options):
    transport = LocalTransport(verifier.describe, verifier.session)
    monkeypatch.setattr(
        "outrider_client.client.Client",
        lambda config: Client(replace(FAST, mode=config.mode), models=models, transport=transport),
    )
    monkeypatch.setattr(Detector, "__init__", lambda self: setattr(self, "_recognizers", {}))
    runner = CliRunner()
    done = runner.invoke(cli.app, ["generate", f"{SAFE}<<private: {SECRET}>>", *options])
    assert done.exit_code == 0
    sent = [token for request in verifier.requests for token in (*request.context, request.root)]
    assert (done.stderr.count("the drafter wrote this answer alone") == 1) == (options != ["--no-fences"])
    assert (done.stderr.count("outrider: private: PRIVATE\n") == 1) == (options != ["--no-fences"])
    assert (tuple(sent) == SAFE_TOKENS) == (options != ["--no-fences"])
