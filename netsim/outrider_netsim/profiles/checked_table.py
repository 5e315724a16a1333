"""A table of a TOML file that is read key by key, so that each complaint names file, table, key and remedy."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from outrider_netsim.core.errors import ProfileError

T = TypeVar("T")


class WrongKindError(Exception):
    """A value of another type; the message says which is needed."""


class PlacedError(ProfileError):
    """A ProfileError whose message says already where in the file it is."""


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """One table. All methods raise ProfileError."""

    file: Path
    values: Mapping[str, Any]  # what tomllib gives, unchecked
    path: tuple[str, ...] = ()  # keys that lead to this table

    @classmethod
    def read(cls, file: Path) -> CheckedTable:
        try:
            return cls(file, tomllib.loads(file.read_text(encoding="utf-8")))
        except OSError as error:
            raise ProfileError(f"{file}: cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ProfileError(f"{file}: not UTF-8 text, at byte {error.start}: need a TOML file") from None
        except (ValueError, RecursionError) as error:  # also numbers and nesting beyond what Python reads
            raise ProfileError(f"{file}: not TOML: {error}") from None

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def child(self, key: str) -> CheckedTable:
        """The table under `key`, which must be there."""
        value = self.values[key]
        if not isinstance(value, dict):
            raise self.error(f"{key}={value!r}: need a table, [{'.'.join((*self.path, key))}]")
        return CheckedTable(self.file, value, (*self.path, key))

    def only(self, known: Iterable[str]) -> None:
        """Refuse other keys."""
        known = list(known)
        for key in self:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
                raise self.error(f"key {key!r} is unknown: {hint}")

    def get(self, key: str, kind: Callable[[Any, CheckedTable], T]) -> T:  # Any: an unchecked value
        """The value of `key` as `kind` takes it."""
        try:
            return self.placed(lambda: kind(self.values[key], self))
        except WrongKindError as error:
            raise self.error(f"{key}={self.values[key]!r}: need {error}") from None

    def placed(self, build: Callable[[], T]) -> T:
        """What `build` returns; what it refuses is said to be here."""
        try:
            return build()
        except PlacedError:
            raise
        except ProfileError as error:
            raise self.error(str(error)) from None

    def error(self, message: str) -> PlacedError:
        place = f" [{'.'.join(self.path)}]" if self.path else ""
        return PlacedError(f"{self.file}{place}: {message}")


def number(value: Any, _: CheckedTable) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongKindError("a number")
    try:
        return float(value)
    except OverflowError:
        raise WrongKindError("a number of fewer digits") from None


def whole(value: Any, _: CheckedTable) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongKindError("a whole number")
    return value


def text(value: Any, _: CheckedTable) -> str:
    if not isinstance(value, str):
        raise WrongKindError("text in quotes")
    return value


def flag(value: Any, _: CheckedTable) -> bool:
    if not isinstance(value, bool):
        raise WrongKindError("true or false")
    return value
