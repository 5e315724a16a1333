"""Text goes out as soon as nothing can still change it, and never after a stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_client.core.events import Committed, Finished, RolledBack, Unverified, Verified
from outrider_client.core.statistics import Statistics
from outrider_client.gateway.text_stream import StopStrings, TextStream


def letters(first: int, text: str, origin: str = "accepted") -> Committed:
    """A token a letter."""
    return Committed(first, tuple(map(ord, text)), origin, text)


def alone(first: int, text: str) -> list[Unverified]:
    return [Unverified(first + i, (ord(letter),), letter) for i, letter in enumerate(text)]


def decode(tokens) -> str:
    return "".join(map(chr, tokens))


def shown(pieces) -> str:
    text = ""
    for piece in pieces:
        text = text[: piece.rollback_to] + piece.text
    return text


def flow(outflow: TextStream, events) -> list:
    return [piece for event in events for piece in outflow.take(event)]


END = Finished("eos", Statistics())
OUTAGE = [
    letters(0, "one "),
    *alone(4, "twa?"),
    Verified(4, 2),
    RolledBack(6, 2, "a?"),
    letters(6, "o", "corrected"),
    letters(7, " three"),
    END,
]


def test_held_text_waits_for_the_target():
    outflow = TextStream(StopStrings(), "hold")
    sent = [[piece.text for piece in outflow.take(event)] for event in OUTAGE]
    assert sent[:6] == [["one "], [], [], [], [], ["t", "w"]]
    assert "".join(text for texts in sent for text in texts) == "one two three"


def test_held_text_comes_in_the_end_when_the_link_stays_away():
    pieces = flow(
        TextStream(StopStrings(), "hold"), [letters(0, "a"), *alone(1, "bc"), Finished("unverified", Statistics())]
    )
    assert [(piece.text, piece.origin) for piece in pieces] == [
        ("a", "accepted"),
        ("b", "unverified"),
        ("c", "unverified"),
    ]


def test_streamed_text_is_verified_or_taken_back():
    outflow = TextStream(StopStrings(), "stream")
    pieces = flow(outflow, OUTAGE)
    assert shown(pieces) == "one two three"
    assert [(piece.offset, piece.verified_to) for piece in pieces if piece.verified_to] == [(4, 5), (5, 6)]
    assert [piece.rollback_to for piece in pieces if piece.rollback_to is not None] == [6]
    assert [piece.text for piece in pieces if piece.origin == "unverified"] == list("twa?")


@pytest.mark.parametrize("manner", ["hold", "keep", "stream"])
@given(data=st.data())
def test_cutting_the_text_up_changes_nothing(manner, data):
    text = data.draw(st.text("ab", max_size=12))
    stops = StopStrings(tuple(data.draw(st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))))
    outflow, first, sent = TextStream(stops, manner), 0, []
    while first < len(text) and not outflow.stopped:
        size = data.draw(st.integers(1, 5))
        sent += outflow.take(letters(first, text[first : first + size]))
        first += size
        assert not any(stop in shown(sent) for stop in stops.texts)
    sent += outflow.take(END)
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops.texts if stop in text]
    expected = text[: min(ends)[1]] if ends else text
    assert shown(sent) == expected
    assert outflow.has_stopped == bool(ends)
    assert outflow.num_tokens(decode) == (min(ends)[0] if ends else len(text))


@given(data=st.data())
def test_held_text_is_never_contradicted_nor_sent_late(data):
    """Outages at random: what goes out is always a beginning of what the target says."""
    said = data.draw(st.text("ab ", min_size=1, max_size=20))
    outflow, text, sent = TextStream(StopStrings(("b ",)), "hold"), "", ""
    while len(text) < len(said):
        guess = data.draw(st.text("ab ", max_size=4))
        for event in alone(len(text), guess):
            sent += shown(outflow.take(event))
        right = next((i for i in range(len(guess)) if guess[i] != said[len(text) + i : len(text) + i + 1]), len(guess))
        for event in judged(len(text), guess, right):
            sent += shown(outflow.take(event))
        text += guess[:right]
        more = said[len(text) : len(text) + 1]
        sent += shown(outflow.take(letters(len(text), more))) if more else ""
        text += more
        assert said.startswith(sent)
        if not outflow.stopped:
            assert sent == (text[:-1] if text.endswith("b") else text)
    assert outflow.stopped == ("b " in said)


def judged(first: int, guess: str, right: int):
    if right:
        yield Verified(first, right)
    if right < len(guess):
        yield RolledBack(first + right, len(guess) - right, guess[right:])


def test_a_stop_in_unverified_text_ends_nothing_until_it_stands():
    outflow = TextStream(StopStrings(("x",)), "stream")
    pieces = flow(outflow, [letters(0, "a"), *alone(1, "bxc")])
    assert (shown(pieces), outflow.stopped) == ("ab", False)
    pieces += flow(outflow, [RolledBack(2, 2, "xc"), letters(2, "c"), END])
    assert (shown(pieces), outflow.has_stopped) == ("abc", False)
    outflow = TextStream(StopStrings(("x",)), "stream")
    assert shown(flow(outflow, [letters(0, "a"), *alone(1, "bxc"), Verified(1, 2)])) == "ab"
    assert outflow.stopped


def test_text_sent_before_a_rollback_made_it_the_beginning_of_a_stop():
    outflow = TextStream(StopStrings(("bx",)), "stream")
    pieces = flow(outflow, [letters(0, "a"), *alone(1, "bc"), RolledBack(2, 1, "c"), letters(2, "x"), END])
    assert shown(pieces) == "a"
