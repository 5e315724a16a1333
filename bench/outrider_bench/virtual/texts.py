"""What a tape says about a text: whose answer it is, what the target writes next, and which drafts would have grown.

A text that has left its recording (a draft below an outcome that does not come true) is drafted for as if it stood at
the same place of the answer: such drafts are never accepted, only their sizes and times count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_bench.virtual.tape import Guess, Tape, TapedAnswer, TapedPosition, TokenPath
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.contracts.tree_shape import TreePlan, TreeShape
from outrider_drafters.trees.grow import IMPOSSIBLE, ScoredTree, start_tree
from outrider_drafters.trees.predraft import TreeOutcome, likeliest_outcomes
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT, DraftTree

_NOTHING = 1e-6  # of probability: what rounding leaves


class TapedText:
    """One recording. What was asked once is remembered: a sweep asks the same again and again."""

    def __init__(self, recording: TapedAnswer, tape: Tape) -> None:
        self.recording = recording
        self._tape = tape
        self._vocabulary = tape.vocabulary
        self._filler = next(token for token in range(tape.vocabulary.size) if token not in self._ends)
        self._lags = (0, *recording.late)
        self._grown: dict[tuple[int, int, TreePlan], tuple[ScoredTree, ...]] = {}
        self._outcomes: dict[tuple[int, int, DraftTree, int], list[tuple[TreeOutcome, float]]] = {}

    def follows(self, tokens: Sequence[int]) -> bool:
        """Whether the target, asked for this answer, would have come to these tokens."""
        prompt, answer = self.recording.prompt, self.recording.answer
        return tuple(tokens) == (prompt + answer)[: len(tokens)] and len(tokens) >= len(prompt)

    def next_token(self, num_tokens: int) -> int:
        """What the target writes after so many tokens; anything at all after the last one taped."""
        answer = self.recording.answer
        place = num_tokens - len(self.recording.prompt)
        return answer[place] if place < len(answer) else self._filler

    def drafts(self, num_tokens: int, plan: TreePlan, num_features: int | None = None) -> tuple[ScoredTree, ...]:
        """The draft whose root is the last of so many tokens: after one level, two, and so on to the plan's end.
        `num_features`: those that the drafter has; all by default."""
        self._check(plan)
        place, lag = self._place(num_tokens), self._lag(num_tokens, num_features)
        key = (place, lag, plan)
        if key not in self._grown:
            self._grown[key] = self._grow(self._taped(place, lag), plan)
        return self._grown[key]

    def outcomes(
        self, num_tokens: int, tree: DraftTree, count: int, num_features: int | None = None
    ) -> list[tuple[TreeOutcome, float]]:
        """The likeliest of a tree below the last of so many tokens, the likeliest first. `num_features` as above."""
        place, lag = self._place(num_tokens), self._lag(num_tokens, num_features)
        key = (place, lag, tree, count)
        if key not in self._outcomes:
            logits = self._after_every_node(self._taped(place, lag), tree)
            self._outcomes[key] = likeliest_outcomes(tree, logits, count, self._ends)
        return self._outcomes[key]

    def likeliest(self, num_tokens: int) -> int | None:
        """What the drafter would write by itself; None where it has nothing to say."""
        guess = self.recording.places[self._place(num_tokens)].guesses.get(())
        return guess.tokens[0] if guess is not None else None

    @property
    def _ends(self) -> tuple[int, ...]:
        return self._vocabulary.eos_token_ids

    def _place(self, num_tokens: int) -> int:
        return min(max(num_tokens - 1 - len(self.recording.prompt), 0), len(self.recording.places) - 1)

    def _lag(self, num_tokens: int, num_features: int | None) -> int:
        """The one taped that is nearest to as many features as are missing before the root."""
        missing = 0 if num_features is None else num_tokens - 1 - num_features
        return min(self._lags, key=lambda lag: abs(lag - missing))

    def _taped(self, place: int, lag: int) -> TapedPosition:
        return self.recording.late[lag][place] if lag else self.recording.places[place]

    def _check(self, plan: TreePlan) -> None:
        match plan:
            case TreeShape():
                if plan.breadth > self._tape.breadth or plan.levels > self._tape.levels:
                    raise UsageError(
                        f"breadth={plan.breadth}, levels={plan.levels}: the tape has {self._tape.breadth} and "
                        f"{self._tape.levels}; record a wider one, or ask for less"
                    )
            case TreeChoices():
                if not set(plan.paths) <= set(self._tape.choices or ()):
                    raise UsageError("choices: not those of the tape; record one with them")
            case _:
                assert_never(plan)

    def _grow(self, place: TapedPosition, plan: TreePlan) -> tuple[ScoredTree, ...]:
        if () not in place.guesses:
            return ()
        growth = start_tree(self._logits(place, ()), plan)
        grown, paths = [growth.drafted()], list[TokenPath]()
        for _ in range(1, plan.levels):
            if (level := growth.level()) is None:
                break
            parents = [() if parent == ROOT else paths[parent] for parent in level.parents]
            new = [(*parent, token) for parent, token in zip(parents, level.tokens, strict=True)]
            paths += new
            growth.take(torch.stack([self._logits(place, path) for path in new]))
            grown.append(growth.drafted())
        return tuple(grown)

    def _after_every_node(self, place: TapedPosition, tree: DraftTree) -> Tensor:  # [1 + n, V]
        paths: list[TokenPath] = [()]
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            paths.append((*paths[1 + parent], token))
        return torch.stack([self._logits(place, path) for path in paths])

    def _logits(self, place: TapedPosition, path: TokenPath) -> Tensor:  # [V]
        """Log-probabilities after a node. What the taped guesses leave is spread evenly over the other tokens, each of
        which is then no likelier than the last guess, as it was. Where nothing was taped, all tokens are alike to a
        drafter that can always go on, and another one ends."""
        size = self._vocabulary.size
        guess = place.guesses.get(path)
        if guess is None:
            return torch.full((size,), -math.log(size) if self._tape.endless else IMPOSSIBLE)
        left = 1.0 - sum(math.exp(value) for value in guess.log_probabilities)
        others = size - len(guess.tokens)
        each = math.log(left / others) if left > _NOTHING and others else IMPOSSIBLE
        logits = torch.full((size,), min(each, guess.log_probabilities[-1]))
        logits[list(guess.tokens)] = torch.tensor(guess.log_probabilities)
        return logits


class TapedTexts:
    """All recordings of a tape, found by what a text begins with."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._by_prompt: Mapping[TokenPath, TapedText] = {r.prompt: TapedText(r, tape) for r in tape.recordings}
        self._lengths = sorted({len(prompt) for prompt in self._by_prompt}, reverse=True)
        self._rows = np.array(tape.rows, dtype=np.float32).reshape(len(tape.rows), tape.tap.width)

    def of(self, tokens: Sequence[int]) -> TapedText:
        """The recording whose prompt the text begins with. Raises UsageError for a text of no recording."""
        for length in self._lengths:
            text = self._by_prompt.get(tuple(tokens[:length]))
            if text is not None:
                return text
        raise UsageError(f"a text of {len(tokens)} tokens begins as no prompt of the tape does: replay taped prompts")

    def rows(self, first: int, end: int) -> NDArray[np.float32]:  # [end - first, width]
        """Feature rows of the target's, though not of these positions."""
        return self._rows[np.arange(first, end) % len(self._rows)]


def guess_from(logits: Tensor, keep: int) -> Guess:  # logits [V]
    """The best `keep` of them as a tape has it; tokens that the drafter would never draft are left out."""
    values, tokens = logits.float().log_softmax(-1).topk(min(keep, len(logits)))
    found = [(t, v) for t, v in zip(tokens.tolist(), values.tolist(), strict=True) if v > IMPOSSIBLE]
    return Guess(tuple(t for t, _ in found), tuple(v for _, v in found))
