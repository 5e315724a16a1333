"""Frozen dataclasses from TOML tables, complete or as changes to defaults. Every error names its key."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from outrider_proto.errors import UsageError

Table = dict[str, Any]  # Any: as TOML gives it; checked where a dataclass is made of it
_Made = TypeVar("_Made")


def read_toml(path: Path) -> Table:
    """Read the tables of a file. Raises UsageError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"{path}: cannot be read: {reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}") from error


def build(kind: type[_Made], table: Any, where: str) -> _Made:  # Any: whatever stood in the file
    """Build a dataclass from a table that holds exactly its fields. Raises UsageError."""
    if not isinstance(table, dict):
        raise UsageError(f"{where}={table!r}: need a table")
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass, always
    if unknown := sorted(set(table) - set(names)):
        raise UsageError(f"{where}: unknown keys {', '.join(unknown)}; it has {', '.join(names)}")
    if missing := [name for name in names if name not in table]:
        raise UsageError(f"{where}: missing keys {', '.join(missing)}")
    return kind(**{name: _value(hints[name], table[name], f"{where}.{name}") for name in names})


def with_changes(defaults: _Made, changes: Table, where: str) -> _Made:
    """Return the dataclass with the keys of `changes`, nested tables included, replaced. Raises UsageError."""
    own = asdict(defaults)  # type: ignore[call-overload]  # a dataclass, always
    return build(type(defaults), merged(_plain(own), changes), where)


def parse_changes(pairs: Iterable[str]) -> Table:
    """Parse pairs of `a.b=VALUE` into nested tables; a value that is not TOML is a string. Raises UsageError."""
    table: Table = {}
    for pair in pairs:
        path, equals, text = pair.partition("=")
        *outer, name = path.strip().split(".")
        if not equals or not all((*outer, name)):
            raise UsageError(f"--set {pair}: need TABLE.KEY=VALUE")
        inner = table
        for key in outer:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise UsageError(f"--set {pair}: {key} was given a value before")
        inner[name] = _toml_value(text.strip())
    return table


def merged(first: Table, second: Table) -> Table:
    """Merge nested tables; where both have a value, the second one wins."""
    result = dict(first)
    for name, value in second.items():
        both = isinstance(value, dict) and isinstance(first.get(name), dict)
        result[name] = merged(first[name], value) if both else value
    return result


def need_at_least(table: object, least: float, *names: str) -> None:
    """Raise UsageError for a field below `least`."""
    for name in names:
        if getattr(table, name) < least:
            raise UsageError(f"{name}={getattr(table, name)}: need at least {least:g}")


def _plain(value: Any) -> Any:  # Any: fields of a dataclass, tuples as TOML would have them
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _toml_value(text: str) -> Any:  # Any: whatever TOML makes of it
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _value(kind: Any, value: Any, where: str) -> Any:  # Any: a type, and whatever stood in the file
    if is_dataclass(kind):
        return build(kind, value, where)  # type: ignore[arg-type]  # a class, not an instance
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise UsageError(f"{where}={value!r}: need a list")
        return tuple(_value(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if get_origin(kind) is dict:
        if not isinstance(value, dict):
            raise UsageError(f"{where}={value!r}: need a table")
        return {name: _value(get_args(kind)[1], item, f"{where}.{name}") for name, item in value.items()}
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UsageError(f"{where}={value!r}: choose one of {', '.join(get_args(kind))}")
        return value
    # TOML has no float 1: `epochs = 1` is an integer.
    if kind is float and type(value) is int:
        return float(value)
    # Not isinstance: a bool is an int in Python, and `seed = true` is a mistake.
    if type(value) is not kind:
        raise UsageError(f"{where}={value!r}: need a value of type {kind.__name__}")
    return value
