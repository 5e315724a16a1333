"""The run: chats of user turns and answers, written to the files as they end, until there are enough tokens."""

import itertools
import json
import random
import re
import unicodedata
import zlib
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider_models.core.options import DistillOptions, held_out_file
from outrider_models.core.questions import UserQuestion
from outrider_models.distillation.writer import Continuation, Dialog, Opening, TargetWriter
from outrider_models.training.data.chats import Message
from outrider_proto.errors import UsageError
from outrider_proto.files import MAX_LINES_BYTES, parse_json, read_regular

_TWO_TURNS = 0.2  # share of chats with a second question
_PASSAGE_TOKENS = range(60, 220)  # an answer of that length may be the text of a summary or a question
_MAX_PASSAGES = 400
_MAX_TURN_TOKENS = 120
_FIRST_WORDS = 8
_MAX_LIKE_BEGINNINGS = 3  # of as many words; small models begin many turns alike
_MIN_WORDS, _LOOP, _MAX_LOOPS = 2, 6, 4
_MOST_DROPPED = 200  # before the first chat
_MIN_CUT_TOKENS = 48  # of an answer without an end
_BAD = re.compile("[\ufffd\u0000-\u0008\u000b\u000c\u000e-\u001f]")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of chats, `share` of all, and the words with which a user's turn begins, so that the model goes on in it.

    "" leaves the whole turn to it. None ends in a space, a token of its own that hardly anything but digits follows.
    `over_text`: the turn begins with a text that the model wrote before.
    """

    share: float
    openings: Sequence[str]
    over_text: bool = False
    asks_all: bool = False  # the opening is the whole request, and the model adds nothing


KINDS: Mapping[str, Kind] = {
    "open": Kind(0.22, ("",)),
    "chat": Kind(0.16, (
        "Hi,", "Can you", "I am", "My", "How do I", "What should I", "I want to", "Tell me", "Should I",
        "Help me", "What do you think about", "I have a question about", "Give me advice on",
    )),
    "knowledge": Kind(0.14, (
        "What is", "Why do", "Why is", "Who was", "When did", "Explain", "What are the", "How does",
        "Describe", "What is the difference between", "Where is", "List", "Name three",
    )),
    "writing": Kind(0.12, (
        "Write a short story about", "Write an email", "Write a poem", "Write a paragraph about",
        "Create a", "Rewrite the following sentence:", "Write a letter to", "Translate", "Draft a",
    )),
    "code": Kind(0.12, (
        "Write a Python function that", "Write a function", "Write a program", "Fix this code:\n",
        "How do I write a loop", "Write a SQL query", "Write JavaScript code", "What does this code do?\n",
        "Implement", "Write a class",
    )),
    "math": Kind(0.10, (
        "Calculate", "Solve the equation", "What is the sum of", "A shop sells", "If a train", "How many",
        "Find the", "A farmer has", "What is 15", "Simplify", "Tom has", "The length of a rectangle is",
    )),
    "summary": Kind(0.07, (
        "Summarize the text above.", "Summarize the text above in one sentence.", "What is the text above about?",
        "Give the main points of the text above.",
    ), over_text=True, asks_all=True),
    "qa": Kind(0.07, (
        "Question: What", "Question: Why", "Question: Who", "Question: How", "According to the text,",
        "Answer from the text:",
    ), over_text=True),
}  # fmt: skip


@dataclass(slots=True)
class DistillProgress:
    """What the files hold so far; `dropped` counts since the start of this process."""

    tokens: int = 0
    chats: int = 0
    dropped: int = 0


@dataclass(slots=True)
class _Chat:
    """A chat as it grows; `number`: of its question, or of the try to make one."""

    number: int
    kind: str = ""
    messages: list[Message] = field(default_factory=list)
    tokens: int = 0
    cut: bool = False  # the last answer has no end of its own

    @property
    def first_question(self) -> str:
        return next(message["content"] for message in self.messages if message["role"] == "user")


class Distillation:
    """One run. What the files hold already is kept and counted, and not asked again: an interrupted run goes on.

    Without `questions` the target asks, too. The same seed, batch and machine give the same chats to a run that is not
    interrupted. Raises UsageError for files of another kind.
    """

    def __init__(
        self, writer: TargetWriter, options: DistillOptions, questions: Sequence[UserQuestion] | None = None
    ) -> None:
        self._writer, self._template, self._options, self._questions = writer, writer.template, options, questions
        self._seen = SeenPrompts()
        self._passages: deque[str] = deque(maxlen=_MAX_PASSAGES)
        self._written: set[int] = set()
        self.done = DistillProgress()
        self._report: Callable[[DistillProgress], None] = lambda done: None
        for path in (options.out, held_out_file(options.out)):
            for entry in _entries(path):
                chat = _Chat(entry["number"], entry["kind"], entry["messages"], entry["tokens"])
                self._seen.add(chat.first_question)
                self._count(chat)

    def run(self, report: Callable[[DistillProgress], None] = lambda done: None) -> None:
        """Write until there are enough tokens or no more questions, and end what is begun; `report` after each chat."""
        self._report = report
        self._writer.write(self._dialogs())

    def _dialogs(self) -> Iterator[Dialog]:
        if self._questions is not None:
            numbers: Iterable[int] = (i for i in range(len(self._questions)) if i not in self._written)
        else:
            numbers = itertools.count(max(self._written, default=-1) + 1)
        for number in numbers:
            if self.done.tokens >= self._options.tokens:
                return
            yield self._dialog(_Chat(number))

    def _dialog(self, chat: _Chat) -> Dialog:
        yield from self._own(chat) if self._questions is None else self._given(chat, self._questions[chat.number])
        if chat.tokens:
            self._write(chat)
        else:
            self.done.dropped += 1
            if self._questions is None and self.done.dropped >= _MOST_DROPPED and not self.done.chats:
                raise UsageError(f"the target asked {_MOST_DROPPED} questions, none of them sound: give --prompts FILE")
        self._report(self.done)

    def _given(self, chat: _Chat, question: UserQuestion) -> Dialog:
        chat.kind = question.category
        if question.system is not None:
            chat.messages.append({"role": "system", "content": question.system})
        for turn in question.turns:
            if not (yield from self._answered(chat, turn)):
                return

    def _own(self, chat: _Chat) -> Dialog:
        """Let the target write a question, and answer it if it is sound and new; perhaps it asks once more."""
        chance = random.Random(f"{self._options.seed} {chat.number}")
        # Until there are texts to ask about, their kinds stand back.
        names = [name for name, kind in KINDS.items() if self._passages or not kind.over_text]
        chat.kind = chance.choices(names, [KINDS[name].share for name in names])[0]
        kind = KINDS[chat.kind]
        opening = chance.choice(kind.openings)
        begun = f"{chance.choice(self._passages)}\n\n{opening}" if kind.over_text else opening
        question = begun if kind.asks_all else (yield from self._asked([], begun, chance))
        if question is None or not self._seen.add(question):
            return
        if (yield from self._answered(chat, question)) and chance.random() < _TWO_TURNS:
            further = yield from self._asked(chat.messages, "", chance)
            if further is not None:
                yield from self._answered(chat, further)

    def _asked(
        self, before: list[Message], begun: str, chance: random.Random
    ) -> Generator[Opening, Continuation, str | None]:
        """Let the target go on with a user's turn; return the whole turn, or None for one that is not sound."""
        opening = Opening(self._template.users(before) + begun, _MAX_TURN_TOKENS, chance.getrandbits(32), loops)
        words = yield opening
        whole = begun + words.text
        return whole.strip() if words.ended and is_sound(whole, words.tokens) else None

    def _answered(self, chat: _Chat, question: str) -> Generator[Opening, Continuation, bool]:
        """Append a question and the greedy answer up to a loop, if that is sound; return whether the chat goes on."""
        asked: list[Message] = [*chat.messages, {"role": "user", "content": question}]
        answer = yield Opening(self._template.assistants(asked), self._options.max_new_tokens, enough=loops)
        tokens = before_loop(answer.tokens)
        ended = answer.ended and len(tokens) == len(answer.tokens)
        text = answer.text if ended else str(self._writer.tokenizer.decode(list(tokens))).rstrip("\ufffd")
        # A short answer ("Paris") is a good one where it has ended.
        if not (text.strip() if ended else len(tokens) >= _MIN_CUT_TOKENS) or _BAD.search(text):
            return False
        chat.messages = [*asked, {"role": "assistant", "content": text}]
        chat.tokens += len(tokens)
        chat.cut = not ended
        return ended

    def _write(self, chat: _Chat) -> None:
        options = self._options
        entry = {"messages": chat.messages, "kind": chat.kind, "tokens": chat.tokens, "number": chat.number}
        entry |= {"cut": True} if chat.cut else {}
        # By the first question alone, so that no prompt is on both sides.
        held_out = zlib.crc32(chat.first_question.encode()) < options.held_out * 2**32
        try:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with (held_out_file(options.out) if held_out else options.out).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        except OSError as error:
            raise UsageError(f"{options.out}: {error.strerror}") from error
        self._count(chat)

    def _count(self, chat: _Chat) -> None:
        self._written.add(chat.number)
        self.done.tokens += chat.tokens
        self.done.chats += 1
        if len(chat.messages) == 2 and chat.tokens in _PASSAGE_TOKENS and chat.kind in ("knowledge", "writing", "open"):
            self._passages.append(chat.messages[-1]["content"].strip())


