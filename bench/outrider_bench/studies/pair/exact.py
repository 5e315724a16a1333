"""Is the answer, token for token, that of transformers' own `generate` on the same weights in float32?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from outrider_bench.core.answer_record import gather
from outrider_bench.core.prompts import Question
from outrider_client.async_client import AsyncClient


@dataclass(frozen=True, slots=True)
class Exactness:
    """`differing` are the numbers of the questions whose answers differ."""

    asked: int
    differing: tuple[int, ...]


@torch.inference_mode()
def generated(
    target_dir: Path, asked: Sequence[Question], max_new_tokens: int, step: Callable[[], None] = lambda: None
) -> list[tuple[int, ...]]:
    """What `generate` answers, greedily: the reference, which shares no code with the engine."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(target_dir), dtype=torch.float32)
    answers = []
    for question in asked:
        ids = torch.tensor([question.prompt])
        output = model.generate(  # type: ignore[misc] # annotated with a doubled self
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens
        )
        answers.append(tuple(output[0, len(question.prompt) :].tolist()))
        step()
    return answers


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
