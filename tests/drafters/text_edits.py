"""Edits of a text, made to a draft state and to a plain list alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hypothesis import strategies as st

from outrider_drafters import DraftState

Edit = list[int] | int  # append these tokens, or drop so many


def edits_of(texts: st.SearchStrategy[list[int]]) -> st.SearchStrategy[list[Edit]]:
    return st.lists(st.one_of(texts, st.integers(0, 12)), max_size=8)


def edited(state: DraftState, tokens: list[int], edits: Iterable[Edit]) -> Iterator[list[int]]:
    """Tell the state the tokens, then make the edits one by one; yield the text after each. One token always stays."""
    told = list(tokens)
    state.append(tokens)
    for edit in edits:
        if isinstance(edit, list):
            state.append(edit)
            told += edit
        else:
            keep = max(1, len(told) - edit)
            state.rollback(keep)
            del told[keep:]
        yield told
