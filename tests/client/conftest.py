"""A verifier and a drafter whose every token follows from a hash, so that the client's loops run without models."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from outrider_client.async_client import AsyncClient
from outrider_client.cli.app import main
from outrider_client.connection.policy import Backoff, Patience, Timeouts
from outrider_client.connection.transport import LocalTransport
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.drafter import UNLIMITED, tree_logits_by_level
from outrider_drafters.contracts.tree_shape import TreePlan, TreeShape
from outrider_proto import PROTOCOL_VERSION
from outrider_proto.errors import LinkError, Refusal
from outrider_proto.frames import (
    Cancel,
    ClientFrame,
    Close,
    Decode,
    Draft,
    Features,
    Finish,
    Open,
    Opened,
    Ping,
    Pong,
    ServerDescription,
    ServerFrame,
    TapInfo,
    Verdict,
)
from outrider_proto.packing import prefix_hash
from outrider_proto.tree import ROOT

sys.path.insert(0, str(Path(__file__).parent))  # for what tests and processes that they start share
sys.path.append(str(Path(__file__).parents[1] / "drafters"))  # for what writes GGUF files

VOCAB = 64
EOS = 0
WIDTH = 3
MAX_CONTEXT = 200
TAP = TapInfo("fake-tap", "fake", WIDTH)


def _hashed(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")


@dataclass
class Language:
    """The text that the target writes: a function of the last three tokens and their position."""

    eos_at: int = -1  # position of an end-of-text token
    salt: int = 0

    def following(self, tokens: Sequence[int]) -> int:
        if len(tokens) == self.eos_at:
            return EOS
        return 1 + _hashed(self.salt, len(tokens), tuple(tokens[-3:])) % (VOCAB - 1)

    def answer(self, prompt: Sequence[int], max_new_tokens: int) -> tuple[int, ...]:
        """The plain loop, our oracle."""
        tokens = list(prompt)
        while len(tokens) < len(prompt) + max_new_tokens and tokens[-1:] != [EOS]:
            tokens.append(self.following(tokens))
        return tuple(tokens[len(prompt) :])


def rows_of(tokens: Sequence[int], first: int, end: int) -> np.ndarray:
    return np.array([[p, tokens[p], sum(tokens[: p + 1])] for p in range(first, end)], dtype=np.float32).reshape(
        -1, WIDTH
    )


@dataclass
class FakeVerifier:
    """The server's side of the contract, on a Language. Faults are switched on from outside."""

    language: Language
    sessions: dict[str, list[int]] = field(default_factory=dict)  # tokens whose K/V it holds
    bonuses: dict[str, int | None] = field(default_factory=dict)  # what each session's last verdict ended with
    num_stale: int = 0
    opens: list[Open] = field(default_factory=list)
    requests: list[Draft | Decode] = field(default_factory=list)
    num_verdicts: int = 0
    cut_before: set[int] = field(default_factory=set)  # the link dies instead of the n-th verdict (from 0)
    cut_after: set[int] = field(default_factory=set)  # ... right after it
    down_for: int = 0  # so many connects fail
    flowing: asyncio.Event = field(default_factory=asyncio.Event)  # cleared: connections stay up and say nothing
    refusal: Refusal | None = None
    request_sampling: bool = True
    tree_budget: int = 0  # nodes that its verdicts ask for at most, as a busy server's do

    def __post_init__(self) -> None:
        self.flowing.set()

    def describe(self) -> ServerDescription:
        return ServerDescription(PROTOCOL_VERSION, "0", "fake", "t", "k", VOCAB, MAX_CONTEXT, 255, (EOS,), (TAP,))

    async def session(self, incoming: AsyncIterator[ClientFrame]) -> AsyncGenerator[ServerFrame, None]:
        if self.down_for:
            self.down_for -= 1
            raise LinkError("down")
        session_id, last_seq = "", 0
        cancelled: set[int] = set()
        async with contextlib.aclosing(heeding_cancels(incoming, cancelled)) as frames:
            async for frame in frames:
                await self.flowing.wait()
                match frame:
                    case Open():
                        session_id, opened = self._opened(frame)
                        yield opened
                    case Ping():
                        yield Pong(frame.nonce)
                    case Draft() | Decode():
                        assert frame.seq > last_seq
                        last_seq = frame.seq
                        self.requests.append(frame)
                        for reply in self._until(cancelled, session_id, frame):
                            await asyncio.sleep(0)
                            await self.flowing.wait()
                            yield reply
                    case Close():
                        self.sessions.pop(session_id, None)
                        return

    def _opened(self, frame: Open) -> tuple[str, Opened]:
        self.opens.append(frame)
        resumed = frame.session_id in self.sessions
        session_id = frame.session_id if resumed else f"s{len(self.opens)}"
        held = self.sessions.setdefault(session_id, [])
        del held[frame.committed_len :]
        kept = len(held), prefix_hash(held)
        opened = Opened(session_id, resumed, *kept, MAX_CONTEXT, 255, (EOS,), True, self.request_sampling)
        return session_id, opened

    def _until(self, cancelled: set[int], session_id: str, frame: Draft | Decode):
        """The replies, up to the first one before which a Decode was cancelled."""
        for reply in self._replies(session_id, frame):
            yield reply
            should_continue = not reply.last if isinstance(reply, Features) else reply.finish is Finish.NOT_YET
            whole = frame.features_from is None or isinstance(reply, Features)
            if isinstance(frame, Decode) and frame.seq in cancelled and should_continue and whole:
                yield Verdict(frame.seq, (), None, Finish.CANCELLED)
                if frame.features_from is not None:  # the newest row again
                    held = self.sessions[session_id]
                    yield Features(frame.seq, len(held) - 1, rows_of(held, len(held) - 1, len(held)), last=True)
                return

    def _replies(self, session_id: str, frame: Draft | Decode):
        if self.refusal is not None:
            raise self.refusal
        held = self.sessions[session_id]
        if isinstance(frame, Draft) and frame.assumes:
            assert not frame.context
            bonus = self.bonuses.get(session_id)
            if len(held) != frame.base_len or bonus is None or prefix_hash([*held, bonus]) != frame.assumes:
                self.num_stale += 1
                yield Verdict(frame.seq, (), None, stale=True)
                return
        assert frame.base_len <= len(held)
        del held[frame.base_len :]
        held += [*frame.context, frame.root]
        assert len(held) < MAX_CONTEXT
        if isinstance(frame, Draft):
            yield from self._judge(session_id, held, frame)
        elif frame.tree is not None:
            yield from self._draft(held, frame)
        else:
            yield from self._decode(held, frame)

    def _draft(self, held: list[int], frame: Decode):
        """Up to `levels` tokens and a bonus a time."""
        left = frame.max_tokens
        first = frame.features_from
        while True:
            tokens: list[int] = []
            while len(tokens) < min(_hashed("accepts", held) % (frame.tree.levels + 1), left - 1):
                token = self.language.following(held)
                if token == EOS or len(held) >= MAX_CONTEXT - 2:
                    break
                tokens.append(token)
                held.append(token)
            bonus = self.language.following(held)
            left -= len(tokens) + 1
            finish = _finish(bonus, held, is_last=left == 0)
            yield from self._verdict(Verdict(frame.seq, (), bonus, finish, 10, 20, tokens=tuple(tokens)))
            if first is not None:
                yield Features(frame.seq, first, rows_of(held, first, len(held)), last=finish is not Finish.NOT_YET)
                first = len(held)
            if finish is not Finish.NOT_YET:
                return
            held.append(bonus)

    def _judge(self, session_id: str, held: list[int], frame: Draft):
        path, node = [], ROOT
        while len(held) < MAX_CONTEXT - 1:
            token = self.language.following(held)
            child = frame.tree.child(node, token)
            if child is None:
                break
            path.append(child)
            held.append(token)
            node = child
            if token == EOS:
                break
        ended = held[-1] == EOS and bool(path)
        bonus = None if ended else self.language.following(held)
        full = Finish.CONTEXT_FULL if len(held) >= MAX_CONTEXT - 1 else Finish.NOT_YET
        finish = Finish.EOS if ended or bonus == EOS else full
        self.bonuses[session_id] = None if finish is Finish.EOS else bonus
        yield from self._verdict(Verdict(frame.seq, tuple(path), bonus, finish, 10, 20, tree_budget=self.tree_budget))
        yield Features(frame.seq, frame.features_from, rows_of(held, frame.features_from, len(held)), last=True)

    def _decode(self, held: list[int], frame: Decode):
        first = frame.features_from
        for i in range(frame.max_tokens):
            token = self.language.following(held)
            finish = _finish(token, held, is_last=i + 1 == frame.max_tokens)
            yield from self._verdict(Verdict(frame.seq, (), token, finish, 10, 20))
            if first is not None:
                yield Features(frame.seq, first, rows_of(held, first, len(held)), last=finish is not Finish.NOT_YET)
                first = len(held)
            if finish is not Finish.NOT_YET:
                return
            held.append(token)

    def _verdict(self, verdict: Verdict):
        number = self.num_verdicts
        self.num_verdicts += 1
        if number in self.cut_before:
            raise LinkError("cut")
        yield verdict
        if number in self.cut_after:
            raise LinkError("cut")


