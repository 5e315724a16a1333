"""The configuration file of the `outrider` command: values of its options, and servers by name.

The library reads no such file. A key is an option's name, whatever field of ClientConfig's sections it is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider_drafters.checkpoints.source import source_beside
from outrider_proto.errors import UsageError
from outrider_proto.options.fields import Option, find_option
from outrider_proto.options.values import Table, checked, merged, place, read_toml

FILE_VARIABLE = "OUTRIDER_CONFIG"
_SERVERS, _ADDRESS, _SERVER = "servers", "address", "server"
_NAMES_OR_PATHS = ("target", "drafter", "draft_vocab", "pace", "choices")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file says, checked: tables with the shape of ClientConfig, that of each server by its name."""

    path: Path
    table: Table = field(default_factory=dict)
    servers: dict[str, Table] = field(default_factory=dict)

    def server_name(self, given: Table) -> str | None:
        """Return the name of the server that is meant, if it is one of these."""
        name = given.get(_SERVER, self.table.get(_SERVER))
        return name if name in self.servers else None

    def table_for(self, given: Table) -> Table:
        """Return the file's values, over which those of the server that is meant go."""
        name = self.server_name(given)
        return self.table if name is None else merged(self.table, self.servers[name])

    def addressed(self, given: Table) -> Table:
        """Return what was given with the server's address in place of its name."""
        name = self.server_name(given)
        return given if name is None or _SERVER not in given else {**given, _SERVER: self.servers[name][_SERVER]}


def read_config(options: Sequence[Option]) -> ConfigFile:
    """Read the file that $OUTRIDER_CONFIG names, else the default one. Raises UsageError, which names file and key."""
    named = os.environ.get(FILE_VARIABLE)
    # expanduser raises nothing, where Path does for an unknown user.
    path = Path(os.path.expanduser(named)) if named else default_path()
    if not named and not path.exists():
        return ConfigFile(path)
    table = read_toml(path)
    servers = table.pop(_SERVERS, {})
    if not isinstance(servers, dict):
        raise UsageError(f"{path}: {_SERVERS}: need tables, [{_SERVERS}.NAME]")
    by_name = {name: _server(path, options, name, each) for name, each in servers.items()}
    return ConfigFile(path, _read(path, options, table), by_name)


def default_path() -> Path:
    from platformdirs import user_config_path

    return user_config_path("outrider", appauthor=False) / "config.toml"


def _server(file: Path, options: Sequence[Option], name: str, table: Any) -> Table:  # Any: whatever is in the file
    section = f"[{_SERVERS}.{name}] "
    if not isinstance(table, dict) or not table.get(_ADDRESS):
        raise UsageError(f'{file}: {section}needs {_ADDRESS} = "HOST:PORT"')
    if _SERVER in table:
        raise UsageError(f"{file}: {section}{_SERVER}: its address is the key {_ADDRESS}")
    return _read(file, options, {_SERVER if key == _ADDRESS else key: value for key, value in table.items()}, section)


def _read(file: Path, options: Sequence[Option], table: Table, section: str = "") -> Table:
    """Turn a flat table of the file into the shape of ClientConfig. Raises UsageError."""
    values, keys = Table(), set[str]()
    for key, value in table.items():
        try:
            option = find_option(options, key)
            if option.key in keys:
                raise UsageError(f"{key}: stands there twice")
            keys.add(option.key)
            place(values, option.path, _anchored(file.absolute().parent, option, checked(option, value)))
        except UsageError as error:
            raise UsageError(f"{file}: {section}{error}") from error
    return values


def _anchored(folder: Path, option: Option, value: Any) -> Any:  # Any: of the option's type
    """Return paths as relative to the file's folder."""
    if option.path[-1] in _NAMES_OR_PATHS:
        if isinstance(value, tuple):
            return [source_beside(each, folder) for each in value]
        return source_beside(str(value), folder)
    return folder / os.path.expanduser(value) if isinstance(value, Path) else value
