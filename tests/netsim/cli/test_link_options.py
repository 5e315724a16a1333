"""The options that describe a link: how their values are read, and what they change in a profile."""

import pytest

from outrider_netsim.cli.link_options import LinkOptions, link_profile
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.builtin import PROFILES
from outrider_netsim.profiles.profile import Direction


def described(profile=None, **options):
    return link_profile(LinkOptions(profile=profile, **options))


def test_a_link_needs_no_profile():
    link = described(delay="40ms", jitter="10ms", loss="1%", rate="20mbit")
    assert link.up == link.down == Direction(40, 10, "normal", 20e6, loss=0.01)
    assert link.name == "plain with delay 40ms, jitter 10ms, loss 1%, rate 20mbit"
    assert link.round_trip_ms == pytest.approx(80, abs=0.01)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("40ms", 40), ("0.04s", 40), ("40 ms", 40), ("40msec", 40), ("40000us", 40), ("1.5sec", 1500), ("0", 0)],
)
def test_durations(text, milliseconds):
    assert described(delay=text).up.delay_ms == pytest.approx(milliseconds)


@pytest.mark.parametrize(
    ("text", "bits"),
    [("20mbit", 20e6), ("20Mbit", 20e6), ("768kbit", 768e3), ("1.5gbit", 1.5e9), ("9600bit", 9600), ("unlimited", 0)],
)
def test_rates(text, bits):
    assert described(rate=text).up.rate_bps == pytest.approx(bits)


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.5%", 0.005), ("0.01", 0.01), ("0", 0), ("100%", 1)])
def test_losses(text, share):
    assert described(loss=text).up.loss == pytest.approx(share)


@pytest.mark.parametrize(
    ("option", "text", "need"),
    [
        ("delay", "40", "a duration such as 40ms"),
        ("delay", "-40ms", "a duration such as 40ms"),
        ("delay", "40mbit", "a duration such as 40ms"),
        ("jitter", "", "a duration such as 40ms"),
        ("loss", "1", "a share of packets such as 1% or 0.01"),
        ("loss", "101%", "a share of packets such as 1% or 0.01"),
        ("rate", "20", "a rate such as 20mbit"),
        ("rate", "20mbps", "a rate such as 20mbit"),  # megabytes to tc
        ("rate", "0", "a rate such as 20mbit"),
        ("queue", "1000", "a size such as 300ms, 100kB or 1000p"),
        ("queue", "1.5p", "a size such as 300ms, 100kB or 1000p"),
        ("rate", "1mbit/2mbit/3mbit", "one value, or UP/DOWN"),
    ],
)
def test_what_cannot_be_read_is_refused_with_an_example(option, text, need):
    with pytest.raises(ProfileError, match=f"--{option}={text}: need {need}"):
        described(**{option: text})


def test_a_queue_has_a_time_a_size_or_a_number_of_packets():
    sizes = {"300ms": {"queue_ms": 300}, "100kB": {"queue_bytes": 100_000}, "50p": {"queue_packets": 50}}
    for text, expected in sizes.items():
        assert described(rate="1mbit", queue=text).up == Direction(rate_bps=1e6, **expected)
    assert described("lte-edge", queue="50p").up.queue_ms == 0
    assert described(rate="1mbit", queue="50p/1s").down == Direction(rate_bps=1e6, queue_ms=1000)


def test_two_values_are_up_and_down():
    link = described(delay="40ms/10ms", rate="5mbit/unlimited", loss="0/1%")
    assert link.up == Direction(delay_ms=40, rate_bps=5e6)
    assert link.down == Direction(delay_ms=10, loss=0.01)


def test_a_profile_keeps_what_is_not_given():
    paper = PROFILES["paper-4g"]
    assert described("paper-4g") == paper
    assert described("paper-4g", loss="2%").up == Direction(21, 19, "normal", 20e6, base_ms=4.5, loss=0.02)
    assert described("paper-4g", jitter="5ms").up == Direction(21, 5, "normal", 20e6, base_ms=4.5, loss=0.001)
    assert described("paper-4g", in_order=True).up == PROFILES["paper-4g-inorder"].up


def test_a_delay_is_all_of_the_delay():
    assert described("paper-4g", delay="40ms").up == Direction(40, 19, "normal", 20e6, loss=0.001)


def test_an_option_wins_over_a_trace(tmp_path):
    (tmp_path / "t.csv").write_text("time_s,loss,rate_mbps\n0,0.1,5\n1,0.2,6\n")
    (tmp_path / "m.trace").write_text("1\n2\n")
    (tmp_path / "p.toml").write_text('[up]\ntrace = "t.csv"\n[down]\ntrace = "m.trace"\n')
    file = str(tmp_path / "p.toml")
    assert described(file, delay="5ms").up.trace == described(file).up.trace
    assert described(file, loss="0").up.trace.loss is None
    assert list(described(file, loss="0").up.trace.rate_bps) == [5e6, 6e6]
    assert described(file, loss="0", rate="1mbit").up.trace is None
    assert described(file, loss="0").down.trace is not None
    assert described(file, rate="1mbit").down.trace is None


def test_a_trace_is_for_both_ways_or_for_one(tmp_path):
    (tmp_path / "t.csv").write_text("Timestamp,DL_bitrate,UL_bitrate\n0,2000,1000\n1,0,5\n")
    file = str(tmp_path / "t.csv")
    both = link_profile(LinkOptions(delay="5ms"), traces=[file])
    assert [list(way.trace.rate_bps) for way in (both.up, both.down)] == [[1e6, 5e3], [2e6, 1e3]]
    assert "DL_bitrate in kbit/s down" in both.source
    one = link_profile(LinkOptions(profile="lan"), traces=[f"up:{file}"])
    assert list(one.up.trace.rate_bps) == [1e6, 5e3]
    assert one.down == PROFILES["lan"].down
    with pytest.raises(ProfileError, match="--rate=1mbit beside --trace"):
        link_profile(LinkOptions(rate="1mbit"), traces=[file])
