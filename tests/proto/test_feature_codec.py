"""The feature codec: bounded loss one way, bounded memory the other."""

import tracemalloc
import zlib

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from outrider_proto import wire
from outrider_proto.entropy import huffman
from outrider_proto.errors import Reason, Violation
from outrider_proto.feature_codec import (
    LEANER,
    MANY_ROWS,
    MAX_PAYLOAD_BYTES,
    MAX_RAW_BYTES,
    decode_rows,
    encode_rows,
    padding,
    raw_bytes_per_row,
    rows_per_frame,
    typical_payload_bytes,
)
from outrider_proto.frames import CODECS, Features
from outrider_proto.quantize import quantize_grouped

rows = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 9), st.integers(1, 133)), elements=st.floats(-1e4, 1e4, width=32)
)
OCTAVE_EIGHTH = 2 ** (1 / 8)  # step sizes come in these, rounded up
SMALLEST_STEP = 2.0**-20
WIDTH = 2048


def there_and_back(values, codec):
    return decode_rows(encode_rows(values, codec), codec, *values.shape)


def by_group(values, measure):
    """[n, width]: `measure` of each value's group of 64."""
    groups = [values[:, first : first + 64] for first in range(0, values.shape[1], 64)]
    return np.concatenate([np.broadcast_to(measure(group), group.shape) for group in groups], axis=1)


def absmax(group):
    return np.abs(group).max(axis=1, keepdims=True)


def rms(group):
    return np.sqrt(np.square(group, dtype=np.float64).mean(axis=1, keepdims=True))


def gaussian(num_rows, width, seed=0):
    return np.random.default_rng(seed).standard_normal((num_rows, width)).astype(np.float32)


@given(rows)
def test_float32_is_exact(values):
    assert np.array_equal(there_and_back(values, "float32"), values)


@given(rows)
def test_bf16_errs_by_half_a_unit_in_its_last_place(values):
    assert (np.abs(there_and_back(values, "bf16") - values) <= np.abs(values) * 2.0**-8 + 2.0**-126).all()


def test_bf16_rounds_to_even_and_stays_finite():
    values = np.array([[1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -3.4e38]], dtype=np.float32)
    assert there_and_back(values, "bf16")[0].tolist()[:2] == [1.0, 1 + 2**-6]
    assert np.isfinite(there_and_back(values, "bf16")).all()


@given(rows)
def test_int8_errs_by_about_half_a_step_of_its_row(values):
    step = np.abs(values).max(axis=1, keepdims=True) / 127
    # float16 rounds the scale by up to 2**-11 of itself (or 2**-25 near zero), times 127 steps
    assert (np.abs(there_and_back(values, "int8") - values) <= step * 0.57 + 127 * 2.0**-24).all()


@given(
    rows,
    st.sampled_from(
        [("int8-grouped", absmax, 1 / 127), ("int4-grouped", absmax, 1 / 7), ("lean", rms, 0.4), ("leaner", rms, 0.8)]
    ),
)
def test_grouped_ones_err_by_half_a_step_of_their_group(values, how):
    codec, measure, share = how
    step = np.maximum(by_group(values, measure) * share, SMALLEST_STEP) * OCTAVE_EIGHTH
    assert (np.abs(there_and_back(values, codec) - values) <= step * 0.5001).all()


def test_leaner_is_for_a_reply_what_lean_is_for_a_prompt():
    reply = gaussian(4, 128)
    assert encode_rows(reply, "leaner") == encode_rows(reply, "lean", of_rows=MANY_ROWS + 1)
    assert len(encode_rows(reply, "leaner")) < 0.8 * len(encode_rows(reply, "lean"))


def test_lean_is_coarser_for_the_many_rows_of_a_prompt():
    values = gaussian(MANY_ROWS + 1, 128)
    reply, prompt = (np.abs(there_and_back(part, "lean") - part).mean() for part in (values[:-1], values))
    assert 1.6 < prompt / reply < 2.4
    piece = values[:8]
    assert encode_rows(piece, "lean", of_rows=MANY_ROWS + 1) == coarse(piece)


