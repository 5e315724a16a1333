"""Rows of a measurement: each case once, and every answer whole; the report is computed from them alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from outrider_bench.core.prompts import TEXT_GROUPS
from outrider_bench.core.stats import mean, ratio
from outrider_bench.network.link_endpoint import LinkTraffic
from outrider_bench.network.report import ScenarioSetting
from outrider_bench.network.timed_answer import AnswerSlot, TimedAnswer
from outrider_bench.network.variants import STREAM

Row = dict[str, Any]  # Any: numbers, texts and booleans
_TRAFFIC = tuple(field.name for field in fields(LinkTraffic))


@dataclass(frozen=True, slots=True)
class CaseKey:
    """What tells the cases of one measurement apart; run n of a case takes the link seed `seed + n`."""

    drafter: str
    profile: str
    seed: int

    def __str__(self) -> str:
        return f"{self.drafter} over {self.profile}, seed {self.seed}"

    def name_of(self, slot: AnswerSlot) -> str:
        return f"{self}: run {slot.run}, prompt {slot.place}, {slot.way}"


@dataclass(frozen=True, slots=True)
class CaseEntry:
    """A case's setting, the variants that answer, and the controls that cannot, with the reason."""

    key: CaseKey
    setting: ScenarioSetting
    variants: tuple[str, ...]
    missing: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AnswerEntry:
    """One answer; `pings_ms` were measured just before it."""

    key: CaseKey
    slot: AnswerSlot
    family: str
    prompt_tokens: int
    pings_ms: tuple[float, ...]
    answer: TimedAnswer


class Records:
    """What was measured so far, as the study's rows have it, which may grow meanwhile."""

    def __init__(self, rows: Mapping[str, object]) -> None:
        self._rows = rows

    def case(self, key: CaseKey) -> CaseEntry | None:
        entry = self._rows.get(str(key))
        return entry if isinstance(entry, CaseEntry) else None

    def has(self, key: CaseKey, slot: AnswerSlot) -> bool:
        return key.name_of(slot) in self._rows

    def run_of(self, key: CaseKey, run: int) -> list[AnswerEntry]:
        """Return the answers of a run, by prompt and within a prompt in their order."""
        entries = (row for row in self._rows.values() if isinstance(row, AnswerEntry) and row.key == key)
        of_run = (entry for entry in entries if entry.slot.run == run)
        return sorted(of_run, key=lambda entry: (entry.slot.place, entry.slot.order))


def answer_rows(group: Sequence[AnswerEntry], *, in_corpus: bool = True) -> list[Row]:
    """Return a flat row for each answer to one prompt of one run; only prompts of the corpus are easy or hard."""
    right = next((entry.answer.token_ids for entry in group if entry.slot.way == STREAM), None)
    groups = TEXT_GROUPS if in_corpus else {}
    return [_row(entry, right, groups) for entry in group]


def _row(entry: AnswerEntry, right: tuple[int, ...] | None, groups: Mapping[str, Sequence[str]]) -> Row:
    answer, told, traffic = entry.answer, entry.answer.statistics, entry.answer.traffic
    judging = answer.judging(answer.drafts)
    return {
        **asdict(entry.key),
        "link_seed": entry.key.seed + entry.slot.run,
        **asdict(entry.slot),
        "family": entry.family,
        "text": next((name for name, families in groups.items() if entry.family in families), ""),
        "prompt_tokens": entry.prompt_tokens,
        "held_tokens": answer.held_tokens,
        "tokens": len(answer.token_ids),
        "ttft_ms": answer.ttft_ms,
        "ttft_warm_ms": answer.warm_ms,
        "decode_ms": answer.decode_ms,
        "decoded_tokens": answer.decoded_tokens,
        "tokens_per_second": ratio(answer.decoded_tokens * 1e3, answer.decode_ms),
        "verdicts": len(judging),
        "verdict_tokens": sum(reply.tokens for reply in judging),
        "stale_drafts": told.stale_drafts,
        "target_calls": told.target_calls,
        "verify_ms": mean(reply.verify_ms for reply in answer.replies[1:] if reply.verify_ms),
        "server_draft_ms": sum(reply.draft_ms for reply in answer.replies),
        "bytes_up": told.bytes_up,
        "bytes_down": told.bytes_down,
        **{f"link_{name}": traffic and getattr(traffic, name) for name in _TRAFFIC},
        "pings": len(entry.pings_ms),
        "ping_ms": mean(entry.pings_ms),
        "outages": told.outages,
        "matches_stream": None if right is None else answer.token_ids == right,
    }
