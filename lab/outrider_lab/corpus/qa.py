"""Family `qa`: a question about a person in a passage; the answer copies an entity from it."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from outrider_lab.corpus import words
from outrider_lab.corpus.sample import CorpusSample, Entities, single_turn


@dataclass(frozen=True, slots=True)
class _Relation:
    """A relation of a person and an entity: statements for the passage, questions, and the clause of the answer."""

    key: str
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    stated: str
    choices: tuple[str, ...]


_RELATIONS = (
    _Relation("city", ("{p} lives in {a}.", "{p} has a flat in {a}.", "The house of {p} is in {a}."),
              ("Where does {p} live?", "In which city does {p} live?"),
              "lives in {a}", words.CITIES),
    _Relation("job", ("{p} works as a {a}.", "{p} is a {a}.", "{p} found a job as a {a}."),
              ("What is the job of {p}?", "What does {p} do for work?"),
              "works as a {a}", words.JOBS),
    _Relation("hobby", ("{p} enjoys {a}.", "{p} likes {a} a lot.", "The hobby of {p} is {a}."),
              ("What does {p} enjoy?", "What is the hobby of {p}?"),
              "enjoys {a}", words.HOBBIES),
    _Relation("pet", ("{p} has a {a}.", "{p} keeps a {a} at home.", "The pet of {p} is a {a}."),
              ("What pet does {p} have?", "Which animal does {p} keep?"),
              "keeps a {a}", words.ANIMALS),
    _Relation("food", ("{p} cooks {a}.", "{p} eats {a} every day.", "The dinner of {p} is {a}."),
              ("What does {p} eat?", "What is the food of {p}?"),
              "eats {a}", words.FOODS),
    _Relation("colour", ("{p} wears a {a} hat.", "The hat of {p} is {a}.", "{p} bought a {a} hat."),
              ("What colour is the hat of {p}?", "Which hat does {p} wear?"),
              "wears a {a} hat", words.COLOURS),
    _Relation("day", ("{p} arrives on {a}.", "{p} will come on {a}.", "The visit of {p} is on {a}."),
              ("When does {p} arrive?", "On which day does {p} come?"),
              "arrives on {a}", words.DAYS),
)  # fmt: skip
_FRAMES: tuple[Callable[[str, str], str], ...] = (
    lambda passage, question: f"{passage}\n{question}",
    lambda passage, question: f"{passage}\nQuestion: {question}",
    lambda passage, question: f"Read this: {passage} {question}",
    lambda passage, question: f"{question} Use this text: {passage}",
)


def make(rng: random.Random) -> CorpusSample:
    """Draw three to five relations of one person; the answer gives the one asked for and the first other one."""
    person = words.person(rng)
    facts = [(relation, rng.choice(relation.choices)) for relation in rng.sample(_RELATIONS, rng.randint(3, 5))]
    passage = " ".join(rng.choice(relation.statements).format(p=person, a=entity) for relation, entity in facts)
    asked, entity = facts[rng.randrange(len(facts))]
    question = rng.choice(asked.questions).format(p=person)
    also, other = next(fact for fact in facts if fact[0] is not asked)
    stated = f"{person} {asked.stated.format(a=entity)}"
    answer = f"According to the text, {stated}. It also says that {person} {also.stated.format(a=other)}."
    key = "qa:" + ">".join((*(relation.key for relation, _ in facts), asked.key))
    return single_turn("qa", key, rng.choice(_FRAMES)(passage, question), answer, Entities((stated,)))
