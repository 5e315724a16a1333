"""The facade without async: its own loop in its own thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outrider_client import AsyncClient, Client, LinkState
from outrider_client.connection.transport import LocalTransport
from outrider_client.core.events import Committed, Finished
from outrider_proto.errors import LinkError, Refusal, UsageError

PROMPT = [5, 9, 12, 3]


@pytest.fixture
def client(verifier, models, fast):
    transport = LocalTransport(verifier.describe, verifier.session)
    with Client(fast, models=models, transport=transport) as client:
        yield client


def test_complete_and_generate(client, language):
    assert client.complete(PROMPT, max_new_tokens=9).token_ids == language.answer(PROMPT, 9)
    events = list(client.generate(PROMPT))
    tokens = [token for event in events if isinstance(event, Committed) for token in event.tokens]
    assert tuple(tokens) == language.answer(PROMPT, 40)
    assert isinstance(events[-1], Finished)


def test_errors_reach_the_caller(client, verifier):
    with pytest.raises(UsageError):
        client.complete([])
    verifier.down_for = 1
    with pytest.raises(LinkError):
        list(client.generate(PROMPT))


def test_closing_ends_what_another_thread_waits_for(client, verifier):
    begun, proceed = threading.Event(), threading.Event()

    def read() -> None:
        events = client.generate(PROMPT, mode="stream", max_new_tokens=150)
        next(events)
        begun.set()
        proceed.wait(10)
        list(events)

    with ThreadPoolExecutor() as threads:
        reading = threads.submit(read)
        assert begun.wait(10)
        verifier.flowing.clear()  # the answer cannot end by itself
        asking = threads.submit(client.complete, PROMPT)
        client.close()
        proceed.set()
        with pytest.raises(UsageError, match="closed"):
            reading.result(10)
        with pytest.raises(UsageError, match=r"closed|already"):
            asking.result(10)
    assert not client._thread.is_alive()
    assert client.link_state is LinkState.CLOSED
    with pytest.raises(UsageError, match="closed"):
        client.complete(PROMPT)


SCRIPT = """
    from conftest import FAST, FakeDrafter, FakeVerifier, Language, fake_models
    from outrider_client import Client, LocalTransport

    language = Language()
    verifier = FakeVerifier(language)
    transport = LocalTransport(verifier.describe, verifier.session)
    client = Client(FAST, models=fake_models(language, FakeDrafter(language)), transport=transport)
    events = client.generate([5, 9, 12, 3])
    print(type(next(events)).__name__)
    {end}
"""


@pytest.mark.parametrize("end", ["pass", "client.close()"])
def test_a_script_that_leaves_an_answer_open_ends(end):
    script = textwrap.dedent(SCRIPT).format(end=end)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "LinkChanged\n", "")


@pytest.mark.parametrize(
    "prompt",
    [[], "  ", [1] * 200, [10**6], [1, "x"], [1.5], 7, None, [{"role": "user"}], [{"role": "user", "content": 1}]],
)
def test_a_mistake_in_the_prompt_costs_the_session_nothing(client, verifier, language, prompt):
    first = client.complete(PROMPT, max_new_tokens=9).token_ids
    with pytest.raises(UsageError if prompt != [1] * 200 else Refusal):
        client.complete(prompt)
    assert client.link_state is LinkState.ONLINE
    client.complete([*PROMPT, *first])
    assert len(verifier.opens) == 1
    assert verifier.requests[-1].base_len > len(PROMPT)


def test_one_client_in_two_event_loops(verifier, models, fast, language):
    client = AsyncClient(fast, models=models, transport=LocalTransport(verifier.describe, verifier.session))
    first = asyncio.run(client.complete(PROMPT, max_new_tokens=9)).token_ids
    turn = [*PROMPT, *first, 7]
    assert asyncio.run(client.complete(turn)).token_ids == language.answer(turn, 40)
    assert verifier.opens[1].session_id == "s1"
    asyncio.run(client.close())


async def test_two_event_loops_at_once(connect):
    client = connect()
    await client.complete(PROMPT, max_new_tokens=3)
    with pytest.raises(UsageError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, client.complete(PROMPT))
