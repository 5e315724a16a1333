"""The leak test: every byte that crosses the wire and every word that is logged or raised, searched for canaries."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import traceback
from dataclasses import replace

import pytest

from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.grpc_transport import GrpcTransport
from outrider_client.connection.policy import Patience, Timeouts
from outrider_client.connection.transport import LocalTransport
from outrider_client.core.events import Finished, LinkChanged, Private, Warned
from outrider_client.core.prompt import Segment, is_private
from outrider_client.models.local_models import LocalModels
from outrider_client.models.private_tokens import PrivateSplit
from outrider_client.privacy.fences import parse_fences
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.load import load_tap
from outrider_proto import verifier_pb2 as pb
from outrider_proto.errors import OutriderError, Reason, Refusal
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

from ..canaries import Asked, Relay, Tap, asked, needles, prefix_hashes, texts_of, tokens_of
from ..conftest import FAST, FakeDrafter, FakeVerifier, Language, Letters, fake_models

MODES = ("auto", "stop-and-wait", "proactive", "pipelined", "server-draft", "stream", "offline")
SHORT = replace(FAST, max_new_tokens=6)
STALL_S = 60.0
NUM_IN_PROCESS, NUM_SOCKETS = 720, 40  # a session each of 20; of each mode: 720 + 7 * 40 = 1000


class Watch:
    """Collects what the device shows apart from the texts of answers: events, errors and logs."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def event(self, event) -> None:
        match event:
            case LinkChanged() | Warned() | Finished():
                self.shown.append(repr(event))

    def error(self, error: BaseException) -> None:
        self.shown.append("".join(traceback.format_exception(error)))

    @property
    def text(self) -> bytes:
        return "\n".join(self.shown).encode()


class Haul:
    """All that one session could have leaked, to be searched for its canaries."""

    def __init__(self, tap: Tap, models: LocalModels) -> None:
        self._tap = tap
        self._models = models
        self.watch = Watch()
        self._asked: list[tuple[Asked, set[bytes]]] = []

    async def ask(self, client: AsyncClient, made: Asked, **overrides) -> None:
        forms, answer = needles(made, self._models.text.encode), []
        try:
            async with contextlib.aclosing(client.generate(made.prompt, **overrides)) as events:
                async for event in events:
                    self.watch.event(event)
                    if isinstance(event, Private):
                        answer += event.tokens
        except OutriderError as error:
            self.watch.error(error)
        if overrides["privacy"] == "local" and is_private(made.prompt):
            forms |= set(prefix_hashes(self._models.split(made.prompt, raw=False), answer))
        self._asked.append((made, forms))

    def leaks(self, *sent: bytes) -> list[str]:
        """The canaries that are anywhere in frames, in `sent` or in what was told."""
        frames = b"".join([*self._tap.up, *self._tap.down, *sent])
        shown = self.watch.text
        return [
            canary
            for made, forms in self._asked
            for canary in made.canaries
            if any(form in frames for form in forms) or any(form in shown for form in self._spelt(canary))
        ]

    def _spelt(self, canary: str):
        return [*texts_of(canary), *tokens_of(canary, self._models.text.encode)]


def in_process(seed: int) -> tuple[Tap, LocalModels, FakeVerifier]:
    generator, language = random.Random(seed), Language(salt=seed)
    verifier = FakeVerifier(language, cut_before={n for n in range(10**4) if generator.random() < 0.04})
    models = fake_models(language, FakeDrafter(language))
    return Tap(LocalTransport(verifier.describe, verifier.session)), models, verifier


async def session_in_process(seed: int, num_prompts: int) -> Haul:
    """Private prompts in all modes, ordinary ones between them that begin alike, errors, and a cut now and then."""
    generator = random.Random(seed)
    tap, models, verifier = in_process(seed)
    haul = Haul(tap, models)
    async with AsyncClient(SHORT, models=models, transport=tap) as client:
        for number in range(num_prompts):
            made = asked(generator)
            ways = {
                "mode": MODES[number % len(MODES)],
                "privacy": generator.choice(("local", "placeholder")),
                "on_reconnect": generator.choice(("keep", "verify")),
            }
            if number % 10 == 9:
                await fail(haul, client, verifier, made, generator.choice((0, 1)), ways)
            await haul.ask(client, made, **ways)
            if number % 3 == 0:
                await haul.ask(client, Asked(safe_beginning(made)), **ways)
    return haul


def safe_beginning(made: Asked) -> str:
    """An ordinary prompt that shares with a private one what it can."""
    turn = made.prompt[0]["content"] if isinstance(made.prompt[0], dict) else made.prompt
    texts = []
    for segment in turn:
        if segment.private:
            break
        texts.append(segment.text)
    return "".join(texts) or "hello"


