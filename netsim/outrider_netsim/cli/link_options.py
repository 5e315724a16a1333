"""The options that describe a link, shared by the commands that start one; they adjust a profile or replace it.

Values are written as for tc, with their units. Each holds for both directions, or is UP/DOWN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from outrider_netsim.core.engine_names import DEFAULT_CONGESTION, EngineChoice
from outrider_netsim.core.errors import ProfileError
from outrider_proto.options.fields import Flag

if TYPE_CHECKING:
    from outrider_netsim.impairments.path import LinkStats, PathStats
    from outrider_netsim.link import Link
    from outrider_netsim.profiles.profile import Direction, Profile
    from outrider_netsim.profiles.traces import Trace

LINK_PANEL = "The link"
TRAFFIC_PANEL = "The traffic"
ADJUSTMENTS = ("delay", "jitter", "distribution", "loss", "rate", "queue", "in_order")

_TIME_MS = {"us": 1e-3, "usec": 1e-3, "usecs": 1e-3, "ms": 1.0, "msec": 1.0, "msecs": 1.0}
_TIME_MS |= {"s": 1e3, "sec": 1e3, "secs": 1e3}
_RATE_BPS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_SIZE_BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "kib": 1024.0, "mib": 1024.0**2}
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)\s*([a-z%]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """A profile, and what adjusts it; None for what is not given."""

    profile: Annotated[
        str | None,
        Flag(
            "A name from `outrider-netsim list`, FILE.toml, or FILE.toml:NAME; the options below adjust it. "
            "Without it a link does nothing else.",
            panel=LINK_PANEL,
        ),
    ] = None
    delay: Annotated[
        str | None,
        Flag(
            "One-way delay, such as 40ms: added in each direction, so a round trip takes twice as long. 40ms/10ms "
            "for 40 up and 10 down, as in the options below.",
            panel=LINK_PANEL,
            metavar="TIME",
        ),
    ] = None
    jitter: Annotated[
        str | None, Flag("Standard deviation of the delay, such as 10ms.", panel=LINK_PANEL, metavar="TIME")
    ] = None
    distribution: Annotated[
        str | None,
        Flag(
            "Shape of the jitter: normal, pareto, paretonormal, uniform or FILE.dist. By default the profile's, or "
            "normal.",
            expert=True,
        ),
    ] = None
    loss: Annotated[
        str | None, Flag("Share of lost packets, such as 1% or 0.01.", panel=LINK_PANEL, metavar="SHARE")
    ] = None
    rate: Annotated[
        str | None,
        Flag(
            "Rate in kbit, mbit or gbit a second, such as 20mbit or 5mbit/20mbit (up/down); or unlimited.",
            panel=LINK_PANEL,
            metavar="RATE",
        ),
    ] = None
    queue: Annotated[
        str | None,
        Flag(
            "Room of the queue before the rate: 300ms, 100kB, or 1000p (packets, with those in the delay).", expert=True
        ),
    ] = None
    in_order: Annotated[
        bool | None,
        Flag(
            "true: packets keep their order; false: jitter lets them overtake. By default as in the profile.",
            expert=True,
        ),
    ] = None
    seed: Annotated[int | None, Flag("Random seed for delays and losses, instead of the profile's.", expert=True)] = (
        None
    )

    @property
    def adjustments(self) -> dict[str, str | bool]:
        """What is given of the options that adjust a profile."""
        return {name: value for name in ADJUSTMENTS if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLinkOptions(LinkOptions):
    """A link that programs use."""

    report: Annotated[
        Path | None,
        Flag(
            "JSON file for what was run, with which link and versions, and what became of its packets and outages.",
            panel=TRAFFIC_PANEL,
            metavar="FILE",
        ),
    ] = None
    trace: Annotated[
        tuple[str, ...],
        Flag(
            "Recorded conditions to follow, over and over: Mahimahi's format, a CSV with a header (time, DL_bitrate, "
            "throughput, ...), or lines of seconds and Mbit/s. down:FILE for one direction; repeatable.",
            panel=LINK_PANEL,
            metavar="FILE",
        ),
    ] = ()
    outage: Annotated[
        tuple[str, ...],
        Flag(
            "Planned outage such as 3s@10s, or 1s@5s/30s for a recurring one; 3s@first+2s counts from the first byte "
            "of an answer, up:3s@10s is for one direction, 50ms@7s/20s+hold keeps packets and forwards them "
            "afterwards; repeatable.",
            panel=LINK_PANEL,
            metavar="DURATION@START",
        ),
    ] = ()
    engine: Annotated[
        EngineChoice,
        Flag(
            "Engine of the link: kernel and tun carry real packets, proxy needs no privileges; auto takes the most "
            "realistic one that this machine allows.",
            panel=LINK_PANEL,
        ),
    ] = "auto"
    congestion: Annotated[
        str,
        Flag(
            "Congestion control of the connections over the link, such as cubic, reno or bbr; proxy models cubic and "
            "reno.",
            expert=True,
        ),
    ] = DEFAULT_CONGESTION
    pcap: Annotated[
        Path | None,
        Flag(
            "Capture the link's packets for Wireshark or tcpdump (pcapng), where they enter and where they leave.",
            expert=True,
        ),
    ] = None
    packet_log: Annotated[
        Path | None,
        Flag("CSV file with a line for every packet: when it entered and left, or what became of it.", expert=True),
    ] = None


def link_profile(options: LinkOptions, outages: Sequence[str] = (), traces: Sequence[str] = ()) -> Profile:
    """Return the profile that the options describe; its source says how traces were understood. Raises ProfileError."""
    from outrider_netsim.profiles.builtin import profile_named
    from outrider_netsim.profiles.outages import in_order, parse_outage
    from outrider_netsim.profiles.profile import Direction, Profile

    given = options.adjustments
    if options.profile is None and not given and not outages and not traces:
        raise ProfileError(
            "need --profile NAME, or a link described by --delay, --jitter, --loss, --rate, --trace or --outage"
        )
    profile = Profile.symmetric("plain", Direction()) if options.profile is None else profile_named(options.profile)
    planned = in_order([*profile.outages, *map(parse_outage, outages)])
    # Only the commands see an answer begin.
    profile = replace(profile, outages=tuple(outage for outage in planned if not outage.after_answer))
    profile = _traced(profile, traces)
    if traces and options.rate is not None:
        raise ProfileError(f"--rate={options.rate} beside --trace: both say the rate; give one of them")
    return adjusted_profile(profile, options)


def adjusted_profile(profile: Profile, options: LinkOptions) -> Profile:
    """Return a profile with what is given of the options. Raises ProfileError."""
    if not (given := options.adjustments):
        return profile
    base, _, before = profile.name.partition(" with ")
    # A later value takes an earlier one's place, or a link that is set often has a name without end.
    words = [*filter(None, before.split(", ")), *map(_described, given, given.values())]
    latest = {word.partition(" ")[0]: word for word in words}
    return replace(
        profile,
        name=f"{base} with {', '.join(latest.values())}",
        up=_adjusted(profile.up, options, 0),
        down=_adjusted(profile.down, options, 1),
    )


def _traced(profile: Profile, texts: Sequence[str]) -> Profile:
    """Let a profile follow traces: FILE, up:FILE or down:FILE."""
    from outrider_netsim.profiles.trace_files import load_recorded

    sources = []
    for text in texts:
        way, _, file = text.partition(":")
        is_one = way in ("up", "down")
        recorded = load_recorded(file if is_one else text)
        traces: dict[str, Trace | None] = {"up": recorded.up, "down": recorded.down}
        if is_one:
            traces = {way: traces[way] or recorded.down or recorded.up}
        given = {way: replace(getattr(profile, way), trace=trace) for way, trace in traces.items() if trace}
        profile = replace(profile, **given)
        sources.append(f"{recorded.summary}{f', for the way {way}' if is_one else ''}")
    return replace(profile, source="\n".join(sources)) if sources else profile


def introduction(link: Link) -> str:
    """Describe a started link in one line."""
    from outrider_netsim.link import seed_text

    seed = seed_text(link.seed, link.seed_is_honoured)
    return (
        f"{link.profile.name}, mean round trip {link.profile.round_trip_ms:.1f} ms; {seed}, {link.congestion}; "
        f"engine {link.engine}: {link.why}"
    )


def totals(stats: LinkStats, profile: Profile) -> str:
    """Return a link's counters in words."""
    ways = f"up {_counted(stats.up, profile.up)}; down {_counted(stats.down, profile.down)}"
    return f"{stats.connections} connections; {ways}"


