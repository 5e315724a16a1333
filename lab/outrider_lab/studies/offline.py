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

from outrider_bench.core.pair import InProcessPair, in_process, stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question
from outrider_bench.core.reference_answers import plain_answers
from outrider_bench.core.tables import ResultTable
from outrider_bench.core.tapped_transport import TappedConnection, TappedTransport
from outrider_bench.harness.study import Measured, Study
from outrider_client.async_client import AsyncClient
from outrider_client.connection.policy import Patience
from outrider_client.connection.transport import Connection, Transport
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.core.events import Committed, Finished, Unverified
from outrider_client.models.local_models import LocalModels
from outrider_lab.studies.offline_figures import (
    MAX_PERPLEXITY_RATIO,
    TARGET,
    WINDOW,
    OfflineQuality,
    OfflineText,
    circles_table,
    kept_table,
    median_perplexity,
    offline_figures,
    perplexity_table,
)
from outrider_lab.studies.options import OfflineOptions
from outrider_models.distillation.distill import before_loop
from outrider_proto.errors import LinkError, UsageError
from outrider_proto.frames import ServerFrame, Verdict
from outrider_proto.packing import common_prefix_len
from outrider_server.engine.reference_decode import plain_greedy, plain_logits
from outrider_server.engine.target import Target

DEFAULT_PROMPTS = 60  # of the corpus
PATIENCE_S = 60.0  # a busy machine must not pass for a lost link: this one is lost where the study cuts it


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


@dataclass(frozen=True, slots=True)
class OfflineRow:
    """What one drafter wrote after the cuts; of the target, how it goes on, and how many answers end before."""

    texts: Sequence[OfflineText]
    mismatches: int = 0
    left_out: int = 0


class OfflineStudy(Study[OfflineOptions, OfflineRow, OfflineQuality]):
    """Cuts every answer at the same place with each drafter."""

    async def run(self, taken: Mapping[str, OfflineRow], step: Step) -> Measured[OfflineRow]:
        options = self.options
        directory, cut_at = options.directory, options.cut_at
        target = Target.load(str(directory))
        models = LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER))
        count, limit = options.or_all(options.prompts, DEFAULT_PROMPTS), cut_at + options.tokens
        questions = options.source.spread(models, count, limit, partial(plain_greedy, target))
        answers = plain_answers(target, questions, limit, step)
        asked = [_Asked(*pair) for pair in zip(questions, answers, strict=True) if len(pair[1]) > cut_at]
        if not asked:
            raise UsageError(f"cut_at={cut_at}: all {len(questions)} answers end before: need a smaller one")
        if TARGET not in taken:
            own = [(one.answer[cut_at:], 0) for one in asked]
            texts = _scored(target, models, cut_at, asked, own)
            yield TARGET, OfflineRow(texts, left_out=len(questions) - len(asked))
        for name, source in options.drafters.items():
            if name in taken:
                continue
            counter = ProgressCounter(step, f"{name} offline", len(asked))
            config = stop_and_wait_config(
                target=directory, drafter=source, offline_limit=options.tokens, patience=Patience(floor_s=PATIENCE_S)
            )
            async with in_process(directory, config, target) as pair:
                written, mismatches = await _write_offline(pair, options, asked, counter)
            # Not before: while the target serves, its attention is another one.
            yield name, OfflineRow(_scored(target, models, cut_at, asked, written), mismatches)

    def report(self, rows: Mapping[str, OfflineRow]) -> OfflineQuality:
        options, own = self.options, rows[TARGET]
        max_perplexity = MAX_PERPLEXITY_RATIO * median_perplexity(own.texts)
        return OfflineQuality(
            cut_at=options.cut_at,
            tokens=options.tokens,
            questions=len(own.texts),
            left_out=own.left_out,
            window=WINDOW,
            max_perplexity=max_perplexity,
            mismatches={name: row.mismatches for name, row in rows.items() if name != TARGET},
            figures={name: offline_figures(row.texts, max_perplexity) for name, row in rows.items()},
            texts={name: row.texts for name, row in rows.items()},
        )

    @staticmethod
    def tables(report: OfflineQuality) -> list[ResultTable]:
        return [kept_table(report), perplexity_table(report), circles_table(report)]

    @staticmethod
    def notes(report: OfflineQuality) -> list[str]:
        return [f"{report.left_out} answers are left out: they end before the cut"] if report.left_out else []

    @staticmethod
    def failures(report: OfflineQuality) -> list[str]:
        wrong = {name: count for name, count in report.mismatches.items() if count}
        return [f"the last token before the cut is not the target's: {wrong}"] if wrong else []


_Written = list[tuple[tuple[int, ...], int]]  # tokens, and how many of them the fallback drafter wrote


async def _write_offline(
    pair: InProcessPair, options: OfflineOptions, asked: Sequence[_Asked], step: Callable[[], None]
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
            begun = (*one.question.prompt, *one.answer[: options.cut_at - 1])
            async with aclosing(client.generate(begun, max_new_tokens=1 + options.tokens)) as events:
                async for event in events:
                    match event:
                        case Committed(tokens=new):
                            committed += new
                        case Unverified(tokens=new):
                            tokens += new
                        case Finished():
                            copied = event.statistics.copied
            written.append((tuple(tokens), copied))
            mismatches += tuple(committed) != one.answer[options.cut_at - 1 : options.cut_at]
            step()
    return written, mismatches


def _scored(
    target: Target, models: LocalModels, cut_at: int, asked: Sequence[_Asked], written: _Written
) -> list[OfflineText]:
    found = []
    for one, (tokens, copied) in zip(asked, written, strict=True):
        before, own = (*one.question.prompt, *one.answer[:cut_at]), one.answer[cut_at:]
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
