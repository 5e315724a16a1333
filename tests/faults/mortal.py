"""A server in a process that can be killed, stopped and started on its port again: tests/client/mortal_server.py."""

import asyncio
import socket
import sys
from pathlib import Path

from stage import DRAFTER, TARGET

_SCRIPT = Path(__file__).parents[1] / "client" / "mortal_server.py"


class MortalServer:
    """Use as an async context manager; tell() it to start."""

    def __init__(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            self._port = unused.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        self._process = None

    async def __aenter__(self):
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        command = [sys.executable, str(_SCRIPT), str(TARGET), str(DRAFTER), str(self._port)]
        self._process = await asyncio.create_subprocess_exec(*command, **pipes)
        assert await self._process.stdout.readline() == b"loaded\n"
        return self

    async def tell(self, word: str) -> None:
        """start, kill, stop or cont."""
        self._process.stdin.write(f"{word}\n".encode())
        assert await self._process.stdout.readline() == b"done\n"

    async def __aexit__(self, *_) -> None:
        self._process.stdin.close()
        await self._process.wait()
