"""The command line: `outrider generate`, `outrider chat`, `outrider describe`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any, Protocol

import typer
from rich.console import Console
from typer import Argument, Option

from outrider_client.client import Client
from outrider_client.config import ClientConfig
from outrider_client.events import Event, Finished, Warned
from outrider_client.json_display import JsonDisplay
from outrider_client.live_display import LiveDisplay
from outrider_client.local_models import Prompt
from outrider_client.options import client_config, with_client_options
from outrider_client.plain_display import PlainDisplay
from outrider_client.tokenizer import Message
from outrider_client.written import Written
from outrider_proto.errors import LinkError, OutriderError, Refusal, UsageError

EXIT_USAGE, EXIT_REFUSAL, EXIT_LINK, EXIT_INTERRUPTED = 2, 3, 4, 130

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Text from a large model on a server and a small one here. Colours: green drafted here and accepted,"
    " cyan the server's own, yellow unverified, magenta corrected.",
)


class Display(Protocol):
    """Shows one answer."""

    written: Written

    def show(self, event: Event) -> None: ...

    def close(self) -> None: ...


@app.command()
@with_client_options
def generate(
    prompt: Annotated[str | None, Argument(help="The text; - reads it from standard input.")] = None,
    prompt_ids: Annotated[str | None, Option(help="Token ids instead: 1,2,3.")] = None,
    raw: Annotated[bool, Option(help="Take the text as it is, without the chat template.")] = False,
    as_json: Annotated[bool, Option("--json", help="One JSON object an event.")] = False,
    **options: Any,  # the shared ones
) -> None:
    """Answer one prompt."""
    config = client_config(options, raw=raw)
    with Client(config) as client:
        try:
            display = _display(client, as_json)
            finished = _answer(client, _prompt(prompt, prompt_ids), display)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
    if display.written.token_ids and not display.written.text and not as_json:
        _say("the answer's tokens have no text: --json shows their ids")
    if finished.reason == "unverified" and config.mode != "offline":
        _say("the link stayed away: the end of this answer is unverified")
    if finished.reason == "link" and config.mode == "offline":
        raise LinkError("offline: neither the drafter nor the last resort could tell how this text goes on")
    if finished.reason == "link":
        raise LinkError(f"{config.server}: lost, and it did not come back in time")


@app.command()
@with_client_options
def chat(
    as_json: Annotated[bool, Option("--json", help="One JSON object an event.")] = False,
    **options: Any,  # the shared ones
) -> None:
    """Talk. Ctrl-C ends an answer, Ctrl-D the conversation."""
    messages: list[Message] = []
    with Client(client_config(options)) as client:
        for line in _lines():
            messages.append(Message(role="user", content=line))
            display = _display(client, as_json)
            try:
                _answer(client, messages, display)
            except KeyboardInterrupt:
                _say("stopped")
            except OutriderError as error:
                if len(messages) == 1:
                    raise
                _say(str(error))
            messages.append(Message(role="assistant", content=display.written.text))


@app.command()
def describe(
    server: Annotated[str, Option(help="The server's HOST:PORT.")] = ClientConfig().server,
    as_json: Annotated[bool, Option("--json", help="As a JSON object.")] = False,
) -> None:
    """Say what a server hosts."""
    with Client(ClientConfig(server=server)) as client:
        description = asdict(client.describe())
    if as_json:
        print(json.dumps(description))
        return
    taps = ", ".join(f"{tap['family']} ({tap['fingerprint']})" for tap in description.pop("taps"))
    for name, value in (description | {"taps": taps}).items():
        print(f"{name.replace('_', ' '):22} {value}")


def main() -> None:
    """Exit codes: 2 usage, 3 refusal, 4 link, 130 interrupted."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's own log says nothing that our errors do not
    try:
        app()
    except OutriderError as error:
        _say(str(error))
        sys.exit(_exit_code(error))


def _answer(client: Client, prompt: Prompt, display: Display) -> Finished:
    """Show an answer as it comes; returns how it ended."""
    finished = None
    warnings: list[str] = []  # for after the answer, whose place on a terminal they would take
    with contextlib.closing(display):
        for event in client.generate(prompt):
            display.show(event)
            match event:
                case Finished():
                    finished = event
                case Warned(message=message):
                    warnings.append(message)
    for message in warnings:
        _say(f"warning: {message}")
    assert finished is not None
    return finished


def _prompt(prompt: str | None, prompt_ids: str | None) -> Prompt:
    if (prompt is None) == (prompt_ids is None):
        raise UsageError("give either PROMPT or --prompt-ids")
    if prompt_ids is None:
        return sys.stdin.read() if prompt == "-" else prompt or ""
    try:
        return [int(token) for token in prompt_ids.split(",")]
    except ValueError:
        raise UsageError(f"prompt-ids={prompt_ids!r}: need token ids with commas between them") from None


def _display(client: Client, as_json: bool) -> Display:
    if as_json:
        return JsonDisplay(sys.stdout)
    console = Console(highlight=False)
    return LiveDisplay(console, client.link_state) if console.is_terminal else PlainDisplay(sys.stdout)


def _lines() -> Iterator[str]:
    """What the user says, until the end of input or Ctrl-C."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 # gives input() its line editing

    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if line:
            yield line


def _say(message: str) -> None:
    print(f"outrider: {message}", file=sys.stderr)


def _exit_code(error: OutriderError) -> int:
    match error:
        case UsageError():
            return EXIT_USAGE
        case Refusal():
            return EXIT_REFUSAL
        case LinkError():
            return EXIT_LINK
        case _:
            return 1


if __name__ == "__main__":
    main()
