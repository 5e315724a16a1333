"""95 % intervals of a scenario's figures, by bootstrap over its runs and prompts (core/bootstrap.py). Pure.

Every figure is computed from the drawn answers as metrics.py computes it from all: sums over prompts, then their
quotient, then the median over runs. The ratio to the stream divides by the stream's answers to the same draw, and eta
draws R of each run anew from its mean and standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from outrider_bench.core.bootstrap import Floats, Interval, Resamples, quotient
from outrider_bench.network.metrics import LATER_TOKEN
from outrider_bench.network.scenario_run import ScenarioRun
from outrider_bench.network.timed_answer import TimedAnswer
from outrider_bench.network.variants import STREAM, ModeVariant

Intervals = Mapping[str, Interval | None]
IDEAL_STREAM = "ideal_stream"


def scenario_intervals(variants: Sequence[ModeVariant], runs: Sequence[ScenarioRun]) -> dict[str, Intervals]:
    """Return the intervals of each variant's figures by name; empty where the runs hold no answers.

    Under IDEAL_STREAM is that of the ideal stream's speed.
    """
    if not runs or not all(run.answers for run in runs):
        return {}
    draws = Resamples(len(runs), len(next(iter(runs[0].answers.values()))))
    answers = {variant.name: [run.answers[variant.name] for run in runs] for variant in variants}
    drawn = {name: _figures(given, draws) for name, given in answers.items()}
    rtt_ms = draws.estimates(
        [run.round_trips.mean_ms for run in runs], [run.round_trips.standard_error_ms for run in runs]
    )
    found: dict[str, Intervals] = {}
    for variant in variants:
        figures = dict(drawn[variant.name])
        speed, verify_ms = figures["tokens_per_second"], figures["verify_ms"]
        if variant.waits_for_verdicts:
            figures["eta"] = quotient(speed / 1e3 * (rtt_ms + verify_ms), figures["mean_acceptance_length"])
        if STREAM in drawn:
            figures["ratio_to_stream"] = quotient(speed, drawn[STREAM]["tokens_per_second"])
            figures["ratio_to_ideal_stream"] = speed * drawn[STREAM]["verify_ms"] / 1e3
            for name, number in (("ttft", 1), ("to_32nd", LATER_TOKEN)):
                mine, its = (_ms_to_token(answers[way], number) for way in (variant.name, STREAM))
                figures[f"{name}_ratio_to_stream"] = draws.pooled_medians(quotient(mine, its))
        found[variant.name] = {name: draws.interval(values) for name, values in figures.items()}
    if STREAM in drawn:
        found[IDEAL_STREAM] = {"tokens_per_second": draws.interval(quotient(1e3, drawn[STREAM]["verify_ms"]))}
    return found


def _figures(runs: Sequence[Sequence[TimedAnswer]], draws: Resamples) -> dict[str, Floats]:
    """Return one variant's own figures by name, [draws, drawn runs]."""
    drafts = [any(record.drafts for record in run) for run in runs]

    def sums(measure: Callable[[TimedAnswer], float]) -> Floats:
        return draws.sums(_each(runs, measure))

    tokens = sums(lambda record: record.decoded_tokens)
    judging = [[record.judging(of_run) for record in run] for run, of_run in zip(runs, drafts, strict=True)]
    verdicts = draws.sums([[len(replies) for replies in run] for run in judging])
    judged = draws.sums([[sum(reply.tokens for reply in replies) for replies in run] for run in judging])
    return {
        "tokens_per_second": quotient(tokens * 1e3, sums(lambda record: record.decode_ms)),
        "answer_tokens_per_second": quotient(
            sums(lambda record: len(record.token_ids) * 1e3), sums(lambda record: record.arrivals[-1].at_ms)
        ),
        "mean_acceptance_length": quotient(judged, verdicts),
        "verify_ms": quotient(
            sums(lambda record: sum(reply.verify_ms for reply in record.replies[1:])),
            sums(lambda record: sum(1 for reply in record.replies[1:] if reply.verify_ms)),
        ),
        "server_busy_ms_per_token": quotient(
            sums(lambda record: sum(reply.verify_ms + reply.draft_ms for reply in record.replies[1:])), tokens
        ),
        "ttft_ms": draws.medians(_ms_to_token(runs, 1)),
        "ttft_warm_ms": draws.medians(_each(runs, lambda record: record.warm_ms)),
        "to_32nd_ms": draws.medians(_ms_to_token(runs, LATER_TOKEN)),
    }


def _ms_to_token(runs: Sequence[Sequence[TimedAnswer]], number: int) -> Floats:
    return _each(runs, lambda record: record.ms_to_token(number))


def _each(runs: Sequence[Sequence[TimedAnswer]], measure: Callable[[TimedAnswer], float | None]) -> Floats:
    """Measure every answer: [runs, prompts], NaN where it does not apply."""
    values = [[np.nan if (value := measure(record)) is None else value for record in run] for run in runs]
    return np.array(values, dtype=float)
