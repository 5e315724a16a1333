"""Scores answers to corpus samples, by tests, number, entities or wording. Code runs in `sandbox`, never here.

scores = score_by_family(samples, texts)
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from outrider_lab.corpus.sample import Check, CorpusSample, Entities, Exact, HiddenTests, Number
from outrider_lab.corpus.sandbox import SandboxJob, run_jobs

_ANSWER = re.compile(r"Answer:\s*(-?\d+)")
_FENCE = re.compile(r"```(?:python)?\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Score:
    """Number of samples of a family with a right answer."""

    passed: int
    total: int

    @property
    def rate(self) -> float:
        return self.passed / self.total if self.total else 0.0


def score(sample: CorpusSample, text: str) -> bool:
    """Return whether `text` is a right answer. For many code samples `score_all` is much faster."""
    return score_all([sample], [text])[0]


def score_all(samples: Sequence[CorpusSample], texts: Sequence[str]) -> list[bool]:
    """Return one verdict per sample; all code runs in a few sandboxed processes."""
    if len(samples) != len(texts):
        raise ValueError(f"{len(samples)} samples but {len(texts)} texts: need one text for each sample")
    jobs = {i: _job(s.check, text) for i, (s, text) in enumerate(zip(samples, texts, strict=True))
            if isinstance(s.check, HiddenTests)}  # fmt: skip
    ran = dict(zip(jobs, run_jobs(list(jobs.values())), strict=True))
    return [
        ran[i] if i in ran else _passes(s.check, text) for i, (s, text) in enumerate(zip(samples, texts, strict=True))
    ]


def score_by_family(samples: Sequence[CorpusSample], texts: Sequence[str]) -> dict[str, Score]:
    """Return scores by family, in order of appearance."""
    verdicts = score_all(samples, texts)
    families = dict.fromkeys(sample.family for sample in samples)
    return {family: _count([v for v, s in zip(verdicts, samples, strict=True) if s.family == family])
            for family in families}  # fmt: skip


def _count(verdicts: list[bool]) -> Score:
    return Score(sum(verdicts), len(verdicts))


def _job(tests: HiddenTests, text: str) -> SandboxJob:
    fenced = _FENCE.search(text)
    return SandboxJob(fenced.group(1) if fenced else text, tests.function, tests.cases)


def _passes(check: Check, text: str) -> bool:
    match check:
        case Number(value):
            # The last one counts: a model may correct itself.
            found = _ANSWER.findall(text)
            return bool(found) and int(found[-1]) == value
        case Entities(names):
            return all(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in names)
        case Exact(wanted):
            return text.strip() == wanted.strip()
        case HiddenTests():
            raise AssertionError("code is scored by the sandbox")
        case _:
            assert_never(check)
