"""Data-parallel training: processes share the texts of an update and sum their gradients.

`torchrun` and `accelerate launch` start them, one a device. On CPU cores with other work, processes of one thread each
are up to twice as fast as threads: threads wait for each other at every operation, processes once per update.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

_TIMEOUT = timedelta(hours=2)  # the other processes wait while the leader validates
_Text = TypeVar("_Text")


@dataclass(frozen=True, slots=True)
class DataParallel:
    """This process's rank among `size`. Rank 0, the leader, decides, saves and reports."""

    rank: int = 0
    size: int = 1

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def share(self, texts: Sequence[_Text], part: int) -> list[Sequence[_Text]]:
        """Return this process's texts in parts of `part` for a pass each; 0: all of them in one."""
        part = part or -(-len(texts) // self.size)
        return [texts[first : first + part] for first in range(0, len(texts), part)][self.rank :: self.size]

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give every process the gradients of the whole update."""
        if self.size == 1:
            return
        # A process that had no texts has no gradients yet.
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = self.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        pieces = torch.split(flat, [parameter.numel() for parameter in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes; `values` are overwritten."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def broadcast(self, value: float) -> float:
        """Return the leader's value in every process."""
        if self.size == 1:
            return value
        shared: Tensor = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, src=0)
        return float(shared)

    def gather(self, value: Any) -> list[Any]:  # Any: whatever pickle takes
        """Return every process's value, in every process."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values


SINGLE_PROCESS = DataParallel()


def training_device() -> torch.device:
    """Return this process's accelerator, by the LOCAL_RANK that its launcher set, or the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        return torch.device("cpu")
    device = torch.device(found.type, int(os.environ.get("LOCAL_RANK", "0")))
    torch.accelerator.set_device_index(device)
    return device


@contextmanager
def data_parallel() -> Iterator[DataParallel]:
    """Join the other processes, where a launcher has started some."""
    if (size := int(os.environ.get("WORLD_SIZE", "1"))) == 1:
        yield SINGLE_PROCESS
        return
    dist.init_process_group(timeout=_TIMEOUT)
    parallel = DataParallel(dist.get_rank(), size)
    try:
        # All have read what they start from before the leader writes, and wait at the end while it validates.
        parallel.sum(torch.zeros(1))
        yield parallel
        parallel.sum(torch.zeros(1))
    finally:
        dist.destroy_process_group()
