"""The target without drafts of ours, by the plain loop and by transformers: what all others are checked against.

A pass over a draft tree sums in another order than the plain loop's passes over one token. Where two tokens have about
equal logits (a near-tie), it may take the other one: both answers are right up to rounding, and what follows is other
text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Answer, Question
from outrider_drafters.checkpoints.causal_lm import load_causal_lm
from outrider_drafters.contracts.token_draw import distribution, uniforms
from outrider_proto.frames import Sampling
from outrider_server.engine.hf_model import AUTO, resolve_device, resolve_dtype
from outrider_server.engine.reference_decode import plain_answer, plain_logits
from outrider_server.engine.target import Target

INT8 = "int8"  # whose answers are their plain loop's in passes that serve, and nothing that transformers computes
LOOKUP_TOKENS = 10  # transformers' own default for prompt lookup
# Between two logits; less may be rounding. In the narrow types twice the distance of neighboring numbers from 16 to 32,
# where the likeliest logits lie. None in int8, whose passes give the same bits.
LEAST_MARGIN = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.03, INT8: 0.0}
# Times a logit's rounding error, and more may be: four standard deviations of a difference of two logits.
ROUNDINGS = 4 * 2**0.5
_COMPARED = 100  # likeliest tokens whose logits show the rounding error


def is_on_a_border(
    target: Target, prompt: Sequence[int], plain: Sequence[int], answer: Sequence[int], sampling: Sampling
) -> bool:
    """Return whether rounding in float32 explains why a sampled answer departs from the plain loop's.

    It never does for a greedy one, nor for a batch-invariant target, nor where one ends and the other goes on. The
    target serves nobody.

    Tokens lie side by side on a line, each as wide as its probability, and a random number points at one. Rounding
    moves every border, which is where an unlikely token of 50,000 begins and ends: about one in 350 tokens of such a
    target at temperature 1 is its neighbor. A wrong rule draws tokens that lie elsewhere.
    """
    place = next((number for number, both in enumerate(zip(plain, answer, strict=False)) if both[0] != both[1]), None)
    if place is None or not sampling.draws or target.batch_invariant:
        return False
    probabilities = distribution(plain_logits(target, (*prompt, *plain[:place])), sampling)[0]
    ends = probabilities.cumsum(-1) / probabilities.sum()
    end, (drawn,) = float(ends[answer[place]]), uniforms(sampling.seed, [len(prompt) + place])
    begin = end - float(probabilities[answer[place]])
    return begin - LEAST_MARGIN["float32"] < drawn < end + LEAST_MARGIN["float32"]


def rounding_notes(rounded: Mapping[str, int]) -> list[str]:
    """Return a line for each name with departures that is_on_a_border() explains; `rounded` counts them."""
    return [
        f"{name}: {count} answers depart from the plain loop's where a draw falls on a border of two tokens' "
        "probabilities, up to rounding"
        for name, count in rounded.items()
        if count
    ]


def generate_dtype(target_dir: Path, dtype: str, device: str) -> torch.dtype:
    """Return what transformers computes in beside a target of that type: for int8, which is ours, what auto takes."""
    return resolve_dtype(AUTO if dtype == INT8 else dtype, target_dir, resolve_device(device))


@dataclass(frozen=True, slots=True)
class GeneratedAnswer:
    """New tokens, those that each of the target's passes gave, and the time to the first of them."""

    token_ids: tuple[int, ...]
    tokens_by_step: tuple[int, ...]
    ttft_s: float


class GenerateModel:
    """transformers' `generate`, greedy: its key-value cache, its own choice of attention, a clean generation config."""

    def __init__(self, model: Any) -> None:  # Any: transformers' classes are untyped
        self._model = model

    @classmethod
    def load(
        cls,
        directory: Path,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        eos_token_ids: Sequence[int] | None = None,
    ) -> Self:
        """Load a directory; `eos_token_ids` end an answer, None: those that it names. Raises UsageError."""
        from transformers import GenerationConfig
        from transformers.utils import logging

        # It warns about options that its own assisted generation sets.
        logging.set_verbosity_error()  # type: ignore[no-untyped-call] # transformers

        model: Any  # its annotation of `to` hides nn.Module's
        model, _ = load_causal_lm(directory, quantized=True, dtype=dtype)
        ends = model.generation_config.eos_token_id if eos_token_ids is None else list(eos_token_ids)
        # A new one, not the model's: a repetition_penalty in there would make its greedy answers other ones.
        model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call] # transformers
            do_sample=False, use_cache=True, eos_token_id=ends, pad_token_id=ends[0] if isinstance(ends, list) else ends
        )
        return cls(model.to(device).train(False))

    @torch.inference_mode()
    def answer(
        self, prompt: Sequence[int], limit: int, step: Callable[[], None] = lambda: None, /, **how: object
    ) -> GeneratedAnswer:
        """Answer with at most `limit` tokens; `how` are options of `generate` that keep it greedy.

        `step` is called after every pass.
        """
        steps = _StepCounter(step)
        ids = torch.tensor([list(prompt)], device=self._model.device)
        # Without a mask, generate infers one from the pad token, which may occur in a prompt.
        made = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, streamer=steps, **how
        )
        first_s = 0.0 if steps.first_at is None else steps.first_at - steps.started
        return GeneratedAnswer(tuple(made[0, len(prompt) :].tolist()), tuple(steps.counts), first_s)

    def with_assistant(self, assistant: GenerateModel) -> dict[str, object]:
        """Return the options of `answer` that have `assistant` draft."""
        return {"assistant_model": assistant._model}


