"""Time that the gateway adds to an answer: the same prompts through the library and through HTTP, in turn."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from outrider_bench.core.bootstrap import medians_ci95
from outrider_bench.core.processes import ServerProcess
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import spread_questions, warm_up_question
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, ci95_cells, table
from outrider_bench.harness.study import Measured, Study
from outrider_bench.studies.options import GatewayOptions
from outrider_bench.studies.serving.gateway_process import GatewayProcess, cold_start_s
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Committed, Finished
from outrider_client.models.local_models import LocalModels
from outrider_models.core.embedded import EMBEDDED, drafter_dir, target_dir
from outrider_proto.errors import UsageError

_DATA = b"data: "
_DONE = b"[DONE]"
COLD_STARTS = "cold starts"  # a row
_TARGET = ("--target", EMBEDDED)  # without it, the one that is installed
_Medians = dict[str, Any]  # Any: figures, and intervals or None


@dataclass(frozen=True, slots=True)
class AnswerTiming:
    """One answer: seconds from the request to its first text and to its end."""

    text: str
    num_tokens: int
    first_s: float
    whole_s: float


@dataclass(frozen=True, slots=True)
class PairedTiming:
    """The same prompt through the library and through the gateway."""

    library: AnswerTiming
    gateway: AnswerTiming

    @property
    def per_token_ms(self) -> float:
        """Time that the gateway adds per token, the first one included."""
        return (self.gateway.whole_s - self.library.whole_s) * 1e3 / self.library.num_tokens

    @property
    def first_ms(self) -> float:
        return (self.gateway.first_s - self.library.first_s) * 1e3


async def measure_pairs(
    client: AsyncClient,
    port: int,
    prompts: Sequence[Sequence[int]],
    mode: str,
    max_tokens: int,
    step: Callable[[], None],
) -> list[PairedTiming]:
    """Ask each prompt through both, every other one through the gateway first.

    Raises UsageError where the texts differ.
    """
    timed = []
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        for number, prompt in enumerate(prompts):
            # Token ids, so that both skip the tokenizer.
            asked = {"model": "outrider", "prompt": list(prompt), "max_tokens": max_tokens, "outrider": {"mode": mode}}
            # Taking turns cancels what the second of two equal requests gains from the prefix cache.
            first = through_gateway(connection, asked) if number % 2 else None
            library = await through_library(client, prompt, mode, max_tokens)
            timed.append(PairedTiming(library, first or through_gateway(connection, asked)))
            if timed[-1].gateway.text != library.text:
                raise UsageError(f"prompt {number}: the gateway's text differs from the library's")
            step()
    return timed


async def through_library(client: AsyncClient, prompt: Sequence[int], mode: str, max_tokens: int) -> AnswerTiming:
    text, first_s, num_tokens = "", 0.0, 0
    started = time.perf_counter()
    async with contextlib.aclosing(client.generate(prompt, mode=mode, max_new_tokens=max_tokens)) as events:
        async for event in events:
            if isinstance(event, Committed | Finished) and event.text:
                first_s = first_s or time.perf_counter() - started
                text += event.text
            if isinstance(event, Finished):
                num_tokens = event.statistics.new_tokens
    return AnswerTiming(text, num_tokens, first_s, time.perf_counter() - started)


def through_gateway(
    connection: http.client.HTTPConnection, asked: dict[str, Any]
) -> AnswerTiming:  # Any: whatever JSON holds
    """Ask through HTTP.

    Lines are parsed only afterwards: parsing is the app's work, not the gateway's.
    """
    body = json.dumps(asked | {"stream": True, "temperature": 0, "stream_options": {"include_usage": True}})
    lines: list[tuple[float, bytes]] = []
    started = time.perf_counter()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    while line := response.readline():
        if line.startswith(_DATA):
            lines.append((time.perf_counter() - started, line.removeprefix(_DATA).strip()))
    chunks = [(at, json.loads(line)) for at, line in lines if line != _DONE]
    texts = [
        (at, chunk["choices"][0]["text"]) for at, chunk in chunks if chunk["choices"] and chunk["choices"][0]["text"]
    ]
    num_tokens = chunks[-1][1]["usage"]["completion_tokens"]
    return AnswerTiming("".join(text for _, text in texts), num_tokens, texts[0][0] if texts else 0.0, lines[-1][0])


def medians(timed: Sequence[PairedTiming]) -> _Medians:
    """Return medians over the prompts in ms, and their 95 % intervals as `NAME_ci95`."""
    return medians_ci95(
        {
            "library_token_ms": [pair.library.whole_s * 1e3 / pair.library.num_tokens for pair in timed],
            "gateway_token_ms": [pair.gateway.whole_s * 1e3 / pair.gateway.num_tokens for pair in timed],
            "added_token_ms": [pair.per_token_ms for pair in timed],
            "added_first_token_ms": [pair.first_ms for pair in timed],
        }
    )


@dataclass(frozen=True, slots=True)
class GatewayReport:
    prompts: int
    max_tokens: int
    modes: Mapping[str, _Medians]


class GatewayStudy(Study[GatewayOptions, _Medians, GatewayReport]):
    """Asks all prompts in one mode after the other, and then starts gateways."""

    async def run(self, taken: Mapping[str, _Medians], step: Step) -> Measured[_Medians]:
        options = self.options
        with ServerProcess(["--target", str(target_dir()), "--drafter", str(drafter_dir("moa"))]) as server:
            models = LocalModels.load(ClientConfig(target=EMBEDDED))
            prompts = [question.prompt for question in spread_questions(models, options.prompts)]
            warm_up = warm_up_question(models).prompt
            with GatewayProcess(server.address, _TARGET) as gateway:
                async with AsyncClient(ClientConfig(server.address), models=models) as client:
                    for mode in options.mode or ("stream", "proactive"):
                        if mode in taken:
                            continue
                        counter = ProgressCounter(step, mode, options.prompts)
                        ask = partial(measure_pairs, client, gateway.port, mode=mode, max_tokens=options.max_tokens)
                        # A warm-up: the first answer of a mode opens connections on both ways.
                        await ask([warm_up], step=lambda: None)
                        yield mode, medians(await ask(prompts, step=counter))
            if COLD_STARTS not in taken:
                yield COLD_STARTS, _cold_starts(server.address, options.cold_starts, step)

    def report(self, rows: Mapping[str, _Medians]) -> GatewayReport:
        by_mode = {mode: row | rows[COLD_STARTS] for mode, row in rows.items() if mode != COLD_STARTS}
        return GatewayReport(self.options.prompts, self.options.max_tokens, by_mode)

    @staticmethod
    def tables(report: GatewayReport) -> list[ResultTable]:
        cells = [ci95_cells(of_mode, 3) for of_mode in report.modes.values()]
        rows = [[name, *(of_mode[name] for of_mode in cells)] for name in cells[0]]
        return [table("through the gateway, medians", ("", *report.modes), rows, caption=OVER_PROMPTS)]


def _cold_starts(server: str, count: int, step: Step) -> _Medians:
    """Return the median time of `count` cold starts; nothing for 0."""
    counter = ProgressCounter(step, "cold starts", count)
    taken = []
    for _ in range(count):
        taken.append(cold_start_s(server, _TARGET))
        counter()
    return medians_ci95({"cold_start_s": taken})
