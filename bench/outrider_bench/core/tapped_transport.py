"""Transports whose connections watch, count or change the frames that pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from outrider_client.connection.transport import Connection, Transport
from outrider_proto import verifier_pb2 as pb
from outrider_proto.frames import ClientFrame, Codec, Open, ServerDescription, ServerFrame
from outrider_proto.wire import (
    client_frame_from_proto,
    client_frame_to_proto,
    server_frame_from_proto,
    server_frame_to_proto,
)


class TappedConnection:
    """Passes frames on to another connection; subclasses look at them."""

    def __init__(self, inner: Connection) -> None:
        self._inner = inner

    @property
    def bytes_up(self) -> int:
        return self._inner.bytes_up

    @property
    def bytes_down(self) -> int:
        return self._inner.bytes_down

    def send(self, frame: ClientFrame) -> None:
        self._inner.send(frame)

    async def receive(self) -> ServerFrame:
        return await self._inner.receive()

    async def close(self) -> None:
        await self._inner.close()


TappedT = TypeVar("TappedT", bound=TappedConnection)


class TappedTransport(Generic[TappedT]):
    """Connects through another transport and wraps every connection by `tap`."""

    def __init__(self, inner: Transport, tap: Callable[[Connection], TappedT]) -> None:
        self.address = inner.address
        self.newest: TappedT | None = None
        self._inner = inner
        self._tap = tap

    async def connect(self) -> TappedT:
        self.newest = self._tap(await self._inner.connect())
        return self.newest

    async def describe(self) -> ServerDescription:
        return await self._inner.describe()

    async def close(self) -> None:
        await self._inner.close()


class WiredConnection(TappedConnection):
    """Packs and unpacks frames as on the wire; counts messages as gRPC would carry them, without its own framing."""

    def __init__(self, inner: Connection) -> None:
        super().__init__(inner)
        self._codec: Codec = "int8"
        self._arrived: deque[bytes] = deque()
        self._bytes_up = 0
        self._bytes_down = 0

    @property
    def bytes_up(self) -> int:
        return self._bytes_up

    @property
    def bytes_down(self) -> int:
        return self._bytes_down

    def send(self, frame: ClientFrame) -> None:
        if isinstance(frame, Open):
            self._codec = frame.codec
        data = client_frame_to_proto(frame).SerializeToString()
        self._bytes_up += len(data)
        self._inner.send(client_frame_from_proto(pb.ClientFrame.FromString(data)))

    async def receive(self) -> ServerFrame:
        if not self._arrived:
            frame = await self._inner.receive()
            # Large features take several messages: hand them over one by one, as gRPC would.
            self._arrived += (message.SerializeToString() for message in server_frame_to_proto(frame, self._codec))
        data = self._arrived.popleft()
        self._bytes_down += len(data)
        return server_frame_from_proto(pb.ServerFrame.FromString(data))
