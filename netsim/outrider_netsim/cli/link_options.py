"""The options that describe a link, shared by the commands that start one; they adjust a profile or replace it.

Values are written as for tc, with their units. Each holds for both directions, or is UP/DOWN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from outrider_netsim.core.errors import ProfileError

if TYPE_CHECKING:
    from outrider_netsim.profiles.profile import Direction, Profile
    from outrider_netsim.profiles.traces import Trace

LINK_PANEL = "The link"
TRAFFIC_PANEL = "The traffic"
OUTPUT_PANEL = "Output"

_TIME_MS = {"us": 1e-3, "usec": 1e-3, "usecs": 1e-3, "ms": 1.0, "msec": 1.0, "msecs": 1.0}
_TIME_MS |= {"s": 1e3, "sec": 1e3, "secs": 1e3}
_RATE_BPS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_SIZE_BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "kib": 1024.0, "mib": 1024.0**2}
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)\s*([a-z%]*)", re.IGNORECASE)

ProfileOption = Annotated[
    str | None,
    typer.Option(
        help="A name from `outrider-netsim list`, FILE.toml, or FILE.toml:NAME; the options below adjust it. "
        "Without it a link does nothing else.",
        rich_help_panel=LINK_PANEL,
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(help="Random seed for delays and losses, instead of the profile's.", rich_help_panel=LINK_PANEL),
]
OutageOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DURATION@START",
        help="Planned outage such as 3s@10s, or 1s@5s/30s for a recurring one; 50ms@7s/20s+hold keeps packets and "
        "forwards them afterwards; repeatable.",
        rich_help_panel=LINK_PANEL,
    ),
]
CongestionOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Congestion control of the connections over the link, such as cubic, reno or bbr; proxy models cubic "
        "and reno.",
        rich_help_panel=LINK_PANEL,
    ),
]
DelayOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="One-way delay, such as 40ms: added in each direction, so a round trip takes twice as long. 40ms/10ms "
        "for 40 up and 10 down, as in the options below.",
        rich_help_panel=LINK_PANEL,
    ),
]
JitterOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Standard deviation of the delay, such as 10ms.", rich_help_panel=LINK_PANEL),
]
DistributionOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Shape of the jitter: normal, pareto, paretonormal, uniform or FILE.dist. By default the profile's, or "
        "normal.",
        rich_help_panel=LINK_PANEL,
    ),
]
LossOption = Annotated[
    str | None,
    typer.Option(metavar="SHARE", help="Share of lost packets, such as 1% or 0.01.", rich_help_panel=LINK_PANEL),
]
RateOption = Annotated[
    str | None,
    typer.Option(
        metavar="RATE",
        help="Rate in kbit, mbit or gbit a second, such as 20mbit or 5mbit/20mbit (up/down); or unlimited.",
        rich_help_panel=LINK_PANEL,
    ),
]
QueueOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Room of the queue before the rate: 300ms, 100kB, or 1000p (packets, with those in the delay).",
        rich_help_panel=LINK_PANEL,
    ),
]
InOrderOption = Annotated[
    bool | None,
    typer.Option(
        "--in-order/--reorder",
        help="Whether packets keep their order, or jitter lets them overtake; else as in the profile.",
        rich_help_panel=LINK_PANEL,
    ),
]
PcapOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Capture the link's packets for Wireshark or tcpdump (pcapng), where they enter and where they leave.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
PacketLogOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.csv",
        help="Log every packet: when it entered and left, or what became of it.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]


@dataclass(frozen=True, slots=True)
class LinkAdjustments:
    """The texts of these options; None for those not given."""

    delay: str | None = None
    jitter: str | None = None
    distribution: str | None = None
    loss: str | None = None
    rate: str | None = None
    queue: str | None = None
    in_order: bool | None = None

    @property
    def given(self) -> dict[str, str | bool]:
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


def link_profile(name: str | None, adjustments: LinkAdjustments, outages: list[str] | None = None) -> Profile:
    """Return the profile called `name` with these adjustments. Raises ProfileError."""
    from outrider_netsim.profiles.builtin import profile_named
    from outrider_netsim.profiles.outages import in_order, parse_outage
    from outrider_netsim.profiles.profile import Direction, Profile

    given = adjustments.given
    if name is None and not given and not outages:
        raise ProfileError("need --profile NAME, or a link described by --delay, --jitter, --loss, --rate or --outage")
    profile = Profile.symmetric("plain", Direction()) if name is None else profile_named(name)
    planned = in_order([*profile.outages, *map(parse_outage, outages or [])])
    profile = replace(profile, outages=tuple(planned))
    if not given:
        return profile
    return replace(
        profile,
        name=f"{profile.name} with {', '.join(_described(*option) for option in given.items())}",
        up=_adjusted(profile.up, adjustments, 0),
        down=_adjusted(profile.down, adjustments, 1),
    )


def _described(name: str, value: str | bool) -> str:
    if name == "in_order":
        return "packets in order" if value else "reordering"
    return f"{name} {value}"


def _adjusted(direction: Direction, adjustments: LinkAdjustments, way: int) -> Direction:
    """Apply the adjustments of one direction, the `way`-th of a value UP/DOWN."""
    changes: dict[str, Any] = {}  # Any: the fields of Direction
    from_trace: set[str] = set()
    if adjustments.delay is not None:
        # All of the delay, also the constant part.
        changes |= {"base_ms": 0.0, "delay_ms": _parsed("delay", adjustments.delay, way, _milliseconds)}
        from_trace.add("delay_ms")
    if adjustments.jitter is not None:
        changes |= _jitter(direction, _parsed("jitter", adjustments.jitter, way, _milliseconds)) | changes
    if adjustments.distribution is not None:
        changes["distribution"] = adjustments.distribution
    if adjustments.loss is not None:
        changes |= {"loss": _parsed("loss", adjustments.loss, way, _share), "bursts": None}
        from_trace.add("loss")
    if adjustments.rate is not None:
        changes["rate_bps"] = _parsed("rate", adjustments.rate, way, _bits_per_second)
        from_trace.add("rate_bps")
    if adjustments.queue is not None:
        changes |= _parsed("queue", adjustments.queue, way, _queue)
    if adjustments.in_order is not None:
        changes["in_order"] = adjustments.in_order
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


def _queue(text: str) -> dict[str, float] | str:
    from outrider_netsim.profiles.profile import USUAL_QUEUE_PACKETS

    none = {"queue_packets": USUAL_QUEUE_PACKETS, "queue_bytes": 0, "queue_ms": 0.0}
    match = _NUMBER.fullmatch(text)
    if match and match[2].lower() in ("p", "packets") and match[1].isdecimal():
        return none | {"queue_packets": int(match[1])}
    if match and (milliseconds := _quantity(text, _TIME_MS)):
        return none | {"queue_ms": milliseconds}
    if match and (size_bytes := _quantity(text, _SIZE_BYTES)):
        return none | {"queue_bytes": int(size_bytes)}
    return "a size such as 300ms, 100kB or 1000p"
