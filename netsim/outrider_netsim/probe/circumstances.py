"""How a report was made: link, command, time, machine and versions. Standard library only."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from dataclasses import asdict, replace
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from outrider_netsim.profiles.profile import Direction, Profile

PACKAGES = ("outrider", "pyroute2")


def circumstances(started: datetime, ended: datetime) -> dict[str, object]:
    """Describe this run, for a report's JSON."""
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round((ended - started).total_seconds(), 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def profile_as_json(profile: Profile) -> dict[str, object]:
    """Describe the link; of its traces, only the names."""
    return {"name": profile.name, "up": _direction_as_json(profile.up), "down": _direction_as_json(profile.down)}


def _direction_as_json(direction: Direction) -> dict[str, object]:
    trace = direction.trace.name if direction.trace else None
    return asdict(replace(direction, trace=None)) | {"trace": trace, "distribution": str(direction.distribution)}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
