"""The drafter that commands take where none is named."""

from outrider_bench.harness.options import drafter_for
from outrider_bench.network.options import NetworkOptions
from outrider_models.core.embedded import DRAFTERS, target_dir


def test_the_default_drafter_is_the_best_that_ships_or_else_lookup(monkeypatch):
    assert drafter_for(target_dir(), None) == DRAFTERS[0]
    assert drafter_for(target_dir(), "eagle2") == "eagle2"
    monkeypatch.setattr("outrider_bench.harness.options.shipped_drafters", lambda target: ())
    assert drafter_for(target_dir(), None) == "lookup"
    assert NetworkOptions().plan.drafters == ("lookup",)
