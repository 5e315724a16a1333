"""All drafters and controls on the same prompts, in one run: acceptance, cost and speed.

Everything answers a prompt before the next prompt comes, in an order drawn at random, so that a noisy machine is noisy
for all and nobody always follows the same one. All prompts are asked several times. Every way has a session of its own
that meets each prompt cold, and has answered another one before. The speedup is the median over prompts of the ratio to
the plain loop on that prompt, and of these the median over the repetitions.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from outrider_bench.core.acceptance import PositionAcceptance, TauByText, acceptance_by_position
from outrider_bench.core.answer_record import AnswerRecord, gather
from outrider_bench.core.bootstrap import Interval, median_interval
from outrider_bench.core.pair import COLD, InProcessPair, in_process, stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import WARM_UP_TOKENS, AskedPrompts, Question, QuestionSource, by_family, by_group
from outrider_bench.core.reference_answers import LOOKUP_TOKENS, GenerateModel
from outrider_bench.core.stats import median_of_medians
from outrider_bench.core.tapped_transport import TappedTransport, WiredConnection
from outrider_bench.core.timed_drafter import TimedDrafter
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.draft_history import DraftHistory
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.suffix.index import History
from outrider_models.core.embedded import drafter_source
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

PLAIN = "plain loop"
AnswerFunction = Callable[[Question], Awaitable[tuple[int, ...]]]
Repeated = Sequence[Sequence[float]]  # by repetition and prompt


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second, and the ratio to the plain loop: medians over prompts, then over repetitions.

    `*_ci95` are their 95 % intervals, `by_group` has easy and hard text apart, or a user's categories.
    """

    tokens_per_s: float
    speedup: float
    tokens_per_s_ci95: Interval | None
    speedup_ci95: Interval | None
    by_group: Mapping[str, Speed] = field(default_factory=dict)

    @classmethod
    def of(cls, seconds: Repeated, plain: Repeated, lengths: Sequence[int]) -> Speed:
        """Compute it from the seconds of each answer and of the plain loop's, and the answers' tokens."""
        rates = [[tokens / took for tokens, took in zip(lengths, run, strict=True)] for run in seconds]
        ratios = [
            [its / mine for its, mine in zip(theirs, run, strict=True)]
            for theirs, run in zip(plain, seconds, strict=True)
        ]
        return cls(
            median_of_medians(rates) or 0.0,
            median_of_medians(ratios) or 0.0,
            median_interval(rates),
            median_interval(ratios),
        )


@dataclass(frozen=True, slots=True)
class DrafterMetrics:
    """One drafter's acceptance lengths, acceptance by position, time per drafted level, and bytes per token.

    All but the time are the same in every repetition. `*_ci95` are 95 % intervals, those of tau as in TauByText.
    `mismatches` counts answers that differ from the plain loop's.
    """

    family: str
    tau: Mapping[str, float]
    overall: float
    positions: PositionAcceptance
    draft_ms_per_level: float
    bytes_up_per_token: float
    bytes_down_per_token: float
    mismatches: int
    tau_by_group: Mapping[str, float]
    tau_ci95: Mapping[str, Interval | None]
    draft_ms_per_level_ci95: Interval | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Metrics by drafter, and speeds of drafters, controls and the plain loop."""

    drafters: Mapping[str, DrafterMetrics]
    speeds: Mapping[str, Speed]
    repetitions: int
    seed: int  # of the order


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
    """A target in process and a timed drafter."""

    pair: InProcessPair
    timed: TimedDrafter

    @classmethod
    async def begin(cls, target: Target, config: ClientConfig, stack: AsyncExitStack) -> _TimedPair:
        """Serve the target to the configuration's drafter until the stack closes."""
        pair = await stack.enter_async_context(in_process(Path(str(config.target)), config, target, COLD))
        assert pair.models.drafter is not None
        return cls(pair, TimedDrafter(pair.models.drafter))

    async def client(self, stack: AsyncExitStack, history: DraftHistory | None) -> AsyncClient:
        """Return a client with a session of its own, and frames packed as on the wire."""
        models = replace(self.pair.models, drafter=self.timed, history=history)
        transport = TappedTransport(self.pair.transport(), WiredConnection)
        return await stack.enter_async_context(AsyncClient(self.pair.config, models=models, transport=transport))


