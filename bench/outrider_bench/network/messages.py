"""Sizes of drafts, verdicts and features by drafter and codec, beside the base paper's Table 7.

    paper, before quantization:   up 4M        down 3A + A * width          M nodes, A tokens of a verdict

Sizes are those of the protobuf messages; gRPC and TCP add their own frames.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from outrider_bench.core.answer_record import gather
from outrider_bench.core.pair import in_process
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question
from outrider_bench.core.stats import mean
from outrider_bench.core.tapped_transport import TappedConnection, TappedTransport, WiredConnection
from outrider_bench.network.plan import NetworkPlan
from outrider_client.async_client import AsyncClient
from outrider_client.connection.transport import Connection
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.emulation.pace import Pace
from outrider_proto.frames import ClientFrame, Codec, Draft, Features, Open, ServerFrame, Verdict
from outrider_proto.wire import client_frame_to_proto, server_frame_to_proto
from outrider_server.engine.target import Target


@dataclass(frozen=True, slots=True)
class MessageSizes:
    """Mean bytes per message.

    The prompt's are those of an answer's first message. `width`: values per token, padded or not.
    """

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
class MessageSizeLog:
    """Bytes by kind of message; a verdict's features count as one message in however many frames."""

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
            # A draft without a tree is the prompt's: its features come in one message.
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


class SizedConnection(TappedConnection):
    """Records the sizes of frames; pads features to rows of `padded_width` values, unless that is 0."""

    def __init__(self, inner: Connection, sizes: MessageSizeLog, padded_width: int) -> None:
        super().__init__(inner)
        self._sizes, self._padded_width = sizes, padded_width

    def send(self, frame: ClientFrame) -> None:
        self._sizes.up(frame)
        self._inner.send(frame)

    async def receive(self) -> ServerFrame:
        frame = await self._inner.receive()
        if isinstance(frame, Features):
            frame = replace(frame, padded_width=self._padded_width)
        self._sizes.down(frame)
        return frame


async def message_sizes(
    name: str,
    target: Target,
    config: ClientConfig,
    asked: Sequence[Question],
    padded_width: int,
    step: Callable[[], None],
) -> MessageSizes:
    """Measure one drafter and codec over all questions."""
    log, down, tokens = MessageSizeLog(), 0, 0
    async with in_process(Path(str(config.target)), config, target) as pair:
        sized = TappedTransport(pair.transport(), lambda inner: SizedConnection(inner, log, padded_width))
        # The padding is inside, so that packed frames have the padded size.
        transport = TappedTransport(sized, WiredConnection)
        async with AsyncClient(config, models=pair.models, transport=transport) as client:
            for question in asked:
                answer = await gather(client, question.prompt)
                down, tokens = down + answer.statistics.bytes_down, tokens + len(answer.token_ids)
                step()
        assert pair.models.drafter is not None
        own_width = pair.models.drafter.tap.width
        width = max(own_width, padded_width) if own_width else 0
    nodes, accepted = _mean_or_0(log.nodes), _mean_or_0(log.accepted)
    return MessageSizes(
        name,
        config.codec,
        width,
        nodes=nodes,
        accepted=accepted,
        draft=_mean_or_0(log.drafts),
        verdict=_mean_or_0(log.verdicts),
        features=_mean_or_0(log.features),
        prompt_tokens=_mean_or_0([rows for rows, _ in log.prompts]),
        prompt_features=_mean_or_0([size for _, size in log.prompts]),
        paper_up=4 * nodes,
        paper_down=(3 + width) * accepted,
        bytes_down_per_token=down / tokens,
    )


async def measure_messages(
    plan: NetworkPlan, codecs: Sequence[Codec], taken: Mapping[str, object], step: Step
) -> AsyncGenerator[tuple[str, MessageSizes], None]:
    """Yield the sizes of every drafter with every codec, by name, that are not in `taken`."""
    target = Target.load(str(plan.target), plan.dtype)
    padded_width = 0 if plan.pace is None else Pace.load(plan.pace).feature_width
    for drafter in plan.drafters:
        asked = plan.prompt_set(LocalModels.load(plan.config(drafter))).asked
        for codec in codecs:
            name = f"{drafter}, {codec}"
            if name not in taken:
                config = plan.config(drafter, codec=codec, mode="stop-and-wait")
                counter = ProgressCounter(step, name, len(asked))
                yield name, await message_sizes(drafter, target, config, asked, padded_width, counter)
            sizes = taken.get(name)
            if isinstance(sizes, MessageSizes) and not sizes.width:
                break  # without features, every codec is the same


def _mean_or_0(values: Sequence[int]) -> float:
    return mean(values) or 0.0
