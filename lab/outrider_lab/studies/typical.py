"""Typical acceptance by epsilon, beside exact sampling and greedy answers to the same questions.

Typical acceptance (Medusa, arXiv 2401.10774, 2.3) is lossy: which text comes out depends on the drafts, so a longer
accepted draft may cost quality. Every answer is therefore scored: the corpus' by their checks, all by the target alone.
The two other rules are controls: with them no drafter changes the text, which is compared with the target's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from outrider_bench.core.answer_record import AnswerRecord, gather, mean_acceptance_length
from outrider_bench.core.pair import InProcessPair, in_process, stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import CorpusQuestion, Question
from outrider_bench.core.reference_answers import is_on_a_border, rounding_notes
from outrider_bench.core.tables import ResultTable
from outrider_bench.harness.options import sampling_of
from outrider_bench.harness.study import Measured, Study
from outrider_client.cli.options import tree_plan
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.core.statistics import Statistics
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_lab.corpus.check import score_all
from outrider_lab.corpus.held_out import with_checks
from outrider_lab.studies.options import EPSILONS, TypicalOptions
from outrider_lab.studies.typical_report import (
    GREEDY,
    SAMPLING,
    TARGET,
    Rule,
    RuleResult,
    ScoredAnswer,
    TypicalReport,
    plot_typical,
    right_table,
    rules_table,
)
from outrider_proto.frames import Sampling
from outrider_server.engine.reference_decode import plain_decode, plain_greedy, plain_logits
from outrider_server.engine.target import Target


@dataclass(frozen=True, slots=True)
class AnswerScorer:
    """Scores answers to the questions. `target` must serve nobody; `decode` makes text of tokens."""

    target: Target
    asked: Sequence[Question]
    decode: Callable[[Sequence[int]], str]

    def scored(self, answers: Sequence[AnswerRecord]) -> list[ScoredAnswer]:
        """Score one answer to each question."""
        return [
            ScoredAnswer(
                family=question.family,
                token_ids=answer.token_ids,
                verdicts=len(answer.cycles),
                judged=round(mean_acceptance_length(answer.cycles) * len(answer.cycles)),
                log_likelihood=self._log_likelihood(question.prompt, answer.token_ids),
                is_right=is_right,
            )
            for question, answer, is_right in zip(self.asked, answers, self._right(answers), strict=True)
        ]

    def rounded(
        self,
        runs: Sequence[Sequence[ScoredAnswer]],
        own: Sequence[Sequence[ScoredAnswer]],
        samplings: Sequence[Sampling],
    ) -> int:
        """Return how many answers depart from the target's own by rounding; each run has a sampling."""
        return sum(
            is_on_a_border(self.target, question.prompt, its.token_ids, answer.token_ids, sampling)
            for run, own_run, sampling in zip(runs, own, samplings, strict=True)
            for question, answer, its in zip(self.asked, run, own_run, strict=True)
        )

    def _right(self, answers: Sequence[AnswerRecord]) -> Sequence[bool | None]:
        samples = [question.sample for question in self.asked if isinstance(question, CorpusQuestion)]
        if not samples:  # a user's questions
            return [None] * len(answers)
        return score_all(with_checks(samples), [self.decode(answer.token_ids) for answer in answers])

    def _log_likelihood(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        logits = plain_logits(self.target, (*prompt, *answer[:-1]), len(answer))
        chosen = torch.tensor(answer, device=logits.device)
        return float(logits.log_softmax(-1).gather(1, chosen[:, None]).sum())


class TypicalStudy(Study[TypicalOptions, RuleResult, TypicalReport]):
    """Asks everything by every rule, which is a row: first the target alone, then drafter by drafter."""

    async def run(self, taken: Mapping[str, RuleResult], step: Step) -> Measured[RuleResult]:
        options, directory = self.options, self.options.directory
        drafters, rules = options.drafters, self._rules()
        plan = tree_plan(options.choices, breadth=options.breadth, levels=options.levels, budget=options.budget)
        # The plain loop changes how its target attends: that one serves nobody.
        target, alone = Target.load(str(directory)), Target.load(str(directory))
        models = LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER))
        answer = partial(plain_greedy, alone)
        asked = options.source.per_family(models, options.per_family, options.max_new_tokens, answer)
        scorer = AnswerScorer(alone, asked, models.decode)
        for rule in (GREEDY, SAMPLING):
            if (name := _name(TARGET, rule)) not in taken:
                yield name, RuleResult(TARGET, rule, self._plain_runs(scorer, rules[rule], name, step))
        for drafter, source in drafters.items():
            async with _served(directory, source, target) as pair:
                for rule, samplings in rules.items():
                    if (name := _name(drafter, rule)) not in taken:
                        runs = await self._runs(pair, scorer, samplings, name, step, plan)
                        own = taken.get(_name(TARGET, rule))
                        rounded = 0 if own is None else scorer.rounded(runs, own.runs, samplings)
                        yield name, RuleResult(drafter, rule, runs, rounded)

    def report(self, rows: Mapping[str, RuleResult]) -> TypicalReport:
        return TypicalReport(self.options.temperature, list(rows.values()))

    @classmethod
    def as_dict(cls, report: TypicalReport) -> dict[str, Any]:  # Any: JSON
        content = super().as_dict(report)
        for result, its in zip(report.results, content["results"], strict=True):
            its |= {**result.figures, "mismatches": report.mismatches(result)}
        return content

    @staticmethod
    def tables(report: TypicalReport) -> list[ResultTable]:
        right = right_table(report)
        return [rules_table(report), *(() if right is None else (right,))]

    @staticmethod
    def notes(report: TypicalReport) -> list[str]:
        return rounding_notes({_name(one.drafter, one.rule): one.rounded for one in report.results})

    @staticmethod
    def failures(report: TypicalReport) -> list[str]:
        return [
            f"{_name(one.drafter, one.rule)}: {count} answers are not the target's own"
            for one in report.results
            if (count := report.mismatches(one))
        ]

    @staticmethod
    def plot(report: TypicalReport, path: Path) -> None:
        plot_typical(report, path)

    def _rules(self) -> dict[Rule, list[Sampling]]:
        """Return each rule with a choice of tokens for each of its runs: only exact sampling depends on the seed."""
        options, rules = self.options, {GREEDY: [Sampling()]}
        of_seed = partial(sampling_of, temperature=options.temperature)
        rules[SAMPLING] = [of_seed(seed=seed) for seed in range(1, options.seeds + 1)]
        for epsilon in options.epsilon or EPSILONS:
            alpha = math.sqrt(max(epsilon, 0.0))  # a negative epsilon has no root, and is refused below
            rules[Rule("typical", epsilon)] = [of_seed(acceptance="typical", epsilon=epsilon, alpha=alpha)]
        return rules

    def _plain_runs(
        self, scorer: AnswerScorer, samplings: Sequence[Sampling], task: str, step: Step
    ) -> list[list[ScoredAnswer]]:
        limit, counter = self.options.max_new_tokens, ProgressCounter(step, task, len(samplings) * len(scorer.asked))

        def answer(question: Question, sampling: Sampling) -> AnswerRecord:
            tokens = plain_decode(scorer.target, question.prompt, limit, sampling)
            counter()
            return AnswerRecord(tuple(tokens), (), Statistics())

        return [scorer.scored([answer(question, sampling) for question in scorer.asked]) for sampling in samplings]

    async def _runs(
        self,
        pair: InProcessPair,
        scorer: AnswerScorer,
        samplings: Sequence[Sampling],
        task: str,
        step: Step,
        plan: TreePlan | None,
    ) -> list[list[ScoredAnswer]]:
        limit, counter = self.options.max_new_tokens, ProgressCounter(step, task, len(samplings) * len(scorer.asked))
        runs = []
        for sampling in samplings:
            answers = []
            async with pair.client() as client:
                for question in scorer.asked:
                    answers.append(
                        await gather(client, question.prompt, sampling=sampling, max_new_tokens=limit, shape=plan)
                    )
                    counter()
            runs.append(scorer.scored(answers))
        return runs


def _name(drafter: str, rule: Rule) -> str:
    return f"{drafter}, {rule}"


def _served(directory: Path, drafter: str, target: Target) -> AbstractAsyncContextManager[InProcessPair]:
    return in_process(directory, stop_and_wait_config(target=directory, drafter=drafter), target)
