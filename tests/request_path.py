"""Counts the project's files and functions that one answer passes, and one cycle of it: `python tests/request_path.py`.

Client and server run in this process, with real gRPC between them, under a profile hook. Needs no particular machine.
"""

import asyncio
import sys
import threading
from pathlib import Path
from types import FrameType

from outrider_client import AsyncClient, ClientConfig
from outrider_models import drafter_dir, target_dir
from outrider_server import Server, ServerConfig

ROOT = Path(__file__).parents[1]
ROOMS = ("proto", "netsim", "drafters", "models", "server", "client")
PROMPT = "Who am I?"
WARM_CYCLES, CYCLES = 3, 1

Place = tuple[str, str]  # file in the repository, function
_seen: set[Place] = set()


def _hook(frame: FrameType, event: str, argument: object) -> None:
    path = frame.f_code.co_filename
    if event == "call" and path.startswith(f"{ROOT}/") and path[len(str(ROOT)) + 1 :].split("/")[0] in ROOMS:
        _seen.add((path[len(str(ROOT)) + 1 :], frame.f_code.co_qualname))


def _take() -> set[Place]:
    taken = _seen.copy()
    _seen.clear()
    return taken


async def paths(mode: str) -> tuple[set[Place], set[Place]]:
    """What a whole answer in `mode` passes, and one cycle in its middle."""
    server = Server.build(ServerConfig(str(target_dir()), (str(drafter_dir("moa")),), port=0))
    async with server, AsyncClient(ClientConfig(server=server.address, mode=mode)) as client:
        await client.complete(PROMPT, max_new_tokens=8)
        _take()
        begun, cycle, verdicts = set(), set(), 0
        async for event in client.generate(PROMPT, max_new_tokens=48):
            if type(event).__name__ == "Cycle":
                verdicts += 1
                passed = _take()
                begun |= passed
                if WARM_CYCLES < verdicts <= WARM_CYCLES + CYCLES:
                    cycle |= passed
        return begun | _take(), cycle


def main() -> None:
    mode = sys.argv[1] if len(sys.argv) > 1 else "stop-and-wait"
    threading.setprofile(_hook)
    sys.setprofile(_hook)
    whole, cycle = asyncio.run(paths(mode))
    sys.setprofile(None)
    for name, places in (("the whole answer", whole), ("one cycle", cycle)):
        print(f"{mode}, {name}: {len({file for file, _ in places})} files, {len(places)} functions")
    for file in sorted({file for file, _ in cycle}):
        print(f"  {file}: {', '.join(sorted(function for path, function in cycle if path == file))}")


if __name__ == "__main__":
    main()
