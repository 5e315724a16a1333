"""One corpus sample and the rule that splits compositions into train and test."""

import zlib
from dataclasses import dataclass, field
from typing import Literal

from outrider_models.core.held_out import Sample, SampleMessage

Split = Literal["train", "test"]

EXERCISES = ("short", "long")  # of the copying curriculum
SPLITS: tuple[Split, ...] = ("train", "test")


@dataclass(frozen=True, slots=True)
class HiddenTests:
    """Tests of a generated function: each case is an argument and the expected value, as Python literals."""

    function: str
    cases: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Number:
    """The last `Answer: N` of the text must give this number."""

    value: int


@dataclass(frozen=True, slots=True)
class Entities:
    """Every one of these strings must occur in the text."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exact:
    """The text must equal this, apart from white space at the ends."""

    text: str


Check = HiddenTests | Number | Entities | Exact


@dataclass(frozen=True, slots=True)
class CorpusSample(Sample):
    """A sample with what judges an answer to it."""

    key: str  # the composition; the split depends on it
    check: Check = field(compare=False)


def single_turn(family: str, key: str, prompt: str, answer: str, check: Check) -> CorpusSample:
    """Build a sample of one user turn."""
    return CorpusSample(family, (SampleMessage("user", prompt),), answer, key, check)


def split_of(key: str) -> Split:
    """Return the split of a composition: one in ten is held out, although its parts are trained on."""
    # crc32, not hash(): Python salts the hashes of strings in each process.
    return "test" if zlib.crc32(key.encode()) % 10 == 0 else "train"
