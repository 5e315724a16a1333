"""Processes of this machine from /proc: who descends from whom, and which ones a link's owner left behind.

Every process that a link starts, and all its descendants, carry a mark of the link's owner in their environment: its
process id and start time, which together are never reused.
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
    """A row of the process table; `started` is in clock ticks since boot."""

    pid: int
    parent: int
    started: int
    is_dead: bool  # a zombie: ended but not yet waited for

    @property
    def mark(self) -> str:
        return f"{self.pid}:{self.started}"


def process(pid: int) -> Process | None:
    """Return the process with this id, or None."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # From the last bracket on: the process name before it may itself contain spaces and brackets.
    fields = text[text.rindex(")") + 2 :].split()
    return Process(pid, parent=int(fields[1]), started=int(fields[19]), is_dead=fields[0] in "ZX")


def processes() -> Iterator[Process]:
    for entry in os.listdir(PROC):
        if entry.isdecimal() and (found := process(int(entry))):
            yield found


def own_mark() -> str:
    """Return the mark that this process puts on the processes it starts."""
    found = process(os.getpid())
    assert found is not None
    return found.mark


def mark_of(pid: int) -> str | None:
    """Return the mark of a process; None if it has none or we may not read it."""
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
    """Return whether the process named by a mark still runs."""
    pid = mark.partition(":")[0]
    owner = process(int(pid)) if pid.isdecimal() else None
    return owner is not None and owner.mark == mark and not owner.is_dead


def descendants(ancestor: int) -> list[Process]:
    """Return all living descendants of `ancestor`, without itself."""
    table = [row for row in processes() if not row.is_dead]
    found: list[Process] = []
    wanted = {ancestor}
    while grown := [row for row in table if row.parent in wanted and row not in found]:
        found += grown
        wanted = {row.pid for row in grown}
    return found


def die_with_parent(number: int, parent: int) -> None:
    """Have the kernel send us a signal when the thread that started us ends."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, number)
    # The parent may have ended before the call above, in which case no signal will ever come.
    if os.getppid() != parent:
        os._exit(0)


def kill_descendants(ancestor: int) -> None:
    """Kill all descendants of `ancestor`, also those started meanwhile."""
    while found := descendants(ancestor):
        for row in found:
            kill(row)


def kill(target: Process) -> bool:
    """Kill exactly this process. Return False if it has ended or we may not kill it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(target.pid)
        try:
            # Checked again after opening the pidfd: by now the id may belong to another process.
            now = process(target.pid)
            if now and now.mark == target.mark and not now.is_dead:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False
