"""The target's own greedy answers, which all others are checked against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target


def plain_answers(target: Target, asked: Sequence[Question], limit: int, step: Step) -> list[tuple[int, ...]]:
    """Answer by the plain one-token loop, with at most `limit` tokens each."""
    counter = ProgressCounter(step, "target alone", len(asked))
    answers = []
    for question in asked:
        answers.append(tuple(plain_greedy(target, question.prompt, limit)))
        counter()
    return answers


@torch.inference_mode()
def generated(
    target_dir: Path, asked: Sequence[Question], max_new_tokens: int, step: Callable[[], None] = lambda: None
) -> list[tuple[int, ...]]:
    """Answer by transformers' `generate`, which shares no code with the engine."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(target_dir), dtype=torch.float32)
    answers = []
    for question in asked:
        ids = torch.tensor([question.prompt])
        # Without a mask, generate infers one from the pad token, which may occur in a prompt.
        output = model.generate(  # type: ignore[misc] # annotated with a doubled self
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens
        )
        answers.append(tuple(output[0, len(question.prompt) :].tolist()))
        step()
    return answers