def coarse(piece) -> bytes:
    return huffman(quantize_grouped(piece, LEANER))


@pytest.mark.parametrize("codec", CODECS)
def test_no_values_and_values_beyond_every_scale_stay_finite(codec):
    values = np.array([[1e30, -1.0, np.nan], [np.inf, 2.0, 0.0], [0.0, 0.0, 0.0]], dtype=np.float32)
    decoded = there_and_back(values, codec)
    assert np.isfinite(decoded).all()
    assert (decoded[2] == 0).all()


def liar(size: int, says: int) -> bytes:
    """A frame of `size` zero bytes whose header says something else."""
    frame = zstandard.compress(bytes(size))
    head, length = (5, 1) if size < 256 else (6, 4)  # magic and descriptor, then a large frame's window; then the size
    lie = frame[:head] + says.to_bytes(length, "little") + frame[head + length :]
    assert zstandard.get_frame_parameters(lie).content_size == says
    return lie


@pytest.mark.parametrize(
    ("payload", "rows_and_width", "message"),
    [
        (b"", (1, 4), "do not decompress"),
        (b"no zstd", (1, 4), "do not decompress"),
        (zstandard.compress(bytes(100))[:-3], (25, 1), "hold|do not decompress"),
        (zstandard.compress(bytes(5)), (1, 4), "hold 5 bytes: 6 declared"),
        (zstandard.compress(bytes(2**26)), (1, 4), "hold 67108864 bytes: 6 declared"),
        (liar(2**26, 6), (1, 4), "do not decompress"),
        (liar(2, 6), (1, 4), "do not decompress"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(bytes(6)), (1, 4), "an unknown number of bytes"),
        (zstandard.compress(bytes(6)), (0, 4), "0 rows of 4"),
        (zstandard.compress(bytes(6)), (2**31, 2**31), "need 1 to"),
    ],
    ids=[
        "empty",
        "garbage",
        "truncated",
        "short",
        "bomb",
        "bomb that says 6",
        "short that says 6",
        "silent",
        "no rows",
        "absurd size",
    ],
)
def test_refuses_what_does_not_decode(payload, rows_and_width, message):
    with pytest.raises(Violation, match=message) as caught:
        decode_rows(payload, "int8", *rows_and_width)
    assert caught.value.reason is Reason.MALFORMED_FEATURES


@pytest.mark.parametrize(
    ("payload", "rows_and_width", "message"),
    [
        (b"", (1, 4), "do not end after 5"),
        (b"\xff\xff", (1, 4), "do not decompress"),
        (huffman(bytes(5))[:-1], (1, 4), "do not end after 5"),
        (huffman(bytes(5)) + b"\0", (1, 4), "do not end after 5"),
        (huffman(bytes(4)), (1, 4), "do not end after 5"),
        (huffman(bytes(6)), (1, 4), "do not end after 5"),
        (huffman(bytes(2**26)), (1, 4), "do not end after 5"),
        (huffman(bytes(5)), (0, 4), "0 rows of 4"),
        (huffman(bytes(5)), (2**31, 2**31), "need 1 to"),
    ],
    ids=["empty", "garbage", "truncated", "trailing", "short", "long", "bomb", "no rows", "absurd size"],
)
def test_refuses_what_is_not_that_many_symbols(payload, rows_and_width, message):
    with pytest.raises(Violation, match=message) as caught:
        decode_rows(payload, "lean", *rows_and_width)
    assert caught.value.reason is Reason.MALFORMED_FEATURES


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        ("float32", zstandard.compress(np.array([np.nan], "<f4").tobytes())),
        ("int8", zstandard.compress(np.array([np.inf], "<f2").tobytes() + b"\1")),
        ("bf16", huffman(b"\x7f", b"\xc0")),
    ],
)
def test_not_finite_on_the_wire(codec, payload):
    with pytest.raises(Violation, match="not finite"):
        decode_rows(payload, codec, 1, 1)


