"""What happened in a demo, as plain values: which token came when and from whom, and what the link did meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider_client import events
from outrider_client.statistics import Statistics
from outrider_proto.frames import Draft


@dataclass(frozen=True, slots=True)
class Mark:
    """`count` tokens from `position` on became `kind` at `at_s`.

    Kinds: the origins accepted, bonus, corrected and unverified; verified and rolled back are what these became.
    """

    at_s: float
    position: int
    count: int
    kind: str


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict on `drafted` nodes, `accepted` of them on the path."""

    at_s: float
    drafted: int
    accepted: int


@dataclass(slots=True)
class Answer:
    """One prompt's answer; times are seconds since the demo's first prompt."""

    family: str
    prompt: str
    started_s: float
    finished_s: float = 0.0
    text: str = ""
    finish: str = ""
    marks: list[Mark] = field(default_factory=list)
    verdicts: list[Judged] = field(default_factory=list)
    states: list[tuple[float, str]] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)
    right: bool = False
    undisturbed: bool | None = None  # after an outage: whether the text is that of a run without one

    def note(self, event: events.Event, now: float) -> None:
        """Enter one event of the client into the record."""
        match event:
            case events.Committed(first, tokens, origin, text):
                self.marks.append(Mark(now, first, len(tokens), origin))
                self.text += text
            case events.Unverified(first, tokens, text):
                self.marks.append(Mark(now, first, len(tokens), "unverified"))
                self.text += text
            case events.Verified(first, count):
                self.marks.append(Mark(now, first, count, "verified"))
            case events.RolledBack(first, count, text):
                self.marks.append(Mark(now, first, count, "rolled back"))
                self.text = self.text.removesuffix(text)
            case events.LinkChanged(state):
                self.states.append((now, state.value))
            case events.Cycle(Draft(tree=tree), verdict) if len(tree):
                self.verdicts.append(Judged(now, len(tree), len(verdict.path)))
            case events.Finished(reason, statistics, text):
                self.text += text
                self.finish, self.statistics, self.finished_s = reason, statistics, now
            case _:
                pass  # running statistics and empty drafts leave no trace


@dataclass(slots=True)
class Recording:
    """A whole demo; `outages` are those of the emulated link itself, not what the client made of it."""

    answers: list[Answer] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)

    @property
    def cut_answer(self) -> Answer:
        """The answer during which the link went."""
        start, _ = self.outages[0]
        return next(answer for answer in self.answers if answer.started_s <= start <= answer.finished_s)
