"""Read a TOML table key by key, so that each error names file, table, key and remedy."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from outrider_netsim.core.errors import ProfileError

T = TypeVar("T")


class WrongTypeError(Exception):
    """A value of the wrong type; the message says which is needed."""


class LocatedError(ProfileError):
    """A ProfileError whose message already says where in the file it is."""


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """One table of a TOML file. All methods raise ProfileError."""

    file: Path
    values: Mapping[str, Any]  # as parsed by tomllib, unchecked
    path: tuple[str, ...] = ()  # keys that lead to this table

    @classmethod
    def read(cls, file: Path) -> CheckedTable:
        try:
            return cls(file, tomllib.loads(file.read_text(encoding="utf-8")))
        except OSError as error:
            raise ProfileError(f"{file}: cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ProfileError(f"{file}: not UTF-8 text, at byte {error.start}: need a TOML file") from None
        # ValueError: also integers longer than Python converts; RecursionError: deep nesting.
        except (ValueError, RecursionError) as error:
            raise ProfileError(f"{file}: not TOML: {error}") from None

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def child(self, key: str) -> CheckedTable:
        """Return the table under `key`, which must exist."""
        value = self.values[key]
        if not isinstance(value, dict):
            raise self.error(f"{key}={value!r}: need a table, [{'.'.join((*self.path, key))}]")
        return CheckedTable(self.file, value, (*self.path, key))

    def only(self, known: Iterable[str]) -> None:
        """Raise ProfileError for any other key."""
        known = list(known)
        for key in self:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
                raise self.error(f"key {key!r} is unknown: {hint}")

    def get(self, key: str, kind: Callable[[Any, CheckedTable], T]) -> T:  # Any: an unchecked value
        """Return the value of `key`, checked and converted by `kind`."""
        try:
            return self.located(lambda: kind(self.values[key], self))
        except WrongTypeError as error:
            raise self.error(f"{key}={self.values[key]!r}: need {error}") from None

    def located(self, build: Callable[[], T]) -> T:
        """Return what `build` returns; add this table's place to its errors."""
        try:
            return build()
        except LocatedError:
            raise
        except ProfileError as error:
            raise self.error(str(error)) from None

    def error(self, message: str) -> LocatedError:
        place = f" [{'.'.join(self.path)}]" if self.path else ""
        return LocatedError(f"{self.file}{place}: {message}")


def number(value: Any, _: CheckedTable) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError("a number")
    try:
        return float(value)
    except OverflowError:
        raise WrongTypeError("a number of fewer digits") from None


def whole(value: Any, _: CheckedTable) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongTypeError("a whole number")
    return value


def text(value: Any, _: CheckedTable) -> str:
    if not isinstance(value, str):
        raise WrongTypeError("text in quotes")
    return value


def flag(value: Any, _: CheckedTable) -> bool:
    if not isinstance(value, bool):
        raise WrongTypeError("true or false")
    return value
