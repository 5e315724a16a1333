"""Findings of the patterns, without a language model and without the network."""

from __future__ import annotations

import logging
import socket

import pytest

from outrider_client.core.prompt import Segment
from outrider_proto.errors import UsageError

pytest.importorskip("presidio_analyzer")

TEXT = (
    "Mail ann.lee@example.org or call +1 212 555 0123, card 4111 1111 1111 1111, IBAN DE89370400440532013000, at 10:30."
)
FOUND = [
    ("ann.lee@example.org", "EMAIL"),
    ("+1 212 555 0123", "PHONE"),
    ("4111 1111 1111 1111", "CARD"),
    ("DE89370400440532013000", "IBAN"),
]


@pytest.fixture(scope="module")
def detector():
    from outrider_client.privacy.detector import Detector

    return Detector()


def test_what_has_a_form_is_found(detector, monkeypatch, caplog):
    def refuse(*_):
        raise AssertionError("the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    caplog.set_level(logging.DEBUG)
    segments = detector.mark([Segment(TEXT), Segment("x@example.org", private=True, kind="OTHER")])
    assert [(segment.text, segment.kind) for segment in segments if segment.private] == [
        *FOUND,
        ("x@example.org", "OTHER"),
    ]
    assert "".join(segment.text for segment in segments[:-1]) == TEXT
    assert not any("ann.lee" in record.getMessage() or "DE89" in record.getMessage() for record in caplog.records)


def test_ordinary_numbers_are_left(detector):
    text = "In 2024, 12 of 345 answers were 3.14; see foo@bar or version 1.2."
    assert detector.mark([Segment(text)]) == (Segment(text),)
    assert detector.mark([]) == ()


def test_without_presidio_it_says_what_to_install(monkeypatch):
    import sys

    from outrider_client.privacy.detector import Detector

    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    with pytest.raises(UsageError, match=r"pip install 'outrider\[pii\]'"):
        Detector()
