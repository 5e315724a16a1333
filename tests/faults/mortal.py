"""A server that can be killed and started again within a second: each life is a fork of a process that has everything
loaded, itself a fork of one that has everything imported."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

import torch
from stage import DRAFTER, TARGET

from outrider_drafters.load import load_tap
from outrider_proto.addresses import free_port
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

_FORKS = multiprocessing.get_context("forkserver")


class MortalServer:
    """Use as an async context manager; tell it to "start", "kill", "stop" (to stand still) or "cont" (to go on)."""

    def __init__(self, dtype: str = "float32") -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._words, theirs = _FORKS.Pipe()
        _FORKS.set_forkserver_preload(["outrider_server.rpc.server"])
        self._process = _FORKS.Process(target=_rule, args=(str(TARGET), str(DRAFTER), dtype, port, theirs), daemon=True)
        self._process.start()
        theirs.close()

    async def __aenter__(self):
        return self

    async def tell(self, word: str) -> None:
        self._words.send(word)
        assert await asyncio.to_thread(self._words.recv) == "done"

    async def __aexit__(self, *_) -> None:
        self._words.close()
        await asyncio.to_thread(self._process.join)
        self._process.close()


async def _serve(target: Target, tap, port: int, started: int) -> None:
    async with Server(Verifier(target, [tap]), port=port):
        os.write(started, b"x")
        await asyncio.Event().wait()


def _born(target: Target, tap, port: int) -> int:
    """Process id of a server that listens."""
    heard, started = os.pipe()
    child = os.fork()
    if child == 0:
        asyncio.run(_serve(target, tap, port, started))
    os.close(started)
    if os.read(heard, 1) != b"x":
        raise SystemExit("the server did not start")
    os.close(heard)
    return child


def _rule(target_dir: str, drafter_dir: str, dtype: str, port: int, words: Connection) -> None:
    torch.set_num_threads(1)
    target, tap = Target.load(target_dir, dtype), load_tap(drafter_dir, target_dir)
    child = 0
    try:
        while True:
            match words.recv():
                case "start":
                    child = _born(target, tap, port)
                case "kill" if child:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    child = 0
                case word if child:
                    os.kill(child, signal.SIGSTOP if word == "stop" else signal.SIGCONT)
            words.send("done")
    except EOFError:  # closed
        pass
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
