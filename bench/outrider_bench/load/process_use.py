"""Processor time and memory of a process, and pinning to cores, on Linux."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Processor seconds of all threads, and resident memory."""

    cpu_s: float = 0.0
    rss_bytes: int = 0

    @classmethod
    def of(cls, pid: int) -> ProcessUse:
        """Read /proc; zeros if there is no such process, or no /proc."""
        try:
            # The second field is the command's name, which may contain spaces and parentheses.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return cls()
        user, system = int(fields[11]), int(fields[12])
        return cls((user + system) / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))


@dataclass(frozen=True, slots=True)
class CoreShares:
    """The cores of the server and of the clients; empty for all cores."""

    server: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()

    @classmethod
    def apart(cls, num_client_cores: int) -> CoreShares:
        """Give the clients `num_client_cores`, at most half of all; empty where cores cannot be shared out."""
        if not hasattr(os, "sched_setaffinity") or len(cores := sorted(os.sched_getaffinity(0))) < 2:
            return cls()
        theirs = min(num_client_cores, len(cores) // 2)
        return cls(tuple(cores[:-theirs]), tuple(cores[-theirs:]))


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Pin this thread, and the processes that it starts meanwhile, to `cores`, if any are given."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    # Affinity belongs to the thread, and is inherited by threads and processes that it starts.
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
