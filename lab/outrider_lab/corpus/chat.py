"""Family `chat`: two or three turns in which the last reply refers to an earlier one."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from outrider_lab.corpus import words
from outrider_lab.corpus.sample import CorpusSample, Entities
from outrider_models.core.held_out import SampleMessage


@dataclass(frozen=True, slots=True)
class _Fact:
    """Something that users say about themselves: wordings, the reply, and later questions with their answer."""

    key: str
    statements: tuple[str, ...]
    reply: str
    questions: tuple[str, ...]
    answer: str
    draw: Callable[[random.Random], str]


_FACTS = (
    _Fact("job", ("I work as {a}.", "I am {a} by trade.", "My job is being {a}."),
          "Working as {a} must keep you busy.", ("What is my job?", "What do I do for work?", "Which job did I name?"),
          "You told me that you work as {a}.", lambda rng: words.article(rng.choice(words.JOBS))),
    _Fact("city", ("I live in {a}.", "My home is in {a}.", "I moved to {a} last year."),
          "I hear that {a} is a lovely place to live.",
          ("Where do I live?", "Which city is my home?", "Where is my home?"),
          "You told me that you live in {a}.", words.place),
    _Fact("hobby", ("I like {a}.", "I really enjoy {a}.", "In my free time I do {a}."),
          "It is great that you enjoy {a}.", ("What is my hobby?", "What do I like to do?", "What do I enjoy?"),
          "You told me that you enjoy {a}.", lambda rng: rng.choice(words.HOBBIES)),
    _Fact("food", ("My favourite food is {a}.", "I love to eat {a}.", "I could eat {a} every day."),
          "Many people would agree that {a} tastes wonderful.",
          ("What is my favourite food?", "What do I love to eat?", "What should I cook tonight?"),
          "You told me that you love {a}, so that is a good choice.", lambda rng: rng.choice(words.FOODS)),
    _Fact("colour", ("My favourite colour is {a}.", "I like the colour {a} best.", "I paint everything {a}."),
          "A fine choice, {a} looks good on many things.",
          ("What is my favourite colour?", "Which colour do I like best?", "What colour should my door be?"),
          "You told me that you like {a} best, so {a} it is.", lambda rng: rng.choice(words.COLOURS)),
    _Fact("pet", ("I have {a} at home.", "My pet is {a}.", "I just got {a} as a pet."),
          "Having {a} at home sounds like fun.", ("What pet do I have?", "Which animal do I have?", "What is my pet?"),
          "You told me that you have {a} as a pet.", lambda rng: words.article(rng.choice(words.ANIMALS))),
    _Fact("day", ("My day off is {a}.", "I am free on {a}.", "I never work on {a}."),
          "Then {a} is a good day to rest.", ("When am I free?", "Which day is my day off?", "When can we meet?"),
          "You told me that you are free on {a}.", lambda rng: rng.choice(words.DAYS)),
)  # fmt: skip
_GREETINGS = (
    ("hello", "Hello! ", "Hello {name}, it is nice to meet you."),
    ("hi", "Hi, ", "Hi {name}, how can I help you today?"),
    ("morning", "Good morning! ", "Good morning {name}, I hope you slept well."),
    ("evening", "Good evening, ", "Good evening {name}, I hope you had a good day."),
    ("hey", "Hey there, ", "Hey {name}, good to see you."),
)
_INTRODUCTIONS = ("I am {name}.", "My name is {name}.", "This is {name}.", "You can call me {name}.")
_ASK_NAME = ("What is my name?", "Do you remember my name?", "Can you tell me my name?", "Who am I?")
_THANKS = ("Thanks, that is all.", "Thank you, goodbye!", "That is all, bye.", "Thanks and see you soon.")


def make(rng: random.Random) -> CorpusSample:
    """Draw an introduction, one or two facts, then a question about a fact or the name, or a goodbye."""
    name = words.person(rng)
    greeting, opening, hello = rng.choice(_GREETINGS)
    facts = [(fact, fact.draw(rng)) for fact in rng.sample(_FACTS, rng.randint(1, 2))]
    first = opening + rng.choice(_INTRODUCTIONS).format(name=name)
    messages = [SampleMessage("user", f"{first} {_statement(facts[0], rng)}")]
    messages.append(SampleMessage("assistant", f"{hello.format(name=name)} {facts[0][0].reply.format(a=facts[0][1])}"))
    for fact in facts[1:]:
        messages.append(SampleMessage("user", _statement(fact, rng)))
        messages.append(SampleMessage("assistant", f"I see, {name}. {fact[0].reply.format(a=fact[1])}"))
    ending, question, answer, entities = _ending(name, facts, rng)
    messages.append(SampleMessage("user", question))
    key = "chat:" + ">".join((greeting, *(fact.key for fact, _ in facts), ending))
    return CorpusSample("chat", tuple(messages), answer, key, Entities(entities))


def _statement(fact: tuple[_Fact, str], rng: random.Random) -> str:
    return rng.choice(fact[0].statements).format(a=fact[1])


def _ending(name: str, facts: list[tuple[_Fact, str]], rng: random.Random) -> tuple[str, str, str, tuple[str, ...]]:
    fact, value = rng.choice(facts)
    match rng.choice(("recall", "recall", "name", "both", "bye")):
        case "recall":
            return f"recall {fact.key}", rng.choice(fact.questions), fact.answer.format(a=value), (value,)
        case "name":
            answer = f"Your name is {name}. I remember it from the start of our talk."
            return "name", rng.choice(_ASK_NAME), answer, (name,)
        case "both":
            question = f"{rng.choice(_ASK_NAME)} And {_lower(rng.choice(fact.questions))}"
            answer = f"Your name is {name}. {fact.answer.format(a=value)}"
            return f"both {fact.key}", question, answer, (name, value)
        case _:
            answer = f"Goodbye {name}, it was good to talk with you. Come back soon!"
            return "bye", rng.choice(_THANKS), answer, (name,)


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
