"""The front of the engines: what `auto` takes and says, and one behavior whatever the engine."""

import asyncio
import contextlib
import os

import pytest
from echoing import connected, serving

from outrider_netsim import link as link_module
from outrider_netsim.core.errors import EngineError, ProfileError
from outrider_netsim.engines.proxy import ProxyLink
from outrider_netsim.impairments.path import LinkStats
from outrider_netsim.link import Link
from outrider_netsim.profiles.profile import Direction, Profile

FAST = Profile.symmetric("fast", Direction(delay_ms=2))
ENGINES = [pytest.param("kernel", marks=pytest.mark.root), pytest.param("tun", marks=pytest.mark.root), "proxy"]


class Refusing:
    """An engine that this machine does not allow."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __call__(self, *_, **__) -> "Refusing":
        return self

    async def start(self) -> None:
        raise EngineError(self._reason)


@pytest.fixture
def only_proxy(monkeypatch):
    engines = {"kernel": Refusing("no sch_netem"), "tun": Refusing("no namespaces"), "proxy": ProxyLink}
    monkeypatch.setattr(link_module, "_class_of", engines.__getitem__)


@contextlib.asynccontextmanager
async def linked(engine, profile=FAST, **options):
    """An echo server behind a link of this engine; skips where the machine does not allow it."""
    async with asyncio.timeout(30), serving() as server:
        link = Link(profile, str(server), engine, seed=1, **options)
        try:
            await link.start()
        except EngineError as error:
            pytest.skip(str(error))
        try:
            yield link
        finally:
            await link.aclose()


async def echoed(link, data=b"x"):
    async with connected(link.address) as (reader, writer):
        writer.write(data)
        return await reader.readexactly(len(data))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": "netem"}, "engine 'netem' is unknown: choose auto, kernel, tun, proxy"),
        ({"engine": "virtual"}, "has no address for real programs: use VirtualLink"),
        ({"engine": ["tun", "ns3"]}, "engine 'ns3' is unknown"),
        ({"upstream": "50051"}, "upstream '50051': need HOST:PORT"),
        ({"upstream": "127.0.0.1:0"}, "upstream port=0: need 1 to 65535"),
        ({"port": 70_000}, "port=70000: need 0 to 65535"),
    ],
)
def test_what_cannot_be_is_refused_at_once(arguments, message):
    with pytest.raises(ProfileError, match=message):
        Link(FAST, **arguments)


async def test_auto_says_what_it_took_and_why(only_proxy):
    async with linked("auto") as link:
        assert link.engine == "proxy"
        assert link.why == "the best that this machine allows (kernel: no sch_netem; tun: no namespaces)"
        assert await echoed(link) == b"x"
    async with linked("proxy") as link:
        assert link.why == "as asked"


async def test_an_engine_that_cannot_start_says_why(only_proxy):
    with pytest.raises(EngineError, match=r"^tun: no namespaces$"):
        await Link(FAST, engine="tun").start()
    with pytest.raises(EngineError, match="kernel: no sch_netem; tun: no namespaces"):
        await Link(FAST, engine=("kernel", "tun")).start()


async def test_what_is_not_installed_is_named(monkeypatch):
    def missing(_):
        raise ModuleNotFoundError("No module named 'pyroute2'", name="pyroute2")

    monkeypatch.setattr(link_module, "_class_of", missing)
    with pytest.raises(EngineError, match=r"pyroute2 is not installed: pip install 'outrider\[netsim\]'"):
        await Link(FAST, engine="kernel").start()


async def test_elsewhere_than_on_linux_only_the_relay_is_there(monkeypatch):
    monkeypatch.setattr(link_module.sys, "platform", "darwin")
    with pytest.raises(EngineError, match="tun: needs Linux, this is darwin: use --engine proxy"):
        await Link(FAST, engine="tun").start()


@pytest.mark.parametrize("engine", ENGINES)
async def test_every_engine_carries_cuts_restores_changes_and_counts(engine):
    async with linked(engine) as link, connected(link.address) as (reader, writer):
        assert link.engine == engine
        writer.write(bytes(5000))
        assert await reader.readexactly(5000) == bytes(5000)
        counted = link.stats
        assert isinstance(counted, LinkStats)
        assert counted.connections == 1
        assert counted.up.packets_out >= 4
        assert counted.down.bytes_out > 5000
        link.restore()  # of a link that is not cut
        link.cut()
        link.cut()
        assert link.is_cut
        writer.write(b"during ")
        during = asyncio.create_task(reader.readexactly(12))
        waiting = asyncio.create_task(echoed(link))  # a new connection hangs
        await asyncio.wait([during, waiting], timeout=0.1)
        assert not during.done()
        assert not waiting.done()
        link.restore()
        assert not link.is_cut
        writer.write(b"after")
        assert await during == b"during after"
        assert await waiting == b"x"
        assert link.stats.up.dropped_by_outage > 0
        for delay_ms in (50, 1):
            link.set(Profile.symmetric("another", Direction(delay_ms=delay_ms)))
            assert link.profile.name == "another"
            started_at = asyncio.get_running_loop().time()
            writer.write(b"x")
            await reader.readexactly(1)
            took = asyncio.get_running_loop().time() - started_at
            # The relay's clock is half a millisecond early, each way.
            assert took >= 2 * delay_ms / 1000 - 0.0011
        assert took < 0.1  # which it was before
    await link.aclose()


async def test_a_relay_runs_commands_without_handlers_behind_fork_and_has_one_server_behind_it():
    forks = []
    os.register_at_fork(before=lambda: forks.append(1))
    async with linked("proxy") as link:
        assert (await link.run(["true"]), forks) == (0, [])
        with pytest.raises(ProfileError, match="a relay has one server behind it"):
            await link.run(["true"], [("127.0.0.1", 1), ("127.0.0.1", 2)])


async def test_a_congestion_control_that_the_relay_does_not_model_is_refused():
    with pytest.raises(EngineError, match=r"'bbr'.*cubic and reno"):
        await Link(FAST, engine="proxy", congestion="bbr").start()


async def test_a_relay_has_no_packets_to_capture(tmp_path):
    with pytest.raises(EngineError, match="no packets to capture: use --engine tun, or --packet-log"):
        await Link(FAST, engine="proxy", pcap=tmp_path / "x.pcapng").start()
