"""`outrider-bench tcp`: its exchanges over a real link, its statistics, and its usage errors."""

import asyncio
import json
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.studies.tcp.tcp_exchange import (
    ExchangeShape,
    ExchangeTiming,
    TcpExchanger,
    congestion_control,
    set_sysctls,
)
from outrider_bench.studies.tcp.tcp_grpc import MESSAGE_BYTES, GrpcExchanger, GrpcReplier
from outrider_bench.studies.tcp.tcp_statistics import ExchangePlan, ExchangeStats, measure_exchanges, quantile
from outrider_netsim import Direction, EngineError, Link, Profile, ProfileError
from outrider_proto.errors import LinkError, UsageError

FAST = Profile.symmetric("fast", Direction(delay_ms=0.5))


@pytest.fixture
async def link():
    try:
        async with Link(FAST, engine=("kernel", "tun")) as link:
            yield link
    except EngineError as error:
        pytest.skip(str(error))


class Scripted:
    """Answers with the numbers of its exchanges for times."""

    asked = 0

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def exchange(self, shape):
        Scripted.asked += 1
        return ExchangeTiming(Scripted.asked, 10.0 * Scripted.asked, cwnd=10, packets=3, resent=1)


async def test_every_size_after_every_idle_time_and_first_exchanges_apart():
    Scripted.asked = 0
    plan = ExchangePlan((ExchangeShape(10), ExchangeShape(20)), (0.0, 0.001), repeats=4, connections=2)
    cells = await measure_exchanges(Scripted, plan)
    assert [(cell.reply_bytes, cell.idle_s, cell.exchanges) for cell in cells] == [
        *((10, 0.0, 4), (10, 0.001, 4), (20, 0.0, 4), (20, 0.001, 4)),
        *((10, None, 4), (20, None, 4)),
    ]
    first = cells[0]  # exchanges 2, 3, 5 and 6: 1 and 4 were the first of their connections
    assert (first.first_ms, first.whole_ms, first.most_ms) == (4, 40, 60)
    assert (first.packets, first.resent, first.cwnd) == (12, 4, 10)


def test_repeats_that_do_not_divide_are_rounded_up():
    assert ExchangePlan((ExchangeShape(1),), (0.0,), repeats=5, connections=2).per_connection == 3


@pytest.mark.parametrize(("share", "expected"), [(0, 1), (0.5, 2.5), (0.9, 3.7), (1, 4)])
def test_quantiles_lie_between_neighbors(share, expected):
    assert quantile([4, 1, 3, 2], share) == pytest.approx(expected)


def test_a_header_says_what_is_wanted():
    shape = ExchangeShape(reply=9000, first=60, request=250)
    assert ExchangeShape.of(shape.header()) == shape


async def test_tcp_brings_replies_of_any_shape(link):
    async with TcpExchanger(link.namespaces) as connection:
        for shape in (
            ExchangeShape(9000),
            ExchangeShape(60, first=0),
            ExchangeShape(60, first=60),
            ExchangeShape(1, first=0, request=12),
        ):
            timing = await connection.exchange(shape)
            assert 0 < timing.first_ms <= timing.whole_ms
            assert timing.cwnd >= 10
            assert timing.packets >= shape.reply // 1460


async def test_the_kernel_counts_what_was_sent_again(link):
    link.set(Profile("lossy", Direction(delay_ms=1), Direction(delay_ms=1, loss=0.3)))
    async with TcpExchanger(link.namespaces) as connection:
        timings = [await connection.exchange(ExchangeShape(20_000)) for _ in range(3)]
    assert sum(timing.resent for timing in timings) > 0


async def test_settings_hold_at_both_ends_and_nowhere_else(link):
    name = "net.ipv4.tcp_slow_start_after_idle"
    before = await asyncio.to_thread(_setting, name)
    await set_sysctls(link.namespaces, {name: "0", "net.ipv4.tcp_congestion_control": "reno"})
    assert await congestion_control(link.namespaces) == "reno"
    assert await asyncio.to_thread(_setting, name) == before
    status = await link.namespaces.run(["grep", "-q", "^0", f"/proc/sys/{name.replace('.', '/')}"])
    assert status == 0


def _setting(name):
    with open(f"/proc/sys/{name.replace('.', '/')}") as file:
        return file.read()


async def test_a_setting_that_cannot_be_is_refused(link):
    for name, value, said in (
        ("net.ipv4.tcp_nonsense", "1", "has none of that name"),
        ("net.ipv4.tcp_congestion_control", "nonsense", "refused by the kernel"),
        ("kernel.panic", "1", "need a name such as"),
        ("net/../kernel.panic", "1", "need a name such as"),
    ):
        with pytest.raises(ProfileError, match=said):
            await set_sysctls(link.namespaces, {name: value})


@pytest.mark.parametrize("reply", [60, 2000, 2 * MESSAGE_BYTES + 100])
async def test_grpc_brings_replies_of_any_size(reply):
    async with GrpcReplier() as replier, GrpcExchanger(f"127.0.0.1:{replier.port}") as connection:
        timing = await connection.exchange(ExchangeShape(reply))
        assert 0 < timing.first_ms <= timing.whole_ms


async def test_a_grpc_server_that_goes_away_is_the_links_fault():
    async with GrpcReplier() as replier, GrpcExchanger(f"127.0.0.1:{replier.port}") as connection:
        await connection.exchange(ExchangeShape(60))
        await replier.__aexit__(None, None, None)
        with pytest.raises(LinkError, match="the stream"):
            await connection.exchange(ExchangeShape(60))


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_the_command_writes_its_report(link_allowed, tmp_path, transport):
    report = tmp_path / "report.json"
    sizes = ["--reply", "100", "--idle", "0", "--repeats", "2", "--connections", "1"]
    sizes += ["--sysctl", "net.ipv4.tcp_congestion_control=reno"]
    options = ["--profile", "lan", "--transport", transport, *sizes, "--json", str(report)]
    ran = CliRunner().invoke(app, ["tcp", *options], catch_exceptions=False)
    assert ran.exit_code == 0
    found = json.loads(report.read_text())
    assert [cell["idle_s"] for cell in found["cells"]] == [0.0, None]
    assert set(found["cells"][0]) == set(asdict(ExchangeStats.of(ExchangeShape(1), 0.0, [ExchangeTiming(1, 1)])))
    assert found["engine"] in ("kernel", "tun")
    assert found["congestion_control"] == "reno"
    assert "made_by" in found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "proxy"], "a relay ends TCP"),
        (["--profile", "nonsense"], "profile 'nonsense' is unknown"),
        (["--sysctl", "nonsense"], "need NAME=VALUE"),
        (["--channel-option", "grpc.x=y"], "need a whole number"),
    ],
)
def test_a_wrong_argument_is_a_usage_error(options, said):
    with pytest.raises(UsageError, match=said):
        CliRunner().invoke(app, ["tcp", *options], catch_exceptions=False)


@pytest.fixture
def link_allowed():
    async def tried():
        async with Link(FAST, engine=("kernel", "tun")):
            pass

    try:
        asyncio.run(tried())
    except EngineError as error:
        pytest.skip(str(error))
