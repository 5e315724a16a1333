"""What model-written programs try, in a real sandbox: as root, and in a user namespace as other users have it."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from outrider_bench.studies.humaneval.sandbox import Sandbox
from outrider_proto.errors import UsageError

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("sandbox")]

WRITTEN = [Path(place) / "outrider-was-here" for place in (Path.home(), sys.base_prefix)]
FAIL = {
    "a failed check": "assert False",
    "a NUL": "\0",
    "an endless loop": "while True: pass",
    "sleep": "import time; time.sleep(1e6)",
    "a thread": "import threading, time; threading.Thread(target=time.sleep, args=(1e6,)).start(); raise SystemExit",
    "a fork bomb": "import os\nwhile True:\n try: os.fork()\n except OSError: pass",
    "10 GB": "bytearray(10 * 2**30)",
    "10 GB in pieces": "a = []\nwhile True: a.append(b'x' * 10**7)",
    "no end of recursion": "import sys; sys.setrecursionlimit(2**30)\ndef f(): f()\nf()",
    "a crash": "import ctypes; ctypes.string_at(0)",
    "a huge output": "while True: print('x' * 10**6)",
    "many large files": "for i in range(32): open(str(i), 'wb').write(bytes(2**20))",
    "many files": "for i in range(10_000): open(str(i), 'wb').close()",
    "write to home": f"open({str(WRITTEN[0])!r}, 'w')",
    "write beside Python": f"open({str(WRITTEN[1])!r}, 'w')",
    "delete Python": f"import os; os.remove({os.__file__!r})",
    "end the process": "import os; os._exit(0)",
    "exit": "import sys; sys.exit(0)",
    "exit late": "import atexit, os, sys; atexit.register(os._exit, 0); sys.exit(0)",
    "a guessed token": "import os\nfor i in range(64):\n try: os.write(i, b'x')\n except OSError: pass\nos._exit(0)",
    "kill the parent": "import os, time; os.kill(os.getppid(), 9); time.sleep(1)",
    "kill the group": "import os, time; os.killpg(0, 9); time.sleep(1)",
    "kill the parent's group": "import os, time; os.killpg(os.getpgid(os.getppid()), 9); time.sleep(1)",
    "read input": "input()",
    "close everything": "import os; os.closerange(0, 64)",
    "delete the system": "import os; os.remove('/usr/bin/env')",
}
PASS = {
    "imports": "import collections, hashlib, heapq, itertools, json, math, random, re, typing; hashlib.md5(b'')",
    "a file of its own": "open('a', 'w').write('é'); assert open('/tmp/a').read() == 'é'",
    "some output": "import sys\nfor i in range(1000): print('x' * 10**4); print('x' * 10**4, file=sys.stderr)",
    "exit after the end": "import atexit, os; atexit.register(os._exit, 1)",
    "nothing of the caller": """
import os
assert set(os.environ) <= {"PATH", "PWD", "LC_CTYPE"} and os.getpid() < 100
assert not any(map(os.path.exists, ("/proc/self", "/etc/passwd", "/dev/null", "/home", "/sys")))
""",
    "no privileges": """
import ctypes, os
libc = ctypes.CDLL(None)
assert libc.unshare(0x10000000) == libc.mount(b"", b"/tmp", b"tmpfs", 0, None) == libc.chroot(b"/tmp") == -1
assert libc.shmget(0, 2**20, 0o1600) == libc.ptrace(16, 1, 0, 0) == -1
""",
    "a grandchild that stays": """
import os
os.fork() or (os.setsid(), os.fork() or os.execv("/usr/bin/sleep", ["sleep", "1000"]), os._exit(0))
""",
}
QUICK = ("a failed check", "10 GB", "write to home", "end the process", "kill the parent's group", *PASS)
USER = [pytest.param(name, 1000, id=f"{name}, a user") for name in QUICK]


def process_namespaces() -> set[str]:
    """Those of all processes: what a sandbox leaves running is in one that was not there."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.add(os.readlink(process / "ns" / "pid"))
    return found


@pytest.mark.parametrize(("name", "user"), [*((name, os.geteuid()) for name in (*FAIL, *PASS)), *USER])
def test_a_program_passes_if_it_ends_and_leaves_nothing(name, user, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = process_namespaces()
    assert Sandbox(1 if name in FAIL else 10).passes((FAIL | PASS)[name]) is (name in PASS)
    assert process_namespaces() <= before
    assert not any(path.exists() for path in WRITTEN)
    assert list(tmp_path.iterdir()) == []


def test_there_is_no_network():
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"import socket; socket.create_connection({server.getsockname()!r}, 1)"
        socket.create_connection(server.getsockname(), 1).close()
        assert not Sandbox(1).passes(connect)


@pytest.mark.parametrize(("ended_by", "seconds"), [(signal.SIGINT, 100), (signal.SIGKILL, 1)])
def test_it_ends_with_the_command_that_runs_it_or_when_its_time_is_up(ended_by, seconds, tmp_path):
    before = process_namespaces()
    run = f"from {Sandbox.__module__} import Sandbox; Sandbox({seconds}).passes('while True: pass')"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = subprocess.Popen([sys.executable, "-c", run], env=environment, stderr=subprocess.DEVNULL)
    while process_namespaces() <= before:
        time.sleep(0.02)
    command.send_signal(ended_by)
    command.wait()
    deadline = time.monotonic() + 20
    while not process_namespaces() <= before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process_namespaces() <= before


@pytest.mark.parametrize("tool", ["false", "no-such-tool"])
def test_without_namespaces_nothing_runs(tool, monkeypatch):
    monkeypatch.setattr(Sandbox, "_command", lambda self, box: [tool])
    with pytest.raises(UsageError, match="no sandbox for model-written code: need Linux"):
        Sandbox.tried()
