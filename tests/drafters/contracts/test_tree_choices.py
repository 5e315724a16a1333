"""Sets of paths, and the static trees that are drafted along them."""

import pytest
import torch

from outrider_drafters import grow_tree
from outrider_drafters.contracts.drafter import UNLIMITED
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_proto.errors import UsageError

PATHS = [[1], [0], [0, 1], [0, 0], [1, 0], [0, 0, 2]]


class Alphabet:
    """A state whose logits fall from 0 on, shifted by the node's own token: the r-th successor of t is t + r + 1."""

    def __init__(self, vocab: int = 12, reach: int = UNLIMITED) -> None:
        self._vocab = vocab
        self.max_levels = reach

    def root_logits(self):
        return self._after(0)

    def expand(self, tokens, parents):
        return torch.stack([self._after(token) for token in tokens])

    def _after(self, token):
        return -torch.arange(self._vocab).float().roll(token + 1)


def test_a_tree_ends_where_the_state_reaches_no_further():
    assert grow_tree(Alphabet(reach=2), TreeChoices.of(PATHS)).tokens == (1, 2, 2, 3, 3)
    assert len(grow_tree(Alphabet(reach=0), TreeChoices.of(PATHS))) == 0


def test_ranks_beyond_the_vocabulary_make_no_nodes():
    assert grow_tree(Alphabet(vocab=2), TreeChoices.of([[0], [1], [2], [2, 0]])).tokens == (1, 0)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "0 paths"),
        ([[0], [0]], "twice"),
        ([[0], [1, 0]], r"without its parent \[1\]"),
        ([[0], []], "need one or more ranks"),
        ([[-1]], "ranks from 0"),
        ([[rank] for rank in range(64)] + [[0, rank] for rank in range(64)] * 4, "need 1 to 255"),
    ],
)
def test_what_is_no_set_of_choices_is_refused(paths, message):
    with pytest.raises(UsageError, match=message):
        TreeChoices.of(paths)


def test_fitting_keeps_whole_paths():
    choices = TreeChoices.of(PATHS)
    assert choices.fitted(2, 99) == TreeChoices.of([[0], [1], [0, 0], [0, 1], [1, 0]])
    assert choices.fitted(3, 3) == TreeChoices.of([[0], [1], [0, 0]])
    assert choices.fitted(0, 3) is None


@pytest.mark.parametrize(("text", "message"), [("[[0], 1]", "list of lists"), ("[", "JSON"), ('[["0"]]', "numbers")])
def test_a_file_that_holds_something_else_is_named(tmp_path, text, message):
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        TreeChoices.load(file)


def test_an_unknown_set_is_refused():
    with pytest.raises(UsageError, match="one of"):
        TreeChoices.load("nobody")
