"""The feature codec and the two compressions below it."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import zstandard

from fuzz_targets.target import FuzzTarget
from outrider_proto.entropy import huffman, unhuffman, unzstd, zstd
from outrider_proto.feature_codec import MAX_RAW_BYTES, decode_rows, encode_rows, raw_bytes_per_row
from outrider_proto.frames import CODECS, Codec

_HEAD = struct.Struct("<BBII")  # codec, what to do with the rest, num_rows, width
_AS_IT_IS, _COMPRESS, _FILL = range(3)
_FILLED_BYTES = 4096
_RAW_FOLD = (
    20  # bytes held at once for each raw one: values, steps and their product in float32, and what compares them
)
_FIXED = 64 * 1024
_ZSTD_CODECS = ("int8", "float32")
_EXACT = ("float32", "bf16")

Parts = tuple[Codec, int, int, bytes]
Decoded = tuple[Codec, np.ndarray]


def _features(parts: Parts) -> Decoded:
    codec, num_rows, width, payload = parts
    return codec, decode_rows(payload, codec, num_rows, width)


def _parts(data: bytes) -> Parts:
    """The rest as it is, or compressed as the codec has it, so that what it says is mutated, too. `_FILL`: as many
    bytes of it as were declared."""
    number, how, num_rows, width = _HEAD.unpack_from(data.ljust(_HEAD.size, b"\0"))
    codec, rest = CODECS[number % len(CODECS)], data[_HEAD.size :]
    if how % 3 == _AS_IT_IS:
        return codec, num_rows, width, rest
    expected = num_rows * raw_bytes_per_row(codec, width)
    if how % 3 == _FILL and rest and expected <= _FILLED_BYTES:
        rest = (rest * (1 + expected // len(rest)))[:expected]
    return codec, num_rows, width, zstd(rest) if codec in _ZSTD_CODECS else huffman(rest)


def _bound(data: bytes) -> int:
    """As much as the raw size that was declared makes, and no more than the largest that is allowed."""
    number, _, num_rows, width = _HEAD.unpack_from(data.ljust(_HEAD.size, b"\0"))
    declared = num_rows * raw_bytes_per_row(CODECS[number % len(CODECS)], width)
    return _FIXED + 8 * len(data) + _RAW_FOLD * (declared if declared <= MAX_RAW_BYTES else 0)


def _check_features(decoded: Decoded) -> None:
    codec, rows = decoded
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()
    again = decode_rows(encode_rows(rows, codec), codec, *rows.shape)
    assert again.shape == rows.shape
    if codec in _EXACT:
        assert np.array_equal(again, rows)


def _feature_seeds() -> dict[str, bytes]:
    rows = np.random.default_rng(0).standard_normal((3, 70)).astype(np.float32)
    seeds = {}
    for number, codec in enumerate(CODECS):
        head = _HEAD.pack(number, _AS_IT_IS, *rows.shape)
        seeds[codec] = head + encode_rows(rows, codec)
        seeds[f"{codec}-cut"] = head + encode_rows(rows, codec)[:-5]
        seeds[f"{codec}-raw"] = _HEAD.pack(number, _FILL, 5, 33) + bytes(range(256))
        seeds[f"{codec}-no-width"] = _HEAD.pack(number, _COMPRESS, 4, 0) + bytes(8)
        seeds[f"{codec}-no-rows"] = _HEAD.pack(number, _COMPRESS, 0, 4)
        seeds[f"{codec}-all"] = _HEAD.pack(number, _AS_IT_IS, 2**32 - 1, 2**32 - 1) + bytes(9)
        seeds[f"{codec}-narrow-bomb"] = _narrow_bomb(number, codec)
        seeds[f"{codec}-not-finite"] = _HEAD.pack(number, _FILL, 2, 3) + b"\xff\x7f\x00\x7c"
    return seeds


def _narrow_bomb(number: int, codec: Codec) -> bytes:
    """As many rows of one value as are allowed, in as few bytes as there can be."""
    per_row = raw_bytes_per_row(codec, 1)
    num_rows = MAX_RAW_BYTES // per_row
    raw = bytes(num_rows * per_row)
    payload = zstd(raw) if codec in _ZSTD_CODECS else zlib.compress(raw, 9, -15)
    return _HEAD.pack(number, _AS_IT_IS, num_rows, 1) + payload


def _unzstd(data: bytes) -> bytes | None:
    return unzstd(data[2:], int.from_bytes(data[:2], "little")) if len(data) > 2 else None


def _unhuffman(data: bytes) -> bytes | None:
    return unhuffman(data[2:], int.from_bytes(data[:2], "little")) if len(data) > 2 else None


def _entropy_bound(data: bytes) -> int:
    return _FIXED + 4 * int.from_bytes(data[:2], "little") + 2 * len(data)


def _check_zstd(raw: bytes) -> None:
    assert unzstd(zstd(raw), len(raw)) == raw


def _check_huffman(raw: bytes) -> None:
    half = len(raw) // 2
    assert unhuffman(huffman(raw[:half], raw[half:]), len(raw)) == raw


def _entropy_seeds(compressed: dict[str, bytes]) -> dict[str, bytes]:
    """Each with the size that it has, and with two that it has not."""
    raw = b"as many as these" * 4
    sizes = {"": len(raw), "-short": len(raw) - 1, "-long": len(raw) + 1}
    return {
        name + how: size.to_bytes(2, "little") + data
        for name, data in compressed.items()
        for how, size in sizes.items()
    }


def _zstd_seeds() -> dict[str, bytes]:
    raw = b"as many as these" * 4
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(raw)
    bomb = zstandard.ZstdCompressor(level=9).compress(bytes(1 << 24))
    return _entropy_seeds({"sized": zstd(raw), "unsized": unsized, "bomb": bomb, "twice": zstd(raw) * 2})


def _huffman_seeds() -> dict[str, bytes]:
    raw = b"as many as these" * 4
    bomb = zlib.compress(bytes(1 << 20), 9, -15)
    parts = {"one": huffman(raw), "two": huffman(raw[:9], raw[9:]), "bomb": bomb, "trailing": huffman(raw) + b"more"}
    return _entropy_seeds(parts)


TARGETS = (
    FuzzTarget("features", _features, _feature_seeds, _check_features, bound=_bound, prepare=_parts),
    FuzzTarget("zstd", _unzstd, _zstd_seeds, _check_zstd, bound=_entropy_bound),
    FuzzTarget("huffman", _unhuffman, _huffman_seeds, _check_huffman, bound=_entropy_bound),
)
