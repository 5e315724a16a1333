"""Which head drafts: the decisions, their measures and the words that decide."""

import json
import math

import pytest

from outrider_drafters.routing.confidence import Confidence, best_path, confidence_of
from outrider_drafters.routing.keywords import Keywords
from outrider_drafters.routing.rules import Routing
from outrider_drafters.trees.grow import ScoredTree
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT, DraftTree

TREE = DraftTree((4, 5, 6, 7, 8), (ROOT, ROOT, 0, 1, 1))
PATHS = (0.3, 0.6, 0.1, 0.2, 0.25)  # probabilities; the likeliest: 5, then 8
DRAFTED = ScoredTree(TREE, tuple(math.log(p) for p in PATHS), (1.0, 1.0, 9.0, 3.0, 3.0))


def test_mean_is_over_all_nodes_of_the_tree():
    confidence = confidence_of(DRAFTED)
    assert confidence.mean == pytest.approx(sum(PATHS) / 5)
    assert confidence.expected == pytest.approx(sum(PATHS))


def test_entropy_is_that_of_the_best_path():
    assert best_path(DRAFTED) == [1, 4]
    assert confidence_of(DRAFTED).entropy == pytest.approx((1.0 + 3.0) / 2)
    assert confidence_of(ScoredTree(TREE, DRAFTED.scores)).entropy is None


@pytest.mark.parametrize(("route", "chosen"), [("mean-confidence", 2), ("entropy", 0)])
def test_the_best_is_sent(route, chosen):
    drafts = {0: Confidence(0.2, 2.0, 0.5), 1: Confidence(0.1, 1.0, 0.6), 2: Confidence(0.3, 3.0, 0.7)}
    assert Routing(route).choose(drafts, current=1) == chosen


def test_of_equals_the_one_in_use_stays():
    same = Confidence(0.2, 2.0)
    assert Routing().choose({0: same, 1: same, 2: same}, current=1) == 1
    assert Routing().choose({0: same, 2: same}, current=1) == 0


def test_gate():
    assert Routing().needs_comparison(1.0)
    assert Routing(gate=0.7).needs_comparison(0.69)
    assert not Routing(gate=0.7).needs_comparison(0.7)
    assert Routing(gate=0.7).needs_comparison(math.nan)  # a head that drafts nothing


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"route": "dice"}, "route='dice'"),
        ({"gate": 0.0}, "gate=0.0"),
        ({"gate": 0.5, "route": "keywords"}, "none to skip"),
    ],
)
def test_refused(choices, message):
    with pytest.raises(UsageError, match=message):
        Routing(**choices)


RULE = Keywords({"math": ("solve", "how many", "="), "chat": ("tell",)}).for_heads(["chat", "code", "math"])


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("How  many? x=3", 2),
        ("Tell me: how many? Solve!", 2),
        ("tell, tell, solve", 0),
        ("Telling dissolved", 1),
        ("", 1),
    ],
)
def test_words_choose(text, head):
    assert RULE.choose(text, current=1) == head


def test_words_come_from_a_file(tmp_path):
    (tmp_path / "k.toml").write_text('math = ["solve"]\nchat = []\n')
    (tmp_path / "k.json").write_text(json.dumps({"math": ["solve"], "chat": []}))
    expected = Keywords({"math": ("solve",), "chat": ()})
    assert Keywords.load(tmp_path / "k.toml") == Keywords.load(tmp_path / "k.json") == expected
    with pytest.raises(UsageError, match="no head is called math; there are eagle2, chat"):
        expected.for_heads(["eagle2", "chat"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("k.txt", "", "need a .toml or .json file"),
        ("k.toml", "math = [", "cannot be read"),
        ("k.json", '["solve"]', "lists of words by head name"),
        ("k.json", '{"math": []}', "at least one word"),
    ],
)
def test_bad_files(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        Keywords.load(tmp_path / name)
