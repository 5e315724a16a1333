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

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from outrider_netsim.core.engine_names import WAYS, Way
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.distribution_table import SUFFIX as DIST_SUFFIX
from outrider_netsim.profiles.distribution_table import DistributionTable, load_distribution
from outrider_netsim.profiles.outages import outage_text, parse_outage
from outrider_netsim.profiles.profile import Bursts, Direction, Profile
from outrider_netsim.profiles.trace_files import load_trace
from outrider_netsim.profiles.traces import ConditionTrace, DeliveryTrace
from outrider_proto.errors import UsageError
from outrider_proto.options.values import Table, build, read_toml


@dataclass(frozen=True, slots=True)
class _ProfileTable:
    """The keys of one profile, its directions unchecked."""

    name: str = ""
    source: str = ""
    seed: int = 0
    outages: tuple[str, ...] = ()
    both: dict[str, Any] | None = None
    up: dict[str, Any] | None = None
    down: dict[str, Any] | None = None


class _LocatedError(ProfileError):
    """A ProfileError whose message says where in the file it is."""


def load_profile(path: str | Path, name: str | None = None) -> Profile:
    """Load the profile called `name`, or the only one in the file. Raises ProfileError."""
    found = load_profiles(path)
    if name is None and len(found) > 1:
        raise ProfileError(f"{path} holds several profiles: say which, as in {path}:{next(iter(found))}")
    if name is not None and name not in found:
        raise ProfileError(f"{path}: no profile {name!r}: choose one of {', '.join(found)}")
    return found[name] if name is not None else next(iter(found.values()))


def load_profiles(path: str | Path) -> dict[str, Profile]:
    """Load all profiles of a file, by name. Raises ProfileError that names file, table and key."""
    file = Path(path)
    try:
        root = read_toml(file)
    except UsageError as error:
        raise ProfileError(str(error)) from None
    if "profile" not in root:
        profile = _profile(file, (), root)
        return {profile.name: profile}
    with _located(file):
        several = root.pop("profile")
        if root:
            raise ProfileError(f"{next(iter(root))}: no such key beside [profile]")
        if not isinstance(several, dict) or not several or not all(isinstance(one, dict) for one in several.values()):
            raise ProfileError("profile: need tables such as [profile.NAME.both]")
        return {name: _profile(file, ("profile", name), one) for name, one in several.items()}


@contextlib.contextmanager
def _located(file: Path, *path: str) -> Iterator[None]:
    """Add the place to errors."""
    try:
        yield
    except _LocatedError:
        raise
    except UsageError as error:
        place = f" [{'.'.join(path)}]" if path else ""
        raise _LocatedError(f"{file}{place}: {error}") from None


def _profile(file: Path, path: tuple[str, ...], table: Table) -> Profile:
    with _located(file, *path):
        if path and "name" in table:
            raise ProfileError("name: the table's name is the profile's")
        keys = build(_ProfileTable, table)
        ways = {}
        for way in WAYS:
            own = getattr(keys, way)
            if own is None and keys.both is None:
                raise ProfileError(
                    f"no [{'.'.join((*path, way))}]: give both directions, or [both] where they are alike"
                )
            ways[way] = _direction(file, path, way, keys.both or {}, own or {})
        name = path[-1] if path else table.get("name", file.stem)
        return Profile(name, source=keys.source, seed=keys.seed, outages=tuple(map(parse_outage, keys.outages)), **ways)


def _direction(file: Path, path: tuple[str, ...], way: Way, both: Table, own: Table) -> Direction:
    values, found = both | own, dict[str, Any]()  # Any: fields of Direction
    try:
        # A file is named relative to this one.
        if isinstance(values.get("trace"), str):
            found["trace"] = load_trace(file.parent / values.pop("trace"), way)
        if str(values.get("distribution")).endswith(DIST_SUFFIX):
            found["distribution"] = load_distribution(file.parent / values.pop("distribution"))
            # Checked with the jitter beside it: a constant delay has none.
            values["distribution"] = "normal"
        if isinstance(values.get("bursts"), dict):
            with _located(file, *path, way if "bursts" in own else "both", "bursts"):
                found["bursts"] = build(Bursts, values.pop("bursts"))
        return replace(build(Direction, values), **found)
    except UsageError as error:
        # A message begins with its key.
        key = re.match(r"\w*", str(error))
        table = way if not both or (key and key[0] in own) else "both"
        with _located(file, *path, table):
            raise


def profile_text(profile: Profile) -> str:
    """Return `profile` as TOML; its traces are named, not copied."""
    values = {"name": profile.name, "source": profile.source, "seed": profile.seed}
    lines = [f"{key} = {_toml(value)}" for key, value in values.items()]
    if profile.outages:
        lines.append(f"outages = [{', '.join(_toml(outage_text(outage)) for outage in profile.outages)}]")
    alike = profile.up == profile.down
    for way, direction in {"both": profile.up}.items() if alike else profile.directions.items():
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
