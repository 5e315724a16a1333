"""The built-in profiles with the sources of their numbers, and lookup of a profile by name or file."""

from __future__ import annotations

from dataclasses import replace

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.profile import Bursts, Direction, Outage, Profile

SUFFIX = ".toml"


def _paper(name: str, delay_ms: float, jitter_ms: float, rate_bps: float) -> Profile:
    """Build a profile of the paper: half the base ping of 9 ms, and delay and jitter, each way."""
    direction = Direction(delay_ms, jitter_ms, "normal", rate_bps, base_ms=4.5, loss=0.001)
    return Profile.symmetric(name, direction, "Mixture of Attentions (arXiv 2410.03804), section 4.2")


def _in_order(profile: Profile) -> Profile:
    """Return the same link without reordering, as on a radio bearer."""
    up, down = replace(profile.up, in_order=True), replace(profile.down, in_order=True)
    return replace(profile, name=f"{profile.name}-inorder", up=up, down=down)


def _radio(
    name: str, up_bps: float, down_bps: float, alike: Direction, source: str, outages: tuple[Outage, ...] = ()
) -> Profile:
    """Build a profile that keeps order, whose directions differ in their rates alone."""
    up, down = (replace(alike, rate_bps=rate_bps, in_order=True) for rate_bps in (up_bps, down_bps))
    return Profile(name, up, down, source, outages)


PAPER_5G = _paper("paper-5g", 10, 10, 50e6)
PAPER_4G = _paper("paper-4g", 21, 19, 20e6)

