"""The checks of a drafter's state: every family passes them, and each finds what it is for."""

from typing import ClassVar

import pytest

from outrider_drafters import FeatureDrafter, LookupDrafter, check_drafter
from outrider_drafters.families.eagle2.family import Eagle2Drafter
from outrider_drafters.families.feature_drafter import FeatureState
from outrider_drafters.families.suffix.hybrid import HybridDrafter
from outrider_proto.tree import ROOT, DraftTree

FAMILIES = ["moa", "moa tli", "moa tli without lsa", "eagle2", "eagle3", "dflash", "dspark", "medusa", "hydra"]
FAMILIES += ["hydra++", "independent", "lookup", "text", "suffix", "mlp", "peagle", "eagle3 layers", "eagle2 norms"]
FAMILIES += ["gemma4", "gemma4 ordered"]


def test_these_are_all(tiny_drafters):
    assert sorted(FAMILIES) == sorted(tiny_drafters)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_the_contract(family, float64_drafters, in_float64):
    """In float64: in float32, these random weights turn the last bit of a sum into a thousandth of a logit."""
    with in_float64():
        check_drafter(float64_drafters[family], scripts=25, seed=1, tolerance=1e-6)


@pytest.mark.parametrize("ngram", [1, 2, 4])
def test_so_does_lookup_of_any_length(ngram):
    check_drafter(LookupDrafter(23, ngram), scripts=40, tolerance=0)


def test_a_family_may_leave_fill_as_it_is(float64_drafters, in_float64, monkeypatch):
    """The rows of a prompt then run as all others do."""
    monkeypatch.setattr(Eagle2Drafter, "fill", FeatureDrafter.fill)
    with in_float64():
        check_drafter(float64_drafters["eagle2"], scripts=2, tolerance=1e-6)


@pytest.mark.parametrize("shortest", [0, 1])
def test_so_does_copying(float64_drafters, in_float64, shortest):
    with in_float64():
        drafter = HybridDrafter(float64_drafters["eagle2"], shortest, alone_from=2)
        check_drafter(drafter, scripts=40, tolerance=1e-6, drafts_what_is_likely=False)
        with pytest.raises(AssertionError, match="eagle2: tree_logits is not what expand gives"):
            check_drafter(drafter, scripts=0, tolerance=1e-6)


class Broken(FeatureState):
    """Eagle2's state with one fault."""


class KeepsRows(Broken):
    def rollback(self, num_tokens):
        true = self._num_true
        super().rollback(num_tokens)
        self._num_true = min(true, num_tokens)


class IgnoresLateFeatures(Broken):
    def add_features(self, first, rows):
        if not self._num_text_rows:
            super().add_features(first, rows)


class SharesRows(Broken):
    shared: ClassVar = []

    def root_logits(self):
        logits = super().root_logits()
        if self.shared and self.shared[0] is not self:
            logits = logits + 1
        self.shared[:] = [self]
        return logits


class SeesSiblings(Broken):
    def expand(self, tokens, parents):
        return super().expand(tokens, parents) + 0.1 * (len(tokens) > 2)


class ChangesDrafts(Broken):
    def expand(self, tokens, parents):
        return super().expand(tokens, parents) + 0.1 * self.num_features * (self.num_tokens == 5)


class Together(Broken):
    @staticmethod
    def expand_together(levels):
        return [logits + (len(levels) > 1) for logits in FeatureState.expand_together(levels)]


class WrongTree(Broken):
    def tree_logits(self, tree):
        return super().tree_logits(tree).flip(0)


class DraftsAheadOfOthers(Broken):
    def tree_logits(self, tree):
        logits = super().tree_logits(tree)
        super().tree_logits(DraftTree(tree.tokens, (ROOT,) * len(tree)))
        return logits


class TakesGaps(Broken):
    def add_features(self, first, rows):
        super().add_features(min(first, self.num_features), rows)


class NoNumbers(Broken):
    def root_logits(self):
        return super().root_logits() * float("nan")


class WrongReach(Broken):
    max_levels = property(lambda self: 3 + self._tree_mask._lines.__len__())


FAULTS = {
    KeepsRows: "not as a fresh state",
    IgnoresLateFeatures: "size after script",
    SharesRows: "",
    SeesSiblings: "a node depends on those beside it",
    ChangesDrafts: "features that came during a draft changed it",
    Together: "levels of several texts in one pass",
    WrongTree: "tree_logits is not what expand gives",
    DraftsAheadOfOthers: "a draft ahead of a verdict is not that of a text with this outcome",
    TakesGaps: "features behind a gap: need a UsageError",
    NoNumbers: "logits hold nan or inf",
    WrongReach: "max_levels",
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_every_fault_is_found(fault, float64_drafters, in_float64, monkeypatch):
    monkeypatch.setattr(Eagle2Drafter, "new_state", lambda self: fault(self))
    with in_float64(), pytest.raises(AssertionError, match=f"eagle2: .*{FAULTS[fault]}"):
        check_drafter(float64_drafters["eagle2"], scripts=40, tolerance=1e-6)
