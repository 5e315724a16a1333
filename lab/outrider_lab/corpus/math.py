"""Family `math`: word problems of two to four events, worked step by step, that end with `Answer: N`.

Sums are counted out (`12 + 3: 13, 14, 15`): a model of a few million parameters learns to count long before it knows
its sums by heart.
"""

import random
import re
from dataclasses import dataclass

from outrider_lab.corpus.sample import CorpusSample, Number, single_turn
from outrider_lab.corpus.words import OBJECTS, person

_LIMIT = 24  # running totals stay in 0.._LIMIT
_STEP = 4  # the most that one event adds or takes away


@dataclass(frozen=True, slots=True)
class _Event:
    """An event that changes the count: its wordings in the problem, and the one in the worked solution."""

    key: str
    statements: tuple[str, ...]
    worked: str
    sign: int  # +1 adds n, -1 takes n away, 2 multiplies by n, 0 halves


_EVENTS = (
    _Event("buy", ("buys {n} more", "gets {n} more at the shop"), "buys {n}", 1),
    _Event("find", ("finds {n} more", "finds {n} on the way"), "finds {n}", 1),
    _Event("gift", ("is given {n} by {other}", "receives {n} from {other}"), "receives {n}", 1),
    _Event("make", ("makes {n} new ones", "makes {n} more"), "makes {n}", 1),
    _Event("lose", ("loses {n}", "loses {n} of them"), "loses {n}", -1),
    _Event("give", ("gives {n} to {other}", "hands {n} to {other}"), "gives away {n}", -1),
    _Event("sell", ("sells {n}", "sells {n} of them"), "sells {n}", -1),
    _Event("break", ("breaks {n}", "breaks {n} by accident"), "breaks {n}", -1),
    _Event("double", ("doubles the pile", "doubles what is there"), "doubles it", 2),
    _Event("halve", ("keeps half of them", "keeps only half"), "keeps half", 0),
)
_OPENINGS = (
    ("has", "{name} has {n} {thing}.", None),
    ("start", "{name} starts with {n} {thing}.", None),
    ("owns", "{name} owns {n} {thing}.", None),
    ("boxes", "{name} has {a} boxes with {b} {thing} each.", "Boxes"),
    ("bags", "{name} fills {a} bags with {b} {thing} each.", "Bags"),
)
_QUESTIONS = (
    "How many {thing} does {name} have now?",
    "How many {thing} are there in the end?",
    "What is the number of {thing} left?",
    "How many {thing} is that?",
)


def make(rng: random.Random) -> CorpusSample:
    """Draw a problem; `fits` says whether its totals are allowed."""
    # Training data depends on the order of every draw in these generators.
    name, other, thing = person(rng), person(rng), rng.choice(OBJECTS)
    opening, sentence, groups = rng.choice(_OPENINGS)
    events = rng.sample(_EVENTS, rng.choices((1, 2, 3), (2, 5, 3))[0])
    total, steps = rng.randint(4, 12), []
    if groups:
        a, b = rng.randint(2, 4), rng.randint(2, 5)
        total = a * b
        steps.append(f"{groups}: {a} * {b} = {total}.")
        sentence = sentence.format(name=name, a=a, b=b, thing=thing)
    else:
        sentence = sentence.format(name=name, n=total, thing=thing)
        steps.append(f"Start: {total}.")
    sentences = [sentence]
    for event in events:
        n = _amount(event, total, rng)
        sentences.append(_sentence(event, name, other, n, rng))
        before, total = total, _apply(event, total, n)
        steps.append(f"{name} {event.worked.format(n=n)}: {_working(event, before, n)}.")
    question = rng.choice(_QUESTIONS).format(thing=thing, name=name)
    key = "math:" + ">".join((opening, *(event.key for event in events)))
    answer = "\n".join((*steps, f"Answer: {total}"))
    return single_turn("math", key, " ".join((*sentences, question)), answer, Number(total))


def _amount(event: _Event, total: int, rng: random.Random) -> int:
    if event.sign > 0:
        return rng.randint(1, _STEP)
    return rng.randint(1, max(1, min(_STEP, total)))


def _sentence(event: _Event, name: str, other: str, n: int, rng: random.Random) -> str:
    who = rng.choice((name, "Later " + name, "Then " + name))
    return f"{who} {rng.choice(event.statements).format(n=n, other=other)}."


def _apply(event: _Event, total: int, n: int) -> int:
    match event.sign:
        case 2:
            return total * 2
        case 0:
            return total // 2
        case sign:
            return total + sign * n


def _working(event: _Event, total: int, n: int) -> str:
    match event.sign:
        case 2:
            return f"{total} * 2 = {total * 2}"
        case 0:
            return f"{total} / 2 = {total // 2}"
        case 1:
            return f"{total} + {n}: " + ", ".join(str(total + i) for i in range(1, n + 1))
        case _:
            return f"{total} - {n}: " + ", ".join(str(total - i) for i in range(1, n + 1))


def fits(sample: CorpusSample) -> bool:
    """Return whether every total is small, whole and not negative; other samples are drawn again."""
    numbers = [int(number) for number in re.findall(r"-?\d+", sample.answer.replace(" - ", " "))]
    halved = [int(number) for number in re.findall(r"(\d+) / 2", sample.answer)]
    return all(0 <= number <= _LIMIT for number in numbers) and not any(number % 2 for number in halved)
