"""Stopping without losing anything: health, what is under way, whom it refuses, and a second signal."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from talk import PROMPT, TAP, calling
from tiny_targets import target
from watched import DRAFTER, TARGET, client_config

from outrider_client import AsyncClient
from outrider_client.core.events import Committed, RolledBack, Unverified
from outrider_drafters.contracts.tap import LastHiddenTap
from outrider_proto.errors import LinkError, Reason, Refusal
from outrider_proto.frames import Decode, Features, Verdict
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.rpc.service import SERVICE
from outrider_server.security.keys import Key, digest_of, new_secret, write_keys
from outrider_server.security.principal import Scope
from outrider_server.sessions.verifier import Verifier

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
NEW = 60


class HeldTap(LastHiddenTap):
    """Makes its features when it is let: until then a draft is under way."""

    def __init__(self) -> None:
        super().__init__(32)
        self.let = threading.Event()

    def rows(self, acts):
        assert self.let.wait(60)
        return super().rows(acts)


@pytest.fixture
async def held():
    """A server with a stream whose draft is under way: it has its verdict, not its features."""
    tap = HeldTap()
    try:
        async with Server(Verifier(target(), [tap], LimitsConfig())) as server, calling(server.address) as talk:
            await talk.open(server.verifier.describe(), tap=TAP.info.fingerprint)
            await talk.draft(0, PROMPT[:-1], PROMPT[-1], features_from=0)
            assert isinstance(await talk.receive(), Verdict)
            yield server, talk, tap
            tap.let.set()
    finally:
        tap.let.set()


async def status(channel, service: str) -> int:
    return (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))).status


async def test_what_is_under_way_is_finished_and_nothing_new_is_taken(held):
    server, talk, tap = held
    async with grpc.aio.insecure_channel(server.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == SERVING
        assert await status(channel, "") == SERVING
        draining = asyncio.create_task(server.drain(60))
        assert (await watch.read()).status == NOT_SERVING
        assert await status(channel, "") == await status(channel, SERVICE) == NOT_SERVING
        async with calling(server.address) as late:
            assert (await late.refusal()).reason is Reason.SHUTTING_DOWN
        tap.let.set()
        frame = await talk.receive()
        assert isinstance(frame, Features)
        assert frame.last
        assert (await talk.refusal()).reason is Reason.SHUTTING_DOWN
        assert await watch.read() is grpc.aio.EOF
        await asyncio.wait_for(draining, 60)


async def test_at_the_deadline_what_is_left_is_handed_back(held):
    server, talk, tap = held
    await asyncio.wait_for(server.drain(0), 60)
    assert (await talk.refusal()).reason is Reason.SHUTTING_DOWN
    assert not tap.let.is_set()


class Process:
    """`outrider-server serve` on the golden pair, a process at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).parents[1] / "served_process.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    async def start(self, port: int, *options: str, passes: int | None = None, hang: str | None = None) -> None:
        """Until it is ready; after so many `passes` its device is lost, or hangs; or something else does."""
        models = ["--target", str(TARGET), "--drafter", str(DRAFTER), "--no-edge-bundle", "--threads", "1"]
        arguments = ["serve", *models, "--port", str(port), *options]
        line = await self._ask({"start": arguments, "passes": passes, "hang": hang})
        assert "ready on" in line, line

    async def term(self) -> None:
        await self.signal(signal.SIGTERM)

    async def signal(self, number: int) -> None:
        await self._ask({"signal": number})

    async def ended(self, said: str = "", code: int = 0) -> None:
        """It ends by itself, with these last words and this code."""
        end = await self._ask({"end": True})
        assert (end["said"][-len(said) :] if said else end["said"], end["code"]) == (said, code)

    def close(self) -> None:
        self._process.communicate()

    async def _ask(self, what: dict):
        def ask():
            self._process.stdin.write(json.dumps(what) + "\n")
            return json.loads(self._process.stdout.readline())

        return await asyncio.to_thread(ask)


@pytest.fixture(scope="module")
def process():
    served = Process()
    yield served
    served.close()


@pytest.fixture
def port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


@pytest.mark.slow
async def test_sigterm_amid_answers_and_a_new_server_loses_nothing(process, port):
    prompts = [(1, 2, 3), (7, 5), (9, 9, 4, 1)]
    oracle = Target.load(str(TARGET))
    truth = [plain_greedy(oracle, prompt, NEW) for prompt in prompts]
    await process.start(port)
    amid = asyncio.Barrier(len(prompts) + 1)
    answers = asyncio.gather(*(answered(port, prompt, amid) for prompt in prompts))
    await amid.wait()  # every client has some tokens, and none has all
    await process.term()
    await amid.wait()
    await process.ended()
    await process.start(port)
    assert await answers == truth
    await process.term()
    await process.ended()


