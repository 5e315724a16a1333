"""`outrider pull`, and the offer to pull where the models on this device are not the server's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal
from typer import Option

from outrider_client.cli.chat.input import is_interactive
from outrider_client.cli.interrupts import raise_on_interrupt
from outrider_client.cli.options import ClientOptions, with_models
from outrider_client.core.config import ClientConfig
from outrider_client.display.messages import explaining, print_message
from outrider_proto.errors import OutriderError, Reason, Refusal
from outrider_proto.terminal.text import one_line, print_line

if TYPE_CHECKING:
    from outrider_client.client import Client
    from outrider_client.pull.pull import PullConfig, Pulled

EXIT_INTERRUPTED = 130
_CURED_BY_PULL = (Reason.TARGET_MISMATCH, Reason.TOKENIZER_MISMATCH)


def pull_command(
    options: ClientOptions,
    out: Annotated[
        Path | None,
        Option(help="Directory for the bundle. Default: in the user's data directory, where other commands find it."),
    ] = None,
    drafter: Annotated[str, Option(help="Name of the drafter to pull. Default: the server's first.")] = "",
    weights: Annotated[
        str, Option(help="Weight format: float32, bfloat16, int8 or int4. Default: the server's first.")
    ] = "",
    retry: Annotated[
        float, Option(help="Seconds without a new byte after which to give up, once the server was reached.")
    ] = 60.0,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per event, and of an error.")] = False,
) -> None:
    """Download what this device needs of a server's model and drafter. Resumes where it was interrupted."""
    from outrider_client.pull.pull import PullConfig

    client = options.config()
    config = PullConfig(client.server, out, drafter, weights, retry, access=client.access)
    pulled = _pull(config, as_json=as_json)
    if not as_json:
        target = "" if out is None else f" --target {pulled.directory}"
        print_line(f"use it with: outrider generate --server {client.server}{target} PROMPT")


def with_pull_offered(config: ClientConfig, run: Callable[[ClientConfig], None]) -> None:
    """Run with the configuration's models; if those are refused, offer to pull the server's and run with them."""
    filled = with_models(config)
    try:
        run(filled)
    except Refusal as refusal:
        if refusal.reason not in _CURED_BY_PULL or not _is_wanted(filled):
            raise
        from outrider_client.pull.pull import PullConfig

        _pull(PullConfig(filled.server, access=filled.access))
        run(with_models(config))


def can_offer_pull(config: ClientConfig) -> bool:
    """Return whether somebody is there to be asked, and has not chosen the models."""
    return config.target is None and config.drafter is None and is_interactive()


def check_target(client: Client, config: ClientConfig) -> None:
    """Raise Refusal if the server, where it answers, hosts another target than the configuration's."""
    from outrider_drafters.checkpoints.fingerprint import target_fingerprint
    from outrider_models.core.embedded import target_source

    try:
        served = client.describe()
    except OutriderError:
        return  # the chat goes on without it, and says so
    own = target_fingerprint(target_source(config.target))
    if own != served.target_fingerprint:
        raise Refusal(
            Reason.TARGET_MISMATCH,
            f"the client has target {own}, the server {served.target_fingerprint}; they must be the same:"
            f" `outrider pull {config.server}` fetches what fits this server",
        )


def _is_wanted(config: ClientConfig) -> bool:
    """Ask whether to pull the server's bundle; False too if it has none."""
    try:
        name, size_bytes = asyncio.run(_on_offer(config))
    except OutriderError:
        return False
    size = "size not known yet" if size_bytes is None else decimal(size_bytes)
    try:
        return typer.confirm(
            one_line(f"The server serves {name}, which is not on this device. Pull it now ({size})?"), default=True
        )
    except typer.Abort:  # Ctrl-C or Ctrl-D
        print()
        return False


async def _on_offer(config: ClientConfig) -> tuple[str, int | None]:
    """Return the name of a server's target and the size of its bundle, None while the server makes it."""
    from outrider_client.connection.grpc_transport import GrpcTransport
    from outrider_client.pull.bundle_source import BundleSource

    transport = GrpcTransport(config.server, config.access)
    async with transport.channel() as channel:
        source = BundleSource(transport, channel)
        name = (await source.describe()).target_name
        try:
            return name, (await source.manifest("", "")).size_bytes
        except Refusal as refusal:
            if refusal.reason is not Reason.BUNDLE_NOT_READY:
                raise
            return name, None


def _pull(config: PullConfig, *, as_json: bool = False) -> Pulled:
    """Pull and show the progress. Raises what pull_bundle does."""
    from outrider_client.display.pull_display import TextPullDisplay, print_json
    from outrider_client.pull.pull import pull_bundle
    from outrider_proto.terminal.console import TerminalConsole

    display = None if as_json else TextPullDisplay(TerminalConsole(stderr=True, highlight=False), sys.stdout)
    raise_on_interrupt()
    try:
        with explaining(config.server, hint=" (outrider pull HOST names another server)"):
            return asyncio.run(pull_bundle(config, print_json if display is None else display.show))
    except KeyboardInterrupt:
        print_message("stopped; what was downloaded is kept: pull again to go on")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        if display is not None:
            display.close()
