"""What is asked, as token ids: held-out prompts of the embedded corpus, or the questions of a user's file.

The corpus' come with the sample that judges an answer. The turns of a user's question are asked one after the other,
each with the target's own greedy answers to those before it in the history: they are prompts of their own then, the
same for every way of answering.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Self, cast

from outrider_bench.core.tables import show_line
from outrider_client.models.local_models import LocalModels
from outrider_models.core.embedded import target_dir
from outrider_models.core.held_out import FAMILIES, WARM_UP_SEED, Family, Sample, SampleMessage, held_out, prefixes
from outrider_models.core.questions import UserQuestion, read_questions
from outrider_proto.errors import UsageError

# Text whose tau is high because it is nearly deterministic for the embedded pair, and the rest: figures of the one must
# not stand for the other.
TEXT_GROUPS: Mapping[str, tuple[Family, ...]] = {
    "easy": ("code", "math"),
    "hard": ("chat", "summary", "qa", "instruct"),
}
WARM_UP_TOKENS = 8
Answer = Callable[[Sequence[int], int], Sequence[int]]  # the target's greedy answer to a prompt, of at most n tokens
ALL = "all"  # in tables
WARM_UP = UserQuestion("warm-up", "warm-up", ("Hello! Who are you?",))


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt's token ids, its family (category, for a user's question), and a name that no other prompt has."""

    family: str
    prompt: tuple[int, ...]
    name: str


@dataclass(frozen=True, slots=True)
class CorpusQuestion(Question):
    """A sample of the corpus."""

    sample: Sample


@dataclass(frozen=True, slots=True)
class AskedPrompts:
    """The prompts, how often each is asked, and the seed of the order of the ways."""

    asked: Sequence[Question]
    warm_up: Question
    repetitions: int = 1
    seed: int = 1

    def __len__(self) -> int:
        return len(self.asked) * self.repetitions

    def order(self, ways: Iterable[str]) -> Iterator[tuple[int, str]]:
        """Yield the prompt's place and the way of every answer: all ways answer a prompt before the next one comes."""
        names = list(ways)
        for run in range(self.repetitions):
            for place in range(len(self.asked)):
                for name in random.Random(f"{self.seed}/{run}/{place}").sample(names, len(names)):
                    yield place, name

    def by_repetition(self, values: Sequence[float]) -> list[list[float]]:
        """Split a way's values, one per answer in order, into rows of one repetition each."""
        count = len(self.asked)
        return [list(values[first : first + count]) for first in range(0, len(values), count)]


def questions(
    models: LocalModels, count: Callable[[Family], int] | int, seed: int | None = None
) -> list[CorpusQuestion]:
    """Return `count` questions per family, from compositions that are never trained on.

    `count` may depend on the family.
    """
    of_family = count if callable(count) else lambda family: count
    samples = [sample for family in FAMILIES for sample in held_out(family, of_family(family), seed)]
    return [
        CorpusQuestion(sample.family, _encode(models, sample.messages), f"{sample.family}-{number}", sample)
        for number, sample in enumerate(samples)
    ]


def by_family(asked: Sequence[Question]) -> dict[str, list[int]]:
    """Group the indices of the questions by family."""
    groups: dict[str, list[int]] = {}
    for number, question in enumerate(asked):
        groups.setdefault(question.family, []).append(number)
    return groups


def by_group(asked: Sequence[Question]) -> dict[str, list[int]]:
    """Group the indices of the corpus' questions by TEXT_GROUPS; a group without questions is left out."""
    # Only of the corpus: a user's category that is called math is not easy for that reason.
    families = by_family(asked) if all(isinstance(question, CorpusQuestion) for question in asked) else {}
    groups = {name: [n for family in some for n in families.get(family, ())] for name, some in TEXT_GROUPS.items()}
    return {name: numbers for name, numbers in groups.items() if numbers}


def warm_up_question(models: LocalModels, family: Family = FAMILIES[0]) -> CorpusQuestion:
    """Return a question of another seed than those asked, to be answered before anything is timed."""
    return questions(models, lambda one: int(one == family), WARM_UP_SEED)[0]


