"""Time to the first and the 32nd token, beside the stream's. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from outrider_bench.network.timed_answer import TimedAnswer

LATER_TOKEN = 32  # tokens


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A variant's times to the first and the 32nd token, as shares of the stream's.

    One value per prompt; prompts with shorter answers are left out.
    """

    ttft_ratios: tuple[float, ...]
    to_32nd_ratios: tuple[float, ...]

    @classmethod
    def of(cls, records: Sequence[TimedAnswer], streamed: Sequence[TimedAnswer]) -> Self:
        return cls(_ratios(records, streamed, 1), _ratios(records, streamed, LATER_TOKEN))


def ms_to_token(record: TimedAnswer, number: int) -> float | None:
    """Return the ms from the question to token `number`, counted from 1; None in a shorter answer."""
    tokens = 0
    for arrival in record.arrivals:
        tokens += arrival.tokens
        if tokens >= number:
            return arrival.at_ms
    return None


def _ratios(records: Sequence[TimedAnswer], streamed: Sequence[TimedAnswer], number: int) -> tuple[float, ...]:
    pairs = ((ms_to_token(mine, number), ms_to_token(its, number)) for mine, its in zip(records, streamed, strict=True))
    return tuple(mine / its for mine, its in pairs if mine is not None and its)
