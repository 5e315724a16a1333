"""The command line: `outrider generate`, `chat`, `gateway`, `describe`, `pull`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from outrider_client.cli.access_options import access_from, with_access_options, with_port
from outrider_client.cli.chat.conversation import ChatConversation
from outrider_client.cli.chat.input import lines
from outrider_client.cli.chat.link import ChatLink
from outrider_client.cli.chat.repl import ChatRepl
from outrider_client.cli.gateway import gateway_command
from outrider_client.cli.options import client_config, with_client_options
from outrider_client.cli.pull import pull_command
from outrider_client.client import Client
from outrider_client.core.config import ClientConfig
from outrider_client.display.display import display_for, show_answer
from outrider_client.display.messages import print_message, printable
from outrider_client.models.local_models import Prompt
from outrider_client.privacy.fences import parse_prompt, private_kinds, read_private_file
from outrider_proto.errors import LinkError, OutriderError, Refusal, UsageError

EXIT_USAGE, EXIT_REFUSAL, EXIT_LINK, EXIT_INTERRUPTED = 2, 3, 4, 130

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Text from a large model on a server and a small one here. Colours: green drafted here and accepted,"
    " cyan the server's own, yellow unverified, magenta corrected, blue private.",
)


@app.command()
@with_client_options
def generate(
    prompt: Annotated[str | None, Argument(help="The text; - reads it from standard input.")] = None,
    prompt_ids: Annotated[str | None, Option(help="Token ids instead: 1,2,3.")] = None,
    raw: Annotated[bool, Option(help="Take the text as it is, without the chat template.")] = False,
    private: Annotated[list[Path] | None, Option(help="A file whose text follows, and is private. Repeatable.")] = None,
    fences: Annotated[bool, Option(help="Take <<...>> in the text for marks around what is private.")] = True,
    detect_pii: Annotated[bool, Option(help="Mark what looks like an address or a number as private, too.")] = False,
    as_json: Annotated[bool, Option("--json", help="One JSON object an event.")] = False,
    **options: Any,  # the shared ones
) -> None:
    """Answer one prompt."""
    config = client_config(options, raw=raw)
    asked = _asked(prompt, prompt_ids, private or [], fences=fences, detect=detect_pii)
    with Client(config) as client:
        try:
            display = display_for(client, as_json=as_json)
            finished = show_answer(client, asked, display)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
    if display.written.token_ids and not display.written.text and not as_json:
        print_message("the answer's tokens have no text: --json shows their ids")
    if finished.reason == "unverified" and config.mode != "offline":
        print_message("the link stayed away: the end of this answer is unverified")
    if finished.reason == "private":
        print_message("private text stays here: the drafter wrote this answer alone, unverified")
    if finished.reason == "link" and config.mode == "offline":
        raise LinkError("offline: neither the drafter nor the last resort could tell how this text goes on")
    if finished.reason == "link":
        raise LinkError(f"{config.server}: lost, and it did not come back in time")


@app.command()
@with_access_options
def describe(
    server: Annotated[str, Option(help="The server's HOST or HOST:PORT.")] = ClientConfig().server,
    as_json: Annotated[bool, Option("--json", help="As a JSON object.")] = False,
    **options: Any,  # how it is reached
) -> None:
    """Say what a server hosts."""
    with Client(ClientConfig(server=with_port(server), access=access_from(options))) as client:
        description = asdict(client.describe())
    if as_json:
        print(json.dumps(description))
        return
    taps = ", ".join(f"{tap['family']} ({tap['fingerprint']})" for tap in description.pop("taps"))
    for name, value in (description | {"taps": taps}).items():
        print(printable(f"{name.replace('_', ' '):22} {value}"))


@app.command()
@with_client_options
def chat(
    as_json: Annotated[bool, Option("--json", help="One JSON object an event.")] = False,
    private: Annotated[Path | None, Option(help="A file whose text goes along, and never leaves this device.")] = None,
    profile: Annotated[
        str | None, Option(help="Put an emulated link before the server, which /link can cut: paper-4g, ...")
    ] = None,
    history: Annotated[bool, Option(help="Remember what was said, private text left out, for the arrow keys.")] = True,
    **options: Any,  # the shared ones
) -> None:
    """ChatRepl. /help says what can be asked; <<...>> is private; Ctrl-C ends an answer, Ctrl-D the conversation."""
    config = client_config(options)
    conversation = ChatConversation("" if private is None else read_private_file(private))
    with contextlib.ExitStack() as stack:
        link = None if profile is None else stack.enter_context(ChatLink(profile, config.server))
        reached = config
        if link is not None:
            reached = replace(config, server=link.address, access=config.access.through(config.server))
        client = stack.enter_context(Client(reached))
        ChatRepl(client, config, conversation, link, as_json=as_json).run(lines(_history() if history else None))


app.command("gateway")(with_client_options(gateway_command))
app.command("pull")(with_access_options(pull_command))


def main() -> None:
    """Exit codes: 2 usage, 3 refusal, 4 link, 130 interrupted."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's own log says nothing that our errors do not
    try:
        app()
    except OutriderError as error:
        print_message(str(error))
        sys.exit(_exit_code(error))


def _asked(prompt: str | None, prompt_ids: str | None, private: list[Path], *, fences: bool, detect: bool) -> Prompt:
    if (prompt is None and not private) == (prompt_ids is None):
        raise UsageError("give either PROMPT or --prompt-ids")
    if prompt_ids is not None:
        return _ids(prompt_ids)
    asked = parse_prompt(sys.stdin.read() if prompt == "-" else prompt or "", private, fences=fences, detect=detect)
    if detect:
        print_message(f"private: {', '.join(private_kinds(asked)) or 'nothing'}")
    return asked


def _ids(prompt_ids: str) -> list[int]:
    try:
        return [int(token) for token in prompt_ids.split(",")]
    except ValueError:
        raise UsageError(f"prompt-ids={prompt_ids!r}: need token ids with commas between them") from None


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


def _history() -> Path:
    from platformdirs import user_state_path

    return user_state_path("outrider") / "chat_history"


if __name__ == "__main__":
    main()
