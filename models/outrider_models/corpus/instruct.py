"""Family `instruct`: do something to a list of words or numbers and answer in a wanted form."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from outrider_models.corpus.sample import Exact, Sample, ask
from outrider_models.corpus.words import PLAIN, SHORT


@dataclass(frozen=True, slots=True)
class _Task:
    """A change of a list: how it is asked for, how the reply names it, what it does."""

    key: str
    phrases: tuple[str, ...]
    named: str
    run: Callable[[list[str]], list[str]]


@dataclass(frozen=True, slots=True)
class _Form:
    """How the reply is laid out."""

    key: str
    phrases: tuple[str, ...]
    lay: Callable[[list[str]], str]


_WORD_TASKS = (
    _Task("sort", ("sort these words", "put these words in alphabetical order"), "sorted from A to Z", sorted),
    _Task("reverse", ("reverse this list", "turn this list around"), "in reverse order", lambda w: w[::-1]),
    _Task("upper", ("write these words in capitals", "put these words in upper case"), "in capitals",
          lambda w: [x.upper() for x in w]),
    _Task("initial", ("give the first letters of these words", "take the first letter of each word"),
          "as first letters", lambda w: [x[0] for x in w]),
    _Task("keep", ("repeat this list", "copy these words"), "as given", list),
    _Task("twice", ("write each word twice", "repeat every word two times"), "each twice",
          lambda w: [y for x in w for y in (x, x)]),
    _Task("first", ("keep only the first two words", "drop all but the first two words"), "only the first two",
          lambda w: w[:2]),
    _Task("last", ("keep only the last two words", "drop all but the last two words"), "only the last two",
          lambda w: w[-2:]),
    _Task("rest", ("drop the first word", "remove the first word"), "without the first", lambda w: w[1:]),
    _Task("swap", ("swap the first and the last word", "exchange the first and the last word"),
          "with first and last swapped", lambda w: [w[-1], *w[1:-1], w[0]]),
)  # fmt: skip
_NUMBER_TASKS = (
    _Task("up", ("sort these numbers", "order these numbers from small to large"), "from small to large",
          lambda w: sorted(w, key=int)),
    _Task("down", ("sort these numbers downwards", "order these numbers from large to small"), "from large to small",
          lambda w: sorted(w, key=int, reverse=True)),
    _Task("even", ("keep the even numbers", "list only the even numbers"), "only the even ones",
          lambda w: [x for x in w if int(x) % 2 == 0]),
    _Task("odd", ("keep the odd numbers", "list only the odd numbers"), "only the odd ones",
          lambda w: [x for x in w if int(x) % 2]),
    _Task("next", ("add one to each number", "increase each number by one"), "each plus one",
          lambda w: [str(int(x) + 1) for x in w]),
    _Task("around", ("reverse this list", "turn this list around"), "in reverse order", lambda w: w[::-1]),
)  # fmt: skip
_FORMS = (
    _Form("commas", ("separated by commas", "with commas between"), ", ".join),
    _Form("dashes", ("separated by dashes", "with dashes between"), " - ".join),
    _Form("numbered", ("as a numbered list", "as a list with numbers"),
          lambda w: "\n" + "\n".join(f"{i}. {x}" for i, x in enumerate(w, 1))),
    _Form("bullets", ("as a bullet list", "as a list with bullets"), lambda w: "\n" + "\n".join(f"* {x}" for x in w)),
    _Form("lines", ("one per line", "each on its own line"), lambda w: "\n" + "\n".join(w)),
    _Form("quoted", ("in quotes", "with quotes around each"), lambda w: ", ".join(f'"{x}"' for x in w)),
    _Form("arrows", ("joined by arrows", "with arrows between"), " -> ".join),
)  # fmt: skip


def make(rng: random.Random) -> Sample:
    """A task on three to six items, and a form for the reply."""
    numeric = rng.random() < 0.3
    task = rng.choice(_NUMBER_TASKS if numeric else _WORD_TASKS)
    form = rng.choice(_FORMS)
    items = _numbers(rng) if numeric else rng.sample(SHORT if task.key == "upper" else PLAIN, rng.randint(3, 6))
    given = rng.choice((", ", " ")).join(items)
    phrase, shape = rng.choice(task.phrases), rng.choice(form.phrases)
    prompt = rng.choice(
        (
            f"{_upper(phrase)}: {given}. Answer {shape}.",
            f"Please {phrase} and answer {shape}: {given}",
            f"Here are some items: {given}. Now {phrase}. Write the result {shape}.",
            f"{_upper(phrase)}, {shape}: {given}",
        )
    )
    answer = f"Here are the items {task.named}: {form.lay(task.run(items))}".replace(": \n", ":\n")
    return ask("instruct", f"instruct:{task.key}>{form.key}>{len(items)}", prompt, answer, Exact(answer))


def _numbers(rng: random.Random) -> list[str]:
    odd, even = rng.choice((1, 3, 5, 7)), rng.choice((2, 4, 6, 8))
    rest = rng.sample([n for n in range(1, 10) if n not in (odd, even)], rng.randint(1, 4))
    numbers = [odd, even, *rest]
    rng.shuffle(numbers)
    return [str(number) for number in numbers]


def _upper(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]
