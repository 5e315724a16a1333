"""Whole streams on a verifier with a tiny target: frames of any kind, in any order, well-formed or not. However they
end, the next client is served, and as the target alone would have it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from functools import cache

import numpy as np
from google.protobuf.message import DecodeError
from talk import TAP
from tiny_targets import VOCAB, build

from fuzz_targets.target import Finding, FuzzTarget
from outrider_proto import frames as f
from outrider_proto import verifier_pb2 as pb
from outrider_proto.errors import OutriderError, Reason, Refusal, Violation
from outrider_proto.tree import DraftTree
from outrider_proto.wire import client_frame_from_proto, client_frame_to_proto, server_frame_to_proto
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target
from outrider_server.sessions.verifier import Verifier

_CONTEXT = 48
_STUCK_S = 60.0
_PROMPT = (5, 6, 7, 8)
_TEMPERATURES = (0.0, 0.7, 5e-324, 1e-30, 100.0, 1.0)
_MAX_FRAMES = 24


class _Bytes:
    """Numbers from the input, zeros behind its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count].ljust(count, b"\0")
        self._at += count
        return taken

    def number(self, below: int = 256) -> int:
        return self.take(1)[0] % below

    def tokens(self, count: int) -> tuple[int, ...]:
        """Now and then one that is none."""
        return tuple(byte % (VOCAB + 1) for byte in self.take(count))


class _Client:
    """Makes the frames of one stream after another."""

    def __init__(self, data: bytes) -> None:
        self._bytes = _Bytes(data)
        self._seq = 0
        self._num_frames = 0
        self.session_id = ""
        self.trees: dict[int, DraftTree] = {}

    @property
    def has_more(self) -> bool:
        return bool(self._bytes) and self._num_frames < _MAX_FRAMES

    def stream(self) -> Iterator[f.ClientFrame]:
        """Raises Violation for bytes that are no frame, as the service does."""
        self._seq = 0
        self.trees = {}
        while self.has_more:
            self._num_frames += 1
            match self._bytes.number(10):
                case 0:
                    yield _parsed(self._bytes.take(self._bytes.number(64)))
                case 1:
                    yield self._open("")
                case 2:
                    yield self._open(self.session_id)
                case 3 | 4 | 5:
                    yield self._draft()
                case 6:
                    yield self._decode()
                case 7:
                    yield f.Cancel(self._seq) if self._bytes.number(2) else f.Ping(self._bytes.number())
                case 8:
                    yield f.Close()
                case _:
                    return

    def _open(self, session_id: str) -> f.Open:
        temperature = _TEMPERATURES[self._bytes.number(len(_TEMPERATURES))]
        how: f.Acceptance = "typical" if temperature and self._bytes.number(2) else "exact"
        top_p = (self._bytes.number() + 1) / 256
        sampling = f.Sampling(temperature, self._bytes.number(), top_p, self._bytes.number(), how)
        tap = TAP.info.fingerprint if self._bytes.number(2) else ""
        codec = f.CODECS[self._bytes.number(len(f.CODECS))]
        return f.Open(1, "", "none", tap, codec, sampling, session_id, self._bytes.number())

    def _next_seq(self) -> int:
        self._seq += 0 if self._bytes.number(16) == 1 else 1
        return self._seq

    def _draft(self) -> f.Draft:
        seq, base_len, num_context = self._next_seq(), self._bytes.number(), self._bytes.number(_CONTEXT)
        context, (root,), num_nodes = self._bytes.tokens(num_context), self._bytes.tokens(1), self._bytes.number(12)
        parents = tuple(self._bytes.number(node + 1) - 1 for node in range(num_nodes))
        tree = DraftTree(self._bytes.tokens(num_nodes), parents)
        assumes = self._bytes.take(8) if self._bytes.number(8) == 1 else b""
        features_from, logprobs = self._bytes.number(), self._bytes.number(24) or None
        self.trees[seq] = tree
        return f.Draft(seq, base_len, context, root, tree, features_from, assumes, logprobs)

    def _decode(self) -> f.Decode:
        seq, base_len, num_context = self._next_seq(), self._bytes.number(), self._bytes.number(_CONTEXT)
        context, (root,) = self._bytes.tokens(num_context), self._bytes.tokens(1)
        tree = f.ServerTree(1, 1, 1) if self._bytes.number(16) == 1 else None
        features_from = self._bytes.number() if self._bytes.number(2) else None
        return f.Decode(seq, base_len, context, root, self._bytes.number(), features_from, tree)


