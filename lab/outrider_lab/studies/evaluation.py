"""Scores of the target, acceptance of the drafters, and the quality of code after the link has died."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from outrider_bench.core.acceptance import SHAPES, TauByText
from outrider_bench.core.answer_record import gather
from outrider_bench.core.bootstrap import Interval
from outrider_bench.core.pair import InProcessPair, answers_after_cuts, in_process, stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import CorpusQuestion, Question, by_family, questions
from outrider_bench.core.reference_answers import plain_answers
from outrider_bench.core.stats import share_interval
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, plus_minuses, table
from outrider_bench.harness.study import Measured, Study
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.core.events import Cycle
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_lab.corpus.check import Score, score_all, score_by_family
from outrider_lab.corpus.held_out import with_checks
from outrider_lab.studies.options import EvalOptions
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

DEFAULT_TAU_PER_FAMILY = 30  # of the corpus
TARGET = "target alone"  # a row
CUTS = (1, 10, 25, 40)  # tokens that came before the link died
_Answered = tuple[list[CorpusQuestion], list[tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class AcceptanceResult(TauByText):
    """Mean acceptance lengths, and the answers that differ from the target's own: 0, or there is a defect."""

    mismatches: int


async def measure_acceptance(
    pair: InProcessPair,
    shape: TreeShape,
    asked: Sequence[Question],
    expected: Sequence[tuple[int, ...]],
    step: Callable[[], None] = lambda: None,
) -> AcceptanceResult:
    """Answer all questions greedily with trees of `shape`.

    `expected` are the target's own answers, which also limit the lengths. `step` is called after every answer.
    """
    cycles: list[tuple[Cycle, ...]] = []
    mismatches = 0
    async with pair.client() as client:
        for question, tokens in zip(asked, expected, strict=True):
            answer = await gather(client, question.prompt, shape=shape, max_new_tokens=len(tokens))
            cycles.append(answer.cycles)
            mismatches += answer.token_ids != tokens
            step()
    return AcceptanceResult(**asdict(TauByText.of(asked, cycles)), mismatches=mismatches)


