"""Ways of answering that a comparison asks in turn: drafters in process, and controls without drafting of ours."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from outrider_bench.core.answer_record import AnswerRecord, gather
from outrider_bench.core.pair import COLD, InProcessPair, in_process
from outrider_bench.core.prompts import WARM_UP_TOKENS, Question
from outrider_bench.core.reference_answers import INT8, LOOKUP_TOKENS, GenerateModel
from outrider_bench.core.tapped_transport import TappedTransport, WiredConnection
from outrider_bench.studies.drafters.comparison_report import (
    PLAIN,
)
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import ClientConfig
from outrider_client.models.draft_history import DraftHistory
from outrider_drafters.contracts.drafter import Drafter, DraftState
from outrider_drafters.contracts.drafter_wrapper import DrafterWrapper, StateWrapper
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.suffix.index import History
from outrider_drafters.routing.routed_drafter import RoutedDrafter
from outrider_proto.errors import UsageError
from outrider_proto.frames import Sampling
from outrider_server.engine.reference_decode import plain_answer
from outrider_server.engine.target import Target


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


@dataclass(frozen=True, slots=True)
class Controls:
    """The target without drafting of ours, one answer at a time.

    `plain` is a target that serves nobody, `model` the same one in transformers, `assistants` small models with the
    same tokenizer for assisted generation. Sampled and in int8 the plain loop is alone: transformers draws otherwise,
    and has no such model.
    """

    plain: Target
    model: GenerateModel | None
    assistants: Mapping[str, GenerateModel]
    limit: int
    sampling: Sampling

    @classmethod
    def load(cls, target: Path, assistants: Mapping[str, Path], limit: int, sampling: Sampling, dtype: str) -> Controls:
        """Load them. Raises UsageError for assistants of sampled answers and in int8."""
        if sampling.draws and assistants:
            raise UsageError(f"temperature={sampling.temperature}: assistant needs 0, greedy answers")
        if dtype == INT8 and assistants:
            raise UsageError("dtype=int8: assistant needs float32, bfloat16 or float16, which transformers has")
        plain = Target.load(str(target), dtype)
        if sampling.draws or dtype == INT8:
            return cls(plain, None, {}, limit, sampling)
        loaded = {name: GenerateModel.load(path, plain.kv.dtype) for name, path in assistants.items()}
        model = GenerateModel.load(target, plain.kv.dtype, eos_token_ids=plain.eos_token_ids)
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
        return ComparedAnswer(tuple(plain_answer(self.plain, question.prompt, self.limit, self.sampling)))

    def _generate_with(self, model: GenerateModel, **how: object) -> AnswerFunction:
        async def answer(question: Question) -> ComparedAnswer:
            return ComparedAnswer(model.answer(question.prompt, self.limit, **how).token_ids)

        return answer


async def start_runs(
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


class TimedDrafter(DrafterWrapper):
    """Adds up the time of its forward passes and of features, and counts drafted levels."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.seconds = 0.0
        self.num_levels = 0

    def new_state(self) -> DraftState:
        return _TimedState(self.inner.new_state(), self)

    def around(self, run: Callable[[], Tensor]) -> Tensor:
        """Run a forward pass and measure it."""
        started = time.perf_counter()
        logits = run()
        self.num_levels += 1
        self.seconds += time.perf_counter() - started
        return logits


class _TimedState(StateWrapper):
    def __init__(self, inner: DraftState, drafter: TimedDrafter) -> None:
        super().__init__(inner, drafter)
        self._drafter = drafter

    def add_features(self, first: int, rows: Tensor) -> None:
        started = time.perf_counter()
        # Some drafters run a forward pass over features, so it belongs to the time of drafting.
        super().add_features(first, rows)
        self._drafter.seconds += time.perf_counter() - started