def _parsed(data: bytes) -> f.ClientFrame:
    try:
        return client_frame_from_proto(pb.ClientFrame.FromString(data))
    except DecodeError as error:
        raise Violation(Reason.MALFORMED_FRAME, "not a ClientFrame") from error


@cache
def _target() -> Target:
    return Target.of(build("llama"), max_context=_CONTEXT)


@cache
def _answer() -> tuple[int, ...]:
    return tuple(plain_greedy(_target(), _PROMPT, 6))


def _run(data: bytes) -> None:
    asyncio.run(_serve(data))


async def _serve(data: bytes) -> None:
    _answer()  # the oracle runs on the same model, which must not serve then
    verifier = Verifier(_target(), [TAP], LimitsConfig(max_sessions=2, chunk_tokens=16))
    await verifier.start()
    try:
        async with asyncio.timeout(_STUCK_S):
            client = _Client(data)
            while client.has_more:
                await _talk(verifier, client)
            await _serve_an_honest_one(verifier)
    finally:
        await verifier.stop()


async def _talk(verifier: Verifier, client: _Client) -> None:
    """One stream."""
    try:
        async with aclosing(verifier.session(_incoming(client.stream()))) as outgoing:
            async for frame in outgoing:
                _check(frame, client)
    except OutriderError as error:
        if not isinstance(error, Refusal) or error.reason is Reason.INTERNAL:
            raise Finding(f"session: {error!r}") from error


async def _incoming(frames: Iterator[f.ClientFrame]) -> AsyncIterator[f.ClientFrame]:
    for frame in frames:
        yield frame
        await asyncio.sleep(0)


def _check(frame: f.ServerFrame, client: _Client) -> None:
    match frame:
        case f.Opened():
            client.session_id = frame.session_id
            assert frame.kept_len <= _CONTEXT
        case f.Verdict():
            client.trees.get(frame.seq, DraftTree()).path_tokens(frame.path)
            assert frame.bonus is None or 0 <= frame.bonus < VOCAB
        case f.Features():
            assert np.isfinite(frame.rows).all()
            assert frame.first + len(frame.rows) <= _CONTEXT
    assert list(server_frame_to_proto(frame, "int8")) or isinstance(frame, f.Features)


async def _serve_an_honest_one(verifier: Verifier) -> None:
    """Exactly, whatever came before; sessions that were left behind make room."""
    opening = f.Open(1, "", "none")
    request = f.Decode(1, 0, _PROMPT[:-1], _PROMPT[-1], len(_answer()))
    async with aclosing(verifier.session(_incoming(iter((opening, request))))) as outgoing:
        tokens = [frame.bonus async for frame in outgoing if isinstance(frame, f.Verdict)]
    if tuple(tokens) != _answer():
        raise Finding(f"session: the next client was told {tokens}, the target says {_answer()}")


def _seeds() -> dict[str, bytes]:
    opening = bytes([1, 0, 0, 255, 0, 0, 0, 0, 0])  # operation, temperature (greedy), top_k, top_p, seed, tap, ...
    sampled = [bytes([1, n, 0, 0, 255, 0, 1, 1, 0]) for n in range(1, len(_TEMPERATURES))]
    prompt = bytes([3, 0, 0, 3, 5, 6, 7, 8, 0, 0, 0, 0])
    tree = bytes([3, 0, 4, 0, 9, 3, 0, 1, 2, 10, 11, 12, 0, 0, 0])
    decode = bytes([6, 0, 0, 3, 5, 6, 7, 8, 0, 0, 9])
    frame = client_frame_to_proto(f.Draft(9, 0, (5, 6), 7, DraftTree.chain([8, 9]))).SerializeToString()
    seeds = {
        "draft": opening + prompt + tree,
        "decode": opening + decode + b"\x07\x01" + tree,
        "again": opening + prompt + b"\x09" + b"\x02" + opening[1:] + tree,
        "bytes": opening + bytes([0, len(frame)]) + frame,
        "no-open": prompt,
        "close": opening + prompt + b"\x08" + tree,
        "stale": opening + prompt + bytes([3, 0, 4, 0, 9, 0, 1]) + struct.pack("<Q", 7),
        "beyond": opening + bytes([3, 0, 200, 0, 5]),
    }
    return seeds | {f"sampled-{n}": open_ + prompt + tree + decode for n, open_ in enumerate(sampled)}


TARGETS = (FuzzTarget("session", _run, _seeds, refusals=(), bound=None, max_len=512),)
