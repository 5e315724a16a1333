"""Where an answer begins in what a server sends."""

import asyncio

import pytest

from outrider_netsim.core.answers import AnswerReader

SETTINGS = bytes((0, 0, 6, 4, 0, 0, 0, 0, 0)) + bytes(6)
ACKNOWLEDGED = bytes((0, 0, 0, 4, 1, 0, 0, 0, 0))
HEADERS = bytes((0, 0, 3, 1, 4, 0, 0, 0, 1)) + b"abc"


def message(stream, size=5):
    return size.to_bytes(3) + bytes((0, 0, 0, 0, 0, stream)) + bytes(size)


@pytest.mark.parametrize(
    ("before", "first"),
    [
        (b"", b"x"),
        (b"", b"HTTP/1.1 200 OK"),
        (b"", b"\x16\x03\x03"),  # TLS
        (b"\0\0", b"\x05 binary"),
        (SETTINGS + ACKNOWLEDGED + HEADERS + message(1), message(1)),
        (SETTINGS + message(1) + HEADERS + message(3), message(3)),
        (SETTINGS + message(1, 16_384) + message(1), message(1)),
    ],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_an_answer_begins_behind_what_opens_it(before, first, step):
    begun = asyncio.Event()
    reader = AnswerReader(begun)
    for at in range(0, len(before), step):
        reader.read(before[at : at + step])
        assert not begun.is_set()
    reader.read(first)
    assert begun.is_set()