async def fail(haul: Haul, client: AsyncClient, verifier: FakeVerifier, made: Asked, way: int, ways) -> None:
    """Too long a prompt, or a server that refuses."""
    if way:
        long = Asked([Segment("ab "), Segment(made.canaries[0] * 30, private=True)], made.canaries)
        await haul.ask(client, long, **{**ways, "privacy": "local"})
    else:
        verifier.refusal = Refusal(Reason.SERVER_FULL, "full")
        await haul.ask(client, made, **ways)
        verifier.refusal = None
    with contextlib.suppress(OutriderError):
        try:
            parse_fences(f"a <<private: {made.canaries[0]}")
        except OutriderError as error:
            haul.watch.error(error)
            raise


class Bytes(Letters):
    """A token a byte."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    encode_part = encode

    def render(self, messages) -> str:
        return "".join(f"\1{message['content']}" for message in messages)

    def decode(self, tokens) -> str:
        return bytes(tokens).decode("latin-1")


@pytest.fixture(scope="module")
def tiny():
    """A real target of random weights with its drafter."""
    from pathlib import Path

    golden = Path(__file__).parents[2] / "data" / "golden"
    target, drafter = golden / "target_tiny", golden / "moa_tli0" / "drafter"
    loaded = Target.load(str(target))
    models = LocalModels.load(ClientConfig(target=target, drafter=drafter, offline_drafter=str(drafter)))
    return loaded, load_tap(drafter, target), models


def server_of(tiny) -> Server:
    target, tap, models = tiny
    return Server(Verifier(target, [tap], drafters=[models.drafter]))


async def session_on_sockets(tiny, mode: str, num_prompts: int) -> tuple[Haul, bytes]:
    """The same over gRPC without TLS, through a relay that keeps all bytes and cuts the line now and then."""
    generator = random.Random(mode)
    models = replace(tiny[2], load_text=Bytes)
    async with server_of(tiny) as server, Relay(server.address) as relay:
        tap = Tap(GrpcTransport(relay.address))
        haul = Haul(tap, models)
        config = replace(SHORT, shape=TreeShape(2, 3, 5), patience=Patience(floor_s=2.0), wait_for_link_s=20.0)
        async with AsyncClient(config, models=models, transport=tap) as client:
            for number in range(num_prompts):
                made = asked(generator)
                privacy = ("local", "placeholder")[number % 2]
                cutting = asyncio.get_running_loop().call_later(0.01, relay.cut) if number % 5 == 4 else None
                await haul.ask(client, made, mode=mode, privacy=privacy)
                if number % 4 == 0:
                    await haul.ask(client, Asked(safe_beginning(made)), mode=mode, privacy=privacy)
                if cutting is not None:
                    cutting.cancel()
        return haul, bytes(relay.up + relay.down)


@pytest.mark.slow
async def test_no_canary_leaves_in_process(caplog):
    caplog.set_level(logging.DEBUG)
    leaks, num_asked = [], 0
    for seed in range(NUM_IN_PROCESS // 20):
        haul = await session_in_process(seed, 20)
        haul.watch.shown += logged(caplog)
        leaks += haul.leaks()
        num_asked += 20
    assert num_asked == NUM_IN_PROCESS
    assert leaks == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
async def test_no_canary_leaves_through_a_socket(tiny, mode, caplog):
    caplog.set_level(logging.DEBUG)
    haul, sent = await session_on_sockets(tiny, mode, NUM_SOCKETS)
    haul.watch.shown += logged(caplog)
    assert haul.leaks(sent) == []
    assert mode == "offline" or len(sent) > 10_000


@pytest.mark.parametrize("mode", ["stop-and-wait", "pipelined"])
async def test_no_canary_leaves_in_short(tiny, mode, caplog):
    caplog.set_level(logging.DEBUG)
    haul, sent = await session_on_sockets(tiny, mode, 6)
    haul.watch.shown += logged(caplog)
    assert haul.leaks(sent) == []
    small = await session_in_process(99, 14)
    assert small.leaks() == []


def logged(caplog) -> list[str]:
    return [record.getMessage() + str(record.exc_info or "") + str(record.__dict__) for record in caplog.records]


def send_all(self, prompt, *, raw):
    """A split that lets everything go."""
    return PrivateSplit(honest(self, prompt, raw=raw).whole, ())


honest = LocalModels.split


async def test_a_client_that_sends_the_whole_prompt_is_found(tiny, monkeypatch):
    monkeypatch.setattr(LocalModels, "split", send_all)
    assert (await session_in_process(1, 4)).leaks()
    haul, sent = await session_on_sockets(tiny, "stop-and-wait", 4)
    assert haul.leaks(sent)
    haul._tap.up.clear()
    haul._tap.down.clear()
    assert haul.leaks(sent)  # in the bytes of the socket alone, too


async def test_a_hash_and_a_log_line_are_found():
    tap, models, _ = in_process(4)
    haul = Haul(tap, models)
    made = Asked([Segment("ab"), Segment("abcdefghijkl", private=True)], ["abcdefghijkl"])
    async with AsyncClient(SHORT, models=models, transport=tap) as client:
        await haul.ask(client, made, mode="stream", privacy="local")
    assert haul.leaks() == []
    [*_, last] = prefix_hashes(models.split(made.prompt, raw=False), [])
    assert haul.leaks(last) == made.canaries
    haul.watch.shown.append("about bcdefg")
    assert haul.leaks() == made.canaries


def without_pings(frames: list[bytes]) -> list[bytes]:
    """Pings come by the clock; session ids are chance."""
    kept = []
    for frame in frames:
        message = pb.ClientFrame.FromString(frame)
        if message.WhichOneof("frame") == "ping":
            continue
        if message.WhichOneof("frame") == "open":
            message.open.ClearField("session_id")
        kept.append(message.SerializeToString())
    return kept


async def frames_of(seed: int, size: int, privacy: str, transport, models) -> list[bytes]:
    """Frames sent for the same safe parts, with private parts that differ and are `size` characters longer."""
    tap = Tap(transport)
    # Frames must follow from the prompts alone: not from when features come, nor from a stall taken for a lost link.
    steady = replace(
        SHORT, wait_for_features=True, opening=False, patience=Patience(floor_s=STALL_S),
        timeouts=Timeouts(connect_s=STALL_S, open_s=STALL_S, features_s=STALL_S),
    )  # fmt: skip
    async with AsyncClient(steady, models=models, transport=tap) as client:
        for number in range(4):
            made = asked(random.Random(seed * 10 + number), lambda: size)
            changed = altered(made.prompt, size)
            await client.complete(changed, mode="stop-and-wait", privacy=privacy)
            await client.complete(safe_beginning(made), mode="stop-and-wait", privacy=privacy)
    return without_pings(tap.up)


def altered(prompt, size: int):
    """Other letters in the private parts."""
    return [
        {**item, "content": altered(item["content"], size)} if isinstance(item, dict)
        else replace(item, text=item.text[::-1].replace("x", "yz"[size % 2])) if item.private else item
        for item in prompt
    ]  # fmt: skip


@pytest.mark.parametrize("privacy", ["local", "placeholder"])
@pytest.mark.parametrize("seed", range(6))
async def test_the_same_frames_whatever_is_private_and_however_long(seed, privacy):
    frames = []
    for size in (0, 3, 10):
        language = Language(salt=seed)
        verifier = FakeVerifier(language)
        transport = LocalTransport(verifier.describe, verifier.session)
        frames.append(await frames_of(seed, size, privacy, transport, fake_models(language, FakeDrafter(language))))
    assert frames[0] == frames[1] == frames[2]
    assert len(frames[0]) > 4


async def test_nothing_at_all_crosses_the_wire_while_it_writes(tiny):
    models = replace(tiny[2], load_text=Bytes)
    async with server_of(tiny) as server, Relay(server.address) as relay:
        config = replace(SHORT, server=relay.address, max_new_tokens=60, patience=Patience(floor_s=2.0))
        async with AsyncClient(config, models=models) as client:
            before, num_private = None, 0
            async for event in client.generate([Segment("some safe text "), Segment("zebra", private=True)]):
                num_private += isinstance(event, Private)
                if num_private == 1 and before is None:
                    await asyncio.wait_for(relay.silent(), 10)
                    before = len(relay.up), len(relay.down)
            assert num_private
        assert (len(relay.up), len(relay.down)) == before
        assert before[0] > 0


async def test_a_private_answer_sends_nothing_of_the_clients_own_schema():
    tap, models, _ = in_process(1)
    config = SHORT.for_answer(json_schema={"const": "Zanzibar"})
    async with AsyncClient(config, models=models, transport=tap) as client:
        with contextlib.suppress(OutriderError):  # these models follow no schema
            await client.complete([Segment("Say it: "), Segment("secret", private=True)], privacy="local")
    sent = b"".join(tap.up)
    assert sent
    assert b"Zanzibar" not in sent


def test_what_is_searched_for():
    """Hold the forms and their number, so that the search cannot silently find nothing."""
    made = Asked("", ["abcdefghijkl"])
    forms = needles(made, Letters().encode)
    assert b"\x01\0\0\x02\0\0\x03\0\0\x04\0\0\x05\0\0\x06\0\0" in forms
    assert b"1, 2, 3, 4, 5, 6" in forms
    assert b"ghijkl" in forms
    assert len(forms) > 60
