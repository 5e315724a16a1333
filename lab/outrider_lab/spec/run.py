"""Asks Spec-Bench's questions: all ways answer one before the next comes, in an order drawn at random."""

from __future__ import annotations

import math
import random
import time
import uuid
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import torch

from outrider_bench.core.pair import COLD, InProcessPair, in_process
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import WARM_UP, too_long, turn_prompt
from outrider_bench.core.reference_answers import LOOKUP_TOKENS, GenerateModel, departure, generate_dtype
from outrider_bench.core.tables import show_line
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_lab.spec.plan import ASSISTANT, BASELINE, LOOKUP, PLAIN, SpecPlan
from outrider_lab.spec.records import QuestionRecord, TurnRecord, record_name
from outrider_lab.spec.ways import ClientWay, GenerateWay, PlainWay, Way
from outrider_models.core.questions import UserQuestion
from outrider_proto.errors import UsageError
from outrider_server.engine.hf_model import is_small
from outrider_server.engine.reference_decode import plain_logits
from outrider_server.engine.target import Target

WARM_UPS = 3  # Spec-Bench's
WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """The questions whose first turns fit, and a line for each of the others."""

    questions: Sequence[UserQuestion]
    left_out: Sequence[str]

    @classmethod
    def of(cls, plan: SpecPlan, models: LocalModels) -> Asked:
        """Raises UsageError where nothing fits."""
        left_out = {}
        for question in plan.source.asked:
            size = len(turn_prompt(models, question, ()))
            if size >= models.max_context:
                left_out[question.id] = too_long(question, 1, size, 1, models.max_context)
        fitting = [question for question in plan.source.asked if question.id not in left_out]
        if not fitting:
            raise UsageError(f"questions: none fits the target's context of {models.max_context}")
        return cls(fitting, tuple(left_out.values()))


def load_asked(plan: SpecPlan) -> Asked:
    """Return what is asked; a line tells what is not."""
    asked = Asked.of(plan, LocalModels.load(ClientConfig(target=plan.target, drafter=NO_DRAFTER)))
    for line in asked.left_out:
        show_line(line)
    return asked


async def answer_all(
    plan: SpecPlan, asked: Asked, taken: Collection[str], step: Step
) -> AsyncGenerator[QuestionRecord, None]:
    """Ask what is not in `taken`, names of records, run after run."""
    slots = [
        (run, question, way)
        for run in range(plan.runs)
        for place, question in enumerate(asked.questions)
        for way in _order(plan, run, place)
        if record_name(run, question.id, way) not in taken
    ]
    if not slots:
        return
    counter = ProgressCounter(step, "answers", len(slots))
    loaded = _Loaded.load(plan)
    for run in sorted({run for run, _, _ in slots}):
        async with AsyncExitStack() as stack:
            ways = await loaded.ways(plan, stack)
            await _warm_up(ways, loaded.models, asked.questions[0])
            for _, question, way in (slot for slot in slots if slot[0] == run):
                turns = await _ask(ways[way], question, loaded.models, plan.max_new_tokens)
                yield _record(run, question, way, turns)
                counter()


def largest_gaps(plan: SpecPlan, asked: Asked, records: Sequence[QuestionRecord]) -> dict[str, float | None]:
    """Return how far apart two tokens' logits were where an answer left the plain loop's: the largest gap by way.

    The target computes them once more, in its own type. Ways without such answers are left out; None: one answer merely
    ends earlier.
    """
    taken = {record.name: record for record in records}
    right = {record.name: taken[record_name(record.run, record.question_id, PLAIN)] for record in records}
    apart = [record for record in records if record.token_ids != right[record.name].token_ids]
    if not apart:
        return {}
    target = Target.load(str(plan.target), plan.dtype, plan.device)
    models = LocalModels.load(ClientConfig(target=plan.target, drafter=NO_DRAFTER))
    questions, gaps = {question.id: question for question in asked.questions}, dict[str, float]()
    for record in apart:
        gap = _gap(target, models, questions[record.question_id], record, right[record.name])
        gaps[record.way] = max(gaps.get(record.way, 0.0), gap)
    # JSON has no infinity.
    return {way: None if math.isinf(gap) else gap for way, gap in gaps.items()}


