"""The process that holds a link's two network namespaces for its parent, and ends with it.

    parent --- Unix socketpair: one JSON object a message, descriptors beside it --- holder, in A or B as requested
    {"id": 7, "op": "call", "side": "B",
     "function": "outrider_netsim.namespaces.interfaces:open_socket", "arguments": {"kind": "tcp"}}
    {"id": 7, "value": null}  + the socket

The namespaces have no name: the kernel removes them with the last process and socket inside. When the parent ends, the
socketpair closes, and a signal comes too, in case another process still holds the other end; the holder then kills its
commands and all their descendants.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, cast

from outrider_netsim.core.errors import EngineError
from outrider_netsim.namespaces import syscalls
from outrider_netsim.namespaces.interfaces import PassedDescriptor, Side, set_up
from outrider_netsim.namespaces.processes import kill_descendants

MESSAGE_BYTES = 1 << 17  # below a Unix socket's limit for one message (net.core.wmem_default, 208 KiB)
TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)  # the whole group gets them
PACKAGE = "outrider_netsim."
REMEDY = (
    "run as root, allow unprivileged user namespaces (sysctl -w kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces=15000: whichever this kernel has), "
    "or use --engine proxy"
)

Message = dict[str, Any]  # JSON


class NamespaceHolder:
    """Answers the parent's requests one at a time and reports the exit of its commands."""

    def __init__(self, channel: socket.socket, namespaces: dict[Side, int], ended: socket.socket) -> None:
        self._channel = channel
        self._namespaces = namespaces
        self._ended = ended  # readable when a child has ended
        self._commands: dict[int, subprocess.Popen[bytes]] = {}  # by request id

    def serve(self) -> None:
        """Serve until the parent closes its end."""
        while True:
            ready, _, _ = select.select([self._channel, self._ended], [], [])
            if self._ended in ready:
                self._ended.recv(4096)
                self._report_ended()
            if self._channel in ready:
                text = self._channel.recv(MESSAGE_BYTES)
                if not text:
                    return
                self._answer(json.loads(text))

    def _answer(self, request: Message) -> None:
        try:
            match request["op"]:
                case "call":
                    self._reply(request["id"], self._call(request))
                case "run":
                    # The reply comes at its end.
                    self._commands[request["id"]] = self._run(request)
                case "signal":
                    if command := self._commands.get(request["run"]):
                        os.kill(command.pid, request["number"])
        except Exception as error:  # any failure is reported to the parent, and the next request is served
            _send(self._channel, {"id": request["id"], "error": _described(error)})

    def _call(self, request: Message) -> Any:  # Any: JSON
        module, _, name = request["function"].partition(":")
        if not module.startswith(PACKAGE):
            raise ValueError(f"{module}: not a module of {PACKAGE.rstrip('.')}")
        function = getattr(importlib.import_module(module), name)
        syscalls.setns(self._namespaces[cast(Side, request["side"])], syscalls.CLONE_NEWNET)
        return function(**request["arguments"])

    def _run(self, request: Message) -> subprocess.Popen[bytes]:
        # A child starts in its parent's namespace, and a call may have left this process in B.
        syscalls.setns(self._namespaces["A"], syscalls.CLONE_NEWNET)
        environment, holder = os.environ | request["env"], os.getpid()
        return subprocess.Popen(
            request["argv"],
            env=environment,
            cwd=request["cwd"],
            preexec_fn=lambda: syscalls.die_with_parent(signal.SIGKILL, holder),  # noqa: PLW1509 - the holder has one thread
        )

    def _report_ended(self) -> None:
        by_pid = {command.pid: request for request, command in self._commands.items()}
        while pid := _ended_child():
            if (request := by_pid.get(pid)) is None:
                # An orphan of a command; we are its subreaper.
                os.waitpid(pid, 0)
            else:
                self._reply(request, self._commands.pop(request).wait())

    def _reply(self, request: int, value: Any) -> None:  # Any: JSON, or a PassedDescriptor
        if isinstance(value, PassedDescriptor):
            _send(self._channel, {"id": request, "value": None}, value.descriptor)
            os.close(value.descriptor)
        else:
            _send(self._channel, {"id": request, "value": value})


def make_namespaces() -> dict[Side, int]:
    """Create two network namespaces with loopback up; this process ends up in A. Raises OSError when refused."""
    found: dict[Side, int] = {}
    # B first: the process stays in the last namespace, and commands run in A.
    sides: tuple[Side, Side] = ("B", "A")
    for side in sides:
        _unshare_network()
        found[side] = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        set_up("lo")
    return found


def _unshare_network() -> None:
    try:
        syscalls.unshare(syscalls.CLONE_NEWNET)
    except PermissionError:
        _become_owner()
        syscalls.unshare(syscalls.CLONE_NEWNET)


def _become_owner() -> None:
    """Enter a new user namespace, where we have all rights but keep our user and group ids."""
    user, group = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    # Required before an unprivileged process may map a group.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _described(error: Exception) -> Message:
    if isinstance(error, OSError):
        message = error.strerror or str(error)
        return {"kind": "OSError", "errno": error.errno, "message": message, "file": error.filename}
    return {"kind": type(error).__name__, "message": str(error)}


def _send(channel: socket.socket, message: Message, *descriptors: int) -> None:
    # The parent has gone; the loop notices.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(channel, [json.dumps(message).encode()], descriptors)


def _ended_child() -> int:
    """Return the id of a child that has ended but is not reaped; 0 if there is none."""
    # WNOWAIT: reaping here would take the exit status from subprocess.
    with contextlib.suppress(ChildProcessError):
        if found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return found.si_pid
    return 0


def _outlive_terminal() -> None:
    """Leave Ctrl-C and similar signals to the command."""
    # A handler, because SIG_IGN would be inherited by the executed command.
    for number in TERMINAL_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def _watch_children() -> socket.socket:
    ended, wakeup = socket.socketpair()
    ended.setblocking(False)
    wakeup.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup.detach(), warn_on_full_buffer=False)
    return ended


def _parent_ended(_number: int = 0, _frame: FrameType | None = None) -> NoReturn:
    signal.set_wakeup_fd(-1)
    kill_descendants(os.getpid())
    os._exit(0)


def main() -> None:
    """Run as `python -m ... CHANNEL PARENT`: the socket's descriptor number and the parent's process id."""
    channel, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    channel.set_inheritable(False)
    _outlive_terminal()
    signal.signal(signal.SIGUSR2, _parent_ended)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    try:
        namespaces = make_namespaces()
    except OSError as error:
        message = f"this machine allows no network namespace ({error.strerror or error}): {REMEDY}"
        _send(channel, {"id": 0, "error": _described(EngineError(message))})
        return
    # Only now: entering a user namespace may clear the parent-death signal.
    syscalls.die_with_parent(signal.SIGUSR2, parent)
    _send(channel, {"id": 0, "value": None})
    NamespaceHolder(channel, namespaces, _watch_children()).serve()
    _parent_ended()


if __name__ == "__main__":
    main()