async def answered(port: int, prompt, amid: asyncio.Barrier) -> list[int]:
    """An answer's tokens; it pauses at `amid` until the server has been told to stop."""
    tokens: list[int] = []
    paused = False
    async with (
        AsyncClient(client_config(f"127.0.0.1:{port}", max_new_tokens=NEW, wait_for_link_s=1000)) as client,
        contextlib.aclosing(client.generate(prompt)) as events,
    ):
        async for event in events:
            match event:
                case Committed() | Unverified():
                    tokens += event.tokens
                case RolledBack():
                    del tokens[event.first :]
            if len(tokens) >= 2 and not paused:
                paused = True
                await amid.wait()
                await amid.wait()
    return tokens


@pytest.mark.slow
async def test_a_lost_device_ends_the_process_and_its_successor_goes_on(process, port):
    prompt = (7, 5, 1)
    truth = plain_greedy(Target.load(str(TARGET)), prompt, NEW)
    await process.start(port, passes=3)
    answer = asyncio.create_task(answered(port, prompt, asyncio.Barrier(1)))
    reason = "the target's device failed: CUDA error: device-side assert triggered"
    await process.ended(f"outrider-server: {reason}; start the server again\n", code=1)
    await process.start(port)
    assert await answer == truth
    await process.term()
    await process.ended()


async def to_the_end(talk) -> None:
    while True:
        await talk.receive()


@pytest.mark.slow
async def test_a_second_signal_ends_it_at_once(process, port, tmp_path):
    pace = tmp_path / "slow.toml"
    pace.write_text('source = "a test"\nverify_ms = 500.0\ndraft_level_ms = 1.0\nserver_level_ms = 1.0\n')
    await process.start(port, "--drain", "1000", "--pace", str(pace))
    address = f"127.0.0.1:{port}"
    async with grpc.aio.insecure_channel(address) as channel, calling(address) as talk:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""))
        assert (await watch.read()).status == SERVING
        await talk.open(Verifier(Target.load(str(TARGET))).describe())
        await talk.send(Decode(1, 0, PROMPT[:2], PROMPT[2], 400))  # 200 seconds
        assert isinstance(await talk.receive(), Verdict)
        await process.term()
        assert (await watch.read()).status == NOT_SERVING
        assert isinstance(await talk.receive(), Verdict)
        await process.term()
        await process.ended()
        with pytest.raises((Refusal, LinkError)):
            await to_the_end(talk)


ENDING = "outrider-server: what was under way does not end; ending without it\n"
HANGS = ["a pass", "the event loop", "all threads of the loop", "the disk under its log", "the disk with its keys"]


@pytest.mark.parametrize("what", [pytest.param(what, marks=pytest.mark.slow) for what in HANGS[2:]] + HANGS[:2])
@pytest.mark.parametrize("signals", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_a_signal_ends_it_whatever_hangs(process, port, tmp_path, what, signals):
    """Two seconds after the time to drain, of which a second signal leaves one: told by the process's own clock."""
    keys = tmp_path / "keys.toml"
    secret = new_secret("a")
    write_keys(keys, [Key("a", digest_of(secret), frozenset(Scope))])
    drain = "1" if signals == 1 else "1000"
    await process.start(port, "--drain", drain, "--keys", str(keys), passes=2 if what == "a pass" else None, hang=what)
    async with calling(f"127.0.0.1:{port}", secret) as talk:
        if what != "the event loop":
            await talk.open(Verifier(Target.load(str(TARGET))).describe())
            await talk.send(Decode(1, 0, PROMPT[:2], PROMPT[2], 400))
        for _ in range(signals):
            await asyncio.sleep(0.5)  # or two signals are one, where the process has not had the first yet
            await process.term()
        await process.ended("" if "disk under" in what else ENDING)


async def test_signals_that_come_as_it_ends_change_nothing(process, port):
    await process.start(port)
    for _ in range(300):
        await process.term()
        await asyncio.sleep(0.005)
    assert (await process._ask({"end": True}))["code"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_at_once_while_it_loads(process, port, number):
    await process.start(port, "--drain", "1000", hang="its load")
    await process.signal(number)
    await process.ended(code=-number)


@pytest.mark.parametrize("what", ["a pass", "all threads of the loop", "the disk under its log"])
async def test_a_revoked_key_ends_its_stream_whatever_hangs(process, port, tmp_path, what):
    keys = tmp_path / "keys.toml"
    secret, other = new_secret("a"), new_secret("b")
    write_keys(keys, [Key("a", digest_of(secret), frozenset(Scope))])
    await process.start(port, "--drain", "0", "--keys", str(keys), passes=1 if what == "a pass" else None, hang=what)
    async with calling(f"127.0.0.1:{port}", secret) as talk:
        await talk.open(Verifier(Target.load(str(TARGET))).describe())
        await talk.send(Decode(1, 0, PROMPT[:2], PROMPT[2], 100_000 if what == "a pass" else 1))
        if what != "a pass":
            assert isinstance(await talk.receive(), Verdict)
        write_keys(keys, [Key("b", digest_of(other), frozenset(Scope))])
        refusal = await talk.refusal()
    assert refusal.reason is Reason.NO_KEY
    await process.term()
    await process.term()
    await process.ended("" if "disk" in what else ENDING)
