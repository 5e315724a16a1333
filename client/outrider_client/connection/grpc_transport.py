"""The gRPC transport: one bidirectional stream for each session, a fresh channel for each connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import grpc

from outrider_client.connection.access import PLAIN, Access, Metadata, server_address
from outrider_client.connection.diagnosis import TrustError, explain_tls_failure
from outrider_client.connection.transport import SendQueue
from outrider_proto import verifier_pb2 as pb
from outrider_proto import wire
from outrider_proto.addresses import host_of, is_loopback_host
from outrider_proto.description import description_from_proto
from outrider_proto.errors import LinkError, UsageError
from outrider_proto.frames import SESSION_HEADER, ClientFrame, ServerDescription, ServerFrame
from outrider_proto.status import error_from_rpc
from outrider_proto.verifier_pb2_grpc import VerifierStub

if TYPE_CHECKING:
    ServerStream = grpc.aio.StreamStreamCall[pb.ClientFrame, pb.ServerFrame]

# gRPC's own reconnecting waits for up to two minutes and shares that wait between channels. So each connection gets a
# subchannel of its own, fails at the first refusal and is thrown away.
# Defaults, kept after measuring: TCP_NODELAY, bdp_probe, windows. No keepalive: it stops after two
# pings without data, and heartbeat.py is quicker.
CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", 4 * wire.MAX_FRAME_BYTES),
    ("grpc.max_receive_message_length", 2 * wire.MAX_FRAME_BYTES),
)

# Ignores http_proxy and the like: what is sent to this machine itself may hold an unencrypted key, which no proxy may
# see.
_NO_PROXY = ("grpc.enable_http_proxy", 0)

# grpc.aio puts this in the place of the server's own status where a stream is refused while a message is being sent.
_SENDING_FAILED = "Internal error from Core"
_REFUSAL_S = 5.0
_processes: set[int] = set()  # that have opened channels: this one, or the one that it is a fork of


class GrpcConnection:
    """One stream on its own channel."""

    def __init__(self, address: str, channel: grpc.aio.Channel, metadata: Metadata = ()) -> None:
        self.bytes_up = 0
        self.bytes_down = 0
        self._address = address
        self._channel = channel
        self._outbox = SendQueue[pb.ClientFrame]()
        self._metadata = metadata
        self._call: ServerStream | None = _stub(channel).Session(self._messages(), metadata=metadata)

    async def wait_until_connected(self) -> None:
        """Wait until the server is reached. Raises LinkError."""
        with translate_errors(f"cannot reach {self._address}"):
            await self._stream.wait_for_connection()

    def send(self, frame: ClientFrame) -> None:
        try:
            self._outbox.put(wire.client_frame_to_proto(frame))
        except TypeError as error:  # told here: in the stream it would look like a broken link, again and again
            raise UsageError(f"a value cannot be sent: {error}") from error

    async def receive(self) -> ServerFrame:
        with translate_errors(self._address):
            try:
                message = await self._stream.read()
            except grpc.aio.AioRpcError as error:
                if error.details() == _SENDING_FAILED and not self.bytes_down:
                    # Another call tells why the stream was refused, if it was.
                    request = pb.DescribeRequest()
                    await _stub(self._channel).Describe(request, metadata=self._metadata, timeout=_REFUSAL_S)
                raise
            except asyncio.CancelledError as cancelled:
                # The traceback's frames hold the call, and gRPC keeps the connection open while anything does.
                raise cancelled.with_traceback(None) from None
        if not isinstance(message, pb.ServerFrame):
            raise LinkError(f"{self._address}: the server ended the stream")
        self.bytes_down += message.ByteSize()
        return wire.server_frame_from_proto(message)

    async def close(self) -> None:
        """Safe to call twice."""
        self._outbox.close()
        if self._call is not None:
            self._call.cancel()
            await self._channel.close()
        # gRPC keeps the TCP connection open for as long as anything references the call.
        self._call = None

    @property
    def _stream(self) -> ServerStream:
        if self._call is None:
            raise LinkError(f"{self._address}: the connection is closed")
        return self._call

    async def _messages(self) -> AsyncIterator[pb.ClientFrame]:
        async for message in self._outbox.items():
            self.bytes_up += message.ByteSize()
            yield message


class GrpcTransport:
    """Opens the connections of one session to the server at `address`. Raises UsageError."""

    def __init__(self, address: str, access: Access = PLAIN) -> None:
        self.address = server_address(address)
        access.check_for(self.address)
        self.access = access
        self._was_reached = False
        self._session_key = secrets.token_hex(16)

    async def connect(self) -> GrpcConnection:
        metadata = (*self.access.metadata(), (SESSION_HEADER, self._session_key))
        connection = GrpcConnection(self.address, self.channel(), metadata)
        try:
            async with self.explain_failures():
                await connection.wait_until_connected()
        except BaseException:
            await connection.close()
            raise
        return connection

    async def describe(
        self, channel: grpc.aio.Channel | None = None, timeout_s: float | None = None
    ) -> ServerDescription:
        """Ask on `channel`, or on one for this call alone."""
        if channel is None:
            async with self.channel() as channel:
                return await self.describe(channel, timeout_s)
        async with self.explain_failures():
            with translate_errors(f"cannot reach {self.address}"):
                request = pb.DescribeRequest()
                message = await _stub(channel).Describe(request, metadata=self.access.metadata(), timeout=timeout_s)
        return description_from_proto(message)

    async def close(self) -> None:
        """Do nothing: no resource outlives its connection."""

    def channel(self) -> grpc.aio.Channel:
        """Open a fresh channel, which the caller closes. Raises UsageError."""
        if _processes and os.getpid() not in _processes:
            raise UsageError("gRPC works in no fork of a process that has used it: start processes by spawn")
        _processes.add(os.getpid())
        credentials = self.access.credentials()
        options: list[tuple[str, int | str]] = [*CHANNEL_OPTIONS]
        if is_loopback_host(host_of(self.address)):
            options.append(_NO_PROXY)
        if credentials is None:
            return grpc.aio.insecure_channel(self.address, options=options)
        if (name := self.access.server_name) is not None:
            options.append(("grpc.ssl_target_name_override", name))
        return grpc.aio.secure_channel(self.address, credentials, options=options)

    @contextlib.asynccontextmanager
    async def explain_failures(self) -> AsyncIterator[None]:
        """Explain TLS failures of a connection's first call: a TrustError where the server was never reached."""
        try:
            yield
        except LinkError as error:
            meaning = await explain_tls_failure(self.address, self.access, str(error))
            if meaning is None:
                raise
            message = f"cannot reach {self.address}: {meaning}"
            # A server that was reached before stays a LinkError: a captive portal may answer in its place for now.
            raise (LinkError(message) if self._was_reached else TrustError(message)) from error
        self._was_reached = True


