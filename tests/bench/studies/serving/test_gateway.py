"""What the gateway adds to the time of the library."""

import pytest

from outrider_bench.core.processes import ServerProcess
from outrider_bench.studies.serving.gateway_overhead import AnswerTiming, PairedTiming, measure_pairs, medians
from outrider_bench.studies.serving.gateway_process import GatewayProcess, cold_start_s
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import ClientConfig
from outrider_models.core.embedded import drafter_dir, target_dir


def timed(num_tokens: int, first_ms: float, whole_ms: float) -> AnswerTiming:
    return AnswerTiming("x", num_tokens, first_ms / 1e3, whole_ms / 1e3)


def test_figures_are_medians_of_pairs():
    pairs = [
        PairedTiming(timed(10, 5, 50), timed(10, 7, 51)),
        PairedTiming(timed(20, 5, 100), timed(20, 6, 104)),
        PairedTiming(timed(10, 5, 40), timed(10, 9, 90)),
    ]
    found = medians(pairs)
    assert found["added_token_ms_ci95"] == pytest.approx((0.1, 5.0))
    figures = {name: round(value, 6) for name, value in found.items() if not name.endswith("_ci95")}
    assert figures == {
        "library_token_ms": 5.0,
        "gateway_token_ms": 5.2,
        "added_token_ms": 0.2,
        "added_first_token_ms": 2.0,
    }


@pytest.mark.slow
async def test_library_and_gateway_give_the_same_text():
    with ServerProcess(["--target", str(target_dir()), "--drafter", str(drafter_dir("moa"))]) as server:
        with GatewayProcess(server.address) as gateway:
            async with AsyncClient(ClientConfig(server.address)) as client:
                timed = await measure_pairs(client, gateway.port, [(1, 2, 3), (4, 5)], "proactive", 12, lambda: None)
        assert cold_start_s(server.address) > 0
    assert [pair.gateway.num_tokens for pair in timed] == [pair.library.num_tokens for pair in timed]
