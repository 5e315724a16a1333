"""Texts of a tape: the answer that a text belongs to, the target's next token, and the drafts.

A text that has left its recording (a draft below an outcome that does not come true) gets the drafts of the same
position in the answer: they are never accepted, so only their sizes and times count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.contracts.tree_shape import TreePlan, TreeShape
from outrider_drafters.trees.grow import IMPOSSIBLE, ScoredTree, start_tree
from outrider_drafters.trees.predraft import TreeOutcome, likeliest_outcomes
from outrider_lab.virtual.tape import Guess, Tape, TapedAnswer, TapedPosition, TokenPath
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT, DraftTree

_NOTHING = 1e-6  # of probability: what rounding leaves


class TapedText:
    """One recording; drafts and outcomes are cached, since a sweep asks for the same again and again."""

    def __init__(self, recording: TapedAnswer, tape: Tape) -> None:
        self.recording = recording
        self._tape = tape
        self._vocabulary = tape.vocabulary
        # Not an end token: beyond the tape, an answer must go on.
        self._filler = next(token for token in range(tape.vocabulary.size) if token not in self._ends)
        self._lags = (0, *recording.late)
        self._grown: dict[tuple[int, int, TreePlan], tuple[ScoredTree, ...]] = {}
        self._outcomes: dict[tuple[int, int, DraftTree, int], list[tuple[TreeOutcome, float]]] = {}

    def follows(self, tokens: Sequence[int]) -> bool:
        """Return True if the target could have written these tokens as this answer."""
        prompt, answer = self.recording.prompt, self.recording.answer
        return tuple(tokens) == (prompt + answer)[: len(tokens)] and len(tokens) >= len(prompt)

    def next_token(self, num_tokens: int) -> int:
        """Return the target's token after `num_tokens`; a filler after the last one taped."""
        answer = self.recording.answer
        position = num_tokens - len(self.recording.prompt)
        return answer[position] if position < len(answer) else self._filler

    def drafts(self, num_tokens: int, plan: TreePlan, num_features: int | None = None) -> tuple[ScoredTree, ...]:
        """Return the draft below the last of `num_tokens` tokens, after each of its levels.

        `num_features`: those that the drafter has; default: all.
        """
        self._check(plan)
        position, lag = self._place(num_tokens), self._lag(num_tokens, num_features)
        key = (position, lag, plan)
        if key not in self._grown:
            self._grown[key] = self._grow(self._taped(position, lag), plan)
        return self._grown[key]

    def outcomes(
        self, num_tokens: int, tree: DraftTree, count: int, num_features: int | None = None
    ) -> list[tuple[TreeOutcome, float]]:
        """Return the most likely outcomes of a tree below the last of `num_tokens` tokens, in order.

        `num_features` as above.
        """
        position, lag = self._place(num_tokens), self._lag(num_tokens, num_features)
        key = (position, lag, tree, count)
        if key not in self._outcomes:
            logits = self._after_every_node(self._taped(position, lag), tree)
            self._outcomes[key] = likeliest_outcomes(tree, logits, count, self._ends)
        return self._outcomes[key]

    def likeliest(self, num_tokens: int) -> int | None:
        """Return the token that the drafter would write offline; None if it has none."""
        guess = self.recording.positions[self._place(num_tokens)].guesses.get(())
        return guess.tokens[0] if guess is not None and guess.tokens else None

    @property
    def _ends(self) -> tuple[int, ...]:
        return self._vocabulary.eos_token_ids

    def _place(self, num_tokens: int) -> int:
        return min(max(num_tokens - 1 - len(self.recording.prompt), 0), len(self.recording.positions) - 1)

    def _lag(self, num_tokens: int, num_features: int | None) -> int:
        """Return the taped lag that is nearest to the features missing before the root."""
        missing = 0 if num_features is None else num_tokens - 1 - num_features
        return min(self._lags, key=lambda lag: abs(lag - missing))

    def _taped(self, position: int, lag: int) -> TapedPosition:
        return self.recording.late[lag][position] if lag else self.recording.positions[position]

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
                    raise UsageError("choices: the tape has other ones; record one with these")
            case _:
                assert_never(plan)

    def _grow(self, position: TapedPosition, plan: TreePlan) -> tuple[ScoredTree, ...]:
        if () not in position.guesses:
            return ()
        builder = start_tree(self._logits(position, ()), plan)
        grown, paths = [builder.drafted()], list[TokenPath]()
        for _ in range(1, plan.levels):
            if (level := builder.level()) is None:
                break
            parents = [() if parent == ROOT else paths[parent] for parent in level.parents]
            new = [(*parent, token) for parent, token in zip(parents, level.tokens, strict=True)]
            paths += new
            builder.take(torch.stack([self._logits(position, path) for path in new]))
            grown.append(builder.drafted())
        return tuple(grown)

    def _after_every_node(self, position: TapedPosition, tree: DraftTree) -> Tensor:  # [1 + n, V]
        paths: list[TokenPath] = [()]
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            paths.append((*paths[1 + parent], token))
        return torch.stack([self._logits(position, path) for path in paths])

    def _logits(self, position: TapedPosition, path: TokenPath) -> Tensor:  # [V]
        """Return log-probabilities after a node.

        What the taped guesses leave is spread evenly over the other tokens, none of which becomes more likely than the
        last guess. Where nothing was taped, all tokens are equally likely for a drafter without end, and impossible for
        others; so they are where the drafter drafted none.
        """
        size = self._vocabulary.size
        guess = position.guesses.get(path)
        if guess is None:
            return torch.full((size,), -math.log(size) if self._tape.endless else IMPOSSIBLE)
        if not guess.tokens:
            return torch.full((size,), IMPOSSIBLE)
        left = 1.0 - sum(math.exp(value) for value in guess.log_probabilities)
        others = size - len(guess.tokens)
        each = math.log(left / others) if left > _NOTHING and others else IMPOSSIBLE
        # Rounding in the tape may leave the others more than the last guess has: they must stay below it.
        logits = torch.full((size,), min(each, guess.log_probabilities[-1]))
        logits[list(guess.tokens)] = torch.tensor(guess.log_probabilities)
        return logits


