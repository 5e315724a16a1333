"""Runs a gateway: load the models, listen, serve, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import uvicorn

from outrider_client.connection.emulated import emulated_link
from outrider_client.connection.link_state import LinkState
from outrider_client.core.config import ClientConfig
from outrider_client.core.gateway_config import GatewayConfig
from outrider_client.display.messages import print_message
from outrider_client.gateway.app import create_app
from outrider_client.gateway.gateway import Gateway, models_by_drafter
from outrider_client.models.local_models import LocalModels, head_names
from outrider_proto.addresses import join_host_port
from outrider_proto.errors import UsageError

_KEEP_ALIVE_S = 75  # between two requests of an app
_STOP_S = 3  # for answers in progress to end


def serve(client: ClientConfig, config: GatewayConfig) -> None:
    """Serve until the process is told to stop. Raises UsageError."""
    models = LocalModels.load(client)
    models.prepare()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(client, config, models))


async def _serve(client: ClientConfig, config: GatewayConfig, models: LocalModels) -> None:
    async with listening(client, config, models) as (server, sockets):
        await server.serve(sockets)


@contextlib.asynccontextmanager
async def listening(
    client: ClientConfig, config: GatewayConfig, models: LocalModels
) -> AsyncIterator[tuple[uvicorn.Server, list[socket.socket]]]:
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
        served = uvicorn.Config(
            create_app(gateway, emulated),
            log_config=None,
            access_log=False,
            lifespan="on",  # "auto" would serve on although the start failed
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_S,
        )
        url = f"http://{join_host_port(config.host, listener.getsockname()[1])}"
        print_message(f"gateway at {url}/v1, model {gateway.names[0]}; page at {url}/")
        yield uvicorn.Server(served), [listener]


def _socket(config: GatewayConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        listener = socket.create_server((config.host, config.port), family=family, backlog=128)
    except OSError as error:
        raise UsageError(f"cannot listen on {config.host}:{config.port}: {error.strerror}") from error
    # Connections inherit it. asyncio sets it only for listeners that it creates itself, and without it every second
    # small chunk of an answer would wait for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
