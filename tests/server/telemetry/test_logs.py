"""Logs: their form, the line of every stream, and what never is in them; and observers that fail: the server goes on,
and says so once."""

import asyncio
import io
import json
import logging
import queue
import re
from logging.handlers import QueueHandler

import pytest
from talk import PROMPT, conversing, serving
from watched import client_of, server_config

from outrider_proto.terminal import log_limit
from outrider_proto.terminal.log_limit import BY_STRANGERS
from outrider_server.rpc.server import Server
from outrider_server.telemetry.logs import AccessLog, JsonFormatter, StrangersFilter, start_logging
from outrider_server.telemetry.observer import ObserverGroup, ServerObserver, StreamObserver


@pytest.fixture
def lines():
    """What a logger and those below it have said so far, as JSON."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    former = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)

    def of(logger: str) -> list[dict]:
        entries = [json.loads(line) for line in stream.getvalue().splitlines()]
        return [entry for entry in entries if entry["logger"].startswith(logger)]

    yield of
    root.removeHandler(handler)
    root.setLevel(former)


async def test_every_stream_that_ends_leaves_a_line_without_tokens_text_or_whole_sessions(lines):
    async with Server.build(server_config()) as server:
        async with client_of(server) as client:
            completion = await client.complete((61, 59, 53))
        await asyncio.wait_for(server.verifier.drained(), 60)
        ours = lines("outrider_server.access")
    assert len(ours) == 1
    entry = ours[0]
    assert entry["level"] == "info"
    assert entry["time"].endswith("+00:00")
    assert len(entry["session"]) == 8
    assert (entry["key"], entry["resumed"], entry["reason"]) == ("", False, "closed")
    assert entry["requests"] == entry["verdicts"] == completion.statistics.target_calls
    assert entry["tokens"] >= completion.statistics.new_tokens
    assert entry["duration_s"] > 0
    assert f"session {entry['session']} ended after" in entry["message"]
    text = json.dumps(lines("outrider_server"))
    assert str([61, 59, 53])[1:-1] not in text
    assert str(list(completion.token_ids))[1:-1] not in text


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("outrider_server.security.authenticator", {"extra": {BY_STRANGERS: True}}),
        ("outrider_server.rpc.service", {"exc_info": ValueError("found by a stranger")}),
        ("grpc._cython.cygrpc", {}),
    ],
)
def test_what_anybody_can_cause_is_ten_lines_a_second_and_a_count(name, about, monkeypatch):
    monkeypatch.setattr(log_limit.time, "monotonic", lambda: second)
    said = queue.SimpleQueue()
    handler = QueueHandler(said)
    handler.addFilter(StrangersFilter())
    root, logger = logging.getLogger(), logging.getLogger(name)
    root.addHandler(handler)
    try:
        for second in range(2):  # noqa: B007 # the clock reads it
            for number in range(50):
                logger.error("no. %d", number, **about)
                logging.getLogger("outrider_server.access").error("of a session")
    finally:
        root.removeHandler(handler)
    lines = [re.split(r"\n| ValueError", said.get().getMessage())[0] for _ in range(said.qsize())]
    assert lines.count("of a session") == 100
    first = [f"no. {number}" for number in range(10)]
    counted = ["no. 0 (and 40 lines before it, left out)", *first[1:]]
    assert [line for line in lines if line != "of a session"] == [*first, *counted]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_process_logs_to_stderr(log_format, capsys):
    root = logging.getLogger()
    former, level = root.handlers[:], root.level
    try:
        start_logging(log_format, "info")
        logging.getLogger("outrider_server").info("here")
        logging.getLogger("outrider_server").debug("not here")
    finally:
        root.handlers[:] = former
        root.setLevel(level)
    heard = capsys.readouterr().err
    assert heard.count("\n") == 1
    if log_format == "json":
        assert json.loads(heard)["message"] == "here"
    else:
        assert heard == "INFO outrider_server: here\n"


class Broken(ServerObserver, StreamObserver):
    """Fails at whatever it is told from `after` calls on; streams are `watched` until then."""

    def __init__(self, after: int = 0) -> None:
        self.left = after

    def stream(self):
        self.fail()
        return self

    def fail(self, *told, **named) -> None:
        if self.left == 0:
            raise OSError(28, "No space left on device")
        self.left -= 1

    refused = received = sent = stepped = opened = asked = answered = ended = fail


class Counting(ServerObserver, StreamObserver):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def stream(self):
        self.calls.append("stream")
        return self

    def __getattribute__(self, name: str):
        if name in {"refused", "received", "sent", "stepped", "opened", "asked", "answered", "ended"}:
            return lambda *told, **named: self.calls.append(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("after", range(8))
async def test_a_failing_observer_ends_no_stream_and_not_the_engine_thread(after, truth, caplog):
    others = Counting(), Counting()
    observer = ObserverGroup([others[0], Broken(after), AccessLog(), others[1]])
    async with serving(observer=observer) as verifier:
        for _ in range(2):
            async with conversing(verifier) as talk:
                verdicts = await talk.decode(0, PROMPT[:-1], PROMPT[-1], 3)
                assert [verdict.bonus for verdict in verdicts] == truth[:3]
        assert verifier.alive
    (failed,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert failed.getMessage() == "Broken failed; the server goes on, and what it reports may be wrong"
    assert isinstance(failed.exc_info[1], OSError)
    assert sorted(others[0].calls) == sorted(others[1].calls)
    assert others[0].calls.count("ended") == 2
    assert others[0].calls.count("stepped") == 6
