"""Text as tokens come and go: whole characters only, and the same text as at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider_client.text.detokenizer import Detokenizer


def decode(tokens) -> str:
    """A byte a token; incomplete characters become the replacement character, as in byte-level BPE."""
    return bytes(tokens).decode("utf-8", errors="replace")


def sentence_decode(tokens) -> str:
    """Like SentencePiece: a space before each word but the first of what is decoded."""
    return " ".join(f"w{token}" for token in tokens)


def test_what_is_held_back_comes_out_at_the_end():
    detokenizer = Detokenizer(decode)
    detokenizer.push("a€".encode()[:3])
    assert detokenizer.text == "a"
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_decoders_that_look_at_the_neighbours():
    detokenizer = Detokenizer(sentence_decode)
    assert [detokenizer.push([n]) for n in range(3)] == ["w0", " w1", " w2"]


def test_tokens_without_text():
    detokenizer = Detokenizer(lambda tokens: "".join("ab"[t] for t in tokens if t < 2))
    assert [detokenizer.push([n]) for n in (0, 5, 5, 1)] == ["a", "", "", "b"]
    assert detokenizer.roll_back(2) == "b"


@given(st.data())
def test_any_pushes_and_rollbacks_give_the_text_of_what_stands(data):
    detokenizer = Detokenizer(decode)
    standing: list[int] = []
    heard = ""
    for _ in range(data.draw(st.integers(1, 8))):
        tokens = list(data.draw(st.text(max_size=4)).encode())
        cut = data.draw(st.integers(0, len(tokens)))
        heard += detokenizer.push(tokens[:cut])
        standing += tokens[:cut]
        keep = data.draw(st.integers(0, len(standing)))
        removed = detokenizer.roll_back(keep)
        assert heard.endswith(removed)
        heard = heard[: len(heard) - len(removed)]
        del standing[keep:]
    heard += detokenizer.finish()
    assert heard == detokenizer.text
    fresh = Detokenizer(decode)
    for token in standing:
        fresh.push([token])
    fresh.finish()
    assert heard == fresh.text
