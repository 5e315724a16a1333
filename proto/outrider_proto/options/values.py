"""Values of options from a TOML file and from a command line, checked and made into their dataclass.

A table has the shape of the file: sections are tables in it. Every UsageError names the key and the remedy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from outrider_proto.errors import OutriderError, UsageError
from outrider_proto.files import parse_toml, read_regular
from outrider_proto.options.fields import Option, find_option, nearest, options_of

Table = dict[str, Any]  # Any: whatever a TOML file may hold
_Made = TypeVar("_Made")


def read_toml(path: Path) -> Table:
    """Read a file. Raises UsageError, which names it."""
    return parse_toml(read_regular(path), path)


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> Table:  # Any: as Table
    """Merge nested tables; where both have a value, `over` wins."""
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def place(table: Table, path: tuple[str, ...], value: Any) -> None:  # Any: as Table
    """Set a value in a nested table."""
    for part in path[:-1]:
        table = table.setdefault(part, {})
    table[path[-1]] = value


def parse_settings(options: Iterable[Option], pairs: Iterable[str]) -> Table:
    """Parse the NAME=VALUE of --set, where a list gathers those of one name. Raises UsageError for an unknown name."""
    known, table, values = list(options), Table(), dict[tuple[str, ...], Any]()
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {pair}: need NAME=VALUE")
        option = find_option(known, name.strip())
        value = _parsed(option, text.strip())
        values[option.path] = [*values.get(option.path, ()), *value] if isinstance(value, list) else value
    for path, value in values.items():
        place(table, path, value)
    return table


def checked(option: Option, value: Any) -> Any:  # Any: as Table; of the option's type
    """Return a value as the option's type has it. Raises UsageError for one of another type."""
    from pydantic import TypeAdapter, ValidationError

    if get_origin(option.type) is tuple and isinstance(value, str):
        value = [value]
    try:
        return TypeAdapter(option.type).validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        raise UsageError(_wrong_value(option.name, error.errors(include_url=False)[0])) from error


def build(kind: type[_Made], table: Mapping[str, Any]) -> _Made:  # Any: as Table
    """Build the dataclass. Raises UsageError for unknown keys, wrong types and values out of range."""
    from pydantic import TypeAdapter, ValidationError

    _refuse_unknown(kind, table, ())
    try:
        # Strict by way of JSON: there a path is a string and a tuple a list, but a number is no string.
        return TypeAdapter(kind).validate_json(json.dumps(table, default=str), strict=True)
    except ValidationError as error:
        raise UsageError(_explained(kind, error.errors(include_url=False)[0])) from error


def load_table(
    kind: type[_Made],
    file: Path,
    table: Mapping[str, Any],  # Any: as Table
    given: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
) -> _Made:
    """Build the dataclass from a file's table, over `base` and overridden by `given`.

    Raises UsageError, which names the file if the fault is the file's.
    """
    table = merged(base or {}, table)
    try:
        return build(kind, merged(table, given))
    except UsageError:
        try:
            build(kind, table)
        except UsageError as error:
            raise UsageError(f"{file}: {error}") from error
        raise  # the file is well by itself: the command line is not


def as_toml(config: object) -> str:
    """Return a file that `load` reads as the same value, with help texts as comments."""
    return "\n".join(_toml_lines(config)) + "\n"


def toml_value(text: str) -> Any:  # Any: whatever TOML makes of it
    """Parse a value as TOML has it; one that is not TOML is text."""
    try:
        return parse_toml(f"value = {text}", text)["value"]
    except UsageError:
        return text


def _parsed(option: Option, text: str) -> Any:  # Any: as Table
    """Read a value as TOML would have it, but for text, which needs no quotes here."""
    is_list = get_origin(option.type) is tuple
    members = (option.type, *get_args(option.type))
    if (str in members or Path in members) and not (is_list and text.startswith("[")):
        return [text] if is_list else text
    value = toml_value(text)
    return [value] if is_list and not isinstance(value, list) else value


def _refuse_unknown(kind: Any, table: Mapping[str, Any], path: tuple[str, ...]) -> None:  # Any: a dataclass; as Table
    hints = get_type_hints(kind, include_extras=True)
    names = [each.name for each in fields(kind) if each.init]
    for key, value in table.items():
        if key not in names:
            section = f"[{'.'.join(path)}] " if path else ""
            raise UsageError(f"{section}{key}: no such key; {nearest(key, names)}")
        inner = get_args(hints[key])[0] if get_origin(hints[key]) is Annotated else hints[key]
        if is_dataclass(inner):
            if not isinstance(value, dict):
                raise UsageError(f"{key}: need a section, [{'.'.join((*path, key))}]")
            _refuse_unknown(inner, value, (*path, key))


def _explained(kind: Any, fault: Any) -> str:  # Any: a dataclass; pydantic's ErrorDetails, imported only when needed
    """Return the first fault in our own words."""
    sections = []
    for part in fault["loc"]:
        hint = get_type_hints(kind).get(part) if is_dataclass(kind) else None
        if hint is None or not is_dataclass(hint):
            break
        sections.append(str(part))
        kind = hint
    section = f"[{'.'.join(sections)}] " if sections else ""
    if isinstance(cause := fault.get("ctx", {}).get("error"), OutriderError | ValueError):
        return f"{section}{cause}"
    key = f"{section}{fault['loc'][len(sections)]}"
    if fault["type"] == "missing":
        return f"{key}: missing"
    return _wrong_value(key, fault)


def _wrong_value(name: str, fault: Any) -> str:  # Any: as above
    message = str(fault["msg"])
    return f"{name}={json.dumps(fault['input'], default=str)}: {message[:1].lower()}{message[1:]}"


def _toml_lines(config: Any) -> Iterator[str]:  # Any: a dataclass
    # Top-level keys first: in TOML a section runs to the head of the next one.
    ordered = sorted(options_of(type(config)), key=lambda option: len(option.path) > 1)
    for section, group in groupby(ordered, key=lambda option: option.path[:-1]):
        if section:
            yield from ("", f"[{'.'.join(section)}]")
        for option in group:
            yield from _toml_entry(option, config)


def _toml_entry(option: Option, config: object) -> Iterator[str]:
    value: object = config
    for part in option.path:
        value = getattr(value, part)
    if option.flag.help:
        yield f"# {option.flag.help}"
    yield f"# {option.path[-1]} =" if value in (None, MISSING) else f"{option.path[-1]} = {_toml_value(value)}"


def _toml_value(value: object) -> str:
    """Format a value. TOML's strings, numbers and arrays are JSON's, but for the cases here."""
    match value:
        case float() if value in (float("inf"), float("-inf")) or value != value:
            return str(value)
        case Path():
            return _toml_value(str(value))
        case tuple():
            return f"[{', '.join(map(_toml_value, value))}]"
        case _:
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
