"""Answers that end at a text that the user names."""

from __future__ import annotations

import io

import pytest

from outrider_client.core.answer_text import AnswerText
from outrider_client.core.events import Committed, Finished, Private, RolledBack, Stats, Unverified, Verified, Warned
from outrider_client.core.statistics import Statistics
from outrider_client.display.display import PlainDisplay, show_answer
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


def test_no_text_is_shown_that_may_begin_a_stop():
    passed = filtered([*committed("a", "E", "N", "b", "EN"), END], "END")
    assert [event.text for event in passed] == ["a", "E", "N", "b", "EN", ""]
    events = stop_at(["END"], iter_of(committed("a", "E", "N", "b")))
    assert [next(events).text, next(events).text] == ["a", "E"]  # the E waited for the b


def test_the_answer_is_closed_at_once():
    closed = []

    def answer():
        try:
            yield Stats(STATISTICS)
            yield from committed("a", "END", "b")
            raise AssertionError
        finally:
            closed.append(True)

    events = list(stop_at(["END"], answer()))
    assert closed == [True]
    assert events[0] == Stats(STATISTICS)
    assert events[-1] == Finished("eos", STATISTICS)
    assert text_of(events) == "a"


def unverified(first, *texts):
    return [Unverified(first + at, (first + at,), text) for at, text in enumerate(texts)]


def test_a_stop_that_is_rolled_back_ends_nothing():
    outage = [*committed("a"), *unverified(1, "E", "ND", "b"), RolledBack(2, 2, "NDb"), Verified(1, 1)]
    events = filtered([*outage, Committed(2, (2,), "corrected", "c"), END], "END")
    assert text_of(events) == "aEc"
    assert not any(isinstance(event, Unverified | RolledBack | Verified) for event in events)
    events = filtered([*outage, Committed(2, (2,), "corrected", "NDc"), Committed(3, (3,), "bonus", "d")], "END")
    assert text_of(events) == "a"


def test_a_stop_in_verified_text_ends_the_answer():
    events = filtered([*committed("a"), *unverified(1, "E", "ND", "b"), Verified(1, 2), *committed("never")], "END")
    assert text_of(events) == "a"
    assert events[-1].reason == "eos"


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


def test_a_pipe_gets_nothing_of_the_stop():
    class Client:
        def generate(self, prompt):
            yield from [*committed("one\n", "\nUs", "er: two"), END]

    out = io.StringIO()
    finished = show_answer(Client(), [1], PlainDisplay(out), ["\n\nUser:"])
    assert out.getvalue() == "one\n"
    assert finished.reason == "eos"