def _gap(
    target: Target, models: LocalModels, question: UserQuestion, record: QuestionRecord, right: QuestionRecord
) -> float:
    """Return the gap at the first token that differs; infinite where one answer ends and the other does not."""
    for number, (mine, theirs) in enumerate(zip(record.turns, right.turns, strict=False)):
        if mine.token_ids == theirs.token_ids:
            continue
        at = departure(str(question.id), mine.token_ids, theirs.token_ids)
        assert at is not None
        prompt = turn_prompt(models, question, [turn.text for turn in right.turns[:number]])
        if at.expected is None or at.found is None:
            return math.inf
        logits = plain_logits(target, (*prompt, *theirs.token_ids[: at.place]))[-1]
        return float(logits[at.expected] - logits[at.found])
    return math.inf


def _order(plan: SpecPlan, run: int, place: int) -> list[str]:
    return random.Random(f"{plan.seed}/{run}/{place}").sample(plan.ways, len(plan.ways))


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Models that all runs share; `serving` is the target of our ways in process."""

    models: LocalModels
    plain: Target
    serving: Target
    generate: GenerateModel
    assistant: GenerateModel | None

    @classmethod
    def load(cls, plan: SpecPlan) -> _Loaded:
        """Load the models and set the number of threads."""
        plain = Target.load(str(plan.target), plan.dtype, plan.device)
        # As the server does: more threads are slower for a small target.
        if (count := plan.threads or (1 if is_small(plain.model) else None)) is not None:
            torch.set_num_threads(count)
        models = LocalModels.load(ClientConfig(target=plan.target, drafter=NO_DRAFTER))
        models.prepare()
        computed_in = generate_dtype(plan.target, plan.dtype, plan.device)
        generate = GenerateModel.load(plan.target, computed_in, plan.device, plain.eos_token_ids)
        assistant = None
        if plan.assistant is not None:
            assistant = GenerateModel.load(plan.assistant, computed_in, plan.device, plain.eos_token_ids)
        serving = Target.load(str(plan.target), plan.dtype, plan.device)
        return cls(models, plain, serving, generate, assistant)

    async def ways(self, plan: SpecPlan, stack: AsyncExitStack) -> dict[str, Way]:
        """Return all ways by name; ours have sessions of their own, and all with the same drafter share its models."""
        ways: dict[str, Way] = {
            BASELINE: GenerateWay(self.generate, {}),
            LOOKUP: GenerateWay(self.generate, {"prompt_lookup_num_tokens": LOOKUP_TOKENS}),
            PLAIN: PlainWay(self.plain),
        }
        if self.assistant is not None:
            ways[ASSISTANT] = GenerateWay(self.generate, self.generate.with_assistant(self.assistant))
        forget = turn_prompt(self.models, WARM_UP, ())
        pairs: dict[str, InProcessPair] = {}
        for name, spec in plan.clients.items():
            if spec.drafter not in pairs:
                pair = in_process(plan.target, plan.config(spec), self.serving, COLD)
                pairs[spec.drafter] = await stack.enter_async_context(pair)
            client = await stack.enter_async_context(pairs[spec.drafter].client())
            ways[name] = ClientWay(client, forget, dict(spec.choices))
        return ways


async def _warm_up(ways: Mapping[str, Way], models: LocalModels, question: UserQuestion) -> None:
    """Have every way begin the first question three times, before any time is taken."""
    prompt = turn_prompt(models, question, ())
    for way in ways.values():
        for _ in range(WARM_UPS):
            await way.answer(prompt, min(WARM_UP_TOKENS, models.max_context - len(prompt)))


async def _ask(way: Way, question: UserQuestion, models: LocalModels, limit: int) -> list[TurnRecord]:
    """Ask turn by turn, with this way's own answers in the history; it ends early where a turn no longer fits."""
    turns: list[TurnRecord] = []
    for _ in question.turns:
        prompt = turn_prompt(models, question, [turn.text for turn in turns])
        room = models.max_context - len(prompt)
        if room < 1:
            show_line(too_long(question, len(turns) + 1, len(prompt), 1, models.max_context))
            break
        answer = await way.answer(prompt, min(limit, room))
        text = models.decode(answer.token_ids).strip()
        turns.append(
            TurnRecord(text, len(prompt), answer.token_ids, answer.tokens_by_pass, answer.wall_s, answer.ttft_s)
        )
    return turns


def _record(run: int, question: UserQuestion, way: str, turns: Sequence[TurnRecord]) -> QuestionRecord:
    return QuestionRecord(run, question.id, question.category, way, uuid.uuid4().hex, time.time(), tuple(turns))
