"""Validation while training: the exported drafter drafts along the target's own greedy text, as a client would.

Nothing is teacher-forced: the drafter gets the features that a verdict would bring, drafts a chain on its own guesses,
and keeps the tokens that agree with the target, plus the target's next token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tap import Tap
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.load import load_drafter, load_tap
from outrider_drafters.trees.grow import grow_tree
from outrider_models.training.config import ValidationSettings
from outrider_models.training.core.teacher import Teacher
from outrider_models.training.data.served_answers import ServedAnswers


@dataclass(slots=True)
class AcceptanceCounts:
    """Counts over verdicts. `by_depth[d]` is the number of verdicts that accepted d drafted tokens."""

    tokens: int = 0
    by_depth: list[int] = field(default_factory=list)

    @property
    def verdicts(self) -> int:
        return sum(self.by_depth)

    @property
    def tau(self) -> float:
        """Mean acceptance length: tokens per verdict, bonus token included; nan without verdicts."""
        return self.tokens / self.verdicts if self.verdicts else float("nan")

    def add(self, accepted: int, gained: int) -> None:
        self.by_depth += [0] * (accepted + 1 - len(self.by_depth))
        self.by_depth[accepted] += 1
        self.tokens += gained


class Validator:
    """Measures drafters on held-out prompts; the target's answers are generated once, or those that it has `served`."""

    def __init__(
        self, teacher: Teacher, prompts: Sequence[list[int]], settings: ValidationSettings, served: ServedAnswers | None
    ) -> None:
        self._served, self._teacher, self._prompts, self._settings = served, teacher, prompts, settings
        self._texts: list[list[int]] | None = None

    def validate(self, source: DrafterSource) -> AcceptanceCounts:
        """Load the drafter and draft along all texts. Raises UsageError if its files do not load."""
        if self._texts is None:
            self._texts = [self._answered(*each) for each in enumerate(self._prompts)]
        like = self._teacher.embed
        drafter = load_drafter(source, self._teacher.target_weights())
        tap = load_tap(source, self._teacher.facts.directory, like.dtype, like.device)
        found = AcceptanceCounts()
        for number, (prompt, text) in enumerate(zip(self._prompts, self._texts, strict=True)):
            rows = None if tap is None else self._features(tap, number, text)
            follow(drafter, text, len(prompt), rows, self._settings.levels, found)
        return found

    def _features(self, tap: Tap, number: int, text: list[int]) -> Tensor:
        if self._served is not None:
            return tap.new_state().rows(self._served.activations(self._teacher, number, tap))
        tokens = torch.tensor([text], device=self._teacher.embed.device)
        return tap.new_state().rows(self._teacher.activations(tokens, tap.needs_kv, tap.hidden_layers))

    @torch.no_grad()
    def _answered(self, number: int, prompt: list[int]) -> list[int]:
        """Return prompt and greedy answer."""
        if self._served is not None:
            return cast(
                list[int], self._served.held_out[number].ids[: len(prompt) + self._settings.new_tokens].tolist()
            )
        model = self._teacher.model
        generate = cast(Callable[..., Tensor], model.generate)
        ids = torch.tensor([prompt], device=self._teacher.embed.device)
        output = generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=self._settings.new_tokens,
            pad_token_id=0,  # never used: one text has no padding
        )
        return cast(list[int], output[0].tolist())


def follow(
    drafter: Drafter, text: Sequence[int], prompt: int, rows: Tensor | None, levels: int, found: AcceptanceCounts
) -> None:
    """Draft chains along a text after its first `prompt` tokens, and count what is accepted.

    `rows` [len(text), width] are its features. The prompt's own verdict, which has no draft, is not counted.
    """
    state, length, shape = drafter.new_state(), 0, TreeShape.chain(levels)
    gained = prompt + 1
    while length + gained < len(text):
        state.append(text[length : length + gained])
        length += gained
        if rows is not None:
            # Never the root's own row: the server knows its feature only after the next verdict.
            known = state.num_features
            state.add_features(known, rows[known : length - 1])
        drafted = grow_tree(state, shape).tokens
        ahead = text[length : length + len(drafted)]
        accepted = next((i for i, (a, b) in enumerate(zip(drafted, ahead, strict=False)) if a != b), len(ahead))
        gained = min(accepted + 1, len(text) - length)
        found.add(accepted, gained)
