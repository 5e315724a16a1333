"""All drafters and controls on the same prompts, in one run: acceptance, cost and speed.

Everything answers a prompt before the next prompt comes, so that a noisy machine is noisy for all. The speedup is the
median over prompts of the ratio to the plain loop on that prompt.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from outrider_bench.core.acceptance import PositionAcceptance, acceptance_by_family, acceptance_by_position
from outrider_bench.core.answer_record import gather, mean_acceptance_length
from outrider_bench.core.pair import in_process, stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question, questions
from outrider_bench.core.tapped_transport import TappedTransport, WiredConnection
from outrider_bench.core.timed_drafter import TimedDrafter
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.core.events import Cycle
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_models.core.embedded import drafter_source
from outrider_proto.errors import UsageError
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

PLAIN = "plain loop"
LOOKUP_TOKENS = 10  # transformers' own default for prompt lookup
AnswerFunction = Callable[[Question], Awaitable[tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Speed:
    """Medians over prompts: tokens per second, and the ratio to the plain loop."""

    tokens_per_s: float
    speedup: float


@dataclass(frozen=True, slots=True)
class DrafterMetrics:
    """One drafter's acceptance lengths, acceptance by position, time per drafted level, and bytes per token.

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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Metrics by drafter, and speeds of drafters, controls and the plain loop."""

    drafters: Mapping[str, DrafterMetrics]
    speeds: Mapping[str, Speed]


@dataclass(frozen=True, slots=True)
class DrafterEntry:
    """A drafter to compare: its client's configuration, and its trees (None: its own)."""

    config: ClientConfig
    plan: TreePlan | None = None


@dataclass(frozen=True, slots=True)
class _TimedClient:
    """A client of the target in process, with frames packed as on the wire and a timed drafter."""

    client: AsyncClient
    timed: TimedDrafter

    @classmethod
    async def begin(cls, target: Target, config: ClientConfig, stack: AsyncExitStack) -> _TimedClient:
        """Serve the target to the configuration's drafter until the stack closes."""
        pair = await stack.enter_async_context(in_process(Path(str(config.target)), config, target))
        assert pair.models.drafter is not None
        timed = TimedDrafter(pair.models.drafter)
        models, transport = replace(pair.models, drafter=timed), TappedTransport(pair.transport(), WiredConnection)
        return cls(await stack.enter_async_context(AsyncClient(config, models=models, transport=transport)), timed)


