"""How a cycle's time is split up."""

import pytest

from outrider_bench.studies.pair.overhead import CycleTimes, medians


def test_parts_and_what_is_left():
    cycle = CycleTimes(total=20.0, draft=5.0, draft_forward=4.0, wire=1.0, queue=0.5, verify=10.0, wait=2.0, tap=1.5)
    assert cycle.other == pytest.approx(1.5)
    assert cycle.outside == pytest.approx(4.5)
    assert medians([cycle])["outside"] == pytest.approx(4.5)
