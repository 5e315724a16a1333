"""Runs `outrider-server` as often as it is told to, each time in a process of its own: a fork of this one, which has
everything imported. On standard input a line of JSON at a time, {"start": [arguments], "passes": number or null,
"hang": what or null}, {"signal": number} or {"end": true}; each is answered by a line of JSON. After so many passes its
device is lost, or hangs."""

import asyncio
import json
import os
import sys
import time

import torch

import outrider_server.rpc.server  # noqa: F401 - so that forks have it
from outrider_server.cli import serving
from outrider_server.cli.app import main
from outrider_server.engine.target import Target
from outrider_server.security.keys import Keyring


def for_ever(*_) -> None:
    time.sleep(1e6)


def load_for_ever(_) -> None:
    print("not yet ready on any port", file=sys.stderr, flush=True)
    for_ever()


def lose_device(*_) -> None:
    raise torch.AcceleratorError("CUDA error: device-side assert triggered")


def end_well(passes: int, end) -> None:
    """Let every pass but the first ones `end` as on a GPU that is lost, or that hangs."""
    forward, left = Target.forward, iter(range(passes))
    Target.forward = lambda *arguments: end() if next(left, None) is None else forward(*arguments)


def hang(what: str) -> None:
    """Let something hang as soon as the server is ready, or before."""
    if what == "its load":
        serving.Server.build = load_for_ever
        return
    announce = serving._announce

    def announced(*arguments) -> None:
        announce(*arguments)
        loop = asyncio.get_running_loop()
        match what:
            case "the event loop":
                loop.call_later(0.2, for_ever)
            case "all threads of the loop":
                for _ in range(64):
                    loop.run_in_executor(None, for_ever)
            case "the disk under its log":
                os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
            case "the disk with its keys":
                Keyring.refresh = for_ever

    serving._announce = announced


def born(arguments: list[str], passes: int | None, what: str | None) -> tuple[int, int]:
    """Process id, and what it says on standard error."""
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        os.dup2(said, 2)
        if passes is not None:
            end_well(passes, for_ever if what == "a pass" else lose_device)
        if what is not None:
            hang(what)
        sys.argv = ["outrider-server", *arguments]
        main()  # ends by SystemExit
    os.close(said)
    return child, heard


def run() -> None:
    torch.set_num_threads(1)
    child, heard = 0, None
    for line in sys.stdin:
        match json.loads(line):
            case {"start": arguments, "passes": passes, "hang": what}:
                child, descriptor = born(arguments, passes, what)
                heard = os.fdopen(descriptor)
                answer = heard.readline()
            case {"signal": number}:
                os.kill(child, number)
                answer = ""
            case {"end": _}:
                answer = {"said": heard.read(), "code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    run()
