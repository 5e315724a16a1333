"""Certificates for development: they verify, for the names they were made for; keys are private; nothing is lost."""

import stat
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.x509 import DNSName, IPAddress, load_pem_x509_certificate
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from typer.testing import CliRunner

from outrider_proto.errors import UsageError
from outrider_server.cli.app import app
from outrider_server.config.config import SecurityConfig
from outrider_server.security.tls import server_credentials


def command(*options: str):
    return CliRunner().invoke(app, ["certs", *options])


def read(path) -> x509.Certificate:
    return load_pem_x509_certificate(path.read_bytes())


@pytest.fixture
def made(tmp_path):
    result = command("--host", "server.example", "--host", "203.0.113.5", "--host", "::1", "--out", str(tmp_path))
    assert result.exit_code == 0
    return tmp_path


def test_a_servers_certificate_verifies_for_its_names_alone(made):
    store, server = Store([read(made / "ca.pem")]), read(made / "server.pem")
    for name in (DNSName("server.example"), IPAddress(ip_address("203.0.113.5")), IPAddress(ip_address("::1"))):
        PolicyBuilder().store(store).build_server_verifier(name).verify(server, [])
    with pytest.raises(VerificationError):
        PolicyBuilder().store(store).build_server_verifier(DNSName("other.example")).verify(server, [])
    with pytest.raises(VerificationError):
        PolicyBuilder().store(store).build_client_verifier().verify(server, [])


def test_private_keys_are_for_their_owner_alone(made):
    assert command("--client", "phone", "--out", str(made)).exit_code == 0
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()}
    assert {modes[name] for name in ("ca.key", "server.key", "phone.key")} == {0o600}
    assert set(modes) == {f"{name}.{end}" for name in ("ca", "server", "phone") for end in ("key", "pem")}


def test_the_authority_that_is_there_signs_a_clients_certificate_later(made):
    before = (made / "ca.pem").read_bytes()
    assert command("--client", "phone", "--out", str(made)).exit_code == 0
    assert (made / "ca.pem").read_bytes() == before
    PolicyBuilder().store(Store([read(made / "ca.pem")])).build_client_verifier()
    client = read(made / "phone.pem")
    assert client.subject.rfc4514_string() == "CN=phone"
    assert client.issuer == read(made / "ca.pem").subject


def test_nothing_is_overwritten_unless_forced(made):
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    result = command("--host", "server.example", "--out", str(made))
    assert result.exit_code == 2
    assert "--force replaces it" in result.stderr
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before
    assert command("--host", "server.example", "--out", str(made), "--force").exit_code == 0
    assert all(path.read_bytes() != before[path.name] for path in made.iterdir())


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "name a server's --host"),
        (["--client", "ca"], "plain name"),
        (["--client", "../x"], "plain name"),
        (["--client", ""], "plain name"),
        (["--host", "käse.example"], "ASCII"),
        (["--host", "x", "--out", "/proc/nowhere"], "out=/proc/nowhere"),
    ],
)
def test_mistakes_are_one_line(tmp_path, options, complaint):
    result = command("--out", str(tmp_path), *options)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("cert", "key", "ca", "complaint"),
    [
        ("missing.pem", "server.key", None, "missing.pem: cannot be read"),
        ("server.pem", "ca.key", None, "the key is not the certificate's"),
        ("server.key", "server.key", None, "PEM"),
        ("junk", "server.key", None, "PEM"),
        ("server.pem", "server.key", "junk", "client_ca="),
    ],
)
def test_files_that_make_no_sense_are_refused_at_the_start(made, cert, key, ca, complaint):
    (made / "junk").write_text("junk")
    security = SecurityConfig(made / cert, made / key, None if ca is None else made / ca)
    with pytest.raises(UsageError, match=complaint):
        server_credentials(security)


def test_a_key_with_a_password_is_refused_without_asking_for_it(made):
    from cryptography.hazmat.primitives import serialization as s

    key = s.load_pem_private_key((made / "server.key").read_bytes(), None)
    locked = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"x"))
    (made / "locked.key").write_bytes(locked)
    with pytest.raises(UsageError, match="needs a password"):
        server_credentials(SecurityConfig(made / "server.pem", made / "locked.key"))
