"""All drafters and controls on the same prompts, in one run: acceptance, cost and speed.

Everything answers a prompt before the next prompt comes, in an order drawn at random, so that a noisy machine is noisy
for all and nobody always follows the same one. All prompts are asked several times. Every way has a session of its own
that meets each prompt cold, and has answered another one before. The speedup is the median over prompts of the ratio to
the plain loop on that prompt, and of these the median over the repetitions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from outrider_bench.core.acceptance import TauByText, acceptance_by_position
from outrider_bench.core.answer_record import AnswerRecord, gather, mean_acceptance_length
from outrider_bench.core.bootstrap import median_interval
from outrider_bench.core.energy import EnergyMeter
from outrider_bench.core.pair import COLD, InProcessPair, in_process, stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import WARM_UP_TOKENS, AskedPrompts, Question, by_family, by_group
from outrider_bench.core.reference_answers import LOOKUP_TOKENS, ROUNDED_SHARE, GenerateModel
from outrider_bench.core.stats import median_of_medians
from outrider_bench.core.tables import ResultTable
from outrider_bench.core.tapped_transport import TappedTransport, WiredConnection
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
from outrider_bench.studies.drafters.options import ComparedOptions, ComparisonOptions
from outrider_bench.studies.timed_drafter import TimedDrafter
from outrider_client.async_client import AsyncClient
from outrider_client.cli.options import tree_plan
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.draft_history import DraftHistory
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.suffix.index import History
from outrider_drafters.routing.routed_drafter import RoutedDrafter
from outrider_models.core.embedded import drafter_source
from outrider_proto.errors import UsageError
from outrider_proto.frames import Sampling
from outrider_server.engine.reference_decode import plain_decode, plain_greedy
from outrider_server.engine.target import Target

RESULT = "compared"  # the last row


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """One way's answer to a prompt; of a drafter also ms per drafted level, and in the first repetition its cycles.

    `joules` are NaN where the machine has no meter.
    """

    token_ids: tuple[int, ...]
    seconds: float = math.nan
    record: AnswerRecord | None = None
    ms_per_level: float = math.nan
    joules: float = math.nan


AnswerFunction = Callable[[Question], Awaitable[ComparedAnswer]]
_Round = dict[str, ComparedAnswer]  # all ways' answers to one prompt


@dataclass(frozen=True, slots=True)
class DrafterEntry:
    """A drafter to compare: its client's configuration, its trees (None: its own), and the history it drafts from."""

    config: ClientConfig
    plan: TreePlan | None = None
    history: DraftHistory | None = None


class AnswersBefore(DraftHistory):
    """A history that holds these answers, and none of those that are measured."""

    def __init__(self, answers: Sequence[Sequence[int]]) -> None:
        self._answers = History(answers)

    def texts(self) -> History:
        return self._answers

    def add(self, answer: Sequence[int]) -> None:
        """Leave it out: the next repetition asks the same question."""

    def take_warnings(self) -> list[str]:
        return []


@dataclass(frozen=True, slots=True)
class _TimedPair:
    """A target in process, and a drafter: a timed one, or several heads."""

    pair: InProcessPair
    drafter: Drafter

    @classmethod
    async def begin(cls, target: Target, config: ClientConfig, stack: AsyncExitStack) -> _TimedPair:
        """Serve the target to the configuration's drafter until the stack closes."""
        pair = await stack.enter_async_context(in_process(Path(str(config.target)), config, target, COLD))
        drafter = pair.models.drafter
        assert drafter is not None
        # Around several heads it would hide that there is a choice, around each of them that they fit into one batch.
        return cls(pair, drafter if isinstance(drafter, RoutedDrafter) else TimedDrafter(drafter))

    async def client(self, stack: AsyncExitStack, history: DraftHistory | None) -> AsyncClient:
        """Return a client with a session of its own, and frames packed as on the wire."""
        models = replace(self.pair.models, drafter=self.drafter, history=history)
        transport = TappedTransport(self.pair.transport(), WiredConnection)
        return await stack.enter_async_context(AsyncClient(self.pair.config, models=models, transport=transport))


class DrafterRun:
    """One drafter that answers question after question."""

    def __init__(self, client: AsyncClient, drafter: Drafter, **how: Any) -> None:  # Any: ClientConfig's fields
        self._client, self._how = client, how
        self._timed = drafter if isinstance(drafter, TimedDrafter) else None
        self.family = drafter.family

    async def warm_up(self, question: Question) -> None:
        limit = min(self._how["max_new_tokens"], WARM_UP_TOKENS)
        await gather(self._client, question.prompt, **self._how | {"max_new_tokens": limit})

    async def answer(self, question: Question) -> ComparedAnswer:
        seconds, levels = self._drafted
        answer = await gather(self._client, question.prompt, **self._how)
        levels = self._drafted[1] - levels
        ms_per_level = (self._drafted[0] - seconds) * 1e3 / levels if levels else math.nan
        return ComparedAnswer(answer.token_ids, record=answer, ms_per_level=ms_per_level)

    @property
    def _drafted(self) -> tuple[float, int]:
        """Seconds and levels so far; none of several heads."""
        return (0.0, 0) if self._timed is None else (self._timed.seconds, self._timed.num_levels)


def drafter_metrics(
    family: str, prompts: AskedPrompts, answers: Sequence[ComparedAnswer], mismatches: int
) -> DrafterMetrics:
    """Compute a drafter's metrics from its answers to all prompts in all repetitions."""
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
        mismatches=mismatches,
        tau_by_group=tau.by_group,
        tau_ci95=tau.ci95,
        draft_ms_per_level_ci95=median_interval(level_ms),
    )


