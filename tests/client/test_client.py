"""The facade without async: its own loop in its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socketserver
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from outrider_client import AsyncClient, Client, LinkState
from outrider_client.connection.transport import LocalTransport
from outrider_proto.errors import LinkError, Refusal, UsageError

PROMPT = [5, 9, 12, 3]
BAD_PROMPTS = ([], "  ", "caf\udce9", b"hi", [True], [10**6], [1, "x"], [1.5], 7, None)
BAD_ADDRESSES = ("", "edge:", ":5", "edge:0", "edge:65536", "edge:five", "a b", "edge/x", "[::1", "[::g]:5", "1:2:3")


@pytest.fixture
def client(verifier, models, fast):
    transport = LocalTransport(verifier.describe, verifier.session)
    with Client(fast, models=models, transport=transport) as client:
        yield client


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
        with pytest.raises(UsageError, match="closed"):
            asking.result(10)
    assert not client._thread.is_alive()
    assert client.link_state is LinkState.CLOSED
    with pytest.raises(UsageError, match="closed"):
        client.complete(PROMPT)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (None, "127.0.0.1:50051"),
        ("edge.example.org", "edge.example.org:50051"),
        ("edge:7", "edge:7"),
        ("[::1]:7", "[::1]:7"),
        ("[::1]", "[::1]:50051"),
        ("fe80::1%eth0", "[fe80::1%eth0]:50051"),
        ("https://edge:1", "server='https://edge:1': need HOST or HOST:PORT, without https://"),
        *((bad, f"server={bad!r}: need HOST or HOST:PORT, such as 127.0.0.1:50051") for bad in BAD_ADDRESSES),
        (5, "config is of type int: give a ClientConfig, or HOST:PORT as text"),
    ],
)
def test_a_client_of_an_address(given, address):
    try:
        with Client(given) as client:
            named = client._client.config.server
    except UsageError as error:
        named = str(error)
    assert named == address


class HangsUp(socketserver.BaseRequestHandler):
    said = b""

    def handle(self) -> None:
        self.request.sendall(self.said)
        self.request.recv(1)


class SaysHttp(HangsUp):
    said = b"HTTP/1.1 400 Bad Request\r\n\r\n"


@pytest.mark.parametrize("ask", ["describe", "complete"])
@pytest.mark.parametrize(
    ("listening", "why"),
    [
        (None, "no server listens there; is outrider-server running?"),
        (HangsUp, "what listens there hangs up; is it an outrider-server?"),
        (SaysHttp, "what listens there is no Outrider server; is the port right?"),
    ],
)
def test_a_server_out_of_reach_is_told_in_plain_words_with_its_cause(models, listening, why, ask):
    with contextlib.ExitStack() as stack:
        address = "127.0.0.1:1"
        if listening is not None:
            server = stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", 0), listening))
            threading.Thread(target=server.serve_forever, args=(0.01,)).start()
            stack.callback(server.shutdown)
            address = "127.0.0.1:{1}".format(*server.server_address)
        client = stack.enter_context(Client(address, models=models))
        with pytest.raises(LinkError) as failed:
            client.describe() if ask == "describe" else client.complete(PROMPT)
    assert str(failed.value) == f"cannot reach {address}: {why}"
    cause = failed.value
    while cause.__cause__ is not None:
        cause = cause.__cause__
    assert isinstance(cause, grpc.RpcError)


def test_answers_begun_at_once_have_a_session_each_and_never_more_than_allowed(verifier, models, fast, language):
    transport = LocalTransport(verifier.describe, verifier.session)
    prompts = [[*PROMPT, token] for token in range(1, 10)]
    with Client(fast, models=models, transport=transport, sessions=3) as client, ThreadPoolExecutor(9) as threads:
        unread = [client.generate(prompt) for prompt in prompts]  # begun, and read to their ends by nobody
        for events in unread:
            next(events)
        answers = list(threads.map(client.complete, prompts))
        assert [answer.token_ids for answer in answers] == [language.answer(prompt, 40) for prompt in prompts]
        assert len(verifier.opens) <= 3
        again = client.complete([*prompts[4], *answers[4].token_ids, 7])
    assert again.token_ids == language.answer([*prompts[4], *answers[4].token_ids, 7], 40)
    with pytest.raises(UsageError, match="sessions=0: need at least 1"):
        Client(sessions=0)


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
    [*BAD_PROMPTS, [1] * 200, [{"role": "user"}], [{"role": "user", "content": 1}]],
)
def test_a_mistake_in_the_prompt_costs_the_session_nothing(client, verifier, language, prompt):
    first = client.complete(PROMPT, max_new_tokens=9).token_ids
    with pytest.raises(UsageError if prompt != [1] * 200 else Refusal):
        client.complete(prompt)
    assert client.link_state is LinkState.ONLINE
    client.complete([*PROMPT, *first])
    assert len(verifier.opens) == 1
    assert verifier.requests[-1].base_len > len(PROMPT)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_needs_a_client_of_its_own(client):
    events = client.generate(PROMPT)
    next(events)

    def ask() -> None:
        with pytest.raises(UsageError, match="belongs to the process that made it: start others by spawn"):
            client.complete(PROMPT)
        events.close()
        client.close()

    child = multiprocessing.get_context("fork").Process(target=ask)
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert client.complete(PROMPT).token_ids


def test_without_asyncios_loop_an_async_client_says_so(fast):
    answering = AsyncClient(fast).complete(PROMPT)  # as trio would run it
    with pytest.raises(UsageError, match="AsyncClient runs on asyncio's event loop: elsewhere use Client"):
        answering.send(None)


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
