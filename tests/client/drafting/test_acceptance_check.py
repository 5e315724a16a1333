"""When a head is taken for one that does not fit its target."""

from __future__ import annotations

import pytest

from outrider_client.drafting.local_drafter import NUM_VERDICTS, AcceptanceCheck


def warnings(fit: AcceptanceCheck, num_hits: int, head: str = "moa", num_verdicts: int = NUM_VERDICTS) -> list[str]:
    said = (fit.judged(head, [7, 9, 9, 9], [7 if i < num_hits else 8]) for i in range(num_verdicts))
    return [warning for warning in said if warning is not None]


@pytest.mark.parametrize(("num_hits", "warns"), [(0, True), (1, True), (2, False), (30, False)])
def test_chance(num_hits, warns):
    assert bool(warnings(AcceptanceCheck(32000), num_hits)) == warns


def test_chance_is_larger_in_a_small_vocabulary():
    assert warnings(AcceptanceCheck(20), 6)
    assert not warnings(AcceptanceCheck(20), 7)


def test_it_is_said_once_and_names_the_head():
    fit = AcceptanceCheck(32000)
    assert not warnings(fit, 0, num_verdicts=NUM_VERDICTS - 1)
    assert not warnings(fit, 40, "good")
    (warning,) = warnings(fit, 0, num_verdicts=200)
    assert "drafter moa: its likeliest token was the target's in 0 of 64 verdicts" in warning


@pytest.mark.parametrize(("num_hits", "warns"), [(0, True), (12, True), (13, False)])
def test_a_head_that_can_be_read_otherwise_is_reported_below_five_percent_of_its_tokens(num_hits, warns):
    fit = AcceptanceCheck(32000, {"moa": "give it the option a=b"})
    found = warnings(fit, num_hits)
    assert bool(found) == warns
    assert all("If it was made for this target, give it the option a=b" in warning for warning in found)
    assert not warnings(fit, 12, "another")
