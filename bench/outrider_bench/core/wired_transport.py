"""A transport whose frames are packed and unpacked as on the wire, and counted: bytes without a network."""

from __future__ import annotations

from collections import deque

from outrider_client.connection.transport import Connection, Transport
from outrider_proto import verifier_pb2 as pb
from outrider_proto.frames import ClientFrame, Codec, Open, ServerDescription, ServerFrame
from outrider_proto.wire import (
    client_frame_from_proto,
    client_frame_to_proto,
    server_frame_from_proto,
    server_frame_to_proto,
)


class WiredConnection:
    """Counts messages as gRPC would carry them, without its own framing."""

    def __init__(self, inner: Connection) -> None:
        self._inner = inner
        self._codec: Codec = "int8"
        self._arrived: deque[bytes] = deque()
        self.bytes_up = 0
        self.bytes_down = 0

    def send(self, frame: ClientFrame) -> None:
        if isinstance(frame, Open):
            self._codec = frame.codec
        data = client_frame_to_proto(frame).SerializeToString()
        self.bytes_up += len(data)
        self._inner.send(client_frame_from_proto(pb.ClientFrame.FromString(data)))

    async def receive(self) -> ServerFrame:
        if not self._arrived:
            frame = await self._inner.receive()
            self._arrived += (message.SerializeToString() for message in server_frame_to_proto(frame, self._codec))
        data = self._arrived.popleft()
        self.bytes_down += len(data)
        return server_frame_from_proto(pb.ServerFrame.FromString(data))

    async def close(self) -> None:
        await self._inner.close()


class WiredTransport:
    """Connections of another transport, wired."""

    def __init__(self, inner: Transport) -> None:
        self.address = inner.address
        self._inner = inner

    async def connect(self) -> WiredConnection:
        return WiredConnection(await self._inner.connect())

    async def describe(self) -> ServerDescription:
        return await self._inner.describe()

    async def close(self) -> None:
        await self._inner.close()
