"""The names of the model, and the sockets a gateway listens on."""

from __future__ import annotations

import socket
from pathlib import Path

from outrider_client.core.config import ClientConfig
from outrider_client.core.gateway_config import GatewayConfig
from outrider_client.gateway.gateway import target_name
from outrider_client.gateway.serving import listening
from outrider_models.core.embedded import target_dir


def test_of_a_path_only_the_last_part_is_told(tmp_path, monkeypatch):
    (tmp_path / "lab" / "tiny").mkdir(parents=True)
    (tmp_path / "lab" / "tiny-Q4.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert target_name(tmp_path / "lab" / "tiny") == target_name("lab/tiny") == "tiny"
    assert target_name(Path("lab/tiny-Q4.gguf")) == "tiny-Q4"
    monkeypatch.chdir(tmp_path / "lab" / "tiny")
    assert target_name(".") == "tiny"
    assert target_name(target_dir()) == "target"


async def test_small_chunks_do_not_wait_for_acknowledgements(models):
    async with listening(ClientConfig("127.0.0.1:1"), GatewayConfig(port=0), models) as (_, [listener]):
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
