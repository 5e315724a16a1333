"""Variants of answering, written `MODE[,OPTION=VALUE...]`, e.g. `stop-and-wait,wait_for_features=true`.

The controls are variants like the others, and are part of every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from outrider_client.cli.options import tree_plan
from outrider_client.core.config import ClientConfig, TreeSize
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto.errors import UsageError

STREAM = "stream"
SERVER_DRAFT = "server-draft"
CONTROLS = (STREAM, SERVER_DRAFT)
Options = Mapping[str, Any]  # Any: each option has its own type
_OF_TREE = ("breadth", "levels", "budget")


@dataclass(frozen=True, slots=True)
class ModeVariant:
    """`name` is the text that it was parsed from, `choices` the options of a request."""

    name: str
    mode: str
    choices: Options

    @classmethod
    def parse(cls, text: str, common: Options) -> ModeVariant:
        """Parse `text`, whose options win over the `common` ones. Raises UsageError."""
        mode, *pairs = text.split(",")
        options = {name: value for name, value in common.items() if value is not None} | dict(map(_read, pairs))
        # Taken out of the options: the three together make one tree.
        shape = tree_plan(None, **{name: options.pop(name, None) for name in _OF_TREE})
        choices = {"mode": mode, **options} | ({} if shape is None else {"shape": shape})
        return cls(text, mode, choices)

    def configured(self, config: ClientConfig) -> ClientConfig:
        """Apply the options to `config`. Raises UsageError for unknown ones."""
        return config.for_answer(**self.choices)

    @property
    def choices_as_dict(self) -> dict[str, Any]:
        """The options for a report."""
        return {name: asdict(value) if isinstance(value, TreeShape) else value for name, value in self.choices.items()}

    @property
    def waits_for_verdicts(self) -> bool:
        """True where the link's round trip bounds the speed, so that eta applies."""
        return self.mode not in CONTROLS


def with_controls(asked: list[ModeVariant], common: Options) -> list[ModeVariant]:
    """Put the controls that were not asked for before the variants."""
    names = {variant.name for variant in asked}
    return [*(ModeVariant.parse(name, common) for name in CONTROLS if name not in names), *asked]


def _read(pair: str) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    if name not in _READERS or not equals:
        raise UsageError(f"option of a mode {pair!r}: need NAME=VALUE with one of {', '.join(_READERS)}")
    try:
        return name, _READERS[name](text)
    except ValueError as error:
        raise UsageError(f"option of a mode {pair!r}: need {error}") from None


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("a whole number")
    return int(text)


def _tree_size(text: str) -> str:
    if text not in get_args(TreeSize):
        raise ValueError(" or ".join(get_args(TreeSize)))
    return text


_READERS: Mapping[str, Callable[[str], Any]] = {
    "wait_for_features": _switch,
    "opening": _switch,
    "in_flight": _count,
    "outcomes": _count,
    "tree": _tree_size,
    **dict.fromkeys(_OF_TREE, _count),
}
