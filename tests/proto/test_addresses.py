import pytest

from outrider_proto.addresses import counted_as, free_port, host_of, is_loopback_host, join_host_port, port_of


@pytest.mark.parametrize("host", ["localhost", "LocalHost", "localhost.", "127.0.0.1", "127.9.9.9", "::1"])
def test_loopback(host):
    assert is_loopback_host(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "[::1]", "example.org"])
def test_not_loopback(host):
    assert not is_loopback_host(host)


@pytest.mark.parametrize(
    ("host", "joined"), [("a.b", "a.b:1"), ("::1", "[::1]:1"), ("[::1]", "[::1]:1"), ("127.0.0.1", "127.0.0.1:1")]
)
def test_join_and_split(host, joined):
    assert join_host_port(host, 1) == joined
    assert (host_of(joined), port_of(joined)) == (host.strip("[]"), 1)


def test_no_port():
    assert host_of("example.org") == ""
    with pytest.raises(ValueError, match="invalid literal"):
        port_of("example.org")


def test_free_ports_are_none_that_a_connection_is_given():
    assert all(20_000 <= free_port() < 32_768 for _ in range(20))


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_callers_are_counted_by_address_or_network(host, counted):
    assert counted_as(host) == counted
