"""The options of a client: on the command line, in its configuration file, and those that fields are loaded from.

The file holds values of the options, and servers by name; the library reads none. A key is an option's name, whatever
field of ClientConfig's sections it is.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from typer import Context

from outrider_client.connection.access import KEY_VARIABLE, Access
from outrider_client.connection.policy import Patience
from outrider_client.core.config import UNLIMITED, ClientConfig
from outrider_client.display.messages import print_message
from outrider_client.models.pulled import find_pulled
from outrider_drafters.checkpoints.source import source_beside
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.contracts.tree_shape import TreePlan, TreeShape
from outrider_drafters.routing.keywords import Keywords
from outrider_models.core.embedded import EMBEDDED
from outrider_proto.errors import UsageError, Violation
from outrider_proto.options.command import given, parameters, set_signature
from outrider_proto.options.fields import Flag, Option, find_option, options_of
from outrider_proto.options.values import Table, checked, merged, place, read_toml

FILE_VARIABLE = "OUTRIDER_CONFIG"
_SERVERS, _ADDRESS, _SERVER = "servers", "address", "server"
_NAMES_OR_PATHS = ("target", "drafter", "draft_vocab", "pace", "choices")
_Made = TypeVar("_Made")


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


@dataclass(frozen=True, slots=True)
class _Sources:
    """Options from which fields of ClientConfig are made."""

    drafter: Annotated[
        tuple[str, ...],
        Flag(
            "Drafter: directory, hub name, name of one that ships (smollm2/moa), lookup, suffix or none. Repeat it for"
            " several heads. Default: the one in the target's bundle, else the best that ships for the target.",
            panel="Target and drafter",
        ),
    ] = ()
    keywords: Annotated[
        Path | None,
        Flag(
            'With several heads: TOML or JSON file with lines HEAD = ["word", ...], HEAD being the name of its'
            " directory. Implies route=keywords.",
            expert=True,
        ),
    ] = None
    choices: Annotated[
        str | None,
        Flag("Fixed draft tree: the name of a shipped one, or a JSON list of paths of child ranks.", expert=True),
    ] = None
    link_floor_ms: Annotated[
        float, Flag("Milliseconds of silence after which the link counts as broken at the earliest.", expert=True)
    ] = Patience().floor_s * 1000


_SHAPE = (
    replace(each, default=f"the drafter's own, else {each.default}") for each in options_of(TreeShape, ("shape",))
)
OPTIONS = (*options_of(ClientConfig), *options_of(_Sources), *_SHAPE)
SERVER = OPTIONS[0]
CONNECTION = (SERVER, *(option for option in OPTIONS if option.path[0] == "access"))


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What is said of a client: on the command line, and under it in the configuration file. `defaults`: of neither."""

    file: ConfigFile
    on_command_line: Table
    defaults: Table

    @property
    def of_file(self) -> Table:
        return self.file.table_for(self.on_command_line)

    def sources(self, context: Context) -> Iterator[tuple[str, Any, str]]:
        """Yield the name of each option that is not by default, its value, and where that comes from."""
        server = self.file.server_name(self.on_command_line)
        layers = [(self.file.addressed(self.on_command_line), "command line"), (self.file.table, "file")]
        if server is not None:
            layers.insert(1, (self.file.servers[server], f"[servers.{server}]"))
        for option in OPTIONS:
            values = ((_find(table, option.path), source) for table, source in layers)
            value, source = next((each for each in values if each[0] is not None), (None, ""))
            named_by = context.get_parameter_source(option.key)
            is_in_environment = source == "command line" and named_by is not None and named_by.name == "ENVIRONMENT"
            if source:
                yield option.name, value, "environment" if is_in_environment else source

    def says(self, name: str) -> bool:
        """Return whether the file or the command line has the option of that name."""
        table = merged(self.of_file, self.on_command_line)
        return any(_find(table, option.path) is not None for option in OPTIONS if option.path[-1] == name)

    def config(self) -> ClientConfig:
        """Build the configuration. Raises UsageError, which names the file where the fault is the file's."""
        under = merged(self.defaults, self.of_file)
        try:
            return _config(merged(under, self.file.addressed(self.on_command_line)))
        except UsageError:
            try:
                _config(under)
            except UsageError as error:
                raise UsageError(f"{self.file.path}: {error}") from error
            raise  # the file is well by itself: the command line is not


