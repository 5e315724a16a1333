"""The held-out prompts that ship with the embedded pair, drawn from the corpus, and what judges answers to them."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Sequence
from functools import cache

from outrider_lab.corpus import generate
from outrider_lab.corpus.sample import CorpusSample
from outrider_models.core.held_out import ASKED_SEED, FAMILIES, SHIPPED, Family, Sample, SampleMessage


def shipped_prompts() -> bytes:
    """Return the content of the file that outrider_models.core.held_out reads."""
    return lzma.compress("".join(f"{line}\n" for line in _lines()).encode(), preset=lzma.PRESET_EXTREME | 9)


def with_checks(samples: Sequence[Sample]) -> list[CorpusSample]:
    """Return those of ASKED_SEED as the corpus has drawn them, with what judges their answers."""
    return [_asked()[sample.messages] for sample in samples]


@cache
def _asked() -> dict[tuple[SampleMessage, ...], CorpusSample]:
    return {sample.messages: sample for family in FAMILIES for sample in _drawn(family, ASKED_SEED)}


def _lines() -> Iterator[str]:
    for seed in SHIPPED:
        for family in FAMILIES:
            for sample in _drawn(family, seed):
                turns = [message.content for message in sample.conversation()]
                yield json.dumps({"seed": seed, "family": family, "turns": turns}, separators=(",", ":"))


def _drawn(family: Family, seed: int) -> Iterator[CorpusSample]:
    return generate(family, "test", seed, SHIPPED[seed])
