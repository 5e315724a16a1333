"""The options that name a server and how it is reached, for every command that reaches one.

No option takes the key itself: everybody on this machine can read its processes' command lines.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from outrider_client.cli.config_file import KEY_VARIABLE, server_address
from outrider_client.connection.access import Access
from outrider_client.core.config import ClientConfig
from outrider_proto.errors import UsageError

SERVER_VARIABLE = "OUTRIDER_SERVER"
SERVER_HELP = "Server address, HOST or HOST:PORT, or a server's name in the configuration file."
DEFAULT_SERVER = ClientConfig().server
_PORT = DEFAULT_SERVER.rpartition(":")[2]
_PANEL = "Encryption and key"

ServerOption = Annotated[str, Option(envvar=SERVER_VARIABLE, help=SERVER_HELP, is_eager=True, callback=server_address)]


def _options(
    tls: Annotated[
        bool,
        Option("--tls", help="Use TLS and trust the system's certificate authorities.", rich_help_panel=_PANEL),
    ] = False,
    ca: Annotated[
        Path | None,
        Option(help="PEM file of the certificate authority to trust instead. Implies --tls.", rich_help_panel=_PANEL),
    ] = None,
    client_cert: Annotated[
        Path | None, Option(help="PEM file of this client's certificate. Implies --tls.", rich_help_panel=_PANEL)
    ] = None,
    client_key: Annotated[
        Path | None, Option(help="PEM file of the private key to --client-cert.", rich_help_panel=_PANEL)
    ] = None,
    server_name: Annotated[
        str | None,
        Option(
            help="Name in the server's certificate. Implies --tls. Default: the host of --server.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        Option(
            envvar="OUTRIDER_KEY_FILE",
            help=f"File with the key that the server asks for. The key itself can stand in ${KEY_VARIABLE}.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    send_key_unencrypted: Annotated[
        bool,
        Option(
            "--send-key-unencrypted",
            help="Send the key over a network without TLS, where others can read it.",
            rich_help_panel=_PANEL,
        ),
    ] = False,
) -> None:
    """Declare the options; never called."""


ACCESS_OPTIONS = dict(inspect.signature(_options, eval_str=True).parameters)


def with_options(command: Callable[..., None], shared: Mapping[str, inspect.Parameter]) -> Callable[..., None]:
    """Add shared options to a command's signature; it gets their values as keywords.

    Its own options come first, and replace shared ones of the same name.
    """
    # Evaluated here: as strings, annotations of shared options would be looked up in the module of the command.
    own = inspect.signature(command, eval_str=True).parameters
    named = {name: each for name, each in own.items() if each.kind is not inspect.Parameter.VAR_KEYWORD}
    command.__signature__ = inspect.Signature([*({**named, **shared} | named).values()])  # type: ignore[attr-defined] # read by inspect
    return command


def with_access_options(command: Callable[..., None]) -> Callable[..., None]:
    return with_options(command, ACCESS_OPTIONS)


def access_from(options: Mapping[str, Any]) -> Access:  # Any: each option has its own type
    """The Access that these options describe. Raises UsageError."""
    chosen = dict(options)
    unencrypted = chosen.pop("send_key_unencrypted", False)
    # A key file that was named wins over the variable, which may be meant for another server.
    key = None if chosen.get("key_file") is not None else os.environ.get(KEY_VARIABLE) or None
    return Access(**chosen, key=key, key_unencrypted=unencrypted)


def with_port(server: str) -> str:
    """Add the default port to a bare HOST; anything else stays as it is. Raises UsageError for a URL."""
    if "://" in server:
        raise UsageError(f"server={server}: need HOST or HOST:PORT, without {server.partition('://')[0]}://")
    is_bare = server.endswith("]") if server.startswith("[") else ":" not in server
    return f"{server}:{_PORT}" if server and is_bare else server
