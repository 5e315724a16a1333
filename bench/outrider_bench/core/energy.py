"""Energy that the processor has taken, from the RAPL counters of Intel and AMD, as Linux' powercap shows them.

    intel-rapl:0     package-0   counted: all cores, caches, memory controller
    intel-rapl:0:0   core        a part of package-0
    intel-rapl:1     package-1   counted: the second socket
    intel-rapl:2     psys        the whole board, with the packages

A package's counter goes on while it idles, and for whatever else runs on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

POWERCAP = Path("/sys/class/powercap")
_JOULES = 1e-6  # a microjoule


@dataclass(frozen=True, slots=True)
class EnergyMeter:
    """The counters of all packages, and the largest value of each, in microjoules: then it begins at 0 again."""

    counters: Sequence[tuple[Path, int]]

    @classmethod
    def of_machine(cls, powercap: Path | None = None) -> Self | None:
        """Return the machine's meter; None without one, or where it may not be read, as by others than root."""
        # Not intel-rapl-mmio:*, which counts the same packages once more.
        domains = sorted((powercap or POWERCAP).glob("intel-rapl:*"))
        try:
            packages = [domain for domain in domains if (domain / "name").read_text().startswith("package-")]
            meter = cls([(one / "energy_uj", int((one / "max_energy_range_uj").read_text())) for one in packages])
            meter.read()
        except (OSError, ValueError):  # of some packages it would be no sum
            return None
        return meter if packages else None

    def read(self) -> list[int]:
        """Return the counters. Raises OSError and ValueError where one cannot be read."""
        return [int(file.read_text()) for file, _ in self.counters]

    def joules_since(self, before: Sequence[int]) -> float:
        """Return what was taken since read() gave `before`, while no counter began at 0 twice, which takes minutes."""
        taken = (
            (now - then) % (most + 1) for now, then, (_, most) in zip(self.read(), before, self.counters, strict=True)
        )
        return sum(taken) * _JOULES
