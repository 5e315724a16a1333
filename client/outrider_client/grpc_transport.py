"""The real transport: one bidirectional gRPC stream a session, a fresh channel a connection.

gRPC's own reconnecting waits for up to two minutes and shares that wait between channels, so nothing here relies on it:
each connection has its own subchannel, fails at the first refusal, and is thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import grpc

from outrider_client.outbox import Outbox
from outrider_proto import verifier_pb2 as pb
from outrider_proto import wire
from outrider_proto.errors import LinkError, UsageError
from outrider_proto.frames import ClientFrame, ServerDescription, ServerFrame
from outrider_proto.status import error_from_rpc
from outrider_proto.verifier_pb2_grpc import VerifierStub

if TYPE_CHECKING:
    ServerStream = grpc.aio.StreamStreamCall[pb.ClientFrame, pb.ServerFrame]

# Defaults kept after measuring (docs/operations.md): TCP_NODELAY, bdp_probe, windows. No keepalive: it stops after two
# pings without data, and heartbeat.py is quicker.
CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", 4 * wire.MAX_FRAME_BYTES),
    ("grpc.max_receive_message_length", 2 * wire.MAX_FRAME_BYTES),
)


class GrpcConnection:
    """One stream on a channel of its own."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.bytes_up = 0
        self.bytes_down = 0
        self._address = address
        self._channel = channel
        self._outbox = Outbox()
        self._call: ServerStream | None = _stub(channel).Session(self._messages())

    async def wait_until_connected(self) -> None:
        """Raises LinkError when the server cannot be reached."""
        with translated(f"cannot reach {self._address}"):
            await self._stream.wait_for_connection()

    def send(self, frame: ClientFrame) -> None:
        self._outbox.put(frame)

    async def receive(self) -> ServerFrame:
        with translated(self._address):
            try:
                message = await self._stream.read()
            except asyncio.CancelledError as cancelled:
                raise cancelled.with_traceback(None) from None  # it would hold the call: see close
        if not isinstance(message, pb.ServerFrame):
            raise LinkError(f"{self._address}: the server has ended the stream")
        self.bytes_down += message.ByteSize()
        return wire.server_frame_from_proto(message)

    async def close(self) -> None:
        """Safe to call twice."""
        self._outbox.close()
        if self._call is not None:
            self._call.cancel()
            await self._channel.close()
        self._call = None  # gRPC holds the line open for as long as anybody holds the call

    @property
    def _stream(self) -> ServerStream:
        if self._call is None:
            raise LinkError(f"{self._address}: the connection is closed")
        return self._call

    async def _messages(self) -> AsyncIterator[pb.ClientFrame]:
        async for frame in self._outbox.frames():
            message = wire.client_frame_to_proto(frame)
            self.bytes_up += message.ByteSize()
            yield message


class GrpcTransport:
    """Connections to the server at `address` (host:port)."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"server={address!r}: need HOST:PORT")
        self.address = address

    async def connect(self) -> GrpcConnection:
        connection = GrpcConnection(self.address, self.channel())
        try:
            await connection.wait_until_connected()
        except BaseException:
            await connection.close()
            raise
        return connection

    async def describe(self) -> ServerDescription:
        async with self.channel() as channel:
            with translated(f"cannot reach {self.address}"):
                message = await _stub(channel).Describe(pb.DescribeRequest())
        return wire.description_from_proto(message)

    async def measure(self) -> float:
        """Seconds of a call's way there and back on a fresh connection that stands. Raises as `describe`."""
        async with self.channel() as channel:
            with translated(f"cannot reach {self.address}"):
                await _stub(channel).Describe(pb.DescribeRequest())
                started = time.perf_counter()
                await _stub(channel).Describe(pb.DescribeRequest())
        return time.perf_counter() - started

    async def close(self) -> None:
        """Nothing outlives its connection."""

    def channel(self) -> grpc.aio.Channel:
        """A fresh one; the caller closes it."""
        return grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)


def _stub(channel: grpc.aio.Channel) -> VerifierStub:
    return VerifierStub(channel)  # type: ignore[no-untyped-call] # generated without annotations


@contextlib.contextmanager
def translated(where: str) -> Iterator[None]:
    """gRPC's errors as ours; a link's fault says where."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        ours = error_from_rpc(error)
        raise (LinkError(f"{where}: {ours}") if isinstance(ours, LinkError) else ours) from error
