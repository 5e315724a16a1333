"""The feature codec: bounded loss one way, bounded memory the other."""

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from outrider_proto.errors import Reason, Violation
from outrider_proto.features import MAX_RAW_BYTES, decode_rows, encode_rows, rows_per_frame

rows = hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 33)), elements=st.floats(-1e4, 1e4, width=32))


@given(rows)
def test_float32_is_exact(values):
    assert np.array_equal(decode_rows(encode_rows(values, "float32"), "float32", *values.shape), values)


@given(rows)
def test_int8_errs_by_about_half_a_step_of_its_row(values):
    back = decode_rows(encode_rows(values, "int8"), "int8", *values.shape)
    step = np.abs(values).max(axis=1, keepdims=True) / 127
    # float16 rounds the scale by up to 2**-11 of itself (or 2**-25 near zero), times 127 steps
    assert (np.abs(back - values) <= step * 0.57 + 127 * 2.0**-24).all()


def test_values_beyond_float16_scales_and_non_finite_ones_stay_finite():
    values = np.array([[1e30, -1.0, np.nan], [np.inf, 2.0, 0.0]], dtype=np.float32)
    assert np.isfinite(decode_rows(encode_rows(values, "int8"), "int8", 2, 3)).all()


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


def test_not_finite_on_the_wire():
    with pytest.raises(Violation, match="not finite"):
        decode_rows(zstandard.compress(np.array([np.nan], "<f4").tobytes()), "float32", 1, 1)


@given(st.binary(max_size=200), st.integers(0, 50), st.integers(0, 50))
def test_any_bytes_decode_or_are_refused(payload, num_rows, width):
    try:
        decoded = decode_rows(payload, "int8", num_rows, width)
    except Violation:
        return
    assert decoded.shape == (num_rows, width)


def test_a_full_frame_fits_what_the_receiver_allows():
    assert rows_per_frame("int8", 4096) * (4096 + 2) <= MAX_RAW_BYTES
    with pytest.raises(ValueError, match="one row"):
        rows_per_frame("float32", 2**20)
