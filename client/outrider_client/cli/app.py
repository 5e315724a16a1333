"""The `outrider` command: generate, chat, gateway, describe, pull.

Each command imports what it needs when it runs, so that help and usage errors need neither torch nor gRPC.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from outrider_client.cli.access_options import (
    DEFAULT_SERVER,
    SERVER_HELP,
    SERVER_VARIABLE,
    ServerOption,
    access_from,
    with_access_options,
    with_port,
)
from outrider_client.cli.gateway import gateway_command
from outrider_client.cli.options import PRIVACY_PANEL, client_config, with_client_options
from outrider_client.core.config import UNLIMITED, ClientConfig
from outrider_client.display.error_reports import explaining, report_error
from outrider_client.display.messages import print_message, printable
from outrider_proto.errors import LinkError, OutriderError, Refusal, UsageError

JSON_OPTION = "--json"
EXIT_USAGE, EXIT_REFUSAL, EXIT_LINK, EXIT_INTERRUPTED = 2, 3, 4, 130

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"outrider {version('outrider')}")
        raise typer.Exit


@app.callback(
    help="Generate text with a large model on a server and a small drafter on this device. Colors on a terminal: green"
    " drafted here and accepted, cyan written by the server, magenta corrected by it, yellow not verified yet, blue"
    " private."
)
def _outrider(
    version: Annotated[
        bool, Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None: ...


@app.command()
@with_client_options
def generate(
    prompt: Annotated[
        str | None, Argument(help="Prompt text. Without it, or with -, the prompt is read from standard input.")
    ] = None,
    prompt_ids: Annotated[str | None, Option(help="Prompt as token ids (1,2,3), in place of text.")] = None,
    file: Annotated[list[Path] | None, Option(help="File whose text is added to the prompt. Repeatable.")] = None,
    system: Annotated[str | None, Option(help="System message: how the model is to answer.")] = None,
    stop: Annotated[
        list[str] | None, Option(help="Text that ends the answer, and is left out of it. Repeatable.")
    ] = None,
    json_schema: Annotated[
        Path | None, Option(help="File with a JSON schema: the answer is a JSON text that follows it.")
    ] = None,
    raw: Annotated[bool, Option(help="Give the text to the model as it is, without the chat template.")] = False,
    private: Annotated[
        list[Path] | None,
        Option(
            help="File whose text is added to the prompt as private text. Repeatable.", rich_help_panel=PRIVACY_PANEL
        ),
    ] = None,
    fences: Annotated[
        bool,
        Option(
            help="Treat <<private: ...>>, <<EMAIL: ...>> in the prompt as private text.", rich_help_panel=PRIVACY_PANEL
        ),
    ] = True,
    detect_pii: Annotated[
        bool,
        Option(
            help="Also treat as private what looks like personal data: addresses, numbers, names.",
            rich_help_panel=PRIVACY_PANEL,
        ),
    ] = False,
    as_json: Annotated[bool, Option(JSON_OPTION, help="Print one JSON object per event, and of an error.")] = False,
    **options: Any,  # the shared ones
) -> None:
    """Answer one prompt."""
    from outrider_client.cli.prompt_input import read_prompt, read_schema

    if stop is not None and not all(stop):
        raise UsageError("stop='': need a text of one character or more")
    parsed = read_prompt(
        prompt,
        prompt_ids,
        files=file or (),
        private=private or (),
        system=system,
        raw=raw,
        fences=fences,
        detect=detect_pii,
    )
    config = client_config(options, raw=raw or prompt_ids is not None)
    if json_schema is not None:
        config = config.for_answer(json_schema=read_schema(json_schema))
    from outrider_client.client import Client
    from outrider_client.display.display import cut_remark, display_for, show_answer

    with Client(config) as client, explaining(config.server):
        try:
            display = display_for(client, as_json=as_json)
            finished = show_answer(client, parsed, display, stop or ())
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
    if display.written.token_ids and not display.written.text and not as_json:
        print_message("the answer's tokens have no text: --json shows their ids")
    if not as_json and (cut := cut_remark(finished, config.max_new_tokens)):
        print_message(cut)
    if finished.reason == "unverified" and config.mode != "offline":
        print_message("the link did not come back: the end of this answer is unverified")
    if finished.reason == "private":
        print_message("private text stays on this device: the drafter wrote this answer alone, unverified")
    if finished.reason == "link" and config.mode == "offline":
        raise LinkError("offline: neither the drafter nor the last resort can continue this text")
    if finished.reason == "link":
        raise LinkError(f"{config.server}: the link broke and did not come back in time")


@app.command()
@with_client_options
def chat(
    as_json: Annotated[bool, Option(JSON_OPTION, help="Print one JSON object per event, and of an error.")] = False,
    system: Annotated[str | None, Option(help="System message: how the model is to answer.")] = None,
    private: Annotated[
        Path | None,
        Option(help="File whose text is added to the first message as private text.", rich_help_panel=PRIVACY_PANEL),
    ] = None,
    profile: Annotated[
        str | None,
        Option(help="Emulate a link of this profile (paper-4g, ...) to the server; /link can then cut and change it."),
    ] = None,
    max_new_tokens: Annotated[
        int | None, Option(help="Largest number of tokens in an answer. Default: as many as the context holds.")
    ] = None,
    history: Annotated[
        bool, Option(help="Keep the lines typed, without private text, for the arrow keys in later chats.")
    ] = True,
    **options: Any,  # the shared ones
) -> None:
    """Chat with the model. /help lists commands; <<private: ...>> stays here; Ctrl-C stops an answer, Ctrl-D leaves."""
    import contextlib
    from dataclasses import replace

    from outrider_client.cli.chat.conversation import ChatConversation
    from outrider_client.cli.chat.input import is_interactive, read_lines
    from outrider_client.cli.chat.link import ChatLink
    from outrider_client.cli.chat.own_server import needs_own_server, own_server
    from outrider_client.cli.chat.repl import ChatRepl
    from outrider_client.client import Client
    from outrider_client.privacy.fences import read_private_file

    config = client_config(options | {"max_new_tokens": UNLIMITED if max_new_tokens is None else max_new_tokens})
    conversation = ChatConversation("" if private is None else read_private_file(private), system or "")
    with contextlib.ExitStack() as stack:
        if needs_own_server(config):
            print_message(f"no server at {config.server}: starting one, for this chat alone")
            config = replace(config, server=stack.enter_context(own_server(config)))
        link = None if profile is None else stack.enter_context(ChatLink(profile, config.server))
        reached = config
        if link is not None:
            reached = replace(config, server=link.address, access=config.access.through(config.server))
        client = stack.enter_context(Client(reached))
        repl = ChatRepl(client, config, conversation, link, as_json=as_json, stays=is_interactive())
        if is_interactive() and not as_json:
            repl.greet()
        repl.run(read_lines(_history() if history else None))


app.command("gateway")(with_client_options(gateway_command))


@app.command()
@with_access_options
def describe(
    server: ServerOption = DEFAULT_SERVER,
    as_json: Annotated[bool, Option(JSON_OPTION, help="Print one JSON object.")] = False,
    **options: Any,  # how the server is reached
) -> None:
    """Show which model and drafters a server offers."""
    from outrider_client.client import Client

    server = with_port(server)
    with Client(ClientConfig(server=server, access=access_from(options))) as client, explaining(server):
        description = asdict(client.describe())
    if as_json:
        print(json.dumps(description))
        return
    taps = ", ".join(f"{tap['family']} ({tap['fingerprint']})" for tap in description.pop("taps"))
    for name, value in (description | {"taps": taps}).items():
        print(printable(f"{name.replace('_', ' '):22} {value}"))


@app.command()
@with_access_options
def pull(
    server: Annotated[str, Argument(envvar=SERVER_VARIABLE, help=SERVER_HELP)] = DEFAULT_SERVER,
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
    as_json: Annotated[bool, Option(JSON_OPTION, help="Print one JSON object per event, and of an error.")] = False,
    **options: Any,  # how the server is reached
) -> None:
    """Download what this device needs of a server's model and drafter. Resumes where it was interrupted."""
    import asyncio

    from rich.console import Console

    from outrider_client.display.pull_display import JsonPullDisplay, TextPullDisplay
    from outrider_client.pull.pull import PullConfig, pull_bundle

    server = with_port(server)
    config = PullConfig(server, out, drafter, weights, retry, access=access_from(options))
    display: JsonPullDisplay | TextPullDisplay = JsonPullDisplay(sys.stdout)
    if not as_json:
        display = TextPullDisplay(Console(stderr=True, highlight=False), sys.stdout)
    try:
        with explaining(server, other_server="outrider pull HOST"):
            pulled = asyncio.run(pull_bundle(config, display.show))
    except KeyboardInterrupt:
        print_message("stopped; what was downloaded is kept: pull again to go on")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        display.close()
    if not as_json:
        target = "" if out is None else f" --target {pulled.directory}"
        print(f"use it with: outrider generate --server {server}{target} PROMPT")


def main() -> None:
    """Exit with 2 for usage errors, 3 for refusals, 4 for link errors, 130 when interrupted."""
    # Before a command imports grpc, which reads it once. gRPC's own log says nothing that our errors do not.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        app()
    except OutriderError as error:
        # Not the command's own value: an error may end a command before it has one.
        report_error(error, as_json=JSON_OPTION in sys.argv[1:])
        sys.exit(_exit_code(error))


def _history() -> Path:
    from platformdirs import user_state_path

    return user_state_path("outrider") / "chat_history"


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