def spread_questions(models: LocalModels, count: int, families: Sequence[str] = FAMILIES) -> list[CorpusQuestion]:
    """Return `count` held-out questions, the families in turn."""
    each = -(-count // len(families))
    asked = questions(models, lambda family: each if family in families else 0)
    return [asked[family * each + i] for i in range(each) for family in range(len(families))][:count]


def lengthened(asked: Sequence[CorpusQuestion], models: LocalModels, least: int) -> list[CorpusQuestion]:
    """Put other questions and their answers before each one, until its prompt has at least `least` tokens."""
    return [_lengthened(question, number, models, least) for number, question in enumerate(asked)]


def _lengthened(question: CorpusQuestion, number: int, models: LocalModels, least: int) -> CorpusQuestion:
    before = prefixes(cast(Family, question.family), number)
    messages, prompt = question.sample.messages, question.prompt
    while len(prompt) < least:
        messages = (*next(before).conversation(), *messages)
        prompt = _encode(models, messages)
    return replace(question, sample=replace(question.sample, messages=messages), prompt=prompt)


def _encode(models: LocalModels, messages: Sequence[SampleMessage]) -> tuple[int, ...]:
    as_dicts = [message.as_dict() for message in messages]
    return tuple(models.encode(as_dicts, raw=False))  # type: ignore[arg-type] # a TypedDict is no dict to mypy


@dataclass(frozen=True, slots=True)
class QuestionSource:
    """The families of the corpus to ask, or the categories of a file; `asked` are all questions of these."""

    families: tuple[str, ...]
    file: Path | None = None
    asked: tuple[UserQuestion, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, target: Path, file: Path | None = None, families: Sequence[str] | None = None) -> Self:
        """Read the file if there is one.

        Raises UsageError for unknown families, a wrong file, and for none where `target` does not know the corpus.
        """
        if file is None:
            if not _knows_corpus(target):
                raise UsageError(
                    f"{target}: its own prompts come only with the embedded target: give --questions FILE, or "
                    "--set questions=FILE"
                )
            return cls(_chosen(families, FAMILIES))
        found = _told_apart(read_questions(file))
        chosen = _chosen(families, tuple(dict.fromkeys(question.category for question in found)))
        return cls(chosen, file, tuple(question for question in found if question.category in chosen))

    @property
    def settings(self) -> dict[str, object]:
        """What determines the prompts, as JSON has it."""
        content = json.dumps([asdict(question) for question in self.asked])
        digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
        return {"families": list(self.families), "questions": None if self.file is None else digest}

    def in_turn(self, count: int | None) -> list[UserQuestion]:
        """Return `count` of the file's questions (None: all), the categories in turn."""
        by_category = [[one for one in self.asked if one.category == name] for name in self.families]
        rounds = (one for row in zip_longest(*by_category) for one in row if one is not None)
        return list(rounds)[:count]

    def per_family(self, models: LocalModels, count: int | None, limit: int, answer: Answer) -> list[Question]:
        """Return the first `count` questions of each family (None: all of a file, ten of the corpus)."""
        if self.file is None:
            chosen = cast(tuple[Family, ...], self.families)
            return list(questions(models, lambda family: (count or 10) if family in chosen else 0))
        by_category = [[one for one in self.asked if one.category == name][:count] for name in self.families]
        return as_prompts([one for some in by_category for one in some], models, limit, answer)

    def spread(
        self, models: LocalModels, count: int | None, limit: int, answer: Answer, least: int = 0
    ) -> Sequence[Question]:
        """Return the prompts of `count` questions, the families in turn (None: all of a file, none of the corpus).

        Other questions and their answers precede them until they have `least` tokens. Raises UsageError where a file
        has too few.
        """
        if self.file is None:
            return lengthened(spread_questions(models, count or 0, self.families), models, least)
        asked = self.in_turn(count)
        if not least:
            return as_prompts(asked, models, limit, answer)
        return as_prompts(asked, models, limit, answer, _Histories(self.asked, models, limit, answer, least))

    def warm_up(self, models: LocalModels) -> Question:
        """Return a prompt that is none of those asked."""
        if self.file is None:
            return warm_up_question(models, cast(Family, self.families[0]))
        return Question(WARM_UP.category, turn_prompt(models, WARM_UP, ()), str(WARM_UP.id))


class _Histories:
    """Conversations before each question of a file: the questions that follow it there, and the target's answers.

    Only their first turns, and answers of at most `limit` tokens, each asked for once.
    """

    def __init__(
        self, known: Sequence[UserQuestion], models: LocalModels, limit: int, answer: Answer, least: int
    ) -> None:
        self._known, self._models, self._least = known, models, least
        self._answer = functools.cache(lambda prompt: models.decode(answer(prompt, limit)))

    def before(self, question: UserQuestion) -> tuple[UserQuestion, list[str]]:
        """Return the question with the turns before it, and the answers to these. Raises UsageError for too few."""
        place = self._known.index(question)
        answers: list[str] = []
        for other in (*self._known[place + 1 :], *self._known[:place], None):
            if (tokens := len(turn_prompt(self._models, question, answers))) >= self._least:
                return question, answers
            if other is not None:
                answers.insert(0, self._answer(turn_prompt(self._models, other, ())))
                question = replace(question, turns=(other.turns[0], *question.turns))
        raise UsageError(
            f"prompt_tokens={self._least}: question {question.id} with all others before it has {tokens}: "
            "need more questions"
        )


def as_prompts(
    asked: Sequence[UserQuestion],
    models: LocalModels,
    limit: int,
    answer: Answer,
    histories: _Histories | None = None,
) -> list[Question]:
    """Return every turn as a prompt; one that leaves no room for `limit` tokens is left out, and a line tells so.

    Raises UsageError where none is left.
    """
    begun = [(question, list[str]()) if histories is None else histories.before(question) for question in asked]
    prompts = [prompt for question, answers in begun for prompt in _turns(question, answers, models, limit, answer)]
    if not prompts:
        raise UsageError(f"questions: none fits the target's context of {models.max_context} with {limit} new tokens")
    return prompts


def _turns(
    question: UserQuestion, answers: list[str], models: LocalModels, limit: int, answer: Answer
) -> Iterator[Question]:
    """Yield the prompts of the turns after those that have answers."""
    count = len(question.turns) - len(answers)
    for number in range(1, count + 1):
        prompt = turn_prompt(models, question, answers)
        if len(prompt) + limit > models.max_context:
            show_line(too_long(question, number, len(prompt), limit, models.max_context))
            return
        name = f"{question.id}" if count == 1 else f"{question.id}.{number}"
        yield Question(question.category, prompt, name)
        if number < count:
            answers.append(models.decode(answer(prompt, limit)))


def turn_prompt(models: LocalModels, question: UserQuestion, answers: Sequence[str]) -> tuple[int, ...]:
    """Return the prompt of the turn that follows these answers, in the target's chat template. Raises UsageError."""
    messages = [] if question.system is None else [{"role": "system", "content": question.system}]
    for turn, answer in zip_longest(question.turns[: len(answers) + 1], answers):
        messages.append({"role": "user", "content": turn})
        if answer is not None:
            messages.append({"role": "assistant", "content": answer})
    return tuple(models.encode(messages, raw=False))  # type: ignore[arg-type] # a TypedDict is no dict to mypy


def too_long(question: UserQuestion, turn: int, tokens: int, limit: int, context: int) -> str:
    """Return the line that tells why a turn is not asked."""
    return (
        f"question {question.id}, turn {turn}, is left out: its prompt has {tokens} tokens, "
        f"which with {limit} new ones do not fit into the target's context of {context}"
    )


def _told_apart(found: Sequence[UserQuestion]) -> list[UserQuestion]:
    """Rename the category of plain prompts beside others: `all` is what tables call the sum of all categories."""
    if len({question.category for question in found}) == 1:
        return list(found)
    return [replace(one, category="other") if one.category == ALL else one for one in found]


def _chosen(asked: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    for name in asked or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
            raise UsageError(f"families={name!r}: {hint}")
    return tuple(name for name in known if asked is None or name in asked)


def _knows_corpus(target: Path) -> bool:
    """Return True for a target with the embedded one's tokenizer: only such a one was trained on the corpus."""
    own, embedded = target / "tokenizer.json", target_dir() / "tokenizer.json"
    return own.is_file() and own.read_bytes() == embedded.read_bytes()
