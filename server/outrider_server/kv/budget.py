"""The memory budget for K/V and features: its default, and what of it is in use."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from outrider_server.kv.size import parse_bytes, show_bytes

_log = logging.getLogger(__name__)
_SHARE = 2  # take one part in so many of what is free
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class KVShape:
    """Sizes and place of one row of K/V, equal in all layers of a target."""

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return self.layers * self.kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


class OutOfKVMemory(Exception):
    """Raised where the budget has no room now; nothing has changed, and a later try may succeed."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"no room for {num_bytes} bytes of K/V")
        self.num_bytes = num_bytes


class MemoryBudget:
    """Count the bytes in use, at most `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes

    def take(self, num_bytes: int) -> None:
        """Count `num_bytes` as used. Raises OutOfKVMemory."""
        if num_bytes > self.free_bytes:
            raise OutOfKVMemory(num_bytes)
        self.used_bytes += num_bytes

    def give(self, num_bytes: int) -> None:
        """Return bytes that were taken."""
        assert 0 <= num_bytes <= self.used_bytes
        self.used_bytes -= num_bytes


def budget_bytes(configured: str | None, shape: KVShape) -> int:
    """Return the configured size, or half of the free memory where none is configured."""
    num_bytes = default_budget(shape.device) if configured is None else parse_bytes(configured)
    tokens = num_bytes // shape.bytes_per_token
    _log.info("%s for K/V and features, %d tokens of K/V alone", show_bytes(num_bytes), tokens)
    return num_bytes


def default_budget(device: torch.device) -> int:
    """Return half of the memory that is free on the device, now that the target is loaded."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // _SHARE
    return min(_available_bytes(), _container_bytes()) // _SHARE


def _available_bytes() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: ask the C library
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _container_bytes() -> int:
    """Return the memory a container may still take; practically endless outside one."""
    try:
        most = (_CGROUP / "memory.max").read_text().strip()
        return 2**62 if most == "max" else max(int(most) - int((_CGROUP / "memory.current").read_text()), 0)
    except (OSError, ValueError):
        return 2**62
