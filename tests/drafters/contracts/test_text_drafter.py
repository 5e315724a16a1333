"""A drafter of one method: what it guesses is what is drafted. Its states: test_state_checks.py, with all others."""

import pytest

from outrider_drafters import TextDrafter, TreeShape, grow_tree
from outrider_proto.errors import UsageError


class Told(TextDrafter):
    """Guesses what it was told of the last token."""

    def __init__(self, guesses) -> None:
        super().__init__(vocab_size=9)
        self.told = guesses

    def guesses(self, text):
        return self.told.get(text[-1], {})


def drafted(guesses, shape):
    state = Told(guesses).new_state()
    state.append([7, 1])
    tree = grow_tree(state, shape)
    return list(zip(tree.tokens, tree.parents, strict=True))


def test_guesses_become_a_tree_the_likeliest_first():
    guesses = {1: {2: 3.0, 3: 1.0}, 2: {4: 1.0}, 4: {5: 0.2, 6: 0.1}}
    assert drafted(guesses, TreeShape(2, 3, 10)) == [(2, -1), (3, -1), (4, 0), (5, 2), (6, 2)]
    assert drafted(guesses, TreeShape(2, 3, 3)) == [(2, -1), (4, 0), (5, 1)]


def test_where_it_cannot_tell_nothing_is_drafted():
    assert drafted({}, TreeShape(2, 3, 10)) == []
    state = Told({1: {2: 1}}).new_state()
    assert state.max_levels == 0
    state.append([3])
    assert state.max_levels == 0
    with pytest.raises(UsageError, match="cannot tell what follows"):
        state.root_logits()
    state.rollback(0)
    state.append([1])
    assert int(state.root_logits().argmax()) == 2


@pytest.mark.parametrize("wrong", [{9: 1.0}, {-1: 1.0}, {2: 0.0}, {2: float("nan")}, {2: float("inf")}])
def test_wrong_guesses_are_named(wrong):
    with pytest.raises(UsageError, match="guess of token"):
        drafted({1: wrong}, TreeShape(2, 3, 10))
