"""Held-out prompts, with answers, of the text that the embedded pair was trained on: what is asked by default.

embedded/prompts.jsonl.xz has a line for each, `outrider-lab corpus --out FILE` has drawn them:

    {"seed": 2026, "family": "chat", "turns": [user's, assistant's, ..., user's, answer]}
"""

import json
import lzma
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from outrider_proto.errors import UsageError

Family = Literal["code", "math", "chat", "summary", "qa", "instruct"]
Role = Literal["user", "assistant"]

FAMILIES: tuple[Family, ...] = ("code", "math", "chat", "summary", "qa", "instruct")
ASKED_SEED = 2026
WARM_UP_SEED = ASKED_SEED + 1
# Each number of _PREFIXES has prompts of its own, to stand before others: a session would remember its own.
_PREFIX_SEED = ASKED_SEED + 2
_PREFIXES = 24
PROMPTS_FILE = "prompts.jsonl.xz"
# How many of each family are there, by seed.
SHIPPED = {ASKED_SEED: 200, WARM_UP_SEED: 1, 1: 64, **{_PREFIX_SEED + number: 8 for number in range(_PREFIXES)}}


@dataclass(frozen=True, slots=True)
class SampleMessage:
    role: Role
    content: str

    def as_dict(self) -> dict[str, str]:
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt, whose last message is the user's, and its reference answer."""

    family: str
    messages: tuple[SampleMessage, ...]
    answer: str

    def conversation(self) -> tuple[SampleMessage, ...]:
        return (*self.messages, SampleMessage("assistant", self.answer))


def held_out(family: Family, count: int, seed: int | None = None) -> list[Sample]:
    """Return `count` prompts that were drawn with `seed`, by default those of all measurements. Raises UsageError."""
    drawn = _prompts().get((ASKED_SEED if seed is None else seed, family))
    pool = drawn or _prompts()[ASKED_SEED, family]
    if count > len(pool):
        raise UsageError(f"{count} prompts of family {family}: {len(pool)} are there; use --questions FILE for more")
    return pool[:count] if drawn else random.Random(seed).sample(pool, count)


def prefixes(family: Family, number: int) -> Iterator[Sample]:
    """Yield prompts to stand before the one with this number; none of them is ever asked, nor does another have it."""
    for further in range(_PREFIXES):
        yield from _prompts()[_PREFIX_SEED + (number + further) % _PREFIXES, family]


@cache
def _prompts() -> dict[tuple[int, str], list[Sample]]:
    found: dict[tuple[int, str], list[Sample]] = {}
    content = (resources.files("outrider_models") / "embedded" / PROMPTS_FILE).read_bytes()
    for line in map(json.loads, lzma.decompress(content).splitlines()):
        *turns, answer = line["turns"]
        messages = (SampleMessage("assistant" if n % 2 else "user", turn) for n, turn in enumerate(turns))
        found.setdefault((line["seed"], line["family"]), []).append(Sample(line["family"], tuple(messages), answer))
    return found