class DrafterRun:
    """One drafter that answers question after question."""

    def __init__(self, client: AsyncClient, timed: TimedDrafter, plan: TreePlan | None, limit: int) -> None:
        self._client, self._timed, self._plan, self._limit = client, timed, plan, limit
        self._answers: list[AnswerRecord] = []
        self._ms_per_level: list[float] = []

    async def warm_up(self, question: Question) -> None:
        await gather(self._client, question.prompt, shape=self._plan, max_new_tokens=min(self._limit, WARM_UP_TOKENS))

    async def answer(self, question: Question) -> tuple[int, ...]:
        seconds, levels = self._timed.seconds, self._timed.num_levels
        answer = await gather(self._client, question.prompt, shape=self._plan, max_new_tokens=self._limit)
        levels = self._timed.num_levels - levels
        self._ms_per_level.append((self._timed.seconds - seconds) * 1e3 / levels if levels else math.nan)
        self._answers.append(answer)
        return answer.token_ids

    def result(self, prompts: AskedPrompts, expected: Sequence[tuple[int, ...]]) -> DrafterMetrics:
        """Return the metrics; `expected` has an answer to each of the prompts."""
        once = self._answers[: len(prompts.asked)]
        tau = TauByText.of(prompts.asked, [answer.cycles for answer in once])
        tokens = sum(len(answer.token_ids) for answer in once)
        level_ms = prompts.by_repetition(self._ms_per_level)
        return DrafterMetrics(
            family=self._timed.family,
            tau=tau.by_family,
            overall=tau.overall,
            positions=acceptance_by_position([cycle for answer in once for cycle in answer.cycles]),
            draft_ms_per_level=median_of_medians(level_ms) or 0.0,
            bytes_up_per_token=sum(answer.statistics.bytes_up for answer in once) / tokens,
            bytes_down_per_token=sum(answer.statistics.bytes_down for answer in once) / tokens,
            mismatches=sum(
                answer.token_ids != expected[number % len(expected)] for number, answer in enumerate(self._answers)
            ),
            tau_by_group=tau.by_group,
            tau_ci95=tau.ci95,
            draft_ms_per_level_ci95=median_interval(level_ms),
        )


@dataclass(frozen=True, slots=True)
class Controls:
    """The target without drafting of ours; greedy, one answer at a time.

    `plain` is a target that serves nobody, `model` the same one in transformers, `assistants` small models with the
    same tokenizer for assisted generation.
    """

    plain: Target
    model: GenerateModel
    assistants: Mapping[str, GenerateModel]
    limit: int

    @classmethod
    def load(cls, target: Path, assistants: Mapping[str, Path], limit: int) -> Controls:
        loaded = {name: GenerateModel.load(path) for name, path in assistants.items()}
        plain = Target.load(str(target))
        return cls(plain, GenerateModel.load(target, eos_token_ids=plain.eos_token_ids), loaded, limit)

    def answer_functions(self) -> dict[str, AnswerFunction]:
        answer_functions: dict[str, AnswerFunction] = {PLAIN: self._plain, "generate": self._generate_with()}
        answer_functions["generate, prompt lookup"] = self._generate_with(prompt_lookup_num_tokens=LOOKUP_TOKENS)
        for name, model in self.assistants.items():
            answer_functions[f"generate, assistant {name}"] = self._generate_with(**self.model.with_assistant(model))
        return answer_functions

    async def _plain(self, question: Question) -> tuple[int, ...]:
        return tuple(plain_greedy(self.plain, question.prompt, self.limit))

    def _generate_with(self, **how: object) -> AnswerFunction:
        async def answer(question: Question) -> tuple[int, ...]:
            return self.model.answer(question.prompt, self.limit, **how).token_ids

        return answer


