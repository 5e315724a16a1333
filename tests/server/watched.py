"""A server on the golden pair with its telemetry, in process, and the real client."""

import asyncio
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.policy import Patience
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_server.config.config import ServerConfig
from outrider_server.rpc.server import Server

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
TARGET, DRAFTER = GOLDEN / "target_tiny", GOLDEN / "moa_tli0" / "drafter"
PROMPT = (1, 2, 3)
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def client_config(address: str, **changes) -> ClientConfig:
    fields = {"max_new_tokens": 40, "shape": TreeShape(4, 4, 14), "mode": "stop-and-wait", "wait_for_link_s": 60}
    return ClientConfig(address, TARGET, DRAFTER, patience=Patience(floor_s=5.0), **(fields | changes))


def server_config(**changes) -> ServerConfig:
    return ServerConfig(str(TARGET), (str(DRAFTER),), port=0, threads=1, edge_bundle=False, **changes)


@asynccontextmanager
async def client_of(server: Server, **changes):
    async with AsyncClient(client_config(server.address, **changes)) as client:
        yield client


async def scraped(server: Server) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Samples by name and labels, from the real endpoint."""

    def fetch() -> str:
        url = f"http://{server.reporter.metrics_address}/metrics"
        with DIRECT.open(url, timeout=60) as response:
            return response.read().decode()

    samples: dict = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(fetch)):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return samples
