"""All drafters and controls on the same prompts, in one run: acceptance, cost and speed.

Everything answers a prompt before the next prompt comes, in an order drawn at random, so that a noisy machine is noisy
for all and nobody always follows the same one. All prompts are asked several times. Every way has a session of its own
that meets each prompt cold, and has answered another one before. The speedup is the median over prompts of the ratio to
the plain loop on that prompt, and of these the median over the repetitions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from outrider_bench.core.acceptance import TauByText, acceptance_by_position
from outrider_bench.core.answer_record import AnswerRecord, mean_acceptance_length
from outrider_bench.core.bootstrap import median_interval
from outrider_bench.core.energy import EnergyMeter
from outrider_bench.core.pair import stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import AskedPrompts, Question, by_family, by_group
from outrider_bench.core.reference_answers import is_on_a_border, rounding_notes
from outrider_bench.core.stats import median_of_medians
from outrider_bench.core.tables import ResultTable
from outrider_bench.harness.options import drafters_for, sampling_of, source_of
from outrider_bench.harness.study import Measured, Study
from outrider_bench.studies.drafters.comparison_report import (
    PLAIN,
    Comparison,
    DrafterMetrics,
    PromptFigures,
    Repeated,
    Speed,
    families_table,
    plot_comparison,
    positions_table,
    speeds_table,
)
from outrider_bench.studies.drafters.ways import (
    AnswerFunction,
    AnswersBefore,
    ComparedAnswer,
    Controls,
    DrafterEntry,
    start_runs,
)
from outrider_bench.studies.options import ComparedOptions, ComparisonOptions
from outrider_client.cli.options import tree_plan
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_models.core.embedded import drafter_source
from outrider_server.engine.reference_decode import plain_answer
from outrider_server.engine.target import Target

RESULT = "compared"  # the last row
_Round = dict[str, ComparedAnswer]  # all ways' answers to one prompt
ComparedRow = _Round | Comparison


def drafter_metrics(
    family: str, prompts: AskedPrompts, answers: Sequence[ComparedAnswer], departed: Sequence[bool]
) -> DrafterMetrics:
    """Compute a drafter's metrics from its answers to all prompts in all repetitions.

    `departed`: for every answer that is not the plain loop's, whether rounding explains it.
    """
    once = [answer.record for answer in answers[: len(prompts.asked)] if answer.record is not None]
    tau = TauByText.of(prompts.asked, [answer.cycles for answer in once])
    tokens = sum(len(answer.token_ids) for answer in once)
    level_ms = prompts.by_repetition([answer.ms_per_level for answer in answers])
    return DrafterMetrics(
        family=family,
        tau=tau.by_family,
        overall=tau.overall,
        positions=acceptance_by_position([cycle for answer in once for cycle in answer.cycles]),
        draft_ms_per_level=median_of_medians(level_ms) or 0.0,
        bytes_up_per_token=sum(answer.statistics.bytes_up for answer in once) / tokens,
        bytes_down_per_token=sum(answer.statistics.bytes_down for answer in once) / tokens,
        mismatches=departed.count(False),
        rounded=departed.count(True),
        tau_by_group=tau.by_group,
        tau_ci95=tau.ci95,
        draft_ms_per_level_ci95=median_interval(level_ms),
    )


async def compare_entries(
    options: ComparedOptions,
    entries: Mapping[str, DrafterEntry],
    per_family: int | None,
    taken: Mapping[str, ComparedRow],
    step: Step,
    *,
    assistants: Sequence[Path] = (),
    before: Path | None = None,
    temperature: float = 0.0,
) -> Measured[ComparedRow]:
    """Ask every way one prompt, which is a row, before the next one, and compare them in the end.

    The ways are the entries and the controls; with `before` also the entries with a history of the answers to these
    questions.
    """
    directory, limit = options.directory, options.max_new_tokens
    models = LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER))
    sampling = sampling_of(temperature=temperature, seed=options.seed if temperature else 0)
    controls = Controls.load(directory, {path.name: path for path in assistants}, limit, sampling, options.dtype)
    answer = partial(plain_answer, controls.plain)
    asked = options.source.per_family(models, per_family, limit, answer)
    prompts = AskedPrompts(asked, options.source.warm_up(models), options.repetitions, options.seed)
    if before is not None:
        earlier = source_of(directory, before, ()).per_family(models, None, limit, answer)
        history = AnswersBefore([answer(question.prompt, limit) for question in earlier])
        with_history = {f"{name}, history": replace(one, history=history) for name, one in entries.items()}
        entries = {**entries, **with_history}
    async with AsyncExitStack() as stack:
        serving, meter = Target.load(str(directory), options.dtype), EnergyMeter.of_machine()
        runs = await start_runs(entries, serving, stack, max_new_tokens=limit, sampling=sampling)
        ways = controls.answer_functions() | {name: run.answer for name, run in runs.items()}
        for warm_up in (*controls.answer_functions().values(), *(run.warm_up for run in runs.values())):
            await warm_up(prompts.warm_up)
        counter = ProgressCounter(step, "comparing", len(prompts))
        order = list(prompts.order(ways))
        for number in range(len(prompts)):
            if str(number) not in taken:
                turn = order[number * len(ways) : (number + 1) * len(ways)]
                answers = {name: await _timed(ways[name], asked[place], meter) for place, name in turn}
                if number >= len(asked):  # the cycles are those of the first repetition
                    answers = {name: replace(one, record=None) for name, one in answers.items()}
                yield str(number), answers
            counter()
    if RESULT not in taken:
        families = {name: run.family for name, run in runs.items()}
        answers_of = {way: [one[way] for one in rounds_of(taken)] for way in ways}
        result = compared(answers_of, families, prompts, controls)
        yield RESULT, replace(result, temperature=temperature)


def rounds_of(rows: Mapping[str, ComparedRow]) -> list[_Round]:
    """Return all ways' answers, prompt by prompt, and repetition by repetition."""
    return [row for number in range(len(rows)) if isinstance(row := rows.get(str(number)), dict)]


