"""A server's life: build, start, serve, drain with a deadline, stop. Stop is safe to call twice."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from outrider_proto.errors import UsageError
from outrider_proto.wire import MAX_FRAME_BYTES
from outrider_server.bundle_service import BUNDLES, BundlesService
from outrider_server.bundles import EdgeBundles
from outrider_server.config import ServerConfig
from outrider_server.service import SERVICE, VerifierService
from outrider_server.verifier import Verifier, build_verifier

DRAIN_S = 5.0  # what streams get to finish what is under way
SERVER_OPTIONS = [
    # Room above our own limit, so that a frame somewhat too large gets our status and not the transport's.
    ("grpc.max_receive_message_length", 4 * MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", 4 * MAX_FRAME_BYTES),
    ("grpc.so_reuseport", 0),  # else a second server on the port would silently share it
    # A peer that vanished must free its session: TCP alone would take a quarter of an hour. The first timeout becomes
    # TCP_USER_TIMEOUT and ends at a proxy; behind one only the second counts, whose default is a minute (measured).
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Clients may ping as often as their link needs: by default the third ping without data ends in too_many_pings.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
]


class Server:
    """One verifier behind one port. Use as an async context manager, or start() and stop()."""

    def __init__(
        self, verifier: Verifier, host: str = "127.0.0.1", port: int = 0, bundles: EdgeBundles | None = None
    ) -> None:
        self.verifier = verifier
        self.bundles = bundles
        self.host = host
        self.port = port  # the real one once started
        self._grpc: grpc.aio.Server | None = None
        self._health = health.HealthServicer()

    @classmethod
    def build(cls, config: ServerConfig) -> Server:
        """Load everything. Raises UsageError."""
        verifier = build_verifier(config)
        if not config.edge_bundle:
            return cls(verifier, config.host, config.port)
        bundles = EdgeBundles(config.target, config.drafters, config.edge_weights, config.edge_cache)
        return cls(verifier, config.host, config.port, bundles)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def start(self) -> None:
        """Listen. Raises UsageError when the address is taken or not ours."""
        server = grpc.aio.server(options=SERVER_OPTIONS)
        handlers = (VerifierService(self.verifier).handler(), BundlesService(self.bundles).handler())
        server.add_generic_rpc_handlers(handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (SERVICE, BUNDLES, "grpc.health.v1.Health", reflection.SERVICE_NAME), server
        )
        try:
            self.port = server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise UsageError(f"cannot listen on {self.address}: the port is in use or the address not ours") from error
        await self.verifier.start()
        await server.start()
        self._grpc = server
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)

    async def serve(self, until: asyncio.Event) -> None:
        """Serve until the event is set, then drain and stop."""
        await until.wait()
        await self.drain(DRAIN_S)
        await self.stop()

    async def drain(self, deadline_s: float) -> None:
        """Take nothing new and let streams finish what is under way."""
        if self._grpc is None:
            return
        await self._health.enter_graceful_shutdown()
        self.verifier.drain()
        if self.bundles is not None:
            self.bundles.drain()
        await self._grpc.stop(deadline_s)

    async def stop(self) -> None:
        """End at once whatever is left. Safe twice."""
        server, self._grpc = self._grpc, None
        if server is not None:
            await self.verifier.stop()
            if self.bundles is not None:
                await self.bundles.stop()
            await server.stop(None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.stop()
