"""The control: transformers' `generate`, prompt by prompt, on the server's cores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.load.clients.texts import LoadText
from outrider_bench.load.measures.process_use import on_cores
from outrider_server.engine.hf_model import DTYPES


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """Greedy results; `wrong` counts answers that differ from the expected ones."""

    use_cache: bool
    prompts: int
    tokens_per_s: float
    wrong: int


class GenerateControl:
    """The target as a transformers model."""

    def __init__(self, directory: Path, dtype: str, device: str, cores: Sequence[int]) -> None:
        from transformers import AutoModelForCausalLM

        loaded: Any = AutoModelForCausalLM.from_pretrained(str(directory), dtype=DTYPES[dtype])  # Any: untyped
        self._model = loaded.to(device).eval()
        self._device = device
        self._cores = cores

    def measure(self, texts: Sequence[LoadText], limit: int, step: Step, *, use_cache: bool) -> GenerateResult:
        """Answer the texts one by one, after one that is not counted."""
        counter = ProgressCounter(step, "generate" if use_cache else "generate without a cache", len(texts))
        tokens, seconds, wrong = 0, 0.0, 0
        with on_cores(self._cores):
            self._answer(texts[0], limit, use_cache)
            for text in texts:
                started = time.perf_counter()
                answer = self._answer(text, limit, use_cache)
                seconds += time.perf_counter() - started
                tokens += len(answer)
                wrong += answer != text.answer[:limit]
                counter()
        return GenerateResult(use_cache, len(texts), tokens / seconds, wrong)

    @torch.inference_mode()
    def _answer(self, text: LoadText, limit: int, use_cache: bool) -> tuple[int, ...]:
        ids = torch.tensor([text.prompt], device=self._device)
        # Without a mask, generate infers one from the pad token, which may occur in a prompt.
        made = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=limit, use_cache=use_cache
        )
        return tuple(made[0, len(text.prompt) :].tolist())
