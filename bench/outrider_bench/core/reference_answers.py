"""What the target writes by itself: the answers that every other way is checked against."""

from __future__ import annotations

from collections.abc import Sequence

from outrider_bench.core.progress import Counter, Step
from outrider_bench.core.prompts import Question
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target


def plain_answers(target: Target, asked: Sequence[Question], limit: int, step: Step) -> list[tuple[int, ...]]:
    """Greedy, by transformers' plain loop, of at most `limit` tokens."""
    counter = Counter(step, "target alone", len(asked))
    answers = []
    for question in asked:
        answers.append(tuple(plain_greedy(target, question.prompt, limit)))
        counter()
    return answers
