"""The chat's own server: started where none listens, and gone with the chat."""

import socket

import pytest

from outrider_client import Client, ClientConfig
from outrider_client.cli.chat import own_server as module
from outrider_client.cli.chat.own_server import needs_own_server, own_server
from outrider_proto.addresses import free_port, port_of
from outrider_proto.errors import LinkError, UsageError


def test_it_serves_the_chats_pair_and_ends_with_it():
    config = ClientConfig(target="embedded", drafter="eagle3")
    with own_server(config) as address:
        with Client(ClientConfig(server=address)) as client:
            about = client.describe()
        assert "eagle3" in {tap.family for tap in about.taps}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port_of(address)))


@pytest.mark.slow
def test_one_that_does_not_start_says_why():
    refused = pytest.raises(LinkError, match=r"one for this chat does not start: .*smollm2: not installed")
    with refused, own_server(ClientConfig(target="smollm2", drafter="lookup")):
        pass


def test_only_a_chat_that_nobody_answers_gets_one(monkeypatch):
    default = f"127.0.0.1:{free_port()}"
    monkeypatch.setattr(module, "ClientConfig", lambda: ClientConfig(server=default))
    ours = ClientConfig(server=default, target="embedded")
    assert needs_own_server(ours)
    assert not needs_own_server(ClientConfig(server=default, target="/a/bundle"))
    assert not needs_own_server(ClientConfig(server=f"127.0.0.1:{free_port()}", target="embedded"))
    assert not needs_own_server(ClientConfig(server=default, target="embedded", mode="offline"))
    with pytest.raises(UsageError, match=r"^smollm2: not installed: outrider-models get smollm2$"):
        needs_own_server(ClientConfig(server=default, target="smollm2"))
    with socket.create_server(("127.0.0.1", port_of(default))):
        assert not needs_own_server(ours)
