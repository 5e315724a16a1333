"""Frozen dataclasses from TOML tables, complete or as changes to defaults. Every error names its key."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, TypeVar

from outrider_proto.errors import UsageError
from outrider_proto.options import values
from outrider_proto.options.values import Table, merged, read_toml, toml_value

__all__ = ["Table", "build", "merged", "parse_changes", "read_toml", "with_changes"]

_Made = TypeVar("_Made")


def build(kind: type[_Made], table: Any, where: str) -> _Made:  # Any: whatever stood in the file
    """Build a dataclass from a table. Raises UsageError."""
    if not isinstance(table, dict):
        raise UsageError(f"{where}={table!r}: need a table, as in {where}.KEY=VALUE")
    try:
        return values.build(kind, table)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def with_changes(defaults: _Made, changes: Any, where: str) -> _Made:  # Any: as above
    """Return the dataclass with the keys of `changes`, nested tables included, replaced. Raises UsageError."""
    own = asdict(defaults)  # type: ignore[call-overload]  # a dataclass, always
    return build(type(defaults), merged(own, changes) if isinstance(changes, dict) else changes, where)


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
        inner[name] = toml_value(text.strip())
    return table
