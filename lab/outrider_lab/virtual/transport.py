"""Frames over a virtual link: packed for their sizes, handed over as they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from outrider_lab.virtual.verifier import VirtualVerifier
from outrider_netsim.virtual.link import MessageConnection, VirtualLink
from outrider_proto.errors import LinkError, OutriderError
from outrider_proto.frames import ClientFrame, Codec, Features, Open, ServerDescription, ServerFrame
from outrider_proto.wire import client_frame_to_proto, server_frame_from_proto, server_frame_to_proto

FRAMING_BYTES = 14  # of a message: gRPC's prefix (5) and the header of one HTTP/2 DATA frame (9)


@dataclass(frozen=True, slots=True)
class _Reply:
    """A server frame and the size of its message."""

    frame: ServerFrame
    size_bytes: int


class VirtualTransport:
    """Connections over a virtual link to a verifier at its far end."""

    address = "virtual"

    def __init__(self, link: VirtualLink, verifier: VirtualVerifier) -> None:
        self._link = link
        self._verifier = verifier

    async def connect(self) -> VirtualConnection:
        try:
            return VirtualConnection(await self._link.connect())
        except TimeoutError as error:
            raise LinkError(str(error)) from None

    async def describe(self) -> ServerDescription:
        return self._verifier.describe()

    async def close(self) -> None:
        """Do nothing: no resource outlives its connection."""


class VirtualConnection:
    """One stream; counts messages as gRPC would carry them, without its own framing."""

    def __init__(self, pipe: MessageConnection) -> None:
        self.bytes_up = 0
        self.bytes_down = 0
        self._pipe = pipe

    def send(self, frame: ClientFrame) -> None:
        size = client_frame_to_proto(frame).ByteSize()
        self.bytes_up += size
        # As over gRPC, a broken link shows in `receive`, not in `send`.
        with contextlib.suppress(BrokenPipeError, TimeoutError):
            self._pipe.send(frame, size + FRAMING_BYTES)

    async def receive(self) -> ServerFrame:
        reply: _Reply = await _received(self._pipe)
        self.bytes_down += reply.size_bytes
        return reply.frame

    async def close(self) -> None:
        self._pipe.close()


async def serve(link: VirtualLink, verifier: VirtualVerifier) -> None:
    """Serve a session for every connection at the far end, until cancelled."""
    async with asyncio.TaskGroup() as sessions:
        while True:
            sessions.create_task(_session(await link.accept(), verifier))


async def _session(pipe: MessageConnection, verifier: VirtualVerifier) -> None:
    # A list, since the reader of frames learns the codec that the writer of replies needs.
    codecs: list[Codec] = ["int8"]

    async def incoming() -> AsyncGenerator[ClientFrame, None]:
        with contextlib.suppress(LinkError):
            while True:
                frame = await _received(pipe)
                if isinstance(frame, Open):
                    codecs.append(frame.codec)
                yield frame

    try:
        async for reply in verifier.session(incoming()):
            with contextlib.suppress(BrokenPipeError, TimeoutError):
                _send(pipe, reply, codecs[-1])
    except OutriderError as error:
        # The first error is the cause: later ones are its consequences.
        verifier.fault = verifier.fault or error
    pipe.close()


def _send(pipe: MessageConnection, frame: ServerFrame, codec: Codec) -> None:
    """Send a frame as one message or several, each as the client would read it."""
    for message in server_frame_to_proto(frame, codec):
        size = message.ByteSize()
        # Features lose precision in the codec: the client must get what it would decode.
        piece = server_frame_from_proto(message) if isinstance(frame, Features) else frame
        pipe.send(_Reply(piece, size), size + FRAMING_BYTES)


async def _received(pipe: MessageConnection) -> Any:  # what the other end sent
    try:
        return await pipe.receive()
    except (EOFError, TimeoutError) as error:
        raise LinkError(str(error)) from None
