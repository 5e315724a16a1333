"""Offline quality: what a drafter writes alone after a cut, and what the target keeps of it.

    prompt, the target's first `cut_at` tokens | the drafter's own
                                              cut                  compared with how the target goes on

The client really loses its link in the middle of an answer and writes on by itself, with the features of all tokens but
the last. The link does not return: what the target would keep is the prefix that its own greedy answer shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from outrider_bench.core.pair import InProcessPair, in_process, stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question, QuestionSource
from outrider_bench.core.reference_answers import plain_answers
from outrider_bench.core.tapped_transport import TappedConnection, TappedTransport
from outrider_bench.studies.pair.offline_figures import (
    MAX_PERPLEXITY_RATIO,
    TARGET,
    WINDOW,
    OfflineQuality,
    OfflineText,
    median_perplexity,
    offline_figures,
)
from outrider_client.async_client import AsyncClient
from outrider_client.connection.policy import Patience
from outrider_client.connection.transport import Connection, Transport
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.core.events import Committed, Finished, Unverified
from outrider_client.models.local_models import LocalModels
from outrider_models.distillation.distill import before_loop
from outrider_proto.errors import LinkError, UsageError
from outrider_proto.frames import ServerFrame, Verdict
from outrider_proto.packing import common_prefix_len
from outrider_server.engine.reference_decode import plain_greedy, plain_logits
from outrider_server.engine.target import Target

PATIENCE_S = 60.0  # a busy machine must not pass for a lost link: this one is lost where the study cuts it


@dataclass(frozen=True, slots=True)
class OfflinePlan:
    """`prompts`: number of questions, None: all of a file. `tokens`: at most so many are written after the cut."""

    target: Path
    drafters: Mapping[str, str]  # sources, by name
    source: QuestionSource
    prompts: int | None
    cut_at: int
    tokens: int


class _CutConnection(TappedConnection):
    """Breaks in place of the second verdict: the first one is the prompt's."""

    def __init__(self, inner: Connection) -> None:
        super().__init__(inner)
        self._num_verdicts = 0

    async def receive(self) -> ServerFrame:
        frame = await self._inner.receive()
        self._num_verdicts += isinstance(frame, Verdict)
        if self._num_verdicts > 1:
            raise LinkError("cut by the study")
        return frame


class _CutTransport(TappedTransport[_CutConnection]):
    """Connects once, and again after `is_away` is reset."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner, _CutConnection)
        self.is_away = False

    async def connect(self) -> _CutConnection:
        if self.is_away:
            raise LinkError("cut by the study")
        self.is_away = True
        return await super().connect()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question with the target's answer, longer than the cut."""

    question: Question
    answer: tuple[int, ...]


async def measure_offline_quality(plan: OfflinePlan, step: Step) -> OfflineQuality:
    """Cut every answer at the same place with each drafter. Raises UsageError where no answer is long enough."""
    target = Target.load(str(plan.target))
    models = LocalModels.load(ClientConfig(target=plan.target, drafter=NO_DRAFTER))
    limit = plan.cut_at + plan.tokens
    questions = plan.source.spread(models, plan.prompts, limit, partial(plain_greedy, target))
    answers = plain_answers(target, questions, limit, step)
    asked = [_Asked(*pair) for pair in zip(questions, answers, strict=True) if len(pair[1]) > plan.cut_at]
    if not asked:
        raise UsageError(f"cut_at={plan.cut_at}: all {len(questions)} answers end before: need a smaller one")
    own = [(one.answer[plan.cut_at :], 0) for one in asked]
    texts = {TARGET: _scored(target, models, plan, asked, own)}
    mismatches = {}
    for name, source in plan.drafters.items():
        counter = ProgressCounter(step, f"{name} offline", len(asked))
        config = stop_and_wait_config(
            target=plan.target, drafter=source, offline_limit=plan.tokens, patience=Patience(floor_s=PATIENCE_S)
        )
        async with in_process(plan.target, config, target) as pair:
            written, mismatches[name] = await _write_offline(pair, plan, asked, counter)
        # Not before: while the target serves, its attention is another one.
        texts[name] = _scored(target, models, plan, asked, written)
    max_perplexity = MAX_PERPLEXITY_RATIO * median_perplexity(texts[TARGET])
    return OfflineQuality(
        cut_at=plan.cut_at,
        tokens=plan.tokens,
        questions=len(asked),
        left_out=len(questions) - len(asked),
        window=WINDOW,
        max_perplexity=max_perplexity,
        mismatches=mismatches,
        figures={name: offline_figures(some, max_perplexity) for name, some in texts.items()},
        texts=texts,
    )


_Written = list[tuple[tuple[int, ...], int]]  # tokens, and how many of them the fallback drafter wrote


async def _write_offline(
    pair: InProcessPair, plan: OfflinePlan, asked: Sequence[_Asked], step: Callable[[], None]
) -> tuple[_Written, int]:
    """Return what the client writes after the cut, and the answers whose token before it is not the target's."""
    transport = _CutTransport(pair.transport())
    written, mismatches = [], 0
    async with AsyncClient(pair.config, models=pair.models, transport=transport) as client:
        for one in asked:
            transport.is_away = False
            tokens: list[int] = []
            committed: list[int] = []
            copied = 0
            # The last token before the cut is the prompt's verdict, and has no features yet, as in any answer.
            begun = (*one.question.prompt, *one.answer[: plan.cut_at - 1])
            async with aclosing(client.generate(begun, max_new_tokens=1 + plan.tokens)) as events:
                async for event in events:
                    match event:
                        case Committed(tokens=new):
                            committed += new
                        case Unverified(tokens=new):
                            tokens += new
                        case Finished():
                            copied = event.statistics.copied
            written.append((tuple(tokens), copied))
            mismatches += tuple(committed) != one.answer[plan.cut_at - 1 : plan.cut_at]
            step()
    return written, mismatches


def _scored(
    target: Target, models: LocalModels, plan: OfflinePlan, asked: Sequence[_Asked], written: _Written
) -> list[OfflineText]:
    found = []
    for one, (tokens, copied) in zip(asked, written, strict=True):
        before, own = (*one.question.prompt, *one.answer[: plan.cut_at]), one.answer[plan.cut_at :]
        found.append(
            OfflineText(
                question=one.question.name,
                text=models.decode(tokens),
                kept=common_prefix_len(tokens, own),
                copied=copied,
                circles_at=len(before_loop(tokens)),
                log_likelihoods=_log_likelihoods(target, before, tokens),
            )
        )
    return found


def _log_likelihoods(target: Target, before: Sequence[int], tokens: Sequence[int]) -> tuple[float, ...]:
    """Return the log-likelihood of each of `tokens` under the target, given all before it."""
    if not tokens:
        return ()
    logits = plain_logits(target, [*before, *tokens[:-1]], len(tokens))
    chosen = logits.log_softmax(-1)[range(len(tokens)), list(tokens)]
    return tuple(chosen.tolist())