class _StepCounter:
    """A streamer of transformers: it gets the prompt first, then the tokens of each of the model's passes."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self.counts: list[int] = []
        self.started = time.perf_counter()
        self.first_at: float | None = None
        self._has_prompt = False

    def put(self, tokens: Tensor) -> None:
        if not self._has_prompt:
            self._has_prompt = True
            return
        if self.first_at is None:
            self.first_at = time.perf_counter()
        self.counts.append(tokens.numel())
        self._step()

    def end(self) -> None:
        """Do nothing: the tokens were counted as they came."""


def plain_answers(target: Target, asked: Sequence[Question], limit: int, step: Step) -> list[tuple[int, ...]]:
    """Answer by the plain one-token loop, with at most `limit` tokens each."""
    counter = ProgressCounter(step, "target alone", len(asked))
    answers = []
    for question in asked:
        answers.append(tuple(plain_answer(target, question.prompt, limit)))
        counter()
    return answers


def answers_when_needed(target_dir: Path, dtype: str = "float32") -> Answer:
    """Return a function that answers by the plain loop; the target is loaded at the first call."""
    load = cache(lambda: Target.load(str(target_dir), dtype))
    return lambda prompt, limit: plain_answer(load(), prompt, limit)


def generated(
    target_dir: Path,
    asked: Sequence[Question],
    max_new_tokens: int,
    step: Callable[[], None] = lambda: None,
    eos_token_ids: Sequence[int] | None = None,
    device: str = "cpu",
) -> list[tuple[int, ...]]:
    """Answer by transformers' `generate`, which shares no code with the engine; `eos_token_ids` as in `load`."""
    model = GenerateModel.load(target_dir, device=device, eos_token_ids=eos_token_ids)
    answers = []
    for question in asked:
        answers.append(model.answer(question.prompt, max_new_tokens).token_ids)
        step()
    return answers


@dataclass(frozen=True, slots=True)
class Departure:
    """Where an answer departs from the plain loop's: the tokens there, None where one of them has ended.

    `margin` is the plain loop's logit of its own token less that of the other, in the target's type, `margin_float32`
    the same of the same weights in float32, and `rounding` the standard deviation between the two types' logits there;
    None where there are no two tokens.
    """

    question: str
    place: int  # in the answer
    expected: int | None
    found: int | None
    margin: float | None = None
    margin_float32: float | None = None
    rounding: float | None = None

    def __str__(self) -> str:
        """Describe it in one line."""
        tokens = ("the end" if token is None else f"token {token}" for token in (self.found, self.expected))
        figures = (self.margin, self.margin_float32, self.rounding)
        margin, wide, rounding = ("-" if one is None else f"{one:.3g}" for one in figures)
        where = f"question {self.question}, place {self.place}: {' instead of '.join(tokens)}"
        return f"{where}, margin of their logits {margin}, in float32 {wide}, rounding {rounding}"

    def measured(self, logits: Tensor, logits_float32: Tensor) -> Departure:  # [vocab] float32, both
        """Return it with its margins, from the logits in the target's type and in float32."""
        if self.expected is None or self.found is None:
            return self
        own, exact = (float(one[self.expected] - one[self.found]) for one in (logits, logits_float32))
        likeliest = logits_float32.topk(min(_COMPARED, len(logits_float32))).indices
        return replace(
            self, margin=own, margin_float32=exact, rounding=float((logits - logits_float32)[likeliest].std())
        )

    def is_near_tie(self, dtype: str) -> bool:
        """Return whether rounding in this type explains it."""
        if self.margin is None or self.margin_float32 is None or self.rounding is None:
            return False
        most = max(LEAST_MARGIN[dtype], ROUNDINGS * self.rounding)
        return max(abs(self.margin), abs(self.margin_float32)) <= most


def departure(question: str, found: Sequence[int], expected: Sequence[int]) -> Departure | None:
    """Return the first difference, without margins; None for equal answers."""
    for place, (its, right) in enumerate(zip_longest(found, expected)):
        if its != right:
            return Departure(question, place, right, its)
    return None
