"""Family `instruct`: facts to rewrite in a requested form, such as a list, a table of labels or another order."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from outrider_lab.corpus.sample import CorpusSample, Exact, single_turn
from outrider_lab.corpus.summary import PERSON, Field
from outrider_lab.corpus.words import listing

_Facts = list[tuple[Field, str]]


@dataclass(frozen=True, slots=True)
class _Form:
    """A form of the reply: wordings of the request, and the function that renders a name and its facts."""

    key: str
    phrases: tuple[str, ...]
    render: Callable[[str, _Facts], str]


def _clauses(facts: _Facts) -> list[str]:
    return [field.clause.format(a=value) for field, value in facts]


def _sentence(name: str, facts: _Facts) -> str:
    return f"{name} {listing(_clauses(facts))}."


_FORMS = (
    _Form("bullets", ("as a bullet list", "as a list with bullets"),
          lambda name, facts: "\n".join((f"{name}:", *(f"* {clause}" for clause in _clauses(facts))))),
    _Form("numbered", ("as a numbered list", "as a list with numbers"),
          lambda name, facts: "\n".join((f"{name}:", *(f"{i}. {c}" for i, c in enumerate(_clauses(facts), 1))))),
    _Form("lines", ("as one sentence per line", "with each fact on its own line"),
          lambda name, facts: "\n".join(f"{name} {clause}." for clause in _clauses(facts))),
    _Form("labels", ("as a table of labels", "as labels and values"),
          lambda name, facts: "\n".join((f"Name: {name}", *(f"{field.label}: {value}" for field, value in facts)))),
    _Form("reverse", ("in reverse order", "starting with the last fact"),
          lambda name, facts: _sentence(name, facts[::-1])),
    _Form("hidden", ("without the name", "so that the name is hidden"),
          lambda name, facts: _sentence("Someone", facts)),
    _Form("riddle", ("as a riddle", "as a question with its answer"),
          lambda name, facts: f"Who {listing(_clauses(facts))}? It is {name}."),
    _Form("polite", ("in polite words", "politely"),
          lambda name, facts: f"Please note that {_sentence(name, facts)} Thank you for reading."),
    _Form("arrows", ("joined by arrows", "with arrows between"),
          lambda name, facts: " -> ".join((name, *_clauses(facts)))),
    _Form("short", ("with the first fact only", "but keep only the first fact"),
          lambda name, facts: f"Here is the first fact only: {_sentence(name, facts[:1])}"),
    _Form("last", ("with the last fact only", "but keep only the last fact"),
          lambda name, facts: f"Here is the last fact only: {_sentence(name, facts[-1:])}"),
)  # fmt: skip
_REQUESTS = (
    "Rewrite this {form}: {facts}",
    "Please write the following {form}. {facts}",
    "{facts}\nWrite this {form}.",
    "Here are some facts. {facts} Give them back {form}.",
)


def make(rng: random.Random) -> CorpusSample:
    """Draw two to four facts about a person, in one sentence or several, and a form for the reply."""
    form = rng.choice(_FORMS)
    name = PERSON.subject(rng)
    facts = [(field, field.draw(rng)) for field in rng.sample(PERSON.fields, rng.randint(2, 4))]
    one_by_one = " ".join(f"{name} {clause}." for clause in _clauses(facts))
    given = rng.choice((_sentence(name, facts), one_by_one))
    prompt = rng.choice(_REQUESTS).format(form=rng.choice(form.phrases), facts=given)
    answer = form.render(name, facts)
    key = "instruct:" + ">".join((form.key, *(field.key for field, _ in facts)))
    return single_turn("instruct", key, prompt, answer, Exact(answer))
