"""What a draft, a verdict and its features weigh, by drafter and codec, beside what the base paper's Table 7 counts.

    paper, before quantisation:   up 4M        down 3A + A * width          M nodes, A tokens of a verdict

Weighed as protobuf on loopback without a network; gRPC and TCP add their own frames.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from outrider_bench.core.answer_record import gather
from outrider_bench.core.in_process_pair import in_process
from outrider_bench.core.prompts import Question
from outrider_bench.core.wired_transport import WiredTransport
from outrider_client.async_client import AsyncClient
from outrider_client.connection.transport import Connection, Transport
from outrider_client.core.config import ClientConfig
from outrider_proto.frames import ClientFrame, Codec, Draft, Features, Open, ServerDescription, ServerFrame, Verdict
from outrider_proto.wire import client_frame_to_proto, server_frame_to_proto
from outrider_server.engine.target import Target


@dataclass(frozen=True, slots=True)
class MessageSizes:
    """Means in bytes a message; the prompt's are those of one answer's first. `width` is values a token,
    padded or not."""

    drafter: str
    codec: Codec
    width: int
    nodes: float
    accepted: float
    draft: float
    verdict: float
    features: float
    prompt_tokens: float
    prompt_features: float
    paper_up: float
    paper_down: float
    bytes_down_per_token: float


@dataclass(slots=True)
class Scales:
    """Bytes by kind; a verdict's features are one message in as many frames as it takes."""

    codec: Codec = "int8"
    nodes: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    verdicts: list[int] = field(default_factory=list)
    features: list[int] = field(default_factory=list)
    prompts: list[tuple[int, int]] = field(default_factory=list)  # tokens and bytes of their features
    _prompt_rows: dict[int, int] = field(default_factory=dict)  # of drafts without a tree
    _under_way: int = 0

    def up(self, frame: ClientFrame) -> None:
        match frame:
            case Open(codec=codec):
                self.codec = codec
            case Draft(seq=seq, context=context, tree=tree) if not len(tree):
                self._prompt_rows[seq] = len(context) + 1
            case Draft(tree=tree):
                self.nodes.append(len(tree))
                self.drafts.append(client_frame_to_proto(frame).ByteSize())
            case _:
                pass

    def down(self, frame: ServerFrame) -> None:
        size = sum(message.ByteSize() for message in server_frame_to_proto(frame, self.codec))
        match frame:
            case Verdict(seq=seq) if seq not in self._prompt_rows:
                self.accepted.append(len(frame.path) + (frame.bonus is not None))
                self.verdicts.append(size)
            case Features(seq=seq):
                self._under_way += size
                if frame.last:
                    self._weighed(seq)
            case _:
                pass

    def _weighed(self, seq: int) -> None:
        size, self._under_way = self._under_way, 0
        if seq in self._prompt_rows:
            self.prompts.append((self._prompt_rows[seq], size))
        else:
            self.features.append(size)


class WeighedConnection:
    """A connection whose frames are weighed; features as heavy as rows of `padded_width` values, if that is not 0."""

    def __init__(self, inner: Connection, scales: Scales, padded_width: int) -> None:
        self._inner, self._scales, self._padded_width = inner, scales, padded_width
        self.bytes_up = self.bytes_down = 0

    def send(self, frame: ClientFrame) -> None:
        self._scales.up(frame)
        self._inner.send(frame)

    async def receive(self) -> ServerFrame:
        frame = await self._inner.receive()
        if isinstance(frame, Features):
            frame = replace(frame, padded_width=self._padded_width)
        self._scales.down(frame)
        return frame

    async def close(self) -> None:
        await self._inner.close()


class WeighedTransport:
    """Connections of another transport, weighed."""

    def __init__(self, inner: Transport, scales: Scales, padded_width: int) -> None:
        self.address = inner.address
        self._inner, self._scales, self._padded_width = inner, scales, padded_width

    async def connect(self) -> WeighedConnection:
        return WeighedConnection(await self._inner.connect(), self._scales, self._padded_width)

    async def describe(self) -> ServerDescription:
        return await self._inner.describe()

    async def close(self) -> None:
        await self._inner.close()


async def message_sizes(
    name: str,
    target: Target,
    config: ClientConfig,
    asked: Sequence[Question],
    padded_width: int,
    step: Callable[[], None],
) -> MessageSizes:
    """Of one drafter and codec, over all questions."""
    scales, down, tokens = Scales(), 0, 0
    async with in_process(Path(str(config.target)), config, target) as pair:
        transport = WiredTransport(WeighedTransport(pair.transport(), scales, padded_width))
        async with AsyncClient(config, models=pair.models, transport=transport) as client:
            for question in asked:
                answer = await gather(client, question.prompt)
                down, tokens = down + answer.statistics.bytes_down, tokens + len(answer.token_ids)
                step()
        assert pair.models.drafter is not None
        own_width = pair.models.drafter.tap.width
        width = max(own_width, padded_width) if own_width else 0
    return _sizes(name, config.codec, width, scales, down / tokens)


def _sizes(name: str, codec: Codec, width: int, scales: Scales, bytes_down_per_token: float) -> MessageSizes:
    nodes, accepted = _mean(scales.nodes), _mean(scales.accepted)
    return MessageSizes(
        name,
        codec,
        width,
        nodes=nodes,
        accepted=accepted,
        draft=_mean(scales.drafts),
        verdict=_mean(scales.verdicts),
        features=_mean(scales.features),
        prompt_tokens=_mean([rows for rows, _ in scales.prompts]),
        prompt_features=_mean([size for _, size in scales.prompts]),
        paper_up=4 * nodes,
        paper_down=(3 + width) * accepted,
        bytes_down_per_token=bytes_down_per_token,
    )


def _mean(values: Sequence[int]) -> float:
    return statistics.fmean(values) if values else 0.0
