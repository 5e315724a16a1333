"""How a report was made: command, time, machine and versions. Standard library only."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
