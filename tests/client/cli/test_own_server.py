"""The chat's own server: started where none listens, and gone with the chat."""

import os
import socket
import subprocess
import sys

import pytest

from outrider_client import Client, ClientConfig
from outrider_client.cli.chat import own_server as module
from outrider_client.cli.chat.own_server import needs_own_server, own_server
from outrider_proto.addresses import free_port, port_of
from outrider_proto.errors import LinkError, UsageError


def test_it_serves_the_chats_pair_and_ends_with_it():
    config = ClientConfig(target="embedded", drafter="eagle3")
    with own_server(config) as address:
        with Client(ClientConfig(server=address)) as client:
            about = client.describe()
        assert "eagle3" in {tap.family for tap in about.taps}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port_of(address)))


WINDOWS = """
import asyncio.unix_events, os, signal, socket, sys, types

ABSENT = set(
    "SIGHUP SIGQUIT SIGKILL SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGCONT SIGPIPE pthread_sigmask sigwait setitimer"
    " setsid fork killpg getpgid setpgid getuid geteuid getgid fchown chown sysconf nice mkfifo getloadavg uname"
    " sched_getaffinity sched_setaffinity pread pwrite statvfs AF_UNIX SO_REUSEPORT".split()
)

class Lacking(types.ModuleType):
    def __getattribute__(self, name):
        if name in ABSENT and sys._getframe(1).f_globals["__name__"].startswith("outrider"):
            raise AttributeError(f"Windows has no {name}")
        return super().__getattribute__(name)

def refuse(*_):
    raise NotImplementedError

os.__class__ = signal.__class__ = socket.__class__ = Lacking
asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = refuse
"""
CHAT = """
from outrider_client import Client, ClientConfig
from outrider_client.cli.app import app
from outrider_client.cli.chat.own_server import own_server
config = ClientConfig(target="embedded", drafter="lookup")
with own_server(config) as address, Client(ClientConfig(address, target="embedded", drafter="lookup")) as client:
    print(client.complete("hello", max_new_tokens=2).reason)
"""


def test_it_starts_where_python_lacks_what_windows_does(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WINDOWS)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", CHAT], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("limit\n", 0), done.stderr


@pytest.mark.slow
def test_one_that_does_not_start_says_why():
    refused = pytest.raises(LinkError, match=r"one for this chat does not start: .*smollm2: not installed")
    with refused, own_server(ClientConfig(target="smollm2", drafter="lookup")):
        pass


def test_only_a_chat_that_nobody_answers_gets_one(monkeypatch):
    default = f"127.0.0.1:{free_port()}"
    monkeypatch.setattr(module, "ClientConfig", lambda: ClientConfig(server=default))
    ours = ClientConfig(server=default, target="embedded")
    assert needs_own_server(ours)
    assert not needs_own_server(ClientConfig(server=default, target="/a/bundle"))
    assert not needs_own_server(ClientConfig(server=f"127.0.0.1:{free_port()}", target="embedded"))
    assert not needs_own_server(ClientConfig(server=default, target="embedded", mode="offline"))
    with pytest.raises(UsageError, match=r"^smollm2: not installed: outrider-models get smollm2$"):
        needs_own_server(ClientConfig(server=default, target="smollm2"))
    with socket.create_server(("127.0.0.1", port_of(default))):
        assert not needs_own_server(ours)
