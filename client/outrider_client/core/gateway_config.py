"""The gateway's settings, validated once. Imports nothing of HTTP, since every command line imports this."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from outrider_proto.addresses import is_loopback_host
from outrider_proto.errors import UsageError
from outrider_proto.files import read_text
from outrider_proto.flag import Flag

ANY_ORIGIN = "*"
API_KEY_VARIABLE = "OUTRIDER_API_KEY"
UnverifiedPolicy = Literal["hold", "keep", "stream"]
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+")


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Settings of a gateway. Raises UsageError, also for an address that others could reach without a key."""

    host: Annotated[str, Flag("Address to listen on. Any but loopback needs an API key.")] = "127.0.0.1"
    port: Annotated[int, Flag("Port to listen on; 0 picks a free one.")] = 8000
    api_key: str | None = field(default=None, repr=False)
    api_key_file: Annotated[
        Path | None,
        Flag("File with the key that apps must send as bearer token. Else $OUTRIDER_API_KEY is the key, if it is set."),
    ] = None
    names: Annotated[
        tuple[str, ...],
        Flag(
            "Name that apps may give the model. Repeatable. Default: outrider, and the target's own name.",
            name="model-name",
        ),
    ] = ()
    any_model: Annotated[bool, Flag("Take any name of a model, for apps that insist on one of theirs.")] = False
    allow_origins: Annotated[
        tuple[str, ...],
        Flag(
            "Site whose pages may call the API, as http://localhost:3000. Repeatable. * allows every site, and needs an"
            " API key. Default: none but the gateway's own page.",
            name="allow-origin",
        ),
    ] = ()
    sessions: Annotated[int, Flag("Largest number of answers written at once.")] = 4
    queue: Annotated[int, Flag("Largest number of requests that wait; more are refused.")] = 16
    max_tokens: int | None = None  # limit where a request sets none; None: the room in the context
    generation_config: Annotated[
        bool,
        Flag(
            "Where neither a request nor an option here says how to sample, do as the target's generation_config.json"
            " says."
        ),
    ] = True
    unverified: Annotated[
        UnverifiedPolicy,
        Flag(
            "What apps get of the drafter's text in an outage where a request does not say. hold: none before the"
            " target has verified it. keep: all, as it is. stream: all, and what replaces it."
        ),
    ] = "hold"
    profile: Annotated[
        str | None, Flag("Emulate a link of this profile (paper-4g, ...) to the server; the page can then cut it.")
    ] = None
    engine: Annotated[
        Literal["auto", "kernel", "tun", "proxy"], Flag("What emulates the link; proxy needs no privileges.")
    ] = "auto"

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise UsageError(f"port={self.port}: need 0 to 65535")
        for name, least in (("sessions", 1), ("queue", 0), ("max_tokens", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise UsageError(f"{name}={value}: need at least {least}")
        if not all(self.names):
            raise UsageError("model-name: a name is empty: need at least one character")
        if self.api_key is not None and self.api_key_file is not None:
            raise UsageError("api_key and api-key-file: give one of them")
        if self.api_key is not None and not self.api_key.strip():
            raise UsageError("the API key is empty: need at least one character")
        has_key = self.api_key is not None or self.api_key_file is not None
        if not has_key and not is_loopback_host(self.host):
            raise UsageError(f"host={self.host}: others can reach it, so give --api-key-file or set {API_KEY_VARIABLE}")
        if not has_key and ANY_ORIGIN in self.allow_origins:
            raise UsageError("allow-origin=*: any site could use this gateway: name some, or give --api-key-file")
        for origin in self.allow_origins:
            if origin != ANY_ORIGIN and not _ORIGIN.fullmatch(origin):
                raise UsageError(
                    f"allow-origin={origin}: need scheme://host or scheme://host:port, in lower case and without a path"
                )

    def read_key(self) -> str | None:
        """Return the API key, from wherever it is. Raises UsageError."""
        if self.api_key_file is None:
            return self.api_key
        if not (key := read_text(self.api_key_file, "api-key-file").strip()):
            raise UsageError(f"api-key-file={self.api_key_file}: is empty: need at least one character")
        return key
