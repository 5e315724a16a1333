"""Find and remove what earlier links left on this machine.

Normally a link leaves nothing, even when its owner is killed: holder and pump end with the owner, commands with the
holder, and the kernel removes namespaces without processes. But a holder killed together with its owner leaves what its
command started in the background. Such processes carry the owner's mark (processes.py). Interfaces and named namespaces
are ours if their name begins with `outrider`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from outrider_netsim.namespaces import syscalls
from outrider_netsim.namespaces.interfaces import remove_interface
from outrider_netsim.namespaces.processes import PROC, kill, mark_of, owner_lives, process, processes

PREFIX = "outrider"
NAMED_NAMESPACES = Path("/run/netns")  # where `ip netns` keeps them
END_TIMEOUT_S = 2.0  # for a killed process to be gone
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something left by a link whose owner is gone. The name of a process is its id."""

    kind: Literal["process", "interface", "namespace"]
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" ({self.detail})" if self.detail else "")


def find_leftovers() -> list[Leftover]:
    """Find all leftovers that this user may see. Inside a running link, its own interfaces do not count."""
    found = list(_processes())
    own = mark_of(os.getpid())
    if own is None or not owner_lives(own):
        found += [Leftover("interface", name) for _, name in socket.if_nameindex() if name.startswith(PREFIX)]
        found += [Leftover("namespace", path.name) for path in sorted(NAMED_NAMESPACES.glob(f"{PREFIX}*"))]
    return found


def remove_leftovers() -> list[str]:
    """Remove all leftovers; return a line for each: `removed ...`, or `could not remove ...` and why."""
    return [_removed(leftover) for leftover in find_leftovers()]


def _processes() -> Iterator[Leftover]:
    spared = _own_ancestry()
    for row in processes():
        if row.is_dead or row.pid in spared:
            continue
        mark = mark_of(row.pid)
        if mark is not None and not owner_lives(mark):
            yield Leftover("process", str(row.pid), _command(row.pid))


def _own_ancestry() -> set[int]:
    """Return this process and its ancestors: the shell that cleans up may itself be a leftover."""
    line, row = set(), process(os.getpid())
    while row is not None:
        line.add(row.pid)
        row = process(row.parent)
    return line


def _command(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "ended"


def _removed(leftover: Leftover) -> str:
    try:
        _remove(leftover)
    except OSError as error:
        remedy = "; run as root" if isinstance(error, PermissionError) else ""
        return f"could not remove {leftover}: {error.strerror or error}{remedy}"
    return f"removed {leftover}"


def _remove(leftover: Leftover) -> None:
    match leftover.kind:
        case "process":
            _end(int(leftover.name))
        case "interface":
            remove_interface(leftover.name)
        case "namespace":
            path = NAMED_NAMESPACES / leftover.name
            syscalls.unmount(str(path))
            path.unlink()
        case _:
            assert_never(leftover.kind)


def _end(pid: int) -> None:
    row = process(pid)
    mark = mark_of(pid)
    # It has ended, and the id may be another's by now.
    if row is None or mark is None or owner_lives(mark):
        return
    kill(row)
    deadline = time.monotonic() + END_TIMEOUT_S
    while (now := process(pid)) is not None and now.mark == row.mark and not now.is_dead:
        if time.monotonic() > deadline:
            raise PermissionError(0, "it did not end")
        time.sleep(POLL_S)
