"""Planned outages: how they are written, and that they happen."""

import asyncio

import pytest

from outrider_netsim.outages import Outage, in_order, parse_outage, run_outages
from outrider_netsim.profile import ProfileError


@pytest.mark.parametrize(
    ("text", "outage"),
    [("3s@10s", Outage(3, 10)), ("500ms@2m", Outage(0.5, 120)), (" 1.5s@0s ", Outage(1.5, 0))],
)
def test_outages_are_written_as_duration_at_start(text, outage):
    assert parse_outage(text) == outage


@pytest.mark.parametrize("text", ["", "3@10", "3s", "s@10s", "-3s@1s", "3h@1s", "0s@1s"])
def test_what_is_no_outage_is_refused(text):
    with pytest.raises(ProfileError, match="outage"):
        parse_outage(text)


def test_overlapping_outages_are_refused():
    assert in_order([Outage(1, 5), Outage(1, 2)]) == [Outage(1, 2), Outage(1, 5)]
    with pytest.raises(ProfileError, match="starts before the one at 2 s ends"):
        in_order([Outage(4, 2), Outage(1, 5)])


async def test_outages_cut_and_restore_in_turn():
    said = []

    class Link:
        def cut(self):
            said.append("cut")

        def restore(self):
            said.append("restore")

    async with asyncio.timeout(5):
        await run_outages(Link(), [Outage(0.001, 0.01), Outage(0.001, 0)])
    assert said == ["cut", "restore"] * 2
