"""Text is sent as soon as nothing can change it any more, and never after a stop string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_client.core.events import Committed, Finished, RolledBack, Unverified, Verified
from outrider_client.core.statistics import Statistics
from outrider_client.gateway.text_stream import TextStream
from outrider_client.text.detokenizer import Detokenizer
from outrider_client.text.logprobs import TokenLogprobs
from outrider_client.text.stop_strings import StopStrings


def letters(first: int, text: str, origin: str = "accepted") -> Committed:
    """One letter per token."""
    return Committed(first, tuple(map(ord, text)), origin, text)


def alone(first: int, text: str) -> list[Unverified]:
    return [Unverified(first + i, (ord(letter),), letter) for i, letter in enumerate(text)]


def decode(tokens) -> str:
    return "".join(map(chr, tokens))


def shown(chunks) -> str:
    text = ""
    for chunk in chunks:
        text = text[: chunk.rollback_to] + chunk.text
    return text


def flow(stream: TextStream, events) -> list:
    return [chunk for event in events for chunk in stream.take(event)]


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


def test_held_text_is_sent_at_the_end_of_an_outage_that_lasts():
    lasting = [letters(0, "a"), *alone(1, "bc"), Finished("unverified", Statistics())]
    chunks = flow(TextStream(StopStrings(), "hold", decode, has_logprobs=True), lasting)
    assert "".join(f"{chunk.text} {chunk.origin} " for chunk in chunks) == "a accepted b unverified c unverified "


def test_streamed_text_is_verified_or_taken_back():
    stream = TextStream(StopStrings(), "stream", decode, has_logprobs=True)
    chunks = flow(stream, OUTAGE)
    assert shown(chunks) == "one two three"
    assert [(chunk.offset, chunk.verified_to) for chunk in chunks if chunk.verified_to] == [(4, 5), (5, 6)]
    assert [chunk.rollback_to for chunk in chunks if chunk.rollback_to is not None] == [6]
    assert [chunk.text for chunk in chunks if chunk.origin == "unverified"] == list("twa?")


@pytest.mark.parametrize("policy", ["hold", "keep", "stream"])
@given(data=st.data())
def test_the_chunks_of_the_events_do_not_matter(policy, data):
    text = data.draw(st.text("ab", max_size=12))
    stops = StopStrings(tuple(data.draw(st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))))
    stream, first, sent = TextStream(stops, policy, decode, has_logprobs=True), 0, []
    while first < len(text) and not stream.stopped:
        size = data.draw(st.integers(1, 5))
        sent += stream.take(letters(first, text[first : first + size]))
        first += size
        assert not any(stop in shown(sent) for stop in stops.texts)
    sent += stream.take(END)
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops.texts if stop in text]
    expected = text[: min(ends)[1]] if ends else text
    assert shown(sent) == expected
    assert stream.has_stopped == bool(ends)
    assert stream.num_tokens == (min(ends)[0] if ends else len(text))


@given(data=st.data())
def test_log_probabilities_are_those_of_the_text_whatever_came_together(data):
    """Tokens are bytes here: those of a character come and go together."""
    text = data.draw(st.text("ab😀é", max_size=8))
    stops = StopStrings(tuple(data.draw(st.lists(st.text("ab😀é", min_size=1, max_size=2), max_size=2))))
    pieces = Detokenizer(lambda tokens: bytes(tokens).decode(errors="replace"))
    stream, left, sent = TextStream(stops, "hold", pieces._decode, has_logprobs=True), text.encode(), []
    while left:
        size = data.draw(st.integers(1, 6))
        tokens, first = tuple(left[:size]), len(text.encode()) - len(left)
        logprobs = tuple(TokenLogprobs(token, -1.0) for token in tokens)
        sent += stream.take(Committed(first, tokens, "accepted", pieces.push(tokens), logprobs))
        left = left[size:]
    sent += stream.take(END)
    expected = [(byte, at) for at, char in enumerate(shown(sent)) for byte in char.encode()]
    assert [(one.token, begin) for chunk in sent for one, begin in chunk.logprobs] == expected
    ends = [text.find(stop) + len(stop) for stop in stops.texts if stop in text]
    assert stream.num_tokens == len(text[: min(ends, default=len(text))].encode())


@given(data=st.data())
def test_held_text_is_never_contradicted_nor_sent_late(data):
    """Random outages: the sent text is always a prefix of the target's text."""
    answer = data.draw(st.text("ab ", min_size=1, max_size=20))
    stream, text, sent = TextStream(StopStrings(("b ",)), "hold", decode, has_logprobs=True), "", ""
    while len(text) < len(answer):
        guess = data.draw(st.text("ab ", max_size=4))
        for event in alone(len(text), guess):
            sent += shown(stream.take(event))
        right = next(
            (i for i in range(len(guess)) if guess[i] != answer[len(text) + i : len(text) + i + 1]), len(guess)
        )
        for event in judged(len(text), guess, right):
            sent += shown(stream.take(event))
        text += guess[:right]
        more = answer[len(text) : len(text) + 1]
        sent += shown(stream.take(letters(len(text), more))) if more else ""
        text += more
        assert answer.startswith(sent)
        if not stream.stopped:
            assert sent == (text[:-1] if text.endswith("b") else text)
    assert stream.stopped == ("b " in answer)


def judged(first: int, guess: str, right: int):
    if right:
        yield Verified(first, right)
    if right < len(guess):
        yield RolledBack(first + right, len(guess) - right, guess[right:])


def test_a_stop_in_unverified_text_ends_nothing_until_it_is_final():
    stream = TextStream(StopStrings(("x",)), "stream", decode, has_logprobs=True)
    chunks = flow(stream, [letters(0, "a"), *alone(1, "bxc")])
    assert (shown(chunks), stream.stopped) == ("ab", False)
    chunks += flow(stream, [RolledBack(2, 2, "xc"), letters(2, "c"), END])
    assert (shown(chunks), stream.has_stopped) == ("abc", False)
    stream = TextStream(StopStrings(("x",)), "stream", decode, has_logprobs=True)
    assert shown(flow(stream, [letters(0, "a"), *alone(1, "bxc"), Verified(1, 2)])) == "ab"
    assert stream.stopped


def test_sent_text_that_a_rollback_makes_the_beginning_of_a_stop():
    stream = TextStream(StopStrings(("bx",)), "stream", decode, has_logprobs=True)
    chunks = flow(stream, [letters(0, "a"), *alone(1, "bc"), RolledBack(2, 1, "c"), letters(2, "x"), END])
    assert shown(chunks) == "a"
