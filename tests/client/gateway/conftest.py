"""A real server with the embedded pair, and real gateways in front of it, each in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from openai import OpenAI

from outrider_client.connection.policy import Patience
from outrider_client.core.config import ClientConfig
from outrider_client.core.gateway_config import GatewayConfig
from outrider_client.gateway.serving import listening
from outrider_client.models.local_models import LocalModels
from outrider_drafters.load import load_tap
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

sys.path.insert(0, str(Path(__file__).parent))

from in_thread import InThread
from visitor import CHROMIUM, DESK, FLAGS, Visitor

PATIENT = Patience(floor_s=1.0)  # this machine may be busy


@dataclass(frozen=True)
class RawAnswer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def error(self) -> dict:
        return json.loads(self.body)["error"]


class RunningGateway:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def openai(self, kind=OpenAI, api_key: str = "none"):
        """An OpenAI client that never retries."""
        return kind(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=60)

    def get(self, path: str):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            text = answer.read().decode()
        return text if path == "/metrics" else json.loads(text)

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> RawAnswer:
        """Send a request as it is. In names of headers, _ stands for -."""
        given = {"Content-Type": "application/json"} | {name.replace("_", "-"): headers[name] for name in headers}
        with contextlib.closing(http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=30)) as app:
            app.request(method, path, body, given)
            answer = app.getresponse()
            return RawAnswer(answer.status, answer.headers, answer.read())

    def order(self, **order):
        """Change the emulated link."""
        body = json.dumps(order).encode()
        request = urllib.request.Request(
            f"{self.url}/outrider/link", body, {"Content-Type": "application/json", "Origin": self.url}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def link_states(self) -> Iterator[dict]:
        """The link report that the page gets."""
        with urllib.request.urlopen(f"{self.url}/outrider/link", timeout=30) as stream:
            for line in stream:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

    def wait_for_link(self, *states: str) -> None:
        with contextlib.closing(self.link_states()) as shown:
            next(report for report in shown if report["state"] in states)


@contextlib.asynccontextmanager
async def _serving(client: ClientConfig, config: GatewayConfig, models: LocalModels):
    async with listening(client, config, models) as (server, sockets):
        port = sockets[0].getsockname()[1]
        running = asyncio.create_task(server.serve(sockets))
        try:
            yield RunningGateway(port)
        finally:
            server.should_exit = True
            await running


@pytest.fixture(scope="session")
def target() -> Target:
    return Target.load(str(target_dir()))


@pytest.fixture(scope="session")
def models() -> LocalModels:
    return LocalModels.load(ClientConfig())


@pytest.fixture(scope="session")
def verifier(target):
    return lambda: Verifier(target, [load_tap(drafter_dir("moa"), target_dir())])


@pytest.fixture(scope="session")
def server(verifier):
    """The address of a running server."""
    with InThread(lambda: Server(verifier())) as server:
        yield server.address


@pytest.fixture(scope="session")
def start_gateway(models):
    """Start a gateway as a context manager."""

    def start(server: str, gateway: GatewayConfig | None = None, profile=None, own=models, **client) -> InThread:
        config = ClientConfig(server, **({"patience": PATIENT, "wait_for_link_s": 30.0} | client))
        gateway = replace(gateway or GatewayConfig(), port=0, profile=profile, engine="proxy")
        return InThread(lambda: _serving(config, gateway, own))

    return start


@pytest.fixture(scope="session")
def gateway(start_gateway, server):
    with start_gateway(server) as running:
        yield running


@pytest.fixture
def openai(gateway):
    with gateway.openai() as client:
        yield client


@pytest.fixture(scope="session")
def plain(target, models):
    """Tokens and text, without its end token, as the target alone writes them."""

    def say(prompt, max_tokens: int, *, raw: bool = False) -> tuple[list[int], str]:
        tokens = plain_greedy(target, models.encode(prompt, raw=raw), max_tokens)
        return tokens, models.decode(tokens)

    return say


@pytest.fixture(scope="module")
def behind_link(start_gateway, server):
    """A gateway whose link can be cut."""
    with start_gateway(server, profile="paper-4g", patience=Patience(floor_s=0.5), opening=False) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Open the page of a gateway; at the end no page may have failed."""
    contexts, visitors = [], []

    def open_page(gateway, **options) -> Visitor:
        contexts.append(browser.new_context(**({"viewport": DESK} | options)))
        visitors.append(Visitor(contexts[-1], gateway.url))
        return visitors[-1]

    yield open_page
    faults = [fault for visitor in visitors for fault in visitor.faults]
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture
def visitor(behind_link, visit) -> Visitor:
    return visit(behind_link)


@pytest.fixture
def page(visitor):
    return visitor.page
