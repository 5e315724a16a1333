"""What paced features weigh: as much as wider rows would in the same codec, whatever they hold themselves."""

import zlib

import numpy as np
import pytest

from outrider_proto import wire
from outrider_proto.feature_codec import MANY_ROWS, encode_rows, rows_per_frame
from outrider_proto.frames import CODECS, Features
from outrider_proto.padding import padding, weight

WIDTH = 2048


def gaussian(num_rows, width):
    return np.random.default_rng(3).standard_normal((num_rows, width)).astype(np.float32)


def carried(messages):
    return [len(message.features.payload) + len(message.features.padding) for message in messages]


@pytest.mark.parametrize("num_rows", [1, 4, MANY_ROWS, MANY_ROWS + 1, 60])
@pytest.mark.parametrize("codec", CODECS)
def test_a_weight_is_that_of_other_gaussian_rows(codec, num_rows):
    assert weight(codec, num_rows, WIDTH) == pytest.approx(len(encode_rows(gaussian(num_rows, WIDTH), codec)), rel=0.05)


def test_a_piece_of_a_prompt_is_as_coarse_as_the_prompt():
    piece = len(encode_rows(gaussian(4, WIDTH), "lean", MANY_ROWS + 1))
    assert weight("lean", 4, WIDTH, of_rows=MANY_ROWS + 1) == pytest.approx(piece, rel=0.02)
    assert piece < 0.8 * weight("lean", 4, WIDTH)


@pytest.mark.parametrize("values", ["gaussian", "zero"])
@pytest.mark.parametrize("codec", CODECS)
def test_a_small_frame_weighs_no_more_than_wide_rows_do(codec, values):
    """Headers and tables of narrow rows are not counted again and again."""
    rows = gaussian(1, 64) if values == "gaussian" else np.zeros((1, 64), np.float32)
    messages = list(wire.server_frame_to_proto(Features(7, 11, rows, last=True, padded_width=WIDTH), codec))
    assert carried(messages) == [weight(codec, 1, WIDTH)]


@pytest.mark.parametrize("codec", CODECS)
def test_long_features_are_padded_frame_by_frame_below_the_limit(codec):
    rows = gaussian(300, 96)
    messages = list(wire.server_frame_to_proto(Features(7, 11, rows, last=True, padded_width=4096), codec))
    step = rows_per_frame(codec, 4096)
    assert [message.features.num_rows for message in messages[:-1]] == [step] * (len(messages) - 1)
    assert sum(carried(messages)) == pytest.approx(weight(codec, 300, 4096), rel=0.01)
    assert all(message.ByteSize() < wire.MAX_FRAME_BYTES for message in messages)


def test_padding_does_not_compress():
    filling = padding(100, "int8", 4, WIDTH, 4)
    assert len(zlib.compress(filling)) > len(filling) == weight("int8", 4, WIDTH) - 100


def test_what_is_heavier_already_is_not_padded():
    assert padding(10**6, "int8", 4, WIDTH, 4) == b""
