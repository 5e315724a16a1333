"""A client in a process of its own, which writes one answer after the other and says each; can be stopped and killed.
As a script: other_client.py ADDRESS."""

import asyncio
import json
import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "server")]

from stage import answer, client  # noqa: E402 # its folder is found only now


class OtherClient:
    """Use as an async context manager; it is killed at the end."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._process = None

    async def __aenter__(self):
        command = [sys.executable, __file__, self._address]
        self._process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        return self

    async def answers(self, count: int) -> list[tuple[int, ...]]:
        """The next ones; it goes on meanwhile."""
        return [tuple(json.loads(await self._process.stdout.readline())) for _ in range(count)]

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()

    async def __aexit__(self, *_) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


async def main(address: str) -> None:
    async with client(address) as mine:
        while True:
            print(json.dumps(await answer(mine)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
