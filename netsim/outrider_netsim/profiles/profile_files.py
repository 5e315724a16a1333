"""Read and write profiles in TOML; every error names file, key and remedy.

source = "measured at home, May 2025"        one profile: its name is the file's, or `name`
outages = ["3s@10s", "1s@5s/30s"]
[both]                                       defaults for both directions
delay_ms = 20
[up]                                         what differs from [both]
rate_bps = 5e6

[profile.home.both]                          several profiles: the same under `profile.NAME`
[profile.home.up]
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.checked_table import CheckedTable, WrongTypeError, flag, number, text, whole
from outrider_netsim.profiles.distribution_table import SUFFIX as DIST_SUFFIX
from outrider_netsim.profiles.distribution_table import DistributionTable, load_distribution
from outrider_netsim.profiles.outages import Outage, outage_text, parse_outage
from outrider_netsim.profiles.profile import Aqm, Bursts, Direction, Distribution, Profile
from outrider_netsim.profiles.trace_files import load_trace
from outrider_netsim.profiles.traces import ConditionTrace, DeliveryTrace, Trace

SUFFIX = ".toml"


def load_profile(path: str | Path, name: str | None = None) -> Profile:
    """Load the profile called `name`, or the only one in the file. Raises ProfileError."""
    found = load_profiles(path)
    if name is None and len(found) > 1:
        raise ProfileError(f"{path} holds several profiles: say which, as in {path}:{next(iter(found))}")
    if name is not None and name not in found:
        raise ProfileError(f"{path}: no profile {name!r}: choose one of {', '.join(found)}")
    return found[name] if name is not None else next(iter(found.values()))


def load_profiles(path: str | Path) -> dict[str, Profile]:
    """Load all profiles of a file, by name. Raises ProfileError that names file and key."""
    root = CheckedTable.read(Path(path))
    if "profile" not in root:
        profile = _profile(root, root.file.stem)
        return {profile.name: profile}
    root.only(["profile"])
    several = root.child("profile")
    if not several.values:
        raise root.error("no profile: need tables such as [profile.NAME.both]")
    return {name: _profile(several.child(name), name) for name in several}


def _outages(value: Any, table: CheckedTable) -> tuple[Outage, ...]:
    if not isinstance(value, list):
        raise WrongTypeError('a list such as ["3s@10s", "1s@5s/30s"]')
    return tuple(parse_outage(text(item, table)) for item in value)


def _bursts(value: Any, table: CheckedTable) -> Bursts:
    if not isinstance(value, dict) or not {"p", "r"} <= value.keys():
        raise WrongTypeError("a table such as {p = 0.01, r = 0.3}")
    inner = table.child("bursts")
    inner.only(field.name for field in fields(Bursts))
    return Bursts(**{key: inner.get(key, number) for key in inner})


def _trace(value: Any, table: CheckedTable) -> Trace:
    return load_trace(table.file.parent / text(value, table))


def _distribution(value: Any, table: CheckedTable) -> Distribution:
    name = text(value, table)
    # Any other name is checked by Direction.
    return load_distribution(table.file.parent / name) if name.endswith(DIST_SUFFIX) else cast(Distribution, name)


Kinds = dict[str, Callable[[Any, CheckedTable], Any]]  # Any: unchecked in, a field's type out
_DIRECTION: Kinds = {
    "delay_ms": number,
    "jitter_ms": number,
    "distribution": _distribution,
    "rate_bps": number,
    "base_ms": number,
    "correlation": number,
    "coherence_ms": number,
    "loss": number,
    "bursts": _bursts,
    "duplicate": number,
    "corrupt": number,
    "queue_packets": whole,
    "queue_bytes": whole,
    "queue_ms": number,
    "in_order": flag,
    "aqm": lambda value, table: cast(Aqm, text(value, table)),  # checked by Direction
    "slot_ms": number,
    "trace": _trace,
}
_PROFILE: Kinds = {"source": text, "seed": whole, "outages": _outages}
_WAYS = ("up", "down")


def _profile(table: CheckedTable, name: str) -> Profile:
    kinds = _PROFILE if table.path else {"name": text} | _PROFILE
    table.only([*kinds, "both", *_WAYS])
    given = {key: table.get(key, kinds[key]) for key in table if key in kinds}
    both = _values(table, "both")
    ways = {way: _direction(table, way, both) for way in _WAYS}
    return table.located(lambda: Profile(**{"name": name} | given | ways))


def _direction(table: CheckedTable, way: str, both: dict[str, Any]) -> Direction:
    if way not in table and "both" not in table:
        raise table.error(f"no [{'.'.join((*table.path, way))}]: give both directions, or [both] where they are alike")
    values = both | _values(table, way)
    return table.child(way if way in table else "both").located(lambda: Direction(**values))


def _values(table: CheckedTable, way: str) -> dict[str, Any]:
    if way not in table:
        return {}
    child = table.child(way)
    child.only(_DIRECTION)
    return {key: child.get(key, _DIRECTION[key]) for key in child}


def profile_text(profile: Profile) -> str:
    """Return `profile` as TOML; its traces are named, not copied."""
    values = {"name": profile.name, "source": profile.source, "seed": profile.seed}
    lines = [f"{key} = {_toml(value)}" for key, value in values.items()]
    if profile.outages:
        lines.append(f"outages = [{', '.join(_toml(outage_text(outage)) for outage in profile.outages)}]")
    alike = profile.up == profile.down
    for way, direction in {"both": profile.up}.items() if alike else {"up": profile.up, "down": profile.down}.items():
        lines += ["", f"[{way}]", *_direction_lines(direction)]
    return "\n".join(lines) + "\n"


def _direction_lines(direction: Direction) -> list[str]:
    usual = Direction()
    values = {field.name: getattr(direction, field.name) for field in fields(Direction)}
    return [f"{key} = {_toml(value)}" for key, value in values.items() if value != getattr(usual, key)]


def _toml(value: object) -> str:
    match value:
        case Bursts():
            return "{" + ", ".join(f"{field.name} = {getattr(value, field.name)!r}" for field in fields(Bursts)) + "}"
        case DeliveryTrace() | ConditionTrace() | DistributionTable():
            return _toml(str(Path(value.name).absolute()))
        case bool() | str():  # TOML strings are JSON strings, except that DEL must be escaped
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return repr(value)