def _counted(path: PathStats, direction: Direction) -> str:
    queue = "by the full queue"
    if direction.has_usual_queue:
        queue += f" of {direction.buffer_bytes:,} bytes (--set queue= sets another)"
    gone = {"lost": path.lost, "in outages": path.dropped_by_outage, queue: path.dropped_by_queue}
    gone |= {"duplicated": path.duplicated, "corrupted": path.corrupted}
    losses = "".join(f", {number:,} {how}" for how, number in gone.items() if number)
    return f"{path.bytes_out:,} bytes in {path.packets_out:,} packets{losses}"


def _described(name: str, value: str | bool) -> str:
    if name == "in_order":
        return "packets in order" if value else "packets reordered"
    return f"{name} {value}"


def _adjusted(direction: Direction, options: LinkOptions, way: int) -> Direction:
    """Apply the adjustments of one direction, the `way`-th of a value UP/DOWN."""
    changes: dict[str, Any] = {}  # Any: the fields of Direction
    from_trace: set[str] = set()
    if options.delay is not None:
        # All of the delay, also the constant part.
        changes |= {"base_ms": 0.0, "delay_ms": _parsed("delay", options.delay, way, _milliseconds)}
        from_trace.add("delay_ms")
    if options.jitter is not None:
        changes |= _jitter(direction, _parsed("jitter", options.jitter, way, _milliseconds)) | changes
    if options.distribution is not None:
        changes["distribution"] = options.distribution
    if options.loss is not None:
        changes |= {"loss": _parsed("loss", options.loss, way, _share), "bursts": None}
        from_trace.add("loss")
    if options.rate is not None:
        changes["rate_bps"] = _parsed("rate", options.rate, way, _bits_per_second)
        from_trace.add("rate_bps")
    if options.queue is not None:
        changes |= _parsed("queue", options.queue, way, _queue)
    if options.in_order is not None:
        changes["in_order"] = options.in_order
    if from_trace:
        changes["trace"] = _without(direction.trace, from_trace)
    return replace(direction, **changes)


