"""Exactness: are answers equal, token for token, to those of transformers' `generate` in float32?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider_bench.core.answer_record import gather
from outrider_bench.core.pair import in_process
from outrider_bench.core.processes import ServerProcess
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question, spread_questions
from outrider_bench.core.reference_answers import generated
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels


@dataclass(frozen=True, slots=True)
class Exactness:
    """The number of questions, and the indices of those whose answers differ."""

    asked: int
    differing: tuple[int, ...]


async def exactness(
    client: AsyncClient,
    asked: Sequence[Question],
    expected: Sequence[tuple[int, ...]],
    max_new_tokens: int,
    step: Callable[[], None] = lambda: None,
) -> Exactness:
    """Ask everything through `client` and compare."""
    differing = []
    for number, (question, tokens) in enumerate(zip(asked, expected, strict=True)):
        answer = await gather(client, question.prompt, max_new_tokens=max_new_tokens)
        if answer.token_ids != tokens:
            differing.append(number)
        step()
    return Exactness(len(asked), tuple(differing))


async def compare_with_generate(
    target: Path, drafters: dict[str, Path], count: int, limit: int, step: Step
) -> dict[str, tuple[int, ...]]:
    """Return the indices of the differing prompts, by drafter in process and over gRPC."""
    asked = spread_questions(LocalModels.load(ClientConfig(target=target, drafter=NO_DRAFTER)), count)
    expected = generated(target, asked, limit, ProgressCounter(step, "transformers", count))
    report = {}
    for name, directory in drafters.items():
        config = ClientConfig(target=target, drafter=directory)
        counter = ProgressCounter(step, f"{name} in process", count)
        async with in_process(target, config) as pair, pair.client() as client:
            report[f"{name} in process"] = (await exactness(client, asked, expected, limit, counter)).differing
        counter = ProgressCounter(step, f"{name} over gRPC", count)
        with ServerProcess(["--target", str(target), "--drafter", str(directory)]) as server:
            config = ClientConfig(server=server.address, target=target, drafter=directory)
            async with AsyncClient(config) as client:
                report[f"{name} over gRPC"] = (await exactness(client, asked, expected, limit, counter)).differing
    return report
