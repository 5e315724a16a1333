"""How a result was made: command, versions, hardware, load. Goes into every report, so that a figure can be judged."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("outrider", "torch", "transformers", "grpcio", "numpy")


def provenance() -> dict[str, object]:
    """Command line, package versions, processor, threads and load average of this process."""
    import torch

    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()},
        "processor": _processor(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
