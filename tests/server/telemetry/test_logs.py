"""Logs: their form, the line of every stream, and what never is in them."""

import asyncio
import io
import json
import logging

import pytest
from watched import PROMPT, client_of, server_config

from outrider_proto.errors import Reason
from outrider_server.rpc.server import Server
from outrider_server.telemetry.access_log import AccessLog
from outrider_server.telemetry.logs import JsonFormatter, start_logging


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


async def test_every_stream_that_ends_leaves_a_line(lines):
    async with Server.build(server_config()) as server:
        async with client_of(server) as client:
            completion = await client.complete(PROMPT)
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


async def test_neither_tokens_nor_text_nor_whole_sessions_are_logged(lines):
    async with Server.build(server_config()) as server:
        async with client_of(server) as client:
            completion = await client.complete((61, 59, 53))
        await asyncio.wait_for(server.verifier.drained(), 60)
    text = json.dumps(lines("outrider_server"))
    assert str([61, 59, 53])[1:-1] not in text
    assert str(list(completion.token_ids))[1:-1] not in text


def test_an_error_is_one_line_with_its_traceback(lines):
    try:
        raise ValueError("so\nit is")
    except ValueError as error:
        logging.getLogger("outrider_server.x").error("it failed: %d", 3, exc_info=error)
    (entry,) = lines("outrider_server.x")
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "outrider_server.x", "it failed: 3")
    assert entry["traceback"].endswith("ValueError: so\nit is")


def test_a_field_never_hides_what_every_line_has(lines):
    logging.getLogger("outrider_server.x").warning("told", extra={"fields": {"level": "none", "mine": 1}})
    (entry,) = lines("outrider_server.x")
    assert (entry["level"], entry["mine"]) == ("warning", 1)


def test_refused_calls(lines):
    AccessLog().refused(Reason.SERVER_FULL)
    assert lines("outrider_server.access")[0]["reason"] == "server_full"


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
