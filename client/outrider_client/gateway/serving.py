"""Runs a gateway: load the models, listen, serve, stop.

uvicorn waits for a request for as long as its caller likes, and takes connections for as long as there are descriptors.
The server here has a deadline for each part of a request, and a bound on connections: a new one takes the place of the
one that has waited longest for a request, so callers that send none keep nobody out.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import HANDLED_SIGNALS, ServerState

from outrider_client.connection.emulated import emulated_link
from outrider_client.connection.link_state import LinkState
from outrider_client.core.config import ClientConfig
from outrider_client.core.gateway_config import GatewayConfig
from outrider_client.display.messages import print_message
from outrider_client.gateway.app import create_app
from outrider_client.gateway.gateway import Gateway, models_by_drafter
from outrider_client.models.local_models import LocalModels, head_names
from outrider_proto.addresses import counted_as, join_host_port
from outrider_proto.errors import UsageError
from outrider_proto.terminal.log_limit import LogLimit

_KEEP_ALIVE_S = 75  # between two requests of an app
_HEADERS_S = 10  # for the headers of a request to come
_BODY_S = 60  # for its body
_STUCK_S = 60  # for somebody to read on what is written
_STOP_S = 3  # for answers in progress to end
_LAST_S = 1.5  # for all else to end after them
_MOST_CONNECTIONS = 1000
_OWN_DESCRIPTORS = 96  # files, and connections to the server: not for callers
_AT_ONCE = 16  # accepted before their number is looked at
_WAITING = 128  # to be accepted
_EMPTY = "Connection: close\r\nContent-Length: 0\r\n\r\n"
_FULL = f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\n{_EMPTY}".encode()
_LATE = f"HTTP/1.1 408 Request Timeout\r\n{_EMPTY}".encode()


def serve(client: ClientConfig, config: GatewayConfig) -> None:
    """Serve until the process is told to stop. Raises UsageError."""
    models = LocalModels.load(client)
    models.prepare()
    if models.schemas is not None:
        models.schemas.compiler.warm()
    gc.freeze()  # what is loaded stays: else a collection amid a large request goes through it all, and others wait
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(client, config, models))


async def _serve(client: ClientConfig, config: GatewayConfig, models: LocalModels) -> None:
    async with listening(client, config, models) as (server, sockets):
        await server.serve(sockets)


@contextlib.asynccontextmanager
async def listening(
    client: ClientConfig, config: GatewayConfig, models: LocalModels
) -> AsyncIterator[tuple[GatewayServer, list[socket.socket]]]:
    """Yield a server, and the sockets it listens on already, for `server.serve`. Raises UsageError."""
    server = client.server
    async with contextlib.AsyncExitStack() as stack:
        listener, emulated = stack.enter_context(_socket(config)), None
        if config.profile is not None:
            emulated = await stack.enter_async_context(emulated_link(config.profile, server, config.engine))
            client = replace(client, server=emulated.link.address, access=client.access.through(server))

        def tell_mismatch(mismatch: str) -> None:
            print_message(
                f"{server} has other models, and refuses every request: {mismatch}; outrider pull {server} fetches what"
                " fits"
            )

        def tell_state(state: LinkState) -> None:
            if state is LinkState.OFFLINE:
                waits = config.unverified == "hold"
                what = "answers wait for it" if waits else "the drafter writes alone until it is back"
                print_message(f"no link to {server}: {what}")
            elif state is LinkState.ONLINE:
                print_message(f"linked to {server}")

        by_drafter = models_by_drafter(models, head_names(client.drafters))
        gateway = Gateway(client, by_drafter, config, tell_state, tell_mismatch)
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        limit = LogLimit()
        for logger in (logging.getLogger("uvicorn.error"), logging.getLogger("asyncio")):
            logger.addFilter(limit)
            stack.callback(logger.removeFilter, limit)
        served = uvicorn.Config(
            create_app(gateway, emulated),
            http=GatewayProtocol,
            backlog=_AT_ONCE,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="on",  # "auto" would serve on although the start failed
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_S,
        )
        url = f"http://{join_host_port(config.host, listener.getsockname()[1])}"
        print_message(f"gateway at {url}/v1, model {gateway.names[0]}; page at {url}/")
        yield GatewayServer(served, _most_connections()), [listener]


def _socket(config: GatewayConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        listener = socket.create_server((config.host, config.port), family=family, backlog=_WAITING)
    except OSError as error:
        raise UsageError(f"cannot listen on {config.host}:{config.port}: {error.strerror}") from error
    # Connections inherit it. asyncio sets it only for listeners that it creates itself, and without it every second
    # small chunk of an answer would wait for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _most_connections() -> int:
    """Return how many connections there is room for; raises the process's own limit as far as it may."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows, which has no such limit
        return _MOST_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = _MOST_CONNECTIONS + _OWN_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        room = min(room, hard)
    if soft != resource.RLIM_INFINITY and soft < room:
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, hard))
    return max(room - _OWN_DESCRIPTORS, 2)


