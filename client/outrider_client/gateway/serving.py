"""Runs a gateway: load the models, listen, serve, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import uvicorn

from outrider_client.connection.emulated import EmulatedLink, emulated_link
from outrider_client.connection.link_state import LinkState
from outrider_client.core.config import ClientConfig
from outrider_client.display.messages import print_message
from outrider_client.gateway.app import create_app
from outrider_client.gateway.gateway import Gateway, GatewayConfig, models_by_drafter
from outrider_client.gateway.text_stream import UnverifiedPolicy
from outrider_client.models.local_models import LocalModels, head_names
from outrider_proto.addresses import is_loopback_host, join_host_port
from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from outrider_netsim import EngineChoice

_KEEP_ALIVE_S = 75  # between two requests of an app
_STOP_S = 3  # for answers in progress to end


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """The address that a gateway listens on, and how it reaches the server.

    Raises UsageError for an address that others could reach without a key.
    """

    client: ClientConfig
    gateway: GatewayConfig
    host: str = "127.0.0.1"
    port: int = 8000
    profile: str | None = None  # of an emulated link to the server; None: no emulation
    engine: EngineChoice = "auto"  # of the emulated link

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise UsageError(f"port={self.port}: need 0 to 65535")
        if not is_loopback_host(self.host) and self.gateway.api_key is None:
            raise UsageError(f"host={self.host}: others can reach it, so give --api-key-file (or --api-key)")


def serve(serving: ServingConfig) -> None:
    """Serve until the process is told to stop. Raises UsageError."""
    models = LocalModels.load(serving.client)
    models.prepare()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(serving, models))


async def _serve(serving: ServingConfig, models: LocalModels) -> None:
    async with listening(serving, models) as (server, sockets):
        await server.serve(sockets)


@contextlib.asynccontextmanager
async def listening(
    serving: ServingConfig, models: LocalModels
) -> AsyncIterator[tuple[uvicorn.Server, list[socket.socket]]]:
    """Yield a server, and the sockets it listens on already, for `server.serve`. Raises UsageError."""
    with _socket(serving) as listener:
        async with _emulated_link(serving) as emulated:
            address = serving.client.server if emulated is None else emulated.address
            access = serving.client.access if emulated is None else serving.client.access.through(serving.client.server)
            client = replace(serving.client, server=address, access=access)
            by_drafter = models_by_drafter(models, head_names(client.drafters))
            gateway = Gateway(
                client,
                by_drafter,
                serving.gateway,
                lambda state: _print_link_state(state, serving.client.server, serving.gateway.unverified),
                lambda mismatch: print_message(
                    f"{serving.client.server} has other models, and refuses every request: {mismatch};"
                    f" outrider pull {serving.client.server} fetches what fits"
                ),
            )
            app = create_app(gateway, emulated, only_loopback=is_loopback_host(serving.host))
            logging.getLogger("uvicorn").setLevel(logging.WARNING)
            config = uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="on",  # "auto" would serve on although the start failed
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_STOP_S,
            )
            _print_address(serving, gateway.names, listener)
            yield uvicorn.Server(config), [listener]


def _socket(serving: ServingConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in serving.host else socket.AF_INET
    try:
        listener = socket.create_server((serving.host, serving.port), family=family, backlog=128)
    except OSError as error:
        raise UsageError(f"cannot listen on {serving.host}:{serving.port}: {error.strerror}") from error
    # Connections inherit it. asyncio sets it only for listeners that it creates itself, and without it every second
    # small chunk of an answer would wait for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


@contextlib.asynccontextmanager
async def _emulated_link(serving: ServingConfig) -> AsyncIterator[EmulatedLink | None]:
    if serving.profile is None:
        yield None
        return
    async with emulated_link(serving.profile, serving.client.server, serving.engine) as link:
        yield link


def _print_address(serving: ServingConfig, names: Sequence[str], listener: socket.socket) -> None:
    url = f"http://{join_host_port(serving.host, listener.getsockname()[1])}"
    print_message(f"gateway at {url}/v1, model {names[0]}; page at {url}/")


def _print_link_state(state: LinkState, server: str, unverified: UnverifiedPolicy) -> None:
    match state:
        case LinkState.OFFLINE:
            what = "answers wait for it" if unverified == "hold" else "the drafter writes alone until it is back"
            print_message(f"no link to {server}: {what}")
        case LinkState.ONLINE:
            print_message(f"linked to {server}")
        case _:
            pass
