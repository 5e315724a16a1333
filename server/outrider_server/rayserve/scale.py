"""Number and size of replicas, and Ray's port: one frozen value, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class Scale:
    """Raises UsageError. With `max_replicas` Ray keeps about `streams` streams a replica, between both numbers."""

    replicas: int = 1
    max_replicas: int | None = None  # None: always as many as `replicas`
    streams: float = 16.0
    surge: bool = False  # an update starts new replicas before old ones end, which needs room for both
    cpus: float = 1.0  # of each replica, as Ray counts them
    gpus: float = 0.0
    http_port: int = 8000  # of Ray's own health page, /-/healthz, on loopback

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise UsageError(f"replicas={self.replicas}: need at least 1")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise UsageError(f"max_replicas={self.max_replicas}: need at least replicas={self.replicas}")
        if not self.streams > 0:
            raise UsageError(f"streams_per_replica={self.streams}: need more than 0")
        if not (self.cpus >= 0 and self.gpus >= 0):
            raise UsageError(f"cpus={self.cpus}, gpus={self.gpus}: need 0 or more")
        if not 0 < self.http_port < 2**16:
            raise UsageError(f"http_port={self.http_port}: need 1 to {2**16 - 1}")

    @property
    def most_replicas(self) -> int:
        """Largest number of replicas at once, also during an update."""
        return (self.max_replicas or self.replicas) * (2 if self.surge else 1)

    def kv_memory(self, num_machines: int) -> str:
        """Return the share of its device's free memory that a replica may take for K/V.

        Replicas that may share a device, by CPUs or by a part of a GPU each, take half of it together.
        """
        together = self._together(num_machines)
        if self.gpus:
            together = min(together, max(int(1 / self.gpus), 1))
        return f"{50 / together:.3g}%"

    def kv_swap(self, num_machines: int) -> str:
        """Return the share of its machine's free memory that a replica on a GPU may take for evicted sessions' K/V."""
        return f"{25 / self._together(num_machines):.3g}%" if self.gpus else "0"

    def _together(self, num_machines: int) -> int:
        return math.ceil(self.most_replicas / num_machines)
