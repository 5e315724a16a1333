"""The client's transport over the pipes of a virtual link."""

import contextlib

from outrider_proto.errors import LinkError

FRAME_BYTES = 150  # about what a small frame takes with gRPC's own headers


class VirtualTransport:
    """Connections over a virtual link."""

    address = "virtual"

    def __init__(self, link, verifier):
        self._link = link
        self._verifier = verifier

    async def connect(self):
        try:
            return VirtualConnection(await self._link.connect())
        except TimeoutError:
            raise LinkError("no answer") from None

    async def describe(self):
        return self._verifier.describe()

    async def close(self):
        pass


class VirtualConnection:
    bytes_up = bytes_down = 0

    def __init__(self, pipe):
        self._pipe = pipe

    def send(self, frame):
        with contextlib.suppress(BrokenPipeError, TimeoutError):
            self._pipe.send(frame, FRAME_BYTES)

    async def receive(self):
        return await received(self._pipe)

    async def close(self):
        self._pipe.close()


async def received(pipe):
    try:
        return await pipe.receive()
    except (EOFError, TimeoutError) as error:
        raise LinkError(str(error)) from None
