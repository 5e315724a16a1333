"""The target's answers to prompts and the features of both, recorded once and drafted from often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from outrider_bench.core.pair import InProcessPair, Rows, features_of
from outrider_bench.core.prompts import Question
from outrider_proto.feature_codec import decode_rows, encode_rows
from outrider_proto.frames import CODECS, Codec
from outrider_proto.quantize import StepRule, dequantize_grouped, quantize_grouped

Coded = Callable[[Rows], Rows]  # rows as they come out at the other end
BITS = (8, 4, 3, 2)
_REPLY = 4  # rows a reply holds, which a codec may treat otherwise than a prompt's many


@dataclass(frozen=True, slots=True, eq=False)
class RecordedAnswer:
    """A prompt, the target's answer, and the features of all positions."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    features: Tensor  # [prompt + answer, width] float32

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.answer

    def coded(self, code: Coded) -> RecordedAnswer:
        """Return the answer with features as a client decodes them: the prompt's together, then a few at a time."""
        rows, first = self.features.numpy(), len(self.prompt)
        parts = [
            rows[:first],
            *(rows[start : start + _REPLY] for start in range(first, len(rows), _REPLY)),
        ]
        return RecordedAnswer(
            self.prompt, self.answer, torch.from_numpy(np.concatenate([code(part) for part in parts]))
        )


async def record(
    pair: InProcessPair, asked: Sequence[Question], answers: Sequence[tuple[int, ...]]
) -> list[RecordedAnswer]:
    """Record the features of all questions and `answers`; none if the pair's drafter uses none."""
    return [
        RecordedAnswer(
            question.prompt, answer, torch.from_numpy(await features_of(pair, question.prompt + answer, "float32"))
        )
        for question, answer in zip(asked, answers, strict=True)
    ]


def codings() -> dict[str, Coded]:
    """Return the codecs, and symmetric quantizers with few bits and a scale per 64 values."""
    by_bits = {bits: StepRule("absmax", 1 / (2 ** (bits - 1) - 1)) for bits in BITS}
    return {codec: partial(_there_and_back, codec) for codec in CODECS} | {
        f"{bits} bits": partial(_quantized, rule) for bits, rule in by_bits.items()
    }


def _there_and_back(codec: Codec, rows: Rows) -> Rows:
    return decode_rows(encode_rows(rows, codec), codec, *rows.shape)


def _quantized(rule: StepRule, rows: Rows) -> Rows:
    return dequantize_grouped(quantize_grouped(rows, rule), *rows.shape)
