"""The options that say how a server is reached, for every command that reaches one. There is none for the key itself:
whoever lists processes reads their command lines."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from outrider_client.connection.access import Access
from outrider_client.core.config import ClientConfig

KEY_VARIABLE = "OUTRIDER_KEY"
_PANEL = "The way to the server"


def _options(
    tls: Annotated[
        bool, Option("--tls", help="Encrypt, with the authorities this system trusts.", rich_help_panel=_PANEL)
    ] = False,
    ca: Annotated[
        Path | None, Option(help="PEM file of the authority to trust instead; implies --tls.", rich_help_panel=_PANEL)
    ] = None,
    client_cert: Annotated[
        Path | None, Option(help="PEM file with this client's certificate.", rich_help_panel=_PANEL)
    ] = None,
    client_key: Annotated[Path | None, Option(help="PEM file with its private key.", rich_help_panel=_PANEL)] = None,
    server_name: Annotated[
        str | None, Option(help="Name in the server's certificate; the one it is called by.", rich_help_panel=_PANEL)
    ] = None,
    key_file: Annotated[
        Path | None,
        Option(
            envvar="OUTRIDER_KEY_FILE",
            help=f"File with the key the server asks for. Or the key itself in ${KEY_VARIABLE}.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    send_key_unencrypted: Annotated[
        bool,
        Option(
            "--send-key-unencrypted",
            help="Let the key go over a network without TLS, where others may read it.",
            rich_help_panel=_PANEL,
        ),
    ] = False,
) -> None:
    """Never called: its signature is what counts."""


ACCESS_OPTIONS = dict(inspect.signature(_options, eval_str=True).parameters)


def with_options(command: Callable[..., None], shared: Mapping[str, inspect.Parameter]) -> Callable[..., None]:
    """A command that takes shared options, and gets them as keywords; its own before those of the same name."""
    own = inspect.signature(command, eval_str=True).parameters
    named = {name: each for name, each in own.items() if each.kind is not inspect.Parameter.VAR_KEYWORD}
    command.__signature__ = inspect.Signature([*({**named, **shared} | named).values()])  # type: ignore[attr-defined] # read by inspect
    return command


def with_access_options(command: Callable[..., None]) -> Callable[..., None]:
    return with_options(command, ACCESS_OPTIONS)


def access_from(options: Mapping[str, Any]) -> Access:  # Any: each option has its own type
    """Raises UsageError."""
    chosen = dict(options)
    unencrypted = chosen.pop("send_key_unencrypted", False)
    key = None if chosen.get("key_file") is not None else os.environ.get(KEY_VARIABLE) or None
    return Access(**chosen, key=key, key_unencrypted=unencrypted)


PORT = ClientConfig().server.rpartition(":")[2]


def with_port(server: str) -> str:
    """HOST is HOST:50051; what has a port, or is no address at all, stays as it is."""
    is_bare = server.endswith("]") if server.startswith("[") else ":" not in server
    return f"{server}:{PORT}" if server and is_bare else server
