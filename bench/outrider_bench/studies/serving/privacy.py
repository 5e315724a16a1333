"""Quality of answers that need a private fact, for every way of keeping it private.

The drafter writes alone with the target's features of the safe part, or without features (control), or the target
answers over placeholders; with nothing private, target and drafter give the bounds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outrider_bench.core.bootstrap import Interval, ratio_interval
from outrider_bench.core.pair import InProcessPair, in_process, stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import SEED, CorpusQuestion
from outrider_bench.core.reference_answers import plain_answers
from outrider_bench.core.stats import share_interval
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minuses, table
from outrider_bench.studies.pair.outage import features_of, outage_scores
from outrider_client.core.prompt import PromptMessage
from outrider_client.core.prompt_segments import Segment
from outrider_drafters.contracts.drafter import Drafter
from outrider_models.core.embedded import drafter_source
from outrider_models.corpus import Family, Sample, generate
from outrider_models.corpus.check import score_by_family
from outrider_models.corpus.sample import Entities
from outrider_proto.tree import DraftTree
from outrider_server.engine.target import Target

FAMILIES: tuple[Family, ...] = ("qa", "summary", "chat", "math")  # those whose answers repeat a fact of the prompt
KNOWN = ("features of everything", "features of the safe part", "no features")
TARGET_ALONE = "target, nothing private"
ALL_FEATURES = "drafter alone, features of everything"
WAYS: dict[str, dict[str, Any]] = {  # Any: what an answer can choose
    "local: drafter alone, features of the safe part": {"privacy": "local"},
    "local, offline: drafter alone, no features": {"privacy": "local", "mode": "offline"},
    "placeholder: target": {"privacy": "placeholder"},
}


@dataclass(frozen=True, slots=True)
class PrivateQuestion:
    """A question as it is, and its messages with the fact marked private."""

    question: CorpusQuestion
    turns: tuple[PromptMessage, ...]
    num_safe: int  # tokens

    @property
    def safe_share(self) -> float:
        return self.num_safe / len(self.question.prompt)


def fact_of(sample: Sample) -> tuple[str, str] | None:
    """Return the word that the answer needs and its kind: the last entity asked for, or the last number."""
    text = " ".join(message.content for message in sample.messages)
    if isinstance(sample.check, Entities):
        word = sample.check.names[-1].split()[-1]
        return (word, "FACT") if re.search(rf"\b{re.escape(word)}\b", text) else None
    numbers = re.findall(r"\b[0-9]+\b", text)
    return (numbers[-1], "NUMBER") if numbers else None


def private_turns(sample: Sample, word: str, kind: str) -> tuple[PromptMessage, ...]:
    """Mark every mention of the word in the sample's messages as private."""
    # The group makes split() keep the word itself among the parts.
    pattern = re.compile(rf"\b({re.escape(word)})\b")
    return tuple(
        PromptMessage(
            role=message.role,
            content=[Segment(part, private=part == word, kind=kind) for part in pattern.split(message.content) if part],
        )
        for message in sample.messages
    )


def private_questions(pair: InProcessPair, per_family: int) -> list[PrivateQuestion]:
    """Return those of `per_family` held-out samples per family that have a fact."""
    samples = [sample for family in FAMILIES for sample in generate(family, "test", SEED, per_family)]
    return [_private(pair, sample, fact) for sample in samples if (fact := fact_of(sample)) is not None]


def _private(pair: InProcessPair, sample: Sample, fact: tuple[str, str]) -> PrivateQuestion:
    turns = private_turns(sample, *fact)
    plain = [PromptMessage(role=message.role, content=message.content) for message in sample.messages]
    question = CorpusQuestion(sample.family, tuple(pair.models.encode(plain, raw=False)), sample.key, sample)
    return PrivateQuestion(question, turns, len(pair.models.split(turns, raw=False).safe))


@dataclass(frozen=True, slots=True)
class Quality:
    """One drafter's results by family.

    Share of right answers by method, share of the target's tokens that the drafter predicts by the features it has,
    number of questions, and the safe share of their prompts; `*_ci95` are 95 % intervals over the questions.
    """

    shares: dict[str, dict[str, float]]
    agreement: dict[str, dict[str, float]]
    asked: dict[str, int]
    safe_share: dict[str, float]
    shares_ci95: dict[str, dict[str, Interval | None]]
    agreement_ci95: dict[str, dict[str, Interval | None]]


