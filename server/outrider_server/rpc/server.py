"""The life of a server: build, start, serve, drain with a deadline, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

import grpc
import torch
from grpc_health.v1 import health_pb2

from outrider_drafters.emulation.pace import Pace
from outrider_proto.addresses import join_host_port
from outrider_proto.errors import UsageError
from outrider_proto.wire import MAX_FRAME_BYTES
from outrider_server.bundles.catalogue import EdgeBundles
from outrider_server.config.config import ServerConfig, TelemetryConfig
from outrider_server.engine.hf_model import is_small
from outrider_server.engine.load import load_drafters, load_taps
from outrider_server.parallel.load import load_target
from outrider_server.rpc.bundle_service import BUNDLES, BundlesService
from outrider_server.rpc.service import SERVICE, VerifierService
from outrider_server.rpc.standard_services import HEALTH, Health, Reflection, UnknownMethods
from outrider_server.security.address import check_exposure
from outrider_server.security.authenticator import Authenticator
from outrider_server.security.tls import server_credentials
from outrider_server.sessions.verifier import Verifier
from outrider_server.telemetry.observer import ServerObserver
from outrider_server.telemetry.reporter import TelemetryReporter

_OWN_DESCRIPTORS = 256  # of files, metrics and pipes: not for connections
_LAST_WORDS_S = 1.0  # time for the last statuses and bundle downloads to be sent
SERVER_OPTIONS = [
    # Room above our own limit, so that a frame somewhat too large gets our status and not the transport's.
    ("grpc.max_receive_message_length", 4 * MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", 4 * MAX_FRAME_BYTES),
    ("grpc.so_reuseport", 0),  # otherwise a second server would silently share the port
    # A peer that vanished must free its session: TCP alone would take a quarter of an hour. The first timeout becomes
    # TCP_USER_TIMEOUT and ends at a proxy; behind one only the second counts, whose default is a minute (measured).
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Clients may ping as often as their link needs: by default the third ping without data ends in too_many_pings.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    # Headers hold a key of some 60 bytes and what proxies add. One limit, not gRPC's two with chance between them.
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.absolute_max_metadata_size", 16 * 1024),
    ("grpc.max_connection_idle_ms", 300_000),  # of a connection without a call
    ("grpc.max_concurrent_streams", 1024),  # of a connection; a client has one, a proxy opens more connections
]


class Server:
    """One verifier behind one port. Use as an async context manager, or start() and stop()."""

    def __init__(
        self,
        verifier: Verifier,
        host: str = "127.0.0.1",
        port: int = 0,
        bundles: EdgeBundles | None = None,
        authenticator: Authenticator | None = None,
        reporter: TelemetryReporter | None = None,
    ) -> None:
        self.verifier = verifier
        self.reporter = reporter or TelemetryReporter(TelemetryConfig())
        self.bundles = bundles
        self.authenticator = authenticator or Authenticator()
        self._watching: list[asyncio.Task[None]] = []
        self.host = host
        self.port = port  # the real one once started
        self._grpc: grpc.aio.Server | None = None
        self._health = Health(self.authenticator)

    @classmethod
    def build(cls, config: ServerConfig) -> Server:
        """Load everything a configuration names. Raises UsageError."""
        check_exposure(config.host, config.security)
        authenticator = Authenticator(config.security)
        reporter = TelemetryReporter(config.telemetry)
        build = partial(_build_verifier, config, reporter.observer)
        # A thread that ends takes OpenMP's team for it along: the engine's own would sleep between kernels beside it.
        with ThreadPoolExecutor(1) as thread:
            verifier = thread.submit(build).result() if config.threads else build()
        bundles = None
        if config.edge_bundle:
            bundles = EdgeBundles(config.target, config.drafters, config.edge_weights, config.edge_cache)
        return cls(verifier, config.host, config.port, bundles, authenticator, reporter)

    @property
    def address(self) -> str:
        return join_host_port(self.host, self.port)

    def services(self) -> tuple[VerifierService, BundlesService]:
        """Return our services, whose methods Ray Serve calls too (rayserve/)."""
        bundles = BundlesService(self.bundles, self.authenticator, self.verifier.observer)
        return VerifierService(self.verifier, self.authenticator), bundles

    async def start_verifier(self) -> None:
        """Start everything but the port, for callers that have a port of their own."""
        await self.verifier.start()
        self._watch(self.authenticator.watch(self.verifier.end_unless), "outrider keys")

    async def start(self) -> None:
        """Listen. Raises UsageError when the address is taken or not ours."""
        security = self.authenticator.security
        credentials = server_credentials(security)
        handshake = ("grpc.server_handshake_timeout_ms", round(security.handshake_s * 1000))
        server = grpc.aio.server(options=[*SERVER_OPTIONS, *_most_connections(), handshake])
        server.add_generic_rpc_handlers([service.handler() for service in self.services()])
        observer = self.verifier.observer
        reflection = Reflection((SERVICE, BUNDLES, HEALTH), self.authenticator, observer)
        server.add_generic_rpc_handlers([self._health.handler(observer), reflection.handler()])
        # The last: gRPC asks them in this order.
        server.add_generic_rpc_handlers([UnknownMethods(self.authenticator, observer)])
        try:
            if credentials is None:
                self.port = server.add_insecure_port(self.address)
            else:
                self.port = server.add_secure_port(self.address, credentials)
        except RuntimeError as error:
            raise UsageError(f"cannot listen on {self.address}: the port is in use or the address not ours") from error
        # The verifier first: calls come in as soon as the gRPC server has started.
        self.reporter.start(self.verifier.stats)
        await self.start_verifier()
        await server.start()
        self._grpc = server
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        self._watch(self._until_broken(), "outrider health")

    def _watch(self, work: Coroutine[None, None, None], name: str) -> None:
        self._watching.append(asyncio.create_task(work, name=name))

    async def _until_broken(self) -> None:
        """Report NOT_SERVING once the target cannot run any more."""
        await self.verifier.broken()
        await self._health.enter_graceful_shutdown()

    async def drain(self, deadline_s: float) -> None:
        """Take nothing new, and let streams finish what is under way.

        After `deadline_s` running requests are dropped, too: clients have all they need to resume elsewhere.
        """
        if self._grpc is None:
            return
        await self._health.enter_graceful_shutdown()
        self.verifier.drain()
        if self.bundles is not None:
            self.bundles.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                # Still listening: new callers must hear SHUTTING_DOWN, and health checks NOT_SERVING.
                await self.verifier.drained()
        self.verifier.abandon()
        self._health.end_watches()
        await self._grpc.stop(_LAST_WORDS_S)

    async def stop(self) -> None:
        """End everything that is left, at once. Safe to call twice."""
        server, self._grpc = self._grpc, None
        for watching in self._watching:
            watching.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        if server is not None:
            await self.verifier.stop()
            await self.verifier.close()
            if self.bundles is not None:
                await self.bundles.stop()
            await server.stop(_LAST_WORDS_S if self._health.end_watches() else None)
        await self.reporter.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.stop()


def _most_connections() -> list[tuple[str, int]]:
    """Return gRPC's option that hangs up on connections for which the process would have no descriptor."""
    try:
        import resource
    except ImportError:  # Windows
        return []
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return []
    return [("grpc.max_allowed_incoming_connections", min(max(soft - _OWN_DESCRIPTORS, soft // 2), 1 << 30))]


def _build_verifier(config: ServerConfig, observer: ServerObserver) -> Verifier:
    """Load target, taps and drafters. Raises UsageError."""
    pace = None if config.pace is None else Pace.load(config.pace)
    target = load_target(config)
    if target.schemas is not None:
        target.schemas.warm()
    try:
        if (threads := config.threads or (1 if is_small(target.model) else None)) is not None:
            torch.set_num_threads(threads)
        if target.fused is not None:
            target.fused.has_own_cores = config.threads is not None
        return Verifier(
            target,
            load_taps(target, config.target, config.drafters),
            config.limits,
            pace=pace,
            drafters=load_drafters(target, config.target, config.drafters) if config.server_draft else [],
            observer=observer,
            longest_wait_s=config.security.longest_wait_s,
            fits_context=config.max_context is None,
        )
    except BaseException:
        target.close()
        raise
