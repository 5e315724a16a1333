"""The configuration file of the `outrider` command: defaults of its options, and servers by name.

The values go where click looks for defaults after command line and environment, and are parsed as theirs are. The
library reads no such file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from outrider_drafters.checkpoints.source import source_beside
from outrider_models.core.tables import Table, read_toml
from outrider_proto.errors import UsageError

FILE_VARIABLE = "OUTRIDER_CONFIG"
KEY_VARIABLE = "OUTRIDER_KEY"
FROM_FILE = "DEFAULT_MAP"  # click's name for where such a value comes from
_SOURCES = {"COMMANDLINE": "command line", "ENVIRONMENT": "environment", FROM_FILE: "file"}
_META = "outrider.config_file"
_SERVERS, _ADDRESS, _SERVER = "servers", "address", "server"
_SHARE_OPTIONS = ("generate", "chat", "gateway")  # what all of them take can stand in the file
_PATHS = ("ca", "client_cert", "client_key", "key_file", "keywords")
_NAMES_OR_PATHS = ("target", "drafter", "draft_vocab", "pace", "choices")

Defaults = dict[str, Any]  # Any: an option's value, as text or texts; a bool for a switch


@dataclass(slots=True)
class ConfigFile:
    """What a file says, checked. `servers` are by name: their address, and the defaults that go with them."""

    path: Path
    defaults: Defaults = field(default_factory=dict)
    servers: dict[str, tuple[str, Defaults]] = field(default_factory=dict)
    chosen: str | None = None  # name of the server that is in use, if it is one of these


class FileCommand(TyperCommand):
    """A command whose options have their defaults from the file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # Any: click's Context, whose home typer moves
        if not ctx.resilient_parsing:
            try:
                file = ctx.meta[_META] = read_config(ctx)
                ctx.default_map = _own(self, file.defaults)
            except UsageError:
                if "--help" not in args:
                    raise
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:  # Any: as above, and what a command returns
        try:
            return super().invoke(ctx)
        except UsageError as error:
            # The command knows no file. Its messages begin with the option they are about.
            name = option_name(re.match(r"[\w-]*", str(error)).group()).removesuffix("_s")  # type: ignore[union-attr] # matches anything
            if (source := ctx.get_parameter_source(name)) is None or source.name != FROM_FILE:
                raise
            raise UsageError(f"{ctx.meta[_META].path}: {error}") from error


def _own(command: Any, defaults: Defaults) -> Defaults:  # Any: click's Command
    """Select the options that a command has; hidden ones are there to be refused."""
    names = {each.name for each in command.params if not getattr(each, "hidden", False)}
    return {name: value for name, value in defaults.items() if name in names}


def server_address(ctx: typer.Context, server: str) -> str:
    """Return the address of a server; if it is a name from the file, what goes with it becomes the defaults.

    The callback of options that name a server. They are eager: parsed before all others.
    """
    file = config_file(ctx)
    if file is None or server not in file.servers:
        return server
    file.chosen = server
    address, defaults = file.servers[server]
    ctx.default_map = {**(ctx.default_map or {}), **_own(ctx.command, defaults)}
    return address


def config_file(ctx: typer.Context) -> ConfigFile | None:
    """The file of the command that runs; None where it was not read."""
    file: ConfigFile | None = ctx.meta.get(_META)
    return file


def config_command(ctx: typer.Context, **options: Any) -> None:  # Any: each option has its own type
    """Show the configuration file, its servers, and where values come from that are not the defaults."""
    file = config_file(ctx)
    assert file is not None
    print(f"{file.path}{'' if file.path.exists() else ': there is no such file'}")
    for name, (address, _) in file.servers.items():
        print(f"  server {name}: {address}")
    for name, value, source in _not_by_default(ctx, file, options):
        print(f"{name.replace('_', '-')} = {value}  ({source})")


def _not_by_default(ctx: typer.Context, file: ConfigFile, options: Defaults) -> Iterator[tuple[str, Any, str]]:
    of_server = {} if file.chosen is None else file.servers[file.chosen][1]
    for name, value in options.items():
        source = ctx.get_parameter_source(name)
        if source is not None and source.name in _SOURCES:
            is_of_server = source.name == FROM_FILE and name in of_server
            yield name, value, f"[{_SERVERS}.{file.chosen}]" if is_of_server else _SOURCES[source.name]
    if os.environ.get(KEY_VARIABLE) and options["key_file"] is None:
        yield "key", "not shown", "environment"


def option_name(key: str) -> str:
    return key.replace("-", "_")


