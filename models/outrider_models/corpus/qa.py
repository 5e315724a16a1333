"""Family `qa`: a question over a passage about two or three people; the answer copies an entity from it."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from outrider_models.corpus import words
from outrider_models.corpus.sample import Entities, Sample, ask


@dataclass(frozen=True, slots=True)
class _Relation:
    """Person and entity: told in the passage, asked from either end."""

    key: str
    told: tuple[str, ...]
    ask_entity: tuple[str, ...]
    ask_person: tuple[str, ...]
    stated: str
    choices: tuple[str, ...]


_RELATIONS = (
    _Relation("city", ("{p} lives in {a}.", "{p} has a flat in {a}.", "The house of {p} is in {a}."),
              ("Where does {p} live?", "In which city does {p} live?"), ("Who lives in {a}?", "Who is from {a}?"),
              "{p} lives in {a}.", words.CITIES),
    _Relation("job", ("{p} works as a {a}.", "{p} is a {a}.", "{p} found a job as a {a}."),
              ("What is the job of {p}?", "What does {p} do for work?"), ("Who is the {a}?", "Who works as a {a}?"),
              "{p} works as a {a}.", words.JOBS),
    _Relation("hobby", ("{p} enjoys {a}.", "{p} likes {a} a lot.", "The hobby of {p} is {a}."),
              ("What does {p} enjoy?", "What is the hobby of {p}?"), ("Who enjoys {a}?", "Who likes {a}?"),
              "{p} enjoys {a}.", words.HOBBIES),
    _Relation("pet", ("{p} has a {a}.", "{p} keeps a {a} at home.", "The pet of {p} is a {a}."),
              ("What pet does {p} have?", "Which animal does {p} keep?"), ("Who has a {a}?", "Who keeps a {a}?"),
              "{p} keeps a {a}.", words.ANIMALS),
    _Relation("food", ("{p} cooks {a}.", "{p} eats {a} every day.", "The dinner of {p} is {a}."),
              ("What does {p} eat?", "What is the food of {p}?"), ("Who eats {a}?", "Who cooks {a}?"),
              "{p} eats {a}.", words.FOODS),
    _Relation("colour", ("{p} wears a {a} hat.", "The hat of {p} is {a}.", "{p} bought a {a} hat."),
              ("What colour is the hat of {p}?", "Which hat does {p} wear?"),
              ("Who has the {a} hat?", "Who wears a {a} hat?"), "{p} wears a {a} hat.", words.COLOURS),
    _Relation("day", ("{p} arrives on {a}.", "{p} will come on {a}.", "The visit of {p} is on {a}."),
              ("When does {p} arrive?", "On which day does {p} come?"), ("Who arrives on {a}?", "Who comes on {a}?"),
              "{p} arrives on {a}.", words.DAYS),
)  # fmt: skip
_FRAMES: tuple[Callable[[str, str], str], ...] = (
    lambda passage, question: f"{passage}\n{question}",
    lambda passage, question: f"{passage}\nQuestion: {question}",
    lambda passage, question: f"Read this: {passage} {question}",
    lambda passage, question: f"{question} Use this text: {passage}",
)


def make(rng: random.Random) -> Sample:
    """Two people, or three; one relation told of all of them, another told of some as noise."""
    persons = words.people(rng, rng.randint(2, 3))
    asked, other = rng.sample(_RELATIONS, 2)
    values = rng.sample(asked.choices, len(persons))
    extra = rng.sample(other.choices, len(persons))
    facts = [(asked, p, a) for p, a in zip(persons, values, strict=True)]
    facts += [(other, p, a) for p, a in zip(persons, extra, strict=True)][: rng.randint(1, len(persons))]
    rng.shuffle(facts)
    passage = " ".join(rng.choice(relation.told).format(p=p, a=a) for relation, p, a in facts)
    target = rng.randrange(len(persons))
    by_person = rng.random() < 0.5
    wording = rng.choice(asked.ask_entity if by_person else asked.ask_person)
    question = wording.format(p=persons[target], a=values[target])
    order = [relation.key for relation, _, _ in facts]
    key = "qa:" + ">".join((*order, asked.key, "entity" if by_person else "person"))
    stated = asked.stated.format(p=persons[target], a=values[target])
    answer = f"According to the text, {stated[:-1]}, while {_another(facts, asked, persons[target])}"
    return ask("qa", key, rng.choice(_FRAMES)(passage, question), answer, Entities((stated[:-1],)))


def _another(facts: list[tuple[_Relation, str, str]], asked: _Relation, person: str) -> str:
    """The same relation of whoever else the passage names first."""
    return next(r.stated.format(p=p, a=a) for r, p, a in facts if r is asked and p != person)