@dataclass(frozen=True, slots=True)
class Controls:
    """The target without drafting of ours, one answer at a time.

    `plain` is a target that serves nobody, `model` the same one in transformers, `assistants` small models with the
    same tokenizer for assisted generation. Sampled, the plain loop is alone: the draws of transformers are others.
    """

    plain: Target
    model: GenerateModel | None
    assistants: Mapping[str, GenerateModel]
    limit: int
    sampling: Sampling

    @classmethod
    def load(cls, target: Path, assistants: Mapping[str, Path], limit: int, sampling: Sampling) -> Controls:
        """Load them. Raises UsageError for assistants of sampled answers."""
        if sampling.draws and assistants:
            raise UsageError(f"temperature={sampling.temperature}: --assistant needs 0, greedy answers")
        loaded = {name: GenerateModel.load(path) for name, path in assistants.items()}
        plain = Target.load(str(target))
        model = None if sampling.draws else GenerateModel.load(target, eos_token_ids=plain.eos_token_ids)
        return cls(plain, model, loaded, limit, sampling)

    def answer_functions(self) -> dict[str, AnswerFunction]:
        answer_functions: dict[str, AnswerFunction] = {PLAIN: self._plain}
        if self.model is not None:
            generate = partial(self._generate_with, self.model)
            answer_functions["generate"] = generate()
            answer_functions["generate, prompt lookup"] = generate(prompt_lookup_num_tokens=LOOKUP_TOKENS)
            for name, model in self.assistants.items():
                answer_functions[f"generate, assistant {name}"] = generate(**self.model.with_assistant(model))
        return answer_functions

    async def _plain(self, question: Question) -> ComparedAnswer:
        return ComparedAnswer(tuple(plain_decode(self.plain, question.prompt, self.limit, self.sampling)))

    def _generate_with(self, model: GenerateModel, **how: object) -> AnswerFunction:
        async def answer(question: Question) -> ComparedAnswer:
            return ComparedAnswer(model.answer(question.prompt, self.limit, **how).token_ids)

        return answer


ComparedRow = _Round | Comparison


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
    controls = Controls.load(directory, {path.name: path for path in assistants}, limit, sampling)
    answer = partial(plain_greedy, controls.plain)
    asked = options.source.per_family(models, per_family, limit, answer)
    prompts = AskedPrompts(asked, options.source.warm_up(models), options.repetitions, options.seed)
    if before is not None:
        earlier = source_of(directory, before, None).per_family(models, None, limit, answer)
        history = AnswersBefore([answer(question.prompt, limit) for question in earlier])
        with_history = {f"{name}, history": replace(one, history=history) for name, one in entries.items()}
        entries = {**entries, **with_history}
    async with AsyncExitStack() as stack:
        serving, meter = Target.load(str(directory)), EnergyMeter.of_machine()
        runs = await _start_runs(entries, serving, stack, max_new_tokens=limit, sampling=sampling)
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
        result = compared({way: [one[way] for one in rounds_of(taken)] for way in ways}, families, prompts)
        yield RESULT, replace(result, temperature=temperature)


def rounds_of(rows: Mapping[str, ComparedRow]) -> list[_Round]:
    """Return all ways' answers, prompt by prompt, and repetition by repetition."""
    return [row for number in range(len(rows)) if isinstance(row := rows.get(str(number)), dict)]


def comparison_of(rows: Mapping[str, ComparedRow]) -> Comparison:
    result = rows[RESULT]
    assert isinstance(result, Comparison)
    return result


def mismatches_of(comparison: Comparison) -> list[str]:
    """Return a line for each drafter with more answers that are not the plain loop's than rounding explains."""
    answers = len(comparison.prompts) * comparison.repetitions
    allowed = ROUNDED_SHARE * answers if comparison.temperature else 0
    wrong = {name: its.mismatches for name, its in comparison.drafters.items() if its.mismatches > allowed}
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
            assistants=options.assistant or (),
            before=options.before,
            temperature=options.temperature,
        )

    def report(self, rows: Mapping[str, ComparedRow]) -> Comparison:
        return comparison_of(rows)

    @staticmethod
    def tables(report: Comparison) -> list[ResultTable]:
        return [families_table(report), positions_table(report), speeds_table(report)]

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
    answers: Mapping[str, Sequence[ComparedAnswer]], families: Mapping[str, str], prompts: AskedPrompts
) -> Comparison:
    """Compare the ways' answers; `families` are those of the drafters among them."""
    expected = [answer.token_ids for answer in answers[PLAIN]]
    seconds = {way: prompts.by_repetition([answer.seconds for answer in its]) for way, its in answers.items()}
    drafters = {
        way: drafter_metrics(
            family,
            prompts,
            answers[way],
            sum(answer.token_ids != right for answer, right in zip(answers[way], expected, strict=True)),
        )
        for way, family in families.items()
    }
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


async def _start_runs(
    entries: Mapping[str, DrafterEntry],
    serving: Target,
    stack: AsyncExitStack,
    **how: Any,  # Any: ClientConfig's fields
) -> dict[str, DrafterRun]:
    """Start a run per entry; entries with one configuration share its models, but not a session."""
    pairs: dict[ClientConfig, _TimedPair] = {}
    runs = {}
    for name, entry in entries.items():
        if entry.config not in pairs:
            pairs[entry.config] = await _TimedPair.begin(serving, entry.config, stack)
        pair = pairs[entry.config]
        runs[name] = DrafterRun(await pair.client(stack, entry.history), pair.drafter, shape=entry.plan, **how)
    return runs


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
