"""The recording of a demo as plain values: the origin and time of every token, and the states of the link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from math import exp, log

import outrider_client
from outrider_client import Draft, Statistics

# Kinds of tokens: accepted, bonus, corrected and unverified are origins; unverified ones turn verified or rolled back.


@dataclass(frozen=True, slots=True)
class Mark:
    """`count` tokens from `position` on became `kind` at `at_s`."""

    at_s: float
    position: int
    count: int
    kind: str


@dataclass(slots=True)
class Span:
    """A part of the answer's text and its current kind. Rolled-back text is kept, to be shown struck out."""

    position: int
    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class JudgedDraft:
    """A verdict on `drafted` nodes, `accepted` of them on the path."""

    at_s: float
    drafted: int
    accepted: int


@dataclass(slots=True)
class Answer:
    """One question's answer in one mode; times are seconds since the demo's first question."""

    subject: str
    prompt: str
    mode: str
    started_s: float
    finished_s: float = 0.0
    finish: str = ""
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    verdicts: list[JudgedDraft] = field(default_factory=list)
    states: list[tuple[float, str]] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)
    token_ids: tuple[int, ...] = ()
    is_targets_own: bool = False  # token for token

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans if span.kind != "rolled back")

    def pieces(self) -> Iterator[tuple[str, str]]:
        """Yield kind and text of each longest run of one kind."""
        for kind, spans in groupby(self.spans, key=lambda span: span.kind):
            yield kind, "".join(span.text for span in spans)

    @property
    def num_committed(self) -> int:
        return sum(mark.count for mark in self.marks if mark.kind in ("accepted", "bonus", "corrected", "verified"))

    @property
    def seconds(self) -> float:
        return self.finished_s - self.started_s

    @property
    def tokens_per_second(self) -> float:
        """Speed from the question to the end, the wait for the first token included."""
        return len(self.token_ids) / self.seconds

    def note(self, event: outrider_client.Event, now: float) -> None:
        """Record one event of the client."""
        match event:
            case outrider_client.Committed(first, tokens, origin, text):
                self._append(now, first, len(tokens), origin, text)
            case outrider_client.Unverified(first, tokens, text):
                self._append(now, first, len(tokens), "unverified", text)
            case outrider_client.Verified(first, count):
                self._turn(now, first, count, "verified")
            case outrider_client.RolledBack(first, count):
                self._turn(now, first, count, "rolled back")
            case outrider_client.LinkChanged(state):
                self.states.append((now, state.value))
            case outrider_client.Cycle(Draft(tree=tree), verdict) if len(tree) and not self._has_unverified:
                self.verdicts.append(JudgedDraft(now, len(tree), len(verdict.path)))
            case outrider_client.Finished(reason, statistics, text):
                self.finish, self.statistics, self.finished_s = reason, statistics, now
                self.spans.append(Span(statistics.new_tokens, text, "bonus"))
            case _:
                pass  # statistics, empty drafts and checks of unverified tokens are not recorded

    @property
    def _has_unverified(self) -> bool:
        return any(span.kind == "unverified" for span in self.spans)

    def _append(self, now: float, first: int, count: int, kind: str, text: str) -> None:
        self.marks.append(Mark(now, first, count, kind))
        self.spans.append(Span(first, text, kind))

    def _turn(self, now: float, first: int, count: int, kind: str) -> None:
        self.marks.append(Mark(now, first, count, kind))
        for span in self.spans:
            if span.kind == "unverified" and first <= span.position < first + count:
                span.kind = kind


@dataclass(slots=True)
class Recording:
    """A whole demo; `outages` are those of the emulated link itself, not as the client saw them."""

    answers: list[Answer] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)

    @property
    def cut_answer(self) -> Answer:
        """The answer during which the link was cut."""
        start, _ = self.outages[0]
        return next(answer for answer in self.answers if answer.started_s <= start <= answer.finished_s)

    @property
    def pairs(self) -> list[tuple[Answer, Answer]]:
        """The answers to each question without an outage: streamed, and with the drafter."""
        undisturbed = [answer for answer in self.answers if not self.outages or answer is not self.cut_answer]
        streamed = {answer.prompt: answer for answer in undisturbed if answer.mode == "stream"}
        drafted = {answer.prompt: answer for answer in undisturbed if answer.mode != "stream"}
        return [
            (streamed[prompt], drafted[prompt]) for prompt in dict.fromkeys(answer.prompt for answer in undisturbed)
        ]

    @property
    def speed_up(self) -> float:
        """Geometric mean over the questions: speed with the drafter by that of streaming."""
        logs = [log(drafted.tokens_per_second / streamed.tokens_per_second) for streamed, drafted in self.pairs]
        return exp(sum(logs) / len(logs))
