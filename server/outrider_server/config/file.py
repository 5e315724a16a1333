"""The configuration from a TOML file and the command line, which overrides it.

pydantic checks types, the configuration its values. Paths in a file are relative to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any, get_type_hints

from outrider_drafters.checkpoints.catalog import CATALOG
from outrider_drafters.checkpoints.source import source_beside
from outrider_models.core.embedded import EMBEDDED, default_target, drafter_source, model_dirs, shipped_drafters
from outrider_models.core.tables import read_toml
from outrider_proto.errors import UsageError
from outrider_server.config.config import ServerConfig
from outrider_server.config.schema import ConfigField, config_fields

_SECTIONS = ("limits", "security", "telemetry")
_NAMES_OR_PATHS = ("target", "drafters", "draft_vocab", "pace")  # may name a model or hardware, else a path
_ANY_TARGET = {"target": ""}

Raw = Mapping[str, Any]  # Any: whatever a TOML file may hold


def load_config(file: Path | None, given: Raw) -> ServerConfig:
    """Read `file` and override it with `given`, which has the same form.

    Raises UsageError, which names the file if the fault is the file's.
    """
    if file is None:
        return _with_models(_config({**_ANY_TARGET, **given}))
    table = _anchored(read_toml(file), file.absolute().parent)
    try:
        config = _config(_merged({**_ANY_TARGET, **table}, given))
    except UsageError:
        _blame(file, table)
        raise
    return _with_models(config)


def _blame(file: Path, table: Raw) -> None:
    """Raise for the file's own faults; all others came from the command line."""
    try:
        _config({**_ANY_TARGET, **table})
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error


def _config(raw: Raw) -> ServerConfig:
    """Build the configuration. Raises UsageError for unknown keys, wrong types and values out of range."""
    from pydantic import TypeAdapter, ValidationError

    try:
        # Strict by way of JSON: there a path is a string and a tuple a list, but a number is no string.
        return TypeAdapter(ServerConfig).validate_json(json.dumps(raw, default=str), strict=True)
    except ValidationError as error:
        raise UsageError(_explained(error.errors(include_url=False)[0])) from error


def _explained(fault: Any) -> str:  # Any: pydantic's ErrorDetails, imported only when needed
    """Return the first fault in our own words."""
    if (cause := fault.get("ctx", {}).get("error")) is not None:
        section = fault["loc"][0] if fault["loc"] else ""
        return f"[{section}] {cause}" if section else str(cause)
    place = [str(part) for part in fault["loc"]][: 2 if fault["loc"][0] in _SECTIONS else 1]
    key = f"[{place[0]}] {place[1]}" if len(place) > 1 else place[0]
    match fault["type"]:
        case "unexpected_keyword_argument":
            return f"{key}: no such key; the keys here are {', '.join(_keys(place[:-1]))}"
        case "dataclass_type":
            return f"{key}: need a section, [{key}]"
        case _:
            message = str(fault["msg"])
            return f"{key}={json.dumps(fault['input'], default=str)}: {message[:1].lower()}{message[1:]}"


def _keys(section: list[str]) -> list[str]:
    of: Any = get_type_hints(ServerConfig)[section[0]] if section else ServerConfig  # Any: a dataclass
    return [field.name for field in fields(of)]


def _merged(under: Raw, over: Raw) -> dict[str, Any]:  # Any: as Raw
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        result[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _anchored(table: Raw, folder: Path, of: Any = ServerConfig) -> dict[str, Any]:  # Any: a dataclass; as Raw
    """Return the values with relative paths made absolute."""
    hints = get_type_hints(of)
    result = dict(table)
    for key, value in table.items():
        if isinstance(value, dict) and key in _SECTIONS:
            result[key] = _anchored(value, folder, hints[key])
        elif key in _NAMES_OR_PATHS and of is ServerConfig:
            result[key] = [_beside(v, folder) for v in value] if isinstance(value, list) else _beside(value, folder)
        elif key in hints and hints[key] in (Path, Path | None) and isinstance(value, str):
            result[key] = str(folder / Path(value).expanduser())
    return result


def _beside(value: object, folder: Path) -> object:
    return source_beside(value, folder) if isinstance(value, str) else value  # checked later


def _with_models(config: ServerConfig) -> ServerConfig:
    """Fill in the default target, the drafters that ship for it, and their draft vocabulary. Raises UsageError."""
    filled = _with_pair(config)
    if filled.server_draft and not filled.drafters:
        raise UsageError(f"server_draft needs a drafter, and none ships for {filled.target}: name one with --drafter")
    if filled.draft_vocab is None:
        return filled
    chosen = f",draft_vocab={filled.draft_vocab}"  # the last of two in a source counts
    return replace(filled, drafters=tuple(drafter + chosen for drafter in filled.drafters), draft_vocab=None)


def _with_pair(config: ServerConfig) -> ServerConfig:
    name = config.target or default_target(config.drafters)
    if name != EMBEDDED:
        shipped = shipped_drafters(name) if name in CATALOG else ()
        return replace(config, target=name, drafters=config.drafters or shipped)
    embedded = model_dirs()
    if "target" not in embedded:
        raise UsageError("this installation has no embedded target: name one with --target")
    home = embedded.pop("target")
    drafters = tuple(map(drafter_source, config.drafters)) or tuple(map(str, embedded.values()))
    return replace(config, target=str(home), drafters=drafters)


def as_toml(config: ServerConfig) -> str:
    """Return a file that load_config() reads as `config`, with help texts as comments."""
    return "\n".join(_toml_lines(config)) + "\n"


def _toml_lines(config: ServerConfig) -> Iterator[str]:
    # Top-level keys first: in TOML a section runs to the head of the next one.
    ordered = sorted(config_fields(ServerConfig), key=lambda setting: len(setting.path) > 1)
    for section, group in groupby(ordered, key=lambda setting: setting.path[:-1]):
        if section:
            yield from ("", f"[{'.'.join(section)}]")
        for setting in group:
            yield from _toml_entry(setting, config)


def _toml_entry(setting: ConfigField, config: ServerConfig) -> Iterator[str]:
    value: object = config
    for part in setting.path:
        value = getattr(value, part)
    if setting.flag.help:
        yield f"# {setting.flag.help}"
    if value is None:
        yield f"# {setting.path[-1]} ="
    else:
        yield f"{setting.path[-1]} = {_toml_value(value)}"


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
