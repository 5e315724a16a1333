"""Text as tokens come and go: whole characters only, and the same text as at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider_client.text.detokenizer import Detokeniser


def decode(tokens) -> str:
    """A byte a token; incomplete characters become the replacement character, as in byte-level BPE."""
    return bytes(tokens).decode("utf-8", errors="replace")


def sentence_decode(tokens) -> str:
    """Like SentencePiece: a space before each word but the first of what is decoded."""
    return " ".join(f"w{token}" for token in tokens)


def test_characters_are_held_back_until_whole():
    detokeniser = Detokeniser(decode)
    parts = [detokeniser.push([byte]) for byte in "aé€😀".encode()]
    assert parts == ["a", "", "é", "", "", "€", "", "", "", "😀"]


def test_several_tokens_at_once():
    detokeniser = Detokeniser(decode)
    data = "xé€".encode()
    assert detokeniser.push(data[:4]) == "xé"
    assert detokeniser.push(data[4:]) == "€"


def test_rollback_takes_back_what_came_out():
    detokeniser = Detokeniser(decode)
    detokeniser.push("aé€".encode())
    assert detokeniser.roll_back(4) == "€"  # one byte of it stays, held back
    assert detokeniser.text == "aé"
    assert detokeniser.push("€".encode()[1:]) == "€"
    assert detokeniser.roll_back(1) == "é€"
    assert detokeniser.push(b"b") == "b"


def test_what_is_held_back_comes_out_at_the_end():
    detokeniser = Detokeniser(decode)
    detokeniser.push("a€".encode()[:3])
    assert detokeniser.text == "a"
    assert detokeniser.finish() == "\ufffd"
    assert detokeniser.finish() == ""


def test_decoders_that_look_at_the_neighbours():
    detokeniser = Detokeniser(sentence_decode)
    assert [detokeniser.push([n]) for n in range(3)] == ["w0", " w1", " w2"]


def test_tokens_without_text():
    detokeniser = Detokeniser(lambda tokens: "".join("ab"[t] for t in tokens if t < 2))
    assert [detokeniser.push([n]) for n in (0, 5, 5, 1)] == ["a", "", "", "b"]
    assert detokeniser.roll_back(2) == "b"


@given(st.data())
def test_any_pushes_and_rollbacks_give_the_text_of_what_stands(data):
    detokeniser = Detokeniser(decode)
    standing: list[int] = []
    heard = ""
    for _ in range(data.draw(st.integers(1, 8))):
        tokens = list(data.draw(st.text(max_size=4)).encode())
        cut = data.draw(st.integers(0, len(tokens)))
        heard += detokeniser.push(tokens[:cut])
        standing += tokens[:cut]
        keep = data.draw(st.integers(0, len(standing)))
        removed = detokeniser.roll_back(keep)
        assert heard.endswith(removed)
        heard = heard[: len(heard) - len(removed)]
        del standing[keep:]
    heard += detokeniser.finish()
    assert heard == detokeniser.text
    fresh = Detokeniser(decode)
    for token in standing:
        fresh.push([token])
    fresh.finish()
    assert heard == fresh.text
