"""Real namespaces and their holder: as the user of the tests, and as an unprivileged user if that is root."""

import asyncio
import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outrider_netsim.core.errors import EngineError
from outrider_netsim.namespaces import processes
from outrider_netsim.namespaces.namespaces import Namespaces

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")

NOBODY = 65534


@contextlib.asynccontextmanager
async def started():
    namespaces = Namespaces()
    try:
        await namespaces.start()
    except EngineError as error:
        pytest.skip(str(error))
    try:
        yield namespaces
    finally:
        await namespaces.aclose()


async def test_sockets_of_one_side_reach_each_other_and_not_the_other_side():
    async with started() as namespaces:
        loop = asyncio.get_running_loop()
        server = await namespaces.socket("B")
        server.bind(("127.0.0.1", 0))
        server.listen()
        client, stranger = await namespaces.socket("B"), await namespaces.socket("A")
        with server, client, stranger:
            await loop.sock_connect(client, server.getsockname())
            with pytest.raises(ConnectionRefusedError):
                await loop.sock_connect(stranger, server.getsockname())


@pytest.mark.parametrize(
    ("function", "arguments", "expected", "message"),
    [
        ("outrider_netsim.namespaces.interfaces:set_up_tcp", {"congestion": "vegan"}, EngineError, "has .*cubic"),
        ("outrider_netsim.namespaces.interfaces:set_up", {"name": "absent"}, OSError, "no interface with this name"),
        ("outrider_netsim.namespaces.interfaces:absent", {}, EngineError, "AttributeError"),
        ("os:getpid", {}, EngineError, "not a module of outrider_netsim"),
    ],
)
async def test_what_a_function_raises_comes_back(function, arguments, expected, message):
    async with started() as namespaces:
        with pytest.raises(expected, match=message):
            await namespaces.call("A", function, **arguments)


BEHIND = """
import asyncio, sys
from outrider_netsim.core.errors import EngineError
from outrider_netsim.namespaces.namespaces import Namespaces

COUNTING = '''
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
while not seen:
    time.sleep(0.01)
time.sleep(0.2)  # for a second one to come
sys.exit(len(seen))
'''

async def main():
    async with Namespaces() as namespaces:
        sys.exit(*await namespaces.run([sys.executable, "-c", COUNTING]))
try:
    asyncio.run(main())
except EngineError as error:
    print(error)
"""


@pytest.mark.skipif(not shutil.which("setsid"), reason="needs util-linux, to give a process a terminal")
@pytest.mark.parametrize("by_terminal", [True, False])
def test_an_interrupt_reaches_the_command_once(by_terminal):
    ours, theirs = pty.openpty()
    with open(ours, "r+b", buffering=0) as terminal, open(theirs) as stdin:
        argv = ["setsid", "--ctty", sys.executable, "-c", BEHIND]
        with subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, text=True) as process:
            said = process.stdout.readline().strip()
            if said != "ready":
                process.kill()
                pytest.skip(said)
            if by_terminal:
                terminal.write(b"\x03")
            else:
                process.send_signal(signal.SIGINT)
            assert process.wait(30) == 1


async def test_what_a_command_leaves_running_ends_with_the_namespaces():
    async with started() as namespaces:
        assert await namespaces.run(["sh", "-c", "sleep 1000 & setsid sleep 1001 &"]) == [0]
        holder = processes.descendants(os.getpid())
        assert len([row for row in holder if processes.mark_of(row.pid) == processes.own_mark()]) >= 3
    assert not [row for row in processes.processes() if processes.mark_of(row.pid) == processes.own_mark()]


AS_NOBODY = """
import asyncio, os, socket, sys
from outrider_netsim.core.errors import EngineError
from outrider_netsim.namespaces.namespaces import Namespaces

async def main():
    async with Namespaces() as namespaces:
        (await namespaces.socket("A")).close()
        assert await namespaces.run(["sh", "-c", "test $(id -u) = 65534"]) == [0]
        set_up_tcp = "outrider_netsim.namespaces.interfaces:set_up_tcp"
        await namespaces.call("A", set_up_tcp, congestion="cubic")
        assert await namespaces.run(["grep", "-q", "1", "/proc/sys/net/ipv4/tcp_no_metrics_save"]) == [0]
        connection = await namespaces.socket("A", congestion="cubic")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"cubic")
        connection.close()
        if os.access("/dev/net/tun", os.W_OK):
            os.close(await namespaces.tun("A"))
try:
    asyncio.run(main())
except EngineError as error:
    sys.exit(str(error))
"""


def as_nobody(*wrapper):
    """Run AS_NOBODY as an unprivileged user, with a Python that such a user may execute."""
    python = sys.executable if reachable(Path(sys.executable)) else "/usr/bin/python3"
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": ":".join(filter(None, sys.path))}
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    argv = [*wrapper, *drop, python, "-c", AS_NOBODY]
    return subprocess.run(argv, env=environment, cwd="/", capture_output=True, text=True, timeout=60)


def reachable(path):
    found = path.resolve()
    return all(folder.stat().st_mode & 1 for folder in [found, *found.parents])


@pytest.fixture
def is_root():
    if os.geteuid():
        pytest.skip("needs root, to become an unprivileged user")


@pytest.mark.root
@pytest.mark.usefixtures("is_root")
def test_an_unprivileged_user_has_them_too():
    done = as_nobody()
    if "no network namespace" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.root
@pytest.mark.usefixtures("is_root")
def test_an_unprivileged_user_has_a_tun_device_where_its_file_is_open(tmp_path):
    node = tmp_path / "tun"
    os.mknod(node, 0o20666, os.makedev(10, 200))
    node.chmod(0o666)
    done = as_nobody("unshare", "--mount", "sh", "-c", f'mount --bind {node} /dev/net/tun && exec "$@"', "sh")
    if "no network namespace" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.root
@pytest.mark.usefixtures("is_root")
def test_where_the_machine_refuses_the_message_says_what_to_do(tmp_path):
    changed_root = f'mount --rbind / {tmp_path} && exec chroot {tmp_path} "$@"'  # where the kernel gives none
    done = as_nobody("unshare", "--mount", "sh", "-c", changed_root, "sh")
    assert done.returncode == 1
    assert done.stderr.startswith("this machine allows no network namespace")
    assert "--engine proxy" in done.stderr
    assert not [row for row in processes.processes() if processes.mark_of(row.pid) == processes.own_mark()]
