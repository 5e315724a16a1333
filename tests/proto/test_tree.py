"""The draft tree: refusals and queries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_proto.errors import Reason, Violation
from outrider_proto.tree import ROOT, DraftTree


@st.composite
def trees(draw, max_nodes=40):
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(draw(st.integers(0, max_nodes)))]
    return DraftTree(tuple(range(len(parents))), tuple(parents))


@pytest.mark.parametrize(
    ("tokens", "parents", "reason", "message"),
    [
        ((1, 2), (-1,), Reason.MALFORMED_TREE, "2 tokens but 1 parents"),
        ((1,), (0,), Reason.MALFORMED_TREE, "node 0 has parent 0"),
        ((1, 2), (1, -1), Reason.MALFORMED_TREE, "node 0 has parent 1"),
        ((1,), (-2,), Reason.MALFORMED_TREE, "node 0 has parent -2"),
        ((1, 1), (-1, -1), Reason.MALFORMED_TREE, "same token"),
        (tuple(range(256)), tuple(range(-1, 255)), Reason.TREE_TOO_LARGE, "256 nodes"),
    ],
)
def test_refuses_what_is_no_tree(tokens, parents, reason, message):
    with pytest.raises(Violation, match=message) as caught:
        DraftTree(tokens, parents)
    assert caught.value.reason is reason


def test_token_outside_the_vocabulary():
    with pytest.raises(Violation, match="node 1 has token 9"):
        DraftTree((1, 9), (-1, 0)).check_vocabulary(9)


def test_the_drawing_at_the_top_of_the_module():
    tree = DraftTree((10, 11, 12, 13, 14), (-1, -1, 0, 0, 1))
    assert tree.depths() == (1, 1, 2, 2, 2)
    assert tree.child(0, 13) == 3
    assert tree.child(0, 14) is None
    assert tree.child(ROOT, 11) == 1
    assert tree.path_tokens((1, 4)) == (11, 14)


@pytest.mark.parametrize("path", [(2,), (0, 4), (7,), (0, -1)])
def test_path_that_leaves_the_tree(path):
    with pytest.raises(Violation, match="does not follow the tree"):
        DraftTree((10, 11, 12, 13, 14), (-1, -1, 0, 0, 1)).path_tokens(path)


@given(trees())
def test_ancestors_are_what_following_parents_gives(tree):
    expected = np.zeros((len(tree), len(tree)), dtype=bool)
    for node in range(len(tree)):
        walk = node
        while walk != ROOT:
            expected[node, walk] = True
            walk = tree.parents[walk]
    assert np.array_equal(tree.ancestors(), expected)
    assert tree.depths() == tuple(expected.sum(axis=1).tolist())