def _finish(token: int, held: list[int], *, is_last: bool) -> Finish:
    full = Finish.CONTEXT_FULL if len(held) >= MAX_CONTEXT - 1 else Finish.NOT_YET
    return Finish.EOS if token == EOS else Finish.LIMIT if is_last else full


async def heeding_cancels(
    incoming: AsyncIterator[ClientFrame], cancelled: set[int]
) -> AsyncGenerator[ClientFrame, None]:
    """The frames in their order, but Cancels are noted as soon as they come."""
    frames: asyncio.Queue[ClientFrame | None] = asyncio.Queue()

    async def read() -> None:
        async for frame in incoming:
            if isinstance(frame, Cancel):
                cancelled.add(frame.seq)
            else:
                frames.put_nowait(frame)
        frames.put_nowait(None)

    reading = asyncio.create_task(read(), name="fake server reader")
    try:
        while (frame := await frames.get()) is not None:
            yield frame
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


class FakeDraftState:
    """Guesses the language's next token three times out of four. Checks that features belong to their tokens."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self.tokens: list[int] = []
        self.num_features = 0
        self._paths: list[tuple[int, ...]] = []
        self.max_levels = UNLIMITED

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def append(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens

    def add_features(self, first: int, rows: torch.Tensor) -> None:
        assert first <= self.num_features
        expected = rows_of(self.tokens, first, first + len(rows))
        assert np.array_equal(rows.numpy(), expected)
        self.num_features = max(self.num_features, first + len(rows))

    def rollback(self, num_tokens: int) -> None:
        assert num_tokens <= len(self.tokens)
        del self.tokens[num_tokens:]
        self.num_features = min(self.num_features, num_tokens)

    def root_logits(self) -> torch.Tensor:
        self._paths = []
        return self._logits(())

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        known = list(self._paths)
        for token, parent in zip(tokens, parents, strict=True):
            self._paths.append((*(() if parent == ROOT else known[parent]), token))
        return torch.stack([self._logits(path) for path in self._paths[len(known) :]])

    def tree_logits(self, tree) -> torch.Tensor:
        return tree_logits_by_level(tree, self.root_logits(), self.expand)

    def _logits(self, path: tuple[int, ...]) -> torch.Tensor:
        text = (*self.tokens, *path)
        generator = torch.Generator().manual_seed(_hashed("drafter", text))
        logits = torch.randn(VOCAB, generator=generator)
        if _hashed("agrees", text) % 4:
            logits[self._language.following(text)] += 8.0
        return logits


@dataclass
class FakeDrafter:
    language: Language
    family: str = "fake"
    tap: TapInfo = TAP
    vocab_size: int = VOCAB
    plan: TreePlan | None = None
    stale_tolerant: bool = False
    tree_in_one_pass: bool = False
    levels_per_pass: int = 1

    def new_state(self) -> FakeDraftState:
        return FakeDraftState(self.language)


class Letters:
    """Token 1 is 'a' and so on; the end of text says nothing."""

    control = SimpleNamespace(guarded=str, apart=str)  # as no text spells its control tokens

    def encode(self, text: str) -> list[int]:
        return [1 + (ord(char) - ord("a")) % (VOCAB - 1) for char in text]

    def encode_chat(self, messages, form=None, tools=None) -> list[int]:
        return self.encode_part(self.render(messages))

    def render(self, messages) -> str:
        return "".join(f"\0{message['content']}" for message in messages)

    def encode_part(self, text: str) -> list[int]:
        return [EOS if char == "\0" else self.encode(char)[0] for char in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(ord("a") + token - 1) for token in tokens if token != EOS)


def fake_models(language: Language, drafter: FakeDrafter | None) -> LocalModels:
    return LocalModels(drafter, VOCAB, MAX_CONTEXT, (EOS,), "t", "k", Letters)


FAST = ClientConfig(
    mode="stop-and-wait",
    shape=TreeShape(breadth=2, levels=4, budget=6),
    timeouts=Timeouts(connect_s=0.5, reconnect_s=0.05, open_s=0.5, features_s=1.0, verdict_s=5.0),
    patience=Patience(floor_s=1.0),  # so that a busy machine is not taken for a lost link
    backoff=Backoff(first_s=0.001, cap_s=0.002),
    max_new_tokens=40,
    wait_for_link_s=5.0,
)


@pytest.fixture
def command_line(monkeypatch, capsys):
    """Run the command with these arguments and standard input; returns exit code, standard output and error."""

    def run(*arguments: str, typed: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["outrider", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        heard = capsys.readouterr()
        return code, heard.out, heard.err

    return run


@pytest.fixture
def language() -> Language:
    return Language()


@pytest.fixture
def verifier(language: Language) -> FakeVerifier:
    return FakeVerifier(language)


@pytest.fixture
def models(language: Language) -> LocalModels:
    return fake_models(language, FakeDrafter(language))


@pytest.fixture
def bare_models(language: Language) -> LocalModels:
    """Without a drafter."""
    return fake_models(language, None)


@pytest.fixture
def fast() -> ClientConfig:
    """Waits so short that outages cost a test nothing."""
    return FAST


@pytest.fixture
async def connect(verifier: FakeVerifier, models: LocalModels):
    """Clients of the fake verifier, closed at the end."""
    clients: list[AsyncClient] = []

    def make(config: ClientConfig = FAST, models: LocalModels = models) -> AsyncClient:
        transport = LocalTransport(verifier.describe, verifier.session)
        clients.append(AsyncClient(config, models=models, transport=transport))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()