def _jitter(direction: Direction, jitter_ms: float) -> dict[str, Any]:  # Any: the fields of Direction
    if direction.distribution != "constant":
        return {"jitter_ms": jitter_ms}
    # A constant delay has no shape of its own. All of it gets the jitter: the cut at 0 would else come too early.
    whole_ms = direction.base_ms + direction.delay_ms
    shape = "normal" if jitter_ms else "constant"
    return {"jitter_ms": jitter_ms, "distribution": shape, "base_ms": 0.0, "delay_ms": whole_ms}


def _without(trace: Trace | None, columns: set[str]) -> Trace | None:
    """Return a trace without these columns: a trace replaces what it has, and here the option is to win."""
    from outrider_netsim.profiles.traces import ConditionTrace

    if not isinstance(trace, ConditionTrace):
        return None if "rate_bps" in columns else trace
    gone: dict[str, Any] = dict.fromkeys(columns)  # Any: for mypy, which takes them for any field
    left = replace(trace, **gone)
    return None if left.delay_ms is left.rate_bps is left.loss is None else left


_T = TypeVar("_T")


def _parsed(option: str, text: str, way: int, parse: Callable[[str], _T | str]) -> _T:
    """Parse VALUE or UP/DOWN; `parse` returns what it needs, as text, for what it cannot read."""
    values = text.split("/")
    if len(values) > 2:
        raise ProfileError(f"--{option}={text}: need one value, or UP/DOWN")
    found = parse(values[min(way, len(values) - 1)].strip())
    if isinstance(found, str):
        raise ProfileError(f"--{option}={text}: need {found}")
    return found


def _quantity(text: str, units: Mapping[str, float]) -> float | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    number, unit = float(match[1]), match[2].lower()
    if not unit and number == 0:
        return 0.0
    return number * units[unit] if unit in units else None


def _milliseconds(text: str) -> float | str:
    found = _quantity(text, _TIME_MS)
    return "a duration such as 40ms or 0.04s" if found is None else found


def _bits_per_second(text: str) -> float | str:
    # 0 is refused: is that nothing, or without a limit?
    found = 0.0 if text == "unlimited" else _quantity(text, _RATE_BPS) or None
    # tc reads mbps as megabytes.
    return "a rate such as 20mbit (bit, kbit, mbit, gbit a second) or unlimited" if found is None else found


def _share(text: str) -> float | str:
    match = _NUMBER.fullmatch(text)
    if match and match[2] == "%" and float(match[1]) <= 100:
        return float(match[1]) / 100
    # 1 is refused: is that 1 % or all?
    if match and not match[2] and float(match[1]) < 1:
        return float(match[1])
    return "a share of packets such as 1% or 0.01"


def _queue(text: str) -> dict[str, float | None] | str:
    none: dict[str, float | None] = {"queue_packets": None, "queue_bytes": 0, "queue_ms": 0.0}
    match = _NUMBER.fullmatch(text)
    if match and match[2].lower() in ("p", "packets") and match[1].isdecimal():
        return none | {"queue_packets": int(match[1])}
    if match and (milliseconds := _quantity(text, _TIME_MS)):
        return none | {"queue_ms": milliseconds}
    if match and (size_bytes := _quantity(text, _SIZE_BYTES)):
        return none | {"queue_bytes": int(size_bytes)}
    return "a size such as 300ms, 100kB or 1000p"
