"""What the features of recorded answers weigh in each codec, against the paper's, and what packing them costs.

Replies are of their real size, the root and the accepted path of a verdict on a tree; a prompt's rows go together.
The paper's: an int8 a value and a float16 scale a token (4.2), and deflate over that, which is gzip without its header.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import zstandard
from numpy.typing import NDArray

from outrider_bench.studies.features.staleness_recording import Recording
from outrider_bench.studies.features.staleness_walk import Lag, Walk
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_proto.entropy import huffman
from outrider_proto.feature_codec import INT4, LEAN, LEANER, decode_rows, encode_rows
from outrider_proto.frames import CODECS, Codec
from outrider_proto.quantize import quantize_grouped, quantize_per_row

Rows = NDArray[np.float32]
_PASSES = 3


@dataclass(frozen=True, slots=True)
class Weight:
    """Bytes a row, and their share of the paper's; microseconds a row, the least of some passes."""

    bytes_per_row: float
    of_paper: float
    encode_us: float
    decode_us: float


@dataclass(frozen=True, slots=True)
class Messages:
    """Rows as they cross the wire: one message a prompt, one a verdict."""

    prompts: Sequence[Rows]
    replies: Sequence[Rows]

    @classmethod
    def of(cls, drafter: Drafter, recordings: Sequence[Recording], plan: TreePlan) -> Messages:
        replies = [rows for recording in recordings for rows in _replies(drafter, recording, plan)]
        return cls([r.features.numpy()[: len(r.prompt)] for r in recordings], replies)

    @property
    def rows_per_reply(self) -> float:
        return _num_rows(self.replies) / len(self.replies)


def weights(messages: Sequence[Rows]) -> dict[Codec, Weight]:
    """Every codec on the same messages."""
    return {codec: _weight(messages, codec) for codec in CODECS}


def coders(messages: Sequence[Rows]) -> dict[str, dict[str, float]]:
    """Bytes a row by how values are quantized and how the numbers are compressed."""
    numbers = {name: [quantize(rows) for rows in messages] for name, quantize in _QUANTIZED.items()}
    num_rows = _num_rows(messages)
    return {
        name: {coder: sum(len(code(raw)) for raw in raws) / num_rows for coder, code in _CODERS.items()}
        for name, raws in numbers.items()
    }


def paper(rows: Rows) -> bytes:
    return zlib.compress(quantize_per_row(rows))


_QUANTIZED: Mapping[str, Callable[[Rows], bytes]] = {
    "int8": quantize_per_row,
    "int4-grouped": partial(quantize_grouped, rule=INT4),
    "lean, replies": partial(quantize_grouped, rule=LEAN),
    "lean, prompts": partial(quantize_grouped, rule=LEANER),
}
_CODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "zlib 6": zlib.compress,
    "zstd 1": zstandard.ZstdCompressor(level=1).compress,
    "zstd 3": zstandard.ZstdCompressor(level=3).compress,
    "zstd 19": zstandard.ZstdCompressor(level=19).compress,
    "huffman": huffman,
}


def _replies(drafter: Drafter, recording: Recording, plan: TreePlan) -> Iterator[Rows]:
    """A verdict that commits n tokens brings n rows: the root's and the accepted path's."""
    start = len(recording.prompt)
    for committed in Walk(drafter, recording, plan).committed_by_verdict(Lag()):
        yield recording.features.numpy()[start : start + committed]
        start += committed


def _weight(messages: Sequence[Rows], codec: Codec) -> Weight:
    payloads = [encode_rows(rows, codec) for rows in messages]
    num_rows = _num_rows(messages)
    size = sum(map(len, payloads)) / num_rows
    return Weight(
        bytes_per_row=size,
        of_paper=size / _bytes_per_row(messages, paper),
        encode_us=_least_us(lambda: [encode_rows(rows, codec) for rows in messages]) / num_rows,
        decode_us=_least_us(
            lambda: [decode_rows(p, codec, *rows.shape) for p, rows in zip(payloads, messages, strict=True)]
        )
        / num_rows,
    )


def _bytes_per_row(messages: Sequence[Rows], encode: Callable[[Rows], bytes]) -> float:
    return sum(len(encode(rows)) for rows in messages) / _num_rows(messages)


def _num_rows(messages: Sequence[Rows]) -> int:
    return sum(map(len, messages))


def _least_us(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_PASSES):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) * 1e6
