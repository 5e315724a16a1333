"""What strangers can write into a log."""

import logging

import pytest

from outrider_proto.terminal import log_limit
from outrider_proto.terminal.log_limit import LogLimit


@pytest.fixture
def written():
    """Two loggers that share a limit, and the lines that came through."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    loggers, limit = [logging.Logger("one"), logging.Logger("two")], LogLimit()
    for logger in loggers:
        logger.addFilter(limit)
        logger.addHandler(handler)
    return loggers, lines


def test_ten_lines_a_second_and_then_a_count(written, monkeypatch):
    (one, two), lines = written
    monkeypatch.setattr(log_limit.time, "monotonic", lambda: now)
    now = 7.2
    for number in range(500):
        (one if number % 2 else two).warning("line %d", number)
    assert lines == [f"line {number}" for number in range(10)]
    now = 8.0
    one.warning("100 %")
    two.warning("line %d", 501)
    assert lines[10:] == ["100 % (and 490 lines before it, left out)", "line 501"]
