"""Observers that fail: the server goes on, and says so once."""

import logging

import pytest
from talk import PROMPT, conversing, serving

from outrider_proto.errors import Reason
from outrider_server.telemetry.access_log import AccessLog
from outrider_server.telemetry.observer import ObserverGroup, ServerObserver, StreamObserver


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


def test_calls_that_are_no_streams_are_guarded_too(caplog):
    watched = Counting()
    observers = ObserverGroup([Broken(), watched])
    observers.refused(Reason.NO_KEY)
    observers.received(7)
    observers.sent(7)
    assert watched.calls == ["refused", "received", "sent"]
    assert len(caplog.records) == 1


def test_what_is_no_failure_passes():
    class Stopped(ServerObserver):
        def received(self, num_bytes: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ObserverGroup([Stopped()]).received(7)