class DrafterRun:
    """One drafter that answers question after question."""

    def __init__(self, served: _TimedClient, plan: TreePlan | None, limit: int) -> None:
        self._client, self._answer_timed, self._plan, self._limit = served.client, served.timed, plan, limit
        self.answers: list[tuple[int, ...]] = []
        self._cycles: list[tuple[Cycle, ...]] = []
        self._ms_per_level: list[float] = []
        self._bytes = [0, 0]

    async def answer(self, question: Question) -> tuple[int, ...]:
        seconds, levels = self._answer_timed.seconds, self._answer_timed.num_levels
        answer = await gather(self._client, question.prompt, shape=self._plan, max_new_tokens=self._limit)
        if levels := self._answer_timed.num_levels - levels:
            self._ms_per_level.append((self._answer_timed.seconds - seconds) * 1e3 / levels)
        self._bytes[0] += answer.statistics.bytes_up
        self._bytes[1] += answer.statistics.bytes_down
        self._cycles.append(answer.cycles)
        self.answers.append(answer.token_ids)
        return answer.token_ids

    def result(self, asked: Sequence[Question], expected: Sequence[tuple[int, ...]]) -> DrafterMetrics:
        every = [cycle for cycles in self._cycles for cycle in cycles]
        tokens = sum(map(len, self.answers))
        return DrafterMetrics(
            family=self._answer_timed.family,
            tau=acceptance_by_family(asked, self._cycles),
            overall=mean_acceptance_length(every),
            positions=acceptance_by_position(every),
            draft_ms_per_level=statistics.median(self._ms_per_level) if self._ms_per_level else 0.0,
            bytes_up_per_token=self._bytes[0] / tokens,
            bytes_down_per_token=self._bytes[1] / tokens,
            mismatches=sum(mine != theirs for mine, theirs in zip(self.answers, expected, strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Controls:
    """The target without drafting of ours; greedy, one answer at a time.

    `plain` is a target that serves nobody, `model` the same one in transformers, `assistants` small models with the
    same tokenizer for assisted generation.
    """

    plain: Target
    model: Any  # Any: transformers' classes are untyped
    assistants: Mapping[str, Any]
    limit: int

    @classmethod
    def load(cls, target: Path, assistants: Mapping[str, Path], limit: int) -> Controls:
        loaded = {name: _load(path) for name, path in assistants.items()}
        return cls(Target.load(str(target)), _load(target), loaded, limit)

    def answer_functions(self) -> dict[str, AnswerFunction]:
        answer_functions: dict[str, AnswerFunction] = {PLAIN: self._plain, "generate": self._generate_with()}
        answer_functions["generate, prompt lookup"] = self._generate_with(prompt_lookup_num_tokens=LOOKUP_TOKENS)
        for name, model in self.assistants.items():
            answer_functions[f"generate, assistant {name}"] = self._generate_with(assistant_model=model)
        return answer_functions

    async def _plain(self, question: Question) -> tuple[int, ...]:
        return tuple(plain_greedy(self.plain, question.prompt, self.limit))

    def _generate_with(self, **how: object) -> AnswerFunction:
        async def answer(question: Question) -> tuple[int, ...]:
            ids = torch.tensor([question.prompt])
            with torch.inference_mode():
                # Without a mask, generate infers one from the pad token, which may occur in a prompt.
                made = self.model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=self.limit, **how
                )
            return tuple(made[0, len(question.prompt) :].tolist())

        return answer


def _load(directory: Path) -> Any:  # Any: as above
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(str(directory), dtype=torch.float32, trust_remote_code=False)
    except (ValueError, OSError) as error:
        raise UsageError(f"{directory}: not a causal language model that transformers loads ({error})") from error


async def compare(
    entries: Mapping[str, DrafterEntry], controls: Controls, serving: Target, asked: Sequence[Question], step: Step
) -> Comparison:
    """Answer all questions with drafters and controls; `serving` is the target of the drafters' server."""
    counter = ProgressCounter(step, "comparing", len(asked))
    async with AsyncExitStack() as stack:
        runs = await _start_runs(entries, controls.limit, serving, stack)
        answer_functions = controls.answer_functions() | {name: run.answer for name, run in runs.items()}
        seconds: dict[str, list[float]] = {name: [] for name in answer_functions}
        expected = []
        for question in asked:
            answers = {
                name: await _answer_timed(answer, question, seconds[name]) for name, answer in answer_functions.items()
            }
            expected.append(answers[PLAIN])
            counter()
    lengths = [len(answer) for answer in expected]
    return Comparison(
        {name: run.result(asked, expected) for name, run in runs.items()},
        {name: _speed(times, seconds[PLAIN], lengths) for name, times in seconds.items()},
    )


async def _start_runs(
    entries: Mapping[str, DrafterEntry], limit: int, serving: Target, stack: AsyncExitStack
) -> dict[str, DrafterRun]:
    """Start a run per entry; entries with one configuration share a client."""
    served: dict[ClientConfig, _TimedClient] = {}
    runs = {}
    for name, entry in entries.items():
        if entry.config not in served:
            served[entry.config] = await _TimedClient.begin(serving, entry.config, stack)
        runs[name] = DrafterRun(served[entry.config], entry.plan, limit)
    return runs


async def _answer_timed(answer: AnswerFunction, question: Question, seconds: list[float]) -> tuple[int, ...]:
    started = time.perf_counter()
    tokens = await answer(question)
    seconds.append(time.perf_counter() - started)
    return tokens


def _speed(seconds: Sequence[float], plain: Sequence[float], lengths: Sequence[int]) -> Speed:
    return Speed(
        tokens_per_s=statistics.median(count / time_s for count, time_s in zip(lengths, seconds, strict=True)),
        speedup=statistics.median(theirs / mine for theirs, mine in zip(plain, seconds, strict=True)),
    )


def compare_drafters(
    directory: Path,
    entries: Mapping[str, DrafterEntry],
    assistants: Sequence[Path],
    per_family: int,
    limit: int,
    step: Step,
) -> Comparison:
    """Compare the entries and the controls on held-out questions for the target in `directory`."""
    asked = questions(LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER)), per_family)
    controls = Controls.load(directory, {path.name: path for path in assistants}, limit)
    return asyncio.run(compare(entries, controls, Target.load(str(directory)), asked, step))


def drafter_entry(directory: Path, drafter: str, plan: TreePlan | None) -> DrafterEntry:
    return DrafterEntry(stop_and_wait_config(target=directory, drafter=drafter_source(drafter)), plan)


def drafter_label(drafter: str) -> str:
    """Return the last part of the path, options included."""
    return drafter.rsplit("/", 1)[-1]
