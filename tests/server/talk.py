"""A client for tests: frames to a verifier in process, or over gRPC, one at a time."""

import asyncio
import time
from contextlib import asynccontextmanager, suppress

import grpc
import numpy as np
import pytest
import torch
from tiny_targets import random_tokens, target

from outrider_drafters.contracts.tap import Activations, LastHiddenTap, StatelessTap
from outrider_proto import verifier_pb2 as pb
from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Draft, Features, Finish, Open, TapInfo, Verdict
from outrider_proto.status import error_from_rpc
from outrider_proto.tree import DraftTree
from outrider_proto.wire import client_frame_to_proto, server_frame_from_proto
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.target import Target
from outrider_server.security.principal import ANONYMOUS, Principal
from outrider_server.sessions.verifier import Verifier

WAIT_S = 60  # no answer takes that long; it only keeps a broken test from hanging
NO_TREE = DraftTree()
PROMPT = random_tokens(np.random.default_rng(1), 12)


class KeysTap(StatelessTap):
    """Keys of one layer, newest row only."""

    needs_kv = True
    hidden_layers = ()
    info = TapInfo("keys", "test", 16, newest_only=True)

    def rows(self, acts: Activations) -> torch.Tensor:
        return acts.keys[1].transpose(0, 1).flatten(1)


class Talk:
    """One stream."""

    def __init__(self, send, receive, hang_up) -> None:
        self.send = send
        self._receive = receive
        self.hang_up = hang_up
        self.seq = 0

    async def receive(self):
        return await asyncio.wait_for(self._receive(), WAIT_S)

    async def open(self, about, **changes):
        fields = {
            "protocol_version": about.protocol_version,
            "target_fingerprint": about.target_fingerprint,
            "tokenizer_fingerprint": about.tokenizer_fingerprint,
            "codec": "float32",
        } | changes
        if not isinstance(tap := fields.get("tap", ""), str):
            fields["tap"] = tap.info.fingerprint
        await self.send(Open(**fields))
        return await self.receive()

    async def draft(self, base_len: int, context, root: int, tree: DraftTree = NO_TREE, **more) -> None:
        self.seq += 1
        await self.send(Draft(self.seq, base_len, tuple(context), root, tree, **more))

    async def verdict(self, *draft, **more) -> Verdict:
        """Send a draft, skip features until its verdict."""
        await self.draft(*draft, **more)
        while not isinstance(frame := await self.receive(), Verdict):
            assert isinstance(frame, Features)
        assert frame.seq == self.seq
        return frame

    async def prompt(self, tokens) -> Verdict:
        return await self.verdict(0, tokens[:-1], tokens[-1])

    async def decode(self, base_len: int, context, root: int, count: int, **more) -> list[Verdict]:
        """All verdicts of a Decode; its features are skipped."""
        self.seq += 1
        await self.send(Decode(self.seq, base_len, tuple(context), root, count, **more))
        verdicts: list[Verdict] = []
        while not verdicts or verdicts[-1].finish is Finish.NOT_YET:
            if isinstance(frame := await self.receive(), Verdict):
                verdicts.append(frame)
        return verdicts

    async def refusal(self) -> Refusal:
        """The refusal that the stream ends with; frames before it are skipped."""
        try:
            while await self.receive() is not None:
                pass
        except Refusal as refusal:
            return refusal
        raise AssertionError("the stream ended without a refusal")


class Clock:
    """Stands still unless told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def text_of(verdicts: list[Verdict]) -> list[int]:
    return [token for verdict in verdicts for token in (*verdict.tokens, verdict.bonus) if token is not None]


def refused(reason: Reason, match: str | None = None):
    return pytest.raises(Refusal, match=match, check=lambda refusal: refusal.reason is reason)


@asynccontextmanager
async def serving(on: Target | None = None, taps=None, drafters=(), clock=time.monotonic, **more):
    """A verifier that serves; `more` are limits, and a pace or an observer."""
    how = {name: more.pop(name) for name in ("pace", "observer") if name in more}
    limits = LimitsConfig(**{"kv_memory": "256MiB"} | more)
    taps = [TAP] if taps is None else taps
    async with started(Verifier(on or target(), taps, limits, clock, drafters=drafters, **how)) as verifier:
        yield verifier


@asynccontextmanager
async def started(verifier: Verifier):
    """A verifier that serves."""
    await verifier.start()
    try:
        yield verifier
    finally:
        await verifier.stop()


@asynccontextmanager
async def talking(verifier: Verifier, principal: Principal = ANONYMOUS):
    """A stream in process."""
    inbox: asyncio.Queue = asyncio.Queue()

    async def incoming():
        while (frame := await inbox.get()) is not None:
            yield frame

    outgoing = verifier.session(incoming(), principal)

    async def hang_up() -> None:
        await outgoing.aclose()

    try:
        yield Talk(inbox.put, lambda: anext(outgoing, None), hang_up)
    finally:
        await outgoing.aclose()


@asynccontextmanager
async def conversing(verifier: Verifier, principal: Principal = ANONYMOUS, **changes):
    """A stream in process whose session is open."""
    async with talking(verifier, principal) as talk:
        await talk.open(verifier.describe(), **changes)
        yield talk


@asynccontextmanager
async def calling(address: str, key: str | None = None, credentials: grpc.ChannelCredentials | None = None):
    """A stream over gRPC, with `send_message` for what no honest client sends."""
    secure = credentials is not None
    making = grpc.aio.secure_channel(address, credentials) if secure else grpc.aio.insecure_channel(address)
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    async with making as channel:
        call = channel.stream_stream(
            "/outrider.v1.Verifier/Session", pb.ClientFrame.SerializeToString, pb.ServerFrame.FromString
        )(metadata=metadata)

        async def send(frame) -> None:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # ended already: `receive` says why
                await call.write(client_frame_to_proto(frame))

        async def receive():
            try:
                message = await call.read()
            except grpc.aio.AioRpcError as error:
                raise error_from_rpc(error) from error
            if message is grpc.aio.EOF:
                if await call.code() is grpc.StatusCode.OK:
                    return None
                raise error_from_rpc(await failure(call))
            return server_frame_from_proto(message)

        async def hang_up() -> None:
            call.cancel()

        talk = Talk(send, receive, hang_up)
        talk.send_message = call.write
        talk.end = call.done_writing
        yield talk


async def failure(call) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
    )


TAP = LastHiddenTap(32)
