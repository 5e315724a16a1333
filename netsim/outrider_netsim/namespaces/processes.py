"""Processes of this machine as /proc shows them: who descends from whom, and which of them a link's parent left behind.

Every process that a link starts carries the mark of the process that owns the link in its environment, and so do
all that descend from it: the owner's id and the time it was started, which together never come again.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from outrider_netsim.namespaces import syscalls

MARK = "OUTRIDER_NETSIM_OWNER"
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """A row of the process table; `started` counts clock ticks since boot."""

    pid: int
    parent: int
    started: int
    is_dead: bool  # a zombie: ended, and not yet asked for

    @property
    def mark(self) -> str:
        return f"{self.pid}:{self.started}"


def process(pid: int) -> Process | None:
    """The process of this id, or None when there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything, also spaces and brackets
    return Process(pid, parent=int(fields[1]), started=int(fields[19]), is_dead=fields[0] in "ZX")


def processes() -> Iterator[Process]:
    for entry in os.listdir(PROC):
        if entry.isdecimal() and (found := process(int(entry))):
            yield found


def own_mark() -> str:
    """The mark that this process puts on what it starts."""
    found = process(os.getpid())
    assert found is not None
    return found.mark


def mark_of(pid: int) -> str | None:
    """Whose link a process belongs to; None where it has no mark or is none of ours to read."""
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    for entry in environment.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == MARK.encode():
            return value.decode(errors="replace")
    return None


def owner_lives(mark: str) -> bool:
    """Whether the process that a mark names is still there."""
    pid = mark.partition(":")[0]
    owner = process(int(pid)) if pid.isdecimal() else None
    return owner is not None and owner.mark == mark and not owner.is_dead


def descendants(ancestor: int) -> list[Process]:
    """All living processes under `ancestor`, itself not among them."""
    table = [row for row in processes() if not row.is_dead]
    found: list[Process] = []
    wanted = {ancestor}
    while grown := [row for row in table if row.parent in wanted and row not in found]:
        found += grown
        wanted = {row.pid for row in grown}
    return found


def die_with_parent(number: int, parent: int) -> None:
    """Have the kernel send us a signal when the thread that started us ends; end now if `parent` already has."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(0)


def kill_descendants(ancestor: int) -> None:
    """End all processes under `ancestor`, also those that they start meanwhile."""
    while found := descendants(ancestor):
        for row in found:
            kill(row)


def kill(target: Process) -> bool:
    """End this very process, not another that has come by its id. False when it has ended or is not ours to end."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(target.pid)
        try:
            now = process(target.pid)
            if now and now.mark == target.mark and not now.is_dead:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False