async def compare(
    entries: Mapping[str, DrafterEntry], controls: Controls, serving: Target, prompts: AskedPrompts, step: Step
) -> Comparison:
    """Answer all questions with drafters and controls; `serving` is the target of the drafters' server."""
    asked = prompts.asked
    async with AsyncExitStack() as stack:
        runs = await _start_runs(entries, controls.limit, serving, stack)
        answer_functions = controls.answer_functions() | {name: run.answer for name, run in runs.items()}
        for warm_up in (*controls.answer_functions().values(), *(run.warm_up for run in runs.values())):
            await warm_up(prompts.warm_up)
        counter = ProgressCounter(step, "comparing", len(prompts) * len(answer_functions))
        seconds: dict[str, list[float]] = {name: [] for name in answer_functions}
        expected: dict[int, tuple[int, ...]] = {}
        for place, name in prompts.order(answer_functions):
            answer = await _answer_timed(answer_functions[name], asked[place], seconds[name])
            if name == PLAIN:
                expected[place] = answer
            counter()
    answers = [expected[place] for place in range(len(asked))]
    repeated = {name: prompts.by_repetition(times) for name, times in seconds.items()}
    return Comparison(
        {name: run.result(prompts, answers) for name, run in runs.items()},
        {name: _speed(times, repeated[PLAIN], asked, answers) for name, times in repeated.items()},
        prompts.repetitions,
        prompts.seed,
    )


async def _start_runs(
    entries: Mapping[str, DrafterEntry], limit: int, serving: Target, stack: AsyncExitStack
) -> dict[str, DrafterRun]:
    """Start a run per entry; entries with one configuration share its models, but not a session."""
    pairs: dict[ClientConfig, _TimedPair] = {}
    runs = {}
    for name, entry in entries.items():
        if entry.config not in pairs:
            pairs[entry.config] = await _TimedPair.begin(serving, entry.config, stack)
        pair = pairs[entry.config]
        runs[name] = DrafterRun(await pair.client(stack, entry.history), pair.timed, entry.plan, limit)
    return runs


async def _answer_timed(answer: AnswerFunction, question: Question, seconds: list[float]) -> tuple[int, ...]:
    started = time.perf_counter()
    tokens = await answer(question)
    seconds.append(time.perf_counter() - started)
    return tokens


def _speed(seconds: Repeated, plain: Repeated, asked: Sequence[Question], answers: Sequence[tuple[int, ...]]) -> Speed:
    def of(places: Sequence[int]) -> Speed:
        mine, its = ([[run[place] for place in places] for run in times] for times in (seconds, plain))
        return Speed.of(mine, its, [len(answers[place]) for place in places])

    groups = {name: of(places) for name, places in (by_group(asked) or by_family(asked)).items()}
    return replace(of(range(len(asked))), by_group=groups)


def compare_drafters(
    directory: Path,
    source: QuestionSource,
    entries: Mapping[str, DrafterEntry],
    assistants: Sequence[Path],
    per_family: int | None,
    limit: int,
    repetitions: int,
    seed: int,
    step: Step,
    before: QuestionSource | None = None,
) -> Comparison:
    """Compare the entries and the controls on the source's questions for the target in `directory`.

    With `before`, every entry is there twice: also with a history of the target's answers to those questions.
    """
    models = LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER))
    controls = Controls.load(directory, {path.name: path for path in assistants}, limit)
    asked = source.per_family(models, per_family, limit, partial(plain_greedy, controls.plain))
    prompts = AskedPrompts(asked, source.warm_up(models), repetitions, seed)
    if before is not None:
        earlier = before.per_family(models, None, limit, partial(plain_greedy, controls.plain))
        history = AnswersBefore([plain_greedy(controls.plain, question.prompt, limit) for question in earlier])
        entries = dict(entries) | {f"{name}, history": replace(one, history=history) for name, one in entries.items()}
    return asyncio.run(compare(entries, controls, Target.load(str(directory)), prompts, step))


def drafter_entry(directory: Path, drafter: str, plan: TreePlan | None) -> DrafterEntry:
    return DrafterEntry(stop_and_wait_config(target=directory, drafter=drafter_source(drafter)), plan)


def drafter_label(drafter: str) -> str:
    """Return the last part of the path, options included."""
    name, comma, options = drafter.partition(",")  # an option may name a path, too
    return f"{name.rsplit('/', 1)[-1]}{comma}{options}"
