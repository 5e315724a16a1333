"""95 % intervals of a scenario's figures, by bootstrap over its runs and prompts (core/bootstrap.py). Pure.

Every figure is computed from the drawn answers as metrics.py computes it from all: sums over prompts, then their
quotient, then the median over runs. The ratio to the stream divides by the stream's answers to the same draw, and eta
draws R of each run anew from its mean and standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from outrider_bench.core.bootstrap import Floats, Interval, Resamples, quotient, ratio_interval
from outrider_bench.network.metrics import LATER_TOKEN
from outrider_bench.network.scenario_run import ScenarioRun
from outrider_bench.network.timed_answer import TimedAnswer
from outrider_bench.network.variants import STREAM, ModeVariant

Intervals = Mapping[str, Interval | None]
IDEAL_STREAM = "ideal_stream"


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Sums of one variant's answers, [draws, drawn runs], and its times by answer, [runs, prompts]."""

    speed: Floats  # tokens per second while decoding
    answer_speed: Floats
    tau: Floats
    verify_ms: Floats
    busy_ms: Floats  # of the server, a token
    ttft_ms: Floats
    warm_ms: Floats
    to_32nd_ms: Floats

    @classmethod
    def of(cls, runs: Sequence[Sequence[TimedAnswer]], draws: Resamples) -> _Drawn:
        drafts = [any(record.drafts for record in run) for run in runs]

        def sums(measure: Callable[[TimedAnswer], float]) -> Floats:
            return draws.sums(_each(runs, measure))

        tokens = sums(lambda record: record.decoded_tokens)
        judging = [[record.judging(of_run) for record in run] for run, of_run in zip(runs, drafts, strict=True)]
        verdicts = draws.sums([[len(replies) for replies in run] for run in judging])
        judged = draws.sums([[sum(reply.tokens for reply in replies) for replies in run] for run in judging])
        return cls(
            speed=quotient(tokens * 1e3, sums(lambda record: record.decode_ms)),
            answer_speed=quotient(
                sums(lambda record: len(record.token_ids) * 1e3), sums(lambda record: record.arrivals[-1].at_ms)
            ),
            tau=quotient(judged, verdicts),
            verify_ms=quotient(
                sums(lambda record: sum(reply.verify_ms for reply in record.replies[1:])),
                sums(lambda record: sum(1 for reply in record.replies[1:] if reply.verify_ms)),
            ),
            busy_ms=quotient(
                sums(lambda record: sum(reply.verify_ms + reply.draft_ms for reply in record.replies[1:])), tokens
            ),
            ttft_ms=_each(runs, lambda record: record.ttft_ms),
            warm_ms=_each(runs, lambda record: record.warm_ms),
            to_32nd_ms=_each(runs, lambda record: record.ms_to_token(LATER_TOKEN)),
        )


@dataclass(frozen=True, slots=True)
class DecodedPrompts:
    """Tokens after the first arrival and the ms that they took, by answer of one variant, both [runs, prompts]."""

    tokens: Floats
    ms: Floats

    @classmethod
    def of(cls, runs: Sequence[Sequence[TimedAnswer]]) -> Self:
        tokens = [[one.decoded_tokens for one in run] for run in runs]
        return cls(np.array(tokens, dtype=float), np.array([[one.decode_ms for one in run] for run in runs]))

    @property
    def speed_ci95(self) -> Interval | None:
        """Interval of tokens per second over runs and prompts."""
        return ratio_interval(self.tokens * 1e3, self.ms)

    def ratio_ci95(self, other: DecodedPrompts) -> Interval | None:
        """Return the interval of this speed as a ratio to the other's, paired prompt by prompt.

        Runs are drawn of the other; runs of this one have nothing to do with those, and are taken together.
        """
        draws = Resamples(*other.tokens.shape)
        mine = (np.broadcast_to(one.sum(axis=0), other.tokens.shape) for one in (self.tokens, self.ms))
        theirs = quotient(draws.sums(other.tokens), draws.sums(other.ms))
        return draws.interval(quotient(quotient(*map(draws.sums, mine)), theirs))


def scenario_intervals(variants: Sequence[ModeVariant], runs: Sequence[ScenarioRun]) -> dict[str, Intervals]:
    """Return the intervals of each variant's figures by name; empty where the runs hold no answers.

    Under IDEAL_STREAM is that of the ideal stream's speed.
    """
    if not runs or not all(run.answers for run in runs):
        return {}
    draws = Resamples(len(runs), len(next(iter(runs[0].answers.values()))))
    drawn = {variant.name: _Drawn.of([run.answers[variant.name] for run in runs], draws) for variant in variants}
    rtt_ms = draws.estimates(
        [run.round_trips.mean_ms for run in runs], [run.round_trips.standard_error_ms for run in runs]
    )
    stream = drawn.get(STREAM)
    found: dict[str, Intervals] = {
        variant.name: {
            **_own_intervals(drawn[variant.name], rtt_ms if variant.waits_for_verdicts else None, draws),
            **({} if stream is None else _ratio_intervals(drawn[variant.name], stream, draws)),
        }
        for variant in variants
    }
    if stream is not None:
        found[IDEAL_STREAM] = {"tokens_per_second": draws.interval(quotient(1e3, stream.verify_ms))}
    return found


def _own_intervals(drawn: _Drawn, rtt_ms: Floats | None, draws: Resamples) -> dict[str, Interval | None]:
    figures = {
        "tokens_per_second": drawn.speed,
        "answer_tokens_per_second": drawn.answer_speed,
        "mean_acceptance_length": drawn.tau,
        "verify_ms": drawn.verify_ms,
        "server_busy_ms_per_token": drawn.busy_ms,
        "ttft_ms": draws.medians(drawn.ttft_ms),
        "ttft_warm_ms": draws.medians(drawn.warm_ms),
        "to_32nd_ms": draws.medians(drawn.to_32nd_ms),
    }
    if rtt_ms is not None:
        figures["eta"] = quotient(drawn.speed / 1e3 * (rtt_ms + drawn.verify_ms), drawn.tau)
    return {name: draws.interval(values) for name, values in figures.items()}


def _ratio_intervals(drawn: _Drawn, stream: _Drawn, draws: Resamples) -> dict[str, Interval | None]:
    return {
        "ratio_to_stream": draws.interval(quotient(drawn.speed, stream.speed)),
        "ratio_to_ideal_stream": draws.interval(drawn.speed * stream.verify_ms / 1e3),
        "ttft_ratio_to_stream": draws.interval(draws.pooled_medians(quotient(drawn.ttft_ms, stream.ttft_ms))),
        "to_32nd_ratio_to_stream": draws.interval(draws.pooled_medians(quotient(drawn.to_32nd_ms, stream.to_32nd_ms))),
    }


def _each(runs: Sequence[Sequence[TimedAnswer]], measure: Callable[[TimedAnswer], float | None]) -> Floats:
    """Measure every answer: [runs, prompts], NaN where it does not apply."""
    values = [[np.nan if (value := measure(record)) is None else value for record in run] for run in runs]
    return np.array(values, dtype=float)
