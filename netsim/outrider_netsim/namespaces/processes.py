"""Processes of this machine from /proc: who descends from whom, and which ones a link's owner left behind.

Every process that a link starts, and all its descendants, carry a mark of the link's owner in their environment: its
process id and start time, which together are never reused.

Normally a link leaves nothing, even when its owner is killed: holder and pump end with the owner, commands with the
holder, and the kernel removes namespaces without processes. But a holder killed together with its owner leaves what its
command started in the background.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "OUTRIDER_NETSIM_OWNER"
PROC = Path("/proc")
END_TIMEOUT_S = 2.0  # for a killed process to be gone
POLL_S = 0.01


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


def kill_descendants(ancestor: int) -> None:
    """Kill all descendants of `ancestor`, also those started meanwhile."""
    while found := descendants(ancestor):
        for row in found:
            kill(row)


def kill(target: Process) -> None:
    """Kill exactly this process, if it has not ended and we may."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(target.pid)
        try:
            # Checked again after opening the pidfd: by now the id may belong to another process.
            now = process(target.pid)
            if now and now.mark == target.mark and not now.is_dead:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def find_leftovers() -> list[Process]:
    """Find the processes of links whose owners are gone, as far as this user may see them."""
    spared = _own_ancestry()
    return [row for row in processes() if not row.is_dead and row.pid not in spared and _is_left(row)]


def remove_leftovers() -> list[str]:
    """Kill all leftovers; return a line for each: `removed ...`, or `could not remove ...` and why."""
    return [_removed(row) for row in find_leftovers()]


def _own_ancestry() -> set[int]:
    """Return this process and its ancestors: the shell that cleans up may itself be a leftover."""
    line, row = set(), process(os.getpid())
    while row is not None:
        line.add(row.pid)
        row = process(row.parent)
    return line


def _is_left(row: Process) -> bool:
    mark = mark_of(row.pid)
    return mark is not None and not owner_lives(mark)


def _removed(row: Process) -> str:
    name = f"process {row.pid} ({_command(row.pid)})"
    kill(row)
    deadline = time.monotonic() + END_TIMEOUT_S
    while (now := process(row.pid)) is not None and now.mark == row.mark and not now.is_dead:
        if time.monotonic() > deadline:
            return f"could not remove {name}: it did not end; run as root"
        time.sleep(POLL_S)
    return f"removed {name}"


def _command(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "ended"