def with_client_options(
    options: Iterable[Option] = OPTIONS, own: type | None = None, **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options; its first parameter gets the ClientOptions. `defaults`: by a field's name.

    `own`: a dataclass whose options come first, and what is given for which the second parameter gets.
    """
    shown = {UNLIMITED: "as many as the context holds"}
    own_defaults = {name: shown.get(value, value) for name, value in defaults.items()}
    of_own = [] if own is None else list(options_of(own))
    options = [*of_own, *(replace(each, default=own_defaults.get(each.path[-1], each.default)) for each in options)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        others = list(inspect.signature(command, eval_str=True).parameters.values())[1 if own is None else 2 :]

        @wraps(command)
        def wrapper(**values: Any) -> None:  # Any: each option has its own type
            table = given(options, values)
            its = {each.key: table.pop(each.key) for each in of_own if each.key in table}
            chosen = ClientOptions(read_config(OPTIONS), table, defaults)
            command(chosen, *([] if own is None else [its]), **{each.name: values[each.name] for each in others})

        rest = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in others]
        set_signature(wrapper, [*rest, *parameters(options)], options)
        return wrapper

    return decorate


def with_models(config: ClientConfig) -> ClientConfig:
    """Fill in target and drafter: what was pulled from the server, else what is installed, which the user is told."""
    from outrider_client.models.local_models import with_default_models

    if config.target is None and config.drafter is None:
        config = replace(config, target=find_pulled(config.server))
    filled = with_default_models(config)
    if config.target is None and filled.target != EMBEDDED:
        print_message(f"target {filled.target}, drafter {filled.drafter}; --target {EMBEDDED} is the built-in one")
    return filled


def tree_plan(choices: str | None, **limits: float | None) -> TreePlan | None:
    """Return a fixed tree, or one within the limits that are given, or None. Raises UsageError for both."""
    named = {name: value for name, value in limits.items() if value is not None}
    if choices is None:
        return TreeShape(**named) if named else None  # type: ignore[arg-type] # each limit has the type of its option
    if named:
        raise UsageError(f"choices={choices} fixes the tree: leave out {', '.join(named)}")
    return TreeChoices.load(choices)


def _config(table: Table) -> ClientConfig:
    """Build the configuration of a table with the shape of ClientConfig. Raises UsageError."""
    values = Table()
    for option in OPTIONS:
        if (value := _find(table, option.path)) is not None:
            place(values, option.path, checked(option, value))
    first, *others = values.pop("drafter", ()) or (None,)
    fields: dict[str, Any] = {"drafter": first, "other_heads": tuple(others)}  # Any: each has its own type
    if (keywords := values.pop("keywords", None)) is not None:
        fields["keywords"] = Keywords.load(keywords)
        values.setdefault("routing", {}).setdefault("route", "keywords")
    if (floor_ms := values.pop("link_floor_ms", None)) is not None:
        fields["patience"] = Patience(floor_s=floor_ms / 1000)
    fields["shape"] = tree_plan(values.pop("choices", None), **values.pop("shape", {}))
    access = values.pop("access", {})
    # A key file that was named wins over the variable, which may be meant for another server.
    key = None if "key_file" in access else os.environ.get(KEY_VARIABLE) or None
    fields["access"] = Access(**access, key=key)
    try:
        return _made(ClientConfig, values | fields)
    except Violation as violation:
        raise UsageError(violation.message) from violation


def _find(table: Any, path: tuple[str, ...]) -> Any:  # Any: as Table
    for part in path:
        table = table.get(part) if isinstance(table, dict) else None
    return table


def _made(kind: type[_Made], values: Table) -> _Made:
    """Build a dataclass whose sections are tables."""
    hints = get_type_hints(kind)
    nested = {name: is_dataclass(hints[name]) and isinstance(value, dict) for name, value in values.items()}
    return kind(**{name: _made(hints[name], each) if nested[name] else each for name, each in values.items()})
