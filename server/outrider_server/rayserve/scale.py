"""Number and size of replicas, and Ray's port: one frozen value, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from outrider_proto.errors import UsageError
from outrider_proto.options.fields import Flag
from outrider_server.config.config import ServerConfig
from outrider_server.config.security import at_least


@dataclass(frozen=True, slots=True)
class Scale:
    """Raises UsageError. With `max_replicas` Ray keeps about `streams_per_replica` streams each, between both numbers.

    `http_port`: of Ray's own health page, /-/healthz, on loopback.
    """

    replicas: Annotated[int, Flag("Number of verifiers, each with its own target.")] = 1
    max_replicas: Annotated[
        int | None, Flag("Scale up to so many replicas with the number of streams. Default: a fixed number.")
    ] = None
    streams_per_replica: Annotated[float, Flag("Streams per replica that scaling aims at.", expert=True)] = 16.0
    surge: Annotated[
        bool, Flag("Start new replicas before old ones end on updates; needs room for twice as many.", expert=True)
    ] = False
    cpus: Annotated[float, Flag("CPUs of one replica, as Ray counts them.")] = 1.0
    gpus: Annotated[float, Flag("GPUs of one replica, as Ray counts them.")] = 0.0
    http_port: Annotated[int, Flag("Port of Ray's health page on loopback; 0 picks a free one.", expert=True)] = 8000

    def __post_init__(self) -> None:
        at_least(self, 1, "replicas")
        at_least(self, 0, "cpus", "gpus")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise UsageError(f"max_replicas={self.max_replicas}: need at least replicas={self.replicas}")
        if not self.streams_per_replica > 0:
            raise UsageError(f"streams_per_replica={self.streams_per_replica}: need more than 0")
        if not 0 <= self.http_port < 2**16:
            raise UsageError(f"http_port={self.http_port}: need 0 (a free one) to {2**16 - 1}")

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


@dataclass(frozen=True, slots=True)
class DeployConfig(ServerConfig):
    """What every replica serves, as `serve` has it, and how many there are: the file's section [deploy]."""

    deploy: Scale = Scale()
