"""Bytes of recorded features in each codec, against the paper's, and the time to encode and decode them.

Replies have their real size, the root and the accepted path of a verdict on a tree; a prompt's rows go together. The
paper's codec (4.2): an int8 per value and a float16 scale per token, then deflate, which is gzip without its header.
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

from outrider_bench.core.acceptance import TREE
from outrider_bench.core.progress import Step
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, table
from outrider_bench.harness.study import Measured, Study
from outrider_bench.studies.features.acceptance_replay import AcceptanceReplay, Lag
from outrider_bench.studies.features.recorded_features import RecordedAnswer
from outrider_bench.studies.features.staleness import AnsweredPrompts, Degradation, DegradationResult, TauShare
from outrider_bench.studies.options import CodecOptions
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_proto.entropy import huffman
from outrider_proto.errors import UsageError
from outrider_proto.feature_codec import INT4, LEAN, LEANER, decode_rows, encode_rows
from outrider_proto.frames import CODECS, Codec
from outrider_proto.quantize import quantize_grouped, quantize_per_row

Rows = NDArray[np.float32]
_PASSES = 3


@dataclass(frozen=True, slots=True)
class CodecCost:
    """Bytes per row, their share of the paper's, and microseconds per row (the least of several passes)."""

    bytes_per_row: float
    of_paper: float
    encode_us: float
    decode_us: float


@dataclass(frozen=True, slots=True)
class FeatureMessages:
    """Rows as they cross the wire: one message per prompt, one per verdict."""

    prompts: Sequence[Rows]
    replies: Sequence[Rows]

    @classmethod
    def of(cls, drafter: Drafter, recordings: Sequence[RecordedAnswer], plan: TreePlan) -> FeatureMessages:
        replies = [rows for recording in recordings for rows in _replies(drafter, recording, plan)]
        return cls([r.features.numpy()[: len(r.prompt)] for r in recordings], replies)

    @property
    def rows_per_reply(self) -> float:
        return _num_rows(self.replies) / len(self.replies)


def codec_costs(messages: Sequence[Rows]) -> dict[Codec, CodecCost]:
    """Measure every codec on the same messages."""
    return {codec: _codec_cost(messages, codec) for codec in CODECS}


def coders(messages: Sequence[Rows]) -> dict[str, dict[str, float]]:
    """Return bytes per row by quantization and entropy coder."""
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


def _replies(drafter: Drafter, recording: RecordedAnswer, plan: TreePlan) -> Iterator[Rows]:
    """Yield the rows of each verdict: a verdict that commits n tokens brings n rows."""
    start = len(recording.prompt)
    for committed in AcceptanceReplay(drafter, recording, plan).committed_by_verdict(Lag()):
        yield recording.features.numpy()[start : start + committed]
        start += committed


def _codec_cost(messages: Sequence[Rows], codec: Codec) -> CodecCost:
    payloads = [encode_rows(rows, codec) for rows in messages]
    num_rows = _num_rows(messages)
    size = sum(map(len, payloads)) / num_rows
    return CodecCost(
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
    # The least of all passes: other processes can only make one slower.
    return min(times) * 1e6


@dataclass(frozen=True, slots=True)
class CodecResult:
    """One drafter's features: bytes by codec for replies and prompts, shares of tau, bytes by entropy coder."""

    width: int
    rows_per_reply: float
    replies: Mapping[Codec, CodecCost]
    prompts: Mapping[Codec, CodecCost]
    tau: Mapping[str, Mapping[Codec, TauShare]]
    reply_coders: Mapping[str, Mapping[str, float]]
    prompt_coders: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class CodecReport:
    per_family: int | None
    max_new_tokens: int
    drafters: Mapping[str, CodecResult]


class CodecStudy(Study[CodecOptions, CodecResult, CodecReport]):
    """Records the features of each drafter, and codes them in all ways."""

    async def run(self, taken: Mapping[str, CodecResult], step: Step) -> Measured[CodecResult]:
        answered = AnsweredPrompts.ask(self.options, step)
        chosen = [Degradation(), *(Degradation(coding=codec) for codec in CODECS)]
        for name, source in self.options.drafters.items():
            if name in taken:
                continue
            drafter, recordings = await answered.record_features(source)
            if not drafter.tap.fingerprint:
                raise UsageError(f"drafter {name}: it uses no features")
            by_shape = answered.measured(name, drafter, recordings, chosen, step)
            yield name, _codec_result(FeatureMessages.of(drafter, recordings, TREE), _shares(by_shape))

    def report(self, rows: Mapping[str, CodecResult]) -> CodecReport:
        return CodecReport(self.options.count, self.options.max_new_tokens, rows)

    @staticmethod
    def tables(report: CodecReport) -> list[ResultTable]:
        return [build(name, one) for name, one in report.drafters.items() for build in (codec_table, coder_table)]


def _shares(by_shape: Mapping[str, Sequence[DegradationResult]]) -> dict[str, dict[Codec, TauShare]]:
    """Return shares of tau by shape and codec; the first degradation is the undegraded reference."""
    return {
        shape: {codec: one.overall for codec, one in zip(CODECS, degradations[1:], strict=True)}
        for shape, degradations in by_shape.items()
    }


def _codec_result(messages: FeatureMessages, tau: Mapping[str, Mapping[Codec, TauShare]]) -> CodecResult:
    return CodecResult(
        width=messages.prompts[0].shape[1],
        rows_per_reply=messages.rows_per_reply,
        replies=codec_costs(messages.replies),
        prompts=codec_costs(messages.prompts),
        tau=tau,
        reply_coders=coders(messages.replies),
        prompt_coders=coders(messages.prompts),
    )


def codec_table(name: str, result: CodecResult) -> ResultTable:
    columns = ("codec", "B/token", "of paper's", "prompt B/row", "of paper's", *result.tau, "encode us/row", "decode")
    rows = [_codec_row(codec, result) for codec in CODECS]
    title = f"{name}: features of {result.width} values, {result.rows_per_reply:.1f} rows a reply"
    caption = f"{OVER_PROMPTS}; bytes are counts, times the least of {_PASSES} passes over all messages"
    return table(title, columns, rows, caption=caption)


def _codec_row(codec: Codec, result: CodecResult) -> Sequence[str]:
    reply, prompt = result.replies[codec], result.prompts[codec]
    return (
        codec,
        f"{reply.bytes_per_row:.1f}",
        f"{reply.of_paper:.3f}",
        f"{prompt.bytes_per_row:.1f}",
        f"{prompt.of_paper:.3f}",
        *(plus_minus(one.share, (one.low, one.high), 4) for one in (shares[codec] for shares in result.tau.values())),
        f"{reply.encode_us:.1f}",
        f"{reply.decode_us:.1f}",
    )


def coder_table(name: str, result: CodecResult) -> ResultTable:
    names = list(next(iter(result.reply_coders.values())))
    rows = [
        [f"{quantized}, {what}", *(f"{by_coder[coder]:.1f}" for coder in names)]
        for what, both in (("a reply", result.reply_coders), ("a prompt", result.prompt_coders))
        for quantized, by_coder in both.items()
    ]
    return table(f"{name}: bytes a row by entropy coder", ("numbers", *names), rows)