_ALL = (
    PAPER_5G,
    PAPER_4G,
    _in_order(PAPER_5G),
    _in_order(PAPER_4G),
    Profile.symmetric(
        "lan",
        Direction(delay_ms=0.1, rate_bps=1e9),
        "Gigabit Ethernet (IEEE 802.3ab) through one switch; a ping of 0.2 ms is our judgement",
    ),
    _radio(
        "wifi",
        100e6,
        100e6,
        Direction(1.5, 7.8, "pareto", base_ms=0.5, coherence_ms=100, loss=0.001, queue_ms=100),
        "median and 90th percentile of the round trip (3 and 20 ms): Sui et al., Characterizing and Improving WiFi "
        "Latency in Large-Scale Operational Networks, MobiSys 2016, whose 99th (250 ms) this distribution does not "
        "reach (42 ms); rate, queue, coherence of the jitter and what loss retransmission leaves are our judgement; "
        "the receiver's block-ack window restores order",
    ),
    _radio(
        "lte",
        8.63e6,
        27.33e6,
        Direction(18.9, 14.7, "pareto", base_ms=13, coherence_ms=420, loss=0.0026, queue_ms=600),
        "in a moving car; rates: means of Ookla's Speedtest over mobile, USA, first half of 2018; the rest: "
        "outrider-netsim fit of 18,000 pings over Verizon, on 4G or 5G as the phone had it, Maine, May 2024 "
        "(NUWiNS/starlink-measurement): half of a round trip each way; packets held for 2 s every 53 s, lost for 4.6"
        " s every 16 minutes; queue is our judgement",
        (Outage(2, 6, every_s=53, hold=True), Outage(4.6, 470, every_s=960)),
    ),
    _radio(
        "lte-edge",
        0.6e6,
        1.2e6,
        Direction(15, 15, "pareto", base_ms=20, coherence_ms=100, bursts=Bursts(0.001, 0.2), queue_ms=600),
        "rates: cell-edge spectral efficiency of Report ITU-R M.2134 (urban: 0.06 bit/s/Hz down, 0.03 up) over 20 "
        "MHz; round trip of 70 ms: WebPageTest's LTE; jitter (HARQ repeats in steps of 8 ms, RLC beyond that), its "
        "coherence, loss (0.5 % in bursts of 5 packets) and queue are our judgement",
    ),
    _radio(
        "5g-midband",
        14.56e6,
        265.8e6,
        Direction(1.5, 1.4, "pareto", base_ms=22, coherence_ms=100, loss=0.0001, queue_ms=200),
        "at rest; rates and round trip of 47 ms: medians of T-Mobile USA's 5G, mostly at 2.5 GHz, Ookla's Speedtest,"
        " first half of 2024; jitter: pings are 3 ms above their least in the mean and deviate by 2 ms, in the "
        "median of Raca et al., Beyond Throughput, The Next Generation: a 5G Dataset, MMSys 2020 (at rest); loss, "
        "queue and coherence are our judgement",
    ),
    _radio(
        "3g",
        768e3,
        1.6e6,
        Direction(40, 15, "normal", base_ms=110, coherence_ms=100, loss=0.002, queue_ms=1000),
        "WebPageTest's 3G (1.6 Mbit/s down, 768 kbit/s up, 300 ms round trip); jitter, its coherence, loss and queue"
        " are our judgement",
    ),
    _radio(
        "leo",
        14.84e6,
        104.71e6,
        Direction(11.9, 12, "pareto", base_ms=13, coherence_ms=370, bursts=Bursts(0.006, 0.785), queue_ms=300),
        "Starlink in a moving car; rates: medians of Ookla's Speedtest, USA, first quarter of 2025; delay, loss and "
        "4.1 s without a link every 530 s: outrider-netsim fit of 18,000 pings, Maine, May 2024 "
        "(NUWiNS/starlink-measurement), half of a round trip each way; a new satellite every 15 s: Mohan et al., A "
        "Multifaceted Look at Starlink Performance, WWW 2024; that this adds 30 to 50 ms: Huston, A Transport "
        "Protocol's View of Starlink, APNIC 2024; that packets are held meanwhile, and the queue, are our judgement",
        (Outage(0.05, 12, every_s=15, hold=True), Outage(4.1, 263, every_s=530)),
    ),
    Profile(
        "satellite",
        Direction(20, 10, "uniform", 3e6, base_ms=279, loss=0.002, queue_ms=600, in_order=True),
        Direction(5, 2, "uniform", 25e6, base_ms=279, loss=0.002, queue_ms=600, in_order=True),
        "geostationary: 279.0 ms a hop between stations at the edge of the satellite's view, RFC 2488, section 2; 25"
        " and 3 Mbit/s: broadband as the FCC defined it in 2015; the wait for an uplink slot, jitter, loss and queue"
        " (a round trip of the rate) are our judgement",
    ),
    _radio(
        "train",
        5e6,
        12e6,
        Direction(15, 20, "pareto", base_ms=20, coherence_ms=100, bursts=Bursts(0.001, 0.1), queue_ms=600),
        "handovers that forward their packets: 3GPP TS 36.300, 10.1.2.1; 50 ms each: 3GPP TR 36.881; one in 20 s: "
        "cells 1.7 km apart at 300 km/h; that some fail: Li et al., Beyond 5G: Reliable Extreme Mobility Management,"
        " SIGCOMM 2020; 2.5 s for one that fails, in which packets are lost: timer T310 of 3GPP TS 36.331 (1 s) and "
        "a new connection; that one in 90 s fails, and the rest, is our judgement; rate and round trip near "
        "WebPageTest's LTE",
        (Outage(0.05, 7, every_s=20, hold=True), Outage(2.5, 30, every_s=90)),
    ),
)
PROFILES: dict[str, Profile] = {profile.name: profile for profile in _ALL}


def profile_named(name: str) -> Profile:
    """Return a built-in profile, the one in FILE.toml, or FILE.toml:NAME. Raises ProfileError."""
    if name in PROFILES:
        return PROFILES[name]
    path, suffix, rest = name.rpartition(SUFFIX)
    if suffix and (not rest or rest.startswith(":")):
        from outrider_netsim.profiles.profile_files import load_profile  # needs more than the standard library

        return load_profile(path + suffix, rest[1:] or None)
    raise ProfileError(
        f"profile {name!r} is unknown: choose one of {', '.join(PROFILES)}, or give a file of your own, FILE{SUFFIX}"
    )
