"""Sending order of a stream: features come after everything else, and leave in pieces."""

import numpy as np
import pytest

from outrider_proto.feature_codec import LEAN, LEANER, MANY_ROWS
from outrider_proto.frames import Features, Pong, Verdict
from outrider_proto.quantize import dequantize_grouped, quantize_grouped
from outrider_proto.wire import server_frame_from_proto, server_frame_to_proto
from outrider_server.sessions.stream_writer import StreamWriter


def waiting(num_rows: int, width: int, **more) -> Features:
    rows = np.arange(num_rows * width, dtype=np.float32).reshape(num_rows, width)
    return Features(1, 7, rows, last=True, tap_us=9, **more)


async def test_long_features_leave_in_pieces_and_a_verdict_overtakes_them():
    stream, features = StreamWriter(), waiting(300, 256)
    stream.send(features)
    stream.wind_down()
    sent = []
    async for frame in stream.frames():
        sent.append(frame)
        if len(sent) == 2:
            stream.send(Verdict(2, (), 5))
            stream.send(Pong(3))
    assert sent[2:4] == [Verdict(2, (), 5), Pong(3)]
    pieces = sent[:2] + sent[4:]
    assert [len(piece.rows) for piece in pieces] == [64, 64, 64, 64, 44]
    assert [piece.first for piece in pieces] == [7, 71, 135, 199, 263]
    assert [(piece.last, piece.tap_us) for piece in pieces] == [(False, 0)] * 4 + [(True, 9)]
    assert {piece.of_rows for piece in pieces} == {300}
    assert np.array_equal(np.concatenate([piece.rows for piece in pieces]), features.rows)


@pytest.mark.parametrize(("width", "padded", "rows"), [(96, 0, 170), (96, 2048, 8), (40_000, 0, 1), (96, 40_000, 1)])
async def test_a_piece_is_of_what_the_wire_carries(width, padded, rows):
    pieces = await sent(waiting(200, width, padded_width=padded))
    assert [len(piece.rows) for piece in pieces[:-1]] == [rows] * (len(pieces) - 1)
    assert sum(len(piece.rows) for piece in pieces) == 200
    assert {piece.padded_width for piece in pieces} == {padded}


async def sent(features: Features) -> list[Features]:
    stream = StreamWriter()
    stream.send(features)
    stream.wind_down()
    return [frame async for frame in stream.frames()]


def as_received(pieces: list[Features]) -> np.ndarray:
    messages = [message for piece in pieces for message in server_frame_to_proto(piece, "lean")]
    return np.concatenate([server_frame_from_proto(message).rows for message in messages])


@pytest.mark.parametrize(("num_rows", "rule"), [(MANY_ROWS, LEAN), (MANY_ROWS + 4, LEANER)])
async def test_pieces_are_coded_as_the_whole_would_be(num_rows, rule):
    """Each piece has fewer rows than a prompt; a codec that asks must be told of the whole."""
    rows = np.random.default_rng(0).standard_normal((num_rows, 2048)).astype(np.float32)
    pieces = await sent(Features(1, 7, rows, last=True))
    assert [len(piece.rows) for piece in pieces[:-1]] == [8] * (len(pieces) - 1)
    assert {piece.of_rows for piece in pieces} == {num_rows}
    assert np.array_equal(as_received(pieces), dequantize_grouped(quantize_grouped(rows, rule), num_rows, 2048))
