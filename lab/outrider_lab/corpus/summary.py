"""Family `summary`: from a record or a short article to one or two sentences that copy its entities."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from outrider_lab.corpus import words
from outrider_lab.corpus.sample import CorpusSample, Entities, single_turn


@dataclass(frozen=True, slots=True)
class Field:
    """One entity: its label in a record, its sentences in an article, its clause in the summary."""

    key: str
    label: str
    statements: tuple[str, ...]
    clause: str
    draw: Callable[[random.Random], str]


@dataclass(frozen=True, slots=True)
class Topic:
    """The subject of a summary and its possible fields."""

    key: str
    label: str
    opening: str
    subject: Callable[[random.Random], str]
    fields: tuple[Field, ...]


def _number(low: int, high: int) -> Callable[[random.Random], str]:
    return lambda rng: str(rng.randint(low, high))


def _from(choices: tuple[str, ...]) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(choices)


_GATHERINGS = ("Festival", "Market", "Concert", "Parade", "Race", "Exhibition", "Fair", "Gala")

PERSON = Topic("person", "Name", "This is about {s}.", words.person, (
    Field("job", "Job", ("{s} earns a living as a {a}.", "By trade, {s} is a {a}."), "works as a {a}",
           _from(words.JOBS)),
    Field("city", "City", ("The home of {s} is in {a}.", "Since last year, {s} has been living in {a}."),
           "lives in {a}", words.place),
    Field("age", "Age", ("Last week {s} turned {a}.", "The age of {s} is {a}."), "is {a} years old", _number(20, 79)),
    Field("hobby", "Hobby", ("On free days, {s} likes {a}.", "The hobby of {s} is {a}."), "enjoys {a}",
           _from(words.HOBBIES)),
    Field("pet", "Pet", ("At home, {s} keeps a {a}.", "A {a} shares the house with {s}."), "keeps a {a}",
           _from(words.ANIMALS)),
    Field("food", "Food", ("For dinner, {s} often cooks {a}.", "The best food for {s} is {a}."), "likes {a}",
           _from(words.FOODS)),
))  # fmt: skip
EVENT = Topic("event", "Event", "News about the {s}.",
                lambda rng: f"{rng.choice(words.COLOURS).capitalize()} {rng.choice(_GATHERINGS)}", (
    Field("place", "Place", ("People will meet in {a}.", "It will be held in {a}."), "takes place in {a}",
           words.place),
    Field("day", "Day", ("The doors open on {a}.", "It is planned for {a}."), "is on {a}", _from(words.DAYS)),
    Field("guest", "Guest", ("The guest of honour is {a}.", "A speech will be given by {a}."), "welcomes {a}",
           words.person),
    Field("price", "Price", ("A ticket costs {a} coins.", "Visitors pay {a} coins."), "costs {a} coins",
           _number(2, 60)),
    Field("month", "Month", ("It happens once a year, in {a}.", "This year it falls in {a}."), "comes every {a}",
           _from(words.MONTHS)),
))  # fmt: skip
SHOP = Topic("shop", "Shop", "Here is a note on the shop of {s}.", words.person, (
    Field("goods", "Goods", ("The shelves are full of {a}.", "Customers come for the {a}."), "sells {a}",
           _from(words.OBJECTS)),
    Field("town", "Town", ("You can find it in {a}.", "It stands in the centre of {a}."), "is based in {a}",
           words.place),
    Field("staff", "Staff", ("A team of {a} people works there.", "It employs {a} people."), "employs {a} people",
           _number(2, 40)),
    Field("closed", "Closed", ("On {a} nobody works there.", "The doors stay shut on {a}."), "closes on {a}",
           _from(words.DAYS)),
    Field("colour", "Colour", ("The front door is painted {a}.", "Its sign is {a}."), "has a {a} sign",
           _from(words.COLOURS)),
))  # fmt: skip
TOPICS = (PERSON, EVENT, SHOP)
_REQUESTS = (
    "Summarize:",
    "Summarize this in short:",
    "Give me a summary:",
    "Write a short summary of this:",
    "Sum up:",
)


def make(rng: random.Random) -> CorpusSample:
    """Draw three to five fields in random order; the summary keeps that order."""
    topic = rng.choice(TOPICS)
    subject = topic.subject(rng)
    fields = [(field, field.draw(rng)) for field in rng.sample(topic.fields, rng.randint(3, 5))]
    style = rng.choice(("record", "line", "article"))
    source = {"record": _record, "line": _line, "article": _article}[style](topic, subject, fields, rng)
    key = "summary:" + ">".join((topic.key, *(field.key for field, _ in fields)))
    entities = (subject, *(value for _, value in fields))
    return single_turn(
        "summary", key, f"{rng.choice(_REQUESTS)}\n{source}", _summary(topic, subject, fields), Entities(entities)
    )


def _record(topic: Topic, subject: str, fields: list[tuple[Field, str]], rng: random.Random) -> str:
    return "\n".join((f"{topic.label}: {subject}", *(f"{field.label}: {value}" for field, value in fields)))


def _line(topic: Topic, subject: str, fields: list[tuple[Field, str]], rng: random.Random) -> str:
    return "; ".join((f"{topic.label} = {subject}", *(f"{field.label} = {value}" for field, value in fields)))


def _article(topic: Topic, subject: str, fields: list[tuple[Field, str]], rng: random.Random) -> str:
    sentences = [rng.choice(field.statements).format(s=subject, a=value) for field, value in fields]
    return " ".join((topic.opening.format(s=subject), *sentences))


def _summary(topic: Topic, subject: str, fields: list[tuple[Field, str]]) -> str:
    name = {"person": subject, "event": f"The {subject}", "shop": f"The shop of {subject}"}[topic.key]
    clauses = [field.clause.format(a=value) for field, value in fields]
    return f"In short: {name} {words.listing(clauses)}."
