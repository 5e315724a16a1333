"""How a cycle's time is split up."""

import pytest

from outrider_bench.studies.pair.overhead import CycleTimes, medians


def test_parts_and_what_is_left():
    cycle = CycleTimes(total=20.0, draft=5.0, draft_forward=4.0, wire=1.0, queue=0.5, verify=10.0, wait=2.0, tap=1.5)
    assert cycle.other == pytest.approx(1.5)
    assert cycle.outside == pytest.approx(4.5)
    assert medians([[cycle]])["outside"] == pytest.approx(4.5)


def test_figures_are_medians_over_answers_with_intervals_and_the_pings_beside():
    def cycle(total):
        return CycleTimes(total, draft=1.0, draft_forward=1.0, wire=1.0, queue=0, verify=1.0, wait=0, tap=0)

    found = medians([[cycle(10.0), cycle(12.0)], [], [cycle(20.0)], [cycle(30.0)] * 9], pings=[0.5, 0.7])
    assert found["total"] == 20.0
    assert found["total_ci95"] == (11.0, 30.0)
    assert found["ping"] == pytest.approx(0.6)
