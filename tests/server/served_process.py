"""Runs `outrider-server` as often as it is told to, each time in a process of its own: a fork of this one, which has
everything imported. On standard input a line of JSON at a time, {"start": [arguments], "passes": number or null},
{"signal": number} or {"end": true}; each is answered by a line of JSON. After so many passes its device is lost."""

import json
import os
import sys

import torch

import outrider_server.rpc.server  # noqa: F401 - so that forks have it
from outrider_server.cli.app import main
from outrider_server.engine.target import Target


def lose_device(passes: int) -> None:
    """Let every pass but the first ones fail as on a GPU that is lost."""
    forward, left = Target.forward, iter(range(passes))

    def failing(*arguments):
        if next(left, None) is None:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        return forward(*arguments)

    Target.forward = failing


def born(arguments: list[str], passes: int | None) -> tuple[int, int]:
    """Process id, and what it says on standard error."""
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        os.dup2(said, 2)
        if passes is not None:
            lose_device(passes)
        sys.argv = ["outrider-server", *arguments]
        main()  # ends by SystemExit
    os.close(said)
    return child, heard


def run() -> None:
    torch.set_num_threads(1)
    child, heard = 0, None
    for line in sys.stdin:
        match json.loads(line):
            case {"start": arguments, "passes": passes}:
                child, descriptor = born(arguments, passes)
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
