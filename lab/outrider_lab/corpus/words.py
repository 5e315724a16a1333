"""Closed word lists that the generators draw from, and invented names, so that copying needs more than a lookup."""

import random


def split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Training data depends on the order and spelling of every list.
NAMES = split(
    """Lena Tom Ana Marco Nina Omar Priya Felix Ruth Ivan Clara Hugo Maya Leo Sara Noah Emma Ali Zoe Max Julia Peter
    Alice Bob Carol David Eva Frank Grace Henry Iris Jack Kate Liam Mia Nora Oscar Paul Rosa Sam Tina Uma Victor Wendy
    Yusuf Amir Bella Carlos Diana Elias Fiona George Hana Isaac Jane Karl Laura Milo Olga Petra Quinn Rita Simon
    Tara Vera Walter Yara Adam Beth Chen Dora Erik Farah Gita Heidi Igor Joan Kofi Lucia Mei Nadia Otto Pia Ravi
    Sofia Theo Ursula Vik Wanda Xenia Yuki Zara Anton Bruno Celia Dario Elsa Finn Gloria Hector Ines Jonas Kira Lars
    Mona Nico Olive Pablo Rene Stella Timo"""
)
CITIES = split(
    """Oslo Rome Paris Lima Cairo Tokyo Delhi Berlin Madrid Vienna Dublin Prague Athens Lisbon Warsaw Bern Quito
    Havana Nairobi Seoul Hanoi Boston Denver Austin Chicago Dallas Geneva Milan Turin Naples Porto Lyon Nice Bonn
    Hamburg Munich Kyoto Osaka Mumbai Tunis Accra Dakar Riga Oxford Leeds York Toronto Sydney Perth"""
)
JOBS = split(
    """teacher baker nurse pilot farmer painter writer doctor lawyer singer chef driver gardener plumber dancer judge
    tailor librarian carpenter sailor miner potter barber florist welder banker dentist editor mason guide"""
)
OBJECTS = split(
    """apples books coins stamps pencils cards marbles shells plates cups candles buttons stickers oranges lemons eggs
    roses tickets boxes bottles chairs lamps keys rings hats gloves socks bells maps masks drums kites balls pens
    cakes cookies melons peaches pears plums"""
)
HOBBIES = split(
    """chess tennis painting cooking hiking reading sailing singing fishing cycling skating dancing knitting running
    swimming photography pottery gardening rowing climbing surfing origami astronomy yoga"""
)
FOODS = split(
    """pasta soup bread cheese rice salad pizza curry noodles beans fish tofu pancakes olives mango honey ginger
    mushrooms dumplings waffles"""
)
COLOURS = split("red blue green yellow black white purple orange brown pink grey silver golden")
ANIMALS = split(
    """cat dog horse rabbit parrot turtle fox owl goat sheep duck hamster pony lizard crow otter wolf bear deer
    frog"""
)
DAYS = split("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = split("January February March April May June July August September October November December")
PLAIN = split(
    """river stone cloud apple table window garden forest mirror candle bridge market winter summer silver ocean paper
    yellow pencil basket castle desert engine feather guitar hammer island jacket kettle ladder magnet needle orange
    planet queen rocket saddle tunnel umbrella valley wagon zebra anchor butter circus dragon eagle flame grape honey
    igloo jungle kite lemon melon night onion pepper quilt ribbon spoon tiger violin whale yacht"""
)
_ONSETS = split("b d f g k l m n p r s t v z br dr gr kr st tr")
_VOWELS = split("a e i o u")
_CODAS = (*split("n r l s m k x"), "", "", "")


def made_up(rng: random.Random) -> str:
    """Invent a name of two syllables."""
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(2)).capitalize()


def person(rng: random.Random, invented: float = 0.1) -> str:
    return made_up(rng) if rng.random() < invented else rng.choice(NAMES)


def place(rng: random.Random, invented: float = 0.1) -> str:
    return made_up(rng) if rng.random() < invented else rng.choice(CITIES)


def people(rng: random.Random, count: int) -> list[str]:
    """Draw distinct names, one in ten invented."""
    names = rng.sample(NAMES, count)
    return [made_up(rng) if rng.random() < 0.1 else name for name in names]


def article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def listing(parts: list[str]) -> str:
    """Join parts as `a`, `a and b` or `a, b, and c`."""
    if len(parts) < 3:
        return " and ".join(parts)
    return ", ".join(parts[:-1]) + ", and " + parts[-1]
