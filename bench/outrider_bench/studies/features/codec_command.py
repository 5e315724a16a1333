"""The command that weighs the feature codecs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from outrider_bench.core.acceptance import TREE
from outrider_bench.core.options import (
    JsonOption,
    NewTokensOption,
    PerFamilyOption,
    TargetOption,
    drafters_of,
    target_of,
)
from outrider_bench.core.progress import Step, progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import table
from outrider_bench.studies.features.answered import Answered
from outrider_bench.studies.features.codec import Messages, Weight, coders, weights
from outrider_bench.studies.features.staleness import Cell, Measured, Share
from outrider_proto.errors import UsageError
from outrider_proto.frames import CODECS, Codec

DEFAULT = ("moa", "eagle2", "eagle3")
DraftersOption = Annotated[
    list[str] | None,
    typer.Option("--drafter", help=f"Embedded drafter or directory, repeatable; default: {', '.join(DEFAULT)}."),
]
console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Weighed:
    """One drafter's features: bytes by codec, replies and prompts apart; share of tau by shape and codec; bytes by
    quantisation and entropy coder."""

    width: int
    rows_per_reply: float
    replies: Mapping[Codec, Weight]
    prompts: Mapping[Codec, Weight]
    tau: Mapping[str, Mapping[Codec, Share]]
    reply_coders: Mapping[str, Mapping[str, float]]
    prompt_coders: Mapping[str, Mapping[str, float]]


def codec_command(
    target: TargetOption = None,
    drafter: DraftersOption = None,
    per_family: PerFamilyOption = 80,
    max_new_tokens: NewTokensOption = 96,
    json: JsonOption = None,
) -> None:
    """Bytes, microseconds and acceptance of every feature codec, against the paper's."""
    directory, drafters = target_of(target), drafters_of(drafter or DEFAULT)
    with progress_line() as step:
        results = asyncio.run(_measure(directory, drafters, per_family, max_new_tokens, step))
    for name, weighed in results.items():
        console.print(_codec_table(name, weighed))
        console.print(_coder_table(name, weighed))
    drafted = {name: asdict(weighed) for name, weighed in results.items()}
    write_report(json, {"per_family": per_family, "max_new_tokens": max_new_tokens, "drafters": drafted})


async def _measure(
    directory: Path, drafters: Mapping[str, Path], per_family: int, limit: int, step: Step
) -> dict[str, Weighed]:
    answered = Answered.by(directory, per_family, limit, step)
    chosen = [Cell(), *(Cell(coding=codec) for codec in CODECS)]
    results = {}
    for name, path in drafters.items():
        drafter, recordings = await answered.recorded(path)
        if not drafter.tap.fingerprint:
            raise UsageError(f"drafter {name}: it has no features to weigh")
        by_shape = answered.measured(name, drafter, recordings, chosen, step)
        results[name] = _weighed(Messages.of(drafter, recordings, TREE), _shares(by_shape))
    return results


def _shares(by_shape: Mapping[str, Sequence[Measured]]) -> dict[str, dict[Codec, Share]]:
    """Of tau, by shape and codec; the first cell is the whole that they are shares of."""
    return {
        shape: {codec: one.overall for codec, one in zip(CODECS, cells[1:], strict=True)}
        for shape, cells in by_shape.items()
    }


def _weighed(messages: Messages, tau: Mapping[str, Mapping[Codec, Share]]) -> Weighed:
    return Weighed(
        width=messages.prompts[0].shape[1],
        rows_per_reply=messages.rows_per_reply,
        replies=weights(messages.replies),
        prompts=weights(messages.prompts),
        tau=tau,
        reply_coders=coders(messages.replies),
        prompt_coders=coders(messages.prompts),
    )


def _codec_table(name: str, weighed: Weighed) -> Table:
    columns = ("codec", "B/token", "of paper's", "prompt B/row", "of paper's", *weighed.tau, "encode us/row", "decode")
    rows = [_codec_row(codec, weighed) for codec in CODECS]
    title = f"{name}: features of {weighed.width} values, {weighed.rows_per_reply:.1f} rows a reply"
    return table(title, columns, rows)


def _codec_row(codec: Codec, weighed: Weighed) -> Sequence[str]:
    reply, prompt = weighed.replies[codec], weighed.prompts[codec]
    return (
        codec,
        f"{reply.bytes_per_row:.1f}",
        f"{reply.of_paper:.3f}",
        f"{prompt.bytes_per_row:.1f}",
        f"{prompt.of_paper:.3f}",
        *(f"{shares[codec].share:.4f}" for shares in weighed.tau.values()),
        f"{reply.encode_us:.1f}",
        f"{reply.decode_us:.1f}",
    )


def _coder_table(name: str, weighed: Weighed) -> Table:
    names = list(next(iter(weighed.reply_coders.values())))
    rows = [
        [f"{quantized}, {what}", *(f"{by_coder[coder]:.1f}" for coder in names)]
        for what, both in (("a reply", weighed.reply_coders), ("a prompt", weighed.prompt_coders))
        for quantized, by_coder in both.items()
    ]
    return table(f"{name}: bytes a row by entropy coder", ("numbers", *names), rows)