@dataclass(frozen=True, slots=True)
class DrafterEvaluation:
    """Acceptance by shape, and by the number of tokens before the link died pass@1 of code, and which ones passed."""

    acceptance: dict[str, AcceptanceResult]
    outage: dict[int, float]
    passed: dict[int, list[bool]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TargetEvaluation:
    """Scores of the target by family, and by the number of tokens which ones of its codes pass when cut off there."""

    scores: dict[str, Score]
    stopped: dict[int, list[bool]]


_Row = TargetEvaluation | DrafterEvaluation


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All results; `stop` and `target_alone` bound every drafter's outage scores.

    A user's questions have acceptance only: nobody says there which answer is right.
    """

    scores: dict[str, Score]
    drafters: dict[str, DrafterEvaluation]
    stop: dict[int, float]
    target_alone: float | None
    stopped: dict[int, list[bool]] = field(default_factory=dict)  # which ones pass

    @property
    def ci95(self) -> dict[str, dict[str, Interval | None]]:
        """95 % intervals of the shares over the choice of prompts, by family or by cut."""
        code = self.scores["code"].total if "code" in self.scores else 0
        outages = {name: one.outage for name, one in self.drafters.items()} | {"stop": self.stop}
        of_outages = {
            name: {str(cut): share_interval(round(share * code), code) for cut, share in by_cut.items()}
            for name, by_cut in outages.items()
        }
        return {"scores": {name: share_interval(s.passed, s.total) for name, s in self.scores.items()}} | of_outages


class EvaluationStudy(Study[EvalOptions, _Row, Evaluation]):
    """Evaluates everything in one process, against the answers of the plain loop."""

    async def run(self, taken: Mapping[str, _Row], step: Step) -> Measured[_Row]:
        options = self.options
        target = Target.load(str(options.directory))
        async with in_process(options.directory, _config(options.directory, NO_DRAFTER), target) as pair:
            asked = self._asked(pair, target)
            expected = plain_answers(target, asked, options.max_new_tokens, step)
            code = _code(asked, expected)
            if TARGET not in taken:
                stopped = {cut: _right(pair, code[0], [its[:cut] for its in code[1]]) for cut in CUTS if code[0]}
                yield TARGET, TargetEvaluation(_scores(pair, asked, expected), stopped)
        for name, source in options.drafters.items():
            if name not in taken:
                async with in_process(options.directory, _config(options.directory, source), target) as pair:
                    accepted = await self._acceptance(pair, name, asked, expected, step)
                    passed = await self._outage(pair, name, code, step)
                    yield name, DrafterEvaluation(accepted, _shares(passed), passed)

    def report(self, rows: Mapping[str, _Row]) -> Evaluation:
        own = rows[TARGET]
        assert isinstance(own, TargetEvaluation)
        drafters = {name: row for name, row in rows.items() if isinstance(row, DrafterEvaluation)}
        alone = own.scores["code"].rate if "code" in own.scores else None
        return Evaluation(own.scores, drafters, _shares(own.stopped), alone, own.stopped)

    @classmethod
    def as_dict(cls, report: Evaluation) -> dict[str, Any]:  # Any: JSON
        return super().as_dict(report) | {"ci95": report.ci95}

    @staticmethod
    def tables(report: Evaluation) -> list[ResultTable]:
        scores, outage = [scores_table] if report.scores else [], [outage_table] if report.stop else []
        return [build(report) for build in (*scores, acceptance_table, *outage)]

    @staticmethod
    def failures(report: Evaluation) -> list[str]:
        return [
            f"{name}, {shape}: {accepted.mismatches} answers are not the target's"
            for name, result in report.drafters.items()
            for shape, accepted in result.acceptance.items()
            if accepted.mismatches
        ]

    def _asked(self, pair: InProcessPair, target: Target) -> Sequence[Question]:
        options, source = self.options, self.options.source
        if source.file is None:
            counts = {family: options.code if family == "code" else options.per_family for family in source.families}
            return questions(pair.models, lambda family: counts.get(family, 0))
        answer = partial(plain_greedy, target)
        return source.per_family(pair.models, options.tau_per_family, options.max_new_tokens, answer)

    async def _acceptance(
        self,
        pair: InProcessPair,
        name: str,
        asked: Sequence[Question],
        expected: Sequence[tuple[int, ...]],
        step: Step,
    ) -> dict[str, AcceptanceResult]:
        few = _first_of_each(asked, self.options.or_all(self.options.tau_per_family, DEFAULT_TAU_PER_FAMILY))
        some, their_answers = [asked[i] for i in few], [expected[i] for i in few]
        accepted = {}
        for shape_name, shape in SHAPES.items():
            counter = ProgressCounter(step, f"{name}, {shape_name}", len(some))
            accepted[shape_name] = await measure_acceptance(pair, shape, some, their_answers, counter)
        return accepted

    async def _outage(self, pair: InProcessPair, name: str, code: _Answered, step: Step) -> dict[int, list[bool]]:
        counter, answers = ProgressCounter(step, f"{name}, link dead", len(code[0])), []
        for question, tokens in zip(*code, strict=True):
            answers.append(await answers_after_cuts(pair, question.prompt, tokens, CUTS, self.options.max_new_tokens))
            counter()
        return {cut: _right(pair, code[0], [one[cut] for one in answers]) for cut in CUTS if answers}


def _right(pair: InProcessPair, asked: Sequence[CorpusQuestion], answers: Sequence[Sequence[int]]) -> list[bool]:
    texts = [pair.models.decode(tokens) for tokens in answers]
    return score_all(with_checks([question.sample for question in asked]), texts)


def _shares(passed: Mapping[int, Sequence[bool]]) -> dict[int, float]:
    return {cut: sum(some) / len(some) for cut, some in passed.items()}


def _scores(pair: InProcessPair, asked: Sequence[Question], expected: Sequence[tuple[int, ...]]) -> dict[str, Score]:
    """Return the scores of the corpus' questions."""
    samples = [question.sample for question in asked if isinstance(question, CorpusQuestion)]
    texts = [pair.models.decode(tokens) for tokens in expected]
    return score_by_family(with_checks(samples), texts) if samples else {}


def _config(target: Path, drafter: Path | str) -> ClientConfig:
    return stop_and_wait_config(target=target, drafter=drafter)


def _code(asked: Sequence[Question], expected: Sequence[tuple[int, ...]]) -> _Answered:
    """Return the corpus' questions about code and their answers."""
    pairs = zip(asked, expected, strict=True)
    code = [(one, its) for one, its in pairs if isinstance(one, CorpusQuestion) and one.family == "code"]
    return [one for one, _ in code], [its for _, its in code]


def _first_of_each(asked: Sequence[Question], count: int | None) -> list[int]:
    """Return the indices of the first `count` questions per family; None: of all."""
    return sorted(number for numbers in by_family(asked).values() for number in numbers[:count])


def scores_table(evaluation: Evaluation) -> ResultTable:
    """Build the table of the target's own scores."""
    intervals = evaluation.ci95["scores"]
    rows = [
        [name, f"{s.passed}", f"{s.total}", plus_minus(s.rate, intervals[name], 2)]
        for name, s in evaluation.scores.items()
    ]
    return table("target alone, held-out compositions", ("family", "right", "of", "share"), rows, caption=OVER_PROMPTS)


def acceptance_table(evaluation: Evaluation) -> ResultTable:
    """Build the table of mean acceptance lengths, bonus included."""
    columns, by_column = ["family"], []
    for name, result in evaluation.drafters.items():
        for shape, accepted in result.acceptance.items():
            columns.append(f"{name} {shape}")
            tau = dict(zip(accepted.figures, plus_minuses(accepted.figures, accepted.ci95, 2), strict=True))
            by_column.append(tau | {"not exact": f"{accepted.mismatches}"})
    families = list(by_column[0]) if by_column else []
    rows = [[family, *(texts[family] for texts in by_column)] for family in families]
    title = "mean acceptance length (tokens per verdict, bonus included)"
    return table(title, columns, rows, caption=OVER_PROMPTS)


def outage_table(evaluation: Evaluation) -> ResultTable:
    """Build the table of code pass@1 after the link has died."""
    cuts, intervals = list(evaluation.stop), evaluation.ci95
    by_name = {"stop": evaluation.stop} | {name: one.outage for name, one in evaluation.drafters.items()}
    rows = [
        [name, *(plus_minus(share, intervals[name][str(cut)], 2) for cut, share in by_cut.items())]
        for name, by_cut in by_name.items()
    ]
    rows += [["target alone"] + [plus_minus(evaluation.target_alone, intervals["scores"]["code"], 2)] * len(cuts)]
    title = "code pass@1, link dead after n tokens"
    return table(title, ("n", *map(str, cuts)), rows, caption=OVER_PROMPTS)
