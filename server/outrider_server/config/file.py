"""The configuration from a TOML file and the command line, which overrides it. Paths in a file are relative to it."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from outrider_drafters.checkpoints.catalog import catalog
from outrider_drafters.checkpoints.source import source_beside
from outrider_models.core.embedded import EMBEDDED, default_target, drafter_source, model_dirs, shipped_drafters
from outrider_proto.errors import UsageError
from outrider_proto.options.values import Table, build, load_table, read_toml
from outrider_server.config.config import ServerConfig

_NAMES_OR_PATHS = ("target", "drafters", "draft_vocab", "pace")  # may name a model or hardware, else a path
_ANY_TARGET = {"target": ""}
_Config = TypeVar("_Config", bound=ServerConfig)


def load_config(file: Path | None, given: Table, kind: type[_Config] = ServerConfig) -> _Config:  # type: ignore[assignment] # the default is one
    """Read `file` and override it with `given`, which has the same form.

    Raises UsageError, which names the file if the fault is the file's.
    """
    if file is None:
        return _with_models(build(kind, {**_ANY_TARGET, **given}))
    table = _anchored(read_toml(file), file.absolute().parent, kind)
    return _with_models(load_table(kind, file, table, given, _ANY_TARGET))


def _anchored(table: Table, folder: Path, of: Any) -> Table:  # Any: a dataclass
    """Return the values with relative paths made absolute."""
    hints = get_type_hints(of)
    result = dict(table)
    for key, value in table.items():
        if isinstance(value, dict) and is_dataclass(hints.get(key)):
            result[key] = _anchored(value, folder, hints[key])
        elif key in _NAMES_OR_PATHS:
            result[key] = [_beside(v, folder) for v in value] if isinstance(value, list) else _beside(value, folder)
        elif hints.get(key) in (Path, Path | None) and isinstance(value, str):
            result[key] = str(folder / Path(value).expanduser())
    return result


def _beside(value: object, folder: Path) -> object:
    return source_beside(value, folder) if isinstance(value, str) else value  # checked later


def _with_models(config: _Config) -> _Config:
    """Fill in the default target, the drafters that ship for it, and their draft vocabulary. Raises UsageError."""
    filled = _with_pair(config)
    if filled.server_draft and not filled.drafters:
        raise UsageError(f"server_draft needs a drafter, and none ships for {filled.target}: name one with --drafter")
    if filled.draft_vocab is None:
        return filled
    chosen = f",draft_vocab={filled.draft_vocab}"  # the last of two in a source counts
    return replace(filled, drafters=tuple(drafter + chosen for drafter in filled.drafters), draft_vocab=None)


def _with_pair(config: _Config) -> _Config:
    name = config.target or default_target(config.drafters)
    if name != EMBEDDED:
        shipped = shipped_drafters(name) if name in catalog() else ()
        return replace(config, target=name, drafters=config.drafters or shipped)
    embedded = model_dirs()
    if "target" not in embedded:
        raise UsageError("this installation has no embedded target: name one with --target")
    home = embedded.pop("target")
    drafters = tuple(map(drafter_source, config.drafters)) or tuple(map(str, embedded.values()))
    return replace(config, target=str(home), drafters=drafters)