def _entries(path: Path) -> Iterator[dict[str, Any]]:  # Any: as in JSON
    """Read what an earlier run wrote; a line that it did not finish is cut off. Raises UsageError for other files."""
    if not path.is_file():
        return
    whole = read_regular(path, MAX_LINES_BYTES)
    complete = whole[: whole.rfind(b"\n") + 1]
    for number, line in enumerate(complete.decode("utf-8", errors="replace").split("\n")[:-1], 1):
        try:
            entry = parse_json(line, path)
            numbers = [entry[key] for key in ("tokens", "number")]
            if not (isinstance(entry["kind"], str) and all(isinstance(number, int) for number in numbers)):
                raise TypeError("not as this command writes them")
        except (UsageError, KeyError, TypeError):
            raise UsageError(
                f"{path}:{number}: no chat that `outrider-models distill` wrote: name another --out"
            ) from None
        yield entry
    if len(complete) < len(whole):
        path.write_bytes(complete)


class SeenPrompts:
    """User turns so far, compared without case, accents and punctuation."""

    def __init__(self) -> None:
        self._whole: set[str] = set()
        self._beginnings: Counter[str] = Counter()

    def add(self, prompt: str) -> bool:
        """Remember a prompt; False if it, or too many that begin like it, were seen before."""
        plain = normalized(prompt)
        beginning = " ".join(plain.split()[:_FIRST_WORDS])
        if plain in self._whole or self._beginnings[beginning] >= _MAX_LIKE_BEGINNINGS:
            return False
        self._whole.add(plain)
        self._beginnings[beginning] += 1
        return True