async def quality(
    target_dir: Path, drafter: str | Path, per_family: int, limit: int, target: Target, step: Step
) -> Quality:
    """Measure everything in one process. Raises UsageError."""
    config = stop_and_wait_config(target=target_dir, drafter=drafter, max_new_tokens=limit)
    async with in_process(target_dir, config, target) as pair:
        asked = private_questions(pair, per_family)
        expected = plain_answers(target, [one.question for one in asked], limit, step)
        shares = {TARGET_ALONE: _shares(asked, [pair.models.decode(tokens) for tokens in expected])}
        agreement: Agreement = {}
        if pair.models.drafter is not None and pair.models.drafter.tap.fingerprint:
            shares[ALL_FEATURES] = await _with_all_features(pair, asked, expected, limit)
            agreement = await _agreement(pair, asked, expected)
        for name, options in WAYS.items():
            shares[name] = _shares(asked, await _texts(pair, asked, options, ProgressCounter(step, name, len(asked))))
    families = _by_family(asked)
    safe = {family: sum(one.safe_share for one in group) / len(group) for family, group in families.items()}
    counts = {family: len(group) for family, group in families.items()}
    shares_ci95 = {
        name: {family: share_interval(round(share * counts[family]), counts[family]) for family, share in of.items()}
        for name, of in shares.items()
    }
    predicted = {
        name: {family: sum(hits) / sum(tokens) for family, (hits, tokens) in of.items()}
        for name, of in agreement.items()
    }
    predicted_ci95 = {
        name: {family: ratio_interval(*both) for family, both in of.items()} for name, of in agreement.items()
    }
    return Quality(shares, predicted, counts, safe, shares_ci95, predicted_ci95)


async def _texts(
    pair: InProcessPair, asked: Sequence[PrivateQuestion], options: dict[str, Any], counter: ProgressCounter
) -> list[str]:
    texts = []
    for one in asked:
        async with pair.client() as client:
            texts.append((await client.complete(one.turns, **options)).text)
        counter()
    return texts


async def _with_all_features(
    pair: InProcessPair, asked: Sequence[PrivateQuestion], expected: Sequence[tuple[int, ...]], limit: int
) -> dict[str, float]:
    """Score the drafter alone with features of the whole prompt, which shows the cost of drafting alone."""
    answers = dict(zip((one.question.prompt for one in asked), expected, strict=True))
    return {
        family: await outage_scores(
            pair, [one.question for one in group], [answers[one.question.prompt] for one in group], 0, limit
        )
        for family, group in _by_family(asked).items()
    }


# By the features known and family: tokens predicted and tokens of each answer.
Agreement = dict[str, dict[str, tuple[list[int], list[int]]]]


async def _agreement(
    pair: InProcessPair, asked: Sequence[PrivateQuestion], expected: Sequence[tuple[int, ...]]
) -> Agreement:
    """Count how many of the target's tokens the drafter predicts, given the target's answer up to each.

    Unlike accuracy this has no floor.
    """
    drafter = pair.models.drafter
    assert drafter is not None
    counted: Agreement = {name: {} for name in KNOWN}
    for one, answer in zip(asked, expected, strict=True):
        family, prompt = one.question.family, one.question.prompt
        rows = await features_of(pair, prompt, drafter.tap.fingerprint)
        for name, known in zip(KNOWN, (len(prompt) - 1, one.num_safe, 0), strict=True):
            hits, tokens = counted[name].setdefault(family, ([], []))
            hits.append(_num_predicted(drafter, prompt, answer, rows[:known]))
            tokens.append(len(answer))
    return counted


@torch.inference_mode()
def _num_predicted(drafter: Drafter, prompt: Sequence[int], answer: Sequence[int], rows: NDArray[np.float32]) -> int:
    state, hits = drafter.new_state(), 0
    state.append(prompt)
    if len(rows):
        state.add_features(0, torch.from_numpy(rows))
    for token in answer:
        hits += int(state.tree_logits(DraftTree())[0].argmax()) == token
        state.append([token])
    return hits


def _shares(asked: Sequence[PrivateQuestion], texts: Sequence[str]) -> dict[str, float]:
    scores = score_by_family([one.question.sample for one in asked], texts)
    return {family: score.rate for family, score in scores.items()}


def _by_family(asked: Sequence[PrivateQuestion]) -> dict[str, list[PrivateQuestion]]:
    return {family: group for family in FAMILIES if (group := [one for one in asked if one.question.family == family])}


async def measure_privacy(
    directory: Path, names: list[str], per_family: int, limit: int, step: Step
) -> dict[str, Quality]:
    target = Target.load(str(directory))
    return {name: await quality(directory, drafter_source(name), per_family, limit, target, step) for name in names}


def privacy_tables(name: str, result: Quality) -> list[ResultTable]:
    """Build the tables of right answers, and for drafters with features of predicted tokens."""
    tables = [_table(f"{name}: share of right answers", result.shares, result.shares_ci95, result)]
    if result.agreement:
        title = f"{name}: share of the target's next tokens predicted"
        tables.append(_table(title, result.agreement, result.agreement_ci95, result))
    return tables


def _table(
    title: str,
    shares: Mapping[str, Mapping[str, float]],
    intervals: Mapping[str, Mapping[str, Interval | None]],
    result: Quality,
) -> ResultTable:
    rows = [[name, *plus_minuses(by_family, intervals[name], 2)] for name, by_family in shares.items()]
    rows.append(["(safe share of the prompt)", *plus_minuses(result.safe_share, {}, 2)])
    columns = ("way", *(f"{family} ({count})" for family, count in result.asked.items()))
    return table(title, columns, rows, caption=OVER_PROMPTS)