@given(st.binary(max_size=200), st.integers(0, 50), st.integers(0, 50), st.sampled_from(CODECS))
def test_any_bytes_decode_or_are_refused(payload, num_rows, width, codec):
    try:
        decoded = decode_rows(payload, codec, num_rows, width)
    except Violation:
        return
    assert decoded.shape == (num_rows, width)


@given(
    st.integers(1, 5),
    st.integers(1, 130),
    st.sampled_from(["int8-grouped", "int4-grouped", "lean", "leaner"]),
    st.data(),
)
def test_any_numbers_decode_to_finite_values(num_rows, width, codec, data):
    size = num_rows * raw_bytes_per_row(codec, width)
    raw = data.draw(st.binary(min_size=size, max_size=size))
    assert np.isfinite(decode_rows(huffman(raw), codec, num_rows, width)).all()


@pytest.mark.parametrize("codec", CODECS)
def test_a_full_frame_fits_what_the_receiver_allows(codec):
    num_rows = rows_per_frame(codec, 4096)
    assert num_rows * raw_bytes_per_row(codec, 4096) <= MAX_RAW_BYTES
    noise = np.frombuffer(np.random.default_rng(1).bytes(num_rows * 4096 * 4), "<f4").reshape(num_rows, 4096)
    assert len(encode_rows(noise, codec)) <= MAX_PAYLOAD_BYTES
    with pytest.raises(ValueError, match="one row"):
        rows_per_frame(codec, 2**20)


@pytest.mark.parametrize("codec", ["int8-grouped", "int4-grouped", "lean", "leaner"])
def test_narrow_rows_take_no_more_memory_than_wide_ones(codec):
    """Half a million rows of one value, in a kilobyte: a step is not spread over a whole group."""
    num_rows = MAX_RAW_BYTES // raw_bytes_per_row(codec, 1)
    payload = zlib.compress(bytes(2 * num_rows), 9, -15)
    assert len(payload) < 2048
    tracemalloc.start()
    try:
        assert decode_rows(payload, codec, num_rows, 1).shape == (num_rows, 1)
        assert tracemalloc.get_traced_memory()[1] < 20 * MAX_RAW_BYTES
    finally:
        tracemalloc.stop()


def carried(messages):
    return [len(message.features.payload) + len(message.features.padding) for message in messages]


@pytest.mark.parametrize("num_rows", [1, 4, MANY_ROWS, MANY_ROWS + 1, 60])
@pytest.mark.parametrize("codec", CODECS)
def test_typical_size_is_that_of_other_gaussian_rows(codec, num_rows):
    assert typical_payload_bytes(codec, num_rows, WIDTH) == pytest.approx(
        len(encode_rows(gaussian(num_rows, WIDTH, seed=3), codec)), rel=0.05
    )


@pytest.mark.parametrize("values", ["gaussian", "zero"])
@pytest.mark.parametrize("codec", CODECS)
def test_a_small_frame_is_padded_to_the_size_of_wide_rows(codec, values):
    """Headers and tables of narrow rows are not counted again and again."""
    rows = gaussian(1, 64, seed=3) if values == "gaussian" else np.zeros((1, 64), np.float32)
    messages = list(wire.server_frame_to_proto(Features(7, 11, rows, last=True, padded_width=WIDTH), codec))
    assert carried(messages) == [typical_payload_bytes(codec, 1, WIDTH)]


@pytest.mark.parametrize("codec", CODECS)
def test_long_features_are_padded_frame_by_frame_below_the_limit(codec):
    rows = gaussian(300, 96, seed=3)
    messages = list(wire.server_frame_to_proto(Features(7, 11, rows, last=True, padded_width=4096), codec))
    step = rows_per_frame(codec, 4096)
    assert [message.features.num_rows for message in messages[:-1]] == [step] * (len(messages) - 1)
    assert sum(carried(messages)) == pytest.approx(typical_payload_bytes(codec, 300, 4096), rel=0.01)
    assert all(message.ByteSize() < wire.MAX_FRAME_BYTES for message in messages)


def test_a_larger_payload_is_not_padded():
    assert padding(10**6, "int8", 4, WIDTH, 4) == b""
