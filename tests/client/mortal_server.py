"""A server that can be killed and started again within a second: each life is a fork of a process that has everything
loaded. Usage: mortal_server.py TARGET DRAFTER PORT; then a line at a time on standard input: "start", "kill", "stop"
(to stand still) or "cont" (to go on)."""

import asyncio
import os
import signal
import sys

import torch

from outrider_drafters.load import load_tap
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier


async def serve(target: Target, tap, port: int, started: int) -> None:
    async with Server(Verifier(target, [tap]), port=port):
        os.write(started, b"x")
        await asyncio.Event().wait()


def born(target: Target, tap, port: int) -> int:
    """Process id of a server that listens."""
    heard, started = os.pipe()
    child = os.fork()
    if child == 0:
        asyncio.run(serve(target, tap, port, started))
    os.close(started)
    if os.read(heard, 1) != b"x":
        raise SystemExit("the server did not start")
    os.close(heard)
    return child


def main() -> None:
    torch.set_num_threads(1)
    target_dir, drafter_dir, port = sys.argv[1:]
    target, tap = Target.load(target_dir), load_tap(drafter_dir, target_dir)
    child = 0
    print("loaded", flush=True)
    try:
        for line in sys.stdin:
            if line.strip() == "start":
                child = born(target, tap, int(port))
            elif child and line.strip() == "kill":
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                child = 0
            elif child:
                os.kill(child, signal.SIGSTOP if line.strip() == "stop" else signal.SIGCONT)
            print("done", flush=True)
    finally:
        if child:
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
