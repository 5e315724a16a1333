"""The facade without async: its own loop in its own thread."""

from __future__ import annotations

import itertools

import pytest

from outrider_client import Client
from outrider_client.connection.transport import LocalTransport
from outrider_client.core.events import Committed, Finished
from outrider_proto.errors import LinkError, UsageError

PROMPT = [5, 9, 12, 3]


@pytest.fixture
def client(verifier, models, fast):
    transport = LocalTransport(verifier.describe, verifier.session)
    with Client(fast, models=models, transport=transport) as client:
        yield client


def test_complete(client, language):
    assert client.complete(PROMPT, max_new_tokens=9).token_ids == language.answer(PROMPT, 9)


def test_generate(client, language):
    events = list(client.generate(PROMPT))
    tokens = [token for event in events if isinstance(event, Committed) for token in event.tokens]
    assert tuple(tokens) == language.answer(PROMPT, 40)
    assert isinstance(events[-1], Finished)


def test_stopping_half_way_keeps_the_session(client, verifier, language):
    events = client.generate(PROMPT)
    list(itertools.islice(events, 6))
    events.close()
    assert client.complete([*PROMPT, 1]).token_ids == language.answer([*PROMPT, 1], 40)
    assert len(verifier.opens) == 1


def test_an_interrupt_ends_the_request(client, language):
    events = client.generate(PROMPT)
    next(events)
    with pytest.raises(KeyboardInterrupt):
        events.throw(KeyboardInterrupt())
    assert client.complete(PROMPT).token_ids == language.answer(PROMPT, 40)


def test_errors_reach_the_caller(client, verifier):
    with pytest.raises(UsageError):
        client.complete([])
    verifier.down_for = 1
    with pytest.raises(LinkError):
        list(client.generate(PROMPT))


def test_describe_and_closing_twice(client):
    assert client.describe().target_name == "fake"
    client.close()
    client.close()
