"""Authentication by what a call came with, and limits by address. No transport, and a clock of the test's own."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest
from talk import Clock

from outrider_proto.errors import Reason, Refusal, UsageError
from outrider_server.config.config import SecurityConfig
from outrider_server.security import authenticator as authenticator_module
from outrider_server.security.address import PeerAddress, check_exposure
from outrider_server.security.authenticator import Authenticator, Caller
from outrider_server.security.keys import Key, digest_of, new_secret, write_keys
from outrider_server.security.principal import ANONYMOUS, Principal, Quota, Scope

HOME = PeerAddress.of("ipv4:127.0.0.1:5")
AWAY = PeerAddress.of("ipv4:203.0.113.7:5")


def caller(key=None, address=AWAY, certificate="") -> Caller:
    metadata = [("user-agent", "x")] if key is None else [("user-agent", "x"), ("authorization", f"Bearer {key}")]
    return Caller(metadata, address, certificate)


def reason_of(action) -> Reason:
    with pytest.raises(Refusal) as refused:
        action()
    return refused.value.reason


@pytest.fixture
def secret() -> str:
    return new_secret("a")


@pytest.fixture
def authenticator(tmp_path, secret) -> Authenticator:
    file = tmp_path / "keys.toml"
    scopes = frozenset({Scope.SESSION, Scope.DESCRIBE})
    write_keys(file, [Key("a", digest_of(secret), scopes, Quota(sessions=3))])
    return Authenticator(SecurityConfig(keys=file, failures_per_minute=3), Clock())


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("authorization", "Bearer ")],
        [("authorization", "Basic outrider.a.x")],
        [("authorization", "Bearer outrider.a.x")],
        [("authorization", b"Bearer \xff")],
        [("authorization-bin", b"\x00")],
    ],
)
def test_whatever_else_a_call_comes_with_is_no_key(authenticator, metadata):
    assert reason_of(lambda: authenticator.admit(Caller(metadata, AWAY), Scope.SESSION)) is Reason.NO_KEY


def test_too_many_wrong_keys_must_wait_and_a_valid_key_need_not(authenticator, secret):
    wrong = [reason_of(lambda: authenticator.admit(caller("x"), Scope.SESSION)) for _ in range(5)]
    assert wrong == [Reason.NO_KEY] * 3 + [Reason.OVER_QUOTA] * 2
    assert authenticator.admit(caller(secret), Scope.SESSION).payer == "a"  # somebody else behind the same address
    other = caller("x", PeerAddress.of("ipv4:203.0.113.8:5"))
    assert reason_of(lambda: authenticator.admit(other, Scope.SESSION)) is Reason.NO_KEY


def test_addresses_are_forgotten_rather_than_kept_without_end(authenticator):
    for number in range(5000):
        address = PeerAddress.of(f"ipv4:10.0.{number >> 8}.{number & 255}:5")
        assert reason_of(lambda at=address: authenticator.admit(caller("x", at), Scope.SESSION)) is Reason.NO_KEY
    assert len(authenticator._failures._known) <= 4096


def test_without_keys_anybody_is_let_in_but_not_to_begin_too_many_streams():
    clock = Clock()
    authenticator = Authenticator(SecurityConfig(streams_per_minute=5), clock)
    stranger = Principal(address=caller().address.name)
    assert [authenticator.admit_stream(caller()) for _ in range(5)] == [stranger] * 5
    with pytest.raises(Refusal) as refused:
        authenticator.admit_stream(caller())
    assert refused.value.reason is Reason.OVER_QUOTA
    clock.now += refused.value.retry_after_s
    assert authenticator.admit_stream(caller()) == stranger
    assert all(authenticator.admit_stream(caller(address=HOME)) is ANONYMOUS for _ in range(100))


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[2J", "x" * 65])
def test_a_name_that_would_spoil_a_log_is_hashed(name):
    payer = Authenticator().admit(caller(certificate=name), Scope.SESSION).payer
    assert payer.removeprefix("cert:").isalnum()
    assert payer != Authenticator().admit(caller(certificate=name + "x"), Scope.SESSION).payer


def test_services_are_listed_to_this_machine_and_to_keys(authenticator, secret):
    assert authenticator.admits_reflection(caller(address=HOME))
    assert authenticator.admits_reflection(caller(secret))
    assert not authenticator.admits_reflection(caller("x"))
    assert not Authenticator().admits_reflection(caller())


@pytest.mark.parametrize(
    ("peer", "name", "is_loopback"),
    [
        ("ipv4:127.0.0.1:50051", "127.0.0.1", True),
        ("ipv4:203.0.113.7:1", "203.0.113.7", False),
        ("ipv6:%5B::1%5D:50051", "::1", True),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:50051", "2001:db8:1:2::/64", False),
        ("ipv6:%5B2001:db8:1:2::9%5D:7", "2001:db8:1:2::/64", False),
        ("ipv6:%5B::ffff:203.0.113.7%5D:7", "203.0.113.7", False),
        ("ipv6:%5Bfe80::1%25eth0%5D:7", "fe80::/64", False),
        ("unix:/run/x", "unix", True),
        ("unknown", "unknown", False),
    ],
)
def test_addresses(peer, name, is_loopback):
    assert PeerAddress.of(peer) == PeerAddress(name, is_loopback)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "LOCALHOST."])
def test_loopback_needs_nothing(host):
    check_exposure(host, SecurityConfig())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "203.0.113.1", "server.example", "localhost.example", ""])
def test_anywhere_else_needs_tls_and_keys_or_so_many_words(host, tmp_path):
    cert, keys = {"tls_cert": tmp_path / "c", "tls_key": tmp_path / "k"}, {"keys": tmp_path / "keys"}
    for lacking, remedy in (({}, "--tls-cert"), (cert, "--keys"), (keys, "--tls-cert")):
        with pytest.raises(UsageError, match=f"host={host.replace('[', '.')}.*{remedy}.*--open-to-network"):
            check_exposure(host, SecurityConfig(**lacking))
    check_exposure(host, SecurityConfig(**cert, **keys))
    check_exposure(host, SecurityConfig(**cert, client_ca=tmp_path / "ca"))
    check_exposure(host, SecurityConfig(open_to_network=True))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"tls_cert": "x"}, "go together"),
        ({"client_ca": "x"}, "needs TLS"),
        ({"failures_per_minute": 0}, "failures_per_minute=0"),
        ({"handshake_s": 0}, "handshake_s=0"),
        ({"handshake_s": float("inf")}, "handshake_s=inf"),
        ({"longest_wait_s": -1}, "longest_wait_s=-1"),
    ],
)
def test_a_bad_configuration_says_what_is_wrong(fields, complaint):
    with pytest.raises(UsageError, match=complaint):
        SecurityConfig(**fields)


async def test_keys_are_watched_on_after_a_failure(authenticator, monkeypatch, caplog):
    monkeypatch.setattr(authenticator_module, "_LOOK_S", 0.0)
    looked = asyncio.Event()
    failures = [OSError("no"), RuntimeError("no")]

    def end(_) -> None:
        if failures:
            raise failures.pop()
        looked.set()

    watching = asyncio.create_task(authenticator.watch(end))
    async with asyncio.timeout(60):
        await looked.wait()
    watching.cancel()
    assert caplog.text.count("revoked keys could not be looked for") == 2


async def test_streams_of_keys_that_expire_end_while_the_disk_hangs(tmp_path, secret, monkeypatch):
    monkeypatch.setattr(authenticator_module, "_LOOK_S", 0.01)
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    now, hanging, expired = [begun], threading.Event(), asyncio.Event()
    write_keys(tmp_path / "keys", [Key("a", digest_of(secret), expires=begun + timedelta(days=1))])
    authenticator = Authenticator(SecurityConfig(keys=tmp_path / "keys"), calendar=lambda: now[0])
    principal = authenticator.admit(caller(secret), Scope.SESSION)
    monkeypatch.setattr(authenticator._keyring, "refresh", hanging.wait)
    watching = asyncio.create_task(authenticator.watch(lambda admits: None if admits(principal) else expired.set()))
    try:
        async with asyncio.timeout(60):
            await asyncio.sleep(0.05)
            assert not expired.is_set()
            now[0] += timedelta(days=2)
            await expired.wait()
    finally:
        hanging.set()
        watching.cancel()
