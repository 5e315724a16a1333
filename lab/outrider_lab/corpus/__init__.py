"""The corpus: six families of generated conversations, split by composition, with a check for each answer.

generate("code", "test", seed=1, count=164)
"""

import random
from collections.abc import Callable, Iterator

from outrider_lab.corpus import chat, code, copying, instruct, math, qa, summary
from outrider_lab.corpus.sample import SPLITS, CorpusSample, Split, split_of
from outrider_models.core.held_out import FAMILIES, Family
from outrider_proto.errors import UsageError

__all__ = ["SPLITS", "CorpusSample", "Split", "exercises", "generate", "split_of"]

_MAKERS: dict[Family, Callable[[random.Random], CorpusSample]] = {
    "code": code.make,
    "math": math.make,
    "chat": chat.make,
    "summary": summary.make,
    "qa": qa.make,
    "instruct": instruct.make,
}


def generate(family: Family, split: Split, seed: int, count: int) -> Iterator[CorpusSample]:
    """Yield `count` samples of one family; sample i depends on (family, split, seed, i) only. Raises UsageError."""
    if family not in _MAKERS:
        raise UsageError(f"family={family!r}: choose one of {', '.join(FAMILIES)}")
    if split not in SPLITS:
        raise UsageError(f"split={split!r}: choose one of {', '.join(SPLITS)}")
    # These strings are the seeds (random.Random hashes them alike everywhere): another wording means another corpus.
    for index in range(count):
        yield _draw(family, split, random.Random(f"{family}/{split}/{seed}/{index}"))


def exercises(kind: str, seed: int, count: int) -> Iterator[CorpusSample]:
    """Yield copying exercises, `short` or `long`, for training only."""
    make, stem = {"short": (copying.make_short, "copying"), "long": (copying.make_long, "repeats")}[kind]
    for index in range(count):
        yield make(random.Random(f"{stem}/{seed}/{index}"))


def _draw(family: Family, split: Split, rng: random.Random) -> CorpusSample:
    while True:
        sample = _MAKERS[family](rng)
        if split_of(sample.key) == split and (family != "math" or math.fits(sample)):
            return sample
