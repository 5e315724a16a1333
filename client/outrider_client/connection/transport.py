"""What carries frames: a Transport makes Connections. The loop above it knows nothing else of networks."""

from __future__ import annotations

from typing import Protocol

from outrider_proto.frames import ClientFrame, ServerDescription, ServerFrame


class Connection(Protocol):
    """One stream of frames each way."""

    @property
    def bytes_up(self) -> int:
        """Payload bytes sent so far; 0 where nothing is serialised."""

    @property
    def bytes_down(self) -> int: ...

    def send(self, frame: ClientFrame) -> None:
        """Queue a frame; never waits. A broken link shows in `receive`."""

    async def receive(self) -> ServerFrame:
        """The next frame. Raises Refusal, or LinkError once the stream has ended."""

    async def close(self) -> None:
        """Safe to call twice."""


class Transport(Protocol):
    """Makes connections to one server."""

    @property
    def address(self) -> str:
        """For messages."""

    async def connect(self) -> Connection:
        """A fresh connection that shares nothing with earlier ones. Raises LinkError; the caller sets the deadline."""

    async def describe(self) -> ServerDescription:
        """What the server hosts. Raises LinkError or Refusal; the caller sets the deadline."""

    async def close(self) -> None:
        """Safe to call twice."""
