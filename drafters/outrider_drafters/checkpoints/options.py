"""Options of drafters, as families declare them: a name, what a value may be, and what it does.

Those here belong to several families or to all; an option of one family is declared in that family.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from outrider_proto.errors import UsageError

T = TypeVar("T")

ALL_TOKENS = "all"  # draft_vocab that leaves a drafter's own file unused


@dataclass(frozen=True, slots=True)
class DrafterOption(Generic[T]):
    """One option. `takes` says what a value must be; `read` makes a value of its text, and raises ValueError."""

    name: str
    takes: str
    help: str
    read: Callable[[str], T]

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise UsageError(f"drafter option {self.name!r}: need a name of letters, digits and _")

    @staticmethod
    def whole(name: str, help: str, least: int = 0, most: int | None = None) -> DrafterOption[int]:
        """Declare a whole number of at least `least`, which is 0 or more, and at most `most`."""

        def read(text: str) -> int:
            if not (text.isdecimal() and least <= int(text) and (most is None or int(text) <= most)):
                raise ValueError(text)
            return int(text)

        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        return DrafterOption(name, f"a whole number {limits}", help, read)

    @staticmethod
    def number(name: str, help: str, least: float = 0.0, most: float | None = None) -> DrafterOption[float]:
        """Declare a finite number from `least` to `most`; without `most`, one above `least`."""

        def read(text: str) -> float:
            value = float(text)
            if not (math.isfinite(value) and (value > least if most is None else least <= value <= most)):
                raise ValueError(text)
            return value

        limits = f"above {least:g}" if most is None else f"from {least:g} to {most:g}"
        return DrafterOption(name, f"a number {limits}", help, read)

    @staticmethod
    def choice(name: str, help: str, values: Mapping[str, T]) -> DrafterOption[T]:
        """Declare one of several values, each with the word that stands for it."""

        def read(text: str) -> T:
            if text not in values:
                raise ValueError(text)
            return values[text]

        return DrafterOption(name, " or ".join(values), help, read)

    @staticmethod
    def switch(name: str, help: str) -> DrafterOption[bool]:
        return DrafterOption.choice(name, help, {"true": True, "false": False})


class DrafterOptions:
    """Options as given for one drafter, None: not given; its family says when it is opened which there are."""

    __slots__ = ("_texts",)

    def __init__(self, /, **values: object) -> None:
        self._texts = {name: _text(value) for name, value in values.items() if value is not None}

    def get(self, option: DrafterOption[T]) -> T | None:
        """Return an option's value; None if it is not given. Raises UsageError for a value that it does not take."""
        text = self._texts.get(option.name)
        try:
            return None if text is None else option.read(text)
        except ValueError:
            raise UsageError(f"drafter option '{option.name}={text}': need {option.takes}") from None

    def given(self) -> dict[str, str]:
        """Return the text of every option that is given."""
        return dict(self._texts)

    def but(self, /, **values: object) -> DrafterOptions:
        """Return these options with others in place of theirs, or beside them."""
        return DrafterOptions(**{**self._texts, **values})

    @property
    def draft_vocab_file(self) -> Path | None:
        """The file that draft_vocab names, if any. Raises UsageError."""
        chosen = self.get(DRAFT_VOCAB_OPTION)
        return Path(chosen).expanduser() if isinstance(chosen, str) and chosen != ALL_TOKENS else None

    def check(self, family: str, declared: Iterable[DrafterOption[Any]]) -> None:  # Any: each has its own type
        """Raise UsageError for an option that its family does not declare, or for a value that it does not take."""
        known = {option.name: option for option in declared}
        if unknown := sorted(self._texts.keys() - known):
            takes = ", ".join(f"{option.name} ({option.takes})" for option in known.values())
            raise UsageError(f"option {', '.join(unknown)}: family {family} takes {takes}")
        for name in self._texts:
            self.get(known[name])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DrafterOptions) and self._texts == other._texts

    def __hash__(self) -> int:
        return hash(frozenset(self._texts.items()))

    def __repr__(self) -> str:
        return f"DrafterOptions({', '.join(f'{name}={text!r}' for name, text in self._texts.items())})"


def _text(value: object) -> str:
    """Return a value as it would be written behind a drafter's name."""
    match value:
        case bool():
            return str(value).lower()
        case tuple() | list():
            return "-".join(map(str, value))
    return str(value)


def _read_draft_vocab(text: str) -> int | str:
    if not text.strip("0"):
        raise ValueError(text)
    return int(text) if text.isdecimal() else text


def _read_layers(text: str) -> tuple[int, ...]:
    if not all(part.isdecimal() for part in text.split("-")):
        raise ValueError(text)
    return tuple(int(part) for part in text.split("-"))


FAMILY_OPTION = DrafterOption("family", "a family's name", "refuse any other family", str)
DRAFT_VOCAB_OPTION: DrafterOption[int | str] = DrafterOption(
    "draft_vocab",
    f"a file, a number of tokens of at least 1, or {ALL_TOKENS}",
    "tokens that may be drafted: a file of them, or how many of the drafter's own",
    _read_draft_vocab,
)
ROPE_THETA_OPTION = DrafterOption.number("rope_theta", "RoPE's base, where the config is wrong")
EMBEDDING_OPTION = DrafterOption.choice(
    "embedding", "use the drafter's own embedding or the target's", {"own": "own", "target": "target"}
)
TARGET_LAYERS_OPTION = DrafterOption(
    "target_layers",
    "whole numbers such as 2-16-29",
    "tapped layers, as indices of Hugging Face's hidden_states",
    _read_layers,
)
FROM_ROOT_OPTION = DrafterOption.switch("sample_from_anchor", "a block's first row, the root's, drafts a token, too")
DDTREE_OPTION = DrafterOption.whole("ddtree", "nodes of the best-first tree that a block drafter drafts; 0: a chain")
_SHARED = (DRAFT_VOCAB_OPTION, ROPE_THETA_OPTION, EMBEDDING_OPTION, TARGET_LAYERS_OPTION, DDTREE_OPTION)
SHARED: Mapping[str, DrafterOption[Any]] = {option.name: option for option in _SHARED}  # Any: each has its own type