class GrpcProbe:
    """Measures round trips to a server, on one connection."""

    def __init__(self, transport: GrpcTransport) -> None:
        self._transport = transport
        self._channel: grpc.aio.Channel | None = None

    async def measure(self) -> float:
        """Return the time that a call takes, in seconds. Raises LinkError, Refusal or UsageError."""
        if self._channel is not None:
            try:
                return await self._call(self._channel)
            except LinkError:  # the server may have been restarted: a new connection tells
                await self.close()
        self._channel = self._transport.channel()
        await self._call(self._channel)  # it also pays for TCP, TLS and HTTP/2, so it is not the one that counts
        return await self._call(self._channel)

    async def close(self) -> None:
        """Close the connection. Safe to call twice; `measure` opens another one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _call(self, channel: grpc.aio.Channel) -> float:
        started = time.perf_counter()
        await self._transport.describe(channel)
        return time.perf_counter() - started


def _stub(channel: grpc.aio.Channel) -> VerifierStub:
    return VerifierStub(channel)  # type: ignore[no-untyped-call] # generated without annotations


@contextlib.contextmanager
def translate_errors(where: str) -> Iterator[None]:
    """Translate gRPC's errors into ours; a LinkError names `where`."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        ours = error_from_rpc(error)
        raise (LinkError(f"{where}: {ours}") if isinstance(ours, LinkError) else ours) from error
