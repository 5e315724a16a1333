"""Copying exercises: repeat, look up, continue. For training only; recipes let them fade out."""

import random

from outrider_lab.corpus import words
from outrider_lab.corpus.sample import CorpusSample, Exact, single_turn


def make_short(rng: random.Random) -> CorpusSample:
    """Draw a few words to repeat, or one to look up."""
    key, prompt, answer = rng.choice((_repeat, _numbers, _lookup, _find, _spell))(rng)
    return single_turn("copying", f"copying:{key}", prompt, answer, Exact(answer))


def make_long(rng: random.Random) -> CorpusSample:
    """Draw a long list to repeat, so that the model learns to follow the text it copies."""
    words = [_any_word(rng) for _ in range(rng.randint(6, 24))]
    wording = rng.choice(("Repeat", "Copy", "Say again", "Write again"))
    text = rng.choice((" ", ", ", "\n", " - ")).join(words)
    return single_turn("copying", "copying:long", f"{wording}: {text}", text, Exact(text))


def _repeat(rng: random.Random) -> tuple[str, str, str]:
    words = " ".join(_any_word(rng) for _ in range(rng.randint(2, 9)))
    return "repeat", f"Repeat after me: {words}", words


def _numbers(rng: random.Random) -> tuple[str, str, str]:
    words = " ".join(str(rng.randint(0, 99)) for _ in range(rng.randint(2, 8)))
    return "numbers", f"Repeat the numbers: {words}", words


def _lookup(rng: random.Random) -> tuple[str, str, str]:
    keys = rng.sample(words.PLAIN, rng.randint(2, 6))
    values = [_any_word(rng) for _ in keys]
    chosen = rng.randrange(len(keys))
    table = "\n".join(f"{k}: {v}" for k, v in zip(keys, values, strict=True))
    return "lookup", f"{table}\nWhat stands at {keys[chosen]}?", f"{keys[chosen]}: {values[chosen]}"


def _find(rng: random.Random) -> tuple[str, str, str]:
    keys = words.people(rng, rng.randint(2, 5))
    values = [_any_word(rng) for _ in keys]
    chosen = rng.randrange(len(keys))
    statements = ". ".join(f"{k} has {v}" for k, v in zip(keys, values, strict=True))
    return "find", f"{statements}. What has {keys[chosen]}?", f"{keys[chosen]} has {values[chosen]}."


def _spell(rng: random.Random) -> tuple[str, str, str]:
    name = words.made_up(rng)
    return "spell", f"Say {name} {rng.choice(('twice', 'two times'))}.", f"{name} {name}"


def _any_word(rng: random.Random) -> str:
    pick = rng.random()
    if pick < 0.35:
        return rng.choice(words.PLAIN)
    if pick < 0.6:
        return rng.choice(words.NAMES)
    return words.made_up(rng) if pick < 0.85 else str(rng.randint(2, 99))
