"""Runs model-written programs in namespaces of their own, below a root that holds nothing but Python, within limits.

    unshare    no network, and no process in sight but the program's own, which all end with the first of them
      sh       makes the root, read-only but for a small /tmp in memory
        timeout, chroot, setpriv, prlimit, python    within limits, and without privileges

A chroot holds what has no privilege, and from inside of one the kernel makes no user namespace, which would give some.
A program that means to cheat may pass, since it shares an interpreter with its check; it gets no farther.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from outrider_proto.errors import UsageError

_SYSTEM = ("/usr", "/bin", "/lib", "/lib64")
_GRACE_S = 10.0  # for the sandbox itself, beyond the program's time
_LIMITS = ("--as=536870912", "--nproc=8", "--fsize=1048576", "--nofile=64", "--msgqueue=0", "--core=0")
# /tmp bounds all files together, and shmall the memory that is no process's own; only recent kernels let users without
# privileges set it.
_MAKE_ROOT = """
set -e
box=$1 seconds=$2
shift 2
echo 1000 > /proc/self/oom_score_adj
(echo 0 > /proc/sys/kernel/shmall) 2> /dev/null || :
mount -t tmpfs -o mode=755,nosuid,nodev none "$box"
mkdir "$box/tmp"
mount -t tmpfs -o size=16m,nr_inodes=1k,mode=1777,nosuid,nodev none "$box/tmp"
while [ "$1" != -- ]; do
    mkdir -p "$box$1"
    mount -o bind,ro,nosuid,nodev "$1" "$box$1"
    shift
done
shift
mount -o remount,ro "$box"
timeout -s KILL "$seconds" chroot "$box" "$@"
"""
# The token comes back when the program has run to its end, and nothing runs after that.
_RUN = """
import os, sys
os.chdir("/tmp")
channel, source = int(sys.argv.pop()), sys.stdin.read()
exec(compile(source, "program", "exec"), {"__name__": "program"})
os.write(channel, os.read(channel, 64))
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Gives every program `seconds` of a processor's time, and twice as long by the clock."""

    seconds: int = 5

    @classmethod
    def tried(cls) -> Sandbox:
        """Return a sandbox in which a program has run. Raises UsageError where the system allows none."""
        sandbox = cls()
        try:
            works = sandbox.passes("")
        except FileNotFoundError:
            works = False
        if not works:
            raise UsageError(
                "no sandbox for model-written code: need Linux with util-linux and coreutils, and root or user "
                "namespaces for all (unshare --user --mount true); in a container --privileged"
            )
        return sandbox

    def passes(self, program: str) -> bool:
        """Return whether the program ran to its end: without an exception, an exit on the way, or a limit reached."""
        token = secrets.token_bytes(16)
        ours, theirs = socket.socketpair()
        # The peer resets the connection if the token was not read.
        with TemporaryDirectory() as box, ours, theirs, suppress(subprocess.TimeoutExpired, ConnectionResetError):
            ours.sendall(token)
            # In a session of its own: what signals its process group from inside reaches nothing of ours.
            subprocess.run(
                [*self._command(box), str(theirs.fileno())], pass_fds=[theirs.fileno()], start_new_session=True,
                input=program.encode(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", check=False,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, timeout=2 * self.seconds + _GRACE_S,
            )  # fmt: skip
            theirs.close()
            return ours.recv(64) == token
        return False

    def _command(self, box: str) -> Iterator[str]:
        is_root, python = os.geteuid() == 0, Path(sys.base_prefix).resolve()
        yield from ("unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
        yield from () if is_root else ("--user", "--map-root-user")
        yield from ("sh", "-c", _MAKE_ROOT, "sh", box, f"{2 * self.seconds}")
        yield from (place for place in _SYSTEM if Path(place).is_dir())
        yield from () if any(python.is_relative_to(place) for place in _SYSTEM) else (str(python),)
        yield from ("--", "setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all")
        # Nobody's processes are counted, and root's are not.
        yield from ("--reuid=65534", "--regid=65534", "--clear-groups") if is_root else ()
        yield from ("prlimit", f"--cpu={self.seconds}", *_LIMITS)
        yield from (str(Path(sys.executable).resolve()), "-I", "-S", "-X", "utf8", "-c", _RUN)
