"""Hogs: clients that take all that a server lets them have, in a process of their own.

Like worker.py it answers `ready`, then `result` once its input is closed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from outrider_bench.load.clients.access_json import access_from_json
from outrider_bench.load.clients.texts import read_texts
from outrider_client.connection.grpc_transport import GrpcConnection, GrpcTransport
from outrider_proto.errors import LinkError, Refusal, UsageError
from outrider_proto.frames import (
    ClientFrame,
    Decode,
    Draft,
    Finish,
    Open,
    Opened,
    ServerDescription,
    ServerTree,
    Verdict,
)
from outrider_proto.tree import MAX_NODES, DraftTree

HogKind = Literal["features", "wide-drafts", "server-drafts", "decode", "prompts", "silent"]
KINDS: tuple[HogKind, ...] = get_args(HogKind)
_STREAMS: Mapping[HogKind, int] = {"silent": 48}  # how many a hog opens: the servers of these runs take 64 or more
_FEW_STREAMS = 4
_ASKED_EVERY_S = 0.005  # by a hog that does not wait for answers
_AGAIN_AFTER_S = 0.2  # a refusal
_BEHIND = 10  # niceness: the clients that are measured, on the same cores, come first
_NO_TREE = DraftTree()


@dataclass(frozen=True, slots=True)
class HogAssignment:
    """What one hog does, to which server, on `texts` (a file of load texts) and `cores` (empty: anywhere)."""

    kind: HogKind
    server: str
    texts: str
    cores: tuple[int, ...] = ()
    access: dict[str, Any] = field(default_factory=dict)  # Any: each option of the connection has its own type

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> HogAssignment:  # Any: JSON
        return cls(**{**found, "cores": tuple(found["cores"])})


def hog_kinds(text: str | None) -> tuple[HogKind, ...]:
    """Read `features,silent`, or `all`. Raises UsageError."""
    if text is None:
        return ()
    found = KINDS if text == "all" else tuple(text.split(","))
    if unknown := [kind for kind in found if kind not in KINDS]:
        raise UsageError(f"hogs={text}: unknown {', '.join(unknown)}: need {', '.join(KINDS)} or all")
    return found  # type: ignore[return-value] # checked


@dataclass(slots=True)
class HogCounts:
    """What a hog got: verdicts, and refusals by reason."""

    verdicts: int = 0
    refusals: Counter[str] = field(default_factory=Counter)


class HogStream:
    """One stream and its text."""

    def __init__(
        self,
        connection: GrpcConnection,
        about: ServerDescription,
        opened: Opened,
        text: tuple[int, ...],
        counts: HogCounts,
    ) -> None:
        self.connection, self.about, self.opened = connection, about, opened
        self.text = text
        self.base_len = 0  # tokens that the server holds of the text, once it has read it
        self._counts = counts
        self._numbers = itertools.count(1)

    def send_draft(self, tree: DraftTree = _NO_TREE, text: tuple[int, ...] | None = None) -> None:
        """Send a draft below the text, or below another; all features are asked for."""
        if text is not None:
            self.text, self.base_len = text, 0
        self._send(lambda seq, base, context, root: Draft(seq, base, context, root, tree))

    def send_decode(self, count: int, tree: ServerTree | None = None) -> None:
        self._send(lambda seq, base, context, root: Decode(seq, base, context, root, count, 0, tree))

    async def verdict(self) -> Verdict:
        """Read up to the next verdict."""
        while not isinstance(frame := await self.connection.receive(), Verdict):
            pass
        self._counts.verdicts += 1
        return frame

    def _send(self, frame: Callable[[int, int, tuple[int, ...], int], ClientFrame]) -> None:
        context = self.text[self.base_len : -1]
        self.connection.send(frame(next(self._numbers), self.base_len, context, self.text[-1]))
        self.base_len = len(self.text) - 1


async def ask_for_features(stream: HogStream) -> None:
    """Ask for the features of the whole text again and again, and read nothing."""
    while True:
        stream.send_draft()
        await asyncio.sleep(_ASKED_EVERY_S)


async def draft_widely(stream: HogStream) -> None:
    """Draft as many nodes as a frame holds, one draft after another."""
    count = min(MAX_NODES, stream.opened.max_nodes, stream.about.vocab_size)
    tree = DraftTree(tuple(range(count)), (-1,) * count)
    while True:
        stream.send_draft(tree)
        await stream.verdict()


async def have_drafts_grown(stream: HogStream) -> None:
    """Let the server draft, in the widest and deepest trees that it takes."""
    await _decode_again(stream, ServerTree.within(64, 64, MAX_NODES))


async def decode(stream: HogStream) -> None:
    """Have the server write as long an answer as fits, then again."""
    await _decode_again(stream, None)


async def _decode_again(stream: HogStream, tree: ServerTree | None) -> None:
    while True:
        stream.send_decode(stream.opened.max_context - len(stream.text), tree)
        while (await stream.verdict()).finish is Finish.NOT_YET:
            pass


async def prompt_anew(stream: HogStream) -> None:
    """Send one text after another that fills the context and that no other begins with."""
    whole = (stream.text * stream.opened.max_context)[: stream.opened.max_context - 2]
    for number in itertools.count():
        stream.send_draft(text=(number % stream.about.vocab_size, *whole))
        await stream.verdict()


async def stay_silent(stream: HogStream) -> None:
    """Hold the stream and a session, and say nothing."""
    await stream.connection.receive()


_MANNERS: Mapping[HogKind, Callable[[HogStream], Awaitable[None]]] = {
    "features": ask_for_features,
    "wide-drafts": draft_widely,
    "server-drafts": have_drafts_grown,
    "decode": decode,
    "prompts": prompt_anew,
    "silent": stay_silent,
}


class Hog:
    """All streams of a hog. Those that end are opened again."""

    def __init__(self, assignment: HogAssignment) -> None:
        self._assignment = assignment
        self._texts = [text.whole for text in read_texts(Path(assignment.texts))]
        self.counts = HogCounts()

    async def run(self, until: Awaitable[object]) -> None:
        """Be greedy until `until` returns. Raises LinkError where there is no server."""
        transport = GrpcTransport(self._assignment.server, access_from_json(self._assignment.access))
        about = await transport.describe()
        async with asyncio.TaskGroup() as group:
            count = _STREAMS.get(self._assignment.kind, _FEW_STREAMS)
            streams = [group.create_task(self._keep(transport, about, number)) for number in range(count)]
            await until
            for stream in streams:
                stream.cancel()

    async def _keep(self, transport: GrpcTransport, about: ServerDescription, number: int) -> None:
        """Keep one stream open, whatever the server says to it."""
        text = self._texts[number % len(self._texts)]
        while True:
            try:
                async with self._stream(transport, about, text) as stream:
                    await _MANNERS[self._assignment.kind](stream)
            except Refusal as refusal:
                self.counts.refusals[refusal.reason.name] += 1
            except LinkError:
                self.counts.refusals["LINK"] += 1
            await asyncio.sleep(_AGAIN_AFTER_S)

    @asynccontextmanager
    async def _stream(
        self, transport: GrpcTransport, about: ServerDescription, text: tuple[int, ...]
    ) -> AsyncIterator[HogStream]:
        connection = await transport.connect()
        try:
            tap = about.taps[0].fingerprint if about.taps else ""
            connection.send(
                Open(about.protocol_version, about.target_fingerprint, about.tokenizer_fingerprint, tap, "float32")
            )
            while not isinstance(opened := await connection.receive(), Opened):
                pass
            yield HogStream(connection, about, opened, text, self.counts)
        finally:
            await connection.close()


def _send(what: str, **more: object) -> None:
    sys.stdout.write(json.dumps({"what": what, **more}) + "\n")
    sys.stdout.flush()


async def _main() -> None:
    assignment = HogAssignment.from_json(json.loads(sys.stdin.readline()))
    if assignment.cores:
        os.sched_setaffinity(0, assignment.cores)  # before gRPC starts its threads, which inherit them
    os.nice(_BEHIND)
    hog = Hog(assignment)
    _send("ready")
    await hog.run(asyncio.to_thread(sys.stdin.read))
    _send("result", verdicts=hog.counts.verdicts, refusals=hog.counts.refusals)


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the command that started us, which closes our input
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(_main())
