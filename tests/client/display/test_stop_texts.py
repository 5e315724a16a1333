"""Answers that end at a text that the user names."""

from __future__ import annotations

import pytest

from outrider_client.core.answer_text import AnswerText
from outrider_client.core.events import Committed, Finished, Private, RolledBack, Unverified, Verified, Warned
from outrider_client.core.statistics import Statistics
from outrider_client.display.stop_texts import stop_at

STATISTICS = Statistics(new_tokens=4)
END = Finished("limit", STATISTICS)


def filtered(events, *stops):
    return list(stop_at(stops, iter_of(events)))


def iter_of(events):
    yield from events


def text_of(events):
    written = AnswerText()
    for event in events:
        written.take(event)
    return written.text


def committed(*texts):
    return [Committed(at, (at,), "bonus", text) for at, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("stops", "left"),
    [(["User:"], "One. \n"), (["\n"], "One. "), (["\nU", "ne"], "O"), (["r: two", "One. \nUser"], ""), (["Two"], None)],
)
def test_the_text_ends_before_the_stop_however_it_is_cut(stops, left):
    text = "One. \nUser: two"
    for size in range(1, len(text) + 1):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        events = filtered([*committed(*pieces), END], *stops)
        assert text_of(events) == (text if left is None else left)
        assert [event.reason for event in events if isinstance(event, Finished)] == ["limit" if left is None else "eos"]


def unverified(first, *texts):
    return [Unverified(first + at, (first + at,), text) for at, text in enumerate(texts)]


def test_a_stop_that_is_rolled_back_ends_nothing():
    outage = [*committed("a"), *unverified(1, "E", "ND", "b"), RolledBack(2, 2, "NDb"), Verified(1, 1)]
    events = filtered([*outage, Committed(2, (2,), "corrected", "c"), END], "END")
    assert text_of(events) == "aEc"
    assert not any(isinstance(event, Unverified | RolledBack | Verified) for event in events)
    events = filtered([*outage, Committed(2, (2,), "corrected", "NDc"), Committed(3, (3,), "bonus", "d")], "END")
    assert text_of(events) == "a"


@pytest.mark.parametrize(("reason", "told"), [("unverified", "unverified"), ("link", "link"), ("context", "eos")])
def test_an_answer_that_ends_unverified_ends_at_the_stop_too(reason, told):
    events = filtered([*committed("a"), *unverified(1, "b", "END", "c"), Finished(reason, STATISTICS, "d")], "END")
    assert text_of(events) == "ab"
    assert events[-1].reason == told
    events = filtered([*committed("a"), Finished(reason, STATISTICS, "d")], "END")
    assert (text_of(events), events[-1].reason) == ("ad", reason)


def test_a_private_answer_stays_private():
    events = filtered([Private(0, (0,), "a END b"), Warned("never")], "END")
    assert events == [Private(0, (0,), "a "), Finished("private", Statistics())]
