"""The port of a server named by its host."""

from __future__ import annotations

import pytest

from outrider_client.cli.access_options import with_port
from outrider_proto.errors import UsageError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("edge.example.org", "edge.example.org:50051"),
        ("127.0.0.1", "127.0.0.1:50051"),
        ("127.0.0.1:7", "127.0.0.1:7"),
        ("[::1]", "[::1]:50051"),
        ("[::1]:7", "[::1]:7"),
        ("host:", "host:"),
        ("", ""),
    ],
)
def test_a_bare_host_gets_the_default_port(given, expected):
    assert with_port(given) == expected


def test_a_url_is_no_address():
    with pytest.raises(UsageError, match=r"^server=https://edge:1: need HOST or HOST:PORT, without https://$"):
        with_port("https://edge:1")