def read_config(ctx: Any) -> ConfigFile:  # Any: click's Context
    """Read the file that $OUTRIDER_CONFIG names, else the default one if there is one. Raises UsageError."""
    path = _path()
    if path is None:
        return ConfigFile(default_path())
    table = read_toml(path)
    servers = table.pop(_SERVERS, {})
    if not isinstance(servers, dict):
        raise UsageError(f"{path}: {_SERVERS}: need tables, [{_SERVERS}.NAME]")
    reader = _TableReader(ctx, path)
    defaults = reader.defaults(table)
    return ConfigFile(path, defaults, {name: reader.server(name, each) for name, each in servers.items()})


def default_path() -> Path:
    from platformdirs import user_config_path

    return user_config_path("outrider", appauthor=False) / "config.toml"


def _path() -> Path | None:
    if named := os.environ.get(FILE_VARIABLE):
        return Path(os.path.expanduser(named))  # it raises nothing, where Path does for an unknown user
    default = default_path()
    return default if default.exists() else None


class _TableReader:
    """Turns tables of a file into defaults of options. Raises UsageError, which names file and key."""

    def __init__(self, ctx: Any, path: Path) -> None:  # Any: click's Context
        self._ctx = ctx
        self._file = path
        self._options = _shared_options(ctx)

    def defaults(self, table: Table) -> Defaults:
        return self._read(table, self._options)

    def server(self, name: str, table: Any) -> tuple[str, Defaults]:  # Any: whatever stands in the file
        section = f"[{_SERVERS}.{name}] "
        if not isinstance(table, dict) or not table.get(_ADDRESS):
            raise UsageError(f'{self._file}: {section}needs {_ADDRESS} = "HOST:PORT"')
        others = {name: option for name, option in self._options.items() if name != _SERVER}
        defaults = self._read(table, others | {_ADDRESS: self._options[_SERVER]}, section)
        return defaults.pop(_ADDRESS), defaults

    def _read(self, table: Table, options: dict[str, Any], section: str = "") -> Defaults:  # Any: click's Parameters
        found: Defaults = {}
        for key, value in table.items():
            name = option_name(key)
            if name not in options:
                keys = ", ".join(each.replace("_", "-") for each in sorted(options))
                raise UsageError(f"{self._file}: {section}{key}: no such key; the keys here are {keys}")
            if name in found:
                raise UsageError(f"{self._file}: {section}{key}: stands there twice")
            try:
                found[name] = self._anchored(name, self._given(options[name], value))
            except ValueError as error:
                raise UsageError(f"{self._file}: {section}{key}={json.dumps(value, default=str)}: {error}") from error
        return found

    def _given(self, option: Any, value: Any) -> Any:  # Any: click's Parameter; a TOML value; as Defaults
        """Return a value as the command line would give it. Raises ValueError for one that it would refuse."""
        if option.is_flag:
            if not isinstance(value, bool):
                raise ValueError("need true or false")
            return value
        if option.multiple:
            texts = value if isinstance(value, list) else [value]
            if not all(isinstance(each, str) for each in texts):
                raise ValueError("need text in quotes, or a list of such texts")
            return texts
        parsed = self._parsed(option, str(value))
        is_number = isinstance(parsed, int | float)
        if isinstance(value, bool) or not isinstance(value, int | float if is_number else str):
            raise ValueError("need a number, without quotes" if is_number else "need text, in quotes")
        return str(value)

    def _parsed(self, option: Any, text: str) -> Any:  # Any: click's Parameter; of the option's type
        if option.name == _SERVER:
            return text  # parsing would look it up in this file
        try:
            return option.process_value(self._ctx, text)
        except typer.BadParameter as error:
            raise ValueError(error.message.removeprefix("Value error, ")) from error

    def _anchored(self, name: str, given: Any) -> Any:  # Any: as Defaults
        """Return paths as relative to the file."""
        folder = self._file.absolute().parent
        if name in _PATHS:
            return str(folder / os.path.expanduser(given))
        if name not in _NAMES_OR_PATHS:
            return given
        return (
            [source_beside(each, folder) for each in given] if isinstance(given, list) else source_beside(given, folder)
        )


def _shared_options(ctx: Any) -> dict[str, Any]:  # Any: click's Context and Parameters
    group = ctx.find_root().command
    assert isinstance(group, TyperGroup)
    first, *others = ({each.name: each for each in group.commands[name].params} for name in _SHARE_OPTIONS)
    return {name: option for name, option in first.items() if all(name in each for each in others)}
