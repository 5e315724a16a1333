"""Access to a server: options that go together, unusable files, and keys that are never sent where they must not be."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider_client import Access, ClientConfig
from outrider_client.cli.app import app
from outrider_client.connection.grpc_transport import GrpcTransport
from outrider_proto.errors import OutriderError, UsageError

SECRET = "outrider.a.TOPSECRET"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    monkeypatch.delenv("OUTRIDER_KEY", raising=False)
    monkeypatch.delenv("OUTRIDER_KEY_FILE", raising=False)


@pytest.mark.parametrize(
    "server", ["203.0.113.1:50051", "[2001:db8::1]:50051", "server.example:1", "localhost.example:1"]
)
def test_a_key_is_never_sent_unencrypted_unless_allowed(server):
    for access in (Access(key=SECRET), Access(key_file=Path("/nowhere"))):
        for reach in (lambda a=access: ClientConfig(server, access=a), lambda a=access: GrpcTransport(server, a)):
            with pytest.raises(UsageError, match="unencrypted") as refused:
                reach()
            assert "TOPSECRET" not in str(refused.value)
    ClientConfig(server, access=Access(key=SECRET, tls=True))
    ClientConfig(server, access=Access(key=SECRET, key_unencrypted=True))
    ClientConfig(server)


@pytest.mark.parametrize("server", ["127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1"])
def test_on_this_machine_it_may_and_no_configuration_shows_its_key(server):
    config = ClientConfig(server, access=Access(key=SECRET))
    assert "TOPSECRET" not in repr(config) + str(config.access)


def test_a_key_is_read_from_its_file_for_every_connection(tmp_path):
    file = tmp_path / "key"
    access = Access(key_file=file)
    file.write_text(f"{SECRET}\n")
    assert access.metadata() == (("authorization", f"Bearer {SECRET}"),)
    file.write_text("outrider.a.other")
    assert access.metadata() == (("authorization", "Bearer outrider.a.other"),)
    assert Access().metadata() == ()


@pytest.mark.parametrize(
    "text", ["", "\n", "TOPSECRET and more", "TOPSECRET\nTOPSECRET", "TOPSECRET\x01", "TOPSECRET\xe4", "T" * 300]
)
def test_what_is_no_key_is_refused_without_saying_what_it_is(tmp_path, text):
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(UsageError, match="holds no key") as refused:
        Access(key_file=file).metadata()
    assert "TOPSECRET" not in str(refused.value)
    if text.strip():
        with pytest.raises(UsageError, match="holds no key") as refused:
            Access(key=text)
        assert "TOPSECRET" not in str(refused.value)


def test_files_that_are_not_there_or_make_no_sense(tmp_path):
    junk = tmp_path / "junk"
    junk.write_text("junk")
    for access, complaint in (
        (Access(ca=tmp_path / "none"), "ca=.*cannot be read"),
        (Access(ca=junk), "ca=.*PEM"),
        (Access(client_cert=junk, client_key=junk), "client-cert=.*PEM"),
        (Access(client_cert=junk, client_key=tmp_path / "none"), "client-key=.*none"),
    ):
        with pytest.raises(UsageError, match=complaint):
            GrpcTransport("server.example:1", access).channel()


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [({"client_cert": "x"}, "go together"), ({"key": "x", "key_file": "y"}, "give one of them")],
)
def test_options_that_do_not_go_together(fields, complaint):
    with pytest.raises(UsageError, match=complaint):
        Access(**fields)


@pytest.mark.parametrize("command", [["generate", "x"], ["chat"], ["gateway"], ["describe"], ["pull"]])
def test_every_command_that_reaches_a_server_guards_its_key(command, monkeypatch):
    monkeypatch.setenv("OUTRIDER_KEY", SECRET)
    where = ["203.0.113.1"] if command == ["pull"] else ["--server", "203.0.113.1"]
    result = CliRunner().invoke(app, [*command, *where])
    assert isinstance(result.exception, UsageError)
    assert "the key would be sent unencrypted" in str(result.exception)
    assert "TOPSECRET" not in result.output + repr(result.exception)


@pytest.mark.parametrize("command", ["generate", "chat", "gateway", "describe", "pull"])
def test_no_command_takes_the_key_itself(command):
    result = CliRunner().invoke(app, [command, "--key", SECRET])
    assert result.exit_code == 2
    assert "No such option" in result.output


async def test_what_goes_to_this_machine_goes_through_no_proxy(monkeypatch):
    """Else the key that may go over loopback in the open would go to the proxy in the open."""
    reached: asyncio.Queue[str] = asyncio.Queue()

    async def listen(name: str) -> asyncio.Server:
        def come(_, writer: asyncio.StreamWriter) -> None:
            reached.put_nowait(name)
            writer.close()

        return await asyncio.start_server(come, "127.0.0.1")

    async with await listen("proxy") as proxy, await listen("server") as server, asyncio.timeout(60):
        for name in ("no_grpc_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        ports = [each.sockets[0].getsockname()[1] for each in (proxy, server)]
        for name in ("grpc_proxy", "https_proxy", "http_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{ports[0]}")
        with pytest.raises(OutriderError):
            await GrpcTransport(f"127.0.0.1:{ports[1]}", Access(key=SECRET)).connect()
        assert await reached.get() == "server"
