"""Exactness: are answers, in process and over gRPC, equal to the target's own, token for token?

In float32 they must equal those of transformers' `generate`. In a narrower type a pass over a draft tree may round
another way than the plain loop's: there every answer is compared with the plain loop's, and each first difference must
be a near-tie (core/reference_answers.py). In int8, and where passes are batch-invariant, there must be none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from outrider_bench.core.answer_record import gather
from outrider_bench.core.pair import in_process, stop_and_wait_config
from outrider_bench.core.processes import ServerProcess
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question
from outrider_bench.core.reference_answers import (
    INT8,
    LEAST_MARGIN,
    ROUNDINGS,
    Departure,
    departure,
    generated,
    plain_answers,
)
from outrider_bench.core.stats import share_interval
from outrider_bench.core.tables import ResultTable, plus_minus, table
from outrider_bench.harness.study import Measured, Study
from outrider_bench.studies.options import ExactOptions
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.reference_decode import plain_answer, plain_logits
from outrider_server.engine.target import Target

STRICT = ("float32", INT8)
_KV_MEMORY = "20%"  # the target's own in this process and the server's share a device, whose nine tenths one would take
DEFAULT_PROMPTS = 200  # of the corpus
RESULT = "compared"  # the last row
_Answers = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ExactAnswers:
    """One drafter's answers in one way, and how many of their tokens were drafted."""

    answers: _Answers
    drafted: int


@dataclass(frozen=True, slots=True)
class WayExactness:
    """One drafter's answers in one way: drafted tokens among theirs, and where they depart from the reference."""

    drafted: int
    departures: tuple[Departure, ...]


@dataclass(frozen=True, slots=True)
class Exactness:
    """All ways beside the reference, whose answers have `tokens` tokens in all."""

    reference: str
    dtype: str
    questions: int
    tokens: int
    ways: dict[str, WayExactness]
    batch_invariant: bool = False

    def failures(self, way: str) -> list[Departure]:
        """Return the departures that must not be.

        In float32, int8 and of batch-invariant passes all, otherwise those that are no near-ties.
        """
        is_strict = self.batch_invariant or self.dtype in STRICT
        return [one for one in self.ways[way].departures if is_strict or not one.is_near_tie(self.dtype)]

    @property
    def is_exact(self) -> bool:
        return not any(self.failures(way) for way in self.ways)


_Row = ExactAnswers | Exactness


class ExactStudy(Study[ExactOptions, _Row, Exactness]):
    """Answers every question with each drafter in process and over gRPC, and compares them in the end."""

    async def run(self, taken: Mapping[str, _Row], step: Step) -> Measured[_Row]:
        options = self.options
        target = Target.load(
            str(options.directory), options.dtype, options.device, batch_invariant=options.batch_invariant
        )
        models = LocalModels.load(ClientConfig(target=options.directory, drafter=NO_DRAFTER))
        count = options.or_all(options.prompts, DEFAULT_PROMPTS)
        asked = options.source.spread(models, count, options.max_new_tokens, partial(plain_answer, target))
        reference, expected = self._reference(target, asked, step)
        for name, source in options.drafters.items():
            if (way := f"{name} in process") not in taken:
                config = stop_and_wait_config(target=options.directory, drafter=source)
                pair = in_process(options.directory, config, target, LimitsConfig(kv_memory=_KV_MEMORY))
                async with pair as served, served.client() as client:
                    yield way, await self._ask(client, asked, ProgressCounter(step, way, len(asked)))
        with ServerProcess(self._server_options()) as server:
            for name, source in options.drafters.items():
                if (way := f"{name} over gRPC") not in taken:
                    # Not auto: on loopback it would often choose stream, where nothing is drafted.
                    config = ClientConfig(
                        server=server.address, target=options.directory, drafter=source, mode="pipelined"
                    )
                    async with AsyncClient(config) as client:
                        yield way, await self._ask(client, asked, ProgressCounter(step, way, len(asked)))
        if RESULT not in taken:
            answers = {way: row for way, row in taken.items() if isinstance(row, ExactAnswers)}
            yield RESULT, self._compared(target, asked, reference, expected, answers)

    def report(self, rows: Mapping[str, _Row]) -> Exactness:
        result = rows[RESULT]
        assert isinstance(result, Exactness)
        return result

    @classmethod
    def as_dict(cls, report: Exactness) -> dict[str, Any]:  # Any: JSON
        rule = {"least_margin": LEAST_MARGIN[report.dtype], "roundings": ROUNDINGS}
        return {**super().as_dict(report), **rule, "is_exact": report.is_exact}

    @staticmethod
    def tables(report: Exactness) -> list[ResultTable]:
        return [exactness_table(report)]

    @staticmethod
    def failures(report: Exactness) -> list[str]:
        return [f"{way}: {at}" for way in report.ways for at in report.failures(way)]

    def _server_options(self) -> list[str]:
        options = self.options
        drafters = [option for source in options.drafters.values() for option in ("--drafter", source)]
        placed = ["--dtype", options.dtype, "--device", options.device]
        invariant = ["--set", "batch-invariant=true"] if options.batch_invariant else []
        memory = ["--kv-memory", _KV_MEMORY, "--no-edge-bundle"]
        return ["--target", str(options.directory), *drafters, *placed, *invariant, *memory]

    def _reference(self, target: Target, asked: Sequence[Question], step: Step) -> tuple[str, _Answers]:
        options = self.options
        if target.batch_invariant or options.dtype not in STRICT:
            return "the plain loop", plain_answers(target, asked, options.max_new_tokens, step)
        counter = ProgressCounter(step, "transformers", len(asked))
        return "generate", generated(
            options.directory, asked, options.max_new_tokens, counter, target.eos_token_ids, options.device
        )

    async def _ask(self, client: AsyncClient, asked: Sequence[Question], step: Callable[[], None]) -> ExactAnswers:
        answers, drafted = [], 0
        for question in asked:
            answer = await gather(client, question.prompt, max_new_tokens=self.options.max_new_tokens)
            answers.append(answer.token_ids)
            drafted += sum(len(cycle.verdict.path) for cycle in answer.cycles)
            step()
        return ExactAnswers(answers, drafted)

    def _compared(
        self,
        target: Target,
        asked: Sequence[Question],
        reference: str,
        expected: _Answers,
        answers: Mapping[str, ExactAnswers],
    ) -> Exactness:
        found = {way: _departures(asked, its.answers, expected) for way, its in answers.items()}
        tokens = {one.name: (one.prompt, right) for one, right in zip(asked, expected, strict=True)}
        # The same bits are asked of int8: no other type's logits say anything.
        with_margins = found if self.options.dtype == INT8 else _with_margins(target, found, tokens)
        return Exactness(
            reference,
            self.options.dtype,
            len(asked),
            sum(map(len, expected)),
            {way: WayExactness(its.drafted, tuple(with_margins[way])) for way, its in answers.items()},
            self.options.batch_invariant,
        )


