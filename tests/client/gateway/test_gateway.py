"""The names of the model, and the sockets a gateway listens on."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from outrider_client.core.config import ClientConfig
from outrider_client.gateway.gateway import GatewayConfig, target_name
from outrider_client.gateway.serving import ServingConfig, listening
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import UsageError


@pytest.mark.parametrize("target", ["embedded", "smollm2", "Qwen/Qwen2.5-0.5B-Instruct"])
def test_a_target_with_a_name_keeps_it(target):
    assert target_name(target) == target


def test_of_a_path_only_the_last_part_is_told(tmp_path, monkeypatch):
    (tmp_path / "lab" / "tiny").mkdir(parents=True)
    (tmp_path / "lab" / "tiny-Q4.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert target_name(tmp_path / "lab" / "tiny") == target_name("lab/tiny") == "tiny"
    assert target_name(Path("lab/tiny-Q4.gguf")) == "tiny-Q4"
    monkeypatch.chdir(tmp_path / "lab" / "tiny")
    assert target_name(".") == "tiny"
    assert target_name(target_dir()) == "target"


def test_a_bundle_has_its_targets_name(tmp_path):
    (tmp_path / "bundle.json").write_text(json.dumps({"target": "tiny"}))
    assert target_name(tmp_path) == "tiny"


def test_a_name_has_letters():
    with pytest.raises(UsageError, match="name is empty"):
        GatewayConfig(names=("a", ""))


async def test_small_chunks_do_not_wait_for_acknowledgements(models):
    serving = ServingConfig(ClientConfig("127.0.0.1:1"), GatewayConfig(), port=0)
    async with listening(serving, models) as (_, [listener]):
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
