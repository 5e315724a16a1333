"""The sockets a gateway listens on."""

from __future__ import annotations

import socket

from outrider_client.core.config import ClientConfig
from outrider_client.gateway.gateway import GatewayConfig
from outrider_client.gateway.serving import ServingConfig, listening


async def test_small_chunks_do_not_wait_for_acknowledgements(models):
    serving = ServingConfig(ClientConfig("127.0.0.1:1"), GatewayConfig(), port=0)
    async with listening(serving, models) as (_, [listener]):
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
