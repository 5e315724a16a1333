"""Prompts and the target's answers to them, computed once by the plain loop and cached.

Answers that depend on a rounding error are left out: where two tokens are about equally likely, a pass of another shape
may choose the other one, which says nothing about the server.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Answer, Question, QuestionSource, lengthened, questions
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.checkpoints.fingerprint import target_fingerprint
from outrider_models.core.held_out import FAMILIES
from outrider_proto.errors import UsageError
from outrider_proto.files import MAX_REPORT_BYTES, read_json, write_atomically

# The workers, which only read the texts, start without the server and transformers.
if TYPE_CHECKING:
    from outrider_server.engine.target import Target

MARGIN_TOKENS = 16  # known beyond the longest answer asked for, so that its last draft can be right
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class PromptMix:
    """Prompts per family, and the share lengthened to `long_tokens` tokens. Raises UsageError.

    `source` has a user's questions instead (per_family None: all); they are as long as they are.
    """

    families: tuple[str, ...] = FAMILIES
    per_family: int | None = 8
    long_share: float = 0.25
    long_tokens: int = 384
    limit: int = 64  # new tokens
    source: QuestionSource | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.long_share <= 1:
            raise UsageError(f"long_share={self.long_share}: need 0 to 1")
        if self.per_family is not None and self.per_family < 1:
            raise UsageError(f"per_family={self.per_family}: need at least 1")
        if self.limit < 2:
            raise UsageError(f"max_new_tokens={self.limit}: need at least 2")

    @property
    def settings(self) -> dict[str, object]:
        """What determines the prompts, as JSON has it."""
        return {**asdict(self), "source": None if self.source is None else self.source.settings}


@dataclass(frozen=True, slots=True)
class LoadText:
    """A prompt and its answer, which may be longer than what is asked for.

    Drafts are judged by the whole answer.
    """

    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def whole(self) -> tuple[int, ...]:
        return self.prompt + self.answer


def load_texts(directory: Path, mix: PromptMix, seed: int, dtype: str, device: str, step: Step) -> Path:
    """Return a file of texts for this target; compute it unless it is cached. Raises UsageError."""
    path = _cache_dir() / f"{_key(directory, mix, seed, dtype)}.json"
    if path.exists():
        return path
    texts = _compute_texts(directory, mix, seed, dtype, device, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps([asdict(text) for text in texts]))
    return path


def read_texts(path: Path) -> list[LoadText]:
    """Raises UsageError."""
    try:
        found = read_json(path, MAX_REPORT_BYTES)
        return [LoadText(text["name"], tuple(text["prompt"]), tuple(text["answer"])) for text in found]
    except (KeyError, TypeError):
        raise UsageError(f"{path}: holds no texts of this version: remove the file") from None


def _compute_texts(directory: Path, mix: PromptMix, seed: int, dtype: str, device: str, step: Step) -> list[LoadText]:
    from outrider_bench.core.reference_answers import LEAST_MARGIN
    from outrider_server.engine.hf_model import is_small
    from outrider_server.engine.reference_decode import plain_answer
    from outrider_server.engine.target import Target

    models = LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER))
    target = Target.load(str(directory), dtype, device)
    # As the server does: more threads are slower for a small target.
    if is_small(target.model):
        torch.set_num_threads(1)
    asked = _asked(models, mix, seed, partial(plain_answer, target))
    longest = max(len(question.prompt) for _, question in asked)
    if longest + mix.limit + MARGIN_TOKENS >= target.max_context:
        raise UsageError(
            f"long_tokens={mix.long_tokens}: the longest prompt has {longest} tokens, which with {mix.limit} new ones "
            f"do not fit into the target's context of {target.max_context}; ask for less"
        )
    counter, texts = ProgressCounter(step, "the target's own answers", len(asked)), []
    for name, question in asked:
        answer = plain_answer(target, question.prompt, mix.limit + MARGIN_TOKENS)
        # Nearly equal logits swap with the size of a batch: such an answer would count as wrong under load.
        if target.batch_invariant or _margin(target, question.prompt, answer) > LEAST_MARGIN[dtype]:
            texts.append(LoadText(name, question.prompt, tuple(answer)))
        counter()
    if not texts:
        raise UsageError(f"{directory}: every answer depends on rounding errors in {dtype}; use float32")
    return texts


def _asked(models: LocalModels, mix: PromptMix, seed: int, answer: Answer) -> Sequence[tuple[str, Question]]:
    """Return the questions by name, the long ones last."""
    if mix.source is not None:
        given = mix.source.per_family(models, mix.per_family, mix.limit + MARGIN_TOKENS + 1, answer)
        return [(f"{question.family} {question.name}", question) for question in given]
    short = questions(models, lambda family: (mix.per_family or 0) if family in mix.families else 0, seed)
    late = [question for number, question in enumerate(short) if _is_long(number, mix.long_share)]
    named = [(f"{q.family} {n}", q) for n, q in enumerate(short) if not _is_long(n, mix.long_share)]
    long = lengthened(late, models, mix.long_tokens)
    return named + [(f"{question.family}, long {number}", question) for number, question in enumerate(long)]


def _is_long(number: int, share: float) -> bool:
    """Spread the long prompts evenly over the others."""
    return int((number + 1) * share) > int(number * share)


def _margin(target: Target, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Return the smallest gap between the two most likely logits over the answer's tokens."""
    from outrider_server.engine.reference_decode import plain_logits

    best = plain_logits(target, [*prompt, *answer[:-1]], len(answer)).topk(2).values
    return float((best[:, 0] - best[:, 1]).min())


def _key(directory: Path, mix: PromptMix, seed: int, dtype: str) -> str:
    key_text = json.dumps([_FORMAT, target_fingerprint(directory), mix.settings, seed, dtype])
    return hashlib.blake2b(key_text.encode(), digest_size=16).hexdigest()


def _cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "outrider" / "load"