class _Crowd(ServerState):
    """All connections, of which there are at most `most`, and how many each address has."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.num_of_caller: Counter[str] = Counter()


class GatewayProtocol(H11Protocol):
    """A caller's connection, what it waits for, and since when."""

    server_state: _Crowd

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._phase: tuple[object, ...] = ()
        self._since = self.loop.time()
        self._caller = counted_as(self.client[0]) if self.client else ""
        crowd = self.server_state
        crowd.num_of_caller[self._caller] += 1
        has_half = crowd.num_of_caller[self._caller] > crowd.most // 2
        if (has_half or len(self.connections) > crowd.most) and not self._end_oldest(has_half):
            transport.write(_FULL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        num_of_caller = self.server_state.num_of_caller
        num_of_caller[self._caller] -= 1
        if not num_of_caller[self._caller]:
            del num_of_caller[self._caller]

    def end_if_late(self, now: float) -> None:
        limit_s = self._limit_s
        # A cycle is a request; what is left to write shrinks where somebody reads.
        phase = (limit_s, self.cycle, self.transport.get_write_buffer_size())
        if phase != self._phase:
            self._phase, self._since = phase, now
        if limit_s is None or now - self._since <= limit_s:
            return
        has_answer = self.conn.their_state is h11.SEND_BODY and self.cycle.response_started
        if limit_s == _STUCK_S or has_answer:
            self.transport.abort()
        else:
            self.transport.write(_LATE)
            self.transport.close()

    @property
    def _limit_s(self) -> float | None:
        """How long it may stay as it is."""
        if self.transport.is_closing() or self.flow.write_paused:
            return _STUCK_S
        if self.conn.their_state is h11.SEND_BODY:
            return _BODY_S
        is_begun = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        return _HEADERS_S if is_begun else None

    @property
    def _can_end(self) -> bool:
        """True while no whole request is being answered."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing()

    def _end_oldest(self, of_caller: bool) -> bool:
        """End the other one that has waited longest for a request, of the same address or any. False: all are busy."""
        others = [each for each in _all(self.server_state) if each is not self and each._can_end]
        crowd = [each for each in others if each._caller == self._caller or not of_caller]
        oldest = min(crowd, key=lambda each: each._since, default=None)
        if oldest is not None:
            oldest.transport.abort()
        return oldest is not None


def _all(crowd: ServerState) -> list[GatewayProtocol]:
    return [each for each in crowd.connections if isinstance(each, GatewayProtocol)]


class GatewayServer(uvicorn.Server):
    """uvicorn's server with at most `most` connections, half of them of one address, and deadlines for requests."""

    def __init__(self, config: uvicorn.Config, most: int) -> None:
        super().__init__(config)
        self.server_state = _Crowd(most)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_WAITING)  # asyncio has told the system how many it accepts at a time

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logger = logging.getLogger("uvicorn.error")
        logger.disabled = True  # of each answer that has no time left it would log a traceback
        try:
            await super().shutdown(sockets)
        finally:
            logger.disabled = False

    async def on_tick(self, counter: int) -> bool:
        if counter % 5 == 0:
            now = asyncio.get_running_loop().time()
            for connection in _all(self.server_state):
                connection.end_if_late(now)
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # The next signal ends the process at once, and so does the clock where something hangs: neither needs Python.
        for each in HANDLED_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        faulthandler.dump_traceback_later(_STOP_S + _LAST_S, exit=True, file=open(os.devnull, "w"))  # noqa: SIM115
        super().handle_exit(sig, frame)