def comparison_of(rows: Mapping[str, ComparedRow]) -> Comparison:
    result = rows[RESULT]
    assert isinstance(result, Comparison)
    return result


def mismatches_of(comparison: Comparison) -> list[str]:
    """Return a line for each drafter some of whose answers are not the plain loop's."""
    wrong = {name: its.mismatches for name, its in comparison.drafters.items() if its.mismatches}
    return [f"{name}: {count} answers are not the plain loop's" for name, count in wrong.items()]


class ComparisonStudy(Study[ComparisonOptions, ComparedRow, Comparison]):
    def run(self, taken: Mapping[str, ComparedRow], step: Step) -> Measured[ComparedRow]:
        options = self.options
        return compare_entries(
            options,
            self._entries(),
            options.per_family,
            taken,
            step,
            assistants=options.assistant,
            before=options.before,
            temperature=options.temperature,
        )

    def report(self, rows: Mapping[str, ComparedRow]) -> Comparison:
        return comparison_of(rows)

    @staticmethod
    def tables(report: Comparison) -> list[ResultTable]:
        return [families_table(report), positions_table(report), speeds_table(report)]

    @staticmethod
    def notes(report: Comparison) -> list[str]:
        return rounding_notes({name: its.rounded for name, its in report.drafters.items()})

    @staticmethod
    def failures(report: Comparison) -> list[str]:
        return mismatches_of(report)

    @staticmethod
    def plot(report: Comparison, path: Path) -> None:
        plot_comparison(report, path)

    def _entries(self) -> dict[str, DrafterEntry]:
        options, directory = self.options, self.options.directory
        plan = tree_plan(options.choices, breadth=options.breadth, levels=options.levels, budget=options.budget)
        named = drafters_for(directory, options.drafter)
        configs = {
            drafter_label(name): stop_and_wait_config(target=directory, drafter=drafter_source(name)) for name in named
        }
        return {label: DrafterEntry(config, plan) for label, config in configs.items()}


def compared(
    answers: Mapping[str, Sequence[ComparedAnswer]],
    families: Mapping[str, str],
    prompts: AskedPrompts,
    controls: Controls,
) -> Comparison:
    """Compare the ways' answers; `families` are those of the drafters among them."""
    expected = [answer.token_ids for answer in answers[PLAIN]]
    seconds = {way: prompts.by_repetition([answer.seconds for answer in its]) for way, its in answers.items()}
    asked = [*prompts.asked] * prompts.repetitions
    departed = {
        way: [
            is_on_a_border(controls.plain, question.prompt, right, answer.token_ids, controls.sampling)
            for question, right, answer in zip(asked, expected, answers[way], strict=True)
            if answer.token_ids != right
        ]
        for way in families
    }
    drafters = {way: drafter_metrics(family, prompts, answers[way], departed[way]) for way, family in families.items()}
    joules = {way: prompts.by_repetition([answer.joules for answer in its]) for way, its in answers.items()}
    speeds = {
        way: _speed(times, seconds[PLAIN], joules[way], prompts.asked, expected) for way, times in seconds.items()
    }
    records = {way: [one.record for one in answers[way] if one.record is not None] for way in families}
    figures = [
        PromptFigures(
            family=question.family,
            tokens=len(expected[place]),
            seconds={way: [run[place] for run in its] for way, its in seconds.items()},
            verdicts={way: len(its[place].cycles) for way, its in records.items()},
            judged={way: _judged(its[place]) for way, its in records.items()},
            heads={way: its[place].statistics.heads for way, its in records.items()},
        )
        for place, question in enumerate(prompts.asked)
    ]
    return Comparison(drafters, speeds, prompts.repetitions, prompts.seed, figures)


def _judged(record: AnswerRecord) -> int:
    """Return the tokens of all verdicts on drafts, bonus included."""
    return round(mean_acceptance_length(record.cycles) * len(record.cycles))


async def _timed(answer: AnswerFunction, question: Question, meter: EnergyMeter | None) -> ComparedAnswer:
    before = meter.read() if meter else []
    started = time.perf_counter()
    given = await answer(question)
    seconds = time.perf_counter() - started
    return replace(given, seconds=seconds, joules=meter.joules_since(before) if meter else math.nan)


def _speed(
    seconds: Repeated,
    plain: Repeated,
    joules: Repeated,
    asked: Sequence[Question],
    answers: Sequence[tuple[int, ...]],
) -> Speed:
    def of(places: Sequence[int]) -> Speed:
        mine, its, taken = ([[run[place] for place in places] for run in runs] for runs in (seconds, plain, joules))
        return Speed.of(mine, its, [len(answers[place]) for place in places], taken)

    groups = {name: of(places) for name, places in (by_group(asked) or by_family(asked)).items()}
    return replace(of(range(len(asked))), by_group=groups)


def drafter_label(drafter: str) -> str:
    """Return the last part of the path, options included."""
    name, comma, options = drafter.partition(",")  # an option may name a path, too
    return f"{name.rsplit('/', 1)[-1]}{comma}{options}"
