"""Scores of the target, acceptance of the drafters, and the quality of code after the link has died."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from outrider_bench.core.acceptance import SHAPES, AcceptanceResult, measure_acceptance
from outrider_bench.core.bootstrap import Interval
from outrider_bench.core.pair import InProcessPair, in_process, stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import CorpusQuestion, Question, QuestionSource, by_family, questions
from outrider_bench.core.reference_answers import plain_answers
from outrider_bench.core.stats import share_interval
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, plus_minuses, table
from outrider_bench.studies.pair.outage import CUTS, outage_scores, stop_scores
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_models.corpus.check import Score, score_by_family
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

_Answered = tuple[list[CorpusQuestion], list[tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Numbers of questions to evaluate: per family, for code, and for acceptance (None: all)."""

    target: Path
    drafters: Mapping[str, str]  # sources, by name
    source: QuestionSource
    per_family: int = 100
    code: int = 164
    tau_per_family: int | None = 30
    max_new_tokens: int = 192

    @property
    def corpus_counts(self) -> dict[str, int]:
        """Questions of the corpus by family."""
        return {family: self.code if family == "code" else self.per_family for family in self.source.families}


@dataclass(frozen=True, slots=True)
class DrafterEvaluation:
    """Acceptance by shape, and pass@1 of code by the number of tokens before the link died."""

    acceptance: dict[str, AcceptanceResult]
    outage: dict[int, float]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All results; `stop` and `target_alone` bound every drafter's outage scores.

    A user's questions have acceptance only: nobody says there which answer is right.
    """

    scores: dict[str, Score]
    drafters: dict[str, DrafterEvaluation]
    stop: dict[int, float]
    target_alone: float | None

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

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"ci95": self.ci95}


async def evaluate(plan: EvaluationPlan, step: Step) -> Evaluation:
    """Evaluate everything in one process, against the answers of the plain loop."""
    target = Target.load(str(plan.target))
    async with in_process(plan.target, _config(plan.target, NO_DRAFTER), target) as pair:
        asked = _asked(plan, pair, target)
        expected = plain_answers(target, asked, plan.max_new_tokens, step)
        code = _code(asked, expected)
        scores = _scores(pair, asked, expected)
        stop = {cut: stop_scores(pair, *code, cut) for cut in CUTS} if code[0] else {}
    results = {}
    for name, directory in plan.drafters.items():
        async with in_process(plan.target, _config(plan.target, directory), target) as pair:
            accepted = await _acceptance(pair, plan, name, asked, expected, step)
            results[name] = DrafterEvaluation(accepted, await _outage(pair, plan, name, code, step))
    return Evaluation(scores, results, stop, scores["code"].rate if "code" in scores else None)


def _asked(plan: EvaluationPlan, pair: InProcessPair, target: Target) -> Sequence[Question]:
    if plan.source.file is None:
        return questions(pair.models, lambda family: plan.corpus_counts.get(family, 0))
    answer = partial(plain_greedy, target)
    return plan.source.per_family(pair.models, plan.tau_per_family, plan.max_new_tokens, answer)


def _scores(pair: InProcessPair, asked: Sequence[Question], expected: Sequence[tuple[int, ...]]) -> dict[str, Score]:
    """Return the scores of the corpus' questions."""
    samples = [question.sample for question in asked if isinstance(question, CorpusQuestion)]
    texts = [pair.models.decode(tokens) for tokens in expected]
    return score_by_family(samples, texts) if samples else {}


async def _acceptance(
    pair: InProcessPair,
    plan: EvaluationPlan,
    name: str,
    asked: Sequence[Question],
    expected: Sequence[tuple[int, ...]],
    step: Step,
) -> dict[str, AcceptanceResult]:
    few = _first_of_each(asked, plan.tau_per_family)
    some, their_answers = [asked[i] for i in few], [expected[i] for i in few]
    accepted = {}
    for shape_name, shape in SHAPES.items():
        counter = ProgressCounter(step, f"{name}, {shape_name}", len(some))
        accepted[shape_name] = await measure_acceptance(pair, shape, some, their_answers, counter)
    return accepted


async def _outage(
    pair: InProcessPair, plan: EvaluationPlan, name: str, code: _Answered, step: Step
) -> dict[int, float]:
    if not code[0]:
        return {}
    outage = {}
    for cut in CUTS:
        counter = ProgressCounter(step, f"{name}, link dead after {cut}", len(code[0]))
        outage[cut] = await outage_scores(pair, *code, cut, plan.max_new_tokens, counter)
    return outage


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
