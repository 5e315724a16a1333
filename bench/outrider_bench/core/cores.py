"""A core for each side, as two machines would have: else they share caches and wake one another up across cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_cores(server_pid: int) -> Iterator[bool]:
    """This process keeps one core and the server another, threads to come included. False where that cannot be had."""
    if not hasattr(os, "sched_setaffinity") or len(cores := sorted(os.sched_getaffinity(0))) < 2:
        yield False
        return
    ours, theirs = cores[:2]
    for thread in os.listdir(f"/proc/{server_pid}/task"):
        os.sched_setaffinity(int(thread), {theirs})
    os.sched_setaffinity(0, {ours})
    try:
        yield True
    finally:
        os.sched_setaffinity(0, set(cores))
