"""The `outrider` command: generate, chat, gateway, describe, draft-history, pull, config.

Each command imports what it needs when it runs, so that help and usage errors need neither torch nor gRPC.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from outrider_client.cli.chat_command import chat_command
from outrider_client.cli.interrupts import raise_on_interrupt
from outrider_client.cli.options import CONNECTION, OPTIONS, SERVER, ClientOptions, with_client_options, with_models
from outrider_client.cli.pull import EXIT_INTERRUPTED, can_offer_pull, pull_command, with_pull_offered
from outrider_client.connection.access import KEY_VARIABLE
from outrider_client.core.config import PRIVACY_PANEL, UNASKED, UNLIMITED, ClientConfig
from outrider_client.core.gateway_config import API_KEY_VARIABLE, GatewayConfig
from outrider_client.display.messages import explaining, print_message, report_error
from outrider_proto.errors import LinkError, OutriderError, UsageError
from outrider_proto.options.command import Commands, Version, exit_code
from outrider_proto.options.values import Table, build
from outrider_proto.terminal.text import print_line

if TYPE_CHECKING:
    from outrider_client.models.local_models import Prompt

JSON_OPTION = "--json"
_OF_REQUESTS = {  # options that the gateway leaves to each request, and how it sets them
    "on_reconnect": 'with "outrider": {"unverified": ...}',
    "logprobs": "with OpenAI's logprobs and top_logprobs",
}

app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback(
    help="Generate text with a large model on a server and a small drafter on this device. Colors on a terminal: green"
    " drafted here and accepted, cyan written by the server, magenta corrected by it, yellow not verified yet, blue"
    " private."
)
def _outrider(version: Version = False) -> None: ...


@app.command()
@with_client_options()
def generate(
    options: ClientOptions,
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
    rules = {} if json_schema is None else {"json_schema": read_schema(json_schema)}
    config = options.config().for_answer(raw=raw or prompt_ids is not None, **rules)

    answer = partial(_answer, prompt=parsed, stops=stop or (), as_json=as_json)
    if as_json or not can_offer_pull(config):
        answer(with_models(config))
    else:
        with_pull_offered(config, answer)


def _answer(config: ClientConfig, prompt: Prompt, stops: Sequence[str], *, as_json: bool) -> None:
    from outrider_client.client import Client
    from outrider_client.display.display import cut_remark, display_for, show_answer

    raise_on_interrupt()
    with Client(config) as client, explaining(config.server):
        try:
            display = display_for(client, as_json=as_json)
            finished = show_answer(client, prompt, display, stops)
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


app.command("chat")(with_client_options(max_new_tokens=UNASKED, stop_loops=True)(chat_command))


@app.command("gateway")
@with_client_options(own=GatewayConfig, max_new_tokens=UNLIMITED, wait_for_link_s=10.0)
def gateway(options: ClientOptions, own: Table) -> None:
    """Serve OpenAI's API on this device: /v1/chat/completions, /v1/completions, /v1/models; a chat page at /."""
    if "api_key_file" not in own and (key := os.environ.get(API_KEY_VARIABLE)):
        own["api_key"] = key  # no option: every process can read command lines
    served = build(GatewayConfig, own)
    for name, how in _OF_REQUESTS.items():
        if name in options.on_command_line:
            raise UsageError(f"{name}: each request sets it itself, {how}")
    try:
        from outrider_client.gateway.serving import serve
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'outrider[gateway]'") from error
    from outrider_client.models.local_models import recommended_sampling

    served = replace(served, api_key=served.read_key(), api_key_file=None)
    client = with_models(options.config())
    if served.generation_config:
        recommended = recommended_sampling(client.target)
        client = client.for_answer(**{name: value for name, value in recommended.items() if not options.says(name)})
    limit = None if client.max_new_tokens == UNLIMITED else client.max_new_tokens
    # Each request sets its own.
    client = client.for_answer(max_new_tokens=1, on_reconnect="verify", logprobs=None)
    raise_on_interrupt()
    serve(client, replace(served, max_tokens=limit))


@app.command()
@with_client_options(CONNECTION)
def describe(
    options: ClientOptions, as_json: Annotated[bool, Option(JSON_OPTION, help="Print one JSON object.")] = False
) -> None:
    """Show which model a server has, its limits, and for which drafters it offers features (taps)."""
    from outrider_client.client import Client

    config = options.config()
    raise_on_interrupt()
    with Client(ClientConfig(config.server, access=config.access)) as client, explaining(config.server):
        description = asdict(client.describe())
    if as_json:
        print(json.dumps(description))
        return
    taps = ", ".join(f"{tap['family']} ({tap['fingerprint']})" for tap in description.pop("taps"))
    for name, value in (description | {"taps": taps}).items():
        print_line(f"{name.replace('_', ' '):22} {value}")


@app.command("draft-history")
def draft_history(clear: Annotated[bool, Option("--clear", help="Delete all of it.")] = False) -> None:
    """Show what --set draft-history=MB has kept on this device, and how large it is; or delete it."""
    from outrider_client.models.draft_history import clear_histories, history_folder, kept_histories

    folder = history_folder()
    histories = kept_histories(folder)
    for path, size_bytes in histories.items():
        print_line(f"{path}: {size_bytes / 1e3:,.1f} kB")
    if not histories:
        print_line(f"{folder}: nothing is kept")
    if clear:
        try:
            clear_histories(folder)
        except OSError as error:
            raise UsageError(f"{error.filename}: cannot be deleted ({error.strerror})") from error
        print("deleted")


app.command("pull")(
    with_client_options([replace(SERVER, flag=replace(SERVER.flag, positional=True)), *CONNECTION[1:]])(pull_command)
)


@app.command("config")
@with_client_options(
    [each if each in CONNECTION else replace(each, flag=replace(each.flag, expert=True)) for each in OPTIONS]
)
def show_config(options: ClientOptions, context: typer.Context) -> None:
    """Show the configuration file, its servers, and where values come from that are not the defaults."""
    file = options.file
    hint = ': there is no such file yet; a line such as server = "HOST:PORT" in it sets that option'
    print_line(f"{file.path}{'' if file.path.exists() else hint}")
    for name, table in file.servers.items():
        print_line(f"  server {name}: {table['server']}")
    for name, value, source in options.sources(context):
        print_line(f"{name} = {value}  ({source})")
    if os.environ.get(KEY_VARIABLE) and not options.says("key_file"):
        print("key = not shown  (environment)")


def main() -> None:
    """Exit with 2 for usage errors, 3 for refusals, 4 for link errors, 130 when interrupted."""
    # Before a command imports grpc, which reads it once. gRPC's own log says nothing that our errors do not.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if sys.stdout is None:  # closed, as some job schedulers start their jobs
        sys.stdout = io.StringIO()
    elif isinstance(sys.stdout, io.TextIOWrapper):
        # The encoding of a pipe may lack characters, as cp1252 on Windows: a question mark is better than no answer.
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, where an error can be told
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EPIPE) or error.filename is not None:
            raise  # not of standard output
        # What is buffered still would fail once more, with a traceback, when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.ENOSPC:
            print_message(f"standard output: cannot be written ({error.strerror})")
        sys.exit(1)
    except OutriderError as error:
        # Not the command's own value: an error may end a command before it has one.
        report_error(error, as_json=JSON_OPTION in sys.argv[1:])
        sys.exit(exit_code(error))


if __name__ == "__main__":
    main()
