"""A server in a process that can be killed, stopped and started on its port again, for tests whose loop goes on."""

import asyncio

import mortal_server
from stage import DRAFTER, TARGET


class MortalServer(mortal_server.MortalServer):
    """Use as an async context manager; tell() it to start."""

    def __init__(self) -> None:
        super().__init__(TARGET, DRAFTER)

    async def __aenter__(self):
        return self

    async def tell(self, word: str) -> None:
        await asyncio.to_thread(super().tell, word)

    async def __aexit__(self, *_) -> None:
        await asyncio.to_thread(self.close)
