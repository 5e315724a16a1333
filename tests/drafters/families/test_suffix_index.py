"""Candidates against counts over every occurrence in every text, written out slowly from the paper."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider_drafters.families.suffix.index import LEAST, LONGEST, GrowingText, History, candidates, reading
from outrider_proto.tree import ROOT

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)
histories = st.lists(texts, max_size=4)


def candidates_of(text: list[int], history: list[list[int]] = (), shortest: int = 1):
    grown = GrowingText()
    grown.append(text)
    with reading(History(history) if history else None):
        return candidates(grown, shortest)


def occurrences(pattern: list[int], corpus: list[list[int]], own: bool) -> int:
    """How often the pattern stands in the texts; in the text being written, not as its end."""
    size = len(pattern)
    starts = [(text, start) for text in corpus for start in range(len(text) - size + 1)]
    is_itself = [own and start + size == len(text) for text, start in starts]
    found = [text[start : start + size] == pattern for text, start in starts]
    return sum(one and not itself for one, itself in zip(found, is_itself, strict=True))


def probability(pattern: list[int], path: list[int], corpus: list[list[int]], own: bool) -> float:
    """The product of the shares of the counts, each less what a pattern that short leaves open."""
    product = 1.0
    for depth in range(len(path)):
        before, after = pattern + path[:depth], pattern + path[: depth + 1]
        # What is drafted may run into the text's end: there the end of the text is an occurrence like any other.
        among = occurrences(before, corpus, own and depth == 0)
        product *= occurrences(after, corpus, False) / (among + 2 / len(before))
    return product


def best_first(pattern: list[int], corpus: list[list[int]], own: bool) -> list[float]:
    """The probabilities of the likeliest paths, at most two for each token of the pattern and 32 in all."""
    chosen: list[float] = []
    offered = [[token] for token in range(4)]
    while len(chosen) < min(2 * len(pattern), 32):
        best = max(offered, key=lambda path: probability(pattern, path, corpus, own), default=None)
        if best is None or (likely := probability(pattern, best, corpus, own)) < LEAST:
            break
        offered.remove(best)
        chosen.append(likely)
        offered += [[*best, token] for token in range(4)]
    return chosen


def best_of_all(text: list[int], history: list[list[int]], shortest: int) -> list[float]:
    """The probabilities of the tree with the largest score, over all lengths, in the text and in the history."""
    trees = [
        best_first(text[-length:], corpus, own)
        for corpus, own, least in (([text], True, 1), (history, False, 2))  # a history is found by pairs
        for length in range(max(shortest, least), min(len(text), LONGEST) + 1)
        if occurrences(text[-length:], corpus, own)
    ]
    return max(trees, key=sum, default=[])


@given(text=texts, history=histories, shortest=st.integers(1, 4))
@example(text=[1, 2, 3, 1, 2], history=[], shortest=1)
@example(text=[1] * 30, history=[[1] * 30], shortest=1)  # overlapping, and longer than any pattern
@example(text=[0, 1], history=[[0, 1], [2, 0, 1]], shortest=2)  # occurs at the end of texts only
@example(text=[1, 2], history=[[0, 1], [2, 3]], shortest=2)  # no pattern crosses from one text to the next
def test_counts_what_a_slow_count_finds(text, history, shortest):
    found, wanted = candidates_of(text, history, shortest), best_of_all(text, history, shortest)
    assert found.score == pytest.approx(sum(wanted))
    assert sorted(found.probabilities, reverse=True) == pytest.approx(wanted)
    assert found.pattern_len >= shortest or not found.tree.tokens


@given(text=texts, history=histories)
def test_every_node_has_the_probability_of_its_path(text, history):
    found = candidates_of(text, history)
    paths: dict[int, list[int]] = {ROOT: []}
    for node, (token, parent) in enumerate(zip(found.tree.tokens, found.tree.parents, strict=True)):
        paths[node] = [*paths[parent], token]
        pattern = text[-found.pattern_len :]
        both = [probability(pattern, paths[node], corpus, own) for corpus, own in (([text], True), (history, False))
                if occurrences(pattern, corpus, own)]  # fmt: skip
        assert any(found.probabilities[node] == pytest.approx(one) for one in both)


@given(first=texts, edits=st.lists(st.one_of(texts, st.integers(0, 12)), max_size=8))
def test_a_text_equals_a_new_one_after_any_edits(first, edits):
    grown, told = GrowingText(), list(first)
    grown.append(first)
    for edit in edits:
        if isinstance(edit, list):
            grown.append(edit)
            told += edit
        else:
            keep = max(0, len(told) - edit)
            grown.rollback(keep)
            del told[keep:]
        fresh = GrowingText()
        fresh.append(told)
        assert grown.tokens.tolist() == told
        assert candidates(grown) == candidates(fresh)
        for token in range(4):
            assert grown.places([token]).tolist() == fresh.places([token]).tolist()


def test_a_history_is_read_only_where_somebody_lets_it():
    grown = GrowingText()
    grown.append([1, 2])
    assert not candidates(grown).tree.tokens
    with reading(History([[1, 2, 3]])):
        assert candidates(grown).tree.tokens == (3,)
        with reading(None):
            assert not candidates(grown).tree.tokens
    assert not candidates(grown).tree.tokens


def test_memory_is_bounded_by_the_tokens():
    """Sixteen bytes a token of a history; of a text, what its buffer and the places of its tokens take."""
    rng = np.random.default_rng(1)
    history = History([rng.integers(0, 50_000, 1000) for _ in range(100)])
    assert history.num_bytes <= 16 * 100 * 1001
    grown = GrowingText()
    for _ in range(20):
        grown.append([1, 2, 3] * 100)
        grown.rollback(0)
    assert not grown._places
    assert len(grown._buffer) < 1000


def test_a_frequent_token_costs_a_bounded_count():
    """Only the newest places are counted, as are those of a pattern that is everywhere."""
    history = History([[6, 7, 8] * 5000, [6, 7, 9] * 1024])
    with reading(history):
        grown = GrowingText()
        grown.append([6, 7])
        assert 8 not in candidates(grown).tree.tokens
