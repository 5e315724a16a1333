"""Prompts with canaries in their private parts, the forms in which one could leave, and taps that see what does."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import random
import string
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from outrider_client.core.prompt import Prompt, PromptMessage, Segment, is_private
from outrider_client.models.private_tokens import PrivateSplit
from outrider_proto import wire
from outrider_proto.packing import pack_tokens, prefix_hash

CANARY_LEN = 12
WINDOW = 6  # so much of a canary is a leak; less comes about by chance
CHANCE = 3  # tokens
KINDS = (None, "EMAIL", "NAME", "CARD")
Encode = Callable[[str], Sequence[int]]


def word(generator: random.Random, size: int = CANARY_LEN) -> str:
    return "".join(generator.choices(string.ascii_lowercase, k=size))


@dataclass
class Asked:
    """A prompt and what of it must not leave."""

    prompt: Prompt
    canaries: list[str] = field(default_factory=list)


def asked(generator: random.Random, size: Callable[[], int] = lambda: 0) -> Asked:
    """Segments, or turns of them, of which one at least is private; `size` is how much more than a canary it has."""
    made = Asked("")
    turns = [_segments(generator, size, made.canaries) for _ in range(generator.choice((1, 1, 2, 3)))]
    if not any(map(is_private, turns)):
        turns[generator.randrange(len(turns))].append(_private(generator, size, made.canaries))
    made.prompt = turns[0] if len(turns) == 1 else [PromptMessage(role="user", content=turn) for turn in turns]
    return made


def _segments(generator: random.Random, size: Callable[[], int], canaries: list[str]) -> list[Segment]:
    return [_private(generator, size, canaries) if generator.random() < 0.4 else Segment(_words(generator))
            for _ in range(generator.randint(1, 4))]  # fmt: skip


def _words(generator: random.Random) -> str:
    return " ".join(word(generator, generator.randint(1, 7)) for _ in range(generator.randint(1, 3))) + " "


def _private(generator: random.Random, size: Callable[[], int], canaries: list[str]) -> Segment:
    text, kind = word(generator), generator.choice(KINDS)
    canaries.append(text)
    return Segment(text + "x" * size(), private=True, kind=kind)


def texts_of(canary: str) -> Iterator[bytes]:
    """Every stretch of it in every way that text is written down."""
    for start in range(CANARY_LEN - WINDOW + 1):
        stretch = canary[start : start + WINDOW]
        yield from (stretch.encode(), stretch.encode("utf-16-le"), stretch.encode().hex().encode())
    for offset in range(3):
        yield base64.b64encode(canary.encode()[offset:])[:12]


def tokens_of(canary: str, encode: Encode) -> Iterator[bytes]:
    """Every stretch of its tokens as the wire packs them, as wider numbers, and as they print."""
    tokens = list(encode(canary))
    for start in range(len(tokens) - WINDOW + 1):
        stretch = tokens[start : start + WINDOW]
        yield from (pack_tokens(stretch), struct.pack(f"<{WINDOW}I", *stretch), struct.pack(f"<{WINDOW}Q", *stretch))
        yield from (bytes(token & 0xFF for token in stretch), ", ".join(map(str, stretch)).encode())


def hashes_of(canary: str, encode: Encode) -> Iterator[bytes]:
    for made in (hashlib.sha256, hashlib.sha1, hashlib.md5, hashlib.blake2b):
        digest = made(canary.encode()).digest()
        yield from (digest[:8], digest[:8].hex().encode())
    yield prefix_hash(list(encode(canary)))


def prefix_hashes(split: PrivateSplit, answer: Sequence[int]) -> Iterator[bytes]:
    """Yield the hash of every prefix that holds something private, the answer included.

    From its third letter on: the target may write the first ones by chance. A blank before it is safe.
    """
    whole = [*split.whole, *answer]
    for end in range(len(split.safe) + 1 + CHANCE, len(whole) + 1):
        yield prefix_hash(whole[:end])


def needles(made: Asked, encode: Encode) -> set[bytes]:
    return {
        form for canary in made.canaries for forms in (texts_of(canary), tokens_of(canary, encode),
                                                        hashes_of(canary, encode)) for form in forms
    }  # fmt: skip


class Tap:
    """A transport that notes every frame, both ways, as the bytes that it is on the wire."""

    def __init__(self, transport) -> None:
        self._transport = transport
        self.address = transport.address
        self.up: list[bytes] = []
        self.down: list[bytes] = []

    async def connect(self):
        return _TappedConnection(await self._transport.connect(), self)

    async def describe(self):
        return await self._transport.describe()

    async def close(self) -> None:
        await self._transport.close()


class _TappedConnection:
    def __init__(self, connection, tap: Tap) -> None:
        self._connection = connection
        self._tap = tap

    def __getattr__(self, name: str):
        return getattr(self._connection, name)

    def send(self, frame) -> None:
        self._tap.up.append(wire.client_frame_to_proto(frame).SerializeToString())
        self._connection.send(frame)

    async def receive(self):
        frame = await self._connection.receive()
        self._tap.down += [message.SerializeToString() for message in wire.server_frame_to_proto(frame, "bf16")]
        return frame


class Relay:
    """Between client and server, on a port of its own: it keeps every byte of both directions."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = host, int(port)
        self.up, self.down = bytearray(), bytearray()
        self.num_open = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error) -> None:
        self.cut()
        self._server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await asyncio.sleep(0)  # a socket closes in the loop's next round

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def silent(self) -> None:
        """Wait until there is no connection."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self.num_open)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._handlers.add(asyncio.current_task())
        ends = {writer}
        self.num_open += 1
        try:
            there, back = await asyncio.open_connection(*self._upstream)
            ends.add(back)
            self._writers |= ends
            await asyncio.gather(_pump(reader, back, self.up), _pump(there, writer, self.down))
        finally:
            for end in ends:
                end.close()
            self._writers -= ends
            self.num_open -= 1
            async with self._changed:
                self._changed.notify_all()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            seen += data
            writer.write(data)
            await writer.drain()
    writer.close()
