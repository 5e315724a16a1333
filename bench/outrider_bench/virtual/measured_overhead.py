"""Overhead as a report of the real stack has it: its first case beside a replay of the same ways without any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from outrider_bench.network.ways import Options, Way
from outrider_bench.virtual.against import real_cases
from outrider_bench.virtual.overhead import AHEAD, IN_TURN, STREAM, Overhead
from outrider_bench.virtual.replay import Stage, link_of, replay
from outrider_proto.errors import UsageError

_SETTINGS = ("pace", "codec", "max_new_tokens")


def measured_overhead(report: Path, stage: Stage, common: Options, seed: int) -> Overhead:
    """The first case's; `common` are the replay's options of all ways. Raises UsageError for other conditions than the
    stage's, or a report that lacks what is needed."""
    case = real_cases(report)[0]
    _check(case, stage, report)
    names = {mode: _first_of(mode, case["ways"]) for mode in (STREAM, IN_TURN, AHEAD)}
    ways = [Way.parse(name, common) for name in names.values() if name is not None]
    bare = replay(replace(stage, profile=link_of(case["profile"]), overhead=Overhead()), ways, seed).figures
    known = {mode: name for mode, name in names.items() if name is not None}
    return Overhead.between(
        {mode: case["ways"][name] for mode, name in known.items()},
        {mode: asdict(bare[name]) for mode, name in known.items()},
    )


def _first_of(mode: str, ways: Mapping[str, Any]) -> str | None:  # Any: a report's content
    return next((name for name in ways if name.partition(",")[0] == mode), None)


def _check(case: Mapping[str, Any], stage: Stage, report: Path) -> None:  # Any: as above
    here = {"pace": stage.pace.name, "codec": stage.codec, "max_new_tokens": stage.max_new_tokens}
    for name in _SETTINGS:
        if case[name] != here[name]:
            raise UsageError(f"{report}: {name}={case[name]}, here {here[name]}: make them the same")