class TapedTexts:
    """All recordings of a tape, found by their prompts."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._by_prompt: Mapping[TokenPath, TapedText] = {r.prompt: TapedText(r, tape) for r in tape.recordings}
        # Longest first: a prompt may be the beginning of another one.
        self._lengths = sorted({len(prompt) for prompt in self._by_prompt}, reverse=True)
        self._rows = np.array(tape.rows, dtype=np.float32).reshape(len(tape.rows), tape.tap.width)

    def of(self, tokens: Sequence[int]) -> TapedText:
        """Return the recording whose prompt the text begins with. Raises UsageError if there is none."""
        for length in self._lengths:
            text = self._by_prompt.get(tuple(tokens[:length]))
            if text is not None:
                return text
        raise UsageError(f"a text of {len(tokens)} tokens begins with no prompt of the tape: ask only taped prompts")

    def rows(self, first: int, end: int) -> NDArray[np.float32]:  # [end - first, width]
        """Return feature rows of the target, though not those of these positions."""
        return self._rows[np.arange(first, end) % len(self._rows)]


def guess_from(logits: Tensor, keep: int) -> Guess:  # logits [V]
    """Return the best `keep` tokens as a tape has them, without those that are never drafted."""
    values, tokens = logits.float().log_softmax(-1).topk(min(keep, len(logits)))
    # A drafter with a reduced vocabulary gives impossible tokens, which top-k may still return.
    found = [(t, v) for t, v in zip(tokens.tolist(), values.tolist(), strict=True) if v > IMPOSSIBLE]
    return Guess(tuple(t for t, _ in found), tuple(v for _, v in found))