def normalized(text: str) -> str:
    """Return the letters and digits of a text, in lower case, with single spaces between words."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return " ".join("".join(c if c.isalnum() else " " for c in plain if not unicodedata.combining(c)).split())


def is_sound(text: str, tokens: Sequence[int]) -> bool:
    """True for a text with at least two words, without broken characters, that does not go round in circles."""
    return len(text.split()) >= _MIN_WORDS and not _BAD.search(text) and not loops(tokens)


def loops(tokens: Sequence[int]) -> bool:
    """True if some six tokens in a row come more than four times."""
    return any(count > _MAX_LOOPS for count in _runs(tokens).values())


def before_loop(tokens: Sequence[int]) -> Sequence[int]:
    """Return the tokens up to where those six that come more than four times come again."""
    looping = {run for run, count in _runs(tokens).items() if count > _MAX_LOOPS}
    seen: set[tuple[int, ...]] = set()
    for i in range(len(tokens) - _LOOP + 1 if looping else 0):
        run = tuple(tokens[i : i + _LOOP])
        if run in seen:
            return tokens[:i]
        if run in looping:
            seen.add(run)
    return tokens


def _runs(tokens: Sequence[int]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(tokens[i : i + _LOOP]) for i in range(len(tokens) - _LOOP + 1))
