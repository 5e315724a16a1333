"""Through an outage, and without a server, with OpenAI's client: answers complete, and no text is contradicted that an
app could not take back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import openai as openai_library
import pytest
from in_thread import InThread

from outrider_client.connection.policy import Patience
from outrider_client.core.gateway_config import GatewayConfig
from outrider_drafters.load import load_tap
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_proto.addresses import free_port
from outrider_proto.frames import Verdict
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

from ...marks import slow

QUESTION = "Write a function that adds two numbers."
NEW = 60
CHAIN = {"mode": "stop-and-wait"}


@pytest.fixture(scope="module")
def emulated(start_gateway, server):
    """A gateway behind a link that can be cut."""
    with start_gateway(server, profile="lan", patience=Patience(floor_s=0.3)) as running:
        yield running


def ask(**more) -> dict:
    return {
        "model": "outrider",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": NEW,
        "temperature": 0,
        **more,
    }


def streamed(openai, **outrider):
    return openai.chat.completions.create(
        **ask(stream=True, stream_options={"include_usage": True}), extra_body={"outrider": CHAIN | outrider}
    )


class Screen:
    """An app that shows a stream, and takes text back on `rollback_to`."""

    def __init__(self) -> None:
        self.text = ""
        self.num_rolled_back = 0
        self.origins: list[str] = []
        self.verified: list[tuple[int, int]] = []
        self.last = None
        self.usage = None

    def show(self, chunk) -> None:
        self.usage = chunk.usage or self.usage
        if not chunk.choices:
            return
        extension, content = chunk.outrider, chunk.choices[0].delta.content
        if "rollback_to" in extension:
            self.text = self.text[: extension["rollback_to"]]
            self.num_rolled_back += 1
        if "verified_to" in extension:
            self.verified.append((extension["offset"], extension["verified_to"]))
        if content:
            assert extension["offset"] == len(self.text)
            self.origins.append(extension["origin"])
            self.text += content
        self.last = chunk


@pytest.fixture
def cut_link(emulated):
    """Cut the link, and restore it once the gateway has noticed."""
    threads: list[threading.Thread] = []

    def restore() -> None:
        emulated.wait_for_link("offline")
        emulated.order(cut=False)

    def cut() -> None:
        emulated.order(cut=True)
        threads.append(threading.Thread(target=restore))
        threads[-1].start()

    yield cut
    for thread in threads:
        thread.join()


def through_an_outage(emulated, cut_link, **outrider) -> Screen:
    screen = Screen()
    with emulated.openai() as openai, streamed(openai, **outrider) as stream:
        for chunk in stream:
            screen.show(chunk)
            if len(screen.origins) == 1:
                screen.origins.append("cut")
                cut_link()
    return screen


def test_by_default_an_app_sees_only_final_text(emulated, cut_link, plain):
    tokens, text = plain(QUESTION, NEW)
    screen = through_an_outage(emulated, cut_link)
    assert screen.text == text
    assert "unverified" not in screen.origins
    assert screen.num_rolled_back == 0
    assert screen.usage.completion_tokens == len(tokens)
    assert screen.last.outrider["statistics"]["outages"] >= 1
    assert screen.last.outrider["statistics"]["unverified"] == 0


def test_a_page_sees_unverified_text_and_its_rollback(emulated, cut_link, plain):
    tokens, text = plain(QUESTION, NEW)
    screen = through_an_outage(emulated, cut_link, unverified="stream")
    assert screen.text == text
    assert "unverified" in screen.origins
    assert screen.num_rolled_back or screen.verified
    assert screen.usage.completion_tokens == len(tokens)


def test_kept_text_is_never_contradicted(emulated, cut_link):
    screen = through_an_outage(emulated, cut_link, unverified="keep")
    assert "unverified" in screen.origins
    assert (screen.num_rolled_back, screen.verified) == (0, [])
    assert screen.last.outrider["statistics"]["unverified"] >= screen.origins.count("unverified")


@pytest.mark.parametrize("allowed_by", [None, "gateway", *slow("request")])
def test_the_answer_completes_without_the_link_where_unverified_text_is_allowed(start_gateway, server, allowed_by):
    config = GatewayConfig(unverified="keep" if allowed_by == "gateway" else "hold")
    wish = {"unverified": "keep"} if allowed_by == "request" else {}
    with (
        start_gateway(server, config, profile="lan", wait_for_link_s=0.0) as gateway,
        gateway.openai() as openai,
    ):
        gateway.wait_for_link("online")
        screen = Screen()
        cut = contextlib.nullcontext() if allowed_by else pytest.raises(openai_library.APIError, match="link")
        with cut as refused, streamed(openai, **wish) as stream:
            for chunk in stream:
                screen.show(chunk)
                if len(screen.origins) == 1:
                    gateway.order(cut=True)
        if not allowed_by:
            assert refused.value.code == "server_unreachable"
            assert "unverified" not in screen.origins
            return
        assert screen.origins[-1] == "unverified"
        assert screen.last.outrider["reason"] == "unverified"
        assert screen.usage.completion_tokens == screen.last.outrider["statistics"]["new_tokens"]


def test_without_a_server_it_begins_offline_and_connects_when_one_comes(start_gateway, verifier, plain):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with start_gateway(f"127.0.0.1:{port}", wait_for_link_s=0.0) as gateway, gateway.openai() as openai:
        gateway.wait_for_link("offline")
        assert gateway.get("/health") == {"status": "offline", "link": "offline", "model": "outrider"}
        alone = openai.chat.completions.create(**ask(), extra_body={"outrider": CHAIN | {"unverified": "keep"}})
        assert alone.choices[0].message.content
        assert {span["origin"] for span in alone.outrider["spans"]} == {"unverified"}
        for wish in (CHAIN, {"drafter": "none", "mode": "stream"}, {"drafter": "none", "unverified": "keep"}):
            with pytest.raises(openai_library.InternalServerError, match="link") as refused:
                openai.chat.completions.create(**ask(), extra_body={"outrider": wish})
            assert (refused.value.status_code, refused.value.code) == (503, "server_unreachable")
            assert int(refused.value.response.headers["Retry-After"]) >= 1
        with InThread(lambda: Server(verifier(), port=port)):
            gateway.wait_for_link("online")
            assert gateway.get("/health")["status"] == "ok"
            answer = openai.chat.completions.create(**ask(), extra_body={"outrider": CHAIN})
            assert answer.choices[0].message.content == plain(QUESTION, NEW)[1]


class Falling(Verifier):
    """Says no more after a few verdicts."""

    fallen: asyncio.Event

    async def session(self, *args):
        num_verdicts = 0
        async for frame in super().session(*args):
            num_verdicts += isinstance(frame, Verdict)
            if num_verdicts > 3:
                self.fallen.set()
                return
            yield frame


@pytest.mark.parametrize("takes_back", [False, True])
def test_another_target_takes_back_what_an_app_has_or_the_app_is_told(start_gateway, target, takes_back):
    later, port = Target.load(str(target_dir()), "bfloat16"), free_port()

    @contextlib.asynccontextmanager
    async def replaced():
        taps = [load_tap(drafter_dir("moa"), target_dir())]
        first = Falling(target, taps)
        first.fallen = asyncio.Event()

        async def replace() -> None:
            async with Server(first, port=port):
                await first.fallen.wait()
            async with Server(Verifier(later, taps), port=port):
                await asyncio.Event().wait()

        replacing = asyncio.create_task(replace())
        yield
        replacing.cancel()
        await asyncio.gather(replacing, return_exceptions=True)

    with InThread(replaced), start_gateway(f"127.0.0.1:{port}") as gateway, gateway.openai() as openai:
        gateway.wait_for_link("online")
        screen = Screen()
        told = contextlib.nullcontext() if takes_back else pytest.raises(openai_library.APIError, match="another model")
        with told as refused, streamed(openai, **({"unverified": "stream"} if takes_back else {})) as stream:
            for chunk in stream:
                screen.show(chunk)
        assert screen.num_rolled_back >= takes_back
        assert takes_back or refused.value.code == "server_unreachable"
        assert takes_back or screen.text


def test_a_server_with_other_models_is_told(start_gateway, golden, capfd):
    other = Target.load(str(golden / "target_tiny"))
    with InThread(lambda: Server(Verifier(other, []))) as server, start_gateway(server.address) as gateway:
        gateway.wait_for_link("online")
        waited = (gateway.get("/health") for _ in range(10_000))
        health = next(health for health in waited if health["status"] != "ok")
        assert (health["status"], health["link"]) == ("mismatch", "online")
        assert health["mismatch"].startswith("target here ")
        said = capfd.readouterr().err
    assert f"{server.address} has other models" in said
    assert "outrider pull" in said


def test_what_cannot_be_taken_back_waits_although_unverified_text_may_be_streamed(emulated, cut_link, plain):
    """Events of /v1/responses have no way to take text back, and a call is read from the whole answer."""
    _, text = plain(QUESTION, NEW)
    outrider = {"outrider": CHAIN | {"unverified": "stream"}}
    shown, was_cut = "", False
    with emulated.openai() as openai:
        with openai.responses.create(
            model="outrider", input=QUESTION, max_output_tokens=NEW, temperature=0, stream=True, extra_body=outrider
        ) as events:
            for event in events:
                if event.type == "response.output_text.delta":
                    shown += event.delta
                    assert text.startswith(shown)
                    if not was_cut:
                        was_cut = True
                        cut_link()
        assert shown == text
        tool = {"type": "function", "function": {"name": "f"}}
        answer = openai.chat.completions.create(**ask(stream=True, tools=[tool]), extra_body=outrider)
        chunks = [chunk for chunk in answer if chunk.choices]
        assert [chunk for chunk in chunks if "rollback_to" in chunk.outrider] == []
        assert all(not chunk.choices[0].delta.content for chunk in chunks[:-1])
