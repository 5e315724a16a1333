"""What a caller says of itself before it is known: an authorization header, and the address gRPC gives it."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from fuzz_targets.target import FuzzTarget
from outrider_proto.addresses import is_loopback_host
from outrider_server.security.address import PeerAddress
from outrider_server.security.authenticator import _bearer
from outrider_server.security.keys import Key, Keyring, digest_of, new_secret, write_keys


@cache
def _keyring() -> Keyring:
    """Of one key, which nobody has."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.toml"
        write_keys(file, [Key("name", digest_of(new_secret("name")))])
        return Keyring(file)


def _text(data: bytes) -> str:
    """As gRPC decodes metadata."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin1")


def _admit(data: bytes) -> None:
    header, _, peer = _text(data).partition("\n")
    presented = _bearer([("authorization", header)])
    assert presented is None or _keyring().find(presented) is None
    assert PeerAddress.of(peer).name or not peer.rpartition(":")[0]
    assert isinstance(is_loopback_host(peer), bool)


def _seeds() -> dict[str, bytes]:
    return {
        "key": b"Bearer outrider.name." + b"A" * 43 + b"\nipv4:10.0.0.1:5000",
        "nobody": b"bearer outrider.other.secret\nipv6:%5B::1%5D:5000",
        "long": b"Bearer outrider." + b"n" * 300 + b"\nunix:/run/outrider",
        "other": b"Basic dXNlcg==\nipv6:[fe80::1%25eth0]:5",
        "mapped": b"Bearer \nipv6:%5B::ffff:127.0.0.1%5D:5",
        "none": b"\n",
    }


TARGETS = (FuzzTarget("credentials", _admit, _seeds, refusals=()),)
