"""The control: transformers' `generate` on the server's cores, prompt by prompt and in static batches.

A static batch is computed from left-padded prompts until the longest of its answers ends. It has no arrivals to wait
for; but a row whose answer has ended runs on, so its tokens beyond that end are not counted. The prompts of a batch are
drawn at random, as clients draw theirs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from outrider_bench.core.processes import on_cores
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.reference_answers import generate_dtype
from outrider_bench.load.clients.texts import LoadText
from outrider_drafters.checkpoints.causal_lm import load_causal_lm
from outrider_drafters.quantization.quantize import dtype_name
from outrider_server.engine.hf_model import eos_token_ids

_MOST_PROMPTS = 64  # in batches of one size, unless one batch alone takes more


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """Greedy results with batches of one size, in the server's type; in another one none is expected (`wrong` None)."""

    prompts: int
    tokens_per_s: float  # up to each answer's end
    wrong: int | None  # answers that differ from the expected ones
    batch: int = 1
    dtype: str | None = None  # None: the server's


class GenerateControl:
    """The target as a transformers model."""

    def __init__(self, directory: Path, dtype: str, device: str, cores: Sequence[int]) -> None:
        loaded: Any  # untyped
        computed_in = generate_dtype(directory, dtype, device)
        loaded, _ = load_causal_lm(directory, quantized=True, dtype=computed_in)
        self._other = None if dtype == dtype_name(computed_in) else dtype_name(computed_in)
        self._model = loaded.to(device).eval()
        self._eos = frozenset(eos_token_ids(self._model))
        self._device = device
        self._cores = cores

    def measure(self, batches: Sequence[Sequence[LoadText]], limit: int, step: Step) -> GenerateResult:
        """Answer the batches one by one, after one that is not counted."""
        size = len(batches[0])
        counter = ProgressCounter(step, "generate" if size == 1 else f"generate, batches of {size}", len(batches))
        tokens, seconds, wrong = 0, 0.0, 0
        with on_cores(self._cores):
            self._answers(batches[0], limit)
            for texts in batches:
                started = time.perf_counter()
                answers = self._answers(texts, limit)
                seconds += time.perf_counter() - started
                tokens += sum(map(len, answers))
                wrong += sum(own != text.answer[:limit] for own, text in zip(answers, texts, strict=True))
                counter()
        differing = None if self._other else wrong
        return GenerateResult(sum(map(len, batches)), tokens / seconds, differing, size, self._other)

    @torch.inference_mode()
    def _answers(self, texts: Sequence[LoadText], limit: int) -> list[tuple[int, ...]]:
        prompts = [torch.tensor(text.prompt) for text in texts]
        # Masked places hold token 0, which nothing attends to.
        ids = pad_sequence(prompts, batch_first=True, padding_side="left")
        mask = pad_sequence([torch.ones_like(prompt) for prompt in prompts], batch_first=True, padding_side="left")
        # Without a mask, generate infers one from the pad token, which may occur in a prompt.
        made = self._model.generate(
            ids.to(self._device), attention_mask=mask.to(self._device), do_sample=False, max_new_tokens=limit
        )
        return [answer_of(row, self._eos) for row in made[:, ids.shape[1] :].tolist()]


def static_batches(texts: Sequence[LoadText], batch: int, seed: int) -> list[list[LoadText]]:
    """Return full batches; texts are repeated where they are too few for that."""
    drawn = random.Random(seed).sample(texts, len(texts))
    count = -(-min(_MOST_PROMPTS, len(texts)) // batch) * batch
    chosen = [drawn[number % len(drawn)] for number in range(count)]
    return [chosen[first : first + batch] for first in range(0, count, batch)]


def answer_of(row: Sequence[int], eos: frozenset[int]) -> tuple[int, ...]:
    """Return the tokens up to the end of the text; what follows is padding."""
    end = next((number + 1 for number, token in enumerate(row) if token in eos), len(row))
    return tuple(row[:end])