def _departures(asked: Sequence[Question], found: _Answers, expected: _Answers) -> list[Departure]:
    compared = (departure(one.name, its, right) for one, its, right in zip(asked, found, expected, strict=True))
    return [one for one in compared if one is not None]


def _with_margins(
    target: Target,
    found: Mapping[str, Sequence[Departure]],
    tokens: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]],
) -> dict[str, tuple[Departure, ...]]:
    """Compute the margins of all departures; `tokens` are prompt and expected answer by question."""
    # Most ways depart at the same places.
    places = {(at.question, at.place) for departures in found.values() for at in departures}

    def logits() -> dict[tuple[str, int], Tensor]:
        return {(name, place): _logits_at(target, *tokens[name], place) for name, place in places}

    own = logits()
    # Last of all: from here on the target computes in float32, with the weights as they were rounded.
    target.model.float()  # type: ignore[no-untyped-call] # transformers
    exact = logits()
    return {
        way: tuple(at.measured(own[at.question, at.place], exact[at.question, at.place]) for at in departures)
        for way, departures in found.items()
    }


def _logits_at(target: Target, prompt: Sequence[int], answer: Sequence[int], place: int) -> Tensor:  # [vocab]
    return plain_logits(target, (*prompt, *answer[:place]))[-1]


def exactness_table(result: Exactness) -> ResultTable:
    """Build a row per drafter and way."""
    rows = []
    for way, its in result.ways.items():
        equal, departures = result.questions - len(its.departures), its.departures
        margins = [abs(at.margin) for at in departures if at.margin is not None]
        wide = [abs(at.margin_float32) for at in departures if at.margin_float32 is not None]
        rows.append(
            [
                way,
                f"{equal} of {result.questions}",
                plus_minus(len(departures) / result.questions, share_interval(len(departures), result.questions), 3),
                f"{its.drafted}",
                f"{len(departures) - len(result.failures(way))}",
                *(f"{max(some):.3g}" if some else "-" for some in (margins, wide)),
            ]
        )
    columns = ("way", "equal", "share that differs", "drafted tokens", "allowed near-ties", "margin", "in float32")
    asked = f"{result.questions} questions, {result.tokens} tokens"
    how = f"{result.dtype}, batch-invariant" if result.batch_invariant else result.dtype
    title = f"answers beside those of {result.reference}, {how}: {asked}"
    least = LEAST_MARGIN[result.dtype]
    caption = (
        "int8 has no near-ties: equal to the bit"
        if result.dtype == INT8
        else f"near-tie: margins of at most {least:g}, or {ROUNDINGS:.1f} times a logit's rounding error; "
        "margin: the largest where answers depart"
    )
    return table(title, columns, rows, caption=caption)
