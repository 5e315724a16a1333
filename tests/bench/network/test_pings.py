"""R comes from many pings, spread over a run, and a slow link does not make them last."""

import itertools

import pytest

from outrider_bench.network.link_endpoint import Pinger, PingStats, pings_before_each
from outrider_client.models.local_models import LocalModels
from outrider_proto.errors import LinkError


class SlowServer:
    """Answers every frame after `seconds` of a clock of its own."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds

    def send(self, frame: object) -> None:
        self.now += self.seconds

    async def receive(self) -> None:
        pass


def pinger_of(server: SlowServer) -> Pinger:
    pinger = Pinger("127.0.0.1:1", LocalModels(None, 8, 8, (), "", "").open_frame(), lambda: server.now)
    pinger._connection = server
    return pinger


@pytest.mark.parametrize("answers", [20, 72, 199, 500])
def test_a_run_has_200_pings_spread_over_its_answers(answers):
    count, most_s = pings_before_each(answers)
    assert count * answers >= 200
    assert count == 1 or (count - 1) * answers < 200
    assert most_s * answers == pytest.approx(30)


async def test_pings_end_when_their_time_is_over_but_one_is_always_sent():
    server = SlowServer(0.25)
    assert await pinger_of(server).ping(20, 1.0) == [250.0] * 4
    assert await pinger_of(server).ping(20, 0.1) == [250.0]
    assert len(await pinger_of(SlowServer(0.001)).ping(20, 1.0)) == 20


def test_the_standard_error_is_that_of_the_mean():
    stats = PingStats.of(list(itertools.chain.from_iterable([[20.0, 40.0]] * 50)))
    assert (stats.pings, stats.mean_ms) == (100, 30.0)
    assert stats.standard_error_ms == pytest.approx(1.0, rel=0.01)
    assert PingStats.of([20.0]).standard_error_ms == 0.0


async def test_no_answer_is_a_link_error():
    class Mute(SlowServer):
        async def receive(self) -> None:
            raise TimeoutError

    with pytest.raises(LinkError, match="no answer to a ping"):
        await pinger_of(Mute(0)).ping(1, 1.0)
