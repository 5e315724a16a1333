"""Family `code`: from a description of one to three operations to a Python function, checked by eight hidden tests."""

import random

from outrider_lab.corpus.operations import OPERATIONS, Kind, Operation
from outrider_lab.corpus.sample import CorpusSample, HiddenTests, single_turn
from outrider_lab.corpus.words import PLAIN, split

NUM_TESTS = 8
_VERBS = split("get make pick find build apply compute process handle solve run check filter convert prepare")
_NOUNS = split("values items data result numbers words list total report text score code part line entry")
_ARGS: dict[Kind, tuple[str, ...]] = {
    "numbers": ("numbers", "values", "nums", "items"),
    "words": ("words", "names", "items", "terms"),
    "text": ("text", "line", "sentence", "s"),
    "number": ("n", "number", "value", "x"),
}
_TYPES: dict[Kind, str] = {
    "numbers": "a list of numbers",
    "words": "a list of words",
    "text": "a text",
    "number": "a whole number",
}
_LETTERS = "abcdeilmnoprst"
_KINDS: tuple[Kind, ...] = ("numbers", "numbers", "words", "words", "text", "number")


def make(rng: random.Random) -> CorpusSample:
    """Draw a composition of operations, its wording and its tests."""
    # The order of the draws is part of the corpus: with another one, a seed gives other samples.
    kind = rng.choice(_KINDS)
    steps = rng.sample(OPERATIONS[kind].steps, rng.choices((1, 2, 3), (1, 5, 4))[0])
    end = rng.choice(OPERATIONS[kind].ends)
    bound = [_Bound(op, rng) for op in (*steps, end)]
    name, arg = f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}", rng.choice(_ARGS[kind])
    key = "code:" + ">".join((kind, *(op.key for op in steps), end.key))
    check = HiddenTests(name, tuple(_case(bound, _example(kind, rng)) for _ in range(NUM_TESTS)))
    return single_turn("code", key, _prompt(rng, kind, name, arg, bound), _solution(kind, name, arg, bound), check)


class _Bound:
    """An operation with a concrete constant."""

    def __init__(self, op: Operation, rng: random.Random) -> None:
        self.op = op
        self.constant: int | str | None = None
        if "{k}" in op.line:
            self.constant = rng.randint(2, 9) if op.key != "repeat" else rng.randint(2, 4)
        elif "{c}" in op.line:
            self.constant = rng.choice(_LETTERS)
        self.phrase = self._fill(rng.choice(op.phrases))
        self.doc = self._fill(op.phrases[0])
        self.line = self._fill(op.line)

    def _fill(self, template: str) -> str:
        return template.replace("{k}", str(self.constant)).replace("{c}", str(self.constant))

    def run(self, value: object) -> object:
        return self.op.run(value, self.constant)


def _solution(kind: Kind, name: str, arg: str, ops: list[_Bound]) -> str:
    doc = ", ".join(op.doc for op in ops[:-1]) + f", then {ops[-1].doc}."
    start = f"list({arg})" if kind in ("numbers", "words") else arg
    lines = [f"def {name}({arg}):", f'    """{doc[0].upper()}{doc[1:]}"""', f"    result = {start}"]
    lines += [f"    result = {op.line}" for op in ops[:-1]]
    return "\n".join((*lines, f"    return {ops[-1].line}"))


def _prompt(rng: random.Random, kind: Kind, name: str, arg: str, ops: list[_Bound]) -> str:
    plain = [op.phrase for op in ops]
    chain = ", ".join(plain[:-1]) + f" and {plain[-1]}"
    steps = "\n".join(f"{number}. {phrase}" for number, phrase in enumerate(plain, 1))
    third = ", ".join(map(_third_person, plain[:-1])) + f" and {_third_person(plain[-1])}"
    given = _TYPES[kind]
    return rng.choice(
        (
            f"Write a Python function {name}({arg}) that takes {given}, {third}.",
            f"Write a function {name}({arg}). Given {given}, it should {', then '.join(plain)}.",
            f"I need a Python function called {name} with one argument {arg}, {given}. It must {chain}.",
            f"Define {name}({arg}) for {given}:\n{steps}",
            f"Please code {name}({arg}): {'; '.join(plain)}.",
            f"Can you write {name}({arg})? It takes {given}. First {', then '.join(plain)}.",
        )
    )


def _third_person(phrase: str) -> str:
    verb, _, rest = phrase.partition(" ")
    ending = verb[:-1] + "ies" if verb.endswith("ly") else verb + "s"
    return f"{ending} {rest}"


def _example(kind: Kind, rng: random.Random) -> object:
    match kind:
        case "numbers":
            return [rng.randint(-12, 24) for _ in range(rng.randint(3, 12))]
        case "words":
            return [_word(rng) for _ in range(rng.randint(3, 9))]
        case "text":
            return " " * rng.randint(0, 1) + " ".join(_word(rng) for _ in range(rng.randint(2, 5)))
        case "number":
            return rng.randint(-30, 60)


def _word(rng: random.Random) -> str:
    word = rng.choice(PLAIN)[: rng.randint(0, 9)]
    return word.upper() if rng.random() < 0.1 else word


def _case(ops: list[_Bound], value: object) -> tuple[str, str]:
    argument = repr(value)
    for op in ops:
        value = op.run(value)
    return argument, repr(value)
